"""The numpy evaluator, and the control-flow operators that run through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minitvm.errors import InputError, IRError, TypeInferenceError
from minitvm.ir import builder as b
from minitvm.ir.evaluate import evaluate, evaluate_calls
from minitvm.ir.expr import Call, Constant, Function, Module, Tuple, Var
from minitvm.ir.op import OPS, Fusion, Op
from minitvm.ir.ops.control import If, Loop
from minitvm.ir.types import TensorType, TupleType, alike

RNG = np.random.default_rng(7)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def test_a_diamond_with_tuples_and_constants() -> None:
    x, y = b.var("x", shape=(2, 6)), b.var("y", shape=(2, 1))
    low, high = b.split(b.add(x, y), indices_or_sections=2, axis=1)
    body = Tuple([b.multiply(low, high), Tuple([b.negative(low), b.const(draw(3), name="w")])])
    a, c = draw(2, 6), draw(2, 1)
    product, (negated, constant) = evaluate(b.function(body), a, c)
    np.testing.assert_array_equal(product, (a + c)[:, :3] * (a + c)[:, 3:])
    np.testing.assert_array_equal(negated, -(a + c)[:, :3])
    assert constant.shape == (3,)


def test_a_module_runs_its_main_and_called_functions() -> None:
    p = b.var("p0", shape=(4,))
    group = Function([p], b.exp(b.negative(p)), attrs={"primitive": True})
    x = b.var("x", shape=(4,))
    value = draw(4)
    result = evaluate(Module(b.function(b.add(Call(group, [x]), x))), value)
    np.testing.assert_array_equal(result, np.exp(-value) + value)


def test_evaluate_calls_yields_each_call_once_operands_first() -> None:
    x = b.var("x", shape=(3,))
    shared = b.exp(x)
    function = b.function(b.add(shared, b.negative(shared)))
    seen = [(call.op.name, value) for call, value in evaluate_calls(function, np.zeros(3, "float32"))]
    assert [name for name, _ in seen] == ["exp", "negative", "add"]
    np.testing.assert_array_equal(seen[1][1], np.full(3, -1, "float32"))


def test_thousands_of_calls_need_no_stack() -> None:
    expr: Any = b.var("x", shape=(2,))
    for _ in range(5000):
        expr = b.add(expr, b.const(1.0))
    np.testing.assert_array_equal(evaluate(b.function(expr), np.zeros(2, "float32")), np.full(2, 5000, "float32"))


def test_arguments_are_not_written_and_results_are_arrays() -> None:
    value = draw(3, 3)
    value.setflags(write=False)
    x = b.var("x", shape=(3, 3))
    assert isinstance(evaluate(b.function(b.sum(x)), value), np.ndarray)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((), "1 inputs are expected (x), 0 given"),
        ((np.zeros((2, 4), "float32"),), "input 'x' is Tensor[(2, 4), float32]; expected Tensor[(2, 3), float32]"),
        ((np.zeros((2, 3)),), "input 'x' is Tensor[(2, 3), float64]; expected Tensor[(2, 3), float32]"),
        ((np.array(["a"]),), "input 'x' is a ndarray of dtype <U1; expected Tensor[(2, 3), float32]"),
    ],
)
def test_arrays_that_do_not_fit(arrays: tuple[np.ndarray, ...], message: str) -> None:
    with pytest.raises(InputError) as error:
        evaluate(b.function(b.exp(b.var("x", shape=(2, 3)))), *arrays)
    assert str(error.value) == message


@dataclass(frozen=True)
class _Faulty(Op):
    fusion = Fusion.ELEMWISE

    def infer(self, x: TensorType) -> TensorType:
        return x


class _WrongType(_Faulty):
    name = "test.wrong_type"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.astype("float64")[:1]


class _Failing(_Faulty):
    name = "test.failing"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.take(x, 99)


class _NoReference(_Faulty):
    name = "test.no_reference"


for _op in (_WrongType, _Failing, _NoReference):
    del OPS[_op.name]  # the registry test is about minitvm's own operators


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            _WrongType(),
            "test.wrong_type: the reference's result is Tensor[(1,), float64], but infer says Tensor[(2,), float32]\n"
            "  | test.wrong_type(%x)\n"
            "  |   %x: Tensor[(2,), float32]",
        ),
        (
            _Failing(),
            "test.failing: the reference failed: index 99 is out of bounds for axis 0 with size 2\n"
            "  | test.failing(%x)\n"
            "  |   %x: Tensor[(2,), float32]",
        ),
        (
            _NoReference(),
            "test.no_reference: has no reference, so it cannot be evaluated\n"
            "  | test.no_reference(%x)\n"
            "  |   %x: Tensor[(2,), float32]",
        ),
    ],
)
def test_a_faulty_operator_is_named(op: Op, message: str) -> None:
    with pytest.raises(IRError) as error:
        evaluate(b.function(Call(op, [b.var("x", shape=(2,))])), draw(2))
    assert str(error.value) == message


def test_an_unbound_variable_is_named() -> None:
    with pytest.raises(IRError, match="variable %y is not a parameter of the function"):
        evaluate(Function([], b.exp(b.var("y", shape=(2,)))))


# --- control flow ---------------------------------------------------------------------------------------------


def _branch(name: str, *shape: int | None) -> Function:
    x = b.var("x", shape=(4,))
    return Function([x], b.call_op(name, x, **({"begin": [0], "end": shape} if shape else {})))


@pytest.mark.parametrize("condition", [True, False])
def test_if_runs_one_branch(condition: bool) -> None:
    x, c = b.var("x", shape=(4,)), b.var("c", shape=(), dtype="bool")
    function = b.function(Call(If(_branch("exp"), _branch("negative")), [c, x]), [x, c])
    value = draw(4)
    expected = np.exp(value) if condition else -value
    np.testing.assert_array_equal(evaluate(function, value, np.array(condition)), expected)
    assert function.ret_type == TensorType((4,))


def test_if_with_branches_of_different_extent_has_an_unknown_one() -> None:
    x, c = b.var("x", shape=(4,)), b.var("c", shape=(1,), dtype="bool")
    function = b.function(Call(If(_branch("strided_slice", 2), _branch("exp")), [c, x]), [x, c])
    assert alike(function.ret_type, TensorType((None,)))
    assert evaluate(function, draw(4), np.array([True])).shape == (2,)


def _loop_body(growing: bool = False) -> Function:
    """``total' = total + step``, going on while the sum of total' is below 20; scans the iteration and total'."""
    i, keep = b.var("i", shape=(), dtype="int64"), b.var("keep", shape=(), dtype="bool")
    total = b.var("total", shape=(None if growing else 2,))
    step = b.var("step", shape=(2,))
    following = b.concatenate([total, step]) if growing else b.add(total, step)
    going = b.less(b.sum(following), b.const(20.0))
    return Function([i, keep, total, step], Tuple([going, following, b.cast(i, dtype="int32")]))


