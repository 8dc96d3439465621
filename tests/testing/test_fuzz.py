"""The fuzzer: its generators, its judgement, and what it makes of a failure."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import runpy
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import defs, helper, numpy_helper

from minitvm.errors import MiniTVMError
from minitvm.frontend import from_onnx
from minitvm.ir.decision import decisions
from minitvm.passes import default_pipeline
from minitvm.passes.manager import PassContext
from minitvm.target import MachineModel
from tests.fuzz import campaign, generate, peers
from tests.fuzz.campaign import Plan, main
from tests.fuzz.case import Case, Config, Value
from tests.fuzz.draw import GENERATORS, Draw, Reject
from tests.fuzz.failure import shrink, write
from tests.fuzz.freedom import Freedom
from tests.fuzz.judge import Judge, Outcome, Verdict, difference, within_condition
from tests.fuzz.peers import Declines, Question
from tests.fuzz.references import REFERENCES
from tests.fuzz.worker import Crash, Hang, Worker


def test_every_importable_operator_has_a_generator_or_a_reason() -> None:
    assert set(GENERATORS) | set(generate.WITHOUT_GENERATOR) == generate.importable()
    assert not set(GENERATORS) & set(generate.WITHOUT_GENERATOR)


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_every_generator_makes_nodes_of_its_operator(name: str) -> None:
    for attempt in range(400):
        draw = Draw(random.Random(attempt), generate.OPSETS[attempt % len(generate.OPSETS)])
        draw.op = name
        try:
            GENERATORS[name](draw)
        except Reject:
            continue
        assert draw.nodes[-1].op_type == name.rpartition(".")[2]
        return
    pytest.fail("rejected 400 times")


def _same(a: Case, b: Case) -> bool:
    return a.model().SerializeToString() == b.model().SerializeToString() and a.config == b.config


def test_a_case_follows_from_seed_and_index() -> None:
    assert all(_same(generate.case(3, i), generate.case(3, i)) for i in range(20))
    assert not _same(generate.case(3, 0), generate.case(3, 1))


def test_no_value_has_fewer_than_no_elements() -> None:
    """A window much larger than the image: ONNX's shape inference gives -1, and dies of it in the next node."""
    draw = Draw(random.Random(0), 13)
    draw.op = "ConvInteger"
    image, weight = (draw.constant(np.ones((1, 1, size), "uint8")) for size in (2, 9))
    with pytest.raises(Reject, match="less than nothing"):
        draw.node([image, weight])


def test_cases_are_models() -> None:
    for index in range(500):
        case = generate.case(0, index)
        assert len(case.outputs) == len({v.name for v in case.outputs}) > 0
        case.model()
        assert all(type(a) is np.ndarray for feeds in case.feeds for a in feeds.values())


@pytest.mark.parametrize(
    ("only", "rewrites"),
    [
        ("Add Mul MatMul Sqrt Div", "multiply_sum add_constants_of_floats multiply_constants_of_floats"),
        ("Add Mul Gemm Sqrt Div", "divide_by_root"),
        ("Transpose MatMul Add", "transpose_inside_product transpose_left_inside_product merge_transposes"),
        ("Gemm Reshape Add Mul Flatten", "merge_reshapes sink_below_binary drop_multiplied_one"),
        ("Cast Clip DequantizeLinear ArgMax", "merge_casts drop_cast_within_clip drop_dequantize_before_argmax"),
        (
            "Conv Relu Mul Concat MaxPool",
            "CombineParallel BackwardFoldScaleAxis ForwardFoldScaleAxis drop_taps_in_padding",
        ),
        ("ConvTranspose Mul", "transposed_convolution_to_convolution"),
    ],
)
def test_graphs_hold_what_rewrites_look_for(only: str, rewrites: str) -> None:
    wanted = set(rewrites.split())
    for index in range(500):
        model = generate.case(1, index, (3,), only.split()).model()
        with contextlib.suppress(MiniTVMError), PassContext(3), decisions() as log:
            module, _ = from_onnx(model, freeze_params=True)
            default_pipeline(MachineModel(64, 32, threads=2))(module)
        wanted -= {d.by for d in log if d.taken}
        if not wanted:
            return
    pytest.fail(f"never: {wanted}")


# --- comparing ------------------------------------------------------------------------------------------------


