"""Graphs written as one writes Relay."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from minitvm.errors import IRError, TypeInferenceError
from minitvm.ir import builder as b
from minitvm.ir.attributes import attributes_of
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Module, Tuple, TupleGetItem, merge_spans, span_scope
from minitvm.ir.op import OPS
from minitvm.ir.types import TensorType, alike

X = TensorType((2, 3))


def test_variables_with_and_without_types() -> None:
    assert b.var("x", X).type == b.var("x", shape=(2, 3)).type == X
    assert alike(b.var("x", shape=[None, 3], dtype="int64").type, TensorType((None, 3), "int64"))
    assert b.var("w").checked_type is None


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, "float32"),
        (2, "int32"),
        (True, "bool"),
        ([1, 2], "int32"),
        (np.float64(1), "float64"),
        (np.zeros(2), "float64"),
    ],
)
def test_constants_have_relays_dtypes(value: object, dtype: str) -> None:
    assert b.const(value).dtype == dtype
    assert b.const(value, dtype="float16").dtype == "float16"


def test_constants_are_copies_that_nobody_can_write() -> None:
    array = np.ones(3, "float32")
    constant = b.const(array, name="w")
    array[:] = 9
    np.testing.assert_array_equal(constant.value, np.ones(3))
    assert constant.name == "w"
    with pytest.raises(ValueError, match="read-only"):
        constant.value[0] = 1


def test_tensor_arguments_by_name_and_attributes() -> None:
    x, y = b.var("x", X), b.var("y", X)
    call = b.subtract(rhs=y, lhs=x)
    assert call.args == (x, y)
    assert b.sum(data=x, axis=1, keepdims=True).type == TensorType((2, 1))
    assert b.nn.batch_flatten(b.var("z", shape=(2, 3, 4))).type == TensorType((2, 12))
    assert b.where(b.less(x, y), 1.0, y=y).type == X


def test_python_values_become_constants_and_tuples() -> None:
    x = b.var("x", X)
    added = b.add(x, 2.0)
    assert isinstance(added.args[1], Constant)
    joined = b.concatenate([x, x], axis=0)
    assert isinstance(joined.args[0], Tuple)
    assert joined.type == TensorType((4, 3))


def test_arithmetic_takes_the_other_sides_dtype() -> None:
    x = b.var("x", shape=(4,), dtype="float16")
    value = np.array([1, 2, 3, 4], "float16")
    function = b.function((1 - x * 2 + x / 4) - -x)
    assert function.ret_type == TensorType((4,), "float16")
    np.testing.assert_allclose(evaluate(function, value), 1 - value * 2 + value / 4 + value, rtol=2e-3)


def test_results_of_a_tuple_unpack_and_index() -> None:
    parts = b.split(b.var("x", X), indices_or_sections=3, axis=1)
    first, second, third = parts
    assert isinstance(second, TupleGetItem)
    assert (first.index, second.index, third.index) == (0, 1, 2)
    assert parts[2].type == TensorType((2, 1))
    with pytest.raises(TypeInferenceError, match="field 3 of a tuple of 3"):
        parts[3]
    with pytest.raises(IRError, match="only a tuple can be unpacked"):
        list(first)


def test_free_variables_become_parameters_in_order_of_use() -> None:
    x, w, c = b.var("x", X), b.var("w", X), b.var("c", X)
    body = b.add(b.multiply(x, w), b.add(c, x))
    assert [p.name for p in b.function(body).params] == ["x", "w", "c"]
    assert [p.name for p in b.function(body, [c, x, w]).params] == ["c", "x", "w"]
    assert [p.name for p in Module.from_expr(body).main.params] == ["x", "w", "c"]


def test_types_stay_open_below_an_untyped_variable() -> None:
    call = b.exp(b.var("w"))
    assert call.checked_type is None
    with pytest.raises(IRError) as error:
        _ = call.type
    assert str(error.value) == "this Call has no type yet\n  = hint: run the pass InferType on the module"


def test_spans_come_from_the_scope() -> None:
    x = b.var("x", X)
    with span_scope(("Conv_1",)):
        inner = b.exp(x)
    outer = b.call_op("exp", inner, span=("Exp_2",))
    assert (x.span, inner.span, outer.span) == ((), ("Conv_1",), ("Exp_2",))
    assert merge_spans(outer.span, inner.span, outer.span) == ("Exp_2", "Conv_1")


def test_every_operator_has_a_function_with_its_documentation() -> None:
    for name, op in OPS.items():
        space, _, short = name.rpartition(".")
        build = getattr(getattr(b, space) if space else b, short)
        assert build.__doc__.startswith(inspect.cleandoc(op.__doc__ or ""))  # then its attributes
        assert build.__name__ == short


def test_help_says_what_every_attribute_means_what_it_may_be_and_what_it_is_by_default() -> None:
    for name, op in OPS.items():
        words, _, table = b.described(op).partition("\n\nAttributes:\n")
        lines = dict(line.strip().split(": ", 1) for line in table.splitlines())
        assert list(lines) == list(attributes_of(op)), name
        for attribute in attributes_of(op).values():
            said = lines[attribute.name]
            assert said.startswith(attribute.kind.expected) and attribute.required == ("(default" not in said), name
            assert re.search(rf"``[^`]*\b{attribute.name}\b[^`]*``", words), f"{name}: {attribute.name} means nothing"


def test_operators_carry_documentation_of_their_own() -> None:
    for op in OPS.values():
        written = op.__dict__.get("__doc__") or ""
        assert written and not written.startswith(f"{op.__name__}("), (
            f"{op.name} has no docstring"
        )  # dataclass writes one


def _message(name: str, *args: Expr, **attributes: object) -> str:
    with pytest.raises(TypeInferenceError) as error:
        b.call_op(name, *args, **attributes)
    return str(error.value)


def test_misuse_is_explained() -> None:
    x = b.var("x", X)
    assert _message("nn.batch_flaten", x) == (
        "there is no operator 'nn.batch_flaten'\n  = hint: did you mean nn.batch_flatten?"
    )
    assert _message("sum", x, axes=1) == (
        "sum: unknown attribute 'axes'\n  = hint: arguments: data; attributes: axis, keepdims, exclude"
    )
    assert _message("clip", x, a_min=0) == (
        "clip: attribute 'a_max' is missing\n  = hint: arguments: data; attributes: a_min, a_max"
    )
    assert _message("sum", x, axis="first") == (
        "sum: attribute 'axis' is 'first', expected [a whole number, ...] or None"
    )
    assert _message("add", x) == ("add: takes 2 arguments, 1 given\n  | add(%x)\n  |   %x: Tensor[(2, 3), float32]")
    with pytest.raises(AttributeError, match=r"minitvm\.ir\.builder has no operator 'addd'"):
        b.addd  # noqa: B018


def test_a_node_cannot_be_changed() -> None:
    call = b.exp(b.var("x", X))
    assert isinstance(call, Call)
    with pytest.raises(AttributeError) as error:
        call.args = ()  # type: ignore[misc]
    assert str(error.value) == "Call is immutable; build a new node instead of setting 'args'"
