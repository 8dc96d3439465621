"""Patterns: what they match, what they capture, and what they must not match."""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.errors import IRError
from minitvm.ir.builder import call_op, const, nn, var
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple
from minitvm.ir.op import OPS
from minitvm.ir.pattern import call, either, get_item, match, optional, scalar, tuple_of, value
from minitvm.ir.pattern import const as constant
from minitvm.ir.visitor import use_counts

Add, Multiply, Relu, Conv2d = (OPS[n] for n in ("add", "multiply", "nn.relu", "nn.conv2d"))
X, Y = var("x", shape=(2, 2)), var("y", shape=(2, 2))


def conv() -> tuple[Call, Expr, Expr]:
    x, w = var("x", shape=(1, 3, 8, 8)), const(np.random.default_rng(3).normal(size=(4, 3, 3, 3)).astype("float32"))
    return nn.conv2d(x, w), x, w


def test_captures_by_name() -> None:
    call_, x, w = conv()
    found = match(call(Relu, call(Conv2d, value("x"), constant("w"), name="conv"), name="relu"), relu := nn.relu(call_))
    assert found == {"relu": relu, "conv": call_, "x": x, "w": w}


def test_operators_by_class_by_name_and_several() -> None:
    expr = nn.relu(X)
    assert match(call(Relu, value("x")), expr) == {"x": X}
    assert match(call("nn.relu", value("x")), expr) == {"x": X}
    assert match(call((Add, "nn.relu"), value("x")), expr) == {"x": X}
    assert match(call((Add, Multiply), value("x")), expr) is None
    assert match(call(Add), call_op("add", X, Y)) == {}
    assert match(call(Relu), call_op("add", X, Y)) is None


def test_number_of_arguments_must_agree() -> None:
    assert match(call(Add, value("x")), call_op("add", X, Y)) is None


def test_kinds_of_nodes() -> None:
    one, row = const(1.0), Constant(np.array([1.0], "float32"))
    assert match(constant("c"), one) == {"c": one}
    assert match(constant("c"), X) is None
    assert match(scalar("c"), one) == {"c": one}
    assert match(scalar("c"), row) is None
    pair = Tuple([X, one])
    assert match(tuple_of(value("a"), constant("b"), name="t"), pair) == {"t": pair, "a": X, "b": one}
    assert match(tuple_of(value("a")), pair) is None
    assert match(get_item(value("t"), 1, name="f"), field := pair[1]) == {"t": pair, "f": field}
    assert match(get_item(value("t"), 0), pair[1]) is None
    assert match(get_item(value("t")), pair[1]) == {"t": pair}
    assert match(call(Relu, value("x")), Call(Function([p := var("p", shape=(2, 2))], nn.relu(p)), [X])) is None


def test_commutative_operators_match_in_both_orders() -> None:
    c = const(2.0)
    pattern = call(Multiply, value("x"), scalar("c"))
    assert match(pattern, call_op("multiply", X, c)) == {"x": X, "c": c}
    assert match(pattern, call_op("multiply", c, X)) == {"x": X, "c": c}
    assert match(call("subtract", value("x"), scalar("c")), call_op("subtract", c, X)) is None
    assert match(call("subtract", value("x"), scalar("c"), commutative=True), call_op("subtract", c, X)) is not None
    assert match(call(Multiply, value("x"), scalar("c"), commutative=False), call_op("multiply", c, X)) is None


def test_the_same_name_binds_the_same_node() -> None:
    pattern = call(Add, value("x"), value("x"))
    assert match(pattern, call_op("add", X, X)) == {"x": X}
    assert match(pattern, call_op("add", X, Y)) is None


def test_orders_are_tried_until_all_names_agree() -> None:
    """x * relu(x): the inner sum fits in one order only, the outer product in the other."""
    pattern = call(Multiply, value("x"), call(Add, value("x"), value("y")))
    expr = call_op("multiply", call_op("add", Y, X), X)
    assert match(pattern, expr) == {"x": X, "y": Y}
    assert match(pattern, call_op("multiply", call_op("add", Y, Y), X)) is None


def test_conditions() -> None:
    positive = scalar("c", where=lambda c: c.value > 0)
    assert match(call(Add, value(), positive), call_op("add", X, const(1.0))) is not None
    assert match(call(Add, value(), positive), call_op("add", X, const(-1.0))) is None
    strided = call(Conv2d, where=lambda c: c.op.strides == (2, 2))
    assert match(strided, conv()[0]) is None


def test_single_use() -> None:
    inner = call_op("exp", X)
    pattern = call(Relu, call("exp", value("x"), single_use=True))
    alone, shared = nn.relu(inner), call_op("add", relu := nn.relu(inner), inner)
    assert match(pattern, alone) == {"x": X}
    assert match(pattern, relu, use_counts(shared)) is None
    assert match(pattern, alone, use_counts(alone)) == {"x": X}
    twice = call(Add, call(Relu, value("e", single_use=True)), value("f"))
    assert match(twice, shared) is None  # without counts, uses inside the expression are counted


def test_alternatives() -> None:
    pattern = either(call(Add, value("x"), scalar("c")), call(Relu, value("x")), name="whole")
    relu = nn.relu(X)
    assert match(pattern, relu) == {"whole": relu, "x": X, "c": None}
    assert match(pattern, call_op("exp", X)) is None
    assert pattern.names() == ("whole", "x", "c")


def test_optional_wrapping() -> None:
    pattern = optional(lambda inner: call(Relu, inner, name="relu"), call("exp", value("x")))
    e = call_op("exp", X)
    assert match(pattern, e) == {"relu": None, "x": X}
    assert match(pattern, relu := nn.relu(e)) == {"relu": relu, "x": X}


def test_names_are_listed_once_in_order() -> None:
    inner = call(Add, value("x"), tuple_of(constant("w"), get_item(value("x"), 0)), name="sum")
    assert call(Relu, inner, name="out").names() == ("out", "sum", "x", "w")
    assert value().names() == ()


def test_something_else_than_a_pattern() -> None:
    with pytest.raises(IRError, match="'x' is not a pattern"):
        match("x", X)  # type: ignore[arg-type]
