"""Sessions read inputs where they are and hand out memory that kernels wrote: never shared, whatever callers keep."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import minitvm
from minitvm.ir.arrays import address_of
from minitvm.runtime.direct import WORTH_BINDING, Recycled

LARGE = (WORTH_BINDING // 4 // 64 + 3, 64)
"""A shape whose float32 values are passed by their address; the small one's are copied."""
SMALL = (3, 5)


@pytest.fixture(params=["0", "1"], ids=["plain", "poisoned"])
def poison(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", request.param)


def session(shape: tuple[int, ...], threads: int = 1) -> minitvm.InferenceSession:
    """sum: a + b; same: a, unchanged; twice: sum again; flat: a * b as one row; line: a as one."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Identity", ["a"], ["same"]),
        helper.make_node("Identity", ["sum"], ["twice"]),
        helper.make_node("Mul", ["a", "b"], ["product"]),
        helper.make_node("Reshape", ["product", "row"], ["flat"]),
        helper.make_node("Reshape", ["a", "row"], ["line"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "ab"]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("sum", "same", "twice", "flat", "line")]
    row = helper.make_tensor("row", TensorProto.INT64, [2], [1, -1])
    graph = helper.make_graph(nodes, "g", inputs, outputs, [row])
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    return minitvm.InferenceSession(model, num_threads=threads)


def check(found: list[np.ndarray], a: np.ndarray, b: np.ndarray) -> None:
    for one, other in zip(found, (a + b, a, a + b, (a * b).reshape(1, -1), a.reshape(1, -1)), strict=True):
        np.testing.assert_array_equal(one, other)


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_results_stay_as_they_were_whatever_runs_later(shape: tuple[int, ...], threads: int) -> None:
    run, kept = session(shape, threads).run, []
    for seed in range(3):
        a, b = drawn(shape, seed), drawn(shape, seed + 10)
        kept.append((run(None, {"a": a, "b": b}), a.copy(), b.copy()))
        a[...] = b[...] = 0
    for found, a, b in kept:
        check(found, a, b)
    arrays = [array for found, _, _ in kept for array in found]
    assert not any(np.shares_memory(x, y) for i, x in enumerate(arrays) for y in arrays[:i])


def shifted(array: np.ndarray) -> np.ndarray:
    """The same values, an element off any vector's boundary."""
    memory = np.empty(array.size + 1, array.dtype)
    memory[1:] = array.ravel()
    return memory[1:].reshape(array.shape)


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same values, a byte off an element's boundary."""
    memory = np.empty(array.nbytes + 1, np.uint8)
    memory[1:] = array.ravel().view(np.uint8)
    return memory[1:].view(array.dtype).reshape(array.shape)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize(
    "given",
    [shifted, unaligned, np.asfortranarray, lambda x: x[::-1], lambda x: x.astype(">f4"), lambda x: x.tolist()],
    ids=["shifted", "unaligned", "columns first", "backwards", "other byte order", "list"],
)
def test_inputs_may_lie_in_memory_in_any_way(shape: tuple[int, ...], given) -> None:  # type: ignore[no-untyped-def]
    a, b = drawn(shape, 0), drawn(shape, 1)
    run = session(shape).run
    check(run(None, {"a": given(a), "b": b}), np.asarray(given(a), np.float32), b)
    check(run(None, {"a": b, "b": b}), b, b)


@pytest.mark.usefixtures("poison")
def test_inputs_are_not_written_and_may_be_read_only() -> None:
    a, b = drawn(LARGE, 0), drawn(LARGE, 1)
    before = a.copy(), b.copy()
    a.setflags(write=False)
    check(session(LARGE).run(None, {"a": a, "b": b}), *before)
    assert np.array_equal(a, before[0]) and np.array_equal(b, before[1])


@pytest.mark.usefixtures("poison")
def test_some_results_in_any_order() -> None:
    a, b = drawn(LARGE, 0), drawn(LARGE, 1)
    flat, total = session(LARGE).run(["flat", "sum"], {"b": b, "a": a})
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(flat, (a * b).reshape(1, -1))


def test_addresses_are_those_that_numpy_names() -> None:
    whole = np.arange(24.0).reshape(4, 6)
    others = np.empty(0), np.array(3), np.ma.masked_array(whole), whole.view("uint8")
    for array in (whole, whole[2:, 1:], whole.T, *others):
        assert address_of(array) == array.ctypes.data


def test_memory_is_used_again_where_nobody_holds_any_part_of_it() -> None:
    memory, type_ = Recycled(40_000), ((100, 100), np.dtype("float32"))
    first = memory.array(*type_)
    part, address = first[3:], address_of(first)
    del first
    assert address_of(memory.array(*type_)) != address, "a view of a result that is in use was handed out again"
    part[...] = 1
    views = [memoryview(memory.array(*type_)) for _ in range(3)]
    known = {view.obj.ctypes.data for view in views}
    assert len(known) == 3
    del views
    assert address_of(memory.array(*type_)) in known


def test_the_last_runs_results_may_be_held_while_new_ones_are_made() -> None:
    memory, type_, found = Recycled(40_000), ((100, 100), np.dtype("float32")), None
    places = set()
    for _ in range(6):
        found = memory.array(*type_)
        places.add(address_of(found))
    assert len(places) == 2