def test_roundings_are_no_difference() -> None:
    x = np.linspace(-3, 3, 50, dtype="float32")
    assert difference([x * np.float32(1 + 1e-6)], [x]) is None
    assert difference([x + 1e-2], [x]) is not None
    assert difference([x.astype("float64")], [x]) == "output 0: dtype float64 where float32 is expected"
    assert difference([x[:-1]], [x]) == "output 0: shape (49,) where (50,) is expected"


def test_a_number_is_not_nan_and_infinity_is_not_one() -> None:
    nan, inf, one = (np.array([v], "float32") for v in (np.nan, np.inf, 1.0))
    assert difference([nan], [nan]) is None and difference([inf], [inf]) is None
    assert (
        difference([one], [nan]) and difference([nan], [one]) and difference([inf], [-inf]) and difference([one], [inf])
    )


def test_one_element_that_is_wrong_beside_a_huge_one_is_found() -> None:
    theirs = np.array([1e30, 1.0, 2.0], "float32")
    assert difference([np.array([1e30, 1.1, 2.0], "float32")], [theirs]) is not None


def test_what_roundings_of_the_inputs_move_is_within_the_condition() -> None:
    mine, exact = np.array([1.005], "float32"), np.array([1.0])
    assert within_condition(mine, [exact, np.array([1.001]), np.array([0.999])], "float32").all()
    assert not within_condition(mine, [exact, np.array([1.00001]), np.array([0.99999])], "float32").any()


FUSED = """Attention DynamicQuantizeMatMul EmbedLayerNormalization GatherND GridSample GroupQueryAttention
MatMulIntegerToFloat MatMulNBits QGemm RotaryEmbedding SkipSimplifiedLayerNormalization"""
OPERATORS = [kind.__name__ for kind in REFERENCES if not kind.op_domain]
OPERATORS += [f"com.microsoft.{name}" for name in FUSED.split()]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker(peers.answer)
    yield made
    made.close()


@pytest.mark.parametrize("operator", OPERATORS)
def test_references_written_anew_are_those_of_onnx_runtime(operator: str, worker: Worker) -> None:
    pytest.importorskip("onnxruntime")
    compared = 0
    for index in range(300):
        if compared > 15:
            break
        case = generate.case(2, index, (0,), [operator], generate.of_one_or_two)
        model = case.replace(outputs=case.outputs[:1]).model().SerializeToString()
        answers = [worker.ask(Question(who, model, case.feeds[:1]), 60) for who in ("onnx", "onnxruntime")]
        if any(isinstance(a, Crash) or isinstance(a[0], Declines) for a in answers):
            continue
        (found,), (theirs,) = answers
        literals = [numpy_helper.to_array(n.attribute[0].t) for n in case.nodes if n.op_type == "Constant"]
        given = [*literals, *case.constants.values(), *case.feeds[0].values()]
        squares = all((np.abs(np.nan_to_num(a.astype(np.float64))) < 1e15).all() for a in given)
        tiny = any(a.dtype.kind == "f" and 0 < np.nan_to_num(np.abs(a)).max(initial=0) < 1e-3 for a in given)
        unordered = operator.startswith("Arg") and any(a.dtype.kind == "f" and np.isnan(a).any() for a in given)
        if theirs[0].dtype == np.float16 or not squares or tiny or unordered:
            continue
        compared += bool(theirs[0].size)
        edge = ~np.isfinite(theirs[0]) | (np.abs(theirs[0]) > 1e4) | ~np.isfinite(found[0])
        ours, other = np.where(edge, 0, found[0]), np.where(edge, 0, theirs[0])
        floor = (
            1e-4 + 1e-4 * np.abs(other).max(initial=0) + (other.dtype.kind != "f")
        )  # ONNX rounds, ONNX Runtime cuts; means
        np.testing.assert_allclose(ours, other, 1e-3, floor, err_msg=str(index))
    assert compared >= 3


