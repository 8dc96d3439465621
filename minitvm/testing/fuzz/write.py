"""A failing case as a test file that needs nothing but minitvm, numpy and onnx."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from minitvm.testing.fuzz.case import Arrays, Case, subgraphs

_LITERAL = 64
"""Arrays of more elements are written as bytes."""

_TEMPLATE = '''"""Found by minitvm.testing.fuzz (--replay {seed}:{index}), then shrunk.

{message}
"""

from __future__ import annotations

import base64  # noqa: F401

import numpy as np
import onnx
from numpy import inf, nan  # noqa: F401
from onnx import TensorProto, helper, numpy_helper  # noqa: F401

import minitvm
from minitvm.runtime.executor import GraphModule  # noqa: F401


def unpacked(text: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def model() -> onnx.ModelProto:
{model}


FEEDS = {feeds}
EXPECTED = {expected}


def test_fuzz_{seed}_{index}(tmp_path) -> None:
{run}
    for feeds, expected in zip(FEEDS, EXPECTED, strict=True):
        for found, want in zip(run(feeds), expected or [], strict=False):
            assert (found.dtype, found.shape) == (want.dtype, want.shape)
            half = want.dtype == np.float16
            np.testing.assert_allclose(found, want, rtol=4e-3 if half else 1e-4, atol=1e-3 if half else 1e-5)
'''


def write(
    case: Case,
    expected: Sequence[Sequence[np.ndarray] | None],
    seed: int,
    index: int,
    message: str,
    folder: pathlib.Path,
) -> pathlib.Path:
    """Writes ``test_fuzz_SEED_INDEX.py`` and the model beside it; returns the test's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"test_fuzz_{seed}_{index}.py"
    text = _TEMPLATE.format(
        seed=seed,
        index=index,
        message=message.replace("\\", "\\\\").replace('"""', "'''"),
        model=_model(case),
        feeds="[" + ", ".join(_dictionary(feeds) for feeds in case.feeds) + "]",
        expected="[" + ", ".join("None" if e is None else _list(map(_array, e)) for e in expected) + "]",
        run=_run(case),
    )
    path.write_text(text, encoding="utf-8")
    onnx.save(case.model(), str(path.with_suffix(".onnx")))
    return path


def _list(items: Iterable[str]) -> str:
    return "[" + ", ".join(items) + "]"


def _dictionary(arrays: Arrays) -> str:
    return "{" + ", ".join(f"{name!r}: {_array(a)}" for name, a in arrays.items()) + "}"


def _array(array: np.ndarray) -> str:
    if array.size <= _LITERAL:
        return f"np.array({array.tolist()!r}, {array.dtype.name!r}).reshape({array.shape!r})"
    text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return f"unpacked({text!r}, {array.dtype.name!r}, {array.shape!r})"


def _model(case: Case) -> str:
    """The body of ``model()``: calls of ``onnx.helper``, or the file's bytes where there are sub-graphs."""
    if any(subgraphs(node) for node in case.nodes):
        text = base64.b64encode(case.model().SerializeToString()).decode()
        return f"    return onnx.load_from_string(base64.b64decode({text!r}))"
    proto = case.model()
    nodes = "".join(f"            {_node(node)},\n" for node in proto.graph.node)
    inputs = _list(map(_info, proto.graph.input))
    outputs = _list(map(_info, proto.graph.output))
    weights = _list(f"numpy_helper.from_array({_array(a)}, {n!r})" for n, a in case.constants.items())
    return (
        f'    graph = helper.make_graph(\n        [\n{nodes}        ],\n        "case",\n        {inputs},\n'
        f"        {outputs},\n        {weights},\n    )\n"
        f'    opsets = [helper.make_opsetid("", {case.opset}), helper.make_opsetid("com.microsoft", 1)]\n'
        "    return helper.make_model(graph, opset_imports=opsets, ir_version=10)"
    )


def _info(value: onnx.ValueInfoProto) -> str:
    inner = value.type.tensor_type
    dims = [d.dim_param or d.dim_value for d in inner.shape.dim] if inner.HasField("shape") else None
    return f"helper.make_tensor_value_info({value.name!r}, {inner.elem_type}, {dims!r})"


def _node(node: onnx.NodeProto) -> str:
    attributes = "".join(f", {a.name}={_attribute(a)}" for a in node.attribute)
    domain = f", domain={node.domain!r}" if node.domain else ""
    return f"helper.make_node({node.op_type!r}, {list(node.input)!r}, {list(node.output)!r}{domain}{attributes})"


def _attribute(proto: onnx.AttributeProto) -> str:
    if proto.type == onnx.AttributeProto.TENSOR:
        return f"numpy_helper.from_array({_array(numpy_helper.to_array(proto.t))})"
    value = helper.get_attribute_value(proto)
    return repr(list(value) if proto.type == onnx.AttributeProto.INTS else value)


def _run(case: Case) -> str:
    """The lines that make ``run``, feeds to results, as the case's configuration says."""
    config = case.config
    if config.way == "session":
        options = f"target={config.target!r}, num_threads={config.threads}, opt_level={config.level}"
        lines = [
            f"session = minitvm.InferenceSession(model(), {options})",
            "",
            "def run(feeds):",
            "    return session.run(None, feeds)",
        ]
    else:
        saved = ['library.save(tmp_path / "case.mtvm")', 'library = minitvm.load(tmp_path / "case.mtvm")']
        lines = [
            f"library = minitvm.compile(model(), {config.target!r}, {config.level}, num_threads={config.threads})",
            *(saved if config.way == "saved" else []),
            f'module = GraphModule(library["default"](None, {config.threads}))',
            "",
            "def run(feeds):",
            *("    for name, array in feeds.items():", "        module.set_input(name, array)"),
            *("    module.run()", "    return module.outputs()"),
        ]
    return "\n".join(f"    {line}" if line else "" for line in [*lines, ""])
