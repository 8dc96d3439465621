"""Passes over tensors of no elements: what they make is right, or they decline."""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Module
from minitvm.ir.verify import verify
from minitvm.passes import PassContext, get_pass
from minitvm.testing.checks import as_module

ATTENTION = """def @main(%q: Tensor[(N, 5, 8), float32], %k: Tensor[(N, 7, 8), float32]) {
  %0 = nn.batch_matmul(%q, %k); %1 = nn.softmax(%0, axis=-1);
  nn.batch_matmul(%1, %k, transpose_b=False) }"""
GROUPS = """def @main(%x: Tensor[(2, 6, N, 5), float32], %g: Tensor[(6,), float32]) {
  nn.group_norm(%x, %g, %g, num_groups=3) }"""
SCALED = """def @main(%x: Tensor[(2, N, 5, 5), float32]) {
  %0 = multiply(%x, meta["s"]); nn.relu(nn.conv2d(%0, meta["w"], kernel_size=[1, 1])) }"""
PARALLEL = """def @main(%x: Tensor[(5, 4), float32]) {
  %0 = nn.dense(%x, meta["v"]); %1 = nn.dense(%x, meta["v"]); (add(%0, 1f), add(%1, 2f)) }"""
CASES = {
    "FuseAttention": ATTENTION,
    "SimplifyInference": GROUPS,
    "ForwardFoldScaleAxis": SCALED,
    "BackwardFoldScaleAxis": SCALED,
    "CombineParallelDense": PARALLEL,
}


def results(module: Module, given: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    found = evaluate(module, *given)
    return found if isinstance(found, tuple) else (found,)  # type: ignore[return-value]


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_what_passes_make_of_nothing(name: str, n: int) -> None:
    sizes = {"s": (n, 1, 1), "w": (3, n, 1, 1), "v": (n, 4)}
    constants = {constant: np.full(size, 0.5, "float32") for constant, size in sizes.items()}
    module = as_module(CASES[name].replace("N", str(n)), constants)
    with PassContext(opt_level=3):
        found = get_pass(name)(module)
    verify(found)
    given = [np.ones(p.tensor_type.static_shape, "float32") for p in module.main.params]
    for a, b in zip(results(found, given), results(module, given), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_sizes_that_come_up_inside_are_left_alone() -> None:
    """Behind a Compress: no attention is made of products whose heads nobody counts."""
    text = """def @main(%q: Tensor[(?, 5, 8), float32], %k: Tensor[(?, 7, 8), float32]) {
      %0 = nn.batch_matmul(%q, %k); %1 = nn.softmax(%0, axis=-1);
      nn.batch_matmul(%1, %k, transpose_b=False) }"""
    module = as_module(text)
    assert get_pass("FuseAttention")(module) is module
