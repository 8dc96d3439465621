"""What is loaded again and again leaves nothing behind: no objects, no memory of LLVM's."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import parser
from small_model import sample, small_module

import minitvm
from minitvm.runtime import native

LOADS = 3 * native.LINKED_TOGETHER
PLAIN = """<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x, bool c) => (float[2, 3] y) {
  y = If (c) <then_branch = t () => (float[2, 3] a) { a = Exp(x) },
              else_branch = e () => (float[2, 3] b) { b = Neg(x) }>
}"""
OPEN = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 3] y) { y = Softmax(x) }"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unloading") / "small.mtvm"
    module, params = small_module()
    minitvm.build(module, params=params).save(path)
    return path


class _Mallinfo(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def _held() -> int:
    """Bytes that C and C++ hold, where the C library says; Python's small objects are not among them."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        pytest.skip("the C library does not say what is held")
    ask.restype = _Mallinfo
    return int(ask().used)


def assert_nothing_stays(work: Callable[[], object], times: int = LOADS) -> None:
    """Neither objects nor memory; the first times fill what has a bound."""
    found = []
    for _ in range(3):
        for _ in range(times):
            work()
        gc.collect()
        found.append((len(gc.get_objects()), _held()))
    (_, _), (objects, held), (more, grown) = found
    assert more - objects < times // 8, f"{more - objects} objects stay of {times}"
    assert grown - held < 1000 * times, f"{(grown - held) // times:,} bytes stay of each"


def test_instances_of_a_library_that_is_loaded_again(saved: Path) -> None:
    def work() -> None:
        running = minitvm.GraphModule(minitvm.load(saved)["default"](minitvm.cpu()))
        running.run(x=sample(0))

    assert_nothing_stays(work)


def test_sessions_of_a_library(saved: Path) -> None:
    assert_nothing_stays(lambda: minitvm.InferenceSession(saved).run(None, {"x": sample(0)}))


def test_no_linker_has_more_than_its_share_and_all_go(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a library that is unloaded ORC keeps what has its name, as long as the linker is there."""
    linkers: list[weakref.ref[object]] = []
    make = native.llvm.create_lljit_compiler
    monkeypatch.setattr(
        native.llvm, "create_lljit_compiler", lambda **how: [made := make(**how), linkers.append(weakref.ref(made))][0]
    )
    for _ in range(LOADS):
        minitvm.load(saved)["default"](minitvm.cpu())
    gc.collect()
    assert len(linkers) == 3 and sum(linker() is not None for linker in linkers) == 1


def test_code_outlives_its_linker(saved: Path) -> None:
    running = minitvm.GraphModule(minitvm.load(saved)["default"](minitvm.cpu()))
    running.run(x=sample(0))
    before = running.get_output(0).numpy()
    for _ in range(LOADS):
        minitvm.load(saved)["default"](minitvm.cpu())
    gc.collect()
    running.run(x=sample(0))
    np.testing.assert_array_equal(running.get_output(0).numpy(), before)


@pytest.mark.parametrize("text", [PLAIN, OPEN], ids=["branches", "open"])
def test_sessions_of_a_model(text: str) -> None:
    feeds = {"x": np.ones((2, 3), "float32"), "c": np.array(True)}

    def work() -> None:
        session = minitvm.InferenceSession(parser.parse_model(text), num_threads=1)
        session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})

    assert_nothing_stays(work, 16)


def test_runs_of_all_kinds_and_errors() -> None:
    session = minitvm.InferenceSession(parser.parse_model(OPEN), num_threads=1, specialise_after=0)
    value = minitvm.OrtValue.ortvalue_from_numpy(np.ones((2, 3), "float32"))

    def work() -> None:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        session.run_with_ort_values(None, {"x": value})
        with pytest.raises(minitvm.MiniTVMError):
            session.run(None, {"x": np.ones((2, 4), "float32")})

    assert_nothing_stays(work)


def test_shapes_without_number() -> None:
    """A library for all shapes keeps what it made for some, not for all that it has met."""
    session = minitvm.InferenceSession(parser.parse_model(OPEN), num_threads=1, specialise_after=0)
    sizes = (
        100 + number * 73 % 997 for number in range(997)
    )  # others each time, as large on average: what is kept is too
    assert_nothing_stays(lambda: session.run(None, {"x": np.ones((next(sizes), 3), "float32")}), 80)
    assert len(session.libraries) <= 17
