"""FuseAttention: what graphs of attention become, what stays as it is and why, and that numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from rewriting import assert_same_numbers, check_rewrite, check_unchanged, stayed

import minitvm
from minitvm.driver.compile import backend_for, optimize
from minitvm.frontend import from_onnx
from minitvm.ir.decision import Declined, decisions
from minitvm.ir.expr import Call, Module
from minitvm.ir.ops.nn_attention import Attention
from minitvm.ir.parser import parse_module
from minitvm.ir.visitor import calls
from minitvm.passes import FuseAttention, PassContext
from minitvm.testing import transformer

HEADS = """
def @main(%q: Tensor[(2, 5, 12), float32], %k: Tensor[(2, 7, 12), float32], %v: Tensor[(2, 7, 12), float32],
          %mask: Tensor[(2, 1, 1, 7), float32], %causal: Tensor[(1, 1, 5, 7), bool]) -> Tensor[RESULT, float32] {
  %0 = reshape(%q, newshape=[2, 5, 3, 4]);
  %1 = transpose(%0, axes=[0, 2, 1, 3]);
  %2 = reshape(%k, newshape=[2, 7, 3, 4]);
  %3 = transpose(%2, axes=[0, 2, 3, 1]);
  %4 = reshape(%v, newshape=[2, 7, 3, 4]);
  %5 = transpose(%4, axes=[0, 2, 1, 3]);
  BODY
}
"""
PRODUCTS = """
  %10 = reshape(%1, newshape=[6, 5, 4]);
  %11 = reshape(%3, newshape=[6, 4, 7]);
  %12 = reshape(%5, newshape=[6, 7, 4]);
  %13 = nn.batch_matmul(%10, %11, transpose_b=False);
  %14 = reshape(%13, newshape=[2, 3, 5, 7]);
  SCORES
  %31 = reshape(%30, newshape=[6, 5, 7]);
  %32 = nn.batch_matmul(%31, %12, transpose_b=False);
  REST
"""
MERGED = """
  %33 = reshape(%32, newshape=[2, 3, 5, 4]);
  %34 = transpose(%33, axes=[0, 2, 1, 3]);
  reshape(%34, newshape=[2, 5, 12])
"""
AFTER = """
  %40 = nn.attention(%0, %2, %4MASK);
  reshape(%40, newshape=[2, 5, 12])
"""


def written(body: str, result: str = "(2, 5, 12)", **parts: str) -> str:
    text = HEADS.replace("BODY", body).replace("RESULT", result)
    for name, part in parts.items():
        text = text.replace(name, part)
    lines = text.splitlines()
    used = {line.split("=")[0].strip(): line for line in lines if line.strip().startswith("%") and " = " in line}
    for name in reversed(used):  # what a variant does not need
        if not any(f"{name}{end}" in line for line in lines for end in (",", ")")):
            lines.remove(used[name])
    return "\n".join(lines)


def before(scores: str, rest: str = MERGED, result: str = "(2, 5, 12)") -> str:
    return written(PRODUCTS, result, SCORES=scores, REST=rest)


def after(attributes: str) -> str:
    """With keys that the pass turns back."""
    return written(AFTER, MASK=attributes)


FORMS = {
    "as it is": ("%30 = nn.softmax(%14);", ""),
    "scaled": ("%20 = divide(%14, 4f); %30 = nn.softmax(%20, axis=3);", ", scale=0.25"),
    "masked": ("%20 = multiply(%14, 0.5f); %21 = add(%20, %mask); %30 = nn.softmax(%21);", ", %mask, scale=0.5"),
    "filled": ("%20 = where(%causal, %14, -1000f); %30 = nn.softmax(%20);", ", %causal, fill=-1000.0"),
    "safe": ("%20 = nn.softmax(%14); %21 = isnan(%20); %30 = where(%21, 0f, %20);", ', empty_rows="zero"'),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_exporters_write(form: str) -> None:
    scores, attributes = FORMS[form]
    check_rewrite(FuseAttention(), before(scores), after(attributes))


def test_scales_of_queries_and_of_keys() -> None:
    given = before("%30 = nn.softmax(%14);").replace(
        "%10 =", "%8 = multiply(%1, 0.5f);\n%9 = multiply(%3, 0.25f);\n%10 ="
    )
    given = given.replace("reshape(%1,", "reshape(%8,").replace("reshape(%3,", "reshape(%9,")
    check_rewrite(FuseAttention(), given, after(", scale=0.125"))


def test_several_masks_are_added_first() -> None:
    scores = "%20 = add(%14, %mask); %21 = add(%mask, %20); %30 = nn.softmax(%21);"
    expected = after(", %41").replace("%40 =", "%41 = add(%mask, %mask);\n%40 =")
    check_rewrite(FuseAttention(), before(scores), expected)


def test_products_of_a_plain_batch() -> None:
    text = """
    def @main(%q: Tensor[(6, 5, 4), float32], %k: Tensor[(6, 7, 4), float32],
              %v: Tensor[(6, 3, 7), float32]) -> Tensor[(6, 5, 3), float32] {
      %0 = nn.batch_matmul(%q, %k);
      %1 = nn.softmax(%0);
      nn.batch_matmul(%1, %v)
    }"""
    with PassContext(opt_level=3):
        found = FuseAttention()(parse_module(text))
    [attention] = attentions(found)
    assert attention.shape == (6, 5, 1, 3)
    assert_same_numbers(text, found)


def test_values_of_another_dtype_stay() -> None:
    """As ONNX's FlexAttention is expanded in float16: softmax and its product are of float32."""
    text = """
    def @main(%q: Tensor[(6, 5, 4), float16], %k: Tensor[(6, 7, 4), float16],
              %v: Tensor[(6, 3, 7), float32]) -> Tensor[(6, 5, 3), float32] {
      %0 = nn.batch_matmul(%q, %k);
      %1 = cast(%0, dtype="float32");
      %2 = nn.softmax(%1);
      nn.batch_matmul(%2, %v)
    }"""
    with decisions() as log:
        check_unchanged(FuseAttention(), text)
    assert "its queries, keys and values are of several dtypes, or no floats" in stayed(log)[0]


