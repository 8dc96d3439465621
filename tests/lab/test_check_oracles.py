"""Who says what is right: other implementations of ONNX beside the import, what they refuse, and float64."""

from __future__ import annotations

import pathlib
import runpy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from benchmarks.onnx_models import Graph
from minitvm import relay
from minitvm.frontend.onnx import registry
from minitvm.ir.decision import Declined
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Constant, Expr, Function, Module
from minitvm.ir.pattern import call, const, value
from minitvm.lab import check, check_oracles
from minitvm.lab.check_all import as_module
from minitvm.lab.check_double import error_of, evaluated, excuse
from minitvm.lab.check_result import Checked, Outcome
from minitvm.passes import Rule, rule

FOREIGN = ("reference", "onnxruntime")


def perceptron() -> Any:
    g = Graph()
    hidden = g.node("Elu", [g.linear("data", 8, 6)], alpha=0.5)
    return g.model(g.node("Softmax", [g.node("Tanh", [g.linear(hidden, 6, 5)])]), [2, 8])


def of_one_node(op_type: str, dtype: int, shape: list[int], result: int = 0, **attributes: Any) -> ModelProto:
    x, y = (helper.make_tensor_value_info(n, d, shape) for n, d in (("x", dtype), ("y", result or dtype)))
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], "it", **attributes)], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def imported(model: Any, against: str, **options: Any) -> Checked:
    return check(model, parts=["import"], against=against, **options)


@pytest.mark.parametrize("against", FOREIGN)
def test_a_model_is_imported_right(against: str) -> None:
    found = imported(perceptron(), against)
    assert found.ok and found.compared[0].what.startswith("beside ONNX")


