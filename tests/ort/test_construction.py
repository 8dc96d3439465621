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
        ("y = Undo (x)", "operators that minitvm cannot import: Undo"),
    ],
)
def test_nodes(body: str, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        InferenceSession(text(body))


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
