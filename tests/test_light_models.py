"""The nine light models of the onnx package with weights drawn at random, compiled, against ONNX Runtime."""

from __future__ import annotations

import gc

import model_zoo
import numpy as np
import onnx
import pytest
from redraw import NAMES, redrawn

from minitvm import InferenceSession

IMAGE = (1, 3, 224, 224)
ort = pytest.importorskip("onnxruntime", reason="ONNX Runtime tells what the outputs must be")


def with_scores(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what its softmax reads as another output: random scores are large, and their softmax is often
    one class that has it all, which hides errors."""
    read = [node.input[0] for node in model.graph.node if node.op_type == "Softmax"]  # densenet121 has none
    for name in read:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return model


def test_there_are_nine() -> None:
    assert len(NAMES) == 9


KINDS = ("light_bvlc_alexnet", "light_densenet121", "light_resnet50", "light_shufflenet")
"""Of every kind of layer one: the others are made of the same."""


@pytest.mark.parametrize("name", [n if n in KINDS else pytest.param(n, marks=pytest.mark.more) for n in NAMES])
def test_outputs_are_onnx_runtimes(name: str) -> None:
    model = with_scores(redrawn(name, seed=11)).SerializeToString()
    theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    image = np.random.default_rng(12).standard_normal(IMAGE, dtype=np.float32)
    feeds = {theirs.get_inputs()[0].name: image}
    expected = theirs.run(None, feeds)
    del theirs
    session = InferenceSession(model, num_threads=2)
    for have, want in zip(session.run(None, feeds), expected, strict=True):
        print(f"{name:24} largest error {model_zoo.error(have, want):.1e}")
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        assert model_zoo.excess(name, have, want) <= 1
    assert np.unique(expected[-1]).size > 500, "the scores are all the same: the weights are not random"
    assert session.host_calls == []
    gc.collect()  # half a gigabyte of weights each