def test_what_onnx_finds_malformed_has_no_answer() -> None:
    """Its reference evaluator would broadcast."""
    x, four = np.ones((2, 1, 3)), np.ones(4)
    graph = Case([helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y"])], [{"x": x}], {}, [], 21)
    graph = graph.replace(constants=dict.fromkeys("sbmv", four), outputs=[Value("y", "float64", None)])
    (found,) = peers.answer(Question("onnx", graph.model().SerializeToString(), graph.feeds))
    assert isinstance(found, Declines) and "Dimension mismatch" in found.why


def test_a_variance_of_fewer_digits_is_a_number_as_any_other() -> None:
    """The reference takes no root in single precision where the data are double."""
    x, four = np.linspace(1, 9, 8).reshape(1, 4, 2), np.linspace(0.1, 0.9, 4, dtype="float32")
    graph = Case([helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y"])], [{"x": x}], {}, [], 21)
    graph = graph.replace(outputs=[Value("y", "float64", None)])
    answers = []
    for kinds in (("float64", "float64", "float32", "float32"), ("float64",) * 4):
        case = graph.replace(constants={n: four.astype(kind) for n, kind in zip("sbmv", kinds, strict=True)})
        answers += peers.answer(Question("onnx", case.model().SerializeToString(), case.feeds))
    np.testing.assert_array_equal(*answers, strict=True)


@pytest.mark.parametrize("operator", ["If", "Loop", "Scan"])
def test_a_graph_without_its_control_flow_computes_the_same(operator: str) -> None:
    pytest.importorskip("onnxruntime")
    compared = 0
    for index in range(40):
        case = generate.case(4, index, (0,), [operator, "Add"])
        model = case.model().SerializeToString()
        answers = [peers.answer(Question(who, model, case.feeds[:1]))[0] for who in ("onnx", "onnxruntime")]
        if operator not in case.operators or any(isinstance(a, Declines) for a in answers):
            continue
        assert difference(*answers) is None, index
        compared += 1
    assert compared > 5


def test_a_graph_with_sequences_is_evaluated_node_by_node() -> None:
    """Of values of different shapes; one of none, too."""
    pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("SplitToSequence", ["x"], ["s"], axis=1), helper.make_node("SequenceEmpty", [], ["e"])]
    nodes += [helper.make_node("SequenceInsert", ["s", "x"], ["t"]), helper.make_node("SequenceLength", ["e"], ["n"])]
    nodes.append(helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=1))
    results = [Value("y", "float32", None), Value("n", "int64", None)]
    x = np.arange(6, dtype="float32").reshape(2, 3)
    model = Case(nodes, [{"x": x}], {}, results, 18).model().SerializeToString()
    for who in ("onnx", "onnxruntime", "each node"):
        ((joined, count),) = peers.answer(Question(who, model, [{"x": x}]))
        np.testing.assert_array_equal(joined, np.concatenate([x, x], 1), strict=True)
        assert count == 0
    ((_, *moved),) = peers.answer(Question("own", model, [{"x": x}]))
    assert moved and all(np.array_equal(results[0], joined) for results in moved)


def _looped(body: str) -> Case:
    """x + 1, cast inside of a loop of 2 trips."""
    made = [helper.make_node("Cast", ["v"], ["w"], to=6), helper.make_node(body, ["w"], ["out"])]
    made.append(helper.make_node("Identity", ["go"], ["still"]))
    kinds = [("i", 7, []), ("go", 9, []), ("v", 1, [3])], [("still", 9, []), ("v", 1, [3]), ("out", 6, [3])]
    given = [[helper.make_tensor_value_info(*k) for k in each] for each in kinds]
    loop = helper.make_node("Loop", ["n", "", "x"], ["", "y"], body=helper.make_graph(made, "body", *given))
    x = np.array([1.5, 1e20, -3.0], "float32")
    return Case([loop], [{"x": x}], {"n": np.array(2)}, [Value("y", "int32", None)], 13)


def test_rules_reach_into_loops() -> None:
    found = _freedom(_looped("Neg"))
    assert found is not None and "a cast of what does not fit" in found.why
    np.testing.assert_array_equal(found.allows([np.full((2, 3), 77, "int32")])[0], [[False, True, False]] * 2)


def _verdict(case: Case) -> Verdict:
    judge = Judge()
    try:
        return judge.verdict(case)
    finally:
        judge.close()


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_an_index_that_one_peer_finds_outside_is(domain: str) -> None:
    """ONNX Runtime looks at none where there is nothing to gather at each."""
    pytest.importorskip("onnxruntime")
    x, places = np.zeros((2, 2, 0), "int64"), np.array([[6, -12]])
    node = helper.make_node("GatherND", ["x", "i"], ["y"], domain=domain)
    case = Case([node], [{"x": x, "i": places}], {}, [Value("y", "int64", None)], 18)
    assert _verdict(case).outcome is Outcome.NO_ORACLE
    beside = helper.make_node("QuickGelu", ["f"], ["g"], domain="com.microsoft")  # ONNX's reference has none
    case = case.replace(nodes=[*case.nodes, beside], outputs=[*case.outputs, Value("g", "float32", None)])
    case = case.replace(feeds=[{**case.feeds[0], "f": np.ones(3, "float32")}])
    assert _verdict(case).outcome is Outcome.NO_ORACLE


def test_an_index_that_is_outside_of_nothing_has_no_answer() -> None:
    x, places = np.zeros((0, 3, 1)), np.array([2])
    case = Case([helper.make_node("Gather", ["x", "i"], ["y"], axis=2)], [{"x": x, "i": places}], {}, [], 18)
    case = case.replace(outputs=[Value("y", "float64", None)])
    (found,) = peers.answer(Question("onnx", case.model().SerializeToString(), case.feeds))
    assert isinstance(found, Declines) and "IndexError" in found.why


def test_of_no_rows_no_place_is_the_best_and_any_mean_is_right() -> None:
    """ONNX leaves the mean of nothing open; minitvm's is 0 / 0, ONNX Runtime's 0."""
    pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("ArgMax", ["x"], ["i"], axis=1),
        helper.make_node("GatherElements", ["x", "i"], ["b"], axis=1),
    ]
    nodes.append(helper.make_node("ReduceMean", ["b", "a"], ["y"]))
    case = Case(nodes, [{"x": np.zeros((0, 0, 4), "float32")}], {"a": np.array([0])}, [Value("y", "float32", None)], 18)
    found = _freedom(case)
    assert found is not None and found.allows([np.zeros((1, 1, 4), "float32")])[0].all()


@pytest.mark.parametrize(
    ("op", "operands", "dtype"),
    [
        ("QGemm", "aszbsz sz", "uint8"),
        ("MatMulIntegerToFloat", "abss", "float32"),
        ("DynamicQuantizeMatMul", "fbs", "float32"),
    ],
)
def test_a_quantized_product_over_nothing_is_nothing(op: str, operands: str, dtype: str) -> None:
    """ONNX Runtime's is what memory held."""
    pytest.importorskip("onnxruntime")
    codes = {"a": np.zeros((3, 0), "uint8"), "b": np.zeros((0, 5), "uint8"), "f": np.zeros((3, 0), "float32")}
    held = {"s": np.float32(0.1), "z": np.uint8(7)}
    node = helper.make_node(op, [name.strip() for name in operands], ["y"], domain="com.microsoft")
    model = Case([node], [codes], held, [Value("y", dtype, None)], 18).model().SerializeToString()
    ((found,),) = peers.answer(Question("onnx", model, [codes]))
    np.testing.assert_array_equal(found, np.full((3, 5), 7 * (op == "QGemm"), dtype), strict=True)


def test_the_mean_loss_of_nothing_is_any() -> None:
    """0 in ONNX Runtime, NaN in minitvm."""
    pytest.importorskip("onnxruntime")
    case = Case([helper.make_node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"])], [], {}, [], 13)
    feeds = {"x": np.zeros((0, 2), "float32"), "t": np.zeros(0, "int64")}
    found = _freedom(case.replace(feeds=[feeds], outputs=[Value("y", "float32", None)]))
    assert found is not None and found.allows([np.float32(0)])[0].all()


def test_a_gate_that_is_almost_closed_has_the_rounding_of_1() -> None:
    """The sigmoid of -83 is 9e-37, of which half of ``1 + tanh(-83 / 2)`` leaves nothing."""
    pytest.importorskip("onnxruntime")
    x, w, r = (np.full(shape, 1.0, "float32") for shape in ((1, 1, 1), (1, 4, 1), (1, 4, 1)))
    w[0, 1] = -83
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=1)
    case = Case([node], [{"x": x}], {"w": w, "r": r}, [Value("y", "float32", None)], 14)
    (found,) = peers.answer(Question("own", case.model().SerializeToString(), case.feeds))
    assert found[0][0].item() == 0
    assert within_condition(np.full((1, 1, 1, 1), 9e-37, "float32"), [results[0] for results in found]).all()


def test_a_small_tanh_of_an_rnn_has_the_rounding_of_1() -> None:
    """ONNX Runtime's tanh of 2e-5 is off by 3e-8."""
    x, w, r = np.full((1, 1, 1), 2e-5, "float32"), np.ones((1, 1, 1), "float32"), np.zeros((1, 1, 1), "float32")
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=1)
    case = Case([node], [{"x": x}], {"w": w, "r": r}, [Value("y", "float32", None)], 14)
    (found,) = peers.answer(Question("own of onnx", case.model().SerializeToString(), case.feeds))
    assert within_condition(np.full((1, 1, 1, 1), 2.003e-5, "float32"), [results[0] for results in found]).all()


def test_coordinates_have_the_rounding_of_1() -> None:
    """Those of float32 among doubles: 1e-9 and 1 is 1."""
    x, grid = np.array([[[[0.0, 1.0]]]]), np.float32([[[[1e-9, 0.0]]]])
    case = Case([helper.make_node("GridSample", ["x", "g"], ["y"])], [{"x": x, "g": grid}], {}, [], 20)
    case = case.replace(outputs=[Value("y", "float64", None)])
    (found,) = peers.answer(Question("own of onnx", case.model().SerializeToString(), case.feeds))
    assert within_condition(np.full((1, 1, 1, 1), 0.5 + 1e-9), [results[0] for results in found]).all()


def test_where_onnx_runtime_refuses_the_reference_judges() -> None:
    """It divides no integer by zero; the other elements are decided."""
    pytest.importorskip("onnxruntime")
    a, b = np.array([6, 7, 8], "int32"), np.array([3, 0, 2], "int32")
    case = Case([helper.make_node("Div", ["a", "b"], ["y"])], [{"a": a, "b": b}], {}, [Value("y", "int32", None)], 13)
    assert _verdict(case).outcome in (Outcome.AGREED, Outcome.UNSPECIFIED)
    short = case.replace(feeds=[{"a": a, "b": b[:2]}])
    assert _verdict(short).outcome is Outcome.NO_ORACLE


def _freedom(case: Case, answered: tuple[str, ...] = ()) -> Freedom | None:
    question = Question("freedom", case.model().SerializeToString(), case.feeds, answered)
    (found,) = peers.answer(question)
    assert found is None or isinstance(found, Freedom), found
    return found


def test_only_what_moves_with_an_open_element_is_excused() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=6),
        helper.make_node("Add", ["i", "one"], ["y"]),
        helper.make_node("ReduceMax", ["y"], ["z"], keepdims=0),
    ]
    x, one = np.array([[1.5, 1e20, -3.0], [2.0, 3.0, 4.0]], "float32"), np.array([1], "int32")
    outputs = [Value("y", "int32", None), Value("z", "int32", None)]
    found = _freedom(Case(nodes, [{"x": x}], {"one": one}, outputs, 13))
    assert found is not None and found.why == "Cast: a cast of what does not fit"
    wrong = np.full((2, 3), 77, "int32")
    excused, largest = found.allows([wrong, np.array(77, "int32")])
    np.testing.assert_array_equal(excused, [[False, True, False], [False] * 3])
    assert largest
    assert _freedom(Case(nodes, [{"x": np.ones((2, 3), "float32")}], {"one": one}, outputs, 13)) is None


