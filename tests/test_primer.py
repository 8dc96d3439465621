"""The primer: a whole compiler in one file, which has to stay small, to import nothing, and to be right."""

from __future__ import annotations

import ast
import ctypes
import pathlib
import re
import sys
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import minitvm
from benchmarks.onnx_models import resnet
from minitvm import primer as p
from tests import rooms

FILE = pathlib.Path(p.__file__)
ROOT = FILE.parents[1]
DATA = FILE.parent / "demo_data"
MOST_CODE_LINES = 1000

Shape = tuple[int, ...]
Array = np.ndarray


# --- the file ---------------------------------------------------------------------------------------------------------


def test_is_short_enough_for_an_hour() -> None:
    lines, _ = rooms.size("primer.py")
    assert lines <= MOST_CODE_LINES


def test_imports_nothing_of_the_rest() -> None:
    found = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(FILE.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or "minitvm"])
    }
    assert found - set(sys.stdlib_module_names) == {"llvmlite", "numpy", "onnx", "PIL"}


@pytest.mark.parametrize("page", [FILE, ROOT / "docs" / "primer.md"], ids=lambda page: page.name)
def test_rooms_that_are_named_exist(page: pathlib.Path) -> None:
    named = re.findall(r"\bminitvm/[\w/]+(?:\.\w+)?", page.read_text(encoding="utf-8"))
    assert named and [name for name in named if not (ROOT / name).exists()] == []


def test_each_section_says_where_the_real_one_lives() -> None:
    sections = re.split(r"^# (?=\d+\. )", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [section.partition(".")[0] for section in sections] == [str(k) for k in range(1, 12)]
    assert all("# In the real compiler: minitvm/" in section for section in sections)


# --- networks ---------------------------------------------------------------------------------------------------------


class Net:
    """An ONNX model that is put together node by node, with random weights."""

    def __init__(self, seed: int, *shape: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.input = helper.make_tensor_value_info("x", 1, shape)
        self.shape = shape

    def weight(self, *shape: int, low: float = -1, high: float = 1) -> str:
        return self.stored(self.rng.uniform(low, high, shape).astype("float32"))

    def stored(self, array: Array) -> str:
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, kind: str, *operands: str, **attributes: object) -> str:
        self.nodes.append(
            helper.make_node(kind, operands, [f"v{len(self.nodes)}"], f"n{len(self.nodes)}", **attributes)
        )
        return self.nodes[-1].output[0]

    def norm(self, x: str, channels: int) -> str:
        scale, shift, mean = self.weight(channels, low=0.5), self.weight(channels), self.weight(channels)
        return self.node("BatchNormalization", x, scale, shift, mean, self.weight(channels, low=0.5, high=2))

    def model(self, *outputs: str) -> onnx.ModelProto:
        results = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", [self.input], results, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def drawn(seed: int) -> onnx.ModelProto:
    """A convolutional network: strides, groups, dilations, borders, channels in no blocks, a branch, a classifier."""
    rng = np.random.default_rng(seed)
    channels, size = int(rng.choice([1, 3, 4, 6])), int(rng.integers(9, 15))
    net = Net(seed, 1, channels, size, size + 1)
    x = "x"
    for _ in range(3):
        groups = int(rng.choice([1, 1, 2, channels]))
        groups = groups if channels % groups == 0 else 1
        after = channels if groups == channels else groups * int(rng.choice([1, 3, 4, 8]))
        window, dilation = [int(n) for n in rng.choice([1, 2, 3], 2)], int(rng.choice([1, 1, 2]))
        pads = [int(n) for n in rng.integers(1, 3, 4)]
        x = net.node(
            "Conv", x, net.weight(after, channels // groups, *window), net.weight(after), group=groups, pads=pads,
            strides=[int(n) for n in rng.choice([1, 1, 2], 2)], dilations=[dilation, 1],
        )  # fmt: skip
        channels = after
        if rng.random() < 0.8:
            x = net.norm(x, channels)
        if rng.random() < 0.5:
            side = net.node("Conv", x, net.weight(channels, channels, 3, 3), pads=[1] * 4)
            x = net.node("Add", *([side, x] if rng.random() < 0.5 else [x, side]))
        x = net.node("Relu", x) if rng.random() < 0.5 else net.node("Clip", x, net.stored(np.float32(-1)), "")
    pool, count = str(rng.choice(["MaxPool", "AveragePool"])), {"count_include_pad": int(rng.integers(2))}
    x = net.node(pool, x, kernel_shape=[2, 3], pads=[1, 1, 0, 1], **(count if pool == "AveragePool" else {}))
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    x = net.node("Gemm", x, net.weight(10, channels), net.weight(10), transB=1, alpha=0.5)
    return net.model(net.node("Softmax", x, axis=1), x)


def inputs(function: p.Function, seed: int = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=param.shape).astype("float32") for param in function.params]


def close(found: list[Array], expected: list[Array], tolerance: float = 1e-4) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * float(np.abs(other).max()))


