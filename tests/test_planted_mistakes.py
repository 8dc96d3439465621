"""Wrong rules, compute rules and templates are caught under ``MINITVM_VERIFY=1``, whatever hides them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.codegen.backend import Backend
from minitvm.codegen.lower import Lowering
from minitvm.errors import CompilerError, PassError
from minitvm.ir.decision import decisions
from minitvm.ir.expr import Call, Constant, Expr, Module
from minitvm.ir.loop import Buffer, Const, Intrin, Kernel, Load, LoopExpr, Stmt, Store, map_expr, map_stmt
from minitvm.ir.op import OPS
from minitvm.ir.ops.elemwise import CastTo, Divide
from minitvm.ir.parser import parse_module
from minitvm.ir.pattern import call, const, value
from minitvm.passes import PassContext, Rule, Verify, rule, rule_pass
from minitvm.passes.compare import compare
from minitvm.passes.verify import NotCompared

TWO = np.asarray(2, "float32")


@pytest.fixture(autouse=True)
def _verifying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_VERIFY", "1")
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")


def dropping(op: str) -> Rule:
    """A rule that takes an operator of one argument for nothing."""

    @rule(call(op, value("x")))
    def drop(x: Expr) -> Expr:
        return x

    return drop


@rule(call("subtract", value("x"), value("x"), name="whole"))
def difference_of_equals(whole: Call, x: Expr) -> Expr:
    """Infinity minus infinity is NaN."""
    return Constant(np.zeros(whole.shape, whole.dtype))


@rule(call("multiply", value("x"), const("zero", where=lambda c: not c.value.any()), name="whole"))
def times_zero(whole: Call, x: Expr, zero: Expr) -> Expr:
    """NaN times zero is NaN."""
    return Constant(np.zeros(whole.shape, whole.dtype))


@rule(call("floor_divide", call("multiply", value("x"), const("c")), const("d")))
def multiplied_and_divided(x: Expr, c: Expr, d: Expr) -> Expr:
    """The product wraps around."""
    return x


@rule(call("maximum", value("x"), value("y")))
def smallest(x: Expr, y: Expr) -> Expr:
    return relay.minimum(x, y)


@rule(call(CastTo, call(CastTo, value("x")), name="whole"))
def merged_casts(whole: Call, x: Expr) -> Expr:
    """The cast between them cuts bytes off."""
    return relay.cast(x, dtype=whole.dtype)


@rule(call("logical_not", call("isnan", value("x")), name="whole"))
def always_a_number(whole: Call, x: Expr) -> Expr:
    return Constant(np.ones(whole.shape, "bool"))


@rule(call("greater_equal", value("x"), const("zero"), name="whole"))
def without_the_edge(whole: Call, x: Expr, zero: Expr) -> Expr:
    """Differs at zero alone."""
    return relay.greater(x, zero)


@rule(call(Divide, value("x"), const("c"), name="whole"))
def shifted(whole: Call, x: Expr, c: Expr) -> Expr:
    """Division rounds to zero, a shift rounds down."""
    return relay.right_shift(x, relay.const(1, whole.dtype))


F32, OPEN, I32 = "Tensor[(5, 3), float32]", "Tensor[(?, 3), float32]", "Tensor[(4,), int32]"
WRONG_RULES = {
    "a clip of small numbers": (dropping("clip"), "clip(%x, a_min=-6f, a_max=6f)", F32),
    "a clip of large numbers": (dropping("clip"), "clip(%x, a_min=-1e6f, a_max=1e6f)", F32),
    "a sign": (dropping("abs"), "abs(%x)", I32),
    "a sign where the shape is open": (dropping("abs"), "abs(%x)", OPEN),
    "infinity minus infinity": (difference_of_equals, "subtract(%x, %x)", F32),
    "zero times NaN": (times_zero, "multiply(%x, 0f)", F32),
    "what wraps around": (multiplied_and_divided, "floor_divide(multiply(%x, 4i32), 4i32)", I32),
    "which of two": (smallest, "maximum(%x, 1f)", F32),
    "bytes cut off": (merged_casts, 'cast(cast(%x, dtype="int8"), dtype="int32")', I32),
    "NaN": (always_a_number, "logical_not(isnan(%x))", F32),
    "zero": (without_the_edge, "greater_equal(%x, 0f)", F32),
    "negative numbers": (shifted, "divide(%x, 2i32)", I32),
}


@pytest.mark.parametrize("hidden_by", WRONG_RULES)
def test_a_wrong_rule(hidden_by: str) -> None:
    wrong, text, dtype = WRONG_RULES[hidden_by]
    module = parse_module(f"def @main(%x: {dtype}) {{ {text} }}")
    with pytest.raises(PassError, match=r"^pass Wrong changed result 0: "):
        rule_pass(wrong, name="Wrong")(module)


def test_what_was_compared_is_said() -> None:
    @rule(call("add", value("x"), value("x")))
    def right(x: Expr) -> Expr:
        return x * Constant(TWO)

    with decisions() as log:
        rule_pass(right, name="Right")(parse_module(f"def @main(%x: {F32}) {{ add(%x, %x) }}"))
    said = "the numbers agree on inputs that are small, positive, wide, huge, not finite"
    assert [str(d) for d in log if d.by == "Verify"] == [f"Right: Verify: {said}"]


def test_what_cannot_be_compared_does_not_pass() -> None:
    text = "def @main(%x: Tensor[(?, 3), float32]) { abs(reshape(%x, newshape=[7, -1])) }"
    with pytest.raises(NotCompared) as caught:
        rule_pass(dropping("abs"), name="Dropped")(parse_module(text))
    assert caught.value.message == "pass Dropped changed a module whose numbers cannot be compared"
    assert caught.value.where[0].startswith("inputs that are small: it raises ")
    with PassContext(instruments=[Verify(numbers=False)]), pytest.MonkeyPatch.context() as patch:
        patch.delenv("MINITVM_VERIFY")
        rule_pass(dropping("abs"), name="Dropped")(parse_module(text))


def test_what_rounding_alone_changes_is_no_difference() -> None:
    """The sine of a large sum has no digits; that of a small one has."""
    text = "def @main(%x: Tensor[(64,), float32]) { sin(sum(%x, axis=[0], keepdims=True)) }"
    module = parse_module(text)

    def other(inputs: list[Any]) -> Any:
        return np.sin(inputs[0][::-1].cumsum()[-1:])

    found = compare(module.main, other)
    assert not found.difference and "small" in found.agreed and "wide" in found.agreed


# --- kernels --------------------------------------------------------------------------------------------------

WRONG_COMPUTES: dict[str, tuple[str, Callable[..., Any], tuple[str, ...]]] = {
    "nn.relu": ("nn.relu(%x)", lambda self, x: OPS["abs"]().compute(x), (F32,)),
    "sign": ("sign(%x)", lambda self, x: OPS["tanh"]().compute(x), (F32,)),
    "maximum": ("maximum(%x, %y)", lambda self, x, y: OPS["add"]().compute(x, y), (F32, F32)),
    "left_shift": ("left_shift(%x, 1i32)", lambda self, x, y: OPS["multiply"]().compute(x, y), (I32,)),
}


def module_of(body: str, types: Sequence[str]) -> Module:
    params = ", ".join(f"%{name}: {type_}" for name, type_ in zip("xyzw", types, strict=False))
    return parse_module(f"def @main({params}) {{ {body} }}")


@pytest.mark.parametrize("op", WRONG_COMPUTES)
def test_a_wrong_compute_rule(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, wrong, types = WRONG_COMPUTES[op]
    monkeypatch.setattr(OPS[op], "compute", wrong)
    with pytest.raises(CompilerError, match="does not compute what its operators mean: result 0: element ") as caught:
        minitvm.build(module_of(body, types))
    assert caught.value.where[0].startswith(op)


def edited(kernel: Kernel, on_expr: Callable[[LoopExpr], LoopExpr], on_stmt: Callable[[Stmt], Stmt]) -> Kernel:
    body = map_stmt(kernel.body, lambda e: map_expr(e, on_expr), on_stmt)
    return dataclasses.replace(kernel, body=body)


def as_it_is(x: Any) -> Any:
    return x


def first_input(kernel: Kernel) -> Buffer:
    return kernel.inputs[0]


def starts_at_one(kernel: Kernel) -> Kernel:
    """Sums start at 1 instead of 0."""

    def start(s: Stmt) -> Stmt:
        is_zero = isinstance(s, Store) and isinstance(s.value, Const) and s.value == Const(0.0, s.value.dtype)
        return Store(s.buffer, s.index, Const(1.0, s.value.dtype)) if is_zero else s

    return edited(kernel, as_it_is, start)


def forgets(kernel: Kernel) -> Kernel:
    """The last product is taken for the sum of all."""

    def wrong(e: LoopExpr) -> LoopExpr:
        return e.args[0] * e.args[1] if isinstance(e, Intrin) and e.name == "fma" else e

    return edited(kernel, wrong, as_it_is)


def one_element_for_all(kernel: Kernel) -> Kernel:
    """Every element of the data is taken for the first one."""
    data = first_input(kernel)
    first = Load(data, tuple(Const(0) for _ in data.shape))
    return edited(kernel, lambda e: first if isinstance(e, Load) and e.buffer == data else e, as_it_is)


IMAGE, BLOCKS = "Tensor[(1, 16, 6, 6), float32]", "Tensor[(1, 2, 6, 6, 8), float32]"
LAYERS = {
    "matmul": ("nn.dense(%x, %y)", ("Tensor[(6, 8), float32]", "Tensor[(16, 8), float32]")),
    "packed": (
        'nn.contrib_dense_pack(%x, %y, weight_layout="NC16n")',
        ("Tensor[(6, 8), float32]", "Tensor[(1, 8, 16), float32]"),
    ),
    "convolution": ("nn.conv2d(%x, %y)", (IMAGE, "Tensor[(16, 16, 3, 3), float32]")),
    "transposed": ("nn.conv2d_transpose(%x, %y, strides=[2, 2])", (IMAGE, "Tensor[(16, 4, 3, 3), float32]")),
    "blocked": (
        "nn.contrib_conv2d_NCHWc(%x, %y, channels=16, "
        'data_layout="NCHW8c", kernel_layout="OIHW8i16o", out_layout="NCHW16c")',
        (BLOCKS, "Tensor[(1, 2, 3, 3, 8, 16), float32]"),
    ),
    "depthwise": (
        "nn.contrib_depthwise_conv2d_NCHWc(%x, %y, channels=16, groups=16, "
        'data_layout="NCHW8c", kernel_layout="OIHW1i8o", out_layout="NCHW8c")',
        (BLOCKS, "Tensor[(2, 1, 3, 3, 1, 8), float32]"),
    ),
}
ONE_AFTER_THE_OTHER = {
    "lstm": ("nn.lstm(%x, %y, %z, %w)", ((3, 2, 32), (32, 8), (2, 8), (2, 8))),
    "gru": ("nn.gru(%x, %y, %z, %w)", ((3, 2, 24), (24, 8), (24,), (2, 8))),
    "rnn": ("nn.rnn(%x, %y, %z)", ((3, 2, 8), (8, 8), (2, 8))),
    "running sum": ("cumsum(%x, axis=1)", ((3, 5, 4),)),
}


def caught(monkeypatch: pytest.MonkeyPatch, module: Module, mistake: Callable[[Kernel], Kernel]) -> None:
    """Whatever a template got wrong is wrong in the loops that it returned."""
    lower = Backend.lower
    changed = []

    def wrong(self: Backend, group: Any, symbol: str) -> Lowering:
        right = lower(self, group, symbol)
        kernel = mistake(right.kernel)
        changed.append(kernel.body is not right.kernel.body)
        return replace(right, kernel=kernel)

    monkeypatch.setattr(Backend, "lower", wrong)
    with pytest.raises(CompilerError, match="does not compute what its operators mean: result "):
        minitvm.build(module, opt_level=2)
    assert any(changed)


@pytest.mark.parametrize("mistake", [starts_at_one, forgets, one_element_for_all])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_wrong_template(layer: str, mistake: Callable[[Kernel], Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    caught(monkeypatch, module_of(*LAYERS[layer]), mistake)


@pytest.mark.parametrize("layer", ONE_AFTER_THE_OTHER)
def test_a_wrong_template_of_steps(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, shapes = ONE_AFTER_THE_OTHER[layer]
    types = [f"Tensor[({', '.join(map(str, shape))},), float32]" for shape in shapes]
    caught(monkeypatch, module_of(body, types), one_element_for_all)


def test_a_right_kernel_says_what_it_was_compared_on() -> None:
    library = minitvm.build(module_of(*LAYERS["matmul"]), opt_level=2)
    assert [d.reason for d in library.report.decisions if d.by == "verify"] == [
        "the numbers agree on inputs that are small, positive, wide, huge, not finite"
    ]


POSITIONS = {
    "take": ("take(%x, %y, axis=0)", ("Tensor[(3, 2), float32]", "Tensor[(4,), int32]")),
    "wrapped": ('take(%x, %y, axis=0, mode="wrap")', ("Tensor[(3, 2), float32]", "Tensor[(4,), int64]")),
    "gather": ("gather(%x, %y, axis=1)", ("Tensor[(3, 2), float32]", "Tensor[(3, 4), int64]")),
    "gather_nd": ("gather_nd(%x, %y)", ("Tensor[(3, 2), float32]", "Tensor[(2, 4), int8]")),
    "one_hot": ("one_hot(%x, %y, %z, depth=3)", ("Tensor[(4,), uint64]", "Tensor[(), float32]", "Tensor[(), float32]")),
    "lengths": ("reverse_sequence(%x, %y)", ("Tensor[(2, 3), float32]", "Tensor[(2,), int64]")),
    "unsigned lengths": ("reverse_sequence(%x, %y)", ("Tensor[(2, 3), float32]", "Tensor[(2,), uint64]")),
}


@pytest.mark.parametrize("operator", POSITIONS)
def test_a_position_out_of_range_has_one_meaning(operator: str) -> None:
    """The check that raises may be another kernel's, so that whoever looks at this one meets any integer."""
    library = minitvm.build(module_of(*POSITIONS[operator]), opt_level=2)
    (reason,) = {d.reason for d in library.report.decisions if d.by == "verify"}
    assert reason == "the numbers agree on inputs that are small, positive, wide, huge, not finite"