def test_resized_integers_are_open_only_where_they_leave_the_dtype() -> None:
    x = np.array([[[[0, 255, 255, 0, 0, 255]]]], "uint8")
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="cubic")
    case = Case([node], [{"x": x}], {"s": np.float32([1, 1, 1, 3])}, [Value("y", "uint8", None)], 18)
    found, (exact,) = _freedom(case), peers.answer(Question("onnx", case.model().SerializeToString(), case.feeds))
    assert found is not None
    outside = found.allows([exact[0] + np.uint8(60)])[0]  # it wraps what the kernel leaves beyond 255 and below 0
    assert outside.any() and not outside.all()
    wide = case.replace(feeds=[{"x": x // 2 + 50}])
    found = _freedom(wide)
    assert found is not None and not found.allows([exact[0] // 2 + 60])[0].any()


def test_an_upsampling_without_a_second_input_and_infinite_ones_have_an_answer() -> None:
    x = np.array([[[[2.0, 4.0]]]], "float32")
    node = helper.make_node("Upsample", ["x"], ["y"], mode="linear", scales=[1.0, 1.0, 1.0, 2.0])
    case = Case([node], [{"x": x}], {}, [Value("y", "float32", None)], 8)
    ((found,),) = peers.answer(Question("onnx", case.model().SerializeToString(), case.feeds))
    np.testing.assert_array_equal(found, [[[[2.0, 3.0, 4.0, 4.0]]]])
    given = {"i": np.array([0, -1]), "d": np.array(3), "v": np.array([-2.0, np.inf], "float32")}
    case = Case([helper.make_node("OneHot", [*"idv"], ["y"])], [given], {}, [Value("y", "float32", None)], 13)
    ((found,),) = peers.answer(Question("onnx", case.model().SerializeToString(), case.feeds))
    np.testing.assert_array_equal(found, [[np.inf, -2, -2], [-2, -2, np.inf]])


def test_nan_and_the_edge_of_a_pool_are_no_excuse() -> None:
    x = np.array([[[np.nan, -1.0, -2.0, 3.0]]], "float32")
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2])]
    case = Case(nodes, [{"x": x}], {}, [Value("r", "float32", None), Value("p", "float32", None)], 13)
    assert _freedom(case) is None
    (found,) = peers.answer(Question("onnx", case.model().SerializeToString(), case.feeds))
    assert (
        difference(found, [np.array([[[np.nan, 0, 0, 3]]], "float32"), np.array([[[np.nan, -1, 3]]], "float32")])
        is None
    )


def test_what_one_peer_loses_is_judged_from_the_other() -> None:
    """ONNX Runtime's pool drops NaN, which is then no integer; and it takes int8 below 0 for 0 where it antialiases."""
    x = np.array([[[np.nan, -1.0, -2.0]]], "float32")
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[3]),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    constants = {"s": np.array(-3.0, "float32"), "z": np.array(-3, "int16")}
    pooled = Case(nodes, [{"x": x}], constants, [Value("y", "int16", None)], 21)
    image = np.array([[[[-127, 5, -8], [7, 4, -10], [7, 8, 127]]]], "int8")
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear", antialias=1)
    resized = Case([node], [{"x": image}], {"s": np.float32([1, 1, 3, 3])}, [Value("y", "int8", None)], 19)
    judge = Judge()
    try:
        for case in (pooled, resized):
            verdict = judge.verdict(case)
            assert verdict.outcome is Outcome.UNSPECIFIED, verdict
    finally:
        judge.close()


def test_a_fused_convolution_overflows_as_others_do() -> None:
    x, w = np.float32([[[3e38, 1]], [[-3e38, 1]]])[None, :, 0, :, None], np.ones((1, 2, 1, 1), "float32")
    node = helper.make_node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft", activation="Sigmoid")
    found = _freedom(Case([node], [{"x": x}], {"w": w * 2}, [Value("y", "float32", None)], 13))
    assert found is not None and "products that overflow" in found.why
    np.testing.assert_array_equal(found.allows([np.zeros((1, 1, 2, 1), "float32")])[0].reshape(2), [True, False])


def test_what_may_overflow_may_be_infinite() -> None:
    a, b = np.array([[3e38, -3e38]], "float32"), np.array([[3e38], [3e38]], "float32")
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("IsInf", ["c"], ["y"])]
    found = _freedom(Case(nodes, [{"a": a, "b": b}], {}, [Value("y", "bool", None)], 13))
    assert found is not None and found.allows([np.array([[True]])])[0].all()


