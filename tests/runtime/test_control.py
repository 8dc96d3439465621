"""Control flow over compiled branches (over poisoned memory, as here, in Python), host calls, what is saved of them."""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.driver import HostCallWarning
from minitvm.errors import CompilerError, InputError
from minitvm.ir.builder import call_op
from minitvm.ir.evaluate import evaluate
from minitvm.ir.types import TensorType
from minitvm.runtime.library import Library

RNG = np.random.default_rng(21)


def build(function: relay.Function) -> Library:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        return minitvm.build(function)


def run(library: Library, *arrays: np.ndarray) -> list[np.ndarray]:
    module = minitvm.GraphModule(library["default"]())
    for i, array in enumerate(arrays):
        module.set_input(i, array)
    module.run()
    return module.outputs()


def if_function() -> relay.Function:
    """c ? relu(x @ w.T) : x[:, :3] - 1, with what stands before and after the decision compiled too."""
    c, x = relay.var("c", shape=(), dtype="bool"), relay.var("x", shape=(2, 4))
    w = relay.const(RNG.standard_normal((3, 4)).astype("float32"))
    a, b = relay.var("a", shape=(2, 4)), relay.var("b", shape=(3, 4))
    then = relay.Function([a, b], relay.nn.relu(relay.nn.dense(a, b)))
    cut = relay.strided_slice(a, begin=(0, 0), end=(2, 3))
    orelse = relay.Function([a, b], relay.subtract(cut, relay.const(1.0)))
    chosen = call_op("control.if", c, relay.exp(x), w, then_branch=then, else_branch=orelse)
    return relay.Function([c, x], relay.multiply(chosen, relay.const(3.0)))


def test_the_report_has_the_kernels_of_all_branches() -> None:
    """Those of the branches are called alike, and are others."""
    c, x = relay.var("c", shape=(), dtype="bool"), relay.var("x", shape=(4,))
    branches = [
        relay.Function([a], relay.exp(a * factor)) for factor in (2.0, 3.0) for a in [relay.var("a", shape=(4,))]
    ]
    chosen = call_op("control.if", c, x, then_branch=branches[0], else_branch=branches[1])
    report = build(relay.Function([c, x], relay.exp(chosen * 5.0))).report
    assert sorted(report.groups) == ["fused_multiply_exp", "fused_multiply_exp'", "fused_multiply_exp''"]
    assert {literal for group in report.groups.values() for literal in "235" if f" {literal}f" in str(group)} == set(
        "235"
    )
    assert [report.kernel(symbol).symbol for symbol in report.groups] == list(report.groups) == list(report.nodes)


def loop_function() -> relay.Function:
    """acc = tanh(acc + x), scanned, until trip_count or until sum(acc) is large."""
    n, x = relay.var("n", shape=(), dtype="int64"), relay.var("x", shape=(3,))
    i, go = relay.var("i", shape=(), dtype="int64"), relay.var("go", shape=(), dtype="bool")
    acc, step = relay.var("acc", shape=(3,)), relay.var("step", shape=(3,))
    after = relay.add(acc, step)
    more = relay.less(relay.sum(after), relay.const(6.0))
    body = relay.Function([i, go, acc, step], relay.Tuple([more, after, relay.tanh(after)]))
    start = relay.const(np.zeros(3, "float32"))
    loop = call_op("control.loop", n, relay.const(np.bool_(True)), start, x, body=body, num_carried=1)
    return relay.Function([n, x], loop)


@pytest.mark.parametrize("condition", [True, False])
def test_if(condition: bool) -> None:
    function = if_function()
    x = RNG.standard_normal((2, 4)).astype("float32")
    library = build(function)
    (got,) = run(library, np.bool_(condition), x)
    np.testing.assert_allclose(got, evaluate(function, np.bool_(condition), x), rtol=1e-5, atol=1e-6)
    assert library.host_calls == []


@pytest.mark.parametrize("trips", [0, 1, 2, 50])
def test_loop(trips: int) -> None:
    function = loop_function()
    x = np.abs(RNG.standard_normal(3)).astype("float32")
    got = run(build(function), np.int64(trips), x)
    for mine, want in zip(got, evaluate(function, np.int64(trips), x), strict=True):
        assert mine.shape == want.shape
        np.testing.assert_allclose(mine, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [if_function, loop_function])
