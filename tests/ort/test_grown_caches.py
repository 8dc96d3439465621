"""Caches that grow by concatenation, changed where they lie: bound to first places of memory with room."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import parser

import minitvm
from minitvm.ort.errors import BindingError
from minitvm.ort.values import OrtValue
from tests.small_decoders import attends

ROOM, HEADS, SIZE = 24, 3, 8
WIDTH = HEADS * SIZE
MARK = 7.0
"""What lies behind the places in use, and stays there unless a cache was copied."""


@pytest.fixture(params=["0", "1"], ids=["plain", "poisoned"], autouse=True)
def _poison(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", request.param)


def layer(body: str, axis: int = 2, opset: str = '"": 17', y: str = "float[a, c, d, e] y") -> onnx.ModelProto:
    """``keys`` grows by ``k`` to ``more``; what else there is of it is the body's."""
    shape = ["b", str(HEADS), str(SIZE)]
    shape.insert(axis, "past")
    grown, new = (", ".join([*shape[:axis], n, *shape[axis + 1 :]]) for n in ("total", "length"))
    return parser.parse_model(
        f"""<ir_version: 10, opset_import: [{opset}]>
        layer (float[{", ".join(shape)}] keys, float[{new}] k) => (float[{grown}] more, {y})
        <int64[1] axis = {{{axis}}}, float two = {{2.0}}> {{ {body} }}"""
    )


FORMS = {
    "alone": layer("more = Concat<axis = 2>(keys, k) y = Neg(k)"),
    "counted from the end": layer(
        "more = Concat<axis = -2>(keys, k) y = ReduceSum<keepdims = 0>(more, axis)", y="float[a, c, d] y"
    ),
    "places first": layer("more = Concat<axis = 1>(keys, k) y = Mul(more, two)", axis=1),
    "places last": layer("more = Concat<axis = 3>(keys, k) y = Mul(more, two)", axis=3),
    "the past is read": layer("more = Concat<axis = 2>(keys, k) s = ReduceSum(keys, axis) t = Sub(more, s) y = Abs(t)"),
    "its size is": layer(
        "more = Concat<axis = 2>(keys, k) n = Shape(keys) f = Cast<to = 1>(n) y = Identity(f)", y="float[4] y"
    ),
    "handed out twice": layer("more = Concat<axis = 2>(keys, k) y = Identity(more)"),
}


Bound = dict[str, tuple[OrtValue, str, OrtValue]]
"""By input: what there is, the output's name, what becomes of it."""


def run(s: minitvm.InferenceSession, feeds: dict[str, np.ndarray], bound: Bound) -> list[np.ndarray]:
    """Results but for the caches, which are bound."""
    binding = s.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name, (past, output, present) in bound.items():
        binding.bind_ortvalue_input(name, past)
        binding.bind_ortvalue_output(output, present)
    rest = [o.name for o in s.get_outputs() if o.name not in {output for _, output, _ in bound.values()}]
    for name in rest:
        binding.bind_output(name)
    s.run_with_iobinding(binding)
    return [value.numpy() for value in binding.get_outputs()[len(bound) :]]


def memory(shape: list[int]) -> OrtValue:
    value = OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
    value.numpy()[...] = MARK
    return value


@pytest.mark.parametrize("form", FORMS)
def test_new_places_are_written_and_no_others(form: str) -> None:
    s = minitvm.InferenceSession(FORMS[form], num_threads=1)
    [(cache, _, axis)] = [(n, o, a) for n, (o, a) in s._engine.description.grown.items()]
    assert dict(s.grown) == {cache: "more"}
    rng, used = np.random.default_rng(1), 0
    shape = [ROOM if d == "past" else 2 if d == "b" else d for d in s.get_inputs()[0].shape]
    held, past = memory(shape), np.zeros([0 if d == ROOM else d for d in shape], "float32")
    for length in (5, 1, 3, 1, ROOM - 10):
        k = rng.normal(size=[length if d == ROOM else d for d in shape]).astype("float32")
        past, *wanted = s.run(None, {"keys": past, "k": k})
        found = run(s, {"k": k}, {"keys": (held.first(used, axis), "more", held.first(used + length, axis))})
        used += length
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(held.first(used, axis).numpy(), past)
        assert (np.moveaxis(held.numpy(), axis, 0)[used:] == MARK).all()


