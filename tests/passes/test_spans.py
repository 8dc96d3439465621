"""Provenance: after every pass each kernel still names the ONNX nodes that it came from, and only such."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minitvm
from minitvm import relay
from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.driver import optimize
from minitvm.driver.program import read_program
from minitvm.frontend import from_onnx
from minitvm.ir.decision import name_of
from minitvm.ir.expr import Function, Module, span_scope
from minitvm.ir.visitor import calls
from minitvm.passes import PassContext, PassInfo, PassInstrument, PassLog, module_pass

DEMO = pathlib.Path(minitvm.__file__).parent / "demo_data" / "efficientnet_lite0.onnx"


class Net:
    """An ONNX graph whose nodes are named after their operators and positions."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.rng = np.random.default_rng(shape)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def __call__(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}:0"], name, **attributes))
        return f"{name}:0"

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.uniform(0.5, 1.5, shape).astype(np.float32))

    def constant(self, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def model(self, *outputs: str) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", [given], results, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def conv_norm() -> onnx.ModelProto:
    net = Net(1, 16, 6, 6)
    scaled = net("Mul", "x", net.weight(1, 16, 1, 1))
    conv = net("Conv", scaled, net.weight(16, 16, 3, 3))
    norm = net("BatchNormalization", conv, *(net.weight(16) for _ in range(4)))
    return net.model(net("Relu", norm))


def branches() -> onnx.ModelProto:
    net = Net(1, 16, 6, 6)
    parts = [net("Relu", net("Conv", "x", net.weight(8, 16, 1, 1))) for _ in range(3)]
    return net.model(net("Concat", *parts, axis=1))


def chain() -> onnx.ModelProto:
    net = Net(1, 16, 6, 6)
    hidden = net("Relu", net("Conv", "x", net.weight(16, 16, 3, 3)))
    return net.model(net("Conv", hidden, net.weight(16, 16, 3, 3)))


def heads() -> onnx.ModelProto:
    net = Net(4, 16)
    parts = [net("Tanh", net("Gemm", "x", net.weight(8, 16), transB=1)) for _ in range(3)]
    return net.model(*parts)


def transposes() -> onnx.ModelProto:
    net = Net(2, 3, 4)
    there = net("Transpose", "x", perm=[0, 2, 1])
    back = net("Transpose", net("Exp", there), perm=[2, 0, 1])
    twice = net("Transpose", back, perm=[1, 0, 2])
    return net.model(net("Div", net("Sqrt", twice), net.weight(1)))


def tokens() -> onnx.ModelProto:
    net = Net(2, 5, 16)
    product = net("MatMul", "x", net.weight(16, 8))
    return net.model(net("Relu", net("Add", product, net.weight(8))))


def attention() -> onnx.ModelProto:
    net = Net(1, 8, 32)
    heads, rows = net.constant(np.array([1, 8, 2, 16])), net.constant(np.array([1, 8, 32]))
    query, value = (net("Transpose", net("Reshape", net(op, "x"), heads), perm=[0, 2, 1, 3]) for op in ("Tanh", "Exp"))
    scores = net("Mul", net("MatMul", query, net("Transpose", value, perm=[0, 1, 3, 2])), net.weight(1))
    mixed = net("MatMul", net("Softmax", scores, axis=-1), value)
    return net.model(net("Reshape", net("Transpose", mixed, perm=[0, 2, 1, 3]), rows))


def sums() -> onnx.ModelProto:
    net = Net(3, 5)
    mean = net("ReduceMean", "x", keepdims=0)
    return net.model(net("Add", net("Add", mean, net.constant(np.float32(2))), net.constant(np.float32(3))))


def upscale() -> onnx.ModelProto:
    net = Net(1, 8, 5, 5)
    return net.model(net("Relu", net("ConvTranspose", "x", net.weight(8, 8, 2, 2), strides=[2, 2])))


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[str, ...]]] = {
    "conv_norm": (conv_norm, ("SimplifyInference", "ForwardFoldScaleAxis", "BackwardFoldScaleAxis")),
    "branches": (branches, ("CombineParallelConv2D",)),
    "chain": (chain, ("AlterOpLayout",)),
    "heads": (heads, ("CombineParallelDense",)),
    "transposes": (transposes, ("SimplifyExpr",)),
    "tokens": (tokens, ("SinkReshape",)),
    "upscale": (upscale, ("Legalize",)),
    "attention": (attention, ("FuseAttention",)),
    "sums": (sums, ("SimplifyExpr",)),
}


