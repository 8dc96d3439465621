"""The sweep of single layers: reproducible layers within bounds, right figures, and tables that say what was chosen."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import layers, layers_report
from benchmarks.layer_kinds import KINDS, draw_layers, shares, wanted_layers


def test_a_layer_depends_on_its_name_and_the_seed_alone() -> None:
    wanted = [("conv", 2), ("softmax", 0)]
    (conv, softmax), (alone,) = draw_layers(wanted, 3), draw_layers(wanted[1:], 3)
    assert (alone.name, alone.text, alone.model) == ("softmax/0", softmax.text, softmax.model)
    assert all(np.array_equal(alone.feeds[name], array) for name, array in softmax.feeds.items())
    (other,) = draw_layers(wanted[:1], 4)
    assert other.text != conv.text


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_every_kind_are_models_with_feeds(kind: str) -> None:
    for layer in draw_layers(wanted_layers(3, [kind]), seed=0):
        onnx.checker.check_model(layer.model, full_check=True)
        shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in layer.model.graph.input}
        assert shapes == {name: list(array.shape) for name, array in layer.feeds.items()}
        assert layer.kind == kind and layer.text


def test_a_sweep_has_a_share_of_every_kind() -> None:
    assert sum(shares(300, list(KINDS)).values()) == len(wanted_layers(300, [])) == 300
    assert min(shares(300, list(KINDS)).values()) >= 1
    assert wanted_layers(300, ["conv/17", "dense/3"]) == [("conv", 17), ("dense", 3)]
    assert wanted_layers(2, ["lstm"]) == [("lstm", 0), ("lstm", 1)]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("layers") / "layers.json"
    done = CliRunner().invoke(
        command.main,
        ["layers", "--only", "softmax/0,reduction", "--count", "1", "--rounds", "1", "--output", str(path)],
    )
    assert done.exit_code == 0, done.output
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def test_a_sweep_has_the_ratios_and_choices_of_every_level(result: dict[str, Any]) -> None:
    softmax, reduction = result["layers"]
    assert (softmax["name"], reduction["name"]) == ("softmax/0", "reduction/0")
    for level in ("level 2", "level 3"):
        times = softmax["times"]
        assert softmax["ratios"][level] == times["onnxruntime"]["median"] / times[level]["median"] > 0
        assert softmax["errors"][level] < 1e-5
        assert softmax["choices"][level][0]["chosen"].startswith("default nests, ")
    assert set(result["call_us"]) == {"minitvm", "onnxruntime"}


def test_the_tables_show_kinds_and_the_worst(result: dict[str, Any]) -> None:
    console = Console(width=140, record=True)
    layers_report.show_layers(result, console)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert [line[:2] for line in lines if line[:1] in (["all"], ["softmax"])] == [["all", "2"], ["softmax", "1"]] * 2
    assert any(line[1:2] == ["softmax/0:"] for line in lines)


def test_what_is_wrong_or_refused_is_said() -> None:
    layer = {"name": "conv/1", "text": "1x1", "problems": {"level 2": "wrong: differs by 1e+00"}}
    assert list(layers_report.problem_lines({"layers": [layer]}))[1:] == [
        "level 2  conv/1: 1x1: wrong: differs by 1e+00"
    ]
    assert layers.difference([np.zeros(3, np.float32)], [np.zeros(3, np.float64)]) == float("inf")
    assert layers.difference([np.array([1.0])], [np.array([2.0])]) == 0.5


def test_who_is_wrong_is_what_onnx_says() -> None:
    (layer,) = draw_layers([("slice", 0)], 0)
    right = ReferenceEvaluator(layer.model).run(None, layer.feeds)
    other = [found + 3 for found in right]
    assert layers.who_is_wrong(layer, other, right).startswith("wrong: differs by ")
    found = layers.who_is_wrong(layer, right, other)
    assert found.startswith("onnxruntime is wrong: it differs from ONNX's reference evaluator by ")
    assert found.endswith(", minitvm by 0e+00")


def test_figures_are_least_tenth_percentile_and_median() -> None:
    assert layers_report.quantiles([1.0, 3.0, 2.0, 0.5, 4.0]) == pytest.approx((0.5, 0.7, 2.0))


def test_figures_stand_beside_what_is_asked_of_layers() -> None:
    made = [{"name": f"conv/{i}", "ratios": {"level 3": r}} for i, r in enumerate((0.6, 1.0, 1.6, 1.7, 1.8))]
    text = layers_report.asked_line({"layers": made}, "level 3")
    assert text.startswith("least 0.60 (short, asked 0.7 / 1), tenth percentile 0.76 (short, asked")
    assert text.endswith("median 1.60 (as aimed for, asked 1.2 / 1.5)")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "convolution"], "'convolution' is no kind of layer, nor one of them as conv/17: conv, depthwise"),
        (["--levels", "2,4"], "'2,4' is not a list of levels from 0 to 3, such as 2,3"),
    ],
)
def test_options_of_the_sweep_that_cannot_be_are_refused(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(command.main, ["layers", *arguments])
    assert done.exit_code == 2
    assert text in " ".join(done.output.split())
