"""ToMixedPrecision with Relay's results, and analyses: numbered expressions, what is quantized, features."""

from __future__ import annotations

from typing import Any

import pytest

from minitvm import relay
from minitvm.errors import MiniTVMError
from minitvm.ir.expr import Module
from minitvm.ir.structural import assert_structural_equal
from minitvm.passes import PassContext
from minitvm.tvm.relay import analysis, transform

X, W = relay.var("x", shape=(1, 3, 8, 8)), relay.var("w", shape=(5, 3, 3, 3))


def half(value: Any) -> Any:
    return relay.cast(value, "float16")


CONV = relay.nn.conv2d(X, W, padding=(1, 1), out_dtype="float32")
SHORT = relay.nn.conv2d(half(X), half(W), padding=(1, 1), out_dtype="float16")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CONV, SHORT),
        (CONV + CONV, SHORT + SHORT),
        (relay.nn.softmax(CONV), relay.nn.softmax(relay.cast(SHORT, "float32"))),
        (relay.Tuple([CONV, X]), relay.Tuple([SHORT, X])),
        (relay.mean(X), relay.mean(X)),
        (relay.cast(half(CONV), "float32"), relay.cast(half(relay.cast(SHORT, "float32")), "float32")),
    ],
)  # fmt: skip
def test_results_end_in_float16(before: Any, after: Any) -> None:
    found = transform.ToMixedPrecision("float16")(Module.from_expr(before))
    assert_structural_equal(found, Module.from_expr(after))


def test_results_keep_theirs_where_the_context_says_so() -> None:
    with PassContext(config={"relay.ToMixedPrecision.keep_orig_output_dtype": True}):
        found = transform.ToMixedPrecision()(Module.from_expr(CONV))
    assert_structural_equal(found, Module.from_expr(relay.cast(SHORT, "float32")))
    with pytest.raises(MiniTVMError, match="no mixed precision in 'float64'"):
        transform.ToMixedPrecision("float64")
    with pytest.raises(MiniTVMError, match="missing_op_mode is 7"):
        transform.ToMixedPrecision("float16", 7)


def test_expressions_by_number() -> None:
    first = relay.exp(X)
    parts = relay.split(first, 3, axis=1)
    module = Module.from_expr(relay.add(parts[1], relay.const(1.0)))
    for number, want in enumerate([first, parts, parts[1], module.main.body]):
        assert_structural_equal(analysis.extract_intermediate_expr(module, number), Module.from_expr(want))
    assert analysis.extract_intermdeiate_expr is analysis.extract_intermediate_expr
    with pytest.raises(MiniTVMError, match="there is no expression 4"):
        analysis.extract_intermediate_expr(module, 4)


def test_operators_between_quantizations() -> None:
    one, zero = relay.const(1.0), relay.const(0)
    real = relay.qnn.op.dequantize(relay.var("q", shape=(1, 4, 8, 8), dtype="int8"), one, zero)
    pooled = relay.nn.max_pool2d(relay.nn.relu(relay.nn.relu(real)), (2, 2), (2, 2))
    quantized = relay.qnn.op.quantize(pooled, one, zero)
    assert analysis.list_fake_quantized_op_freqs(Module.from_expr(quantized)) == {"nn.relu": 2, "nn.max_pool2d": 1}
    half_known = relay.qnn.op.quantize(relay.add(pooled, relay.var("f", shape=(1, 4, 4, 4))), one, zero)
    assert analysis.list_fake_quantized_op_freqs(Module.from_expr(half_known)) == {}
    assert analysis.list_fake_quantized_op_freqs(relay.qnn.op.quantize(X, one, zero)) == {}


def test_features() -> None:
    feature = analysis.Feature
    assert analysis.detect_feature(X) == {feature.fVar}
    body = relay.Tuple([relay.exp(X), relay.const(1.0)])
    own = {feature.fVar, feature.fCall, feature.fOp, feature.fTuple, feature.fConstant}
    assert analysis.detect_feature(body) == own
    assert analysis.detect_feature(Module.from_expr(body)) == own | {feature.fFunction}
    assert feature.fGraph in analysis.detect_feature(CONV + CONV)
    choice = relay.If(relay.var("c", "bool"), X, relay.exp(X))
    assert feature.fIf in analysis.detect_feature(choice, body)
