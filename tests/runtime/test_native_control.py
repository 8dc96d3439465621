"""Loops and choices over compiled bodies: native in one call, as in Python, and as in ONNX Runtime."""

from __future__ import annotations

import pathlib
import signal
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import minitvm
from minitvm import InferenceSession
from minitvm.driver.program import HostCallWarning
from minitvm.errors import CompilerError, InputError
from minitvm.runtime import control, library
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.poison import PoisonedInstance

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
NEWTON = """g (float[3] x, int64 most, float least) => (float[3] y, float[n, 3] all, float[n] gaps) {
  going = Constant<value = bool {1}>()
  half = Constant<value = float {0.5}>()
  y, all, gaps = Loop<body = step (int64 i, bool c, float[3] r) =>
      (bool more, float[3] next, float[3] seen, float gap) {
    q = Div(x, r) s = Add(r, q) next = Mul(s, half) seen = Add(next, x)
    d = Sub(next, r) a = Abs(d) gap = ReduceMax<keepdims = 0>(a) more = Greater(gap, least)
  }>(most, going, x)
}"""
"""Square roots: how many trips there are depends on the data."""

SWAPPED = """g (float[4] a, float[4] b, float[4] c, int64 most) => (float[4] p, float[4] q, float[4] r, float[4] s) {
  t = Constant<value = bool {1}>()
  p, q, r, s = Loop<body = turn (int64 i, bool u, float[4] x, float[4] y, float[4] z, float[4] w) =>
      (bool v, float[4] y1, float[4] x1, float[4] z1, float[4] w1) {
    v = Identity(u) y1 = Identity(y) x1 = Identity(x) z1 = Identity(z) f = Add(x, c) w1 = Sub(f, w)
  }>(most, t, a, b, c, a)
}"""
"""Values change places, stay as they are, and are made of those before."""

NESTED = """g (float[2, 8] x, int64 most) => (float[2, 8] y) {
  t = Constant<value = bool {1}>()
  three = Constant<value = int64 {3}>()
  two = Constant<value = int64 {2}>()
  zero = Constant<value = int64 {0}>()
  y = Loop<body = outer (int64 i, bool c, float[2, 8] r) => (bool c1, float[2, 8] r1) {
    c1 = Identity(c)
    m = Mod(i, two) even = Equal(m, zero)
    s = If<then_branch = e () => (float[2, 8] k) { k = Loop<body = inner (int64 j, bool d, float[2, 8] v) =>
        (bool d1, float[2, 8] v1) { d1 = Identity(d) w = Add(v, x) v1 = Tanh(w) }>(three, t, r) },
      else_branch = o () => (float[2, 8] l) { l = Neg(r) }>(even)
    f = Cast<to = 1>(i) r1 = Add(s, f)
  }>(most, t, x)
}"""
"""A loop in a choice in a loop."""

