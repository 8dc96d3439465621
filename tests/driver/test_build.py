"""build: levels, reports, progress, shared kernels, and what it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.driver.report import with_names
from minitvm.errors import CompilerError, ConfigError, InputError, PassError, TargetError
from minitvm.ir.builder import call_op
from minitvm.ir.expr import span_scope
from minitvm.ir.structural import structural_digest
from minitvm.passes.instrument import PassTiming

RNG = np.random.default_rng(31)


def network() -> tuple[relay.Module, dict[str, np.ndarray]]:
    """Two convolutions with batch norm, a residual, pooling, dense, softmax."""
    x = relay.var("x", shape=(1, 4, 10, 10))
    params: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int) -> relay.Var:
        params[name] = np.asarray(RNG.uniform(0.2, 0.9, shape) * RNG.choice([-1, 1], shape), "float32")
        return relay.var(name, shape=shape)

    def block(data: relay.Expr, name: str) -> relay.Expr:
        y = relay.nn.conv2d(data, weight(f"{name}_w", 8, int(data.shape[1]), 3, 3), padding=(1, 1))
        norm = [weight(f"{name}_{part}", 8) for part in ("gamma", "beta", "mean", "var")]
        params[f"{name}_var"] = np.abs(params[f"{name}_var"])
        return relay.nn.relu(relay.nn.batch_norm(y, *norm)[0])

    first = block(x, "a")
    y = relay.add(block(first, "b"), first)
    flat = relay.nn.batch_flatten(relay.nn.max_pool2d(y, pool_size=(2, 2), strides=(2, 2)))
    out = relay.nn.softmax(relay.multiply(relay.nn.dense(flat, weight("d", 6, 200)), relay.const(0.05)))
    return relay.Module.from_expr(out), params


MODULE, PARAMS = network()
X = RNG.standard_normal((1, 4, 10, 10)).astype("float32")


def run(library: minitvm.Library, **inputs: np.ndarray) -> np.ndarray:
    module = minitvm.GraphModule(library["default"]())
    module.run(**inputs)
    return module.get_output(0).numpy()


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    from minitvm.ir.evaluate import evaluate

    return np.asarray(evaluate(MODULE, *[{"x": X, **PARAMS}[p.name] for p in MODULE.main.params]))


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_agrees(level: int, reference: np.ndarray) -> None:
    np.testing.assert_allclose(run(minitvm.build(MODULE, "llvm", PARAMS, level), x=X), reference, rtol=1e-5, atol=1e-6)
    with minitvm.PassContext(opt_level=level):
        unbound = minitvm.build(MODULE)
    np.testing.assert_allclose(run(unbound, x=X, **PARAMS), reference, rtol=1e-5, atol=1e-6)


def test_level_and_passes_of_the_context_count() -> None:
    kernels = []
    for level in (0, 3):
        with minitvm.PassContext(opt_level=level):
            kernels.append(sum(n.is_kernel for n in minitvm.build(MODULE, params=PARAMS).graph.nodes))
    assert kernels[0] > kernels[1]
    timing = PassTiming()
    with minitvm.PassContext(opt_level=2, instruments=[timing]):
        minitvm.build(MODULE, params=PARAMS, opt_level=1)
    assert "FuseOps" in timing.render() and "FoldConstant" not in timing.render()


def test_a_kernel_used_twice_is_compiled_once() -> None:
    x = relay.var("x", shape=(3, 5))
    y = relay.annotation.stop_fusion(relay.tanh(x))
    z = relay.annotation.stop_fusion(relay.tanh(y))
    library = minitvm.build(relay.Function([x], relay.tanh(z)))
    assert sum(node.is_kernel for node in library.graph.nodes) == 3
    assert len(library.report.groups) == 1
    value = RNG.standard_normal((3, 5)).astype("float32")
    np.testing.assert_allclose(run(library, x=value), np.tanh(np.tanh(np.tanh(value))), rtol=1e-5, atol=1e-6)


def test_the_report_shows_every_stage() -> None:
    seen: list[tuple[int, int, str]] = []
    library = minitvm.build(MODULE, "llvm", PARAMS, 3, on_progress=lambda *step: seen.append(step), trace=True)
    report = library.report
    assert [done for done, _, _ in seen] == list(range(1, len(report.groups) + 1))
    assert {name for _, _, name in seen} == set(report.groups) == set(library.function_metadata)
    assert {"passes", "memory plan"} <= set(report.seconds)
    assert "FuseOps" in [step.name for step in report.steps]
    assert all(step.before is not None and step.after is not None for step in report.steps)
    symbol = next(s for s, g in report.groups.items() if "conv2d" in s)
    kernel = report.kernel(symbol)
    assert symbol in str(kernel.loops) and symbol in str(kernel.legalized)
    assert f'define void @"{symbol}"(' in kernel.text("llvm")
    assert symbol in kernel.text("asm")
    for name, facts in library.function_metadata.items():
        cost, seconds = report.kernel(name).cost, report.kernel(name).seconds
        assert (cost.flops, cost.nbytes, cost.cycles) == (facts["flops"], facts["bytes"], facts["cycles"])
        assert all(cost.cycles == choice.cycles for choice in report.kernel(name).candidates[:1])
        assert cost.nbytes / 1e12 < seconds == facts["seconds"] < 1e-3
    assert kernel.candidates
    assert kernel.cost.flops >= 2 * 8 * 8 * 4 * 9  # at least one of the layers' products for every element
    with pytest.raises(CompilerError, match=r"^there is no kernel 'conv'\n  = hint: kernels: "):
        report.kernel("conv")


def test_calls_of_a_module_made_by_hand_have_names_where_a_build_is_traced() -> None:
    x, weight = relay.var("x", shape=(2, 8)), relay.const(RNG.random((8, 8)).astype("float32"))
    hidden = relay.nn.relu(relay.nn.dense(x, weight))
    function = relay.Function([x], relay.nn.softmax(relay.add(hidden, relay.nn.relu(relay.nn.dense(hidden, weight)))))
    report = minitvm.build(function, trace=True).report
    assert {n for nodes in report.nodes.values() for n in nodes} == {
        *("dense_0", "relu_1", "dense_2", "relu_3", "add_4", "softmax_5")
    }
    assert "relu_3" in str(report.explain(node="relu_3")) and not any(minitvm.build(function).report.nodes.values())
    normed = relay.nn.batch_norm(*(relay.var(n, shape=(1, 2, 3, 3) if n == "x" else (2,)) for n in "xgbmv"))[0]
    assert with_names(minitvm.Module.from_expr(normed)).main.body.span == ("batch_norm_0",)
    with span_scope(("mine",)):
        named = relay.Function([x], relay.nn.relu(x))
    assert with_names(minitvm.Module(named)).main is named


def _named() -> minitvm.Module:
    """A convolution, its scale and rectifier, a softmax, and something that no kernel computes; nodes have names."""
    x, w = relay.var("x", shape=(1, 3, 20, 20)), relay.const(RNG.random((7, 3, 3, 3)).astype("float32"))
    with span_scope(("conv",)):
        y = relay.nn.conv2d(x, w, strides=(2, 2))
    with span_scope(("scale",)):
        y = relay.multiply(y, relay.const(RNG.random((7, 1, 1)).astype("float32")))
    with span_scope(("act",)):
        y = relay.nn.relu(y)
    with span_scope(("found",)):
        return minitvm.Module.from_expr(relay.argwhere(y))


@pytest.mark.filterwarnings("ignore:1 operator runs in Python")
def test_the_report_says_why() -> None:
    report = minitvm.build(_named(), opt_level=3).report
    (symbol,) = report.groups
    said = {str(d).partition("; ")[0]: number for number, d in enumerate(report.decisions)}
    kernel = report.kernel(symbol)
    choice, count = kernel.candidates[0], len(kernel.candidates)
    assert count > 1 and min(kernel.candidates, key=lambda c: c.cycles).cycles == choice.cycles
    expected = [
        "multiply [scale]: BackwardFoldScaleAxis: folded into the weights before it",
        "nn.conv2d [conv]: FuseOps: into nn.relu: an elementwise epilogue of the anchor",
        "nn.relu [act]: FuseOps declined: into argwhere: the way there is opaque, an epilogue must be elementwise",
        "argwhere [found]: FuseOps declined: opaque: it fuses with nothing",
        "argwhere [found]: placement declined: no kernel, since a shape that is known only when the model runs",
        f"nn.conv2d [conv]: template conv_pixels.PixelConv: writes the loops: {choice}, the best of {count}",
    ]
    places = [said[line] for line in expected]
    assert places == sorted(places)
    assert list(report.why("scale")) == ["BackwardFoldScaleAxis"]
    assert list(report.why("fou*")) == ["FuseOps", "placement"]
    assert list(report.why("conv"))[-2:] == list(report.why(symbol))[-2:] == ["FuseOps", symbol]
    assert {d for decided in report.why("*").values() for d in decided} == set(report.decisions)
    with pytest.raises(ConfigError, match=r"^nothing was decided about 'cow'\n  = hint: --kernel list names"):
        report.why("cow")
    with pytest.raises(
        ConfigError, match=r"^the module around InferType was not kept\n  = hint: minitvm.build\(..., tr"
    ):
        _ = report.steps[0].before


def test_a_template_that_declines_is_heard_of_where_there_is_a_compute_rule() -> None:
    x, w = (
        relay.var("x", shape=(1, 3, 20, 20), dtype="int32"),
        relay.const(RNG.integers(0, 3, (7, 3, 3, 3)).astype("int32")),
    )
    report = minitvm.build(relay.Function([x], relay.nn.conv2d(x, w, strides=(2, 2)))).report
    (kernel,) = map(report.kernel, report.groups)
    assert kernel.template == "default nests"
    assert "registers hold sums of floats; here int32" in [d.reason for d in report.decisions if not d.taken]


def test_default_nests_say_how_they_go() -> None:
    x = relay.var("x", shape=(8, 40, 6))
    rows = relay.annotation.stop_fusion(relay.nn.softmax(relay.transpose(x, axes=(0, 2, 1))))
    report = minitvm.build(relay.Function([x], relay.sum(rows, axis=(1,)))).report
    said = [d.reason for s in report.groups for d in report.kernel(s).decisions if d.by == "schedule"]
    for words in ("in squares of", "row by row", "in vectors of", "each lane reduces"):
        assert any(words in line for line in said), (words, said)


def test_the_key_of_kernels_tells_groups_apart() -> None:
    x = relay.var("x", shape=(2, 3))

    def text(body: relay.Expr) -> bytes:
        return structural_digest(relay.Function([x], body))

    bodies = [
        relay.add(x, relay.const(1.0)),
        relay.add(x, relay.const(2.0)),
        relay.add(relay.const(1.0), x),
        relay.add(x, relay.const(np.float64(1.0).astype("float32").reshape(1))),
        relay.multiply(x, relay.const(1.0)),
        relay.sum(x, axis=(0,)),
        relay.sum(x, axis=(1,)),
        relay.exp(relay.exp(x)),
    ]
    assert len({text(body) for body in bodies}) == len(bodies)
    assert text(relay.add(x, relay.const(1.0))) == text(bodies[0])


def test_what_build_refuses() -> None:
    with pytest.raises(
        TargetError, match=r"^unknown option '-mcpus=x' of target 'llvm'\n  = hint: did you mean 'mcpu'"
    ):
        minitvm.build(MODULE, "llvm -mcpus=x")
    with pytest.raises(TargetError, match=r"^unknown GPU architecture 'sm_9'\n  = hint: known: sm_75, .*sm_90"):
        minitvm.build(MODULE, "cuda -arch=sm_9")
    with pytest.raises(TargetError, match=r"^target 'cuda' calls no library 'miopen'\n"):
        minitvm.build(MODULE, "cuda -libs=cudnn,miopen")
    with pytest.raises(InputError, match=r"^there is no parameter 'nothing' to bind\n"):
        minitvm.build(MODULE, params={"nothing": X})
    with pytest.raises(ConfigError, match=r"^opt_level is -1\n"):
        minitvm.build(MODULE, opt_level=-1)
    with pytest.raises(PassError, match=r"^disabled_pass: there is no pass 'FuseOp'\n"):
        minitvm.PassContext(disabled_pass=["FuseOp"])


def test_a_library_runs_on_more_threads_than_it_was_scheduled_for(reference: np.ndarray) -> None:
    library = minitvm.build(MODULE, "llvm", PARAMS, 3, num_threads=1)
    for threads in (1, 2, 4):
        module = minitvm.GraphModule(library["default"](None, threads))
        module.run(x=X)
        np.testing.assert_allclose(module.get_output(0).numpy(), reference, rtol=1e-5, atol=1e-6)


def test_a_deep_chain_of_functions_is_one_kernel_and_no_stack_overflow() -> None:
    x = relay.var("x", shape=(3, 5))
    y: relay.Expr = x
    for _ in range(120):
        y = relay.tanh(y)
    module = minitvm.GraphModule(minitvm.build(relay.Function([x], y), opt_level=3)["default"](minitvm.cpu(0)))
    expected = array = RNG.standard_normal((3, 5)).astype("float32")
    module.run(x=array)
    for _ in range(120):
        expected = np.tanh(expected)
    np.testing.assert_allclose(module.get_output(0).numpy(), expected, rtol=1e-5)


def test_a_build_without_fusion_is_refused() -> None:
    with minitvm.PassContext(disabled_pass=["FuseOps"]), pytest.raises(PassError) as caught:
        minitvm.build(MODULE, params=PARAMS)
    assert str(caught.value) == (
        "FuseOps cuts the graph into kernels: a build cannot do without it\n"
        "  = hint: at opt_level=0 every operator is a kernel of its own"
    )


@pytest.mark.parametrize("shape", [(1 << 44,), (1 << 20, 1 << 24), (3, 1 << 42)])
def test_compiling_takes_no_memory_of_the_tensors_size(shape: tuple[int, ...]) -> None:
    x = relay.var("x", shape=shape)
    assert minitvm.build(relay.Function([x], relay.nn.relu(relay.exp(x)))).plan.nbytes >= 1 << 45


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        ("nn.conv1d", [(2, 0, 9), (4, 0, 3)]),
        ("nn.conv2d", [(1, 0, 1, 8), (1, 0, 1, 1)]),
        ("nn.conv2d", [(2, 0, 9, 9), (32, 0, 3, 3)]),
        ("nn.conv3d", [(1, 0, 4, 4, 4), (2, 0, 3, 3, 3)]),
        ("nn.dense", [(5, 0), (17, 0)]),
        ("nn.matmul", [(7, 0), (0, 16)]),
        ("nn.batch_matmul", [(2, 3, 0), (2, 16, 0)]),
    ],
)
def test_a_sum_of_nothing_is_zero(operator: str, shapes: list[tuple[int, ...]], dtype: str, level: int) -> None:
    x, w = (relay.var(name, shape=shape, dtype=dtype) for name, shape in zip("xw", shapes, strict=True))
    function = relay.Function([x, w], call_op(operator, x, w))
    library = minitvm.build(function, params={"w": np.zeros(shapes[1], dtype)}, opt_level=level)
    module = minitvm.GraphModule(library["default"]())
    module.run(x=np.zeros(shapes[0], dtype))
    result = module.get_output(0).numpy()
    assert result.dtype == dtype and result.size and not result.any()


def test_a_report_prints_readably() -> None:
    x = relay.var("x", shape=(2, 3))
    report = minitvm.build(minitvm.Module.from_expr(relay.nn.relu(x))).report
    assert re.fullmatch(r"<report of \d+ passes and 1 kernels: passes \d\.\d\d, .* seconds>", repr(report))
    assert repr(report.kernel("fused_nn_relu")) == "<kernel fused_nn_relu: nn.relu>"


def test_a_table_that_is_looked_up_in_is_not_read_whole() -> None:
    """A word's row of 94 MB of words is what a kernel reads; a table that is read in another way too is read whole."""
    table, words = relay.var("table", shape=(30_000, 16)), relay.var("words", shape=(8,), dtype="int64")
    found = relay.take(table, words, axis=0)
    for result, reads in ((relay.tanh(found), 8 * 16 * 4), (relay.take(table, words) + relay.sum(table), 30_000 * 64)):
        library = minitvm.build(relay.Function([table, words], result))
        metadata = list(library.function_metadata.values())
        assert sum(m["bytes"] for m in metadata) < 2 * reads + 8 * 8 + 1024
        assert max(m["bytes"] for m in metadata) >= reads
