"""Thousands of calls: nothing recurses over the graph, and no stage takes quadratic time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from minitvm.driver import optimize
from minitvm.driver.program import read_program
from minitvm.frontend import from_onnx
from minitvm.ir.expr import Module
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import structural_equal, structural_hash
from minitvm.ir.text import module_constants
from minitvm.ir.verify import verify
from minitvm.ir.visitor import calls
from minitvm.runtime.memory import plan_memory
from minitvm.target import MachineModel
from tests.steps import assert_linear

MACHINE = MachineModel(vector_bytes=32, vector_registers=16, threads=2)
FEW, MANY = 1250, 5000
NODES_A_BLOCK = 5


def chain(nodes: int) -> onnx.ModelProto:
    """Blocks of MatMul, Add, Relu, Mul and a residual Add, one after the other."""
    rng = np.random.default_rng(nodes)
    graph_nodes, weights, last = [], [], "x"

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name))
        return name

    def node(kind: str, *inputs: str) -> str:
        graph_nodes.append(helper.make_node(kind, inputs, [f"v{len(graph_nodes)}"]))
        return graph_nodes[-1].output[0]

    for i in range(nodes // NODES_A_BLOCK):
        y = node("Add", node("MatMul", last, weight(f"w{i}", 4, 4)), weight(f"b{i}", 4))
        last = node("Add", node("Mul", node("Relu", y), weight(f"s{i}", 4)), last)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x", last)]
    graph = helper.make_graph(graph_nodes, "chain", value[:1], value[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def import_and_plan(model: onnx.ModelProto) -> tuple[Module, Module, int]:
    """(as imported, optimized, planned bytes)."""
    module, params = from_onnx(model)
    optimized = optimize(module, MACHINE, params, 3)
    plan = plan_memory(read_program(optimized.main).graph)
    assert plan.nbytes <= 1.2 * plan.lower_bound
    return module, optimized, plan.nbytes


@pytest.fixture
def shallow_stack() -> Iterator[None]:
    """Room for a few hundred more frames only."""
    limit, frame, depth = sys.getrecursionlimit(), sys._getframe(), 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    sys.setrecursionlimit(depth + 400)
    yield
    sys.setrecursionlimit(limit)


def test_no_stage_recurses_over_the_graph(shallow_stack: None) -> None:
    module, optimized, _ = import_and_plan(chain(MANY))
    assert len(calls(module.main.body)) >= MANY
    assert len(calls(optimized.main.body)) < MANY / 2, "nothing was fused"
    for tree in (module, optimized):
        verify(tree)
        parsed = parse_module(tree.astext(), module_constants(tree))
        assert structural_equal(parsed, tree)
        assert structural_hash(parsed) == structural_hash(tree)


def test_time_and_memory_grow_with_the_graph_not_with_its_square() -> None:
    few, many = (import_and_plan(chain(nodes))[2] for nodes in (FEW, MANY))
    assert few == many, "a chain needs as much memory however long it is"
    assert_linear(lambda nodes: partial(import_and_plan, chain(nodes)), FEW // 5)
