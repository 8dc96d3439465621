"""What tests need that compile C++ for the host: CUDA C that runs on the CPU."""

from __future__ import annotations

import sys

import pytest

from simulated_gpu import host_compiler

needs_compiler = pytest.mark.skipif(
    host_compiler() is None, reason="no C++ compiler is installed: install g++ or clang++"
)
ON_GPU = "tests.on_gpu" in sys.modules
"""Whether what is compiled for the host elsewhere runs on a GPU: ``pytest -p tests.on_gpu``."""
PARTS = 24 if ON_GPU else 1
"""Tests that the cases of one are spread over: of the host's compiler, a call costs more than a kernel does."""
only_simulated = pytest.mark.only_simulated
"""About what the simulated GPU tells, and a real one does not."""
