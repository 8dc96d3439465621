"""What the graders of several chapters share: a student's function as a pass, an operator that draws, a rule."""

from collections.abc import Callable, Sequence

import numpy as np

from minitvm.ir import builder as relay
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.op import Fusion, Op
from minitvm.ir.parser import parse_module
from minitvm.ir.pattern import call, const, value
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, calls
from minitvm.lab.course.check import Wrong
from minitvm.passes import FuseOps, InferType
from minitvm.passes.instrument import PassInfo
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.rule import Replacement, rule


def over(body: str, shape: str = "(2, 3)", dtype: str = "float32") -> str:
    """A module of one input ``%x``."""
    return f"def @main(%x: Tensor[{shape}, {dtype}]) {{ {body} }}"


def shape_of(expr: Expr) -> tuple[int, ...]:
    """A tensor's shape of known numbers."""
    assert isinstance(expr.type, TensorType)
    return tuple(map(int, expr.type.shape))


def operators(module: Module) -> list[str]:
    """The names of the operators that ``main`` calls, in order."""
    return [call.op.name for call in calls(module.main) if isinstance(call.op, Op)]


def drawn_inputs(params: Sequence[Expr], seed: int) -> list[np.ndarray]:
    """Normally distributed floats for each parameter."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape_of(p)).astype("float32") for p in params]


class Given(FunctionPass):
    """A student's function of a function as a pass."""

    def __init__(self, change: Callable[[Function], Function]) -> None:
        self.info, self.change = PassInfo("the exercise", 0), change

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        found = self.change(function)
        if not isinstance(found, Function):
            raise Wrong(f"it returned {found!r}, not a Function", "return rewrite(function, visit)")
        return as_function(found)


def fused(text: str) -> Module:
    """A module whose calls are calls of groups."""
    return FuseOps()(InferType()(parse_module(text)))


class Noise(Op, fusion=Fusion.OPAQUE, stateful=True):
    """Random numbers of the data's type."""

    def infer(self, data: TensorType) -> TensorType:
        return data

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.zeros_like(data)


Noise.name = "course.noise"  # set here, it is nobody else's operator


@rule(call("multiply", call("nn.conv2d", value("x"), const("w"), name="conv"), const("c")))
def reference_fold_scale(x: Expr, w: Constant, c: Constant, conv: Call) -> Replacement:
    return Call(conv.op, [x, relay.const(w.value * c.value.reshape(-1, 1, 1, 1))])


@rule(call("layout_transform", call("layout_transform", value("x"), name="first"), name="second"))
def reference_cancel(x: Expr, first: Call, second: Call) -> Replacement:
    one, other = first.op.attributes(), second.op.attributes()  # type: ignore[union-attr]
    back = (one["src_layout"], one["dst_layout"]) == (other["dst_layout"], other["src_layout"])
    return x if back else Declined("it is not the way back")


@rule(call("nn.relu", call("layout_transform", value("x"), name="transform", single_use=True)))
def reference_relu_first(x: Expr, transform: Call) -> Replacement:
    return Call(transform.op, [relay.nn.relu(x)])
