"""A session says what is wrong with a model when it is made, though its dimensions are open."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import minitvm
from minitvm import InferenceSession
from minitvm.errors import ConfigError, FrontendError, TargetError

OPEN = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 3] x) => (float[N, 3] y) <float[3] w = {1, 2, 3}> { y = Add (x, w) }"""


def text(body: str) -> onnx.ModelProto:
    return parser.parse_model(OPEN.replace("y = Add (x, w)", body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = Softmax <axes = 1> (x)", "Softmax: opset 17 has no attribute 'axes'"),
        ("y = Add (x, z)", "value 'z' is read but never produced"),
        ("y = Add (y, x)", "the graph has a cycle"),
        ("z = Add (x, x)", "output 'y' is never produced"),
        ("y = Add (x)", "Add: takes 2 inputs, 1 given"),
        ("y = Shape (x)", "output 'y' is int64; the model says float32"),
        ("d = Constant <value = double {1.0}> () y = Clip (x, d)", "Clip: input 1 is float64, input 0 float32"),
        ("k = Constant <value = int64[1] {1}> () z, i = TopK (x, k) y = Identity (i)", "output 'y' is int64"),
        ("y = Undo (x)", "operators that minitvm cannot import: Undo"),
    ],
)
def test_nodes(body: str, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        InferenceSession(text(body))


SHAPES = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 4] x, float[N, 3] z, float[N, 3, 16, 16] image, double[N, 4] wide) => (BODY
        <float[3] three = {1, 2, 3}, float[4] four = {1, 2, 3, 4}, float[4, 5] w = {WEIGHTS}, int64[1] one = {1},
         int64[2] sizes = {1, 2}, int64[3] some = {0, 0, 1}, int64[1] seven = {7}, int64[2] twice = {1, 1},
         int64[2] below = {-2, 4}, int64[1] number = {0}, float[3] scales = {1, 1, 2}> NODES"""

MISFITS = [
    ("y = [n] MatMul (z, w)", "inner dimensions differ: Tensor[(N, 3), float32] and Tensor[(5, 4), float32]"),
    ("y = [n] Gemm (z, w)", "inner dimensions differ: Tensor[(N, 3), float32] and Tensor[(5, 4), float32]"),
    (
        "y = [n] Gemm <transB = 1> (x, w)",
        "inner dimensions differ: Tensor[(N, 4), float32] and Tensor[(4, 5), float32]",
    ),
    ("y = [n] Add (x, three)", "shapes do not broadcast: Tensor[(N, 4), float32] and Tensor[(3,), float32]"),
    ("y = [n] Add (x, z)", "shapes do not broadcast: Tensor[(N, 4), float32] and Tensor[(N, 3), float32]"),
    ("y = [n] Add (x, wide)", "Add: input 1 is float64, input 0 float32"),
    ("y = [n] Not (x)", "input 0 is float32; opset 17 allows bool"),
    (
        "y = [n] Concat <axis = 1> (x, image)",
        "ranks differ: Tensor[(N, 4), float32] and Tensor[(N, 3, 16, 16), float32]",
    ),
    ("y = [n] Concat <axis = 0> (x, z)", "dimension 1 differs: Tensor[(N, 4), float32] and Tensor[(N, 3), float32]"),
    ("y = [n] Conv (image, w)", "takes as many spatial axes of each, 1 at least"),
    ("y = [n] MaxPool <kernel_shape = [3]> (image)", "attribute kernel_shape=[3] has 1 numbers for 2 spatial axes"),
    ("y = [n] MaxPool <kernel_shape = [3, 3], pads = [1, 1]> (image)", "2 pads for 2 spatial axes"),
    ("y = [n] BatchNormalization (image, four, four, four, four)", "gamma must be (3,), one number for each place"),
    ("y = [n] Gather <axis = 5> (x, one)", "axis 5 is outside a tensor of rank 2"),
    ("y = [n] Transpose <perm = [0, 1, 2]> (x)", "3 axes given for rank 2"),
    ("y = [n] Transpose <perm = [0, 0]> (x)", "an axis is repeated in [0, 0]"),
    ("y = [n] Softmax <axis = 3> (x)", "axis 3 is outside a tensor of rank 2"),
    ("y = [n] Squeeze (x, one)", "dimension 1 of Tensor[(N, 4), float32] is 4, not 1"),
    (
        "y, v = [n] Split <axis = 1> (x, sizes)",
        "the sizes [1, 2] do not add up to dimension 1 of Tensor[(N, 4), float32]",
    ),
    ("y = [n] Slice (x, some, some)", "axis 2 is outside a tensor of rank 2"),
    ("y = [n] Unsqueeze (x, seven)", "axis 7 is outside a tensor of rank 3"),
    ("y = [n] ReduceSum (x, seven)", "axis 7 is outside a tensor of rank 2"),
    ("y = [n] Pad (x, some)", "3 pads for 2 axes"),
    ("y = [n] Tile (x, some)", "3 repeats for 2 axes"),
    ("y, v = [n] TopK <axis = 1> (x, seven)", "k is 7, but dimension 1 of Tensor[(N, 4), float32] is 4"),
    ("y = [n] Where (mask, x, z)", "shapes do not broadcast"),
    ("y = [n] Resize (image, , scales)", "3 scales for 4 axes"),
    ("y = [n] Flatten <axis = 5> (x)", "axis 5 is outside a tensor of rank 2"),
    ("y = [n] Unsqueeze (x, twice)", "an axis is repeated in [1, 1]"),
    ("y = [n] Reshape (x, below)", "the shape [-2, 4] has extents below -1"),
    ("y = [n] OneHot (number, one, four)", "values are Tensor[(4,), float32], not two numbers"),
    ("h = MatMul (x, w)  y = [n] MatMul (h, w)", "inner dimensions differ: Tensor[(N, 5), float32]"),
]


def misfit(nodes: str) -> bytes:
    filled = SHAPES.replace("WEIGHTS", ", ".join("1" * 20)).replace("NODES", f"{{ {nodes} }}")
    mask = ", bool[N, 4] mask" if "mask" in nodes else ""
    outputs = "float[A, B] y)" if "v =" not in nodes else "float[A, B] y, float[A, B] v)"
    model = parser.parse_model(filled.replace(") => (BODY", f"{mask}) => ({outputs}").replace("[n] ", ""))
    model.graph.node[-1].name = "n"
    for output in model.graph.output:
        output.ClearField("type")
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(("nodes", "message"), MISFITS, ids=[nodes for nodes, _ in MISFITS])
def test_shapes_that_never_fit(nodes: str, message: str) -> None:
    """Whatever the open batch is, and as often as it is opened; ONNX Runtime refuses all of them as well."""
    for _ in range(2):
        with pytest.raises(minitvm.MiniTVMError) as caught:
            InferenceSession(misfit(nodes))
        assert message in caught.value.message
        assert any('ONNX node "n"' in line for line in caught.value.where)
    theirs = pytest.importorskip("onnxruntime")
    theirs.set_default_logger_severity(4)
    with pytest.raises(Exception, match=r"[Nn]ode"):
        theirs.InferenceSession(misfit(nodes), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "text",
    [
        "(float[N, 4] x) => (float[N, 3] y) <int64[2] s = {0, 3}> { y = Reshape (x, s) }",  # right for no elements
        "(float[N] x, float[3] z) => (float[N] y) { y = Add (x, z) }",  # right for 3, and 1
        "(float[1, 1, 8, 8] x, float[1, 1, K, K] w) => (float[1, 1, A, A] y)"
        " { y = Conv <kernel_shape = [3, 3]> (x, w) }",  # right for 3
        "(float[1, 1, H, W] x) => (float[1, 1, H, W] y) <float[4] s = {1, 1, 0.5, 0.5}, float[4] t = {1, 1, 2, 2}>"
        " { h = Resize (x, , s)  u = Resize (h, , t)  y = Add (x, u) }",  # right for even ones
        "(float[1, 3, H, W] x) => (float[1, 3, H, W] y)"
        ' { y = MaxPool <kernel_shape = [3, 3], auto_pad = "SAME_UPPER"> (x) }',
    ],
)
def test_what_some_sizes_fit_is_not_refused(text: str) -> None:
    InferenceSession(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}'))


def test_weights(tmp_path: pathlib.Path) -> None:
    model = parser.parse_model(OPEN)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    InferenceSession(tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(b"")
    with pytest.raises(FrontendError, match=r"w\.bin has 0 bytes"):
        InferenceSession(tmp_path / "m.onnx")
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FrontendError, match=r"external data 'w\.bin' does not exist"):
        InferenceSession(tmp_path / "m.onnx")
    short = parser.parse_model(OPEN)
    short.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [3], bytes(12), raw=True))
    short.graph.initializer[0].raw_data = bytes(8)
    with pytest.raises(FrontendError, match="does not fill its shape"):
        InferenceSession(short)


def test_weights_of_branches() -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["v"], ["b"])], "branch", [], [onnx.ValueInfoProto(name="b")],
        [numpy_helper.from_array(np.ones(1), "v")],
    )  # fmt: skip
    inner.initializer[0].raw_data = bytes(3)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, ["N"])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph([node], "g", [condition], [onnx.ValueInfoProto(name="y")])
    with pytest.raises(FrontendError, match="does not fill its shape"):
        InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"opt_level": 4}, ConfigError, "opt_level is 4"),
        ({"num_threads": -1}, ConfigError, "num_threads is -1"),
        ({"target": "llvm -mcpu=nothing"}, TargetError, "nothing"),
        ({"target": "abacus"}, TargetError, "abacus"),
        ({"shape_dict": {"z": (1,)}}, minitvm.MiniTVMError, "shape_dict names 'z'"),
        ({"specialisations": 0}, ConfigError, "specialisations is 0"),
    ],
)
def test_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        InferenceSession(parser.parse_model(OPEN), **options)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ("y = GroupNormalization <num_groups = 3> (x, scale, scale)", (2, 9, 4)),
        ("y, z = Split <axis = 1> (x, sizes)", (2, 36, 4)),
    ],
)
def test_what_only_some_sizes_fit_is_left_to_runs(nodes: str, shape: tuple[int, ...]) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 21]> g (float[2, N, 4] x, float[N] scale) => (float[a, b, c] y)
            <int64[2] sizes = {{33, 3}}> {{ {nodes} }}"""
    )
    if "scale)" not in nodes:
        del model.graph.input[1]
    x, scale = np.ones(shape, np.float32), np.ones(shape[1], np.float32)
    feeds = {"x": x, "scale": scale} if len(model.graph.input) > 1 else {"x": x}
    (found, *_) = InferenceSession(model).run(None, feeds)
    assert found.shape[::2] == shape[::2]