CHOSEN = """g (float[5] x, int64 k, bool b) => (float[5] y) {
  t = Constant<value = bool {1}>()
  y = Loop<body = step (int64 i, bool c, float[5] r) => (bool c1, float[5] r1) {
    c1 = Identity(c)
    p = Add(i, k) e = Gather(x, p)
    r1 = If<then_branch = u () => (float[5] m) { m = Add(r, e) },
      else_branch = w () => (float[5] n) { n = Sub(r, e) }>(b)
  }>(k, t, x)
}"""
"""Reads at positions that a trip computes; beyond 4 there are none."""


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under poison bodies run kernel by kernel, checked, and control flow in Python."""
    monkeypatch.setenv("MINITVM_POISON", "0")


def session(text: str, **options: Any) -> InferenceSession:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostCallWarning)
        return InferenceSession(parser.parse_model(HEAD + text), **{"num_threads": 1, **options})


def normal(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def scalar(value: Any) -> np.ndarray:
    return np.asarray(value)


def check(text: str, feeds: dict[str, np.ndarray], **options: Any) -> list[np.ndarray]:
    """Twice, and on other values in between: nothing is left over from a run."""
    peer = onnxruntime.InferenceSession(
        parser.parse_model(HEAD + text).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    made = session(text, **options)
    others = {name: -array if array.dtype == np.float32 and array.ndim else array for name, array in feeds.items()}
    for given in (feeds, others, feeds):
        found = made.run(None, given)
        for mine, theirs in zip(found, peer.run(None, given), strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert made.host_calls == []
    return found


@pytest.mark.parametrize("trips", [0, 1, 5, 100])
@pytest.mark.parametrize("least", [1e-3, -1.0])
@pytest.mark.usefixtures("native")
def test_a_loop_whose_length_depends_on_its_data(trips: int, least: float) -> None:
    """Stacks outgrow their memory, and are as long as there were trips."""
    feeds = {"x": np.float32([2, 9, 30]), "most": scalar(trips), "least": np.asarray(least, np.float32)}
    _, rows, _ = check(NEWTON, feeds)
    assert len(rows) == trips if least < 0 else 0 <= len(rows) <= min(trips, 12)


@pytest.mark.parametrize("trips", [0, 1, 40])
@pytest.mark.parametrize("text", [NEWTON, SWAPPED, NESTED], ids=["stacks", "carried", "nested"])
def test_over_poisoned_memory(text: str, trips: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies kernel by kernel, checked, in Python; then natively, with the same bits."""
    monkeypatch.setenv("MINITVM_POISON", "1")
    called: list[int] = []
    found = library.control_step
    monkeypatch.setattr(library, "control_step", lambda *a: (called.append(a[1]), found(*a))[1])
    made = session(text)
    floats = [v for v in made.get_inputs() if v.shape and v.type == "tensor(float)"]
    values = {v.name: np.abs(normal(*map(int, v.shape), seed=i)) for i, v in enumerate(floats)}
    least = {"least": np.asarray(-1.0, np.float32)} if text is NEWTON else {}
    check(text, {**values, **least, "most": scalar(min(trips, 5) if text is NESTED else trips)})
    assert called


def test_what_native_control_flow_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", "1")
    monkeypatch.setattr(library, "control_step", lambda *_: lambda: None)
    with pytest.raises(CompilerError, match=r"control_loop gives another result 0, .*, without Python than with it"):
        session(SWAPPED).run(None, {**{name: normal(4) for name in "abc"}, "most": scalar(2)})


