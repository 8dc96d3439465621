"""What tests need that compile C++ for the host: CUDA C that runs on the CPU."""

from __future__ import annotations

import pytest

from simulated_gpu import host_compiler

needs_compiler = pytest.mark.skipif(
    host_compiler() is None, reason="no C++ compiler is installed: install g++ or clang++"
)
