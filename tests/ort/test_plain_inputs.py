"""A run takes arrays as they are where nothing has to be checked one by one; all others are met as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import minitvm
from minitvm.errors import MiniTVMError
from minitvm.ort.binding import IOBinding
from tests.steps import steps

CACHES = 24


def model(caches: int = 2) -> ModelProto:
    """Rows, scaled, behind those of each cache."""
    names = range(caches)
    inputs = ", ".join(f"float[b, 3, past, 4] past{k}" for k in names)
    outputs = ", ".join(f"float[b, 3, total, 4] present{k}" for k in names)
    nodes = "\n".join(f"y{k} = Mul (x, past_scale) present{k} = Concat <axis = 2> (past{k}, y{k})" for k in names)
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[b, 3, n, 4] x, {inputs}) => ({outputs}) <float past_scale = {{2.0}}> {{ {nodes} }}""")


def feeds(new: int, past: int, caches: int = 2, batch: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(past)
    shapes = {"x": (batch, 3, new, 4), **{f"past{k}": (batch, 3, past, 4) for k in range(caches)}}
    return {name: rng.normal(size=shape).astype("f") for name, shape in shapes.items()}


def check(session: minitvm.InferenceSession, given: dict[str, Any]) -> None:
    found = session.run(None, given)
    for k, one in enumerate(found):
        np.testing.assert_array_equal(one, np.concatenate([given[f"past{k}"], np.multiply(given["x"], 2)], 2))


def test_a_run_at_a_new_length_takes_a_few_lines_for_each_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 for an input and its result; 98 where each array is looked at by itself."""
    monkeypatch.setenv("MINITVM_POISON", "0")  # poisoned memory is of one run

    def lines(caches: int) -> int:
        session = minitvm.InferenceSession(model(caches), num_threads=1)
        for past in (33, 34, 35):
            check(session, feeds(1, past, caches))
        given = feeds(1, 36, caches)
        found = steps(lambda: session.run(None, given))
        assert len(session.libraries) == 1
        return found

    few, many = lines(CACHES), lines(2 * CACHES)
    assert (many - few) / CACHES < 60


def bound_step(session: minitvm.InferenceSession, new: Any, past: int, caches: int, room: int = 64) -> IOBinding:
    """A step whose caches are first places of memory, changed where they lie."""
    binding = session.io_binding()
    binding.bind_cpu_input("x", new)
    for k in range(caches):
        memory = minitvm.OrtValue.ortvalue_from_shape_and_type((1, 3, room, 4), np.float32)
        binding.bind_ortvalue_input(f"past{k}", memory.first(past, 2))
        binding.bind_ortvalue_output(f"present{k}", memory.first(past + 1, 2))
    return binding


def test_so_does_one_whose_caches_are_changed_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """208 for a cache and its memory; 274 where each array is looked at by itself."""
    monkeypatch.setenv("MINITVM_POISON", "0")

    def lines(caches: int) -> int:
        session, new = minitvm.InferenceSession(model(caches), num_threads=1), np.ones((1, 3, 1, 4), "f")
        for past in (33, 34, 35):
            session.run_with_iobinding(bound_step(session, new, past, caches))
        binding = bound_step(session, new, 36, caches)
        found = steps(lambda: session.run_with_iobinding(binding))
        assert len(session.grown) == caches and len(session.libraries) == 1
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy()[:, :, -1], 2)
        wrong = bound_step(session, new.astype("f8"), 36, caches)
        with pytest.raises(MiniTVMError, match="'x' is float64, the model expects float32"):
            session.run_with_iobinding(wrong)
        return found

    assert (lines(12) - lines(6)) / 6 < 230


def big_endian(x: np.ndarray) -> np.ndarray:
    return x.astype(">f4")


def strided(x: np.ndarray) -> np.ndarray:
    return np.repeat(x, 2, axis=-1)[..., ::2]


class Own(np.ndarray):
    """A class of somebody's own."""


RIGHT: dict[str, Callable[[np.ndarray], Any]] = {
    "big-endian": big_endian,
    "strided": strided,
    "a list": lambda x: x.tolist(),
    "a subclass": lambda x: x.view(Own),
    "read-only": lambda x: np.broadcast_to(x, x.shape),
    "a value": minitvm.OrtValue.ortvalue_from_numpy,
}
WRONG: dict[str, Callable[[np.ndarray], Any]] = {
    "dtype": lambda x: x.astype("f8"),
    "rank": lambda x: x[0],
    "a fixed dimension": lambda x: x[:, :2],
    "a name of two sizes": lambda x: np.concatenate([x, x]),
    "nothing": lambda x: None,
    "text": lambda x: np.full(x.shape, "1.0"),
}


@pytest.fixture(scope="module")
def warm() -> minitvm.InferenceSession:
    session = minitvm.InferenceSession(model(), num_threads=1)
    check(session, feeds(2, 5))
    return session


@pytest.mark.parametrize("which", ["x", "past0", "past1"])
@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_not_plain_is_converted(warm: minitvm.InferenceSession, kind: str, which: str) -> None:
    for past in (5, 6):
        given = feeds(2, past)
        check(warm, given | {which: RIGHT[kind](given[which])} if kind != "a value" else given)
        found = warm.run(None, given | {which: RIGHT[kind](given[which])})
        for one, other in zip(found, warm.run(None, given), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("which", ["x", "past0", "past1"])
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_said_as_in_a_first_run(warm: minitvm.InferenceSession, kind: str, which: str) -> None:
    given = feeds(2, 5) | {which: WRONG[kind](feeds(2, 5)[which])}
    assert said(warm, given) == said(minitvm.InferenceSession(model(), num_threads=1), given)
    check(warm, feeds(2, 7))


@pytest.mark.parametrize("change", [lambda f: f.pop("x"), lambda f: f.update(more=f["x"])], ids=["missing", "unknown"])
def test_names_are_checked(warm: minitvm.InferenceSession, change: Callable[[dict[str, Any]], Any]) -> None:
    given = feeds(2, 5)
    change(given)
    assert said(warm, given) == said(minitvm.InferenceSession(model(), num_threads=1), given)


def test_a_bound_that_was_declared_holds_in_every_run() -> None:
    shape = {"past0": ("b", 3, "past<=8", 4)}
    session = minitvm.InferenceSession(model(), num_threads=1, shape_dict=shape)
    for past in (6, 8):
        check(session, feeds(1, past))
    with pytest.raises(MiniTVMError, match=r"dimension 2 is declared as past<=8"):
        session.run(None, feeds(1, 9))


def test_shapes_that_came_again_have_kernels_of_their_own_still() -> None:
    session = minitvm.InferenceSession(model(), num_threads=1, specialise_after=2)
    for _ in range(3):
        check(session, feeds(1, 5))
    worker = session._engine.worker
    assert worker is not None
    worker.submit(int).result()
    check(session, feeds(1, 5))
    assert len(session.libraries) == 2


def said(session: minitvm.InferenceSession, given: dict[str, Any]) -> str:
    with pytest.raises(MiniTVMError) as error:
        session.run(None, given)
    return str(error.value)
