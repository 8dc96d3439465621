"""Inputs that are drawn where nobody gave any: the model takes them, and they are not the least of what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import minitvm
from minitvm.lab.inputs import random_inputs
from minitvm.runtime.executor import GraphModule

node, tensor = helper.make_node, helper.make_tensor_value_info
INT64, INT8, FLOAT = TensorProto.INT64, TensorProto.INT8, TensorProto.FLOAT


def drawn(nodes: Sequence[Any], inputs: dict[str, tuple[int, list[int]]], **weights: np.ndarray) -> dict[str, Any]:
    """What is drawn for a model, which has run with it."""
    values = [tensor(name, kind, shape) for name, (kind, shape) in inputs.items()]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "drawn", values, [tensor("y", FLOAT, None)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = GraphModule(minitvm.compile(model, num_threads=1)["default"](minitvm.cpu()))
    found = random_inputs(module, 0)
    module.run(found)
    module.get_output(0).numpy()
    return found


def table(rows: int, width: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, width)).astype("float32")


@pytest.mark.parametrize("rows", [1, 2, 3, 300])
def test_ids_are_rows_of_the_table(rows: int) -> None:
    found = drawn([node("Gather", ["t", "ids"], ["y"])], {"ids": (INT64, [40, 50])}, t=table(rows, 5))["ids"]
    assert found.min() >= 0 and rows / 2 <= found.max() + 1 <= rows


def test_an_id_that_meets_two_tables_is_in_both() -> None:
    nodes = [node("Gather", ["t", "ids"], ["a"]), node("Gather", ["u", "ids"], ["b"]), node("Add", ["a", "b"], ["y"])]
    found = drawn(nodes, {"ids": (INT64, [200])}, t=table(40), u=table(9))["ids"]
    assert 5 <= found.max() < 9


def test_ids_of_eight_bits_are_no_larger_than_those() -> None:
    nodes = [node("Cast", ["ids"], ["wide"], to=INT64), node("Gather", ["t", "wide"], ["y"])]
    assert drawn(nodes, {"ids": (INT8, [200])}, t=table(1000, 100))["ids"].max() > 50


def test_positions_from_two_on_fit() -> None:
    nodes = [node("Add", ["ids", "two"], ["shifted"]), node("Gather", ["t", "shifted"], ["y"])]
    found = drawn(nodes, {"ids": (INT64, [200])}, t=table(60, 20), two=np.array(2))["ids"]
    assert 10 < found.max() < 58


def test_indices_of_several_axes_fit_each() -> None:
    found = drawn([node("GatherND", ["t", "at"], ["y"])], {"at": (INT64, [200, 2])}, t=table(50, 7))["at"]
    assert 3 < found.max() < 7


def test_lengths_lie_within_the_sequence() -> None:
    rng, shapes = np.random.default_rng(1), {"w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24)}
    weights = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    lstm = node("LSTM", ["x", "w", "r", "b", "lengths"], ["y"], hidden_size=3)
    inputs = {"x": (FLOAT, [6, 40, 2]), "lengths": (TensorProto.INT32, [40])}
    found = drawn([lstm], inputs, **weights)["lengths"]
    assert 3 <= found.max() <= 6


@pytest.mark.parametrize(("name", "value"), [("attention_mask", 1), ("padding_mask", 0)])
def test_masks_let_everything_through(name: str, value: int) -> None:
    nodes = [node("Cast", [name], ["wide"], to=FLOAT), node("Mul", ["wide", "x"], ["y"])]
    found = drawn(nodes, {name: (INT64, [8]), "x": (FLOAT, [8])})
    assert found[name].tolist() == [value] * 8