def test_many_open_elements_may_all_be_everyday_numbers() -> None:
    """A sum of ten products that overflow is NaN as soon as one of them is, or two are infinite."""
    a, b = np.array([[3e38, 3e38]], "float32"), np.array([[1, -1], [1, -1]], "float32")
    nodes = [helper.make_node("MatMul", ["a", "b"], [f"c{i}"]) for i in range(10)]
    nodes += [helper.make_node("Sum", [f"c{i}" for i in range(10)], ["s"])]
    nodes += [helper.make_node("ReduceSum", ["s"], ["t"]), helper.make_node("IsNaN", ["t"], ["y"])]
    found = _freedom(Case(nodes, [{"a": a}], {"b": b}, [Value("y", "bool", None)], 13))
    assert found is not None and found.allows([np.array([[False]])])[0].all()


def test_the_sign_of_zero_among_zeros_decides_between_infinity_and_nan() -> None:
    nodes = [helper.make_node("Max", ["a", "b"], ["c"]), helper.make_node("Reciprocal", ["c"], ["d"])]
    nodes += [helper.make_node("Sqrt", ["d"], ["y"])]
    a, b = np.array([0.0, -0.0, 4.0], "float32"), np.array([-0.0, 0.0, 0.25], "float32")
    found = _freedom(Case(nodes, [{"a": a}], {"b": b}, [Value("y", "float32", None)], 13))
    assert found is not None
    for result in (np.inf, np.nan):
        allowed = found.allows([np.full(3, result, "float32")])[0]
        np.testing.assert_array_equal(allowed, [True, True, False])


