"""Functions as values and functions that call themselves: types, text, loops, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import IRError, MiniTVMError, TypeInferenceError
from minitvm.ir.structural import structural_equal
from minitvm.relay import transform
from minitvm.testing import assert_allclose

INT, X = relay.scalar_type("int32"), relay.var("x", shape=(3,))
ONE, ZERO = relay.const(1), relay.const(0)
ONES = np.array([0.5, 1.0, 2.0], "float32")


def power(name: str = "power") -> minitvm.IRModule:
    """x * 2 ** n, by a function that calls itself last."""
    module, f = minitvm.IRModule(), relay.GlobalVar(name)
    n, x = relay.var("n", INT), relay.var("x", shape=(3,))
    again = f(n - ONE, x * relay.const(2.0))
    module[f] = relay.Function([n, x], relay.If(relay.equal(n, ZERO), x, again))
    count = relay.var("count", INT)
    module["main"] = relay.Function([count, X], relay.add(f(count, relay.exp(X)), X))
    return transform.InferType()(module)


def total() -> minitvm.IRModule:
    """0 + 1 + ... + n, by one that adds to what its call gives."""
    module, f, n = minitvm.IRModule(), relay.GlobalVar("total"), relay.var("n", INT)
    module[f] = relay.Function([n], relay.If(relay.equal(n, ZERO), n, relay.add(f(n - ONE), n)), INT)
    count = relay.var("count", INT)
    module["main"] = relay.Function([count], f(count))
    return transform.InferType()(module)


def test_types_of_what_calls_itself() -> None:
    tensor = relay.TensorType((3,))
    assert power()["power"].checked_type == relay.FuncType([INT, tensor], tensor)
    assert total()["total"].checked_type == relay.FuncType([INT], INT)
    f, x = relay.GlobalVar("f"), relay.var("x", INT)
    module = minitvm.IRModule({})
    module[f] = relay.Function([x], f(x), INT)
    assert relay.analysis.CallGraph(transform.InferType()(module)).is_recursive("f")
    module["f"] = relay.Function([x], f(x))
    with pytest.raises(TypeInferenceError, match="nothing ends its recursion"):
        transform.InferType()(minitvm.IRModule({"f": relay.Function([x], relay.GlobalVar("f")(x))}))


@pytest.mark.parametrize("form", [None, transform.ToANormalForm, transform.ToBasicBlockNormalForm])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_last_call_is_a_native_loop(count: int, form: Any) -> None:
    module = power() if form is None else form()(power())
    library = relay.build(module)
    assert not library.host_calls
    found = library.run({"count": np.int32(count), "x": ONES})[0]
    assert_allclose(found, np.exp(ONES) * 2**count + ONES)


def test_two_functions_that_call_each_other() -> None:
    text = """#[version = "0.0.5"]
    def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
    def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }
    def @main(%n: int32) -> bool { @even(%n) }"""
    library = relay.build(relay.fromtext(text))
    assert [bool(library.run({"n": np.int32(n)})[0]) for n in range(6)] == [True, False] * 3 and not library.host_calls


def test_a_function_in_let_calls_itself() -> None:
    loop, i, s = relay.var("loop"), relay.var("i", INT), relay.var("s", shape=(3,))
    builder = relay.ScopeBuilder()
    with builder.if_scope(i < relay.const(10)):
        builder.ret(loop(i + ONE, s + X))
    with builder.else_scope():
        builder.ret(s)
    function = relay.Function([i, s], builder.get())
    body = relay.Let(loop, function, loop(ZERO, relay.zeros((3,), "float32")))
    module = transform.InferType()(minitvm.IRModule.from_expr(relay.Function([X], body)))
    lifted = transform.LambdaLift()(module)
    assert len(lifted.functions) == 2
    for one in (module, lifted, relay.fromtext(module.astext())):
        assert_allclose(relay.build(one).run({"x": ONES})[0], 10 * ONES)


def test_other_recursion_runs_where_numbers_are_known() -> None:
    run = relay.create_executor("debug", total()).evaluate()
    assert [int(run(np.int32(n)).numpy()) for n in (0, 4, 10)] == [0, 10, 55]
    value = relay.create_executor(mod=total()).evaluate(total().get_global_var("total")(relay.const(6)))
    assert int(value.numpy()) == 21


def test_other_recursion_is_refused_by_name() -> None:
    with pytest.raises(IRError, match=r"^@total calls itself, and is no loop: .*\n  \| a function of %n: Tensor"):
        relay.build(total())
    fib = """#[version = "0.0.5"]
    def @fib(%n: int32) -> int32 { if (%n < 2) { %n } else { @fib(%n - 1) + @fib(%n - 2) } }
    def @main(%n: int32) -> int32 { @fib(%n) }"""
    with pytest.raises(IRError, match="@fib calls itself"):
        relay.build(relay.fromtext(fib))
    assert int(relay.create_executor("debug", relay.fromtext(fib)).evaluate()(np.int32(9)).numpy()) == 34


def test_recursion_without_end() -> None:
    text = """#[version = "0.0.5"]
    def @f(%n: int32) -> int32 { @f(%n + 1) }
    def @main(%n: int32) -> int32 { @f(%n) }"""
    with pytest.raises(IRError, match="@f calls itself without end"):
        relay.build(relay.fromtext(text))


def test_a_shape_that_changes_is_refused() -> None:
    module, f = minitvm.IRModule(), relay.GlobalVar("f")
    n, x = relay.var("n", INT), relay.var("x", shape=(3,))
    longer = f(n - ONE, relay.concatenate([x, x], 0))
    module[f] = relay.Function([n, x], relay.If(relay.equal(n, ZERO), relay.sum(x), longer))
    with pytest.raises(MiniTVMError, match="parameter"):
        transform.InferType()(module)


def test_scopes_that_are_wrong() -> None:
    y = relay.var("y", shape=(3,))
    twice = relay.Let(y, X, relay.Let(y, relay.exp(X), y))
    with pytest.raises(IRError, match="%y is bound twice"):
        relay.build(relay.Function([X], twice))
    with pytest.raises(IRError, match="%y is used outside of its scope"):
        relay.build(relay.Function([X], relay.add(relay.Let(y, relay.exp(X), y), y)))
    with pytest.raises(IRError, match="%x is not bound"):
        relay.build(relay.Function([], relay.Let(y, X, y)))
    assert not relay.analysis.well_formed(relay.Function([X], twice))
    with pytest.raises(IRError, match="a Let binds a variable"):
        relay.Let(relay.const(1), X, X)
    with pytest.raises(TypeInferenceError, match="takes 1 arguments, 2 given"):
        relay.var("f", relay.FuncType([INT], INT))(ONE, ONE)
    f = relay.var("f", relay.FuncType([INT], INT))
    with pytest.raises(IRError, match="%f is a function, which nobody can give"):
        relay.build(relay.Function([f], f(ONE)))
    with pytest.raises(MiniTVMError, match=r"is called, and the module has no such function|has none"):
        relay.build(relay.Function([X], relay.GlobalVar("absent")(X)))


def test_functions_are_passed_on_and_given_back() -> None:
    text = """#[version = "0.0.5"]
    def @twice(%f: fn (Tensor[(3), float32]) -> Tensor[(3), float32], %x: Tensor[(3), float32]) { %f(%f(%x)) }
    def @adder(%y: Tensor[(3), float32]) { fn (%z: Tensor[(3), float32]) { %z + %y } }
    def @main(%x: Tensor[(3), float32]) { %0 = @adder(%x); @twice(%0, exp(%x)) }"""
    module = relay.fromtext(text)
    assert_allclose(relay.build(module).run({"x": ONES})[0], np.exp(ONES) + 2 * ONES)
    assert structural_equal(relay.fromtext(module.astext()), module)
    lifted = transform.LambdaLift()(module)
    assert len(lifted.functions) == 4
    assert_allclose(relay.build(lifted).run({"x": ONES})[0], np.exp(ONES) + 2 * ONES)


def test_closures_become_functions_of_the_module() -> None:
    x, y = relay.var("x", shape=(2,)), relay.var("y", shape=(2,))
    outer = relay.Function([y], relay.Function([x], x + y))
    module = minitvm.IRModule()
    made = relay.Call(outer, [relay.ones((2,), "float32")])
    module["main"] = relay.Function([], relay.Call(made, [relay.zeros((2,), "float32")]))
    lifted = transform.LambdaLift()(transform.InferType()(module))
    assert len(lifted.functions) == 3
    assert_allclose(relay.build(lifted).run({})[0], np.ones(2, "float32"))


def marked(**attributes: Any) -> minitvm.IRModule:
    """main calls outer, which calls inner; both are to be put in place, unless they call themselves."""
    module = minitvm.IRModule({})
    a, b, c = (relay.var(name, shape=(3,)) for name in "abc")
    inner, outer = relay.GlobalVar("inner"), relay.GlobalVar("outer")
    module[inner] = relay.Function([a], relay.exp(a)).with_attr({"Inline": 1, **attributes})
    module[outer] = relay.Function([b], inner(b) + b).with_attr("Inline", 1)
    module["main"] = relay.Function([c], outer(relay.negative(c)))
    return module


def test_inline() -> None:
    found = transform.Inline()(marked())
    c = relay.var("c", shape=(3,))
    lower = relay.negative(c)
    assert structural_equal(found, minitvm.IRModule.from_expr(relay.Function([c], relay.exp(lower) + lower)))
    kept = transform.Inline()(marked(Compiler="a"))["main"]
    [call] = [n for n in relay.analysis.post_order_visit(kept) if isinstance(getattr(n, "op", None), relay.Function)]
    assert call.op.attrs["Compiler"] == "a"
    recursive = total()
    again = recursive.with_function("total", recursive["total"].with_attr("Inline", 1))
    assert structural_equal(transform.Inline()(again), again)


def test_functions_that_nothing_calls_are_removed() -> None:
    module = power().with_function("unused", total()["total"])
    assert sorted(transform.RemoveUnusedFunctions()(module).functions) == ["main", "power"]
    graph = relay.analysis.CallGraph(module)
    assert graph["main"] == ["power"] and graph.is_recursive("power") and not graph.is_recursive("main")
    assert graph.ref_count("power") == 2 and graph.print_var("main") == "@main -> @power"


def test_names_of_functions_as_functions_of_parameters() -> None:
    f, n = relay.GlobalVar("total"), relay.var("n", INT)
    module = total()
    module["main"] = relay.Function([n], relay.Tuple([f.called(), f.called()])[0])
    expanded = transform.EtaExpand()(transform.InferType()(module))
    nodes = relay.analysis.post_order_visit(expanded["main"].body)
    inner = next(node for node in nodes if isinstance(node, relay.Function))
    assert len(inner.params) == 1 and isinstance(inner.body, relay.Call)