@pytest.mark.parametrize("against", FOREIGN)
def test_a_wrong_importer_function_is_named_and_its_node_alone_shows_it(
    against: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    with monkeypatch.context() as planted:
        planted.setitem(registry.BUILDERS, ("", "Tanh"), {1: lambda node: relay.sigmoid(node.inputs[0])})
        found = check(perceptron(), parts=["import", "model"], against=against, output=tmp_path)
        assert {row.part: row.outcome for row in found.compared} == {
            "import": Outcome.DIFFERS, "model": Outcome.AGREES,  # what was imported is compiled right
        }  # fmt: skip
        (finding,) = found.findings
        assert finding.guilty.startswith("the importer function of Tanh, on node 'tanh_") and finding.calls == 1
        assert finding.path is not None
        test = next(v for n, v in runpy.run_path(str(finding.path)).items() if n.startswith("test_"))
        with pytest.raises(AssertionError, match="the importer function of Tanh"):
            test()
    test()


def test_an_importer_that_is_wrong_for_some_inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rounding explains it: the model is held beside itself, not beside the oracle, to see what that changes."""
    planted = {1: lambda node: relay.maximum(node.inputs[0], relay.const(-0.2, "float32"))}
    monkeypatch.setitem(registry.BUILDERS, ("", "Elu"), planted)
    (finding,) = imported(perceptron(), "onnxruntime").findings
    assert finding.guilty.startswith("the importer function of Elu")


def test_a_refusal_is_told_with_its_type_and_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    class Refusing:
        def __init__(self, *given: Any, **options: Any) -> None: ...

        def run(self, *given: Any) -> Any:
            raise onnxruntime.capi.onnxruntime_pybind11_state.Fail("[ONNXRuntimeError] : 1 : no such kernel\nmore")

    monkeypatch.setattr(onnxruntime, "InferenceSession", Refusing)
    found = imported(perceptron(), "onnxruntime")
    (row,) = found.compared
    assert row.outcome is Outcome.OPEN and not found.ok
    assert (
        "not on small, positive, wide, huge: ONNX Runtime refuses: Fail: [ONNXRuntimeError] : 1 : no such" in row.said
    )
    assert "more" not in row.said


def test_where_oracles_differ_nobody_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(check_oracles._EVALUATOR, start=lambda model, plainly: lambda feeds: [np.ones((2, 5), "float32")])
    monkeypatch.setattr(check_oracles, "_EVALUATOR", wrong)
    found = imported(perceptron(), "reference")
    (row,) = found.compared
    assert row.outcome is Outcome.OPEN and not found.findings
    assert "but ONNX Runtime says as minitvm does: the numbers agree on inputs that are small" in row.said


def test_text_is_not_drawn() -> None:
    model = of_one_node("StringNormalizer", TensorProto.STRING, [4], case_change_action="LOWER")
    with pytest.warns(UserWarning, match="StringNormalizer"):
        found = check(model, parts=["import", "model"], against="reference")
    assert {row.outcome for row in found.compared} == {Outcome.OPEN} and not found.findings
    assert all("%x is Tensor[(4,), string], of which no value is drawn" in row.said for row in found.compared)


def test_what_an_oracle_rounds_away_itself_is_no_difference() -> None:
    """ONNX Runtime's sigmoid of -20 is 0 or 6e-8; it is 2e-9."""
    model = of_one_node("Sigmoid", TensorProto.FLOAT, [3, 40])
    assert imported(model, "onnxruntime").ok


def test_chance_is_not_compared() -> None:
    model = of_one_node("Bernoulli", TensorProto.FLOAT, [30])
    (row,) = imported(model, "reference").compared
    assert row.outcome is Outcome.OPEN


# --- float64 ----------------------------------------------------------------------------------------------------------

TERMS = 64


def cancelling() -> Module:
    """Sums of large terms of which little is left, over whole numbers: moving these by a few units in their last place
    shows nothing, as somebody rounded to them, yet the order of the sum decides the result."""
    rng = np.random.default_rng(5)
    large = rng.uniform(1e5, 2e5, (3, TERMS)).astype("float32")
    little = rng.integers(1, 9, (3, TERMS)).astype("float32")
    x = relay.var("x", shape=(4, TERMS))
    rounded = relay.round(x)
    weight = relay.const(np.concatenate([large, little - large], 1))
    return Module(Function([x], relay.nn.dense(relay.concatenate([rounded, rounded], axis=1), weight)))


def halves(x: Expr, w: Constant, scale: float) -> Expr | Declined:
    if w.value.shape[1] != 2 * TERMS:
        return Declined("it is a half")
    first, second = (relay.strided_slice(x, begin=[0, k], end=[4, k + TERMS]) for k in (0, TERMS))
    left, right = (relay.const(np.ascontiguousarray(part)) for part in np.split(w.value, 2, axis=1))
    added = relay.add(relay.nn.dense(first, left), relay.nn.dense(second, right))
    return relay.multiply(added, relay.const(scale, "float32"))


@rule(call("nn.dense", value("x"), const("w")))
def in_halves(x: Expr, w: Constant) -> Expr | Declined:
    """Right, and rounds otherwise."""
    return halves(x, w, 1.0)


@rule(call("nn.dense", value("x"), const("w")))
def in_wrong_halves(x: Expr, w: Constant) -> Expr | Declined:
    """Wrong, by no more than what rounding makes of the model."""
    return halves(x, w, 0.999)


@pytest.mark.parametrize(("step", "outcome"), [(in_halves, Outcome.ILL), (in_wrong_halves, Outcome.DIFFERS)])
def test_a_pass_that_rounds_otherwise_is_explained_by_float64_and_a_wrong_one_is_not(
    step: Rule, outcome: Outcome
) -> None:
    found = check(cancelling(), parts=["passes"], passes=[step], reduction=0)
    row = next(row for row in found.compared if row.part == "passes" and row.what.startswith(step.name))
    assert row.outcome is outcome, found
    assert ("in float64 both are equal to" in row.said) is (outcome is Outcome.ILL)


def test_a_compiled_model_is_explained_by_its_own_error_and_a_wrong_one_is_not() -> None:
    module, x = as_module(cancelling()), np.random.default_rng(1).uniform(-9, 9, (4, TERMS)).astype("float32")
    exact, own = evaluated(module.main, [x]), [np.asarray(evaluate(module.main, x))]
    assert not isinstance(exact, Declined) and exact[0].dtype == np.float64
    off = error_of(own, exact)
    assert 1e-4 < off < 0.5
    step = off * float(np.abs(exact[0]).max())
    assert "roundings decide this result" in excuse(exact, own, [exact[0] + 2 * step])
    assert excuse(exact, own, [exact[0] + 9 * step]) == ""
    assert excuse(Declined("no double"), own, own) == ""
    assert excuse(exact, own, [np.full_like(own[0], np.nan)]) == ""
