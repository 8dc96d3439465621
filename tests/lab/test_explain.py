"""Explanations: what was decided of a kernel, a node and a pass, found by name and said once."""

from __future__ import annotations

import pathlib
from typing import Any

import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

import minitvm
from benchmarks.onnx_models import Graph
from minitvm.cli import cli
from minitvm.codegen.problem import Choice, Tile
from minitvm.driver import BuildReport
from minitvm.errors import ConfigError
from minitvm.ir.decision import Decision
from minitvm.lab import explain
from minitvm.lab.explanation import FOLDED, FUSION, LAYOUT, LOOPS, PLACE, _sentences, _verdict


def network() -> Any:
    """Two convolutions with a batch normalization and a rectifier each, then a dense layer."""
    g = Graph()
    hidden = g.node("Relu", [g.norm(g.conv("data", 16, 32, 3, stride=2), 32)])
    hidden = g.node("Relu", [g.norm(g.conv(hidden, 32, 32, 5, stride=2), 32)])
    pooled = g.node("Flatten", [g.node("GlobalAveragePool", [hidden])])
    return g.model(g.node("Softmax", [g.linear(pooled, 32, 10)]), [1, 16, 24, 24])


@pytest.fixture(scope="module")
def report() -> BuildReport:
    report = minitvm.compile(network(), "llvm -mcpu=skylake-avx512", num_threads=1, trace=True).report
    assert isinstance(report, BuildReport)
    return report


def conv_kernel(report: BuildReport) -> str:
    return next(symbol for symbol in report.groups if "conv2d" in symbol)


def test_a_kernel_says_what_is_fused_who_writes_it_and_what_else_there_was(report: BuildReport) -> None:
    found = report.explain(kernel=conv_kernel(report))
    assert found.kernels == (conv_kernel(report),) and len(found.nodes) == 3
    assert "MFLOP" in found.summary and "predicted" in found.summary
    fusion, loops = found.section(FUSION), found.section(LOOPS)
    assert fusion.lines[0].startswith("One kernel: nn.contrib_conv2d_NCHWc -> add -> nn.relu")
    assert any("goes into" in line or "go into" in line for line in fusion.lines[1:])
    assert any("writes the loops" in line for line in loops.lines)
    heading, taken, *others = loops.table
    assert heading[:2] == ("way", "cycles of a core") and taken[-1] == "taken" and taken[2] == "1.00"
    assert all(row[-1].startswith(("slower", "declined: ", "as fast")) for row in others if row[1])
    assert found.section(LAYOUT) and "NCHW16c" in str(found.section(LAYOUT))
    assert "computed now" in str(found.section(FOLDED)) and found.decisions
    assert len(set(found.decisions)) == len(found.decisions)


def test_faster_ways_say_why_they_were_declined() -> None:
    taken = Choice("rows", Tile(4, 2), 100.0)
    assert _verdict(Choice("columns", Tile(4, 2), 90.0, "sums leave the cache"), taken) == (
        "declined: sums leave the cache"
    )
    assert _verdict(Choice("rows", Tile(2, 2), 120.0), taken) == "slower"
    assert _verdict(Choice("rows", Tile(8, 1), 100.0), taken) == "as fast: wider tiles go first"
    assert _verdict(Choice("rows", Tile(5, 2), 100.0), taken) == "as fast: the template lists it later"


def test_a_node_says_which_kernel_computes_it_and_what_became_of_it(report: BuildReport) -> None:
    symbol = conv_kernel(report)
    norm = report.nodes[symbol][1]
    found = explain(report, node=norm)
    assert found.summary.startswith(f"It is computed by {symbol}, with ") and found.kernels == (symbol,)
    assert "becomes its arithmetic" in str(found.section(FOLDED))


def test_a_pass_says_what_it_did_in_each_run(report: BuildReport) -> None:
    found = report.explain(pass_name="FoldConstant")
    titles = [section.title for section in found.sections]
    assert titles == [f"FoldConstant#{n}" for n in range(1, len(titles) + 1)] and len(titles) > 1
    assert found.summary.startswith(f"It ran {len(titles)} times")
    second = report.explain(pass_name="FoldConstant#2")
    assert [section.title for section in second.sections] == ["FoldConstant#2"]
    assert "calls became" in str(found) and "The module is as it was." in str(found)


