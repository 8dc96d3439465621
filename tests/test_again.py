"""What a user adds, defined again as a cell of a notebook does that is run again: it takes the first one's place.
Another one of the same name is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm.codegen.backend import BACKENDS, register
from minitvm.codegen.interp.backend import InterpBackend
from minitvm.codegen.problem import TEMPLATES
from minitvm.errors import FrontendError, IRError, PassError, TargetError
from minitvm.frontend.onnx.registry import BUILDERS, onnx_op
from minitvm.ir.expr import Call, Function, Module, Var
from minitvm.ir.op import OPS
from minitvm.ir.types import TensorType
from minitvm.passes.manager import KNOWN_PASSES, PASSES
from minitvm.runtime.code import CODES
from minitvm.target import OPTIONS

CELL = """
from minitvm.codegen.problem import TEMPLATES, Template
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.ir.op import Fusion, Op, compute
from minitvm.ir.ops.elemwise import Relu
from minitvm.ir.pattern import call, value
from minitvm.passes import FunctionPass, rule

class Scaled(Op, name="again.scaled", fusion=Fusion.ELEMWISE):
    def infer(self, data):
        return data
    def reference(self, data):
        return data * FACTOR
    def compute(self, data):
        return compute(data.shape, lambda *i: data[i] * float(FACTOR))

@TEMPLATES.register("llvm", Scaled)
class ByHand(Template):
    factor = FACTOR
    def refusal(self):
        from minitvm.ir.decision import Declined
        return Declined(f"not {FACTOR}")
    def loops(self, choice):
        return None

@rule(call(Relu, value("x")))
def drop_relu(x):
    return x if FACTOR == 3 else drop_relu

class MyAgain(FunctionPass):
    factor = FACTOR

@onnx_op("Again", domain="test.again")
def again(node):
    return FACTOR
"""


def run_cell(factor: int, module: str = "a_notebook") -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": module, "FACTOR": factor}
    exec(CELL, space)
    return space


def result(op: type[Any]) -> np.ndarray:
    x = Var("x", TensorType((3,), "float32"))
    library = minitvm.build(Function([x], Call(op(), [x])))
    made = minitvm.GraphModule(library["default"](minitvm.cpu()))
    made.run(x=np.ones(3, "float32"))
    return made.get_output(0).numpy()


@pytest.fixture(autouse=True)
def tidy() -> Any:
    yield
    OPS.pop("again.scaled", None)
    TEMPLATES.table.pop(("llvm", "again.scaled"), None)
    BUILDERS.pop(("test.again", "Again"), None)
    PASSES.pop("MyAgain", None)
    KNOWN_PASSES.discard("MyAgain")


def test_a_cell_that_is_run_again() -> None:
    first, second = run_cell(2), run_cell(3)
    assert OPS["again.scaled"] is second["Scaled"] is not first["Scaled"]
    assert result(second["Scaled"]).tolist() == [3] * 3  # no kernel of the first one
    assert TEMPLATES.table["llvm", "again.scaled"] == [second["ByHand"]]
    assert minitvm.transform.get_pass("MyAgain").factor == 3  # type: ignore[attr-defined]
    assert BUILDERS["test.again", "Again"] == {1: second["again"]}
    module = Module.from_expr(minitvm.relay.nn.relu(Var("x", TensorType((3,), "float32"))))
    assert second["drop_relu"].as_pass()(module) is not module


def test_another_one_is_refused() -> None:
    run_cell(2)
    with pytest.raises(FrontendError, match=r"Again of opset 1 is built by a_notebook.again already, and again by b"):
        run_cell(2, "b")
    with pytest.raises(FrontendError, match="Relu of opset 1 is built by"):
        onnx_op("Relu")(lambda node: node.inputs[0])
    with pytest.raises(IRError, match=r"operator 'nn.relu' is defined in minitvm.ir.ops.elemwise.Relu already"):
        exec(CELL.replace("again.scaled", "nn.relu"), {"__name__": "c", "FACTOR": 1})
    with pytest.raises(PassError, match="pass FuseOps is minitvm's own"):
        exec(CELL.replace("MyAgain", "FuseOps"), {"__name__": "a_notebook", "FACTOR": 1})


def test_back_ends() -> None:
    def cell(options: dict[str, str]) -> type[Any]:
        space = {"kind": "again", "options": options, "__module__": "a_notebook"}
        return register(type("Mine", (InterpBackend,), space))

    try:
        cell({"x": "first"})
        second = cell({"y": "second"})
        assert BACKENDS["again"] is second and OPTIONS["again"] == {"y": "second"}
        with pytest.raises(TargetError, match="target 'llvm' is minitvm's own"):
            register(type("Other", (InterpBackend,), {"kind": "llvm", "__module__": "a_notebook"}))
    finally:
        BACKENDS.pop("again", None)
        OPTIONS.pop("again", None)
        CODES.pop("again", None)
