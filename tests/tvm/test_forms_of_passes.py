"""Instruments around builds, types of called functions, rewriting by several patterns, analyses of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import ConfigError
from minitvm.ir.structural import structural_equal
from minitvm.relay import analysis, transform
from minitvm.relay.dataflow_pattern import DFPatternCallback, is_op, rewrite, wildcard
from minitvm.tvm.instrument import pass_instrument

X = relay.var("x", shape=(2, 3))


def test_a_build_enters_no_instrument_again() -> None:
    @pass_instrument
    class Heard:
        def __init__(self) -> None:
            self.events: list[str] = []

        def enter_pass_ctx(self) -> None:
            self.events = ["enter"]

        def exit_pass_ctx(self) -> None:
            self.events.append("exit")

        def run_before_pass(self, module: Any, info: Any) -> None:
            self.events.append("pass")

    heard: Any = Heard()
    with transform.PassContext(instruments=[heard]):
        relay.build(relay.Function([X], relay.exp(X)), "llvm")
        first = len(heard.events)
        relay.build(relay.Function([X], relay.exp(X)), "llvm", opt_level=3)
        assert len(heard.events) > first > 5
    assert [e for e in heard.events if e != "pass"] == ["enter", "exit"]


def test_untyped_parameters_of_called_functions_are_solved() -> None:
    p, q, w = relay.var("p"), relay.var("q"), relay.var("w")
    inner = relay.Function([q], relay.nn.relu(q))
    fused = relay.Function([p, w], inner(relay.nn.dense(p, w, units=4)))
    y = relay.var("y")
    found = relay.testing.run_infer_type(relay.Function([X, y], fused(X, y)))
    assert found.checked_type == relay.FuncType([X.type, relay.TensorType((4, 3))], relay.TensorType((2, 4)))
    typed = relay.var("t", shape=(2, 3))
    body = relay.Function([typed], relay.exp(typed))
    assert relay.testing.run_infer_type(relay.Function([y], body(y))).params[0].checked_type == X.type
    library = relay.build(relay.Function([X], inner(X)), "llvm")
    np.testing.assert_array_equal(library.run({"x": -np.ones((2, 3), "float32")})[0], np.zeros((2, 3)))


class Named(DFPatternCallback):
    """A unary operator that becomes another one."""

    def __init__(self, old: str, new: str, rewrite_once: bool = False) -> None:
        super().__init__(rewrite_once=rewrite_once)
        self.pattern, self.new = is_op(old)(wildcard()), new

    def callback(self, pre: Any, post: Any, node_map: Mapping[Any, Any]) -> Any:
        return relay.call_op(self.new, post.args[0])


@pytest.mark.parametrize("order", [("exp", "negative"), ("negative", "exp")])
def test_patterns_are_rewritten_together(order: tuple[str, ...]) -> None:
    """One makes what the other takes, in whichever order they stand; once counts when something changed."""
    to = {"exp": "tanh", "negative": "exp"}
    assert rewrite([Named(old, to[old]) for old in order], relay.negative(X)).op.name == "tanh"
    assert rewrite([Named("exp", "tanh", True), Named("negative", "exp")], relay.negative(X)).op.name == "tanh"


@pytest.mark.parametrize(
    ("ask", "want"),
    [
        (lambda m: analysis.count_layers(m, ["nn.dense"]), 3),
        (lambda m: analysis.free_vars(m), []),
        (lambda m: len(analysis.all_vars(m)), 7),
        (lambda m: len(analysis.bound_vars(m)), 7),
        (lambda m: analysis.get_total_mac_number(m), 784 * 128 + 128 * 64 + 64 * 10),
        (lambda m: analysis.list_op_freqs(m)["nn.dense"], 3),
        (lambda m: len(analysis.post_order_visit(m)) > 15, True),
        (lambda m: sorted(analysis.extract_fused_functions(m))[0], "fused_nn_batch_flatten"),
    ],
)
def test_analyses_take_a_module(ask: Callable[[Any], Any], want: Any) -> None:
    module, _ = relay.testing.mlp.get_workload(1)
    assert ask(module) == want


def test_all_vars_has_parameters_that_nothing_uses() -> None:
    function = relay.Function([X, relay.var("unused", shape=(1,))], relay.exp(X))
    assert [v.name for v in analysis.all_vars(function)] == ["x", "unused"]


def test_what_is_timed_by_name() -> None:
    executor = minitvm.GraphModule(relay.build(relay.Function([X], relay.exp(X)))["default"](minitvm.cpu()))
    executor.set_input("x", np.ones((2, 3), "float32"))
    assert executor.benchmark(func_name="run", repeat=1, number=1).mean > 0
    with pytest.raises(ConfigError, match="no function 'walk'"):
        executor.benchmark(func_name="walk")


def test_an_expected_graph_of_relays_functions() -> None:
    """As Relay's tests write what fusion makes: functions whose parameters have no types."""
    p = relay.var("p")
    group = relay.Function([p], relay.exp(relay.add(p, relay.const(1.0)))).with_attr("Primitive", 1)
    expected = relay.testing.run_infer_type(relay.Function([X], group(X)))
    assert structural_equal(expected.body.op.body.args[0].args[1], relay.const(1.0))
