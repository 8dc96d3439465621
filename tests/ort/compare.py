"""Runs scripts written for ONNX Runtime with both libraries, the import line exchanged, and compares what they print.

python tests/ort/compare.py            all of them, and how many agree
python tests/ort/compare.py 02 13      those whose names begin so
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import pathlib
import re
import sys
import tempfile
import traceback

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
ABSOLUTE, RELATIVE = 2e-3, 1e-3
"""How far printed numbers may be apart: they are rounded to 3 or 4 places."""


def names() -> list[str]:
    return sorted(path.stem for path in SCRIPTS.glob("[0-9]*.py"))


def printed(name: str, library: str) -> str:
    """What a script prints, with ``library`` in place of onnxruntime; its errors where it fails."""
    source = re.sub(r"(?m)^(\s*(?:import|from) )onnxruntime\b", rf"\1{library}", _source(name))
    if library != "onnxruntime":
        source = re.sub(rf"(?m)^import {library}$", f"import {library} as onnxruntime", source)
    out, here = io.StringIO(), pathlib.Path.cwd()
    sys.path.insert(0, str(SCRIPTS))
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out):
            os.chdir(folder)
            exec(compile(source, f"{name} with {library}", "exec"), {"__name__": "__main__"})
    except Exception:
        return f"{out.getvalue()}failed: {traceback.format_exc()}"
    finally:
        os.chdir(here)
        sys.path.remove(str(SCRIPTS))
    return out.getvalue()


def _source(name: str) -> str:
    return (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")


def agree(ours: str, theirs: str) -> bool:
    """Whether two outputs say the same: the same words, and numbers that are close."""
    if NUMBER.sub("#", ours) != NUMBER.sub("#", theirs) or "failed:" in theirs:
        return False
    pairs = zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True)
    return all(abs(float(a) - float(b)) <= ABSOLUTE + RELATIVE * abs(float(b)) for a, b in pairs)


def difference(ours: str, theirs: str) -> str:
    lines = difflib.unified_diff(theirs.splitlines(), ours.splitlines(), "onnxruntime", "minitvm", lineterm="", n=1)
    return "\n".join(lines)


def main() -> None:
    chosen = [name for name in names() if not sys.argv[1:] or name.startswith(tuple(sys.argv[1:]))]
    good = 0
    for name in chosen:
        ours, theirs = printed(name, "minitvm"), printed(name, "onnxruntime")
        good += agree(ours, theirs)
        print(f"{name:20} {'same' if agree(ours, theirs) else 'differs'}", flush=True)
        if not agree(ours, theirs):
            print(difference(ours, theirs))
    print(f"{good} of {len(chosen)} scripts print the same with minitvm as with onnxruntime")
    sys.exit(good != len(chosen))


if __name__ == "__main__":
    main()
