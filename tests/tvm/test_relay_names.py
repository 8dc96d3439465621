"""Relay's names beside those of the tutorials: control flow, visitors, operators by name, builds, targets, networks."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import ConfigError, FrontendError, IRError, MiniTVMError, TargetError, TypeInferenceError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.structural import structural_equal
from minitvm.relay import ExprMutator, ExprVisitor, op
from minitvm.relay.testing import dcgan, dqn, lstm, mlp
from minitvm.testing import assert_same_numbers
from minitvm.tvm.error import NotOfferedError

X = relay.var("x", shape=(2, 3))
FLAG = relay.var("flag", shape=(), dtype="bool")
ONES = np.ones((2, 3), "float32")


@pytest.mark.parametrize("flag", [True, False])
def test_if_runs_as_its_branches(flag: bool) -> None:
    shared = relay.exp(X)
    function = relay.Function([FLAG, X], relay.If(FLAG, shared + 1.0, relay.negative(shared)))
    want = np.exp(ONES) + 1 if flag else -np.exp(ONES)
    np.testing.assert_allclose(evaluate(function, np.array(flag), ONES), want, rtol=1e-6)
    library = minitvm.build(function)
    np.testing.assert_allclose(library.run({"flag": np.array(flag), "x": ONES})[0], want, rtol=1e-6)
    assert not library.host_calls and "exp(%x)" in str(function)  # what both branches share is computed once


def test_let_and_if_as_text() -> None:
    text = """def @main(%flag: bool, %x: Tensor[(2, 3), float32]) {
      let %y: Tensor[(2, 3), float32] = exp(%x);
      if (%flag) { let %z = nn.relu(%y); add(%z, %y) } else { negative(%x) }
    }"""
    module = relay.parse(text)
    y, z = relay.var("y", shape=(2, 3)), relay.var("z", shape=(2, 3))
    body = relay.If(FLAG, relay.Let(z, relay.nn.relu(y), relay.add(z, y)), relay.negative(X))
    assert_same_numbers(module, relay.Function([FLAG, X], relay.Let(y, relay.exp(X), body)))
    assert structural_equal(relay.parse(module.astext()), module)


def test_what_is_wrong_with_let_and_if() -> None:
    with pytest.raises(MiniTVMError, match=r"%y is declared as Tensor\[\(3,\), float32\], its value is"):
        relay.parse("def @main(%x: Tensor[(2, 3), float32]) { let %y: Tensor[(3,), float32] = exp(%x); %y }")
    with pytest.raises(MiniTVMError, match="%z is not bound"):
        relay.parse("def @main(%c: bool, %x: Tensor[(2,), float32]) { if (%c) { let %z = exp(%x); %z } else { %z } }")
    with pytest.raises(TypeInferenceError, match="condition is"):
        relay.If(X, X, X)
    with pytest.raises(TypeInferenceError, match="variable %y is"):
        relay.transform.InferType()(minitvm.IRModule.from_expr(relay.Let(relay.var("y", shape=(7,)), X, X)))


def test_scope_builder() -> None:
    builder = relay.ScopeBuilder()
    y = builder.let("y", relay.exp(X))
    with builder.if_scope(FLAG):
        builder.ret(y)
    with pytest.raises(IRError, match="has no result"):
        builder.get()
    with builder.else_scope():
        builder.ret(X)
    named = relay.var("z", shape=(2, 3))
    assert structural_equal(builder.get(), relay.Let(named, relay.exp(X), relay.If(FLAG, named, X)))


def test_relays_function() -> None:
    made = relay.Function([X], relay.exp(X), relay.TensorType((2, 3)), None, {"name": "f"})
    assert isinstance(made, relay.Function) and type(made) is minitvm.Function and made.attrs["name"] == "f"
    assert structural_equal(made(X), relay.Call(made, [X]), map_free_vars=True)
    with pytest.raises(TypeInferenceError, match="declared as"):
        relay.Function([X], X, relay.TensorType((9,)))


def test_visitors() -> None:
    class Count(ExprVisitor):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def visit_call(self, call: relay.Call) -> None:
            super().visit_call(call)
            self.names.append(call.op.name)

    class Doubled(ExprMutator):
        def visit_constant(self, constant: relay.Constant) -> Any:
            return relay.const(2 * constant.value)

    shared = relay.exp(X + 1.0)
    function = relay.Function([X], shared * shared)
    visitor = Count()
    visitor.visit(function)
    assert visitor.names == ["add", "exp", "multiply"]
    assert structural_equal(ExprMutator().visit(function), function) and ExprMutator().visit(function) is function
    np.testing.assert_allclose(evaluate(Doubled().visit(function), ONES), np.exp(ONES + 2) ** 2, rtol=1e-5)
    with pytest.raises(IRError, match="ExprFunctor has no visit_var"):
        relay.ExprFunctor().visit(X)


def test_operators_by_name_and_position() -> None:
    assert relay.exp(X).op == op.get("exp") != relay.add(X, X).op
    assert relay.reshape(X, (3, 2)).shape == relay.reshape(X, newshape=(3, 2)).shape
    assert relay.nn.softmax(X, 0).attrs.axis == 0 and relay.clip(X, 0.0, 6.0).attrs.a_max == 6.0
    pool = relay.nn.max_pool2d(relay.var("d", shape=(1, 1, 8, 8)), (2, 2), (2, 2))
    assert pool.shape == (1, 1, 4, 4)
    assert relay.op.nn.relu(X).shape == relay.op.tensor.exp(X).shape
    with pytest.raises(TypeInferenceError, match="multiple values for argument 'axis'"):
        relay.nn.softmax(X, 0, axis=1)
    with pytest.raises(TypeInferenceError, match="too many positional arguments"):
        relay.exp(X, 3)
    with pytest.raises(TypeInferenceError, match="there is no operator 'exq'") as caught:
        op.get("exq")
    assert caught.value.hint == "did you mean exp?"


def test_analysis() -> None:
    net, _ = mlp.get_workload(1)
    seen: list[Any] = []
    relay.analysis.post_order_visit(net["main"], seen.append)
    assert seen[-1] is net["main"] and relay.analysis.well_formed(net)
    assert relay.analysis.list_op_freqs(net)["nn.dense"] == 3
    assert relay.analysis.count_layers(net["main"], ["nn.dense"]) == 3
    assert relay.analysis.get_total_mac_number(net["main"]) == 784 * 128 + 128 * 64 + 64 * 10
    assert relay.analysis.bound_vars(net["main"]) == list(net["main"].params)
    fused = relay.transform.FuseOps(fuse_opt_level=2)(net)
    groups = relay.analysis.extract_fused_functions(fused)
    assert "fused_nn_softmax" in groups and all(g.is_primitive for g in groups.values())


def test_builds_say_what_they_have_not() -> None:
    function = relay.Function([X], relay.exp(X))
    relay.build(function, "llvm", "llvm", relay.backend.Executor("graph"), relay.backend.Runtime("cpp"))
    relay.build(mod=function, target={"cpu": minitvm.Target("llvm")})
    with pytest.raises(ConfigError, match="there is no executor 'aot'"):
        relay.build(function, "llvm", executor="aot")
    with pytest.raises(ConfigError, match="there is no runtime 'crt'"):
        relay.backend.Runtime("crt")
    with pytest.raises(ConfigError, match="a library's entry is 'default', not 'net'"):
        relay.build(function, mod_name="net")
    with pytest.raises(TargetError, match="the host's side is for this machine"):
        relay.build(function, "cuda -arch=sm_90", "llvm -mcpu=cortex-a72")


def test_import_options_that_would_do_nothing() -> None:
    for options in ({"opset": 9}, {"convert_config": {"use_nt_batch_matmul": True}}):
        with pytest.raises(FrontendError, match="would do nothing"):
            relay.frontend.from_onnx(b"", **options)


def test_targets() -> None:
    target = minitvm.Target("llvm -mcpu=znver4")
    assert target == minitvm.Target.parse({"kind": "llvm", "mcpu": "znver4"}) and target.mcpu == target.attrs["mcpu"]
    assert target.kind.name == "llvm" and minitvm.Target.current() is None  # type: ignore[attr-defined]
    with minitvm.Target("interp"), minitvm.Target("llvm") as inner:
        assert minitvm.Target.current() is inner
    with minitvm.Target("interp"):
        assert relay.build(relay.Function([X], relay.exp(X))).target == "interp"
    with pytest.raises(TargetError, match="no target was entered"):
        minitvm.Target.current(allow_none=False)
    with pytest.raises(TargetError, match="unknown target"):
        minitvm.Target("lvm -mcpu=znver4")


def test_the_dump_after_fusion(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "minitvm"):
        relay.build(relay.Function([X], relay.exp(X) + 1.0))
    assert "fused_exp_add" in caplog.text and "= exp(p0[" in caplog.text


def test_instruments_and_the_pass_that_prints(capsys: pytest.CaptureFixture[str]) -> None:
    @minitvm.instrument.pass_instrument
    class Names:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def run_before_pass(self, module: Any, info: Any) -> None:
            self.seen.append(info.name)

    names = Names()
    passes = [relay.transform.FoldConstant(), minitvm.transform.PrintIR("after folding")]
    printing = minitvm.instrument.PassPrintingInstrument([], ["FoldConstant"])
    with minitvm.transform.PassContext(instruments=[names, printing]):
        minitvm.transform.Sequential(passes)(relay.Function([X], relay.exp(X)))
    printed = capsys.readouterr().out
    assert "// after FoldConstant" in printed and "after folding\ndef @main" in printed
    assert names.seen == ["sequential", "FoldConstant", "PrintIR"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["te.placeholder", "autotvm.tuner.XGBTuner", "rpc.connect", "relay.vm.compile"])
def test_what_is_not_offered_says_so(path: str) -> None:
    found: Any = minitvm
    for name in path.split("."):
        found = getattr(found, name)
    for use in (found, lambda: isinstance(3, found), lambda: [*found], lambda: type("T", (found,), {})):
        with pytest.raises((NotOfferedError, TypeError)) as caught:
            use()
    with pytest.raises(NotOfferedError, match=f"minitvm has no tvm.{path}") as caught:
        found()
    assert isinstance(caught.value, NotOfferedError) and caught.value.hint


def test_names_that_nobody_has() -> None:
    for module, name in (
        (relay, "no_such"),
        (relay.transform, "NoSuch"),
        (minitvm.contrib, "no_such"),
        (relay.op, "no"),
    ):
        with pytest.raises(AttributeError):
            getattr(module, name)
        assert not hasattr(module, "__wrapped__")


NETWORKS = {
    "dqn": lambda: dqn.get_workload(1),
    "dcgan": lambda: dcgan.get_workload(1, ngf=4),
    "lstm": lambda: lstm.get_workload(3, 4),
    "mlp": lambda: mlp.get_workload(1),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_by_position(name: str) -> None:
    module, params = NETWORKS[name]()
    shapes = {p.name: p.shape for p in module["main"].params}
    data = np.random.default_rng(0).normal(size=shapes["data"]).astype("float32")
    values = [data if p.name == "data" else params[p.name].numpy() for p in module["main"].params]
    [found] = minitvm.build(module, "llvm", params).run({"data": data})
    minitvm.testing.assert_close_to_scale(found, evaluate(module, *values), 1e-4)


def test_a_module_of_several_functions_is_built() -> None:
    """What functions compute takes the place of their calls, inside of others and of branches, too."""
    module = relay.parse("""
    def @twice(%y: Tensor[(2, 3), float32]) { add(%y, %y) }
    def @main(%flag: bool, %x: Tensor[(2, 3), float32]) {
      if (%flag) { @twice(exp(@twice(%x))) } else { %x }
    }""")
    inner = relay.var("y", shape=(2, 3))
    closure = relay.Function([inner], relay.multiply(inner, X))
    for level in (0, 3):
        found = minitvm.build(module, opt_level=level).run({"flag": np.array(True), "x": ONES})
        np.testing.assert_allclose(found[0], 2 * np.exp(2 * ONES), rtol=1e-6)
        [found] = minitvm.build(relay.Function([X], closure(closure(X))), opt_level=level).run({"x": 2 * ONES})
        np.testing.assert_array_equal(found, 8 * ONES)


@pytest.mark.parametrize("what", [X, "add"])
def test_what_cannot_be_called(what: Any) -> None:
    with pytest.raises(IRError, match=rf"^a {type(what).__name__} cannot be called\n  = hint: .*module\[name\]\(x\)"):
        relay.Call(what, [X])


def test_the_context_outside_of_every_with() -> None:
    timing = minitvm.transform.PassTiming()
    outermost = relay.transform.PassContext.current()
    outermost.override_instruments([timing])
    try:
        relay.transform.InferType()(relay.Function([X], relay.exp(X)))
    finally:
        outermost.override_instruments([])
    assert "InferType" in timing.render() and outermost.opt_level == 2


def test_an_option_by_tvms_name() -> None:
    context = relay.transform.PassContext(config={"relay.FuseOps.max_depth": 4})
    assert context.option("minitvm.FuseOps.max_depth") == 4