def test_stacks_are_their_values_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run left is not written to by the next one."""
    monkeypatch.setenv("MINITVM_POISON", "0")
    instance = minitvm.compile(parser.parse_model(HEAD + NEWTON), num_threads=1)["default"]()
    least = np.asarray(-1.0, np.float32)
    for name, value in {"x": np.float32([2, 9, 30]), "most": scalar(9), "least": least}.items():
        instance.assign(name, value)
    instance.run()
    rows = [instance.value(head) for head in instance.graph.heads[1:]]
    before = [array.copy() for array in rows]
    instance.assign("x", np.float32([3, 5, 7]))
    instance.run()
    assert all(map(np.array_equal, rows, before))


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
@pytest.mark.usefixtures("native")
def test_carried_values_that_change_places(trips: int) -> None:
    feeds = {name: normal(4, seed=seed) for seed, name in enumerate("abc")}
    check(SWAPPED, {**feeds, "most": scalar(trips)})


@pytest.mark.parametrize("trips", [0, 1, 2, 5])
@pytest.mark.usefixtures("native")
def test_control_flow_in_control_flow(trips: int) -> None:
    check(NESTED, {"x": normal(2, 8), "most": scalar(trips)})


@pytest.mark.usefixtures("native")
def test_an_index_that_a_trip_computes_wrongly() -> None:
    """The check of a body ends the loop, names the node, and leaves the session usable."""
    made = session(CHOSEN)
    feeds = {"x": normal(5), "b": scalar(True)}
    with pytest.raises(InputError, match=r"index 5 is outside of dimension 0 of Tensor\[\(5,\), float32\]") as error:
        made.run(None, {**feeds, "k": scalar(3)})
    assert "Gather" in str(error.value)
    check(CHOSEN, {**feeds, "k": scalar(2)})
    np.testing.assert_allclose(made.run(None, {**feeds, "k": scalar(1)})[0], feeds["x"] + feeds["x"][1], rtol=1e-6)


@pytest.mark.usefixtures("native")
def test_a_saved_library_has_it(tmp_path: pathlib.Path) -> None:
    made = minitvm.compile(parser.parse_model(HEAD + NESTED), num_threads=1)
    feeds = {"x": normal(2, 8), "most": scalar(4)}
    made.save(tmp_path / "nested.mtvm")
    before, after = (GraphModule(lib["default"]()) for lib in (made, minitvm.load(tmp_path / "nested.mtvm")))
    for module in (before, after):
        module.run(feeds)
    np.testing.assert_array_equal(before.get_output(0).numpy(), after.get_output(0).numpy())


@pytest.mark.usefixtures("native")
def test_on_several_threads() -> None:
    """A body that is worth a team: every thread runs the loop, one moves the values."""
    text = """g (float[256, 256] x, int64 most) => (float[256, 256] y, float[n, 256, 256] all) {
      t = Constant<value = bool {1}>()
      y, all = Loop<body = step (int64 i, bool c, float[256, 256] r) =>
          (bool c1, float[256, 256] r1, float[256, 256] s) {
        c1 = Identity(c) m = MatMul(r, x) r1 = Tanh(m) s = Neg(r1)
      }>(most, t, x)
    }"""
    feeds = {"x": normal(256, 256) / 16, "most": scalar(20)}
    one, three = (session(text, num_threads=n).run(None, feeds) for n in (1, 3))
    for a, b in zip(one, three, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("native")
def test_an_endless_loop_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal that comes between some trips and the next ones."""
    monkeypatch.setattr(control, "AT_ONCE", 100)
    make_room, ends = control._Trips._make_room, list[int]()

    def watched(trips: Any, made: int) -> None:
        make_room(trips, made)
        some = trips.some

        def interrupted() -> None:
            some()
            ends.append(int(trips.record[control._MADE]))
            if len(ends) == 3:
                signal.raise_signal(signal.SIGINT)

        trips.some = interrupted

    monkeypatch.setattr(control._Trips, "_make_room", watched)
    text = """g (float[2] x) => (float[2] y) {
      t = Constant<value = bool {1}>()
      y = Loop<body = step (int64 i, bool c, float[2] r) => (bool c1, float[2] r1) {
        r1 = Tanh(r) s = ReduceMax<keepdims = 0>(r1) l = Constant<value = float {9.0}>() c1 = Less(s, l)
      }>(, t, x)
    }"""
    made = session(text)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs that ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            made.run(None, {"x": normal(2)})
    finally:
        signal.signal(signal.SIGINT, before)
    assert ends == [100, 200, 300]


def test_poisoned_bodies_are_checked_kernel_by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in every trip, before control flow runs without Python."""
    ran: list[int] = []
    step = PoisonedInstance.kernel_step

    def counted(instance: PoisonedInstance, index: int) -> Callable[[], None]:
        run = step(instance, index)
        return lambda: (ran.append(index), run())[1]

    monkeypatch.setattr(PoisonedInstance, "kernel_step", counted)
    made = session(SWAPPED)
    (body,) = made.libraries[0].branches.values()
    kernels = sum(node.is_kernel for node in body.graph.nodes)
    feeds = {name: normal(4, seed=seed) for seed, name in enumerate("abc")}
    for trips in (0, 3):
        ran.clear()
        made.run(None, {**feeds, "most": scalar(trips)})
        outside = sum(node.is_kernel for node in made.libraries[0].graph.nodes)
        assert kernels and len(ran) == outside + trips * kernels
