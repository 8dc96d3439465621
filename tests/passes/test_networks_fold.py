"""Networks keep folding: how many scales go into weights, and how many multiplications are left, of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.frontend import from_onnx
from minitvm.ir.decision import decisions
from minitvm.ir.expr import Call, Function, Module
from minitvm.ir.visitor import calls
from minitvm.passes import PassContext, bind_params, default_pipeline
from minitvm.testing import densenet, mobilenet, resnet
from minitvm.testing.init import trained

SHAPE = (3, 64, 64)
MODELS = Path(os.environ.get("MINITVM_SHARED", "../shared")) / "models"


def folded(module: Module) -> tuple[int, int]:
    """The scales that went into weights, and the multiplications that are left."""
    with decisions() as log, PassContext(opt_level=3):
        found = default_pipeline(machine_model(host(), 1))(module)
    return sum(d.taken for d in log if "FoldScaleAxis" in d.by), sum(map(_multiplies, calls(found.main.body)))


def _multiplies(call: Call) -> int:
    if isinstance(call.op, Function):
        return sum(map(_multiplies, calls(call.op.body)))
    return call.op.name == "multiply"


NETWORKS: dict[str, tuple[Callable[[], tuple[Module, dict[str, Any]]], tuple[int, int]]] = {
    "resnet18": (lambda: resnet.get_workload(num_layers=18, image_shape=SHAPE, initializer=trained), (18, 1)),
    "mobilenet2": (lambda: mobilenet.get_workload(version=2, image_shape=SHAPE, initializer=trained), (52, 0)),
    "densenet": (lambda: densenet.get_workload(initializer=trained), (120, 1)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_batch_norms_go_into_weights(name: str) -> None:
    make, counts = NETWORKS[name]
    module, params = make()
    assert folded(module.with_function("main", bind_params(module.main, params))) == counts


@pytest.mark.models
def test_scales_of_a_real_model_go_into_weights() -> None:
    path = MODELS / "ppocrv4_det.onnx"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    assert folded(from_onnx(str(path), shape_dict={"x": (1, 3, 64, 64)}, freeze_params=True)[0])[0] == 63