def test_a_wildcard_finds_several(report: BuildReport) -> None:
    found = report.explain(kernel="*")
    assert [part.kernels[0] for part in found.parts] == list(report.groups)
    assert str(found).count("kernel fused_") >= len(report.groups) and repr(found).startswith("<explanation of")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"kernel": "fused_nn_softma"}, "did you mean 'fused_nn_softmax'"),
        ({"pass_name": "FoldConstants"}, "did you mean 'FoldConstant'"),
        ({"pass_name": "FoldConstant#0"}, "FoldConstant#1 and on"),
        ({"node": "zzz"}, "there are "),
        ({}, "explain(kernel="),
        ({"kernel": "a", "node": "b"}, "explain(kernel="),
    ],
)
def test_what_is_not_there_is_an_error_that_names_what_is(report: BuildReport, asked: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(report, **asked)
    assert hint in str(caught.value.hint)


def test_a_loaded_library_says_that_it_kept_no_way(tmp_path: pathlib.Path) -> None:
    library = minitvm.compile(network(), num_threads=1)
    library.save(tmp_path / "m.mtvm")
    with pytest.raises(ConfigError, match="there is no report"):
        explain(minitvm.load(tmp_path / "m.mtvm"), kernel="*")
    assert explain(library, kernel="*").parts


def test_what_was_decided_alike_is_one_sentence() -> None:
    same = [Decision("FoldConstant", "add", True, "computed now", (f"bn_{i}",)) for i in range(6)]
    other = Decision("drop", "clip", False, "it is needed", ("relu",))
    assert _sentences([other, *same, other], "Folded") == [
        "add (bn_0, bn_1, bn_2, bn_3, ... (6 in all)): FoldConstant: computed now.",
        "clip (relu): drop declined: it is needed.",
    ]
    assert _sentences([Decision("p", "x", True, str(i)) for i in range(20)], "p")[-1].startswith("... and 8 more")


@pytest.mark.filterwarnings("ignore::minitvm.driver.HostCallWarning")
def test_a_node_in_python_says_so() -> None:
    nodes = [
        onnx.helper.make_node("Neg", ["x"], ["number"], name="negated"),
        onnx.helper.make_node("Cast", ["number"], ["y"], name='<script>"&', to=onnx.TensorProto.STRING),
    ]
    x, y = (onnx.helper.make_tensor_value_info(name, dtype, [6]) for name, dtype in (("x", 1), ("y", 8)))
    library = minitvm.compile(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])))
    found = explain(library, node='<script>"&')
    assert found.section(PLACE) is not None and "runs in Python, no kernel, since" in found.summary
    assert "<script>" not in found._repr_html_() and "&lt;script&gt;" in found._repr_html_()


SETTLED = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 4] y) {
    c = Constant <value = float[1] {2.0}> ()
    s = Shape (x)
    same = Identity (x)
    unread = Neg (x)
    z = Reshape (same, s)
    y = Mul (z, c)
}"""


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("Constant_c", "is a constant"),
        ("Shape_s", "it follows from weights and shapes"),
        ("Identity_same", "its result is its operand"),
        ("Neg_unread", "no result of the model needs it"),
    ],
)
def test_nodes_that_an_import_leaves_nothing_of_are_answered(node: str, why: str) -> None:
    library = minitvm.compile(onnx.parser.parse_model(SETTLED))
    found = explain(library, node=node)
    assert found.summary.startswith("No kernel computes it: it was settled while the model was read")
    assert why in str(found.section(FOLDED)) and why in str(library.report.why(node))
    assert explain(library, node="Mul_y").section(FUSION)


def test_the_command(tmp_path: pathlib.Path, report: BuildReport) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(network(), str(path))
    result = CliRunner().invoke(cli, ["explain", str(path), "--pass", "FuseOps"])
    assert result.exit_code == 0 and "FuseOps#1" in result.output
    assert CliRunner().invoke(cli, ["explain", str(path)]).exit_code == 2
    assert CliRunner().invoke(cli, ["explain", str(path), "--pass", "a", "--node", "b"]).exit_code == 2
    shown = CliRunner().invoke(cli, ["show", str(path), "--diff", "SimplifyInference"]).output
    assert shown.startswith("SimplifyInference: ") and "-   %1 = nn.batch_norm" in shown and "+   %" in shown
    assert "nn.softmax" not in shown and "  ..." in shown
    assert CliRunner().invoke(cli, ["show", str(path), "--diff", "FoldConstant#4"]).output.strip().endswith("nothing")
