"""Relay's pattern language; cases after TVM's tests of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from minitvm import relay
from minitvm.errors import PassError
from minitvm.ir.expr import Call, Expr, Function
from minitvm.ir.structural import structural_equal
from minitvm.relay.dataflow_pattern import (
    DFPattern,
    DFPatternCallback,
    dominates,
    has_attr,
    is_constant,
    is_expr,
    is_op,
    is_tuple,
    is_tuple_get_item,
    is_var,
    rewrite,
    wildcard,
)
from minitvm.testing import assert_same_numbers

X, W = relay.var("x", shape=(1, 4, 8, 8)), relay.var("w", shape=(4, 4, 1, 1))
B = relay.const([1.0, 2.0, 3.0, 4.0])
CONV = relay.nn.conv2d(X, W, strides=(2, 2))
BIASED = relay.nn.relu(relay.nn.bias_add(CONV, B))
CONV_PATTERN = is_op("nn.conv2d")(wildcard(), wildcard())

MATCHES = {
    "wildcard": (wildcard(), X),
    "var": (is_var("x"), X),
    "constant": (is_constant(), B),
    "call": (CONV_PATTERN, CONV),
    "nested": (is_op("nn.relu")(is_op("nn.bias_add")(CONV_PATTERN, is_constant())), BIASED),
    "any call": (wildcard()(wildcard(), is_var()), CONV),
    "alternatives": ((is_op("add") | is_op("nn.relu"))(wildcard()), BIASED),
    "either order": (is_op("add")(is_constant(), wildcard()), relay.add(X, relay.const(1.0))),
    "arithmetic": (wildcard() * is_constant() + wildcard(), X * 2.0 + X),
    "attribute": (CONV_PATTERN.has_attr({"strides": [2, 2]}), CONV),
    "attribute in front": (has_attr({"strides": (2, 2)}), CONV),
    "dtype": (wildcard().has_dtype("float32"), X),
    "shape": (wildcard().has_shape((1, 4, 8, 8)), X),
    "type": (wildcard().has_type(relay.TensorType((4,))), B),
    "optional there": (CONV_PATTERN.optional(lambda y: is_op("nn.relu")(y)), relay.nn.relu(CONV)),
    "optional not there": (CONV_PATTERN.optional(lambda y: is_op("nn.relu")(y)), CONV),
    "tuple": (is_tuple([is_var("x"), wildcard()]), relay.Tuple([X, W])),
    "any tuple": (is_tuple(), relay.Tuple([X])),
    "field": (is_tuple_get_item(wildcard(), 1), relay.split(X, 2, 1)[1]),
    "expression": (is_expr(relay.nn.relu(X)), relay.nn.relu(X)),
    "dominated": (dominates(CONV_PATTERN, wildcard(), is_op("nn.relu")(wildcard())), BIASED),
}
OTHERS = {
    "another operator": (is_op("add")(wildcard(), wildcard()), CONV),
    "another variable": (is_var("y"), X),
    "another attribute": (CONV_PATTERN.has_attr({"strides": (1, 1)}), CONV),
    "no such attribute": (CONV_PATTERN.has_attr({"axis": 1}), CONV),
    "number of arguments": (wildcard()(wildcard()), CONV),
    "field": (is_tuple_get_item(wildcard(), 0), relay.split(X, 2, 1)[1]),
    "the operator itself": (is_op("nn.conv2d"), CONV),
    "off the path": (dominates(CONV_PATTERN, is_op("exp")(wildcard()), is_op("nn.relu")(wildcard())), BIASED),
}


@pytest.mark.parametrize("name", MATCHES)
def test_matches(name: str) -> None:
    pattern, expr = MATCHES[name]
    assert pattern.match(expr)


@pytest.mark.parametrize("name", OTHERS)
def test_matches_not(name: str) -> None:
    pattern, expr = OTHERS[name]
    assert not pattern.match(expr)


def test_a_pattern_that_stands_twice_is_one_node() -> None:
    same = wildcard()
    assert (same + same).match(X + X) and not (same + same).match(relay.exp(X) + X)


class DropZero(DFPatternCallback):
    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self.x = wildcard()
        self.pattern = is_op("add")(self.x, is_constant())

    def callback(self, pre: Expr, post: Expr, node_map: Mapping[DFPattern, list[Expr]]) -> Expr:
        return node_map[self.x][0]


def test_rewrite() -> None:
    zero = relay.const(0.0)
    given = relay.nn.relu(relay.add(relay.add(X, zero), zero))
    assert structural_equal(rewrite(DropZero(), given), relay.nn.relu(X), map_free_vars=True)
    assert_same_numbers(DropZero().rewrite(given), given)


def test_a_rewrite_that_never_ends() -> None:
    class Grow(DropZero):
        def callback(self, pre: Expr, post: Expr, node_map: Mapping[DFPattern, list[Expr]]) -> Any:
            return relay.add(post, relay.const(0.0))

    with pytest.raises(PassError, match="Grow does not come to an end"):
        rewrite(Grow(), relay.add(relay.var("y", shape=(1,)), relay.const(0.0)))
    once = rewrite(Grow(rewrite_once=True), relay.add(X, relay.const(0.0)))
    assert isinstance(once, Call) and isinstance(once.args[0], Call)


def test_partition() -> None:
    pattern = is_op("nn.relu")(is_op("nn.bias_add")(CONV_PATTERN, is_constant()))
    given = relay.exp(BIASED)
    found = pattern.partition(given, {"Composite": "conv"})
    assert isinstance(found, Call) and isinstance(found.args[0], Call)
    group = found.args[0].op
    assert isinstance(group, Function) and [a.name_hint for a in found.args[0].args] == ["x", "w"]  # type: ignore[attr-defined]
    assert dict(group.attrs) == {"PartitionedFromPattern": "nn.conv2d_nn.bias_add_nn.relu_", "Composite": "conv"}
    assert_same_numbers(found, given)


def test_what_others_read_is_not_taken_in() -> None:
    pattern = is_op("nn.relu")(CONV_PATTERN)
    given = relay.nn.relu(CONV) + CONV
    assert pattern.partition(given) is given
    alone = relay.nn.relu(CONV)
    assert pattern.partition(alone, check=lambda _: False) is alone


def test_what_is_not_offered() -> None:
    from minitvm.relay import dataflow_pattern

    with pytest.raises(AttributeError):
        _ = dataflow_pattern.is_lambda


def test_none_stands_for_any_arguments() -> None:
    total, outer = relay.add(X, X), relay.nn.relu(relay.add(X, X))
    assert is_op("add")(None).match(total) and not is_op("add")(None).match(outer)
    assert is_op("nn.relu")(is_op("add")(None)).match(outer) and wildcard()(None).match(relay.concatenate([X, X], 1))
    with pytest.raises(PassError, match="None among the arguments"):
        is_op("add")(None, wildcard())