def _loop(body: Function) -> Function:
    trips, keep = b.var("trips", shape=(), dtype="int64"), b.var("keep", shape=(), dtype="bool")
    total, step = b.var("total", shape=(2,)), b.var("step", shape=(2,))
    return b.function(Call(Loop(body, num_carried=1), [trips, keep, total, step]), [trips, keep, total, step])


def run_loop(function: Function, trips: int, keep: bool, total: list[float], step: list[float]) -> Any:
    arrays = (np.array(trips, "int64"), np.array(keep), np.array(total, "float32"), np.array(step, "float32"))
    return evaluate(function, *arrays)


@pytest.mark.parametrize(("trips", "keep", "ran"), [(3, True, 3), (100, True, 7), (0, True, 0), (5, False, 0)])
def test_loop_stops_at_the_count_or_the_condition(trips: int, keep: bool, ran: int) -> None:
    function = _loop(_loop_body())
    assert alike(function.ret_type, TupleType((TensorType((2,)), TensorType((None,), "int32"))))
    total, scanned = run_loop(function, trips, keep, [0.0, 0.0], [1.0, 2.0])
    np.testing.assert_array_equal(total, np.array([ran, 2 * ran], "float32"))
    np.testing.assert_array_equal(scanned, np.arange(ran, dtype="int32"))


def test_a_carried_value_may_grow() -> None:
    function = _loop(_loop_body(growing=True))
    assert alike(function.ret_type, TupleType((TensorType((None,)), TensorType((None,), "int32"))))
    total, _ = run_loop(function, 3, True, [1.0, 2.0], [3.0, 4.0])
    np.testing.assert_array_equal(total, np.array([1, 2, 3, 4, 3, 4, 3, 4], "float32"))


def _rejected(op: Op, *args: Any) -> str:
    with pytest.raises(TypeInferenceError) as error:
        Call(op, args)
    return str(error.value).splitlines()[0]


def test_control_flow_that_does_not_fit() -> None:
    x, flag, number = b.var("x", shape=(4,)), b.var("c", shape=(), dtype="bool"), b.var("n", shape=(), dtype="int64")
    either = If(_branch("exp"), _branch("negative"))
    assert _rejected(either, x, x) == "control.if: condition is Tensor[(4,), float32]; expected a single bool"
    assert _rejected(either, flag) == "control.if: then_branch takes 1 values, 0 given"
    other = b.var("x", shape=(5,))
    assert (
        _rejected(either, flag, other)
        == "control.if: value 0 of then_branch is Tensor[(5,), float32], its parameter Tensor[(4,), float32]"
    )
    to_int = Function([x], b.cast(x, dtype="int32"))
    assert (
        _rejected(If(_branch("exp"), to_int), flag, x)
        == "control.if: results differ in dtype or rank: Tensor[(4,), float32] and Tensor[(4,), int32]"
    )
    untyped = Var("x")
    assert (
        _rejected(If(Function([untyped], b.exp(untyped)), to_int), flag, x) == "control.if: then_branch has no type yet"
    )
    loop = Loop(_loop_body(), num_carried=1)
    assert _rejected(loop, flag, flag) == "control.loop: trip_count is Tensor[(), bool]; expected a single int64"
    assert _rejected(loop, number, flag) == "control.loop: body takes 4 values, 2 given"
    many = Loop(_loop_body(), num_carried=3)
    two = b.var("t", shape=(2,))
    assert _rejected(many, number, flag, two, two) == (
        "control.loop: the body returns (Tensor[(), bool], Tensor[(2,), float32], Tensor[(), int32]); "
        "expected a condition and 3 values"
    )


def test_a_loop_whose_values_change_shape_needs_unknown_dimensions() -> None:
    i, keep, total = b.var("i", shape=(), dtype="int64"), b.var("k", shape=(), dtype="bool"), b.var("t", shape=(2,))
    body = Function([i, keep, total], Tuple([keep, b.concatenate([total, total])]))
    arguments = (Constant(np.int64(3)), Constant(np.array(True)), b.var("t", shape=(2,)))
    assert _rejected(Loop(body, num_carried=1), *arguments) == (
        "control.loop: carried value 0 is Tensor[(4,), float32] after an iteration, "
        "the body's parameter Tensor[(2,), float32]"
    )
