"""The fuzzer's families of graphs, and what its judge forgives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from tests.fuzz import campaign
from tests.fuzz.campaign import Plan, main
from tests.fuzz.case import Arrays, Case, Config, Value
from tests.fuzz.families.cases import VARIANTS, family_case
from tests.fuzz.judge import Judge, Outcome
from tests.fuzz.own import own
from tests.fuzz.subject import Task
from tests.fuzz.walk import by_onnxruntime, by_reference, session
from tests.fuzz.widened import widened, widened_feed

SHOWS = {
    "algebra": "Add Mul Div Conv",
    "cnn": "Conv ConvTranspose BatchNormalization Concat Resize AveragePool GlobalAveragePool",
    "flow": "If Loop Scan SequenceAt",
    "quantized": "QuantizeLinear DequantizeLinear QLinearConv MatMulInteger DynamicQuantizeLinear",
    "transformer": "Attention Softmax LayerNormalization Erf Expand com.microsoft.MultiHeadAttention",
    "half": "Conv Softmax",
    "double": "Conv Softmax",
    "open": "Shape Softmax Conv Loop",
}


@pytest.mark.parametrize("family", VARIANTS)
def test_a_family_makes_models_of_what_it_says(family: str) -> None:
    missing = set(SHOWS[family].split())
    for index in range(60):
        case = family_case(family, 3, index, (3,))
        missing -= set(case.operators)
        if index < 10:
            again = family_case(family, 3, index, (3,))
            assert again.model() == case.model() and again.config == case.config
    assert not missing


def test_open_dimensions_are_met_with_nothing_and_with_one() -> None:
    sizes = set()
    for index in range(20):
        case = family_case("open", 1, index, (3,))
        assert case.symbols and len(case.feeds) > 2
        named = {n: dims.index("N") for n, dims in case.symbols.items() if "N" in dims}
        sizes |= {feed[n].shape[axis] for feed in case.feeds for n, axis in named.items()}
    assert {0, 1} < sizes


def test_families_agree_with_other_runtimes() -> None:
    pytest.importorskip("onnxruntime")
    report = campaign.run(Plan(seed=9, cases=len(VARIANTS), families=tuple(VARIANTS), jobs=2, shrink_seconds=0))
    found = [f"--replay 9:{f.number}: {f.verdict.message} in {f.case.operators}" for f in report.findings.values()]
    assert report.cases == len(VARIANTS) and not found, "\n".join(found)


def test_the_command_counts_by_family() -> None:
    found = CliRunner().invoke(main, ["--cases", "1", "--families", "algebra,flow", "--metamorphic"])
    assert found.exit_code == 0 and "family" in found.output, found.output
    assert CliRunner().invoke(main, ["--families", "zoo"]).exit_code == 2


# --- what the judge forgives ----------------------------------------------------------------------------------


class _Given(Judge):
    """minitvm's results are those that are given; level 0 and the model in float64 are minitvm's."""

    def __init__(self, results: list[np.ndarray], alone: bool) -> None:
        super().__init__(alone=alone)
        self.results = results

    def _perform(self, task: Task) -> Any:
        return [self.results] if task.config.level == 3 else super()._perform(task)


def _outcome(case: Case, result: np.ndarray, alone: bool) -> Outcome:
    judge = _Given([result], alone)
    try:
        return judge.verdict(case.replace(config=Config(level=3))).outcome
    finally:
        judge.close()


def _case(constants: Arrays, x: np.ndarray, *nodes: Any) -> Case:
    made = [helper.make_node(op, names.split(), [to]) for op, names, to in nodes]
    return Case(made, [{"x": x}], constants, [Value("y", x.dtype.name, None)], 18)


_RNG = np.random.default_rng(0)
_X = np.array([0.3, 1.7, -2.4, 2.5, 1000.49], "float32")
_MAGIC = np.float32(12582912)
_BIG = np.float32(-1600000)
_NEAR = np.array([1600000, 1600000.5, 1600001, 1600003.25], "float32")
_HALF = np.array([300, -1, 2], "float16")
_TEN = np.full((1, 1, 3, 3), 1e-3, "float16")
_W = np.full((1, 1, 3, 3), 300, "float16")
_ROW = _RNG.normal(size=(4, 64)).astype("float32")
_M = _RNG.normal(size=(64, 8)).astype("float32")
_SPIKED = _ROW.copy()
_SPIKED[0, 0] = 1e8

PLANTED: dict[str, tuple[Case, Callable[[], np.ndarray], Callable[[], np.ndarray]]] = {
    "the rounding idiom becomes x": (
        _case({"c": _MAGIC, "d": -_MAGIC}, _X, ("Add", "x c", "a"), ("Add", "a d", "y")),
        lambda: np.rint(_X),
        lambda: _X,
    ),
    "a factor goes into a sum": (
        _case({"c": _BIG, "s": np.float32(123.456)}, _NEAR, ("Add", "x c", "a"), ("Mul", "a s", "y")),
        lambda: (_NEAR + _BIG) * np.float32(123.456),
        lambda: _NEAR * np.float32(123.456) + _BIG * np.float32(123.456),
    ),
    "-0.0 + 0.0 is dropped": (
        _case({"z": np.float32(0)}, np.float32([-0.0, 2]), ("Add", "x z", "a"), ("Reciprocal", "a", "y")),
        lambda: np.array([np.inf, 0.5], "float32"),
        lambda: np.array([-np.inf, 0.5], "float32"),
    ),
    "a scale makes weights infinite": (
        _case({"w": _W, "s": np.float16(255)}, _TEN, ("Conv", "x w", "a"), ("Mul", "a s", "y")),
        lambda: np.full((1, 1, 1, 1), 688.5, "float16"),
        lambda: np.full((1, 1, 1, 1), np.inf, "float16"),
    ),
    "float16 is not rounded between": (
        _case({"h": np.float16(0.001)}, _HALF, ("Mul", "x x", "a"), ("Mul", "a h", "y")),
        lambda: np.array([np.inf, 0.001, 0.004], "float16"),
        lambda: np.array([90, 0.001, 0.004], "float16"),
    ),
    "one number spreads over rows": (
        _case({"m": _M}, _SPIKED, ("MatMul", "x m", "y")),
        lambda: (_SPIKED.astype("float64") @ _M).astype("float32"),
        lambda: (_SPIKED.astype("float64") @ _M + 3.0).astype("float32"),
    ),
}


@pytest.mark.parametrize("alone", [False, True], ids=["peers", "metamorphic"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_rewrite_is_held_to_the_rounding_of_the_original(name: str, alone: bool) -> None:
    """Near cancellation, at both ends of a dtype and beside a number out of scale; what rounding explains agrees."""
    if not alone:
        pytest.importorskip("onnxruntime")
    case, right, wrong = PLANTED[name]
    with np.errstate(all="ignore"):
        assert _outcome(case, wrong(), alone) is Outcome.FAILED
        assert _outcome(case, right(), alone) is Outcome.AGREED


def test_a_cancelled_sum_of_products_moves_by_its_own_rounding() -> None:
    """Its terms may be added in any order: what is left of them is one number or another."""
    pytest.importorskip("onnxruntime")
    x = np.concatenate([_ROW, -_ROW], 1)
    case = _case({"m": np.concatenate([_M, _M])}, x, ("MatMul", "x m", "y"))
    left = _RNG.normal(0, 3e-6, (4, 8)).astype("float32")
    assert _outcome(case, left, False) is Outcome.AGREED
    assert _outcome(case, left + np.float32(0.01), False) is Outcome.FAILED


@pytest.mark.parametrize("alone", [False, True], ids=["peers", "metamorphic"])
def test_scores_beyond_float16_are_infinite_or_not(alone: bool) -> None:
    """Rows that are no numbers are 0; a kernel that keeps its scores in float32 has none, and nothing else either."""
    if not alone:
        pytest.importorskip("onnxruntime")
    x, constants = np.float16([[1], [300]]), {"k": np.float16([[1, 400]]), "v": np.float16([[1], [2]])}
    nodes = (("MatMul", "x k", "s"), ("Softmax", "s", "p"), ("IsNaN", "p", "n"), ("Where", "n z p", "q"))
    case = _case({**constants, "z": np.float16(0)}, x, *nodes, ("MatMul", "q v", "y"))
    for last, outcome in ((0, Outcome.AGREED), (2, Outcome.AGREED), (1, Outcome.FAILED)):
        assert _outcome(case, np.float16([[2], [last]]), alone) is outcome
    plain = _case({**constants, "v": np.float16([[1], [2**-4]])}, x, ("MatMul", "x k", "s"), ("MatMul", "s v", "y"))
    assert _outcome(plain, np.float16([[26], [np.inf]]), alone) is Outcome.AGREED
    assert _outcome(plain, np.float16([[26], [7800]]), alone) is Outcome.FAILED


def test_a_model_in_float64_is_a_model() -> None:
    case = family_case("cnn", 1, 0, (0,))
    graph = widened(case.model()).graph
    assert {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)} == {TensorProto.DOUBLE}
    assert TensorProto.FLOAT not in {t.data_type for t in graph.initializer}
    assert {a.dtype.name for a in widened_feed(case.feeds[0]).values()} == {"float64"}


def test_an_exponent_and_the_least_number_do_not_move() -> None:
    """A negative number to the power of nearly three is NaN, and a mask beyond the least number infinite."""
    x = np.array([-2.0, -np.finfo("float32").max], "float32")
    case = _case({"e": np.float32(3)}, x, ("Elu", "x", "a"), ("Pow", "a e", "y"))
    found = own(case.model(), case.feeds[0], by_reference)
    assert len(found) > 10 and all(np.isfinite(results[0]).all() for results in found)


@pytest.mark.parametrize(("op", "grows"), [("GRU", False), ("GRU", True), ("LSTM", False), ("RNN", False)])
def test_the_roundings_of_a_recurrence_are_those_of_its_steps(op: str, grows: bool) -> None:
    """A gate that multiplies the state by 4 moves the last state by more than its rounding; a sigmoid does not."""
    pytest.importorskip("onnxruntime")
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    rng = np.random.default_rng(0)
    constants = {"w": rng.uniform(-0.5, 0.5, (2, gates * 4, 3)), "r": rng.uniform(-0.5, 0.5, (2, gates * 4, 4))}
    if grows:
        constants["w"] *= 20
    usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[op]
    chosen = ["LeakyRelu", *usual[1:]] if grows else usual
    node = helper.make_node(
        op, ["x", "w", "r", "", "n"], ["y"], hidden_size=4, direction="bidirectional", activations=chosen * 2
    )
    x = rng.uniform(-1, 1, (6, 2, 3)).astype("float32")
    constants = {"n": np.array([6, 4], "int32"), **{name: a.astype("float32") for name, a in constants.items()}}
    model = Case([node], [{"x": x}], constants, [Value("y", "float32", None)], 20).model()
    found = np.stack([results[0] for results in own(model, {"x": x}, by_onnxruntime)])
    whole = np.asarray(session(model.SerializeToString()).run(None, {"x": x})[0])
    moved = np.abs(found - found[0]).max(axis=0)
    assert (np.abs(whole - found[0]) <= 10 * moved + 1e-6).all()
    assert (moved.max() > 1e-5) == grows
