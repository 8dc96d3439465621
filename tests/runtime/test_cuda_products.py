"""Matrix products by cuBLAS on a GPU: two steps of one graph, and the native numbers."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import TargetError
from minitvm.runtime.cuda.driver import gpu
from minitvm.runtime.cuda.libraries import cublas
from minitvm.testing import assert_allclose

RNG = np.random.default_rng(5)


def missing() -> str:
    """Why cuBLAS cannot be called here."""
    try:
        return str(gpu(0) and cublas() and "")
    except TargetError as error:
        return f"{error.message}; {error.hint}"


REASON = missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]


def compared(function: relay.Function) -> minitvm.Library:
    """The function for cuBLAS, once two runs' results have been found to be the CPU's."""
    found = minitvm.build(relay.Module(function), f"cuda -arch={gpu(0).arch} -libs=cublas")
    native = minitvm.build(relay.Module(function), "llvm")
    for _ in range(2):
        feeds = {p.name: RNG.normal(size=p.type.static_shape).astype(p.type.dtype) for p in function.params}  # type: ignore[union-attr]
        for have, want in zip(found.run(feeds), native.run(feeds), strict=True):
            assert_allclose(have, want, rtol=1e-4, atol=1e-4)
    return found


def steps(library: minitvm.Library) -> list[str]:
    return [f"{type(n.step).__name__} {n.name}" for n in library.graph.nodes if n.step is not None]


def test_between_kernels_and_saved(tmp_path: pathlib.Path) -> None:
    x, weight = relay.var("x", shape=(9, 20)), relay.const(RNG.normal(size=(13, 20)).astype("float32"))
    library = compared(relay.Function([x], relay.nn.relu(relay.nn.dense(relay.exp(x), weight))))
    assert steps(library) == ["Launch fused_exp", "LibraryCall cublas_nn_dense", "Launch fused_nn_relu"]
    library.save(tmp_path / "layer.mtvm")
    feeds = {"x": RNG.normal(size=(9, 20)).astype("float32")}
    np.testing.assert_array_equal(minitvm.load(tmp_path / "layer.mtvm").run(feeds)[0], library.run(feeds)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("swapped", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batches", [(3, 3), (3, 1), (1, 3)])
def test_products(batches: tuple[int, int], swapped: tuple[bool, bool], dtype: str) -> None:
    m, n, k = 5, 7, 6
    a = relay.var("a", shape=(batches[0], *((k, m) if swapped[0] else (m, k))), dtype=dtype)
    b = relay.var("b", shape=(batches[1], *((n, k) if swapped[1] else (k, n))), dtype=dtype)
    made = relay.nn.batch_matmul(a, b, transpose_a=swapped[0], transpose_b=swapped[1])
    assert [step.split()[0] for step in steps(compared(relay.Function([a, b], made)))] == ["LibraryCall"]
