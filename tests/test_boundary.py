"""Whatever Python, numpy or the system raises inside minitvm, people catch a MiniTVMError that says the stage, and what
they hold works on."""

from __future__ import annotations

import copy
import errno
import itertools
import mmap
import multiprocessing
import os
import pathlib
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import pytest
from faults import Counter, at_calls, at_lines
from onnx import parser

import minitvm
from minitvm.errors import (
    InputError,
    LibraryError,
    MiniTVMError,
    OutOfMemoryError,
    RecursionLimitError,
    StageError,
    SystemRefusedError,
    UserCodeError,
    as_raised,
    stage,
)
from minitvm.ir.loop import expr
from minitvm.runtime import native

STATIC = """<ir_version: 8, opset_import: ["": 17]> g (float[2, 300] x) => (float[2, 300] y) {
  a = Exp(x) b = Neg(a) y = Softmax(b)
}"""
OPEN = STATIC.replace("2, 300", "n, 300")
CONTROL = """<ir_version: 8, opset_import: ["": 17]> g (float[2, 300] x, int64 n, bool c) => (float[2, 300] y)
 <bool t = {1}> {
  y = Loop(n, t, x) <body = b (int64 i, bool k, float[2,300] v) => (bool k2, float[2,300] w) {
    k2 = Identity(k)
    w = If(c) <then_branch = t () => (float[2,300] p) { p = Tanh(v) },
               else_branch = e () => (float[2,300] q) { q = Neg(v) }>
  }>
}"""
FEEDS = {"x": np.linspace(-1, 1, 600, dtype="float32").reshape(2, 300), "n": np.array(3), "c": np.array(True)}

# --- what becomes of what -----------------------------------------------------------------------------------------


def _raises(error: BaseException) -> Callable[[], None]:
    @stage("running the model")
    def inner() -> None:
        raise error

    @stage("opening the session")
    def outer() -> None:
        try:
            inner()
        except MiniTVMError as found:  # what lies between sees what was raised
            assert found is error
            raise

    return outer


@pytest.mark.parametrize(
    ("error", "kind", "also", "text"),
    [
        (MemoryError(), OutOfMemoryError, MemoryError, "running the model takes more memory than there is"),
        (OSError(errno.ENOMEM, "no"), OutOfMemoryError, MemoryError, "running the model takes more memory than there"),
        (RecursionError("deep"), RecursionLimitError, RecursionError, "running the model goes deeper than Python does"),
        (FileNotFoundError(2, "none", "/a"), SystemRefusedError, OSError, "running the model failed: [Errno 2] none"),
        (RuntimeError("can't start new thread"), SystemRefusedError, OSError, "running the model failed: the system"),
        (KeyError("inputs"), StageError, StageError, "running the model failed: KeyError: 'inputs'"),
        (UnicodeDecodeError("utf8", b"", 0, 1, "bad"), StageError, StageError, "running the model failed: Unicode"),
        (ZeroDivisionError("by 0"), StageError, StageError, "running the model failed: ZeroDivisionError: by 0"),
    ],
)
def test_it_says_the_stage_and_is_caught_as_what_it_was(
    error: Exception, kind: type[StageError], also: type[Exception], text: str
) -> None:
    with pytest.raises(also) as caught:
        _raises(error)()
    found = caught.value
    assert type(found) is kind and found.__cause__ is error and found.stage == "running the model"
    assert found.message.startswith(text)
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), str(again), again.stage) == (kind, str(found), found.stage)
    assert getattr(found, "filename", None) == getattr(error, "filename", None)
    assert type(kind.__new__(kind)) is kind, "tblib's way, with which Dask sends an error to another process"


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), SystemExit(1), InputError("x"), UserCodeError("x"), AssertionError("x"), TypeError("x")],
)
def test_what_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        _raises(error)()
    assert caught.value is error


def test_what_a_function_of_the_caller_s_raises_passes() -> None:
    error = OSError(errno.EPIPE, "nobody reads")

    def broken(*_: object) -> None:
        raise error

    with pytest.raises(OSError) as caught:
        minitvm.compile(parser.parse_model(STATIC), on_progress=broken)
    assert caught.value is error
    with pytest.raises(ValueError), as_raised():
        raise ValueError


# --- faults anywhere ----------------------------------------------------------------------------------------------


def _session(text: str) -> minitvm.InferenceSession:
    return minitvm.InferenceSession(parser.parse_model(text), num_threads=2)


def _run(session: minitvm.InferenceSession) -> np.ndarray:
    found: np.ndarray = session.run(None, {value.name: FEEDS[value.name] for value in session.get_inputs()})[0]
    return found


def _runs(text: str, _: pathlib.Path) -> Callable[[], np.ndarray]:
    return partial(_run, _session(text))


def _opens(text: str, _: pathlib.Path) -> Callable[[], np.ndarray]:
    return lambda: _run(_session(text))


