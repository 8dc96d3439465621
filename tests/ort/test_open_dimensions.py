"""Models all of whose dimensions are open, with 0 and 1 among the sizes, every buffer between guard pages."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import ModelProto, parser

import minitvm
from minitvm.errors import MiniTVMError
from tests import guarded, open_graphs
from tests.fuzz import subject
from tests.fuzz.case import Case
from tests.fuzz.worker import Crash, Worker

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
ATTENTION = """g (float[N, T, 3] x) => (float[M, T, 3] y) <float s = {0.5}> {
  %s
  k = Transpose <perm = [0, 2, 1]> (c)
  a = MatMul (c, k)
  b = Mul (a, s)
  p = Softmax <axis = -1> (b)
  y = MatMul (p, c) }"""
FIRST = {"doubled": "c = Concat <axis = 0> (x, x)", "plain": "c = Identity (x)"}


def model(text: str) -> ModelProto:
    return parser.parse_model(HEAD + text)


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("level", range(4))
def test_an_attention_over_nothing(first: str, level: int) -> None:
    """In a session, compiled, and compiled beside the runs of a session."""
    given = model(ATTENTION % FIRST[first])
    session = minitvm.InferenceSession(given, opt_level=level, num_threads=1, specialise_after=1)
    for shape in ((2, 4, 3), (0, 4, 3), (2, 0, 3), (1, 1, 3)):
        wanted = (shape[0] * (2 if first == "doubled" else 1), *shape[1:])
        assert session.run(None, {"x": np.zeros(shape, "f")})[0].shape == wanted
        library = minitvm.compile(given, opt_level=level, shape_dict={"x": shape}, num_threads=1)
        assert library.run({"x": np.zeros(shape, "f")})[0].shape == wanted
    worker = session._engine.worker
    assert worker is not None
    worker.submit(int).result()
    assert all(decision.taken for decision in session.compiled_beside), session.compiled_beside


def test_what_is_1_in_one_run_is_not_in_the_next() -> None:
    """Names that broadcast where one of them happens to be 1."""
    session = minitvm.InferenceSession(model("g (float[A, 1] x, float[B, C] z) => (float[D, C] y) { y = Add(x, z) }"))
    for a, b, c in ((1, 3, 2), (3, 3, 2), (3, 1, 2), (1, 1, 0), (1, 0, 2), (1, 3, 1)):
        x, z = np.arange(a, dtype="f").reshape(a, 1), np.arange(b * c, dtype="f").reshape(b, c)
        np.testing.assert_array_equal(session.run(None, {"x": x, "z": z})[0], x + z)


SCAN = """g (float[%s] x, float[4, %s] rows) => (float[A, B] last, float[4, C, D] all) {
  last, all = Scan <num_scan_inputs = 1, body = step (old, row) => (new, seen) {
    new = Neg (row)
    seen = Identity (old) }> (x, rows) }"""


@pytest.mark.parametrize("state", ["2, 3", "N, 3", "N, M"])
@pytest.mark.parametrize("row", ["2, 3", "N, 3", "H, W"])
def test_a_scanned_state_has_the_dimensions_of_rows_after_a_step(state: str, row: str) -> None:
    session = minitvm.InferenceSession(model(SCAN % (state, row)), num_threads=1)
    x, rows = np.arange(6, dtype="f").reshape(2, 3), np.arange(24, dtype="f").reshape(4, 2, 3)
    last, seen = session.run(None, {"x": x, "rows": rows})
    np.testing.assert_array_equal(last, -rows[-1])
    np.testing.assert_array_equal(seen, [x, *-rows[:-1]])


COLUMNS = ", ".join(map(str, range(31)))
FITS = {
    "Imputer": f"y = ai.onnx.ml.Imputer <imputed_value_floats = [{COLUMNS}], replaced_value_float = 7.0> (x)",
    "OneHot": "i = Cast <to = 7> (x) y = OneHot (i, depth, z)",
}


@pytest.mark.parametrize("what", FITS)
def test_a_size_that_must_be_a_number_is_that_number(what: str) -> None:
    """A model is not refused because a name is none."""
    text = f"g (float[N, C] x, float[V] z) => (float[A, B] y) <int64 depth = {{9}}> {{ {FITS[what]} }}"
    given = model(text)
    given.opset_import.add(domain="ai.onnx.ml", version=1)
    given.graph.output[0].ClearField("type")
    session = minitvm.InferenceSession(given, num_threads=1)
    x, z = np.full((2, 31), 7, "f"), np.array([0, 1], "f")
    (found,) = session.run(None, {"x": x, "z": z})
    expected = np.tile(np.arange(31), (2, 1)) if what == "Imputer" else np.tile(np.arange(9) == 7, (2, 31, 1))
    np.testing.assert_array_equal(found, expected.astype("f"), strict=True)
    assert session.symbolic is not None and session.symbolic.taken


READS = {
    "a row": ("y = Gather <axis = 0> (x, one)", "float[M, 4] y"),
    "the border": ('y = Pad <mode = "edge"> (x, pads)', "float[M, 4] y"),
    "a mirror": ('y = Pad <mode = "reflect"> (x, pads)', "float[M, 4] y"),
}


@pytest.mark.parametrize("what", READS)
def test_of_nothing_there_is_nothing_to_read(what: str) -> None:
    """An error, in a session whose kernels are for any number of rows, and in a library that has them alone."""
    node, result = READS[what]
    session = minitvm.InferenceSession(
        model(f"g (float[N, 4] x) => ({result}) <int64[1] one = {{0}}, int64[4] pads = {{1, 0, 0, 0}}> {{ {node} }}")
    )
    with guarded.guarded():
        session.run(None, {"x": np.ones((2, 4), "f")})
        assert session.symbolic is not None and session.symbolic.taken
        with pytest.raises(MiniTVMError):
            session.libraries[0].bound({"x": (0, 4)})
        with pytest.raises(MiniTVMError):
            session.run(None, {"x": np.ones((0, 4), "f")})


def ran_guarded(case: Case) -> list[object]:
    return guarded.perform(subject.Task(case.model().SerializeToString(), case.feeds, case.config))


SLICE = 5
"""Graphs here; ``python -m tests.campaign_open`` draws thousands, and judges the results."""


def test_random_graphs_between_guard_pages() -> None:
    """In a process of its own, which what a kernel reads or writes outside of its buffers would end."""
    worker = Worker(ran_guarded)
    try:
        for index in range(0, 2 * SLICE, 2):
            found = worker.ask(open_graphs.case(7, index), 60.0)
            assert not isinstance(found, Crash), f"graph 7:{index}: {found}"
            assert isinstance(found, list), f"graph 7:{index}: {found}"
            assert not any(isinstance(one, subject.Raised) for one in found), f"graph 7:{index}: {found}"
    finally:
        worker.close()


def test_a_walk_that_ends_at_a_scalar_is_a_model() -> None:
    """No step permutes axes that are not there."""
    assert open_graphs.case(35, 52).model().graph.output


def test_guard_pages_are_guarded() -> None:
    """What the graphs above rely on."""
    worker = Worker(_outside)
    try:
        for nbytes, at in ((64, "before"), (5 * 4096, "behind")):
            assert isinstance(worker.ask((nbytes, at), 60.0), Crash)
    finally:
        worker.close()


def _outside(given: tuple[int, str]) -> int:
    nbytes, at = given
    for memory in (guarded.fenced(nbytes) for _ in range(2)):  # one begins where its pages do, one ends there
        start = memory.ctypes.data + (nbytes if at == "behind" else -1)
        ctypes.c_uint8.from_address(start).value = 1
    return 0


def test_threads_with_different_shapes_at_once() -> None:
    given = model(ATTENTION % FIRST["doubled"])
    session = minitvm.InferenceSession(given, num_threads=1, specialisations=3, specialise_after=2)
    shapes = [(n, t, 3) for n in (0, 1, 2) for t in (0, 1, 5)] * 4

    def run(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(session.run(None, {"x": np.ones(shape, "f")})[0].shape)

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(run, shapes)] == [(2 * n, t, size) for n, t, size in shapes]