def _open_elements(op: str, *operands: np.ndarray, opset: int = 23, dtype: str = "", **given: Any) -> np.ndarray:
    """The elements of one node's result that a rule leaves open."""
    names = [f"x{i}" for i in range(len(operands))]
    case = Case([helper.make_node(op, names, ["y"], **given)], [{"x0": operands[0]}], {}, [], opset)
    case = case.replace(constants=dict(zip(names[1:], operands[1:], strict=True)))
    case = case.replace(outputs=[Value("y", dtype or operands[0].dtype.name, None)])
    found = _freedom(case, ("onnxruntime", "onnx"))
    return np.zeros(0, bool) if found is None else (found.high[0] == np.inf) & (found.low[0] == -np.inf)


def test_products_of_infinity_are_open_where_the_others_may_vanish() -> None:
    small, large = [1e-30, 1e-30, np.inf], [1e30, 1e30, 0.0]
    rows = np.array([small, large, [1e-30, 1.0, np.inf], [np.nan, *small[1:]], [1e30, 1.0, 0.0]], "float32")
    found = _open_elements("ReduceProd", rows, np.array([1]), keepdims=0)
    np.testing.assert_array_equal(found, [True, True, False, False, False])
    assert not _open_elements("ReduceProd", rows.astype("float64"), np.array([1])).any()


