"""The checking helpers themselves: they must fail where they should."""

import numpy as np
import pytest

from minitvm.ir.expr import Constant, Expr, Function, Module
from minitvm.ir.ops.elemwise import Relu
from minitvm.ir.pattern import call, value
from minitvm.passes import PassContext, function_pass, rule
from minitvm.testing.checks import (
    assert_allclose,
    assert_close_to_scale,
    assert_same_numbers,
    check_rewrite,
    check_unchanged,
    run_opt_pass,
)

RELU = "def @main(%x: Tensor[(4,), float32]) { nn.relu(%x) }"
MAXIMUM = "def @main(%x: Tensor[(4,), float32]) { maximum(%x, 0f) }"


@rule(call(Relu, value("x")))
def to_maximum(x: Expr) -> Expr:
    return maximum(x)


def maximum(x: Expr) -> Expr:
    from minitvm.ir import builder as ir

    return ir.maximum(x, Constant(np.float32(0)))


@rule(call(Relu, value("x")))
def to_half(x: Expr) -> Expr:
    return x * Constant(np.float32(0.5))


def test_rewrite_as_expected() -> None:
    check_rewrite(to_maximum, RELU, MAXIMUM)


def test_rewrite_to_something_else_shows_both() -> None:
    with pytest.raises(AssertionError, match=r"(?s)the graphs differ at main.body.*--- expected.*--- found"):
        check_rewrite(to_maximum, RELU, MAXIMUM.replace("maximum", "minimum"))


def test_rewrite_with_other_numbers() -> None:
    with pytest.raises(AssertionError, match="the rewrite changed result 0: element"):
        check_rewrite(to_half, RELU, "def @main(%x: Tensor[(4,), float32]) { multiply(%x, 0.5f) }")


def test_rewrite_that_computes_a_shared_node_twice() -> None:
    @function_pass()
    def duplicate(function: Function, module: Module, context: PassContext) -> Function:
        x = function.params[0]
        return Function([x], maximum(x) + maximum(x))

    shared = "def @main(%x: Tensor[(4,), float32]) { %0 = maximum(%x, 0f); add(%0, %0) }"
    with pytest.raises(AssertionError, match=r"differ|3 calls where 2 are expected"):
        check_rewrite(duplicate, shared, shared)


def test_unchanged() -> None:
    check_unchanged(to_maximum, MAXIMUM)
    with pytest.raises(AssertionError, match="changed:"):
        check_unchanged(to_maximum, RELU)


def test_rebuilt_for_nothing() -> None:
    @function_pass()
    def rebuild(function: Function, module: Module, context: PassContext) -> Function:
        return Function(function.params, function.body)

    with pytest.raises(AssertionError, match="rebuilt for nothing"):
        check_unchanged(rebuild, RELU)


def test_same_numbers_sees_signs() -> None:
    """``abs`` and the identity agree on positive inputs only."""
    with pytest.raises(AssertionError):
        assert_same_numbers(RELU, RELU.replace("nn.relu(%x)", "%x"))
    assert_same_numbers(RELU, MAXIMUM)


def test_a_list_of_rules() -> None:
    found = run_opt_pass(RELU, [to_maximum])
    assert "maximum" in str(found)


def test_allclose() -> None:
    assert_allclose(np.float32([1, 2]), [1, 2 + 1e-6])
    with pytest.raises(AssertionError, match=r"the shape is \(2,\), expected \(1, 2\)"):
        assert_allclose(np.ones(2), np.ones((1, 2)))
    with pytest.raises(AssertionError):
        assert_allclose(np.ones(2), np.ones(2) * 1.001)


def test_close_to_scale() -> None:
    big = np.float32([1000, 0.001])
    assert_close_to_scale(big, np.float32([1000, 0.002]))
    with pytest.raises(AssertionError, match=r"element \(0,\) was 1000 and is 1001"):
        assert_close_to_scale(big + np.float32([1, 0]), big)
    with pytest.raises(AssertionError, match=r"it was float32 \(2,\) and is float64 \(2,\)"):
        assert_close_to_scale(big.astype("float64"), big)


WRONG_RULES = [
    ("clip(%x, a_min=-6, a_max=6)", "int32", (4,)),
    ("clip(%x, a_min=-6f, a_max=6f)", "float32", (4,)),
    ("abs(%x)", "int32", (4,)),
    ("floor_divide(multiply(%x, 3i64), 3i64)", "int64", (4,)),
    ("abs(%x)", "float32", ("?", 2)),
    ("nn.relu(%x)", "float32", ("?", "?")),
    ("abs(%x)", "float32", ("n", 2)),
]


@pytest.mark.parametrize(("wrong", "dtype", "shape"), WRONG_RULES)
def test_same_numbers_tells_an_operator_from_nothing(wrong: str, dtype: str, shape: tuple[object, ...]) -> None:
    """What is small, not negative, or far from wrapping around hides these; so does a shape that is open."""
    dims = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    text = f"def @main(%x: Tensor[({dims}), {dtype}]) {{ BODY }}"
    with pytest.raises(AssertionError, match="the rewrite changed result 0"):
        assert_same_numbers(text.replace("BODY", wrong), text.replace("BODY", "%x"))


def test_numbers_that_cannot_be_compared_are_no_success() -> None:
    text = "def @main(%x: Tensor[(?, 3), float32]) { reshape(%x, newshape=[7, -1]) }"
    with pytest.raises(AssertionError, match="the numbers cannot be compared: no random inputs are accepted by"):
        assert_same_numbers(text, text.replace("[7, -1]", "[-1, 7]"))
