"""FakeQuantizationToInteger as Relay has it: every rule, drawn chains of them, what declines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm.errors import PassError
from minitvm.ir import builder as ir
from minitvm.ir.decision import decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Module
from minitvm.ir.structural import assert_structural_equal
from minitvm.ir.visitor import calls
from minitvm.tvm import relay
from minitvm.tvm.relay import transform
from minitvm.tvm.relay.fake_quantization import TensorAffineType
from minitvm.tvm.relay.fake_quantization_rules import ON_DEMAND, RULES
from minitvm.tvm.relay.registered import TempOpAttr

SHAPE = (2, 4, 6, 6)


def source(name: str, shape: Any = SHAPE, dtype: str = "int8", scale: Any = 0.5, zero: Any = 0, axis: int = 1) -> Any:
    return relay.qnn.op.dequantize(
        relay.var(name, shape=shape, dtype=dtype), relay.const(scale), relay.const(zero), axis=axis
    )


def quantized(value: Any, scale: Any = 0.5, zero: Any = 0, dtype: str = "int8") -> Module:
    found = relay.qnn.op.quantize(value, relay.const(scale), relay.const(zero), axis=1, out_dtype=dtype)
    return Module.from_expr(found)


def compare(module: Module, **options: Any) -> tuple[Module, int]:
    """The module of integers, and by how many steps it is off."""
    made = transform.FakeQuantizationToInteger(**options)(module)
    r = np.random.default_rng(7)
    arrays = [ints(r, p.dtype).choice(r, p.shape) for p in module.main.params]
    before, after = (np.asarray(evaluate(m, *arrays), "int64") for m in (module, made))
    return made, int(abs(before - after).max())


class ints:
    def __init__(self, r: np.random.Generator, dtype: str) -> None:
        self.dtype, self.info = dtype, np.iinfo(dtype if dtype != "int32" else "int16")

    def choice(self, r: np.random.Generator, shape: Any) -> np.ndarray:
        return r.integers(self.info.min, self.info.max + 1, shape).astype(self.dtype)


X, BYTES = source("x"), source("u", dtype="uint8", scale=0.02, zero=114)
SCALES = np.linspace(0.01, 0.02, 8, dtype="float32")
WEIGHTS = source("w", (8, 4, 3, 3), scale=0.25)
ONE_BY_ONE: dict[str, Any] = {
    "reshape": lambda: ir.reshape(X, newshape=(2, -1)),
    "squeeze": lambda: ir.squeeze(ir.expand_dims(X, axis=0), axis=(0,)),
    "strided_slice": lambda: relay.strided_slice(X, [0, 1, 0, 0], [2, 3, 6, 6]),
    "nn.batch_flatten": lambda: relay.nn.batch_flatten(X),
    "nn.depth_to_space": lambda: relay.nn.depth_to_space(X, 2),
    "nn.space_to_depth": lambda: relay.nn.space_to_depth(X, 2),
    "take": lambda: relay.take(X, relay.const([1, 0, 3]), axis=1),
    "nn.max_pool2d": lambda: relay.nn.max_pool2d(X, (3, 3), padding=(1, 1)),
    "max": lambda: relay.max(X, axis=1),
    "min": lambda: relay.min(BYTES),
    "broadcast_to": lambda: relay.broadcast_to(source("x", (1, 4, 1, 1)), SHAPE),
    "split": lambda: relay.split(X, 2, axis=2)[1],
    "tile": lambda: relay.tile(X, (1, 2, 1, 1)),
    "reverse": lambda: relay.reverse(X, axis=2),
    "topk": lambda: relay.topk(source("x", (5, 9)), 3, 1, "values"),
    "repeat": lambda: relay.repeat(X, 2, axis=1),
    "transpose": lambda: relay.nn.relu(relay.transpose(source("x", scale=[1.0, 2.0, 3.0, 4.0]), (1, 0, 2, 3))),
    "concatenate": lambda: relay.concatenate([X, BYTES, source("v", scale=1.5)], axis=1),
    "nn.pad": lambda: relay.nn.pad(BYTES, ((0, 0), (0, 0), (1, 2), (0, 1)), 0.333),
    "clip": lambda: relay.clip(BYTES, 0.101, 1.7),
    "nn.relu": lambda: relay.nn.relu(source("x", scale=[0.1, 2.0, 3.0, 4.0], zero=[3, -1, 0, 7])),
    "minimum": lambda: relay.minimum(X, BYTES),
    "maximum": lambda: relay.maximum(BYTES, relay.const(0.77)),
    "abs": lambda: relay.abs(BYTES),
    "add": lambda: relay.add(source("x", scale=[0.1, 0.2, 0.3, 0.4]), BYTES),
    "subtract": lambda: relay.subtract(relay.const(0.3), BYTES),
    "nn.bias_add": lambda: relay.nn.bias_add(relay.nn.conv2d(X, WEIGHTS), source("b", (8,), "int32", 0.03, axis=0)),
    "multiply": lambda: relay.multiply(BYTES, relay.const(np.linspace(-1.0, 1.0, 6, dtype="float32"))),
    "nn.conv2d": lambda: relay.nn.conv2d(
        BYTES, source("w", (8, 4, 3, 3), scale=SCALES, zero=3, axis=0), padding=(1, 1)
    ),
    "nn.conv2d_transpose": lambda: relay.nn.conv2d_transpose(
        BYTES, source("w", (4, 8, 3, 3), scale=0.01), kernel_size=(3, 3), channels=8, padding=(1, 1)
    ),
    "nn.dense": lambda: relay.nn.dense(source("x", (3, 16), zero=-4), source("w", (5, 16), scale=0.02)),
    "nn.batch_matmul": lambda: relay.nn.batch_matmul(source("x", (2, 3, 16)), source("w", (2, 5, 16), scale=0.02)),
    "nn.avg_pool2d": lambda: relay.nn.avg_pool2d(BYTES, (3, 3), padding=(1, 1), count_include_pad=True),
    "nn.global_avg_pool2d": lambda: relay.nn.global_avg_pool2d(BYTES),
    "mean": lambda: relay.mean(BYTES, axis=[1, 3]),
    "image.resize2d": lambda: relay.image.resize2d(BYTES, (9, 4), method="linear"),
    "nn.softmax": lambda: relay.nn.softmax(source("x", (5, 10), scale=0.1, zero=9), axis=1),
    **{
        name: lambda name=name: getattr(relay, name)(source("x", zero=-129, scale=0.03))
        for name in ("sqrt", "rsqrt", "log")
    },
    **{name: lambda name=name: getattr(relay, name)(BYTES) for name in ("exp", "erf", "sigmoid", "tanh")},
    "nn.leaky_relu": lambda: relay.nn.leaky_relu(BYTES, 0.1),
}


@pytest.mark.parametrize("name", ONE_BY_ONE)
@pytest.mark.parametrize(("scale", "zero", "dtype"), [(0.5, 0, "int8"), (0.013, 101, "uint8")])
def test_a_rule_computes_with_integers(name: str, scale: float, zero: int, dtype: str) -> None:
    module = quantized(ONE_BY_ONE[name](), scale, zero, dtype)
    made, off = compare(module, hard_fail=True, optional_qnn_ops=["nn.softmax"])
    assert off <= 1
    assert "qnn.dequantize" not in [c.op.name for c in calls(made.main.body)]


def test_every_rule_has_a_case() -> None:
    others = {"expand_dims", "nn.max_pool1d", "nn.max_pool3d", "nn.global_max_pool2d", "copy", "gather", "gather_nd"}
    assert set(RULES) - others - {"nn.avg_pool1d", "nn.avg_pool3d", "nn.hardswish"} == set(ONE_BY_ONE)
    assert set(RULES) >= ON_DEMAND


def drawn(seed: int) -> Module:
    """A chain of operators between two quantized tensors and a quantized result."""
    r = np.random.default_rng(seed)

    def leaf(name: str) -> Any:
        dtype = str(r.choice(["int8", "uint8"]))
        zero = int(r.integers(-100, 100)) + (0 if dtype == "int8" else 120)
        scale = r.uniform(0.01, 0.1, 4).astype("float32") if r.random() < 0.2 else float(r.uniform(0.01, 0.1))
        return source(name, dtype=dtype, scale=scale, zero=zero)

    value, other = leaf("x"), leaf("y")
    steps = [
        lambda v: relay.add(v, other),
        lambda v: relay.subtract(other, v),
        lambda v: relay.maximum(v, other),
        lambda v: relay.minimum(v, relay.const(float(r.normal()))),
        lambda v: relay.clip(v, -0.5, float(r.uniform(0, 2))),
        lambda v: relay.multiply(v, relay.const(float(r.normal()))),
        lambda v: relay.multiply(v, other),
        relay.nn.relu,
        lambda v: relay.multiply(relay.sigmoid(other), v),
        lambda v: relay.strided_slice(
            relay.nn.pad(v, ((0, 0), (0, 0), (1, 0), (0, 1)), float(r.normal())), [0] * 4, [2, 4, 6, 6]
        ),
        relay.abs,
        lambda v: relay.nn.max_pool2d(v, (3, 3), padding=(1, 1)),
        lambda v: relay.nn.avg_pool2d(v, (3, 3), padding=(1, 1)),
        lambda v: relay.transpose(relay.transpose(v, (0, 2, 1, 3)), (0, 2, 1, 3)),
        lambda v: relay.add(v, relay.const(r.normal(size=6).astype("float32"))),
        lambda v: relay.nn.bias_add(v, relay.const(r.normal(size=4).astype("float32"))),
        lambda v: relay.strided_slice(relay.concatenate([v, other], axis=1), [0, 2, 0, 0], [2, 6, 6, 6]),
    ]
    for _ in range(int(r.integers(1, 5))):
        value = steps[int(r.integers(len(steps)))](value)
    return quantized(value, float(r.uniform(0.05, 0.3)), int(r.integers(-50, 50)))


def test_drawn_chains_agree() -> None:
    taken = 0
    for seed in range(60):
        made, off = compare(drawn(seed))
        assert off <= 1, seed
        taken += "qnn.dequantize" not in [c.op.name for c in calls(made.main.body)]
    assert taken > 30


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (relay.sin(X), "sin has no rule"),
        (relay.nn.softmax(X), r"nn\.softmax has no rule"),
        (relay.add(X, relay.var("f", shape=SHAPE)), "is not quantized"),
        (ir.reshape(source("x", scale=[1.0, 2.0, 3.0, 4.0]), newshape=(-1,)), "of scales along an axis"),
        (relay.multiply(source("x", scale=[1.0, 2.0, 3.0, 4.0]), source("y", scale=[1.0] * 6, axis=2)), "axes"),
        (relay.sigmoid(relay.add(X, BYTES)), "more than a byte"),
        (relay.nn.conv2d(source("x", zero=[1, 2, 3, 4]), WEIGHTS), "several scales"),
    ],
)
def test_what_declines_stays(value: Expr, why: str) -> None:
    module = quantized(value)
    with decisions() as log:
        assert transform.FakeQuantizationToInteger()(module) is module
    assert any(d.by == "FakeQuantizationToInteger" and not d.taken for d in log)
    with pytest.raises(PassError, match=why):
        transform.FakeQuantizationToInteger(hard_fail=True)(module)


def test_a_constant_is_no_quantized_model() -> None:
    module = quantized(relay.add(relay.const(np.ones(SHAPE, "float32")), relay.const(1.0)))
    assert transform.FakeQuantizationToInteger(hard_fail=True)(module) is module


def test_trained_with_quantization_ends_where_an_argument_is_no_bytes() -> None:
    x, w = relay.var("x", shape=(1, 4, 2), dtype="int8"), relay.var("w", shape=(1, 4, 2), dtype="int8")
    two, six, zero = relay.const(2.0), relay.const(6.0), relay.const(0)
    real = relay.nn.batch_matmul(relay.qnn.op.dequantize(x, two, zero), relay.qnn.op.dequantize(w, six, zero))
    whole = relay.qnn.op.dequantize(
        relay.qnn.op.batch_matmul(x, w, zero, zero, two, six), relay.const(12.0), relay.const(0)
    )
    found = transform.FakeQuantizationToInteger(False, True)(Module.from_expr(relay.erf(relay.add(real, two))))
    assert_structural_equal(found, Module.from_expr(relay.erf(relay.add(whole, two))))
    module = Module.from_expr(relay.nn.batch_matmul(relay.add(real, two), relay.add(real, two)))
    assert transform.FakeQuantizationToInteger()(module) is module


def test_a_script_registers_a_rule() -> None:
    def negated(expr: Any, type_map: Any) -> Any:
        (arg,) = expr.args
        kind = type_map[arg]
        return [relay.negative(relay.cast(arg, "int32")), TensorAffineType(kind.scale, kind.zero_point, "int32")]

    module = quantized(relay.negative(X))
    with TempOpAttr("negative", "FTVMFakeQuantizationToInteger", negated):
        made, off = compare(module, hard_fail=True)
    assert off == 0
    assert [c.op.name for c in calls(made.main.body)][:2] == ["cast", "negative"]

    def raises(expr: Any, type_map: Any) -> Any:
        raise NotImplementedError("not yet")

    with TempOpAttr("nn.relu", "FTVMFakeQuantizationToInteger", raises):
        assert transform.FakeQuantizationToInteger()(quantized(relay.nn.relu(X))) is not None
        with pytest.raises(PassError, match="not yet"):
            transform.FakeQuantizationToInteger(hard_fail=True)(quantized(relay.nn.relu(X)))


def test_sums_at_one_scale_are_not_rounded() -> None:
    made, off = compare(quantized(relay.add(X, X)))
    assert off == 0
    assert isinstance(made.main.body, Call)
    assert not any(isinstance(a, Constant) and a.dtype == "float32" for a in made.main.body.args)