def test_a_sum_of_integers_stays() -> None:
    text = PLAIN.replace("%9, %v", '%9, %v, out_dtype="int32"').replace("-> Tensor[(6, 5, 3), float32]", "")
    with decisions() as log:
        check_unchanged(FuseAttention(), text.replace("SCORES", "%9 = nn.softmax(%0);"))
    assert "of several dtypes, or no floats" in stayed(log)[0]


STAYS = {
    "softmax over the queries": ("%30 = nn.softmax(%14, axis=2);", "its softmax is not over the places"),
    "capped": ("%20 = tanh(%14); %30 = nn.softmax(%20);", "tanh stands between its products"),
    "a scale of masked scores": (
        "%20 = add(%14, %mask); %21 = multiply(%20, 2f); %30 = nn.softmax(%21);",
        "what is scaled is masked already",
    ),
    "two kinds of masks": (
        "%20 = where(%causal, %14, 0f); %21 = add(%20, %mask); %30 = nn.softmax(%21);",
        "where stands between its products",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_is_no_attention_stays(case: str) -> None:
    scores, reason = STAYS[case]
    with decisions() as log:
        check_unchanged(FuseAttention(), before(scores))
    assert any(reason in line for line in stayed(log)), stayed(log)


def test_probabilities_of_no_product_are_no_attention() -> None:
    text = """
def @main(%scores: Tensor[(6, 5, 7), float32], %v: Tensor[(6, 7, 4), float32]) -> Tensor[(6, 5, 4), float32] {
  %0 = nn.softmax(%scores);
  nn.batch_matmul(%0, %v, transpose_b=False)
}
"""
    with decisions() as log:
        check_unchanged(FuseAttention(), text)
    assert "its probabilities are made of no product" in stayed(log)[0]


def test_scores_that_are_read_elsewhere_stay() -> None:
    rest = "%35 = reshape(%32, newshape=[2, 3, 5, 4]); %36 = sum(%30, axis=[3], keepdims=True); add(%35, %36)"
    with decisions() as log:
        check_unchanged(FuseAttention(), before("%30 = nn.softmax(%14);", rest=rest, result="(2, 3, 5, 4)"))
    assert "nn.softmax between its products is used elsewhere too" in stayed(log)[0]


def test_what_would_be_slower_stays() -> None:
    with decisions() as log:
        check_unchanged(FuseAttention(lambda call: Declined("few queries")), before("%30 = nn.softmax(%14);"))
    assert stayed(log) == ["nn.batch_matmul: few queries"]


def test_a_row_of_one_query_is_slower() -> None:
    """Lanes are queries."""
    net = transformer.get_net(sequence_length=1, num_layers=1, hidden_size=32, num_heads=4)
    with decisions() as log:
        optimized(Module(net))
    assert any("cycles predicted" in line for line in stayed(log)), stayed(log)


def test_of_layers_alike_one_is_asked_about() -> None:
    asked: list[Call] = []

    def slower(call: Call) -> Declined | None:
        asked.append(call)
        return None

    module, params = transformer.get_workload(sequence_length=8, num_layers=5, hidden_size=32, num_heads=4)
    with decisions() as log:
        optimize(module, backend_for("llvm -mcpu=haswell", 1).machine, params, opt_level=3, slower=slower)
    fused = [one for one in log if one.by == "FuseAttention" and one.taken]
    assert len(fused) == 5 and len(asked) == 1


# --- nearly attention ---------------------------------------------------------------------------------------------

PLAIN = """
def @main(%q: Tensor[(6, 5, 4), float32], %k: Tensor[(6, 7, 4), float32], %v: Tensor[(6, 3, 7), float32],
          %row: Tensor[(7,), float32], %like: Tensor[(6, 5, 7), float32], %twice: Tensor[(2, 6, 5, 7), float32],
          %c: Tensor[(6, 5, 7), bool]) -> Tensor[(6, 5, 3), float32] {
  %0 = nn.batch_matmul(%q, %k);
  SCORES
  nn.batch_matmul(%9, %v)
}
"""
NEARLY = {
    "a factor for each place": ("%1 = multiply(%0, %row); %9 = nn.softmax(%1);", "multiply is no scale of the product"),
    "divided by nothing": ("%1 = divide(%0, 0f); %9 = nn.softmax(%1);", "divide is no scale of the product"),
    "divided by numbers": ("%1 = divide(%0, %row); %9 = nn.softmax(%1);", "divide is no scale of the product"),
    "rows become columns": (
        "%1 = reshape(%0, newshape=[6, 7, 5]); %2 = nn.softmax(%1); %9 = reshape(%2, newshape=[6, 5, 7]);",
        "its scores are reshaped from",
    ),
    "five dimensions": (
        "%1 = reshape(%0, newshape=[2, 1, 3, 5, 7]); %2 = nn.softmax(%1); %9 = reshape(%2, newshape=[6, 5, 7]);",
        "its scores are reshaped from",
    ),
    "two kinds of heads": (
        "%1 = reshape(%0, newshape=[2, 3, 5, 7]); %2 = reshape(%1, newshape=[3, 2, 5, 7]); %3 = nn.softmax(%2);"
        "%9 = reshape(%3, newshape=[6, 5, 7]);",
        "its scores are (3, 2, 5, 7) and (2, 3, 5, 7)",
    ),
    "rounded to integers": (
        '%1 = cast(%0, dtype="int32"); %2 = cast(%1, dtype="float32"); %9 = nn.softmax(%2);',
        "it casts scores",
    ),
    "chosen twice": (
        "%1 = where(%c, %0, -1f); %2 = where(%c, %1, -2f); %9 = nn.softmax(%2);",
        "where stands between its products",
    ),
    "chosen where it is masked": ("%1 = where(%c, -1f, %0); %9 = nn.softmax(%1);", "where stands between its products"),
    "chosen beside others": ("%1 = where(%c, %0, %like); %9 = nn.softmax(%1);", "where stands between its products"),
    "a sum of other things": ("%1 = add(%like, %row); %9 = nn.softmax(%1);", "add stands between its products"),
    "a difference": ("%1 = subtract(%0, %like); %9 = nn.softmax(%1);", "subtract stands between its products"),
    "two masks of a batch": (
        "%1 = add(%0, %twice); %2 = nn.softmax(%1); %3 = sum(%2, axis=[0]); %9 = nn.softmax(%3);",
        "sum stands between its products",
    ),
}


@pytest.mark.parametrize("case", NEARLY)
def test_what_is_nearly_attention_stays(case: str) -> None:
    scores, reason = NEARLY[case]
    with decisions() as log:
        check_unchanged(FuseAttention(), PLAIN.replace("SCORES", scores))
    assert any(reason in line for line in stayed(log)), stayed(log)


SHAPES = {
    "shared keys": ("(6, 5, 4)", "(1, 7, 4)", "(6, 3, 7)", "", "its heads share keys or values"),
    "shared values": ("(6, 5, 4)", "(6, 7, 4)", "(1, 3, 7)", "", "its heads share keys or values"),
    "turned queries": ("(6, 4, 5)", "(6, 7, 4)", "(6, 3, 7)", ", transpose_a=True", "its products are turned"),
    "open queries": ("(6, ?, 4)", "(6, 7, 4)", "(6, 3, 7)", "", "are known only when the model runs"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_operands_of_other_shapes_stay(case: str) -> None:
    q, k, v, turned, reason = SHAPES[case]
    given = f"%q: Tensor[{q}, float32], %k: Tensor[{k}, float32], %v: Tensor[{v}, float32]"
    body = f"%0 = nn.batch_matmul(%q, %k{turned}); %1 = nn.softmax(%0); nn.batch_matmul(%1, %v)"
    with decisions() as log, PassContext(opt_level=3):
        module = parse_module(f"def @main({given}) {{ {body} }}")
        assert FuseAttention()(module) is module
    assert any(reason in line for line in stayed(log)), stayed(log)


QUERIES = {
    "with rows before heads": ("(5, 6, 4)", "transpose(%q, axes=[1, 0, 2])"),
    "turned": ("(6, 4, 5)", "transpose(%q, axes=[0, 2, 1])"),
    "of one row": ("(6, 20)", "reshape(%q, newshape=[6, 5, 4])"),
    "of other halves": ("(2, 3, 4, 5)", "reshape(%q, newshape=[6, 5, 4])"),
    "of more than heads": ("(2, 3, 5, 2, 2)", "reshape(%q, newshape=[6, 5, 4])"),
    "by two numbers": ("(6, 5, 4)", "divide(multiply(3f, %q), 2f)"),
    "by a number for each": ("(6, 5, 4)", "multiply(%q, %w)"),
}


@pytest.mark.parametrize(
    "rest", ["%2", "reshape(%2, newshape=[30, 3])", "transpose(%2, axes=[0, 2, 1])", "nn.relu(%2)"]
)
@pytest.mark.parametrize("case", QUERIES)
def test_queries_of_any_form_keep_the_numbers(case: str, rest: str) -> None:
    shape, made = QUERIES[case]
    given = f"%q: Tensor[{shape}, float32], %w: Tensor[(4,), float32], %k: Tensor[(6, 7, 4), float32]"
    text = f"""def @main({given}, %v: Tensor[(6, 3, 7), float32]) {{
        %0 = nn.batch_matmul({made}, %k); %1 = nn.softmax(%0); %2 = nn.batch_matmul(%1, %v); {rest} }}"""
    with PassContext(opt_level=3):
        found = FuseAttention()(parse_module(text))
    assert len(attentions(found)) == 1
    assert_same_numbers(text, found)


# --- whole networks -----------------------------------------------------------------------------------------------


def attentions(module: Module) -> list[Call]:
    return [call for call in calls(module.main.body) if isinstance(call.op, Attention)]


def optimized(module: Module) -> Module:
    backend = backend_for("llvm -mcpu=haswell", 1)
    return optimize(module, backend.machine, opt_level=3, slower=backend.slower)


def test_a_transformer_is_one_kernel_a_layer_and_moves_nothing() -> None:
    module, params = transformer.get_workload(sequence_length=24, num_layers=2, hidden_size=32, num_heads=4)
    library = minitvm.build(module, params=params, opt_level=3)
    with PassContext(disabled_pass=["FuseAttention"]):
        plain = minitvm.build(module, params=params, opt_level=3)
    data = np.random.default_rng(0).normal(size=(1, 24, 32)).astype("float32")
    found, wanted = (lib.run({"data": data})[0] for lib in (library, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    names = " ".join(library.report.groups)
    assert "softmax" not in names and "transpose" not in names and "batch_matmul" not in names


def attention_model(batch: int, length: int, places: int, **attributes: Any) -> Any:
    shapes = {"q": (batch, length, 12), "k": (batch, places, 12), "v": (batch, places, 12), "b": (36,)}
    mask = helper.make_tensor_value_info("mask", TensorProto.INT32, (batch, places))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    names = [*shapes, "mask"]
    node = helper.make_node("MultiHeadAttention", names, ["y"], domain="com.microsoft", num_heads=3, **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, length, 12))
    graph = helper.make_graph([node], "attention", [*inputs, mask], [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("target", ["llvm", "interp"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_contrib_attention_beside_onnxruntime(target: str, unidirectional: int) -> None:
    model, rng = attention_model(2, 19, 19, unidirectional=unidirectional), np.random.default_rng(1)
    module, params = from_onnx(model)
    feeds: dict[str, np.ndarray] = {
        name: rng.normal(size=shape).astype("float32")
        for name, shape in (("q", (2, 19, 12)), ("k", (2, 19, 12)), ("v", (2, 19, 12)), ("b", (36,)))
    }
    feeds["mask"] = (np.arange(19) < np.array([[19], [7]])).astype("int32")
    with PassContext(opt_level=3):
        module = FuseAttention()(module)
    assert len(attentions(module)) == 1
    library = minitvm.build(module, target=target, params=params, opt_level=3)
    [wanted] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(library.run(feeds)[0], wanted, rtol=2e-5, atol=2e-5)
