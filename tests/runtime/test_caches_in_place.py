"""Caches of keys and values that a run changes where they lie: bound as input and as output, and what keeps it so."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from onnx import TensorProto, helper

import minitvm
from minitvm.ir.arrays import address_of
from minitvm.ort.values import OrtValue
from minitvm.runtime.direct import meeting, span_of

SHAPE, STEPS = (2, 3, 64, 32), 2
"""Of a cache: sequences, heads, places, size; and places that a run writes."""


@pytest.fixture(params=["0", "1"], ids=["plain", "poisoned"], autouse=True)
def _poison(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", request.param)


def session(*more: object, outputs: tuple[str, ...] = ("present",), threads: int = 1) -> minitvm.InferenceSession:
    """Grouped-query attention over a buffer: ``y`` of ``past`` and new keys and values."""
    batch, heads, places, size = SHAPE
    shapes = {"q": (batch, STEPS, heads * size), "k": (batch, STEPS, heads * size), "v": (batch, STEPS, heads * size)}
    caches = {"past": ["batch", heads, "places", size], "values": ["batch", heads, "places", size]}
    nodes = [
        helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "past", "values", "last", "total"],
            ["y", "present", "new_values"],
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=heads,
        ),
        *more,
    ]
    floats = {**shapes, **caches}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in floats.items()]
    inputs.append(helper.make_tensor_value_info("last", TensorProto.INT32, ["batch"]))
    total = helper.make_tensor("total", TensorProto.INT32, [1], [places])
    ends = [helper.make_empty_tensor_value_info(n) for n in dict.fromkeys(("y", *outputs))]
    graph = helper.make_graph(nodes, "g", inputs, ends, [total])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return minitvm.InferenceSession(helper.make_model(graph, opset_imports=opsets), num_threads=threads)


def fed(seed: int = 0, before: tuple[int, int] = (5, 9)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch, heads, _, size = SHAPE
    new = {n: rng.normal(size=(batch, STEPS, heads * size)).astype("float32") for n in "qkv"}
    caches = {n: rng.normal(size=SHAPE).astype("float32") for n in ("past", "values")}
    return {**new, **caches, "last": np.array(before, "int32") + STEPS - 1}


def expected(feeds: dict[str, np.ndarray], cleared: bool) -> np.ndarray:
    """The cache of keys after a run."""
    batch, heads, _, size = SHAPE
    found, new = feeds["past"].copy(), feeds["k"].reshape(batch, STEPS, heads, size).transpose(0, 2, 1, 3)
    for b, last in enumerate(feeds["last"]):
        found[b, :, last + 1 - STEPS : last + 1] = new[b]
        if cleared:
            found[b, :, last + 1 :] = 0
    return found


def ran(s: minitvm.InferenceSession, feeds: dict[str, np.ndarray], cache: np.ndarray, **others: np.ndarray) -> None:
    """A run whose ``present`` is the memory of ``cache``, which is the past as well."""
    binding = s.io_binding()
    for name, array in {**feeds, "past": cache}.items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
    for name, array in {"present": cache, **others}.items():
        binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))
    s.run_with_iobinding(binding)


def aligned(array: np.ndarray, shift: int = 0) -> np.ndarray:
    """A copy so many bytes behind a boundary of 64."""
    memory = np.zeros(array.nbytes + 128, "uint8")
    start = -address_of(memory) % 64 + shift
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


@pytest.mark.parametrize("threads", [1, 3])
def test_new_places_are_written_and_no_others(threads: int) -> None:
    """What lies behind them tells: zeros where the cache was copied, as poisoned ones are, else what was there."""
    s, feeds, poisoned = session(threads=threads), fed(), os.environ["MINITVM_POISON"] == "1"
    for shift, cleared in ((0, poisoned), (4, True), (0, poisoned)):
        cache = aligned(feeds["past"], shift)
        ran(s, feeds, cache)
        np.testing.assert_array_equal(cache, expected(feeds, cleared))


def test_steps_in_place_give_what_new_arrays_give() -> None:
    s, feeds = session(outputs=("present", "new_values")), fed()
    keys, values = aligned(feeds["past"]), aligned(feeds["values"])
    for step in range(4):
        feeds |= {
            n: a for n, a in fed(step + 1, (5 + step * STEPS, 9 + step * STEPS)).items() if n not in ("past", "values")
        }
        y, *caches = s.run(["y", "present", "new_values"], feeds)
        found = np.zeros_like(y)
        ran(s, {**feeds, "values": values}, keys, y=found, new_values=values)
        np.testing.assert_array_equal(found, y)
        feeds |= dict(zip(("past", "values"), caches, strict=True))


@pytest.mark.parametrize(
    ("op", "inputs"), [("Neg", ["past"]), ("Identity", ["past"]), ("Add", ["past", "present"])], ids=str
)
def test_a_cache_that_others_read(op: str, inputs: list[str]) -> None:
    s, feeds = session(helper.make_node(op, inputs, ["z"]), outputs=("present", "z")), fed()
    cache, z = aligned(feeds["past"]), np.zeros(SHAPE, "float32")
    ran(s, feeds, cache, z=z)
    past, now = feeds["past"], cache.copy()
    assert any(np.array_equal(cache, expected(feeds, cleared)) for cleared in (False, True))
    np.testing.assert_array_equal(z, {"Neg": -past, "Identity": past, "Add": past + now}[op])


def test_memory_that_overlaps_is_copied() -> None:
    s, feeds = session(), fed()
    memory = aligned(np.zeros(feeds["past"].size + 16, "float32"))
    past, present = (memory[i : i + feeds["past"].size].reshape(SHAPE) for i in (0, 16))
    past[...] = feeds["past"]
    ran(s, feeds, past, present=present)
    np.testing.assert_array_equal(present, expected(feeds, cleared=True))


def test_arrays_that_have_bytes_in_common() -> None:
    memory = np.zeros((8, 8), "float32")
    arrays = {
        "all": memory, "row": memory[2], "next": memory[3], "column": memory[:, 1], "back": memory[::-1][4:6],
        "none": memory[3:3], "apart": np.zeros(3),
    }  # fmt: skip
    for count in range(1, len(arrays) + 1):
        for some in itertools.combinations(arrays, count):
            met = {a for a in some if any(a != b and np.may_share_memory(arrays[a], arrays[b]) for b in some)}
            assert meeting({name: span_of(arrays[name]) for name in some}) == met, some
