"""Runs of a library for all shapes, in memory that was planned for other sizes."""

from __future__ import annotations

import threading

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm
from minitvm.driver import backend_for, build_consuming
from minitvm.ir.builder import call_op, var
from minitvm.ir.dims import assumptions
from minitvm.ir.expr import Function, Module, Tuple
from minitvm.runtime.bind import DoesNotFit
from minitvm.runtime.bound import MOST_PLANS, SizePlans, rounded_up
from minitvm.runtime.devices import Memory
from minitvm.runtime.direct import How
from minitvm.runtime.library import Library

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", "0")


def longer(threads: int = 1) -> Library:
    """A cache with new rows, the sum of its rows, the cache as it came, and the first result again."""
    with assumptions():
        past, new = var("past", shape=(2, "p", 40)), var("new", shape=(2, "s", 40))
        whole = call_op("concatenate", [past, call_op("nn.relu", new)], axis=1)
        total = call_op("sum", call_op("exp", whole), axis=(1,))
        function = Function([past, new], Tuple((whole, total, past, whole)))
        return build_consuming(Module(function), {}, backend_for("llvm", threads))


def drawn(p: int, s: int) -> dict[str, np.ndarray]:
    return {n: RNG.standard_normal((2, k, 40), np.float32) for n, k in (("past", p), ("new", s))}


def require_right(library: Library, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    kept = {name: value.copy() for name, value in feeds.items()}
    got: list[np.ndarray] = library.at({name: value.shape for name, value in feeds.items()}).call(feeds)
    whole = np.concatenate([kept["past"], np.maximum(kept["new"], 0)], axis=1)
    for found, want in zip(got, (whole, np.exp(whole).sum(1), kept["past"], whole), strict=True):
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=1e-5)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(got) for b in (*got[:i], *feeds.values()) if a.size)
    return got


@pytest.fixture(scope="module")
def library() -> Library:
    return longer()


SIZE = st.one_of(st.integers(0, 5), st.integers(0, 300))


@settings(max_examples=60)
@given(sizes=st.lists(st.tuples(SIZE, SIZE), min_size=1, max_size=4))
def test_sizes_one_after_the_other(library: Library, sizes: list[tuple[int, int]]) -> None:
    for p, s in sizes:
        require_right(library, drawn(p, s))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 100, 1 << 20, (1 << 20) + 1])
def test_room_is_a_quarter_at_most(size: int) -> None:
    assert size <= rounded_up(size) <= size * 1.25 and rounded_up(rounded_up(size)) == rounded_up(size)


def test_a_growing_cache_is_planned_a_few_times_and_copied_nowhere_else(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    original = SizePlans._made
    monkeypatch.setattr(SizePlans, "_made", lambda self, values: made.append(values) or original(self, values))
    past, places = drawn(64, 1)["past"], set()
    for _ in range(60):
        past = require_right(library, {"past": past, "new": drawn(0, 1)["new"]})[0]
        places.add(past.ctypes.data)
    assert len(made) <= 5 and past.shape == (2, 124, 40)
    assert len(places) <= 2 * len(made)


def test_sizes_that_grow_together_have_one_plan_for_each_doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of a cache is a power of two in one run, that with the new row in the run before."""
    made: list[object] = []
    original = SizePlans._made
    monkeypatch.setattr(SizePlans, "_made", lambda self, values: made.append(values) or original(self, values))
    with assumptions():
        past, mask = var("past", shape=("p", 8)), var("mask", shape=("t",))
        function = Function([past, mask], Tuple((call_op("exp", past), call_op("nn.relu", mask))))
        library = build_consuming(Module(function), {}, backend_for("llvm", 1))
    for p in range(130, 260):
        feeds = {"past": np.ones((p, 8), "f"), "mask": np.full(p + 1, -1, "f")}
        shapes = {name: value.shape for name, value in feeds.items()}
        for found, want in zip(library.at(shapes).call(feeds), (np.exp(feeds["past"]), 0 * feeds["mask"]), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-6)
    assert len(made) == 3, made  # to 160, 256 and 512


def test_as_many_rooms_are_kept_as_are_to_be(library: Library) -> None:
    for p in range(8, 8 + 16 * (MOST_PLANS + 3), 16):
        require_right(library, drawn(p, 2))
    assert len(library._plans._kept) == MOST_PLANS


def test_rooms_lie_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that a run has written are there for the next one, whatever its sizes; what grows a little finds room."""
    library, asked = longer(), list[int]()
    original = Memory.empty

    def empty(self: Memory, shape: tuple[int, ...], dtype: str) -> object:
        asked.extend(shape if dtype == "uint8" else ())
        return original(self, shape, dtype)

    monkeypatch.setattr(Memory, "empty", empty)
    for p in (300, 9, 17, 330, 40, 300, 9, 900, 350):
        require_right(library, drawn(p, 2))
    lent, planned = library._plans._arenas._idle, [r.library.plan.nbytes for r in library._plans._kept.values() if r]
    assert len(lent) == 1 and len(planned) > 4
    assert sum(nbytes in asked for nbytes in {2 * (n + 64) for n in planned}) == 2


def test_inputs_that_kernels_cannot_read_and_results_into_arrays(library: Library) -> None:
    feeds = drawn(9, 4)
    turned = {n: np.ascontiguousarray(a.transpose(1, 0, 2)).transpose(1, 0, 2) for n, a in feeds.items()}
    wanted = require_right(library, feeds)
    into = np.zeros((2, 13, 40), np.float32)
    call = library.at({name: value.shape for name, value in feeds.items()})
    got = call.call(turned, How({0: into}))
    assert got[0] is into
    for found, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(found, want)


def test_threads_have_memory_of_their_own() -> None:
    library, errors = longer(2), list[BaseException]()

    def work() -> None:
        try:
            for p in range(1, 60):
                require_right(library, {"past": np.full((2, p, 40), 0.5, "f"), "new": np.full((2, 3, 40), 2, "f")})
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_sizes_that_it_is_not_for() -> None:
    with assumptions():
        a, b = var("a", shape=("n", 3)), var("b", shape=("m", 3))
        library = build_consuming(Module(Function([a, b], a + b)), {}, backend_for("llvm", 1))
    with pytest.raises(DoesNotFit, match="does not hold"):
        library.at({"a": (4, 3), "b": (1, 3)})
    one = np.ones((70, 3), "f")
    (got,) = library.at({"a": one.shape, "b": one.shape}).call({"a": one, "b": one})
    np.testing.assert_array_equal(got, one + one)


def test_sizes_of_which_rounded_ones_are_none() -> None:
    """100 - n elements: there are none of n rounded up from 97."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[n] x) => (float[m] z) <int64[1] whole={100}>
        { n = Shape(x) m = Sub(whole, n) rest = ConstantOfShape(m) z = Exp(rest) }""")
    session = minitvm.InferenceSession(model.SerializeToString(), num_threads=1)
    for size in (3, 40, 97, 99, 100, 41):
        (got,) = session.run(None, {"x": np.zeros(size, "f")})
        np.testing.assert_array_equal(got, np.ones(100 - size))
    assert len(session.libraries) == 1