def test_products_of_three_matrices_are_open_where_infinity_is_a_factor() -> None:
    a, b, c = np.ones((2, 2), "float32"), np.ones((2, 2), "float32"), np.ones((2, 3), "float32")
    a[1, 0], c[0, 2], b[0, 0] = np.inf, np.inf, np.nan
    found = _open_elements("Einsum", a, b, c, equation="ab,bc,cd->ad")
    np.testing.assert_array_equal(found, [[False, False, True], [True] * 3])
    assert not _open_elements("Einsum", a, b, equation="ab,bc->ac").any()


def test_quotients_of_float16_are_open_where_no_integer_holds_them() -> None:
    x, scale = np.ones((2, 5), "float16"), np.array([[1, 0], [6e-8, 1]], "float16")
    found = _open_elements("QuantizeLinear", x, scale, dtype="uint8", axis=1, block_size=3)
    np.testing.assert_array_equal(found, [[False] * 3 + [True] * 2, [False] * 5])
    assert not _open_elements(
        "QuantizeLinear", x.astype("float32"), scale[0, 1:].astype("float32"), dtype="uint8"
    ).any()


def test_what_has_saturated_moves_over_its_edge() -> None:
    """The inverse of a hyperbolic tangent is NaN or not by one rounding, for every element in the same way."""
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Acosh", ["t"], ["a"])]
    nodes.append(helper.make_node("ReduceMax", ["a"], ["y"], keepdims=0))
    case = Case(nodes, [{"x": np.full(40, 12.0, "float32")}], {}, [Value("y", "float32", None)], 13)
    (found,) = peers.answer(Question("own", case.model().SerializeToString(), case.feeds))
    assert within_condition(np.array(0.0, "float32"), [f[0] for f in found]).all()


# --- workers --------------------------------------------------------------------------------------------------


def _serve(request: str) -> str:
    if request == "die":
        os.abort()
    if request == "sleep":
        time.sleep(60)
    if request == "compute":
        while time.process_time() < 60:
            pass
    return request.upper()