@pytest.mark.parametrize("seed", range(8))
def test_drawn_networks_are_right_after_every_pass_and_in_machine_code(seed: int) -> None:
    model = drawn(seed)
    function = p.from_onnx(model)
    arrays = inputs(function)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": arrays[0]})
    compiled = p.Executable(function, lanes=(4, 8, 16)[seed % 3], threads=1 + seed % 2)
    for _, graph in compiled.stages:
        close(p.evaluate(graph, *arrays), expected)
    close(compiled(*arrays), expected)
    again = compiled(*arrays)
    close(again, expected)  # in memory that is not fresh
    assert all("nn.batch_norm" not in str(graph) for _, graph in compiled.stages[1:])


@pytest.mark.parametrize("axes", [None, [2, 3], [0, -1]])
def test_shapes_that_are_stored(axes: list[int] | None) -> None:
    net = Net(0, 1, 6, 1, 1)
    squeezed = net.node("Squeeze", "x", *([net.stored(np.array(axes))] if axes else []))
    value = numpy_helper.from_array(np.array([-1, 3], "int64"))
    x = net.node("Reshape", net.node("Identity", net.node("Dropout", squeezed)), net.node("Constant", value=value))
    x = net.node("MatMul", x, net.weight(3, 5))
    model = net.model(net.node("Mul", x, net.weight(5)))
    function = p.from_onnx(model)
    arrays = inputs(function)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": arrays[0]})
    close(p.Executable(function)(*arrays), expected)


def test_a_node_that_cannot_be_imported_is_named() -> None:
    net = Net(0, 1, 4, 8, 8)
    with pytest.raises(p.PrimerError, match=r"^Tanh 'n0': the primer imports Add, AveragePool, .* only$"):
        p.from_onnx(net.model(net.node("Tanh", "x")))
    net = Net(0, 1, 4, 8, 8)
    with pytest.raises(p.PrimerError, match=r"^Conv 'n0': the primer has no windows with auto_pad=b'SAME_UPPER'$"):
        p.from_onnx(net.model(net.node("Conv", "x", net.weight(4, 4, 3, 3), auto_pad="SAME_UPPER")))
    net = Net(0, 1, 4, 8, 8)
    with pytest.raises(
        p.PrimerError, match=r"^Conv 'n0': nn.conv2d: 4 channels in 1 groups do not fit \(4, 3, 3, 3\)$"
    ):
        p.from_onnx(net.model(net.node("Conv", "x", net.weight(4, 3, 3, 3))))


# --- the real networks ------------------------------------------------------------------------------------------------


def efficientnet() -> onnx.ModelProto:
    return onnx.load(DATA / "efficientnet_lite0.onnx")


