"""A failing case as a test file that needs nothing but minitvm, numpy and onnx."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnx.printer

from minitvm.testing.fuzz.case import Arrays, Case

_LITERAL = 64
"""Arrays of more elements are written as bytes."""

_TEMPLATE = '''"""Found by minitvm.testing.fuzz (--replay {seed}:{index}), then shrunk.

{message}
"""

from __future__ import annotations

import base64

import numpy as np
import onnx
from numpy import inf, nan  # noqa: F401

import minitvm
from minitvm.runtime.executor import GraphModule  # noqa: F401


def unpacked(text: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


MODEL = {model!r}
FEEDS = {feeds}
EXPECTED = {expected}


def model() -> onnx.ModelProto:
    return onnx.load_from_string(base64.b64decode(MODEL))


def test_fuzz_{seed}_{index}(tmp_path) -> None:
{run}
    for feeds, expected in zip(FEEDS, EXPECTED, strict=True):
        for found, want in zip(run(feeds), expected or [], strict=False):
            assert (found.dtype, found.shape) == (want.dtype, want.shape)
            half = want.dtype == np.float16
            np.testing.assert_allclose(found, want, rtol=4e-3 if half else 1e-4, atol=1e-3 if half else 1e-5)
'''


def write(
    case: Case,
    expected: Sequence[Sequence[np.ndarray] | None],
    seed: int,
    index: int,
    message: str,
    folder: pathlib.Path,
) -> pathlib.Path:
    """Writes ``test_fuzz_SEED_INDEX.py`` and the model beside it; returns the test's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"test_fuzz_{seed}_{index}.py"
    shown = case.replace(constants={n: a for n, a in case.constants.items() if a.size <= _LITERAL})
    text = _TEMPLATE.format(
        seed=seed,
        index=index,
        message=_quoted(f"{message}\n\n{onnx.printer.to_text(shown.model())}"),
        model=base64.b64encode(case.model().SerializeToString()).decode(),
        feeds="[" + ", ".join(_dictionary(feeds) for feeds in case.feeds) + "]",
        expected="[" + ", ".join("None" if e is None else _list(map(_array, e)) for e in expected) + "]",
        run=_run(case),
    )
    path.write_text(text, encoding="utf-8")
    onnx.save(case.model(), str(path.with_suffix(".onnx")))
    return path


def _list(items: Iterable[str]) -> str:
    return "[" + ", ".join(items) + "]"


def _dictionary(arrays: Arrays) -> str:
    return "{" + ", ".join(f"{name!r}: {_array(a)}" for name, a in arrays.items()) + "}"


def _array(array: np.ndarray) -> str:
    if array.size <= _LITERAL:
        return f"np.array({array.tolist()!r}, {array.dtype.name!r}).reshape({array.shape!r})"
    text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return f"unpacked({text!r}, {array.dtype.name!r}, {array.shape!r})"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _run(case: Case) -> str:
    """The lines that make ``run``, feeds to results, as the case's configuration says."""
    config = case.config
    if config.way == "session":
        options = f"target={config.target!r}, num_threads={config.threads}, opt_level={config.level}"
        lines = [
            f"session = minitvm.InferenceSession(model(), {options})",
            "",
            "def run(feeds):",
            "    return session.run(None, feeds)",
        ]
    else:
        saved = ['library.save(tmp_path / "case.mtvm")', 'library = minitvm.load(tmp_path / "case.mtvm")']
        lines = [
            f"library = minitvm.compile(model(), {config.target!r}, {config.level}, num_threads={config.threads})",
            *(saved if config.way == "saved" else []),
            f'module = GraphModule(library["default"](None, {config.threads}))',
            "",
            "def run(feeds):",
            *("    for name, array in feeds.items():", "        module.set_input(name, array)"),
            *("    module.run()", "    return module.outputs()"),
        ]
    return "\n".join(f"    {line}" if line else "" for line in [*lines, ""])
