"""Relay's patterns as objects, and what rewriting and partitioning make of their matches, structure by structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.ir.structural import assert_structural_equal, structural_equal
from minitvm.relay import dataflow_pattern as p
from minitvm.relay.dataflow_pattern import (
    DFPatternCallback,
    dominates,
    is_constant,
    is_expr,
    is_op,
    is_tuple,
    is_var,
    rewrite,
    wildcard,
)

R: Any = relay
NN = R.nn


def names(text: str) -> list[Any]:
    """Variables without types."""
    return [relay.var(name) for name in text.split()]


def grouped(label: str, body: Callable[..., Any], *args: Any) -> Any:
    """The call of a partitioned function."""
    params = [relay.var(f"p{i}") for i in range(len(args))]
    function: Any = relay.Function(params, body(*params)).with_attr("PartitionedFromPattern", label)  # type: ignore[attr-defined]
    return function(*args)


any_of = wildcard
ELEMWISE = any_of().has_attr({"TOpPattern": 0})(any_of())
CONV = is_op("nn.conv2d")(any_of(), any_of())


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (is_expr(relay.const(1)), "Expr"),
        (is_var("x"), "Var"),
        (is_constant(), "Constant"),
        (wildcard(), "Wildcard"),
        (CONV, "Call"),
        (p.FunctionPattern([wildcard()], wildcard()), "Function"),
        (is_tuple([wildcard()]), "Tuple"),
        (p.is_tuple_get_item(wildcard(), 0), "TupleGetItem"),
        (is_op("add") | is_op("subtract"), "Alt"),
        (p.has_type(relay.TensorType((1,))), "Type"),
        (p.has_dtype("int8"), "DataType"),
        (p.has_shape((1, 2)), "Shape"),
        (is_op("add").has_attr({"TOpPattern": 1}), "Attr"),
        (p.is_if(wildcard(), wildcard(), wildcard()), "If"),
        (p.is_let(wildcard(), wildcard(), wildcard()), "Let"),
        (dominates(CONV, ELEMWISE, CONV), "Dominator"),
    ],
)
def test_kinds(made: Any, kind: str) -> None:
    assert isinstance(made, getattr(p, f"{kind}Pattern")) and isinstance(made, p.DFPattern)


def diamond(x: Any, w: Any) -> Any:
    conv = NN.conv2d(x, w)
    return NN.relu(NN.relu(conv)) + NN.leaky_relu(conv, alpha=0.0)


def two_ways(x: Any, w: Any) -> Any:
    once = NN.relu(NN.conv2d(x, w))
    return once + R.tanh(once)


def crossed(x: Any, w: Any) -> Any:
    """A way that ends at a second convolution."""
    first = NN.conv2d(x, w)
    return NN.relu(NN.conv2d(R.tanh(first), w)) + NN.relu(first)


DOMINATED = dominates(CONV, ELEMWISE, is_op("add")(any_of(), any_of()))


def test_dominators() -> None:
    x, w = names("x w")
    assert DOMINATED.match(diamond(x, w)) and DOMINATED.match(two_ways(x, w))
    assert not DOMINATED.match(crossed(x, w)) and not DOMINATED.match(NN.relu(x) + R.tanh(x))
    chain = two_ways(diamond(x, w), w)
    inner = grouped("nn.conv2d_nn.relu_nn.relu_nn.leaky_relu_add_", diamond, x, w)
    assert_structural_equal(
        DOMINATED.partition(chain), grouped("nn.conv2d_nn.relu_tanh_add_", two_ways, inner, w), map_free_vars=True
    )


def normed(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    return gamma * (x - mean) / R.sqrt(var + relay.const(1e-5)) + beta


class Norm(DFPatternCallback):
    """A batch norm written out."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [wildcard() for _ in range(5)]
        self.eps = is_constant()
        x, gamma, beta, mean, var = self.parts
        self.pattern = gamma * (x - mean) / is_op("sqrt")(var + self.eps) + beta

    def callback(self, pre: Any, post: Any, node_map: Any) -> Any:
        epsilon = node_map[self.eps][0].data.numpy().item()
        return NN.batch_norm(*(node_map[part][0] for part in self.parts), epsilon=epsilon)[0]


def test_a_norm_in_any_order() -> None:
    given = names("x gamma beta mean var")
    x, gamma, beta, mean, var = given
    wanted = NN.batch_norm(*given, epsilon=1e-5)[0]
    root = R.sqrt(var + relay.const(1e-5))
    for form in (normed(*given), beta + (x - mean) * gamma / root, gamma * ((x - mean) / root) + beta):
        assert structural_equal(rewrite(Norm(), form), wanted)
    other = gamma * (x - mean) / root - beta
    assert rewrite(Norm(), other) is other
    twice = normed(normed(*given), *given[1:])
    assert structural_equal(rewrite(Norm(), twice), NN.batch_norm(wanted, *given[1:], epsilon=1e-5)[0])


