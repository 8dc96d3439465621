"""Relay's forms of variables, types, constants, functions and modules; executors; what testing gives back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import InputError, IRError, MiniTVMError, TypeInferenceError
from minitvm.ir.structural import structural_equal
from minitvm.relay.testing import run_infer_type, run_opt_pass
from minitvm.tvm.error import NotOfferedError

TYPE = relay.TensorType((2, 3), "float32")
X, Y = relay.var("x", TYPE), relay.var("y", TYPE)
ONES = np.ones((2, 3), "float32")


@pytest.mark.parametrize(
    "made",
    [
        lambda: relay.var("x", TYPE),
        lambda: relay.var("x", type_annotation=relay.TensorType([2, np.int64(3)])),
        lambda: relay.var("x", shape=[2, 3]),
        lambda: relay.var("x", None, (2, 3), "float32"),
        lambda: relay.var(name_hint="x", shape=np.array([2, 3]), dtype="float32", span=None),
        lambda: relay.Var("x", TYPE),
    ],
)
def test_variables(made: Callable[[], Any]) -> None:
    var = made()
    assert (var.name_hint, var.type_annotation, isinstance(var, relay.Var)) == ("x", TYPE, True)
    assert TYPE.concrete_shape == (2, 3) and relay.var("n", "int32").checked_type == relay.TensorType((), "int32")
    assert relay.var("u").checked_type is None and not isinstance(var, relay.Call)


def test_types_of_sequences() -> None:
    pair = relay.TupleType([TYPE, relay.TensorType([], "bool")])
    function = relay.FuncType([TYPE], pair)
    assert hash(pair) == hash(relay.TupleType((TYPE, relay.TensorType((), "bool"))))
    assert (function.arg_types, function.ret_type, isinstance(function, relay.FuncType)) == ((TYPE,), pair, True)
    assert relay.Function([X], X, TYPE).ret_type == TYPE


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda: relay.const(1), "int32"),
        (lambda: relay.const(1.5), "float32"),
        (lambda: relay.const(True), "bool"),
        (lambda: relay.const([1, 2]), "int32"),
        (lambda: relay.const(np.int64(1)), "int64"),
        (lambda: relay.const(np.float64(1)), "float32"),
        (lambda: relay.const(np.arange(3.0)), "float64"),
        (lambda: relay.const(1, "uint8"), "uint8"),
        (lambda: relay.const(minitvm.nd.array(ONES)), "float32"),
        (lambda: relay.Constant(minitvm.nd.array(ONES)), "float32"),
    ],
)
def test_constants(made: Callable[[], Any], wanted: str) -> None:
    assert made().dtype == wanted and isinstance(made(), relay.Constant)
    np.testing.assert_array_equal(made().data.numpy(), made().value)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: relay.var("x", TYPE, shape=(2, 3)),
        lambda: relay.var("x", shape="ab3"),
        lambda: relay.var("x", shape=(2, 1.5)),
        lambda: relay.var(3, TYPE),
        lambda: relay.var("x", 3),
        lambda: relay.const("text"),
        lambda: relay.const([1, [2, 3]]),
        lambda: relay.const({}),
        lambda: relay.const(1, "float31"),
        lambda: relay.TupleType([3]),
        lambda: relay.FuncType([TYPE], None),
        lambda: relay.FuncType([TYPE], TYPE, [TYPE]),
        lambda: relay.Call(relay.op.get("exp"), [3]),
        lambda: relay.TupleGetItem(X, 0),
        lambda: relay.build(relay.Function([X], relay.GlobalVar("f")(X))),
        lambda: relay.Function([X], X).with_attr("a", X)["b"],
        lambda: minitvm.IRModule()["main"],
        lambda: minitvm.IRModule().update({"f": 3}),
        lambda: minitvm.IRModule({"f": 3}),
        lambda: minitvm.IRModule.from_expr(3),
        lambda: minitvm.IRModule().remove("f"),
    ],
)
def test_what_is_no_form(wrong: Callable[[], Any]) -> None:
    with pytest.raises(MiniTVMError):
        wrong()


def test_functions_with_attributes() -> None:
    function = relay.Function([X], relay.exp(X))
    named = function.with_attr("Compiler", "mine").with_attr({"Composite": "pair", "depth": np.int64(2)})
    assert dict(named.attrs) == {"Compiler": "mine", "Composite": "pair", "depth": 2} and not function.attrs
    assert structural_equal(named.without_attr("Compiler").without_attr("Composite").without_attr("depth"), function)
    assert dict(relay.nn.softmax(X, axis=0).attrs) == {"axis": 0} and relay.nn.softmax(X).attrs["axis"] == -1


def test_a_call_by_name_with_attributes() -> None:
    made = relay.Call(relay.op.get("nn.softmax"), [X], {"axis": 0})
    assert structural_equal(made, relay.nn.softmax(X, axis=0)) and made.type_args == [TYPE]
    assert relay.TupleGetItem(relay.Tuple([X, Y]), 1).tuple_value.fields == (X, Y)
    assert X.astype("int8").dtype == "int8" and (X < Y).dtype == "bool" and X.same_as(X)


def test_a_module_that_is_written_to() -> None:
    module, function = minitvm.IRModule(), relay.Function([X], relay.exp(X))
    name = relay.GlobalVar("helper")
    module[name] = function
    module["main"] = relay.Function([Y], name(Y))
    before = copy.copy(module)
    module["main"] = relay.add(X, X)
    assert [*module.functions] == module.get_global_vars() == ["helper", "main"]
    assert before["main"] is not module["main"] and module[name] is module["helper"] is function
    assert module.get_global_var("helper")(X).op is function and name.name_hint == "helper"
    other = minitvm.IRModule.from_expr(relay.negative(X), {"third": function})
    other.update(module)
    assert [*other.functions] == ["main", "third", "helper"] and other["main"] is module["main"]
    other.remove("third")
    with pytest.raises(IRError, match="has no function 'third'"):
        other.get_global_var("third")
    with pytest.raises(NotOfferedError, match="no import_from_std"):
        other.import_from_std("nn.rly")
    np.testing.assert_array_equal(minitvm.build(other).run({"x": ONES})[0], 2 * ONES)


def test_parameters_are_bound_in_place() -> None:
    module = minitvm.IRModule.from_expr(relay.add(X, Y))
    module["main"] = relay.build_module.bind_params_by_name(module["main"], {"y": ONES})
    assert [p.name_hint for p in module["main"].params] == ["x"]


@pytest.mark.parametrize("kind", ["graph", "vm", "debug", "aot"])
def test_executors(kind: str) -> None:
    body = relay.Tuple([relay.add(X, Y), relay.Tuple([X])])
    executor = relay.create_executor(kind, minitvm.IRModule.from_expr(body), minitvm.cpu(0), "llvm")
    total, [same] = executor.evaluate()(ONES, y=minitvm.nd.array(ONES))
    np.testing.assert_array_equal(total.numpy(), 2 * same.numpy())
    alone = relay.create_executor(kind, device=minitvm.cpu(0), target="llvm")
    np.testing.assert_array_equal(alone.evaluate(relay.Function([X], relay.negative(X)))(ONES).numpy(), -ONES)
    assert alone.evaluate(relay.add(relay.const(1), relay.const(2))).numpy() == 3
    np.testing.assert_array_equal(alone.evaluate(relay.add(X, Y), binds={X: ONES, Y: ONES}).numpy(), 2 * ONES)


def test_executors_of_any_size_and_named_functions() -> None:
    n = relay.var("n", shape=(relay.Any(), 3))
    module = minitvm.IRModule({"main": relay.Function([n], relay.add(n, n)), "f": relay.Function([X], relay.exp(X))})
    executor = relay.create_executor("vm", module)
    call = executor.evaluate()
    assert [call(np.ones((rows, 3), "float32")).shape for rows in (1, 4)] == [(1, 3), (4, 3)]
    np.testing.assert_allclose(executor.evaluate(module.get_global_var("f"))(ONES).numpy(), np.exp(ONES), rtol=1e-6)
    with pytest.raises(IRError, match="free variables: %x"):
        executor.evaluate(relay.exp(X))
    with pytest.raises(MiniTVMError, match="a int cannot be evaluated"):
        executor.evaluate(3)
    with pytest.raises(InputError, match="2 inputs given"):
        call(ONES, ONES)


def test_what_testing_gives_back() -> None:
    open_, fold = relay.var("w"), relay.transform.FoldConstant()
    body = relay.nn.dense(X, open_, units=4)
    assert run_infer_type(body).checked_type == relay.TensorType((2, 4))
    function = run_infer_type(relay.Function([X, open_], body))
    assert isinstance(function, relay.Function) and function.ret_type == relay.TensorType((2, 4))
    two = relay.add(relay.const(1.0), relay.const(1.0))
    assert isinstance(run_opt_pass(relay.add(X, two), fold).args[1], relay.Constant)
    assert isinstance(run_opt_pass(minitvm.IRModule.from_expr(two), fold), minitvm.IRModule)
    with pytest.raises(TypeInferenceError):
        run_infer_type(relay.nn.dense(X, Y, units=7))
