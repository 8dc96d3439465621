"""The verifier: every way a graph can be wrong, built by force, and named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from minitvm.errors import IRError
from minitvm.ir.builder import call_op, const, function, nn, var
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var, span_scope
from minitvm.ir.types import TensorType
from minitvm.ir.verify import verify
from minitvm.ir.visitor import post_order
from tests.steps import assert_linear


def force(node: object, **values: object) -> None:
    """Changes an immutable node, as only a bug can."""
    for name, value in values.items():
        object.__setattr__(node, name, value)


def rejected(module: Module | Function) -> str:
    with pytest.raises(IRError) as caught:
        verify(module if isinstance(module, Module) else Module(module))
    return str(caught.value)


def x() -> Var:
    return var("x", shape=(2, 3))


def test_good_modules() -> None:
    a = x()
    group = Function([p := var("p0", shape=(2, 3))], nn.relu(p), {"primitive": True})
    split = call_op("split", Call(group, [Call(group, [a])]), indices_or_sections=3, axis=1)
    verify(Module({"main": function(Tuple([split[0], split[2], const(1)])), "other": group}))
    verify(Module(function(nn.relu(Var("untyped")))))
    verify(Module(function(const(1.0))))


def test_no_functions() -> None:
    assert rejected(Module({})) == "the module has no functions\n  = hint: give it a function named main"


def test_unbound_variable() -> None:
    a, b = x(), Var("b:0", TensorType((2, 3)))
    assert rejected(Function([a], call_op("add", a, b))) == (
        '@main: %"b:0" is not bound: it is not a parameter of the function it stands in\n'
        "  | a Var: Tensor[(2, 3), float32]\n"
        "  = hint: Module.from_expr and builder.function collect free variables as parameters"
    )


def test_nested_functions_are_closed() -> None:
    a = x()
    inner = Function([p := var("p", shape=(2, 3))], call_op("add", p, a))
    assert rejected(Function([a], Call(inner, [a]))).startswith("@main: %x is not bound")


def test_parameters_with_one_name() -> None:
    a, b = x(), x()
    assert rejected(Function([a, b], call_op("add", a, b))) == (
        "@main: %x stands twice among the parameters: two variables of that name\n  | in a function of 2 parameters"
    )
    assert "the same variable twice" in rejected(Function([a, a], a))


def test_parameter_that_is_not_a_variable() -> None:
    a = x()
    assert rejected(Function([nn.relu(a)], a)).startswith("@main: a parameter is a Call, not a Var\n  | nn.relu(%x)")  # type: ignore[list-item]


def test_cycle() -> None:
    a = x()
    first = nn.relu(a)
    last = call_op("exp", call_op("negative", first))
    force(first, args=(last,))
    module = Module({"good": function(a), "bad": Function([a], last)})
    assert rejected(module) == (
        "@bad: the graph has a cycle: a Call is its own operand\n  = hint: build new nodes instead of changing old ones"
    )
    for print_it in (str, post_order):
        with pytest.raises(IRError, match="the graph has a cycle"):
            print_it(last)  # type: ignore[operator]


def test_cycle_through_a_tuple() -> None:
    a = Tuple([x()])
    field = TupleGetItem(a, 0)
    force(a, fields=(field,))
    assert "the graph has a cycle" in rejected(Function([], field))


def test_function_that_calls_itself() -> None:
    p = var("p", shape=(2, 3))
    inner = Function([p], nn.relu(p), {"name": "again"})
    force(inner, body=Call(inner, [p]))
    a = x()
    assert rejected(Function([a], Call(inner, [a]))) == (
        "@main: the graph has a cycle: a function calls itself\n  | in the function again"
    )


def test_wrong_stored_type() -> None:
    a = x()
    with span_scope(("Relu_3",)):
        call = nn.relu(a)
    force(call, checked_type=TensorType((3, 2)))
    assert rejected(Function([a], call)) == (
        "@main: a Call has the type Tensor[(3, 2), float32], its operands give Tensor[(2, 3), float32]\n"
        '  | nn.relu(%x)      from ONNX node "Relu_3"\n'
        "  |   %x: Tensor[(2, 3), float32]"
    )


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Tuple([const(1)]), "@main: a Tuple has the type Tensor[(9,), int8], its operands give (Tensor[(), int32],)"),
        (const(1), "@main: a Constant has the type Tensor[(9,), int8], its operands give Tensor[(), int32]"),
        (Tuple([const(1)])[0],
         "@main: a TupleGetItem has the type Tensor[(9,), int8], its operands give Tensor[(), int32]"),
    ],
)  # fmt: skip
def test_wrong_stored_type_of_other_nodes(node: Expr, text: str) -> None:
    force(node, checked_type=TensorType((9,), "int8"))
    assert rejected(Function([], node)).startswith(text)


def test_wrong_type_of_a_function() -> None:
    a = x()
    made = function(nn.relu(a))
    force(made, params=(var("y", shape=(4,)), a))
    assert "@main: the function's type is fn (Tensor[(2, 3), float32]) -> " in rejected(made)


def test_wrong_number_of_arguments() -> None:
    a = x()
    call = nn.relu(a)
    force(call, args=(a, a))
    assert rejected(Function([a], call)).startswith("@main: nn.relu: takes 1 argument, 2 given\n  | nn.relu(%x, %x)")


def test_projection_out_of_range() -> None:
    a = x()
    field = Tuple([a])[0]
    force(field, index=4)
    assert rejected(Function([a], field)).startswith("@main: field 4 of a tuple of 1")


def test_arguments_that_no_longer_fit() -> None:
    a, w = x(), var("w", shape=(4, 3))
    call = nn.dense(a, w)
    force(call, args=(a, Var("w", TensorType((4, 5)))))
    text = rejected(Function([a, w], call))
    assert text.startswith("@main: %w is not bound")  # operands are looked at first
    other = Var("w", TensorType((4, 5)))
    force(call, args=(a, other))
    assert rejected(Function([a, other], call)).startswith("@main: nn.dense: ")


def test_writable_constant() -> None:
    constant = Constant(np.arange(3))
    force(constant, value=np.arange(3))
    assert rejected(Function([], constant)).startswith("@main: a constant Tensor[(3,), int64] is writable")


def test_what_is_no_node() -> None:
    assert "is not a node of the graph" in rejected(Function([], Tuple([x()])).__class__([], _tuple_of("no")))


def _tuple_of(value: object) -> Tuple:
    made = Tuple([const(1)])
    force(made, fields=(value,))
    return made


def negatives(count: int) -> Module:
    expr: Expr = x()
    for _ in range(count):
        expr = call_op("negative", expr)
    return Module.from_expr(expr)


def nested(depth: int) -> Module:
    inner = function(nn.relu(p := var("p", shape=(2, 3))), [p])
    for _ in range(depth):
        inner = function(Call(inner, [p := var("p", shape=(2, 3))]), [p])
    return Module(inner)


@pytest.mark.parametrize("make", [negatives, nested])
def test_thousands_of_calls_and_of_nested_functions(make: Callable[[int], Module]) -> None:
    assert_linear(lambda count: partial(verify, make(count)), 500)
    verify(make(5000 if make is negatives else 1500))