def test_attention_of_steps_by_one_library() -> None:
    """Two caches, a mask by places; a longer memory needs no other library."""
    s, rng = minitvm.InferenceSession(attends(HEADS, SIZE), num_threads=1), np.random.default_rng(2)
    for room in (ROOM, 2 * ROOM):
        held, used = {name: memory([2, HEADS, room, SIZE]) for name in s.grown}, 0
        caches = {name: np.zeros((2, HEADS, 0, SIZE), "float32") for name in s.grown}
        for length in (6, 1, 1, 3):
            feeds = {"x": rng.normal(size=(2, length, WIDTH)).astype("float32")}
            y, *grown = s.run(None, {**feeds, **caches})
            caches = dict(zip(caches, grown, strict=True))
            bound = {n: (v.first(used, 2), s.grown[n], v.first(used + length, 2)) for n, v in held.items()}
            used += length
            np.testing.assert_allclose(run(s, feeds, bound)[0], y, rtol=1e-5, atol=1e-5)
            for name, value in held.items():
                np.testing.assert_allclose(value.first(used, 2).numpy(), caches[name], rtol=1e-6)
    assert len(s.libraries) == 2  # for new arrays and for memory


def test_memory_that_is_not_the_pasts_is_written_as_ever() -> None:
    s = minitvm.InferenceSession(FORMS["counted from the end"], num_threads=1)
    k, past = (np.random.default_rng(3).normal(size=(2, HEADS, n, SIZE)).astype("float32") for n in (2, 4))
    wanted = np.concatenate([past, k], axis=2)
    for shift in range(4):
        one, other = memory([2, HEADS, ROOM, SIZE]), memory([2, HEADS, ROOM, SIZE])
        whole = one.numpy().reshape(-1)
        before, after = {
            0: (one.first(4, 2), other.first(6, 2)),
            1: (one.first(4, 2), OrtValue(one.numpy()[:, :, 2:8])),  # two places behind it
            2: (one.first(4, 2), memory([2, HEADS, 6, SIZE])),
            3: (OrtValue(whole[1:-7][: 2 * HEADS * 4 * SIZE].reshape(2, HEADS, 4, SIZE)), other.first(6, 2)),
        }[shift]
        before.numpy()[...] = past
        run(s, {"k": k}, {"keys": (before, "more", after)})
        np.testing.assert_array_equal(after.numpy(), wanted)


def test_caches_in_memory_of_two_lengths() -> None:
    s, rng = minitvm.InferenceSession(attends(HEADS, SIZE), num_threads=1), np.random.default_rng(4)
    held = {name: memory([1, HEADS, room, SIZE]) for name, room in zip(s.grown, (ROOM, ROOM + 1), strict=True)}
    feeds = {"x": rng.normal(size=(1, 5, WIDTH)).astype("float32")}
    y, *caches = s.run(None, {**feeds, **{name: value.first(0, 2).numpy() for name, value in held.items()}})
    bound = {name: (value.first(0, 2), s.grown[name], value.first(5, 2)) for name, value in held.items()}
    np.testing.assert_allclose(run(s, feeds, bound)[0], y, rtol=1e-5)
    for value, cache in zip(held.values(), caches, strict=True):
        np.testing.assert_array_equal(value.first(5, 2).numpy(), cache)


def test_more_places_than_there_are() -> None:
    held = memory([1, HEADS, ROOM, SIZE])
    with pytest.raises(BindingError, match=rf"float32\[1, {HEADS}, {ROOM}, {SIZE}\] has not 25 places along axis 2"):
        held.first(ROOM + 1, 2)
    assert held.first(4, -2).shape() == [1, HEADS, 4, SIZE]


@pytest.mark.skipif(os.environ.get("MINITVM_POISON") == "1", reason="the same either way")
def test_what_is_no_cache_that_grows() -> None:
    for text in (
        "more = Concat<axis = 2>(k, keys) y = Neg(k)",
        "twice = Concat<axis = 2>(keys, k) more = Neg(twice) y = Neg(k)",
        "more = Concat<axis = 0>(keys, k) y = Neg(k)",
    ):
        assert not minitvm.InferenceSession(layer(text)).grown
