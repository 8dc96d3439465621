"""Small ONNX models for tests, and running what is imported from them through numpy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from minitvm.errors import MiniTVMError
from minitvm.frontend import describe_onnx, from_onnx
from minitvm.ir.evaluate import evaluate

SHARED = Path(os.environ.get("MINITVM_SHARED", Path(__file__).parents[2].parent / "shared"))


def value(name: str, array_or_shape: Any, dtype: str = "float32") -> onnx.ValueInfoProto:
    """A graph input or output like an array, or of a shape (names and ``None`` allowed)."""
    if isinstance(array_or_shape, (np.ndarray, np.generic)):
        dtype, array_or_shape = array_or_shape.dtype.name, array_or_shape.shape
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), array_or_shape)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model that does not say what its outputs are."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        list(inputs),
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    domains = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))


def one_node(
    op_type: str,
    *inputs: np.ndarray,
    opset: int = 21,
    constants: Mapping[int, np.ndarray] | None = None,
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node: inputs ``x0, x1, ...``; those in ``constants`` (by position) are initializers."""
    fixed = {f"x{i}": array for i, array in (constants or {}).items()}
    count = len(inputs) + len(fixed)
    free = iter(inputs)
    named = {f"x{i}": next(free) for i in range(count) if f"x{i}" not in fixed}
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, [f"x{i}" for i in range(count)], results, name="the_node", **attributes)
    return build([node], [value(n, a) for n, a in named.items()], results, fixed, opset)


def run(model: Any, feeds: Mapping[str, np.ndarray], **options: Any) -> tuple[np.ndarray, ...]:
    """Imports a model with the feeds' shapes and evaluates it: the outputs."""
    shapes = {name: array.shape for name, array in feeds.items()}
    module, params = from_onnx(model, shape_dict=shapes, **options)
    names = [v.name for v in describe_onnx(model).inputs]
    result = evaluate(module, *(feeds[name] for name in names), *params.values())
    return result if isinstance(result, tuple) else (result,)


def error_of(kind: type[MiniTVMError], model: Any, **options: Any) -> str:
    """The whole text of the error, which must be of that very class."""
    with pytest.raises(kind) as caught:
        from_onnx(model, **options)
    assert type(caught.value) is kind
    return str(caught.value)