def test_a_worker_that_dies_or_sleeps_is_replaced() -> None:
    worker = Worker(_serve)
    try:
        assert worker.ask("a", 60) == "A"
        crash = worker.ask("die", 60)
        assert isinstance(crash, Crash) and crash.signal == "SIGABRT" and "_serve" in crash.trace
        assert worker.ask("b", 60) == "B"
        assert worker.ask("sleep", 0.1) == Hang(0.1)
        assert worker.ask("compute", 0.5) == Hang(0.5)
        assert worker.ask("c", 60) == "C"
    finally:
        worker.close()


# --- shrinking and writing ------------------------------------------------------------------------------------


class _Planted(Judge):
    """Fails where a Relu is fed a negative number on several threads."""

    def verdict(self, case: Case) -> Verdict:
        if any(len(node.input) < defs.get_schema(node.op_type).min_input for node in case.nodes):
            return Verdict(Outcome.NO_ORACLE)
        negative = any((a < 0).any() for a in {**case.constants, **case.feeds[0]}.values())
        if "Relu" in case.operators and negative and case.config.threads > 1:
            return Verdict(Outcome.FAILED, "difference", "planted")
        return Verdict(Outcome.AGREED)


def _chain() -> Case:
    nodes = [
        helper.make_node("Add", ["input:0", "b"], ["%x"]),
        helper.make_node("Relu", ["%x"], ["y"]),
        helper.make_node("Tanh", ["y"], ["z"]),
    ]
    feeds = {"input:0": np.full((5, 33), -1.0, "float32"), "b": np.full((33,), 0.5, "float32")}
    outputs = [Value("z", "float32", (5, 33)), Value("%x", "float32", (5, 33))]
    return Case(nodes, [feeds, feeds], {}, outputs, 17, Config(3, 16, "llvm -mcpu=haswell", "saved", poison=True))


def test_a_failure_is_shrunk_to_its_cause() -> None:
    judge = _Planted()
    try:
        small, verdict = shrink(_chain(), Verdict(Outcome.FAILED, "difference", "planted"), judge)
    finally:
        judge.close()
    assert small.operators == ("Relu",) and small.config == Config(threads=2) and len(small.feeds) == 1
    assert [a.shape for a in small.feeds[0].values()] == [(1, 1)] and verdict.failed


@pytest.mark.parametrize("way", ["session", "module", "saved"])
def test_a_written_case_is_a_test(way: str, tmp_path: pathlib.Path) -> None:
    case = _chain().replace(config=Config(2, 2, "llvm", way))
    x = np.full((5, 33), -0.5, "float32")
    expected = [np.zeros_like(x), x]
    path = write(case, [expected, expected], 1, "2", 'a "message"', tmp_path)
    runpy.run_path(str(path))["test_fuzz_1_2"](tmp_path)
    wrong = write(case, [[x, x], expected], 1, "3", "wrong", tmp_path)
    with pytest.raises(AssertionError):
        runpy.run_path(str(wrong))["test_fuzz_1_3"](tmp_path)


# --- the whole ------------------------------------------------------------------------------------------------


def test_elementwise_graphs_agree() -> None:
    report = campaign.run(Plan(seed=1, cases=12, levels=(2, 3), only=("Softplus", "Mish")))
    assert report.cases == 12 and not report.findings and report.outcomes["agreed"] > 6


def test_random_graphs_agree_with_other_runtimes() -> None:
    """Under a minute on two cores.  A failure prints how to see it again, and the shrunken case's operators."""
    pytest.importorskip("onnxruntime")
    report = campaign.run(Plan(seed=7, cases=60, jobs=2))
    found = [f"--replay 7:{f.index}: {f.verdict.message} in {f.case.operators}" for f in report.findings.values()]
    assert report.cases == 60 and not found, "\n".join(found)
    assert report.outcomes["agreed"] > 40


def test_the_command_prints_a_table() -> None:
    found = CliRunner().invoke(main, ["--cases", "2", "--only", "Add"])
    assert found.exit_code == 0, found.output
    wrong = CliRunner().invoke(main, ["--levels", "7"])
    assert wrong.exit_code == 2 and "no list of levels" in wrong.output
