"""Whether CUDA C can be compiled to machine code here."""

from __future__ import annotations

import pytest

from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.errors import CompilerError


def missing() -> str | None:
    """Why nothing can be compiled here."""
    try:
        compile_cubin('extern "C" __global__ void k() {}')
    except CompilerError as error:
        return f"{error.message}; {error.hint}"
    return None


REASON = missing()
needs_nvrtc = pytest.mark.skipif(REASON is not None, reason=str(REASON))