def kernels(model: onnx.ModelProto, **shapes: tuple[int, ...]) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """The spans of each kernel call after the default pipeline at level 3, and the passes that changed something."""
    module, params = from_onnx(model, shape_dict=shapes or None)
    log = PassLog()
    optimized = optimize(module, machine_model(host(), 1), params, opt_level=3, recorder=log)
    nodes = read_program(optimized.main).graph.nodes
    changed = {record.name for record in log.records if record.changed}
    return {node.name: node.spans for node in nodes if not node.is_null}, changed


class Nameless(PassInstrument):
    """The calls that come from nowhere, as (pass, operator)."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        outer = calls(module.main.body)
        inside = [inner for call in outer if isinstance(call.op, Function) for inner in calls(call.op.body)]
        self.found += [(info.name, name_of(call)) for call in (*outer, *inside) if not call.span]


@pytest.mark.parametrize("case", CASES)
def test_all_that_passes_make_comes_from_somewhere(case: str) -> None:
    """What the compiler inserts comes from the nodes that it is inserted for."""
    module, params = from_onnx(CASES[case][0]())
    nameless = Nameless()
    optimize(module, machine_model(host(), 1), params, opt_level=3, recorder=nameless)
    assert nameless.found == []


def names(spans: Iterable[tuple[str, ...]]) -> set[str]:
    return {name for span in spans for name in span}


@pytest.mark.parametrize("case", CASES)
def test_kernels_name_nodes_of_the_model(case: str) -> None:
    build, passes = CASES[case]
    model = build()
    found, changed = kernels(model)
    assert set(passes) <= changed, f"the case does not show {set(passes) - changed}"
    assert found and all(found.values()), found
    assert names(found.values()) <= {node.name for node in model.graph.node}


@pytest.mark.parametrize("case", CASES)
def test_no_node_goes_without_a_word(case: str) -> None:
    model = CASES[case][0]()
    report = minitvm.compile(model).report
    assert report is not None
    for node in model.graph.node:
        assert report.explain(node=node.name).sections


def test_a_replacement_comes_from_all_that_it_stands_for() -> None:
    found, _ = kernels(sums())
    assert [set(spans) for spans in found.values()] == [{"ReduceMean.0"}, {"Add.1", "Add.2"}]
    found, _ = kernels(attention())
    (spans,) = [spans for name, spans in found.items() if "attention" in name]
    assert {name.partition(".")[0] for name in spans} >= {"Transpose", "MatMul", "Mul", "Softmax"}


def test_what_a_pass_leaves_nothing_of_is_told() -> None:
    """Where the pass does not say so itself."""
    with span_scope(("there",)):
        given = Module.from_expr(relay.nn.relu(relay.var("x", shape=(4,))))

    @module_pass(name="Silent")
    def silent(module: Module, context: PassContext) -> Module:
        return Module(Function(module.main.params, module.main.params[0]))

    report = minitvm.build(given, passes=[silent]).report
    assert [str(d) for d in report.decisions][:1] == ["nn.relu [there]: Silent: no call comes from it any more"]


def test_folded_batch_norms_are_remembered_by_the_convolution() -> None:
    found, _ = kernels(conv_norm())
    (spans,) = [spans for name, spans in found.items() if "conv2d" in name]
    assert {"Conv.1", "BatchNormalization.2", "Relu.3"} <= set(spans)


def test_combined_convolutions_are_remembered_by_their_kernel() -> None:
    found, _ = kernels(branches())
    (spans,) = [spans for name, spans in found.items() if "conv2d" in name]
    assert {"Conv.0", "Conv.2", "Conv.4"} <= set(spans)


def test_every_kernel_of_the_demo_model_names_its_nodes() -> None:
    model = onnx.load(DEMO)
    found, _ = kernels(model, image=(1, 3, 224, 224))
    assert len(found) > 40 and all(found.values())
    known = {node.name for node in model.graph.node}
    assert names(found.values()) <= known
    assert {node.name for node in model.graph.node if node.op_type == "Conv"} <= names(found.values())
