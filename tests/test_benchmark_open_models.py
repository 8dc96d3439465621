"""The table of exported models: what it says of files that are compiled once or twice, or are none."""

from __future__ import annotations

import pathlib

import onnx
import pytest
from onnx import parser

from benchmarks.open_models import inputs, measure, own
from benchmarks.open_models.inputs import Input
from benchmarks.open_models.own import Timed

pytest.importorskip("onnxruntime")

BODIES = {
    "once": "y = Relu (x)",
    "twice": "s = Shape <start = 0, end = 1> (x) c = Less (s, three) w = Where (c, one, s) y = Expand (x, w)",
}
"""The second decides by a size."""


def written(folder: pathlib.Path, name: str) -> pathlib.Path:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[m] y)
        <int64[1] one = {{1}}, int64[1] three = {{3}}> {{ {BODIES[name]} }}"""
    )
    inputs.write(model, {"x": "float32 n"}, {"n": (2, 5, 7)})
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("name", "libraries"), [("once", 1), ("twice", 2)])
def test_libraries_are_counted(name: str, libraries: int, tmp_path: pathlib.Path) -> None:
    found = measure.measured(written(tmp_path, name))
    assert (found.name, found.libraries, found.own, found.problems, found.peer) == (name, libraries, 0, [], [])
    assert found.once == (libraries == 1) and found.error == 0 and found.first > 0
    assert "compiled 2 times" in found.reason or found.once


def test_the_summary_counts_reasons(tmp_path: pathlib.Path) -> None:
    found = [
        measure.Measured("a", 1),
        measure.Measured("b", 2, 0, 0, "conv2d(%x)"),
        measure.Measured("c", reason="conv3d(%y)"),
    ]
    text = measure.summary([*found, measure.Measured("d", problems=["off by 1"])])
    assert text.splitlines()[0].startswith("files 4, compiled once 1, ") and "wrong or refused 1" in text
    assert "  2  convNd\n     b, c" in text


def test_a_file_that_fails_says_so(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    found = measure.apart(path)
    assert found.problems and found.problems[0].startswith("refused: ") and not found.once


def test_kernels_for_all_sizes_are_compared_with_own_ones(tmp_path: pathlib.Path) -> None:
    found = own.compared(written(tmp_path, "once"), True)
    assert found.name == "once" and found.open_seconds > 0 and found.ratio > 0
    assert [part.own for part in found.parts] == [("fused_nn_relu",)] == [part.open for part in found.parts]
    assert own.line(found).startswith("once ") and own.summary([found]).startswith("1 networks: geometric mean ")


def test_kernels_are_alike_that_the_same_nodes_ask_for() -> None:
    """Two own ones are one part where one for all sizes does their work; tiles are cut for the window behind them."""
    fixed = [Timed("conv", ("a", "b"), 1e-3), Timed("pool", ("c",), 2e-3), Timed("dense", ("d",), 1e-3)]
    fixed.insert(1, Timed("layout", ("b",), 3e-3))
    opened = [
        Timed("conv", ("a", "b"), 1e-3),
        Timed("layout", ("b",), 3e-3),
        Timed("merge_tiles_extract_tiles", ("a", "c"), 2e-3),
        Timed("pool_dense", ("c", "d"), 4e-3),
        Timed("shape", ("nowhere",), 9e-3),
    ]
    conv, rest = own.parts(opened, fixed)
    assert (conv.own, conv.open, conv.ratio) == (("conv", "layout"), ("conv", "layout"), 1)
    assert (rest.own, rest.open, rest.ratio) == (("pool", "dense"), ("merge_tiles_extract_tiles", "pool_dense"), 2)
    compared = own.Compared("n", 8e-3, 4e-3, [conv, rest])
    assert compared.worst is rest and own.slowest(compared, 1).split()[0] == "2.00"


def test_inputs_are_drawn_as_their_texts_say() -> None:
    sizes = {"batch": 2, "past": 3, "seq": 4}
    drawn = inputs.feeds({"ids": "int64<7 batch seq", "mask": "int64=1 batch past+seq", "x": "float32 batch 5"}, sizes)
    assert {name: (array.dtype.name, array.shape) for name, array in drawn.items()} == {
        "ids": ("int64", (2, 4)),
        "mask": ("int64", (2, 7)),
        "x": ("float32", (2, 5)),
    }
    assert drawn["ids"].max() < 7 and drawn["mask"].min() == 1
    assert Input.of("float32").shape == ()
    assert [*inputs.runs({"a": (1, 2, 3), "b": (4, 5)})][2] == {"a": 3, "b": 4}
