"""Modules and libraries copied and pickled; a ``GraphModule`` used by two threads."""

from __future__ import annotations

import copy
import pathlib
import pickle
import subprocess
import threading

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import InputError, LibraryError
from minitvm.ir.structural import structural_equal
from minitvm.runtime.library import Library

X = np.arange(6, dtype="float32").reshape(2, 3)


def module() -> minitvm.Module:
    flag, x = relay.var("flag", shape=(), dtype="bool"), relay.var("x", shape=(2, 3))
    shared = relay.exp(x)
    first, second = relay.split(shared, 3, 1)[0], relay.nn.softmax(shared, -1)
    body = relay.Tuple([relay.If(flag, shared + second, relay.negative(shared)), first, relay.const(X)])
    return minitvm.Module(relay.Function([flag, x], body))


@pytest.fixture(scope="module")
def library() -> Library:
    return relay.build(module())


def run(library: Library) -> list[np.ndarray]:
    return library.run({"flag": np.array(True), "x": X})


def test_modules_and_nodes() -> None:
    given = module()
    for other in (copy.copy(given), copy.deepcopy(given)):  # which may be changed; nodes never are
        assert other is not given and other.main is given.main is copy.deepcopy(given.main)
    again = pickle.loads(pickle.dumps(given))
    assert structural_equal(again, given) and again.astext() == given.astext()
    assert pickle.loads(pickle.dumps(given.main.body)).astext() == given.main.body.astext()


def test_depth_costs_no_recursion() -> None:
    x = y = relay.var("x", shape=(2,))
    for _ in range(5000):
        y = relay.add(y, x)
    assert structural_equal(pickle.loads(pickle.dumps(relay.Function([x], y))), relay.Function([x], y))


def test_libraries(library: Library) -> None:
    for again in (copy.copy(library), copy.deepcopy(library), pickle.loads(pickle.dumps(library))):
        assert again is not library
        for have, want in zip(run(again), run(library), strict=True):
            np.testing.assert_array_equal(have, want)


def test_a_graph_module_is_not_copied(library: Library) -> None:
    with pytest.raises(LibraryError, match="memory of this process") as caught:
        copy.copy(minitvm.GraphModule(library["default"]()))
    assert caught.value.hint and "copy or pickle the library" in caught.value.hint


def test_a_second_thread_is_refused(library: Library) -> None:
    shared = minitvm.GraphModule(library["default"]())
    said: list[Exception] = []

    def second() -> None:
        try:
            shared.run(flag=np.array(True), x=X)
        except InputError as error:
            said.append(error)

    with shared._alone():  # as in the middle of a run
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert str(said[0]).startswith("the module is busy in another thread\n  = hint: every thread needs one of its own")
    second()
    assert len(said) == 1 and shared.get_output(1).shape == (2, 1)


def test_a_tar_that_tar_reads(library: Library, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "deploy_lib.tar"
    library.export_library(path)
    listed = subprocess.run(["tar", "tf", path], capture_output=True, text=True, check=True).stdout.split()
    assert listed[:4] == ["manifest.json", "graph.json", "params.bin", "code/entry.o"]
    for have, want in zip(run(minitvm.load_module(path)), run(library), strict=True):
        np.testing.assert_array_equal(have, want)
    with pytest.raises(LibraryError, match="no compiler links the library, so it takes no fcompile"):
        library.export_library(path, fcompile=print)


def test_damaged_tars(library: Library, tmp_path: pathlib.Path) -> None:
    """Every one is refused, but where the byte that changed means nothing to anybody: a header's date or owner."""
    path = tmp_path / "damaged.tar"
    library.export_library(path)
    whole, rng = path.read_bytes(), np.random.default_rng(5)
    for _ in range(60):
        data = bytearray(whole)
        at = int(rng.integers(len(whole)))
        data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data if rng.integers(2) else whole[:at])
        with pytest.raises(LibraryError):
            minitvm.load(path)
    path.write_bytes(whole + bytes(512))
    with pytest.raises(LibraryError, match="belong to no member"):
        minitvm.load(path)
