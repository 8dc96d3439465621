"""OpenBLAS on this machine: that of numpy's wheel, or of the package scipy-openblas64.  Its integers have 64 bits."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from minitvm.errors import TargetError

FUNCTIONS = ("sgemm", "dgemm")
_PACKAGE = "scipy-openblas64"


def _folders() -> Iterator[Path]:
    """The place where wheels put it: beside numpy, inside it (macOS), in the package of its own."""
    numpy = Path(np.__file__).parent
    yield from (numpy.parent / "numpy.libs", numpy / ".dylibs")
    found = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    if found is not None and found.origin is not None:
        yield Path(found.origin).parent / "lib"


@cache
def functions() -> dict[str, int]:
    """The addresses of ``cblas_sgemm`` and ``cblas_dgemm``; :class:`TargetError` where there is no OpenBLAS."""
    paths = [path for folder in _folders() for path in sorted(folder.glob("libscipy_openblas64_*"))]
    for path in paths:
        try:
            library = ctypes.CDLL(str(path))
            pointers = {f"cblas_{name}": getattr(library, f"scipy_cblas_{name}64_") for name in FUNCTIONS}
        except (OSError, AttributeError):
            continue
        return {name: ctypes.cast(pointer, ctypes.c_void_p).value or 0 for name, pointer in pointers.items()}
    raise TargetError(
        "there is no OpenBLAS for -libs=cblas: it is neither in numpy's wheel nor a package of its own",
        where=[f"{path} cannot be used" for path in paths],
        hint=f"pip install {_PACKAGE}, or leave out -libs",
    )
