"""ONNX Runtime as the oracle of small models: its outputs, or that it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_build import run

import minitvm
from minitvm.runtime.executor import GraphModule


def onnx_runtime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Its outputs, without the optimisations that change results; raises what it raises."""
    runtime = pytest.importorskip("onnxruntime")
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for output in typed.graph.output:
        output.ClearField("type")
    typed = onnx.shape_inference.infer_shapes(typed)
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(typed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(found) for found in session.run(None, dict(feeds))]


def onnx_runtime_refuses(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> bool:
    try:
        onnx_runtime(model, feeds)
    except Exception as error:
        assert type(error).__module__.startswith("onnxruntime"), error
        return True
    return False


def compiled(model: Any, feeds: Mapping[str, np.ndarray], opt_level: int = 3, threads: int = 1) -> list[np.ndarray]:
    shapes = {name: array.shape for name, array in feeds.items()}
    library = minitvm.compile(model, opt_level=opt_level, num_threads=threads, shape_dict=shapes)
    module = GraphModule(library["default"](minitvm.cpu()))
    for name, array in feeds.items():
        module.set_input(name, array)
    module.run()
    return module.outputs()


def check_same(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6, steps: int = 0) -> None:
    """Floats up to a tolerance, integers up to ``steps``; dtypes and shapes exactly."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol)
        else:
            assert np.all(np.abs(mine.astype(np.float64) - theirs.astype(np.float64)) <= steps), (mine, theirs)


def check_as_onnx_runtime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], **tolerance: Any) -> None:
    """The same through numpy and through kernels."""
    expected = onnx_runtime(model, feeds)
    check_same(run(model, feeds), expected, **tolerance)
    check_same(compiled(model, feeds), expected, **tolerance)