def test_control_flow_is_saved_and_loaded(make: object, tmp_path: pathlib.Path) -> None:
    function = make()  # type: ignore[operator]
    library = build(function)
    library.save(tmp_path / "m.mtvm")
    loaded = minitvm.load(tmp_path / "m.mtvm")
    assert loaded.host_calls == library.host_calls
    first = np.bool_(True) if make is if_function else np.int64(3)
    x = np.abs(RNG.standard_normal(function.params[1].shape)).astype("float32")
    for before, after in zip(run(library, first, x), run(loaded, first, x), strict=True):
        np.testing.assert_array_equal(before, after)


def dynamic_function() -> relay.Function:
    """Where x > 0, and that count doubled: shapes that depend on values, then a kernel on what does not."""
    x = relay.var("x", TensorType((8,), "float32"))
    where = call_op("argwhere", relay.greater(x, relay.const(0.0)))
    return relay.Function([x], relay.Tuple([where, relay.exp(x)]))


def test_shapes_known_only_at_run_time_run_in_python_and_say_so(tmp_path: pathlib.Path) -> None:
    function = dynamic_function()
    with pytest.warns(HostCallWarning) as caught:
        library = minitvm.build(function)
    assert str(caught[0].message) == (
        "1 operator runs in Python instead of in kernels\n"
        "  | argwhere: a shape that is known only when the model runs\n"
        "  = hint: library.host_calls lists them"
    )
    library.save(tmp_path / "m.mtvm")
    for found in (library, minitvm.load(tmp_path / "m.mtvm")):
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal(8).astype("float32")
            where, powers = run(found, x)
            np.testing.assert_array_equal(where, np.argwhere(x > 0))
            np.testing.assert_allclose(powers, np.exp(x), rtol=1e-5)


def test_strict_refuses_host_calls_by_name() -> None:
    with pytest.raises(CompilerError) as error:
        minitvm.build(dynamic_function(), strict=True)
    assert str(error.value) == (
        "1 operator would run in Python instead of in kernels\n"
        "  | argwhere: a shape that is known only when the model runs\n"
        "  = hint: build with strict=False to allow it"
    )


def test_captured_constants_move_into_branches() -> None:
    """The weight of the branch is a parameter of the branch's own library, so it is packed at build time."""
    library = build(if_function())
    (host,) = library.artifact.hosts.values()
    assert len(host.function.params) == 2
    assert host.branches["then_branch"].params and not library.params.keys() & {"w"}


def test_captured_values_may_differ_from_run_to_run() -> None:
    function = loop_function()
    module = minitvm.GraphModule(build(function)["default"]())
    for seed in range(3):
        x = np.abs(np.random.default_rng(seed).standard_normal(3)).astype("float32")
        module.run(n=np.int64(4), x=x)
        np.testing.assert_allclose(module.get_output(0).numpy(), evaluate(function, np.int64(4), x)[0], rtol=1e-5)


def test_scanned_values_that_cannot_be_stacked_are_an_error_of_the_inputs() -> None:
    """The carried value grows from (1,) to (2,): the scanned one has another shape in each iteration."""
    n = relay.var("n", shape=(), dtype="int64")
    i, go = relay.var("i", shape=(), dtype="int64"), relay.var("go", shape=(), dtype="bool")
    acc = relay.var("acc", TensorType((None,)))
    grown = relay.concatenate([acc, relay.const(np.ones(1, "float32"))], axis=0)
    body = relay.Function([i, go, acc], relay.Tuple([go, grown, relay.exp(acc)]))
    start = relay.const(np.zeros(1, "float32"))
    loop = call_op("control.loop", n, relay.const(np.bool_(True)), start, body=body, num_carried=1)
    library = build(relay.Function([n], loop))
    assert run(library, np.int64(1))[1].shape == (1, 1)
    with pytest.raises(InputError) as caught:
        run(library, np.int64(2))
    assert caught.value.message == "control.loop fails for these inputs: all input arrays must have the same shape"
