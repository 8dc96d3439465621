"""A finding as a test file that needs nothing but minitvm: the module's text, its constants beside it, the check."""

from __future__ import annotations

import re
from pathlib import Path

from minitvm.ir.text import module_constants, save_constants
from minitvm.lab.check_result import Finding

_TEMPLATE = '''"""Found by `minitvm check`: {title}

{message}
"""

from pathlib import Path

from minitvm.ir.text import load_constants
from minitvm.lab import check, check_kernel, check_pass, object_of, used  # noqa: F401

MODULE = """
{module}"""
CONSTANTS = {constants}


def test_{name}() -> None:
    {repeat}.expect()
'''


def write(finding: Finding, folder: Path, number: int) -> Path:
    """Writes ``test_found_NUMBER_WHO.py``, and what its text does not hold (constants, an ONNX model)."""
    folder.mkdir(parents=True, exist_ok=True)
    words = re.findall(r"[a-z0-9]+", finding.guilty.split(",")[0].split("(")[0].lower())
    name = f"found_{number}_{'_'.join(words)[:60]}"
    path, constants = folder / f"test_{name}.py", module_constants(finding.module)
    if constants:
        save_constants(path.with_suffix(".npz"), constants)
    if finding.onnx:
        path.with_suffix(".onnx").write_bytes(finding.onnx)
    text = _TEMPLATE.format(
        title=_quoted(finding.guilty),
        message=_quoted("\n".join([finding.message, *finding.notes])),
        module=finding.module.astext().replace("\\", "\\\\").replace('"""', '\\"\\"\\"'),
        constants='load_constants(Path(__file__).with_suffix(".npz"))' if constants else "{}",
        name=name,
        repeat=finding.repeat,
    )
    path.write_text(text, encoding="utf-8")
    return path


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")
