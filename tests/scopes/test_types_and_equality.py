"""Types that parts determine, and what is structurally equal: of every kind of node, hash and both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import TypeInferenceError
from minitvm.ir.structural import assert_structural_equal, structural_equal, structural_hash
from minitvm.relay import transform

F, I = relay.scalar_type("float32"), relay.scalar_type("int32")
MATRIX = relay.TensorType((10, 10))


def type_of(expr: Any) -> Any:
    """The type that InferType finds for an expression."""
    made = transform.InferType()(minitvm.IRModule.from_expr(expr))["main"]
    return made.checked_type if isinstance(expr, relay.Function) else made.body.checked_type


def in_let() -> Any:
    builder = relay.ScopeBuilder()
    builder.ret(builder.let("x", relay.const(1.0, "float64")))
    return builder.get()


def in_two_lets() -> Any:
    x, builder = relay.var("x", MATRIX), relay.ScopeBuilder()
    first = builder.let("first", relay.log(x))
    builder.ret(builder.let(("second", MATRIX), relay.add(first, x)))
    return relay.Function([x], builder.get())


def untyped_parameter_of_a_let() -> Any:
    f, p = relay.var("f"), relay.var("p")
    return relay.Let(f, relay.Function([p], relay.Tuple([p, p])), f(relay.const(1.0)))


def chosen() -> Any:
    x, y = relay.var("x"), relay.var("y")
    return relay.Let(x, relay.const(True), relay.Let(y, relay.const(2), relay.If(x, y, y + y)))


def of_a_function_value() -> Any:
    p, x = relay.var("p", F), relay.var("x", F)
    return relay.Function([x], relay.Function([p], p + x))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (in_let, relay.scalar_type("float64")),
        (in_two_lets, relay.FuncType([MATRIX], MATRIX)),
        (untyped_parameter_of_a_let, relay.TupleType([F, F])),
        (chosen, I),
        (of_a_function_value, relay.FuncType([F], relay.FuncType([F], F))),
        (lambda: relay.Tuple([relay.var("x", MATRIX)] * 2), relay.TupleType([MATRIX, MATRIX])),
        (lambda: relay.equal(relay.var("i", I), relay.const(0)), relay.scalar_type("bool")),
    ],
)
def test_types(expr: Any, expected: Any) -> None:
    assert type_of(expr()) == expected


def test_what_has_no_type() -> None:
    x = relay.var("x")
    with pytest.raises(TypeInferenceError, match="the type of %x in @main cannot be inferred"):
        type_of(relay.Function([x], relay.Let(relay.var("y"), relay.const(1), x)))
    with pytest.raises(TypeInferenceError, match="the branches differ"):
        relay.If(relay.var("c", "bool"), relay.Let(relay.var("y"), relay.const(1), relay.const(1)), relay.const(1.0))
    with pytest.raises(TypeInferenceError, match="the condition is"):
        relay.If(relay.const(1), relay.Let(relay.var("y"), relay.const(1), relay.const(1)), relay.const(1))
    f, y = relay.var("f"), relay.var("y", F)
    with pytest.raises(TypeInferenceError, match="its parameter"):
        type_of(relay.Let(f, relay.Function([y], y), f(relay.const(1))))


def both_ways(a: Any, b: Any) -> bool:
    """Equality, which must be the same from either side and agree with the hash."""
    found = structural_equal(a, b)
    assert structural_equal(b, a) == found and (structural_hash(a) == structural_hash(b)) == found
    return found


V, W, C = relay.var("v", F), relay.var("w", F), relay.var("c", "bool")


def let(value: float, of: Any = None) -> Any:
    v = relay.var("v")
    return relay.Let(v, relay.const(value), relay.Tuple([v, V if of is None else of]))


def choice(then: Any, orelse: Any, cond: Any = C) -> Any:
    v = relay.var("inner")
    return relay.If(cond, relay.Let(v, then, v), orelse)


def closure(captured: Any, outer: Any = None) -> Any:
    p = relay.var("p", F)
    return relay.Function([V, W] if outer is None else outer, relay.Tuple([relay.Function([p], p + captured)]))


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (lambda: let(1.0), lambda: let(1.0), True),
        (lambda: let(1.0), lambda: let(2.0), False),
        (lambda: relay.Function([V, W], let(1.0, V)), lambda: relay.Function([V, W], let(1.0, W)), False),
        (lambda: relay.Function([V], let(1.0, V)), lambda: relay.Function([W], let(1.0, W)), True),
        (lambda: choice(relay.exp(V), V), lambda: choice(relay.exp(V), V), True),
        (lambda: choice(relay.exp(V), V), lambda: choice(relay.tanh(V), V), False),
        (lambda: choice(V, V), lambda: choice(V, V, relay.const(True)), False),
        (lambda: closure(V), lambda: closure(V), True),
        (lambda: closure(V), lambda: closure(W), False),
        (lambda: closure(V), lambda: closure(W, [W, V]), True),
        (lambda: relay.GlobalVar("f")(V), lambda: relay.GlobalVar("f")(V), True),
        (lambda: relay.GlobalVar("f")(V), lambda: relay.GlobalVar("g")(V), False),
        (lambda: relay.GlobalVar("f")(V), lambda: relay.GlobalVar("f")(V, V), False),
        (lambda: relay.Tuple([let(1.0)]), lambda: relay.Tuple([let(1.0), V]), False),
        (lambda: let(1.0).body, lambda: let(1.0), False),
    ],
)
def test_equality(a: Any, b: Any, equal: bool) -> None:
    assert both_ways(a(), b()) == equal


def test_sharing_counts_inside_of_bindings() -> None:
    y = relay.var("y", F)
    once = relay.exp(y)
    shared = relay.Let(y, relay.const(1.0), relay.Tuple([once, once]))
    z = relay.var("z", F)
    copied = relay.Let(z, relay.const(1.0), relay.Tuple([relay.exp(z), relay.exp(z)]))
    assert not both_ways(shared, copied)
    with pytest.raises(minitvm.TVMError, match="the graphs differ at"):
        assert_structural_equal(shared, copied)


def test_constants_and_attributes_of_functions() -> None:
    x = relay.var("x", F)
    function = relay.Function([x], relay.Let(relay.var("y"), relay.const(np.ones(3, "float32")), x))
    assert both_ways(function, relay.Function(function.params, function.body))
    assert not both_ways(function, function.with_attr("Primitive", 1))


def test_small_analyses() -> None:
    x, y = relay.var("x", MATRIX), relay.var("y")
    expr = relay.Let(y, relay.cast(x, "int8"), relay.Tuple([y, x]))
    assert relay.analysis.all_dtypes(expr) == {"float32", "int8"} and relay.analysis.free_type_vars(expr) == []
    assert relay.analysis.check_constant(relay.Tuple([relay.const(1), relay.const(2.0)]))
    assert not relay.analysis.check_constant(relay.exp(relay.const(1.0)))
    named = transform.ToANormalFormExpr(relay.exp(relay.exp(x)))
    assert isinstance(named, relay.Let) and isinstance(named.body, relay.Let)
    assert transform.InferTypeLocal(expr) == relay.TupleType([relay.TensorType((10, 10), "int8"), MATRIX])
    with pytest.raises(minitvm.TVMError, match="list_fake_quantized_op_freqs counts them"):
        relay.analysis.extract_fake_quantized_ops(expr)