def test_a_kernel_that_is_mostly_chance_is_compared_on_other_inputs() -> None:
    """Forty steps over huge numbers: each element is one of two, by the rounding of sums."""
    types = [f"Tensor[{shape}, float32]" for shape in ((40, 1, 256), (256, 64), (1, 64), (1, 64))]
    library = minitvm.build(module_of("nn.lstm(%x, %y, %z, %w)", types), opt_level=2)
    (reason,) = {d.reason for d in library.report.decisions if d.by == "verify"}
    assert reason.startswith("the numbers agree on inputs that are small, positive"), reason


def test_a_chain_of_steep_functions_is_compared_where_rounding_decides_nothing() -> None:
    types = ["Tensor[(8, 8, 5), float32]"] * 3
    minitvm.build(module_of("tan(multiply(%z, add(%x, multiply(%y, tan(%x)))))", types), opt_level=3)


def test_the_last_bits_of_a_large_float_are_chance() -> None:
    """Of 2 ** 54 a rounding changes the bits that 32 of the integer's keep, to one of four numbers."""
    summed = "add(nn.conv2d(%x, %y, groups=3, channels=48, kernel_size=[7, 1]), %z)"
    types = [f"Tensor[({shape}), float32]" for shape in ("4, 3, 9, 8", "48, 1, 7, 1", "48, 1, 1")]
    body = f'cast(cast(cast({summed}, dtype="uint64"), dtype="uint32"), dtype="float32")'
    minitvm.build(module_of(body, types), opt_level=3)


def test_integers_of_a_sum_of_floats_may_be_rounded_in_another_way() -> None:
    """No input is a float that could be moved."""
    text = """
def @main(%x: Tensor[(1, 2, 4, 4), int64]) {
  cast(image.resize2d(cast(%x, dtype="float64"), size=[7, 9], method="linear", layout="NCHW"), dtype="int64")
}
"""
    minitvm.build(parse_module(text), opt_level=3)


@pytest.mark.filterwarnings("ignore:1 operator runs in Python")
def test_a_loop_of_any_number_of_trips_is_compared_on_few() -> None:
    """Extreme integers are drawn: 2 ** 63 - 1 trips among them."""
    text = """
def @main(%n: Tensor[(), int64], %x: Tensor[(3,), float32]) {
  control.loop(%n, True, add(%x, 0.0f), num_carried=1, body=fn (%i: Tensor[(), int64], %go: Tensor[(), bool],
    %v: Tensor[(3,), float32]) { (%go, multiply(%v, %v)) })
}
"""
    minitvm.build(parse_module(text), opt_level=3)