def test_efficientnet_names_the_photographs_as_the_real_compiler_does() -> None:
    real = minitvm.InferenceSession(DATA / "efficientnet_lite0.onnx", num_threads=1)
    compiled = p.Executable(p.from_onnx(efficientnet()))
    assert len(compiled.function.calls) < 75  # of 561 after SimplifyInference
    copies = [call.op.name for call in compiled.function.calls if "block" in call.op.name.replace("blocked", "")]
    assert copies == ["fused_pad_block", "fused_unblock_reshape_reshape_block", "fused_unblock_reshape"]
    expected = {"chelsea.png": "tiger cat", "coffee.png": "espresso", "rocket.jpg": "missile", "flower.jpg": "daisy"}
    for name, label in expected.items():
        image = p.photograph(str(DATA / name))
        (logits,) = compiled(image)
        np.testing.assert_allclose(logits, real.run(None, {"image": image})[0], atol=1e-4)
        assert p.classes(logits)[0][0] == label


def test_resnet_18() -> None:
    model = resnet(18)
    function = p.from_onnx(model)
    arrays = inputs(function)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    close(p.Executable(function)(*arrays), session.run(None, {function.params[0].name: arrays[0]}))


def test_the_command_prints_every_stage(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(drawn(3), tmp_path / "model.onnx")
    p.main(str(tmp_path / "model.onnx"))
    titles = re.findall(r"^--- ([\w ]+)", capsys.readouterr().out, re.MULTILINE)
    passes = ["SimplifyInference", "FoldConstant", "FoldScaleAxis", "FoldConstant", "AlterOpLayout", "FoldConstant"]
    assert titles[:9] == ["import", *passes, "FuseOps", "lower"]
    assert [t for t in titles if "memory" in t or "LLVM" in t or "compiled" in t] == titles[-3:]


# --- passes: text and numbers -----------------------------------------------------------------------------------------


def parameters(*shapes: Shape) -> list[p.Constant]:
    rng = np.random.default_rng(2)
    return [p.constant(rng.uniform(0.5, 1, shape)) for shape in shapes]


def conv_norm_relu() -> p.Function:
    x, c = p.Var("x", (1, 8, 6, 6)), (8,)
    weight, *statistics = parameters((8, 8, 3, 3), c, c, c, c)
    y = p.BatchNorm()(p.Conv2d()(p.Pad((1, 1, 1, 1))(x), weight), *statistics)
    return p.Function((x,), (p.relu(y),))


def stages(function: p.Function) -> Iterator[tuple[str, list[str]]]:
    """The graph's lines after each pass that changed it; every graph means the same."""
    arrays = inputs(function)
    before, expected = function, p.evaluate(function, *arrays)
    for name, graph in p.optimize(function, 4):
        close(p.evaluate(graph, *arrays), expected, 1e-5)
        if str(graph) != str(before):
            yield name, [line.strip().partition(";")[0] for line in str(graph).splitlines()[1:-2]]
        before = graph


def test_conv_norm_relu_becomes_one_kernel() -> None:
    found = dict(stages(conv_norm_relu()))
    assert found["SimplifyInference"][:2] == [
        "%0 = nn.pad(%x, pads=(1, 1, 1, 1))",
        "%1 = nn.conv2d(%0, const[8, 8, 3, 3])",
    ]
    assert found["SimplifyInference"][-3:] == [
        "%9 = reshape(%8, shape=(1, 8, 1, 1))",
        "%10 = add(%6, %9)",
        "%11 = nn.relu(%10)",
    ]
    assert found["FoldScaleAxis"][1:3] == [
        "%1 = reshape(const[1, 8, 1, 1], shape=(8, 1, 1, 1))",
        "%2 = multiply(const[8, 8, 3, 3], %1)",
    ]
    assert found["FoldConstant"] == [
        "%0 = nn.pad(%x, pads=(1, 1, 1, 1))",
        "%1 = layout.block(%0, b=4)",
        "%2 = nn.conv2d_blocked(%1, const[2, 2, 3, 3, 4, 4])",
        "%3 = add(%2, const[1, 2, 1, 1, 4])",
        "%4 = nn.relu(%3)",
        "%5 = layout.unblock(%4)",
    ]
    assert found["FuseOps"] == [
        "%0 = fused_pad_block(%x)",
        "%1 = fused_conv2d_blocked_add_relu(%0, const[2, 2, 3, 3, 4, 4], const[1, 2, 1, 1, 4])",
        "%2 = fused_unblock(%1)",
    ]


def test_a_convolution_that_somebody_else_reads_is_not_scaled() -> None:
    x = p.Var("x", (1, 4, 5, 5))
    weight, scale = parameters((4, 4, 1, 1), (1, 4, 1, 1))
    y = p.Conv2d()(x, weight)
    alone, read = p.Function((x,), (p.multiply(y, scale),)), p.Function((x,), (p.multiply(y, scale), y))
    biased = p.Function((x,), (p.multiply(p.add(y, scale), scale),))
    assert [call.op.name for call in p.rewrite(p.fold_scale_axis, alone).calls] == ["reshape", "multiply", "nn.conv2d"]
    assert [call.op.name for call in p.rewrite(p.fold_scale_axis, biased).calls][-3:] == [
        "nn.conv2d",
        "multiply",
        "add",
    ]
    assert p.rewrite(p.fold_scale_axis, read).calls == read.calls


def test_layouts_cancel_between_convolutions() -> None:
    x = p.Var("x", (1, 8, 9, 9))
    first, second = parameters((16, 8, 3, 3), (16, 16, 1, 1))
    y = p.Pool(window=(2, 2))(p.relu(p.Conv2d()(x, first)))
    function = p.Function((x,), (p.add(p.Conv2d()(y, second), y),))
    (_, lines), *_ = [stage for stage in stages(function) if stage[0] == "AlterOpLayout"]
    assert [line.split("= ")[1].partition("(")[0] for line in lines] == [
        *("layout.block", "nn.conv2d_blocked", "nn.relu", "nn.pool2d", "nn.conv2d_blocked", "add", "layout.unblock")
    ]


def names(function: p.Function) -> list[str]:
    return [call.op.name for call in p.fuse_ops(function).calls]


def test_a_diamond_joins_its_convolution() -> None:
    x = p.Var("x", (1, 4, 5, 5))
    y = p.Conv2d()(x, *parameters((4, 4, 1, 1)))
    diamond = p.add(p.relu(y), y)
    assert names(p.Function((x,), (diamond,))) == ["fused_conv2d_relu_add"]
    assert names(p.Function((x,), (diamond, y))) == ["fused_conv2d", "fused_relu_add"]  # y is stored anyway
    assert names(p.Function((x,), (p.add(y, p.Conv2d()(x, *parameters((4, 4, 1, 1)))),))) == [
        "fused_conv2d",
        "fused_conv2d_add",
    ]


def test_a_result_of_another_shape_does_not_join() -> None:
    x, y = p.Var("x", (1, 4, 1, 1)), p.Var("y", (1, 4, 5, 5))
    wide = p.add(p.Conv2d()(x, *parameters((4, 4, 1, 1))), y)
    assert names(p.Function((x, y), (wide,))) == ["fused_conv2d", "fused_add"]
    assert names(p.Function((y,), (p.relu(p.Pad((1, 0, 0, 0))(p.exp(y))),))) == ["fused_exp_pad_relu"]


def test_walks_take_a_step_for_each_node() -> None:
    x: p.Node = p.Var("x", (2,))
    params = (x,)
    for _ in range(2000):
        x = p.add(x, x)
    function = p.Function(params, (x,))  # type: ignore[arg-type]
    assert len(function.calls) == 2000 and len(p.post_dominators(function)) == 2001


# --- loops, schedules, machine code -----------------------------------------------------------------------------------

PLAIN = (
    (p.BlockedConv2d((2, 1), (1, 2)), (1, 2, 5, 6, 2), (2, 2, 3, 2, 2, 8)),
    (p.BlockedConv2d(groups=2), (1, 4, 3, 6, 2), (4, 2, 2, 2, 2, 4)),
    (p.BlockedConv2d(groups=8), (2, 2, 3, 6, 4), (2, 1, 2, 3, 1, 4)),
    (p.Conv2d((1, 2), groups=3), (1, 6, 5, 9), (3, 2, 2, 2)),
    (p.Pool((2, 1), fn="max", window=(2, 3)), (1, 3, 6, 18)),
    (p.Pool(fn="+", window=(4, 4)), (1, 3, 4, 4, 8)),
    (p.Pad((1, 0, 2, 3), -1.5), (1, 3, 4, 5)),
    (p.Unblock(), (1, 2, 3, 8, 4)),
    (p.Reshape((4, 30)), (2, 3, 4, 5)),
    (p.exp, (3, 8)),
)


def run(kernel: p.Kernel, *arrays: Array) -> Array:
    """A kernel's machine code, its parallel loop in two shares."""
    text, (name,) = p.llvm_module([kernel], 8)
    engine = p.machine_code(text)
    found = np.full(kernel.output.shape, np.nan, "float32")
    pointers = [array.ctypes.data for array in (*arrays, found)]
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers), ctypes.c_int64, ctypes.c_int64)
    turns = next((loop.extent for loop in p.loops(kernel.body) if loop.kind == "parallel"), 1)
    for share in sorted({(0, turns // 2 or turns), (turns // 2 or 0, turns)}):
        function(engine.get_function_address(name))(*pointers, *share)
    return found


@pytest.mark.parametrize(
    ("op", "shapes"), [(op, shapes) for op, *shapes in PLAIN], ids=lambda value: getattr(value, "name", "")
)
def test_every_step_of_a_schedule_computes_the_same(op: p.Op, shapes: list[Shape]) -> None:
    arrays = [np.random.default_rng(k).normal(size=shape).astype("float32") for k, shape in enumerate(shapes)]
    expected = op.reference(*arrays)
    for _, kernel in p.schedule(p.lower(op, shapes), 8):
        np.testing.assert_allclose(p.interpret(kernel, *arrays), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(run(kernel, *arrays), expected, rtol=1e-5, atol=1e-5)


def test_the_examples_in_the_file_are_what_it_makes() -> None:
    """Comments that are indented text of kernels and of LLVM IR."""
    shown = FILE.read_text(encoding="utf-8").replace("#     ", "").replace("# ", "")
    steps = p.schedule(p.lower(p.BlockedConv2d(), [(1, 1, 1, 28, 8), (1, 1, 1, 1, 8, 8)]), 8)
    assert str(steps[0][1]) in shown and str(steps[-1][1]) in shown
    assert [name for name, _ in steps[1:]] == ["split(x, 14)", "jam(x_inner)", "vectorize(b)", "parallel(x_outer)"]
    assert all(name in shown for name, _ in steps)
    rectifier = p.schedule(p.lower(p.relu, [(4, 8)]), 8)[-1][1]
    assert "\n".join(str(p.Emitter(rectifier)).splitlines()[1:-3]) in shown


def small() -> p.Kernel:
    x = p.Var("x", (1, 2, 3, 8, 4))
    y = p.BlockedConv2d()(x, *parameters((2, 2, 3, 1, 4, 4)))
    return p.lower(p.fuse_ops(p.Function((x,), (p.relu(y),))).calls[0].op, [x.shape, y.args[1].shape])


def test_the_schedule_of_a_convolution() -> None:
    steps = p.schedule(small(), 4)
    assert [name for name, _ in steps] == ["lower", "jam(x)", "reorder(c, p, k)", "vectorize(b)", "parallel(o)"]
    assert str(steps[-1][1]).splitlines()[1:] == [
        "  parallel o in 2:",
        "    alloc acc[8, 4]:",
        "      unrolled x in 8:",
        "        vectorized b in 4:",
        "          acc[x, b] = 0f",
        "      for c in 2:",
        "        for p in 3:",
        "          for k in 4:",
        "            unrolled x in 8:",
        "              vectorized b in 4:",
        "                acc[x, b] = acc[x, b] + p0[0, c, p, x, k] * p1[o, c, p, 0, k, b]",
        "      unrolled x in 8:",
        "        vectorized b in 4:",
        "          out[0, o, 0, x, b] = max(acc[x, b], 0f)",
    ]


@pytest.mark.parametrize(
    ("step", "arguments", "message"),
    [
        (p.split, ("x", 3), "x has 8 turns, which is not a multiple of 3"),
        (p.split, ("z", 3), "fused_conv2d_blocked_relu has no loop z"),
        (p.vectorize, ("k",), "all turns of k store to acc[], so they depend on each other"),
        (p.jam, ("c",), "all turns of c store to acc[], so they depend on each other"),
        (p.parallel, ("x",), "x is not the outermost loop"),
        (p.reorder, ("o", "c"), "the loops o, c are not nested directly in each other"),
    ],
)
def test_steps_that_would_change_results_are_refused(
    step: p.Callable[..., p.Kernel], arguments: tuple, message: str
) -> None:
    with pytest.raises(p.PrimerError, match=f"^{re.escape(message)}$"):
        step(small(), *arguments)


def test_steps_may_be_combined_otherwise() -> None:
    """Lanes of another axis are loaded and stored one by one."""
    kernel = small()
    arrays = [np.random.default_rng(k).normal(size=b.shape).astype("float32") for k, b in enumerate(kernel.inputs)]
    expected = p.interpret(kernel, *arrays)
    for steps in (
        [(p.vectorize, "x"), (p.jam, "o")],
        [(p.reorder, "b", "x", "o"), (p.vectorize, "o"), (p.parallel, "b")],
        [(p.split, "k", 2), (p.split, "x", 4), (p.vectorize, "b"), (p.vectorize, "x_inner"), (p.jam, "x_outer")],
    ):
        for step, *arguments in steps:
            kernel = step(kernel, *arguments)
        np.testing.assert_allclose(p.interpret(kernel, *arrays), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(run(kernel, *arrays), expected, rtol=1e-5, atol=1e-5)
        kernel = small()


def test_the_interpreter_sees_a_loop_that_is_not_parallel() -> None:
    i, out = p.Index("i"), p.Buffer("out", (4,))
    first, running = p.Store(p.Load(out, (p.Num(0),)), p.Num(1.0)), p.Load(out, (i,))
    body = (first, p.For(i, 3, (p.Store(p.Load(out, (i + 1,)), running + 1.0),)))
    serial = p.Kernel("running", (), out, body)
    parallel = p.replace(serial, body=(first, p.replace(body[1], kind="parallel")))
    assert p.interpret(serial).tolist() == [1, 2, 3, 4]
    assert np.isnan(p.interpret(parallel)).any()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_values_that_live_at_the_same_time_lie_apart() -> None:
    function = [graph for _, graph in p.optimize(p.from_onnx(drawn(5)), 8)][-1]
    spans = p.live_spans(function)
    offsets, size = p.plan_memory(spans)
    places = [(spans[node], offsets[node], offsets[node] + p.bytes_of(node)) for node in spans]
    for k, ((first, last), start, end) in enumerate(places):
        assert 0 <= start < end <= size and start % 64 == 0
        for (other_first, other_last), other_start, other_end in places[:k]:
            apart_in_time = last < other_first or other_last < first
            assert apart_in_time or end <= other_start or other_end <= start
    assert size < sum(map(p.bytes_of, spans))


def test_inputs_of_other_shapes_are_refused() -> None:
    compiled = p.Executable(conv_norm_relu(), lanes=4)
    with pytest.raises(p.PrimerError, match=r"^x has the shape \(1, 8, 6, 6\), not \(8, 6, 6\)$"):
        compiled(np.zeros((8, 6, 6), "float32"))
