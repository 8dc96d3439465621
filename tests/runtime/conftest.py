"""The small model, compiled once."""

from __future__ import annotations

import pytest
from small_model import Model, small_module

from minitvm.driver import build


@pytest.fixture(scope="session")
def model() -> Model:
    module, params = small_module()
    return module, params, build(module, "llvm", params)
