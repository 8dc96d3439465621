"""Sizes that the command line takes for open dimensions, or names in a hint: the model can be imported with them."""

from __future__ import annotations

import pathlib

import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from minitvm.cli import cli
from minitvm.cli.open_shapes import open_inputs, usual
from minitvm.errors import ConfigError

FIT = {
    "pooled": (["N", 3, "H", "W"], [1, 3, 64, 64]),
    "a vector": (["n"], [64]),
    "nothing open": ([2, 4], [2, 4]),
    "no names": ([None, None, 4, 4], [1, 64, 4, 4]),
}


def saved(path: pathlib.Path, shape: list[int | str | None], window: int = 0) -> pathlib.Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[window] * 2)
    node = pool if window else helper.make_node("Relu", ["x"], ["y"])
    path.write_bytes(helper.make_model(helper.make_graph([node], "g", [x], [y])).SerializeToString())
    return path


@pytest.mark.parametrize("name", FIT)
def test_a_batch_is_1_and_what_else_is_open_has_a_usual_size(tmp_path: pathlib.Path, name: str) -> None:
    shape, expected = FIT[name]
    path = saved(tmp_path / "m.onnx", shape)
    assert usual(path, {"x": shape}) == {"x": expected}


def test_a_size_that_the_model_refuses_is_not_taken(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path / "m.onnx", ["N", 3, "H", "W"], window=100)
    assert usual(path, {"x": ["N", 3, "H", "W"]}) == {"x": [1, 3, 224, 224]}


def test_a_hint_works_when_it_is_copied_and_view_needs_none(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path / "m.onnx", ["N", 3, "H", "W"], window=3)
    assert open_inputs(path)
    error = CliRunner().invoke(cli, ["bench", str(path)]).exception
    assert isinstance(error, ConfigError) and error.hint is not None
    copied = error.hint.partition("for example ")[2].split()
    assert CliRunner().invoke(cli, ["run", str(path), *copied]).exit_code == 0
    shown = CliRunner().invoke(cli, ["view", str(path), "--no-run"])
    assert shown.exit_code == 0 and path.with_suffix(".html").exists(), shown.output
