"""Planted mistakes, one small function each: what ``minitvm.lab.check`` has to find, name and make small.

Each function patches the compiler and returns the model (a module's text) that it is looked for in; ``names`` is what
the report has to say of who is guilty.  ``python -m tests.lab.planted`` makes the table of docs/check.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.codegen import loops
from minitvm.codegen.backend import Backend
from minitvm.codegen.llvm.backend import LlvmBackend
from minitvm.driver import compile as driver
from minitvm.ir.expr import Call, Constant, Expr, Function, Var
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Const, For, Intrin, Kernel, LoopKind, Stmt, Store, map_expr, map_stmt, walk_stmts
from minitvm.ir.op import OPS, Op
from minitvm.ir.ops.transform import Reshape
from minitvm.ir.pattern import call, const, value
from minitvm.ir.visitor import post_order, substitute
from minitvm.passes import Rule, alter_op_layout, fold_scale_axis, fuse_ops, redundancy, rule
from minitvm.passes.redundancy import FoldConstant
from minitvm.passes.simplify_expr import SimplifyExpr
from minitvm.runtime import memory

Patch = pytest.MonkeyPatch

RESIDUAL = """
def @main(%x: Tensor[(1, 16, 10, 10), float32], %w: Tensor[(16, 16, 3, 3), float32],
          %v: Tensor[(16, 16, 3, 3), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1]);
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, %v, padding=[1, 1]);
  %3 = add(%2, %x);
  %4 = nn.relu(%3);
  %5 = nn.max_pool2d(%4, pool_size=[2, 2], strides=[2, 2]);
  %6 = subtract(%5, 0.5f);
  %7 = nn.global_avg_pool2d(%6);
  nn.softmax(nn.batch_flatten(%7))
}
"""
PERCEPTRON = """
def @main(%x: Tensor[(7, 24), float32], %w: Tensor[(40, 24), float32], %v: Tensor[(11, 40), float32]) {
  %0 = nn.dense(%x, %w);
  %1 = clip(%0, a_min=0f, a_max=6f);
  %2 = tanh(subtract(%1, multiply(%1, 0.25f)));
  %3 = nn.dense(%2, %v);
  %4 = transpose(%3, axes=[1, 0]);
  %5 = sum(exp(negative(abs(%4))), axis=[0], keepdims=True);
  divide(%4, %5)
}
"""
INTEGERS = """
def @main(%x: Tensor[(6, 5), int32], %y: Tensor[(6, 5), int32]) {
  %0 = add(%x, %y);
  %1 = multiply(%0, 4i32);
  %2 = floor_divide(%1, 4i32);
  %3 = maximum(%2, %y);
  %4 = cast(%3, dtype="int8");
  %5 = cast(%4, dtype="int32");
  subtract(%5, divide(%x, 2i32))
}
"""
NUMBERS = """
def @main(%x: Tensor[(9, 33), float32]) {
  %0 = greater_equal(%x, 0f);
  %1 = where(%0, %x, multiply(%x, 0.5f));
  %2 = logical_not(isnan(%1));
  %3 = where(%2, %1, 1f);
  %4 = cumsum(%3, axis=1);
  multiply(%4, sigmoid(%x))
}
"""


PADDED = """
def @main(%x: Tensor[(1, 3, 6, 6), float32]) {
  nn.max_pool2d(nn.relu(nn.pad(tanh(%x), pad_width=[[0, 0], [0, 0], [0, 1], [1, 0]])), pool_size=[2, 2])
}
"""


EDGE = """
def @main(%x: Tensor[(9, 33), float32]) {
  tanh(where(greater_equal(%x, 0f), exp(%x), negative(%x)))
}
"""
SQUARE = """
def @main(%x: Tensor[(3, 4, 4), float32]) {
  nn.relu(transpose(tanh(%x), axes=[0, 2, 1]))
}
"""
FOLDED = """
def @main(%x: Tensor[(2, 8), float32]) {
  nn.relu(add(tanh(%x), multiply(const([1, 2, 3, 4, 5, 6, 7, 8], float32), 2f)))
}
"""
TWO_SIDES = """
def @main(%x: Tensor[(5, 4), float32], %y: Tensor[(5, 4), float32]) {
  %0 = subtract(%x, %y);
  %1 = subtract(%y, %x);
  add(exp(%0), tanh(%1))
}
"""
SCALED = """
def @main(%x: Tensor[(3, 2), float32]) {
  %0 = nn.dense(%x, const([[1, 2], [3, -4], [0.5, 1], [2, 2]], float32));
  nn.relu(multiply(%0, const([1, 2, 3, 4], float32)))
}
"""
SUMS = """
def @main(%x: Tensor[(64, 4096), float32]) {
  nn.relu(sum(tanh(%x), axis=[1]))
}
"""


@dataclass(frozen=True)
class Fault:
    """What is wrong, the model that it is looked for in, who the report has to name, and how it is planted."""

    what: str
    model: str
    names: str
    plant: Callable[[Patch], None]


FAULTS: dict[str, Fault] = {}


def fault(what: str, model: str, names: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS[plant.__name__] = Fault(what, model, names, plant)
        return plant

    return add


# --- rules ----------------------------------------------------------------------------------------------------


def _in_simplify(patch: Patch, wrong: Rule) -> None:
    patch.setattr(SimplifyExpr, "rules", (wrong, *SimplifyExpr.rules))


@fault("rule: a residual's addition forgets one of its operands", RESIDUAL, "rule forgotten_residual")
def forgotten_residual(patch: Patch) -> None:
    @rule(call("add", call("nn.conv2d", value("x"), value("w"), name="conv"), value("y")))
    def forgotten_residual(x: Expr, w: Expr, conv: Call, y: Expr) -> Expr:
        return conv

    _in_simplify(patch, forgotten_residual)


@fault("rule: the operands of a subtraction are swapped", PERCEPTRON, "rule swapped")
def swapped(patch: Patch) -> None:
    @rule(call("subtract", value("x"), call("multiply", value("y"), const("c"))))
    def swapped(x: Expr, y: Expr, c: Constant) -> Expr:
        return relay.subtract(relay.multiply(y, relay.const(float(c.value), "float32")), x)

    _in_simplify(patch, swapped)


@fault("rule: relu dropped behind a convolution, so negatives pass", RESIDUAL, "rule dropped_relu")
def dropped_relu(patch: Patch) -> None:
    @rule(call("nn.relu", call("nn.conv2d", value("x"), value("w"), name="conv")))
    def dropped_relu(x: Expr, w: Expr, conv: Call) -> Expr:
        return conv

    _in_simplify(patch, dropped_relu)


@fault("rule: x * 4 // 4 is x, though the product wraps around", INTEGERS, "rule wraps_around")
def wraps_around(patch: Patch) -> None:
    @rule(call("floor_divide", call("multiply", value("x"), const("c")), const("d")))
    def wraps_around(x: Expr, c: Expr, d: Expr) -> Expr:
        return x

    _in_simplify(patch, wraps_around)


@fault("rule: casts merged, though the first cuts bytes off", INTEGERS, "rule merged_casts")
def merged_casts(patch: Patch) -> None:
    @rule(call("cast", call("cast", value("x")), name="whole"))
    def merged_casts(whole: Call, x: Expr) -> Expr:
        return relay.cast(x, dtype=whole.dtype)

    _in_simplify(patch, merged_casts)


@fault("rule: a division by 2 becomes a shift, wrong for negatives", INTEGERS, "rule shifted")
def shifted(patch: Patch) -> None:
    @rule(call("divide", value("x"), const("c"), name="whole"))
    def shifted(whole: Call, x: Expr, c: Expr) -> Expr:
        return relay.right_shift(x, relay.const(1, whole.dtype))

    _in_simplify(patch, shifted)


@fault("rule: everything is taken for a number, NaN too", NUMBERS, "rule always_a_number")
def always_a_number(patch: Patch) -> None:
    @rule(call("logical_not", call("isnan", value("x")), name="whole"))
    def always_a_number(whole: Call, x: Expr) -> Expr:
        return Constant(np.ones(whole.shape, "bool"))

    _in_simplify(patch, always_a_number)


@fault("rule: >= becomes >, wrong at zero alone", EDGE, "rule without_zero")
def without_zero(patch: Patch) -> None:
    @rule(call("greater_equal", value("x"), const("c")))
    def without_zero(x: Expr, c: Constant) -> Expr:
        return relay.greater(x, relay.const(0.0, "float32"))

    _in_simplify(patch, without_zero)


@fault("rule: a clip loses its upper end", PERCEPTRON, "rule without_upper_end")
def without_upper_end(patch: Patch) -> None:
    @rule(call("clip", value("x")))
    def without_upper_end(x: Expr) -> Expr:
        return relay.nn.relu(x)

    _in_simplify(patch, without_upper_end)


@fault("rule: a transpose with axes of the wrong order", SQUARE, "rule wrong_axes")
def wrong_axes(patch: Patch) -> None:
    @rule(call("transpose", value("x"), name="whole"))
    def wrong_axes(whole: Call, x: Expr) -> Expr:
        return x if whole.shape == x.shape else whole

    _in_simplify(patch, wrong_axes)


# --- passes ---------------------------------------------------------------------------------------------------


@fault("pass: a constant fold is off by one in its last element", FOLDED, "pass FoldConstant")
def fold_off_by_one(patch: Patch) -> None:
    right = FoldConstant.transform_function

    def wrong(self: Any, function: Any, module: Any, context: Any) -> Any:
        new = right(self, function, module, context)
        old = {n for n in post_order(function) if isinstance(n, Constant)}
        made = [n for n in post_order(new) if isinstance(n, Constant) and n not in old and n.value.size > 1]
        changed: dict[Expr, Expr] = {n: Constant(_last_plus_one(n.value)) for n in made}
        return substitute(new, changed) if changed else new

    patch.setattr(FoldConstant, "transform_function", wrong)


def _last_plus_one(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1)[-1] += 1
    return changed


@fault("layout: a result is taken out of blocks by a reshape", RESIDUAL, "pass AlterOpLayout")
def reshaped_out_of_blocks(patch: Patch) -> None:
    right = alter_op_layout._transform

    def wrong(shape: Any, src: Layout, dst: Layout) -> Op:
        stays = src.is_blocked and not dst.is_blocked
        return Reshape(dst.shape_of(src.primal_shape(shape))) if stays else right(shape, src, dst)

    patch.setattr(alter_op_layout, "_transform", wrong)


@fault("fusion: two parameters of a group change places", TWO_SIDES, "pass FuseOps")
def swapped_parameters(patch: Patch) -> None:
    right = fuse_ops._Cut.function

    def wrong(self: Any, root: Expr) -> Function:
        made = right(self, root)
        return Function([*made.params[1::-1], *made.params[2:]], made.body, made.attrs, span=made.span)

    patch.setattr(fuse_ops._Cut, "function", wrong)


@fault(
    "pass: a scale is folded into the channels from the other end", SCALED, "pass FoldScaleAxis/BackwardFoldScaleAxis"
)
def scaled_from_the_other_end(patch: Patch) -> None:
    right = fold_scale_axis.scale_layer
    flipped = lambda layer, data, scale, inputs: right(layer, data, np.flip(scale), inputs)  # noqa: E731
    patch.setattr(fold_scale_axis, "scale_layer", flipped)


@fault("pass: x - y and y - x are one subexpression", TWO_SIDES, "pass EliminateCommonSubexpr")
def order_of_operands_is_forgotten(patch: Patch) -> None:
    right = redundancy._operand_key
    patch.setattr(redundancy, "_operand_key", lambda node: "a variable" if isinstance(node, Var) else right(node))


# --- operators' compute rules ---------------------------------------------------------------------------------


def _computing(patch: Patch, op: str, wrong: Callable[..., Any]) -> None:
    patch.setattr(OPS[op], "compute", wrong)


@fault("compute: tanh computed as sigmoid", PERCEPTRON, "compute rule of tanh")
def tanh_as_sigmoid(patch: Patch) -> None:
    _computing(patch, "tanh", lambda self, x: OPS["sigmoid"]().compute(x))


@fault("compute: abs keeps the sign", PERCEPTRON, "compute rule of abs")
def abs_as_copy(patch: Patch) -> None:
    _computing(patch, "abs", lambda self, x: OPS["copy"]().compute(x))


@fault("compute: maximum loses NaN's side, as minimum", INTEGERS, "compute rule of maximum")
def maximum_as_minimum(patch: Patch) -> None:
    _computing(patch, "maximum", lambda self, x, y: OPS["minimum"]().compute(x, y))


# --- templates, schedules, legalization -----------------------------------------------------------------------


def _loops(patch: Patch, mistake: Callable[[Kernel], Kernel], where: str = "") -> None:
    right = Backend.lower

    def wrong(self: Backend, group: Any, symbol: str) -> Any:
        found = right(self, group, symbol)
        return replace(found, kernel=mistake(found.kernel)) if where in symbol else found

    patch.setattr(Backend, "lower", wrong)


def _mapped(
    kernel: Kernel, on_expr: Callable[[Any], Any] = lambda e: e, on_stmt: Callable[[Any], Any] = lambda s: s
) -> Kernel:
    return dataclasses.replace(kernel, body=map_stmt(kernel.body, lambda e: map_expr(e, on_expr), on_stmt))


@fault("template: sums of a convolution start at 1", RESIDUAL, "template conv")
def sums_start_at_one(patch: Patch) -> None:
    def start(s: Stmt) -> Stmt:
        zero = isinstance(s, Store) and isinstance(s.value, Const) and s.value == Const(0.0, s.value.dtype)
        return Store(s.buffer, s.index, Const(1.0, s.value.dtype)) if zero else s

    _loops(patch, lambda kernel: _mapped(kernel, on_stmt=start), "conv2d")


@fault("template: a dense layer takes the last product for the sum", PERCEPTRON, "kernel fused_nn_")
def last_product(patch: Patch) -> None:
    def wrong(e: Any) -> Any:
        return e.args[0] * e.args[1] if isinstance(e, Intrin) and e.name == "fma" else e

    _loops(patch, lambda kernel: _mapped(kernel, on_expr=wrong), "dense")


@fault("template: the last tile's edge is one element short", PERCEPTRON, "kernel")
def short_edge(patch: Patch) -> None:
    def shorter(s: Stmt) -> Stmt:
        odd = isinstance(s, For) and isinstance(s.extent, Const) and s.extent.value > 2 and s.extent.value % 2
        return replace(s, extent=Const(s.extent.value - 1, s.extent.dtype)) if odd else s  # type: ignore[union-attr]

    _loops(patch, lambda kernel: _mapped(kernel, on_stmt=shorter))


@fault("compute: padding goes to the other end of each axis", PADDED, "compute rule of nn.pad")
def padded_at_the_other_end(patch: Patch) -> None:
    right = OPS["nn.pad"].compute

    def wrong(self: Any, *args: Any) -> Any:
        turned = tuple(tuple(reversed(ends)) for ends in self.pad_width)
        return right(self.with_attributes(pad_width=turned), *args)

    _computing(patch, "nn.pad", wrong)


@fault("schedule: a reduction runs in parallel, three threads race", SUMS, "kernel fused_")
def racing_sum(patch: Patch) -> None:
    def parallel(kernel: Kernel) -> Kernel:
        loops = [s for s in _statements(kernel.body) if isinstance(s, For)]
        inner = next((s for s in loops if s.kind is LoopKind.SERIAL and _is_reduction(s)), None)
        if inner is None:
            return kernel

        def change(s: Stmt) -> Stmt:
            if s is inner:
                return replace(inner, kind=LoopKind.PARALLEL)
            return replace(s, kind=LoopKind.SERIAL) if isinstance(s, For) and s.kind is LoopKind.PARALLEL else s

        return dataclasses.replace(kernel, body=map_stmt(kernel.body, lambda e: e, change))

    _loops(patch, parallel)


def _statements(stmt: Stmt) -> list[Stmt]:
    return list(walk_stmts(stmt))


def _is_reduction(loop: For) -> bool:
    stores = [s for s in _statements(loop.body) if isinstance(s, Store)]
    return any(loop.var not in s.index for s in stores)


@fault("schedule: of partial sums in lanes, the last step of adding them is left out", SUMS, "kernel fused_")
def partial_sums_left_over(patch: Patch) -> None:
    right = loops._halved
    patch.setattr(loops, "_halved", lambda wide, update, width: right(wide, update, width)[:-1])


@fault("legalization: exp is one too large", PERCEPTRON, "legalization")
def exp_plus_one(patch: Patch) -> None:
    right = LlvmBackend.legalize

    def wrong(self: Any, kernel: Kernel) -> Kernel:
        def larger(e: Any) -> Any:
            return e + Const(1.0, e.dtype) if isinstance(e, Intrin) and e.name == "exp" else e

        return right(self, _mapped(kernel, on_expr=larger))

    patch.setattr(LlvmBackend, "legalize", wrong)


# --- the executor ---------------------------------------------------------------------------------------------


@fault("memory plan: two values that live together share memory", RESIDUAL, "memory plan")
def shared_memory(patch: Patch) -> None:
    right = driver.plan_memory

    def wrong(*given: Any) -> Any:
        plan = right(*given)
        return replace(plan, offsets=tuple(0 if at > 0 else at for at in plan.offsets))

    patch.setattr(driver, "plan_memory", wrong)


@fault("memory plan: a value is taken for dead one step early", RESIDUAL, "memory plan")
def dead_too_early(patch: Patch) -> None:
    right = memory.lives
    patch.setattr(memory, "lives", lambda graph: [(first, max(last - 1, 0)) for first, last in right(graph)])