class Shorter(DFPatternCallback):
    """Drops the last of what is put together."""

    def __init__(self, rewrite_once: bool) -> None:
        super().__init__(rewrite_once=rewrite_once)
        self.pattern = is_op("concatenate")(None)

    def callback(self, pre: Any, post: Any, node_map: Any) -> Any:
        (parts,) = post.args
        kept = [parts.fields[i] for i in range(len(parts) - 1)]
        return R.concatenate(relay.Tuple(kept), axis=0) if kept else parts.fields[0]


def test_once_or_to_the_end() -> None:
    x, y, z = names("x y z")
    given = R.concatenate(relay.Tuple([x, y, z]), axis=0)
    assert rewrite(Shorter(False), given) is x
    assert structural_equal(rewrite(Shorter(True), given), R.concatenate(relay.Tuple([x, y]), axis=0))


def test_a_pattern_that_holds_itself() -> None:
    dense, again = is_op("nn.dense")(any_of(), any_of()), wildcard()
    casts = is_op("cast")(again)
    again.redirect_to(casts | dense)
    value = NN.dense(relay.var("x", shape=(2, 8)), relay.const(np.zeros((4, 8), "float32")))
    assert not casts.match(value)
    for _ in range(3):
        value = R.cast(value, "float32")
        assert casts.match(value)


def test_constants_stay_inside_where_the_pattern_asks_for_them() -> None:
    x, w, b = names("x w b")
    one, label = relay.const(1), "nn.conv2d_nn.bias_add_"

    def biased(data: Any, weight: Any, bias: Any) -> Any:
        return NN.bias_add(NN.conv2d(data, weight), bias)

    def pattern(weight: Any) -> Any:
        return is_op("nn.bias_add")(is_op("nn.conv2d")(any_of(), weight), any_of())

    lifted, kept = grouped(label, biased, x, one, b), grouped(label, lambda d, c: biased(d, one, c), x, b)
    for weight, wanted in (
        (any_of(), lifted),
        (is_constant(), kept),
        (is_expr(one), kept),
        (is_var() | is_constant(), kept),
    ):
        assert structural_equal(pattern(weight).partition(biased(x, one, b)), wanted)
    assert pattern(is_constant()).partition(biased(x, w, b)).args[0] is not x


def test_what_is_read_outside_but_flows_through() -> None:
    x, w, b = names("x w b")
    pattern = is_op("multiply")(is_op("add")(CONV, any_of()), any_of())
    total = NN.conv2d(x, w) + b
    through: Any = pattern.partition(total * R.sigmoid(total))
    assert through.op.attrs["PartitionedFromPattern"] == "nn.conv2d_add_multiply_" and len(through.args) == 4
    beside = relay.Tuple([total * R.sigmoid(x), total])
    assert pattern.partition(beside) is beside


@pytest.mark.parametrize(
    ("expr", "pattern", "label"),
    [
        (
            lambda x, y: R.concatenate(relay.Tuple([x, y]), axis=0),
            is_op("concatenate")(is_tuple(None)),
            "Tuple_concatenate_",
        ),
        (lambda x, y: x * y + (y + x), is_op("add")(any_of() * any_of(), any_of() + any_of()), "multiply_add_add_"),
        (
            lambda x, y: NN.batch_norm(x, y, y, y, y)[0],
            p.TupleGetItemPattern(is_op("nn.batch_norm")(*(any_of() for _ in range(5))), 0),
            "nn.batch_norm_TupleGetItem0_",
        ),
    ],
)
def test_names_of_groups(expr: Any, pattern: Any, label: str) -> None:
    x, y = names("x y")
    assert_structural_equal(pattern.partition(expr(x, y)), grouped(label, expr, x, y), map_free_vars=True)


def test_functions_are_parts_of_groups() -> None:
    x, w, b = names("x w b")
    a, c = relay.var("a"), relay.var("c")
    function: Any = relay.Function([a, c], NN.conv2d(a, c))
    params = [wildcard(), wildcard()]
    for body in (is_op("nn.conv2d")(*params), wildcard()):
        pattern = p.FunctionPattern(params, body)(wildcard(), wildcard()) + wildcard()
        wanted = grouped("nn.conv2d_FunctionCall_add_", lambda d, e, f: function(d, e) + f, x, w, b)
        assert structural_equal(pattern.partition(function(x, w) + b), wanted)