def _saves(text: str, folder: pathlib.Path) -> Callable[[], np.ndarray]:
    session, path = _session(text), folder / "m.mtvm"

    def work() -> np.ndarray:
        session.save(path)
        return _run(minitvm.InferenceSession(path, num_threads=2))

    return work


def _loads(text: str, folder: pathlib.Path) -> Callable[[], np.ndarray]:
    path = folder / "m.mtvm"
    library = minitvm.compile(parser.parse_model(text), num_threads=2, shape_dict={"x": (2, 300)})
    library.save(path)
    feeds = {name: FEEDS[name] for name in library.artifact.inputs}

    def work() -> np.ndarray:
        module = minitvm.GraphModule(minitvm.load(path)["default"](minitvm.cpu()))
        module.run(feeds)
        found: np.ndarray = module.get_output(0).numpy()
        return found

    return work


POINTS: dict[str, tuple[Callable[[Counter], AbstractContextManager[None]], Callable[[], Exception]]] = {
    "a line": (at_lines, MemoryError),
    "numpy.empty": (partial(at_calls, owner=np, name="empty"), MemoryError),
    "numpy.array": (partial(at_calls, owner=np, name="array"), MemoryError),
    "mmap": (partial(at_calls, owner=mmap, name="mmap"), lambda: OSError(errno.ENOMEM, "Cannot allocate memory")),
    "os.open": (partial(at_calls, owner=os, name="open"), lambda: OSError(errno.EMFILE, "Too many open files")),
    "os.fstat": (partial(at_calls, owner=os, name="fstat"), lambda: OSError(errno.EIO, "Input/output error")),
    "Path.open": (partial(at_calls, owner=pathlib.Path, name="open"), lambda: OSError(errno.EMFILE, "Too many files")),
    "a thread": (
        partial(at_calls, owner=threading.Thread, name="start"),
        lambda: RuntimeError("can't start new thread"),
    ),
    "a linker": (partial(at_calls, owner=native.llvm, name="create_lljit_compiler"), MemoryError),
}
SAMPLES = 4


def _faults(work: Callable[[], np.ndarray], seed: str) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """The work with a fault at some of the places where there could be one."""
    for name, (around, error) in POINTS.items():
        counter = Counter()
        with around(counter):
            work()
        drawn = random.Random(f"{seed} {name}").sample(range(1, counter.count + 1), min(SAMPLES, counter.count))
        for at in drawn:

            def broken(at: int = at, around: Any = around, error: Any = error) -> np.ndarray:
                with around(Counter(error(), at)):
                    return work()

            yield f"{name} {at}", broken


@pytest.mark.parametrize(
    ("text", "make"), [*itertools.product([STATIC, CONTROL], [_runs, _opens, _saves, _loads]), (OPEN, _opens)]
)
def test_a_fault_anywhere_is_an_error_and_the_next_run_is_right(
    text: str, make: Callable[[str, pathlib.Path], Callable[[], np.ndarray]], tmp_path: pathlib.Path
) -> None:
    work = make(text, tmp_path)
    want, raised = work(), 0
    for where, broken in _faults(work, f"{make.__name__} {text}"):
        try:
            np.testing.assert_array_equal(broken(), want, err_msg=where)
        except MiniTVMError as error:
            assert type(error) is not StageError, where
            raised += 1
        np.testing.assert_array_equal(work(), want, err_msg=f"after {where}")
    assert raised > SAMPLES // 2
    assert not [*tmp_path.glob("*.part")]


def test_a_fault_at_any_line_leaves_no_lock_taken() -> None:
    """Of faults that Python itself could raise: a tracer could raise one between a block and its end, too."""
    counter = Counter()
    expr.const(1.5, "float64")  # what is found once
    with at_lines(counter):
        expr.const(1234.5, "float64")
    for at in range(1, counter.count + 1):
        with at_lines(Counter(MemoryError(), at)), pytest.raises(MemoryError):
            expr.const(1234.5 + at, "float64")
        assert not expr._lock.locked()


def test_a_team_whose_threads_do_not_start_leaves_none() -> None:
    before = threading.active_count()
    with (
        at_calls(Counter(RuntimeError("can't start new thread"), 3), threading.Thread, "start"),
        pytest.raises(RuntimeError),
    ):
        native.Team(8)
    assert threading.active_count() == before


# --- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_session_is_not_copied(copied: Callable[[Any], Any]) -> None:
    session = _session(STATIC)
    with pytest.raises(LibraryError) as caught:
        copied(session)
    assert caught.value.message == "a session is memory and threads of this process, and cannot be copied or pickled"
    assert "session.save('model.mtvm') here" in str(caught.value.hint)
    with pytest.raises(LibraryError, match="cannot be copied or pickled"):
        copied(minitvm.GraphModule(minitvm.compile(parser.parse_model(STATIC))["default"]()))
    _run(session)


def test_a_session_is_no_argument_of_a_process() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print, args=(_session(STATIC),))
    with pytest.raises(LibraryError, match="cannot be copied or pickled"):
        process.start()
