"""``minitvm.lab.check``: what it proves, and what it says of what is wrong."""

from __future__ import annotations

import pathlib
import runpy

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, ValueInfoProto, helper, save

import minitvm
from minitvm import relay
from minitvm.cli import cli
from minitvm.errors import ConfigError, InputError, TargetError
from minitvm.ir.expr import Expr
from minitvm.ir.pattern import call, value
from minitvm.lab import check, check_kernel, check_models, check_operator, check_pass
from minitvm.lab.check_result import Outcome
from minitvm.passes import rule

LAYERS = """
def @main(%x: Tensor[(1, 4, 6, 6), float32], %w: Tensor[(4, 4, 3, 3), float32], %b: Tensor[(4,), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1]);
  %1 = nn.bias_add(%0, %b);
  %2 = nn.relu(%1);
  %3 = add(%2, %x);
  nn.softmax(nn.batch_flatten(%3))
}
"""


DROPPED = """
from minitvm import relay
from minitvm.ir.pattern import call, value
from minitvm.passes import rule

@rule(call("nn.relu", value("x")))
def dropped(x):
    return {result}
"""


@rule(call("nn.relu", value("x")))
def leaking(x: Expr) -> Expr:
    """So little that a softmax behind it hides it."""
    return relay.maximum(x, relay.multiply(x, relay.const(0.001, "float32")))


@rule(call("nn.batch_flatten", value("x")))
def right(x: Expr) -> Expr:
    return relay.reshape(x, newshape=[1, -1])


def test_a_right_model_is_proved() -> None:
    found = check(LAYERS, parts=["passes", "kernels", "levels", "threads"])
    assert found.ok, found
    assert {row.part for row in found.compared} == {"pieces", "passes", "kernels", "model", "levels", "threads"}
    assert "nothing is wrong" in repr(found)


def test_a_wrong_rule_is_named_and_its_module_made_small(tmp_path: pathlib.Path) -> None:
    found = check(LAYERS, parts=["passes"], passes=[leaking, right], output=tmp_path)
    (finding,) = found.findings
    assert finding.guilty.startswith("pass leaking, rule leaking, its application 1, on nn.relu(")
    assert finding.calls == 1 and "nn.relu(%v" in str(finding)
    assert not found.ok
    with pytest.raises(AssertionError, match="rule leaking"):
        found.expect()
    assert finding.path is not None
    text = finding.path.read_text()
    assert "check_pass(MODULE, object_of(" in text and "nn.relu(%" in text


def test_a_rule_that_is_right_is_proved_on_its_own() -> None:
    assert check_pass(LAYERS, right).ok
    assert not check_pass(LAYERS, leaking, reduction=0).ok


def test_a_pass_of_the_pipeline_by_its_name() -> None:
    assert check_pass(LAYERS, "FuseOps").ok
    (row,) = check_pass(LAYERS, "SinkCast").compared
    assert (row.outcome, row.said) == (Outcome.OPEN, "it changes nothing in this model")


def test_a_kernel_and_an_operator() -> None:
    assert check_kernel("def @main(%x: Tensor[(5, 3), float32]) { nn.relu(negative(%x)) }").ok
    assert check_operator("nn.conv2d", "Tensor[(1, 3, 5, 5), float32]", "Tensor[(4, 3, 3, 3), float32]").ok


def test_the_interpreter_as_oracle() -> None:
    assert check("def @main(%x: Tensor[(4, 3), float32]) { exp(%x) }", parts=["model"], against="interp").ok


def test_a_machine_that_is_not_there_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise TargetError("no GPU can be used")

    monkeypatch.setattr(check_models, "with_team", absent)
    with pytest.raises(TargetError, match="no GPU"):
        check(LAYERS, parts=["model"])


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="parts: there is no 'pases'"):
        check(LAYERS, parts=["pases"])
    with pytest.raises(ConfigError, match="ONNX Runtime runs ONNX models only"):
        check(LAYERS, against="onnxruntime")
    with pytest.raises(InputError, match="there is no file"):
        check(LAYERS, use="nowhere.py")
    with pytest.raises(InputError, match="is a folder, not a file"):
        check(LAYERS, use=".")


def test_an_empty_model_is_not_proved() -> None:
    found = check("def @main(%x: Tensor[(2, 0), float32]) { %x }", parts=["passes", "kernels"])
    assert not found.ok and "nothing was compared" in repr(found)


def test_the_command(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes is a test that fails until the rule is mended."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])]
    save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), tmp_path / "m.onnx")
    mine = tmp_path / "mine.py"
    mine.write_text(DROPPED.format(result="x"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["check", "m.onnx", "--passes", "--use", "mine.py", "-o", "found"])
    assert done.exit_code == 1 and "rule dropped" in done.output, done.output
    (written,) = pathlib.Path("found").glob("test_*.py")
    test = next(v for name, v in runpy.run_path(str(written)).items() if name.startswith("test_"))
    with pytest.raises(AssertionError, match="rule dropped"):
        test()
    mine.write_text(DROPPED.format(result="relay.maximum(x, relay.const(0.0, 'float32'))"))
    test()


def test_the_command_takes_scalars_and_an_open_batch(tmp_path: pathlib.Path) -> None:
    x, n = (helper.make_tensor_value_info(*one) for one in (("x", 1, ["batch", 3]), ("n", 1, [])))
    graph = helper.make_graph([helper.make_node("Mul", ["x", "n"], ["y"])], "g", [x, n], [_result("y")])
    save(helper.make_model(graph), tmp_path / "m.onnx")
    done = CliRunner().invoke(cli, ["check", str(tmp_path / "m.onnx"), "--value", "n:3", "--against", "onnxruntime"])
    assert done.exit_code == 0 and "beside ONNX Runtime: the numbers agree" in done.output, done.output


def _result(name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, 1, None)


def test_what_a_context_disables_is_not_checked() -> None:
    with minitvm.PassContext(disabled_pass=["AlterOpLayout"]):
        found = check(LAYERS, {"w": np.ones((4, 4, 3, 3), "float32")}, parts=["passes"])
    assert not any("AlterOpLayout" in row.what for row in found.compared)
