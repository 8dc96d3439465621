"""Every real model as text and back, as imported and after the whole pipeline."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from minitvm.frontend import from_onnx
from minitvm.ir.expr import Module
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import assert_structural_equal, structural_hash
from minitvm.ir.text import module_constants
from minitvm.ir.verify import verify
from minitvm.passes import bind_params, default_pipeline
from minitvm.passes.manager import PassContext
from minitvm.target import MachineModel

SHARED = Path(os.environ.get("MINITVM_SHARED", Path(__file__).resolve().parents[3] / "shared"))
MODELS = sorted(SHARED.glob("models/*.onnx"))

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(not MODELS, reason="pretrained models lie in ../shared/models, which is absent"),
]


def round_trip(module: Module) -> None:
    verify(module)
    text = module.astext()
    parsed = parse_module(text, module_constants(module))
    assert_structural_equal(parsed, module)
    assert structural_hash(parsed) == structural_hash(module)
    assert parsed.astext() == text


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_model_comes_back(path: Path) -> None:
    arrays = np.load(path.with_suffix(".npz"))
    shapes = {name.removeprefix("in0."): arrays[name].shape for name in arrays.files if name.startswith("in0.")}
    module, params = from_onnx(path, shapes)
    round_trip(module)
    with PassContext(opt_level=3):
        bound = module.with_function("main", bind_params(module.main, params))
        optimized = default_pipeline(MachineModel(vector_bytes=32, vector_registers=16))(bound)
    round_trip(optimized)
