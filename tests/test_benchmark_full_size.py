"""The command that measures networks of full size: a line each, and what all come to."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import parser

from benchmarks import worker
from benchmarks.full_size.__main__ import main

pytest.importorskip("onnxruntime")


def test_each_network_has_a_line(tmp_path: pathlib.Path) -> None:
    graph = "g (float[3] x) => (float[3] y) { y = Relu (x) }"
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + graph)
    for name in ("small", "other"):
        onnx.save(model, tmp_path / f"{name}.onnx")
        worker.save_feeds(tmp_path / f"{name}.onnx", {"x": np.ones(3, np.float32)})
    found = CliRunner().invoke(main, ["measure", "--folder", str(tmp_path), "--rounds", "1", "small"])
    assert found.exit_code == 0, found.output
    line, _, total = found.output.splitlines()
    assert line.startswith("small ") and "minitvm" in line and "onnxruntime" in line
    assert total.startswith("1 networks: geometric mean ")
