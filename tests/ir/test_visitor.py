"""Walks and rewrites of the graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minitvm.ir.builder import call_op, const, nn, var
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, Var, span_scope
from minitvm.ir.visitor import (
    calls,
    children,
    free_vars,
    is_scalar_constant,
    post_order,
    rebuild,
    rewrite,
    simplify_projection,
    span_of,
    substitute,
    use_counts,
    users,
)
from tests.steps import assert_linear


def diamond() -> tuple[Var, Call, Call, Call]:
    x = var("x", shape=(2,))
    top = call_op("exp", x)
    left = call_op("negative", top)
    return x, top, left, call_op("add", left, top)


def deep(length: int = 5000) -> tuple[Var, Expr]:
    x = var("x", shape=(2,))
    expr: Expr = x
    for _ in range(length):
        expr = call_op("negative", expr)
    return x, expr


def test_post_order_visits_operands_first_left_to_right_and_once() -> None:
    x, top, left, bottom = diamond()
    assert post_order(bottom) == [x, top, left, bottom]
    assert calls(bottom) == [top, left, bottom]
    assert post_order(left, bottom) == [x, top, left, bottom]
    y = var("y", shape=(2,))
    assert post_order(Function([y, x], bottom))[:2] == [y, x]


def test_called_functions_are_not_entered() -> None:
    x, p = var("x", shape=(2,)), var("p", shape=(2,))
    call = Call(Function([p], nn.relu(p)), [x])
    assert children(call) == (x,)
    assert post_order(call) == [x, call]


def test_uses_are_counted_per_operand_position() -> None:
    x, top, left, bottom = diamond()
    twice = call_op("add", bottom, bottom)
    counts = use_counts(Function([x], twice))
    assert [counts[n] for n in (x, top, left, bottom, twice)] == [2, 2, 1, 2, 1]
    assert users(twice)[bottom] == [twice, twice]
    assert users(twice)[top] == [left, bottom]


def test_free_variables_in_order_without_those_that_functions_bind() -> None:
    x, y, z = (var(n, shape=(2,)) for n in "xyz")
    body = call_op("add", call_op("add", y, x), y)
    assert free_vars(body) == [y, x]
    assert free_vars(Function([x], body)) == [y]
    assert free_vars(Tuple([z, Function([x, y], body)])) == [z]


def test_rewriting_nothing_returns_the_same_object() -> None:
    x, _, _, bottom = diamond()
    everything = Function([x], Tuple([bottom, Tuple([bottom, const(1)])[0]]), {"name": "f"})
    assert rewrite(everything, lambda old, new: new) is everything
    assert substitute(everything, {}) is everything
    assert rebuild(bottom, children(bottom)) is bottom


def test_rewriting_keeps_sharing_attributes_and_spans() -> None:
    with span_scope(("exp_1",)):
        x, top, left, bottom = diamond()
    y = var("y", shape=(2,))
    function = Function([x], bottom, {"name": "f"})
    new = substitute(function, {x: y})
    assert isinstance(new, Function) and isinstance(new.body, Call)
    assert (new.params, dict(new.attrs)) == ((y,), {"name": "f"})
    new_left, new_top = new.body.args
    assert isinstance(new_left, Call) and new_left.args[0] is new_top
    assert new_left.span == left.span == ("exp_1",)
    assert function.body is bottom and top.args == (x,)


def test_nodes_built_in_a_rewrite_come_from_what_they_replace() -> None:
    x = var("x", shape=(2,))
    with span_scope(("Exp_7",)):
        e = call_op("exp", x)

    def visit(old: Expr, new: Expr) -> Expr:
        return call_op("log", x) if old is e else new

    assert rewrite(nn.relu(e), visit).args[0].span == ("Exp_7",)  # type: ignore[attr-defined]


def test_parameters_can_only_become_variables() -> None:
    x = var("x", shape=(2,))
    with pytest.raises(AssertionError, match="a parameter was replaced"):
        substitute(Function([x], x), {x: const(np.float32([1, 2]))})


def test_small_helpers() -> None:
    x = var("x", shape=(2,))
    pair = Tuple([x, const(1.0)])
    assert simplify_projection(pair[0]) is x
    assert simplify_projection(x) is x
    assert is_scalar_constant(const(1.0))
    assert not is_scalar_constant(Constant(np.zeros(1))) and not is_scalar_constant(x)
    with span_scope(("a", "b")):
        one = nn.relu(x)
    with span_scope(("b", "c")):
        two = nn.relu(x)
    assert span_of(one, two, x) == ("a", "b", "c")


def test_chains_of_five_thousand_calls() -> None:
    def walk(length: int) -> Callable[[], None]:
        x, expr = deep(length)

        def work() -> None:
            assert len(post_order(expr)) == length + 1
            assert rewrite(expr, lambda old, new: new) is expr
            y = var("y", shape=(2,))
            assert free_vars(substitute(expr, {x: y})) == [y]

        return work

    walk(5000)()
    assert_linear(walk, 500)


def test_a_function_of_twice_shared_operands_is_not_exponential() -> None:
    expr: Expr = var("x", shape=(2,))
    for _ in range(200):
        expr = call_op("add", expr, expr)
    assert len(post_order(expr)) == 201
    assert use_counts(expr).total() == 400
