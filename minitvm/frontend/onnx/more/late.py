"""Nodes whose builders need numbers that come up inside the model: imported in a run, when these are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from minitvm.errors import InputError, MiniTVMError
from minitvm.frontend.onnx.importer import from_onnx
from minitvm.frontend.onnx.more.foreign import parsed
from minitvm.frontend.onnx.types import proto_of_type
from minitvm.ir.evaluate import evaluate
from minitvm.ir.types import type_of


def evaluator(node: str, opset: int) -> Callable[..., Sequence[Any]]:
    """The evaluator of a node that is given as protobuf's JSON, over arrays alone, as that of ``foreign``."""
    proto = parsed(node)
    names = [name for name in proto.input if name]

    def run(*arrays: np.ndarray) -> list[Any]:
        given = dict(zip(names, arrays, strict=True))
        try:
            module, _ = from_onnx(_alone(proto, opset, given), value_dict=given)
        except MiniTVMError as error:
            raise InputError(error.message, hint=error.hint) from error
        found = evaluate(module)
        return list(found) if isinstance(found, tuple) else [found]

    return run


def _alone(node: onnx.NodeProto, opset: int, given: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A model of that node, whose inputs are like these arrays."""
    inputs = [onnx.ValueInfoProto(name=name, type=proto_of_type(type_of(array))) for name, array in given.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
