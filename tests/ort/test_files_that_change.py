"""What becomes of a model's files after they were opened is nobody's business: a session runs what it opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minitvm
from minitvm.driver import build_consuming
from minitvm.errors import FrontendError
from minitvm.frontend import files
from minitvm.ort.compiling import Compiling

WIDTH = 160
"""The weight has 100 kB: it is mapped, not read."""


def model(value: float, steps: int | str = "N") -> onnx.ModelProto:
    """x times a matrix of one number."""
    weight = numpy_helper.from_array(np.full((WIDTH, WIDTH), value, "float32"), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [steps, WIDTH]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(path: Path, value: float, beside: bool, steps: int | str = "N") -> None:
    """``beside``: the weight in a file of its own."""
    onnx.save(model(value, steps), path, save_as_external_data=beside, location="w.data", size_threshold=0)


def in_place(path: Path, new: Path) -> None:
    """As an exporter writes again; its clock has moved on."""
    path.write_bytes(new.read_bytes())
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def renamed_over(path: Path, new: Path) -> None:
    new.replace(path)


def deleted(path: Path, _: Path) -> None:
    path.unlink()


def truncated(path: Path, _: Path) -> None:
    os.truncate(path, 100)


def emptied(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def folder_deleted(path: Path, _: Path) -> None:
    for file in [*path.parent.iterdir()]:
        file.unlink()
    path.parent.rmdir()


HOW = [in_place, renamed_over, deleted, truncated, emptied, folder_deleted]
Change = Callable[[Path, Path], None]


def change(folder: Path, how: Change, beside: bool) -> None:
    """The model's file, or the one with its weight, is another one from now on."""
    (folder.parent / "new").mkdir()
    save(folder.parent / "new" / "m.onnx", 2.0, beside)
    for name in ("m.onnx", "w.data") if how in (renamed_over, in_place) and beside else ("m.onnx",):
        how(folder / name, folder.parent / "new" / name)
    if beside and how in (deleted, truncated, emptied):
        how(folder / "w.data", folder)


def opened(tmp_path: Path, beside: bool, **options: object) -> tuple[minitvm.InferenceSession, Path]:
    folder = tmp_path / "model"
    folder.mkdir()
    save(folder / "m.onnx", 1.0, beside)
    return minitvm.InferenceSession(folder / "m.onnx", num_threads=1, **options), folder  # type: ignore[arg-type]


def ran(session: minitvm.InferenceSession, rows: int = 1) -> float:
    (found,) = session.run(None, {"x": np.ones((rows, WIDTH), "float32")})
    assert (found == found[0, 0]).all()
    return float(found[0, 0])


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_small_models_are_kept(tmp_path: Path, how: Change, beside: bool) -> None:
    session, folder = opened(tmp_path, beside)
    change(folder, how, beside)
    assert ran(session) == WIDTH
    session.prepare({"x": (5, WIDTH)})
    assert ran(session, 5) == WIDTH


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_large_ones_are_held_open(tmp_path: Path, how: Change, beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in memory once; what is written into them is noticed, also where they were compiled before."""
    monkeypatch.setattr(files, "KEPT", 0)
    session, folder = opened(tmp_path, beside, symbolic=False)
    assert ran(session, 2) == WIDTH
    change(folder, how, beside)
    if how not in (in_place, truncated, emptied):
        assert ran(session) == WIDTH
        return
    with pytest.raises(FrontendError) as error:
        ran(session)
    assert str(error.value).splitlines()[0] == f"{folder / 'm.onnx'} was written to after it was opened"
    assert ran(session, 2) == WIDTH


def test_the_weights_alone_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "KEPT", 0)
    session, folder = opened(tmp_path, beside=True)
    os.truncate(folder / "w.data", 100)
    with pytest.raises(FrontendError, match=r"w.data was written to after it was opened"):
        ran(session)


def test_what_is_written_while_a_model_is_compiled_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "m.onnx", 1.0, beside=False)

    def disturbed(*given: object, **how: object) -> object:
        built = build_consuming(*given, **how)  # type: ignore[arg-type]
        os.utime(tmp_path / "m.onnx", ns=(0, 0))
        return built

    monkeypatch.setattr("minitvm.models.build_consuming", disturbed)
    with pytest.raises(FrontendError, match="was written to after it was opened"):
        minitvm.compile(tmp_path / "m.onnx", shape_dict={"x": (1, WIDTH)})


def test_models_in_memory_may_be_changed(tmp_path: Path) -> None:
    """An object, and bytes that are somebody's buffer."""
    proto = model(1.0)
    buffer = bytearray(proto.SerializeToString())
    sessions = [minitvm.InferenceSession(given, num_threads=1) for given in (proto, buffer)]
    proto.CopyFrom(model(2.0))
    buffer[:] = proto.SerializeToString()
    assert [ran(session) for session in sessions] == [WIDTH, WIDTH]


def test_what_is_compiled_once_keeps_no_file(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", 1.0, beside=False, steps=3)
    session = minitvm.InferenceSession(tmp_path / "m.onnx", num_threads=1)
    assert isinstance(session._engine, Compiling)
    held: Any = session._engine._model
    assert held.files.opened["m.onnx"]._memory is None
    assert ran(session, 3) == WIDTH


@pytest.mark.parametrize("how", HOW)
def test_a_library_is_in_memory(tmp_path: Path, how: Change) -> None:
    session, folder = opened(tmp_path, beside=False)
    session.save(folder / "m.mtvm")
    (folder / "m.onnx").unlink()
    loaded = minitvm.load(folder / "m.mtvm")
    again = minitvm.InferenceSession(folder / "m.mtvm")
    minitvm.InferenceSession(model(2.0), num_threads=1).save(tmp_path / "new.mtvm")
    how(folder / "m.mtvm", tmp_path / "new.mtvm")
    assert loaded.run({"x": np.ones((4, WIDTH), "float32")})[0][0, 0] == WIDTH
    assert ran(again, 7) == WIDTH


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(FrontendError, match=r"m.onnx is not an ordinary file"):
        minitvm.InferenceSession(tmp_path / "m.onnx")
