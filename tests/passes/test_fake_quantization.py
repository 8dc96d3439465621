"""FakeQuantizationToInteger: what becomes integers, what does not and why, and that numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm.codegen.llvm.compile import cpu_of, host
from minitvm.ir import builder as ir
from minitvm.ir.decision import decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Var
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_dense import Dense
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.passes import AlterOpLayout, FakeQuantizationToInteger, FoldConstant, PassContext, default_pipeline
from minitvm.target import MachineModel, Target

RNG = np.random.default_rng(3)
MACHINE = MachineModel(64, 32, features=frozenset({"dot4"}))
SIGNED_BYTES = MachineModel(16, 32, features=frozenset({"sdot4", "udot4"}))
PAIRS = MachineModel(32, 16, features=frozenset({"dot2"}))


def constant(value: Any, dtype: str = "float32") -> Constant:
    return Constant(np.asarray(value, dtype))


def stored(shape: tuple[int, ...], dtype: str, low: int = -128) -> np.ndarray:
    return RNG.integers(max(low, np.iinfo(dtype).min), np.iinfo(dtype).max, shape, dtype, endpoint=True)


def real(values: Expr, scale: Any, zero: int, axis: int = 0) -> Expr:
    scales = constant(scale)
    zeros = constant(np.full(scales.value.shape, zero), values.dtype)
    return ir.qnn.dequantize(values, scales, zeros, axis=axis)


def convolution(
    x: Var, zero: int = 100, units: int = 16, size: int = 1, scales: Any = None, weight_zero: int = 0, **options: Any
) -> Expr:
    weight = Constant(stored((units, x.shape[1] // options.get("groups", 1), size, size), "int8"))
    scales = RNG.uniform(0.01, 0.02, units) if scales is None else scales
    return ir.nn.conv2d(real(x, 0.1, zero), real(weight, scales, weight_zero), **options)


def rewritten(body: Expr, *inputs: Var, machine: MachineModel = MACHINE) -> Module:
    with PassContext(opt_level=3):
        return FakeQuantizationToInteger(machine)(Module(Function(list(inputs), body)))


def products(module: Module) -> list[Call]:
    return [c for c in calls(module["main"]) if isinstance(c.op, (Conv2d, Dense))]


def is_integer(module: Module) -> bool:
    return all(c.dtype == "int32" for c in products(module))


IMAGE = Var("x", TensorType((1, 8, 5, 6), "uint8"))
SIGNED = Var("x", TensorType((1, 8, 5, 6), "int8"))
COLOURS = Var("x", TensorType((2, 3, 5, 6), "uint8"))
ROWS = Var("x", TensorType((3, 8), "uint8"))


def dense(x: Expr, turned: bool = False, scale: Any = 0.02) -> Expr:
    values = Constant(stored((8, 5) if turned else (5, 8), "int8"))
    weight = real(values, scale, 0, axis=1 if turned else 0)
    return ir.nn.dense(real(x, 0.1, 90), ir.transpose(weight, axes=(1, 0)) if turned else weight)


CASES = {
    "pointwise": (convolution(IMAGE), IMAGE),
    "padded": (convolution(IMAGE, size=3, padding=(1, 0, 2, 1), strides=2), IMAGE),
    "padded around zero": (convolution(IMAGE, zero=0, size=3, padding=1), IMAGE),
    "signed": (convolution(SIGNED, zero=-5, size=3, padding=1), SIGNED),
    "one scale": (convolution(IMAGE, scales=0.03), IMAGE),
    "three channels": (convolution(COLOURS, size=3, padding=1), COLOURS),
    "dense": (dense(ROWS), ROWS),
    "dense of turned weights": (dense(ROWS, turned=True, scale=[0.1, 0.2, 0.3, 0.4, 0.5]), ROWS),
    "of integers": (
        ir.nn.conv2d(
            ir.subtract(ir.cast(SIGNED, dtype="int32"), constant(7, "int32")),
            ir.cast(Constant(stored((16, 8, 3, 3), "int8")), dtype="int32"),
            padding=1,
            out_dtype="int32",
        ),
        SIGNED,
    ),
}


@pytest.mark.parametrize(("machine", "dtype"), [(MACHINE, "uint8"), (SIGNED_BYTES, "int8"), (PAIRS, "int16")])
@pytest.mark.parametrize("name", CASES)
def test_products_of_parts_of_words(name: str, machine: MachineModel, dtype: str) -> None:
    """Also after layouts: the words' products are exact, so what is left is the rounding of floats."""
    body, x = CASES[name]
    before, after = Module(Function([x], body)), rewritten(body, x, machine=machine)
    assert is_integer(after) and all(p.args[0].dtype == dtype for p in products(after))
    with PassContext(opt_level=3):
        words = FoldConstant()(AlterOpLayout(machine)(FoldConstant()(after)))
    assert any(c.op.name.startswith("qnn.contrib") for c in calls(words["main"]))
    array = stored(x.tensor_type.static_shape, x.dtype)
    expected = np.asarray(evaluate(before, array))
    for module in (after, words):
        np.testing.assert_allclose(evaluate(module, array), expected, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize(
    ("zero", "machine", "held"),
    [
        (128, MACHINE, ("uint8", "int8")),
        (128, SIGNED_BYTES, ("int8", "int8")),
        (0, SIGNED_BYTES, ("uint8", "uint8")),
        (0, MACHINE, ("float32", "float32")),
        (127, SIGNED_BYTES, ("float32", "float32")),
    ],
)
def test_unsigned_weights(zero: int, machine: MachineModel, held: tuple[str, str]) -> None:
    """Around 128 they are signed ones; where unsigned ones are multiplied, around 0 as they are."""
    weight = Constant(stored((8, 8), "uint8"))
    body = ir.nn.dense(real(ROWS, 0.1, 90), real(weight, 0.02, zero))
    after = rewritten(body, ROWS, machine=machine)
    assert [tuple(arg.dtype for arg in p.args) for p in products(after)] == [held]
    array = stored((3, 8), "uint8")
    np.testing.assert_allclose(evaluate(after, array), evaluate(Module(Function([ROWS], body)), array), rtol=1e-5)


DEEP: dict[str, Any] = {"size": 12, "padding": 6}
"""More addends than float32 holds sums of."""
REFUSED = {
    "its weights are not int8 around zero": convolution(IMAGE, weight_zero=3, **DEEP),
    "it has groups, or layouts of its own": convolution(IMAGE, groups=2, **DEEP),
    "no blocks of 16 divide its 10 output channels": convolution(IMAGE, units=10, **DEEP),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_why_not(reason: str) -> None:
    with decisions() as log:
        after = rewritten(REFUSED[reason], IMAGE)
    assert not is_integer(after)
    assert [d.reason for d in log if d.by == "FakeQuantizationToInteger" and not d.taken] == [reason]


BYTES = Constant(stored((16, 8, 1, 1), "int8"))
SCALED = {
    "of channels": (real(IMAGE, RNG.uniform(0.1, 0.2, 8), 0, axis=1), real(BYTES, RNG.uniform(0.1, 0.2, 16), 0)),
    "of columns": (real(IMAGE, RNG.uniform(0.1, 0.2, 6), 0, axis=3), real(BYTES, 0.1, 0)),
    "of inputs": (real(IMAGE, 0.1, 0), real(BYTES, RNG.uniform(0.1, 0.2, 8), 0, axis=1)),
}


@pytest.mark.parametrize("machine", [MACHINE, PAIRS, MachineModel(64, 32)])
@pytest.mark.parametrize("name", SCALED)
def test_scales_that_are_not_the_sums(name: str, machine: MachineModel) -> None:
    with decisions() as log:
        after = rewritten(ir.nn.conv2d(*SCALED[name]), IMAGE, machine=machine)
    assert [tuple(arg.dtype for arg in p.args) for p in products(after)] == [("float32", "float32")]
    reason = "its data has several scales, or its weights are not scaled by filter"
    assert [d.reason for d in log if not d.taken] == [reason]


EXTREMES = np.array([-128, 127, 0, -1], "int8")


@pytest.mark.parametrize("image_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("weight_dtype", ["uint8", "int8"])
def test_pairs_hold_any_bytes_less_any_zero_point(image_dtype: str, weight_dtype: str) -> None:
    """Zero points of the weights, too, at the ends of their range; channels that fill no word, filters no block."""
    x, ends = Var("x", TensorType((1, 7, 4, 5), image_dtype)), np.iinfo(image_dtype)
    stored_weight = np.resize(EXTREMES, (12, 7, 3, 3)).view(weight_dtype)
    weight = real(Constant(stored_weight), RNG.uniform(0.01, 0.02, 12), np.iinfo(weight_dtype).max)
    body = ir.nn.conv2d(real(x, 0.1, ends.min), weight, padding=1)
    before, after = Module(Function([x], body)), rewritten(body, x, machine=PAIRS)
    assert [p.args[0].dtype for p in products(after)] == ["int16"]
    array = np.resize(np.array([ends.max, ends.min, ends.max], image_dtype), (1, 7, 4, 5))
    expected = np.asarray(evaluate(before, array))
    np.testing.assert_allclose(evaluate(after, array), expected, rtol=1e-5)


@pytest.mark.parametrize("cpu", ["native", "x86-64", "haswell", "skylake-avx512"])
@pytest.mark.parametrize("channels", [8, 3, 20])
def test_sums_are_the_same_on_every_processor(cpu: str, channels: int) -> None:
    """Of the least and the largest bytes, with windows over the edge, quantized behind the product."""
    target = Target.parse(f"llvm -mcpu={cpu}")
    if host().arch != "x86" or host().vector_bytes < cpu_of(target).vector_bytes:
        pytest.skip("this machine has no such instructions")
    x = Var("x", TensorType((1, channels, 9, 14), "uint8"))
    weight = Constant(np.resize(EXTREMES, (24, channels, 3, 3)))
    sums = ir.nn.conv2d(real(x, 2.0**-7, 3), real(weight, np.full(24, 2.0**-9), 0), padding=1, strides=(1, 2))
    array = np.resize(np.array([255, 0, 255, 254, 128], "uint8"), (1, channels, 9, 14))
    for body in (sums, ir.qnn.quantize(sums, constant(0.037), constant(107, "uint8"), out_dtype="uint8")):
        module = Module(Function([x], body))
        (found,) = minitvm.build(module, target=target, opt_level=3).run({"x": array})
        np.testing.assert_array_equal(found, evaluate(module, array))


FILTERS = real(Constant(stored((16, 8, 1, 1), "int8")), 0.02, 0)
WIDE, ROW_OF_5 = Var("x", TensorType((1, 8, 5, 6), "int32")), Var("x", TensorType((3, 5), "uint8"))
WHOLE_IMAGE = ir.cast(SIGNED, dtype="int32")
WHOLE_FILTERS = ir.cast(Constant(stored((16, 8, 1, 1), "int8")), dtype="int32")
SCALE, ZERO = Var("scale", TensorType((), "float32")), Var("zero", TensorType((), "uint8"))


def whole(image: Expr) -> Expr:
    return ir.nn.conv2d(image, WHOLE_FILTERS, out_dtype="int32")


UNKNOWN = {
    "a scale that a run gives": (
        ir.nn.conv2d(ir.qnn.dequantize(IMAGE, SCALE, constant(3, "uint8")), FILTERS),
        (IMAGE, SCALE),
    ),
    "a zero point that a run gives": (
        ir.nn.conv2d(ir.qnn.dequantize(IMAGE, constant(0.1), ZERO), FILTERS),
        (IMAGE, ZERO),
    ),
    "values of more than a byte": (
        ir.nn.conv2d(ir.qnn.dequantize(WIDE, constant(0.1), constant(0, "int32")), FILTERS),
        (WIDE,),
    ),
    "several zero points": (
        ir.nn.conv2d(
            real(IMAGE, 0.1, 3),
            ir.qnn.dequantize(BYTES, constant(np.full(16, 0.1)), constant(np.arange(16), "int8"), axis=0),
        ),
        (IMAGE,),
    ),
    "less two points": (
        whole(ir.subtract(ir.subtract(WHOLE_IMAGE, constant(7, "int32")), constant(3, "int32"))),
        (SIGNED,),
    ),
    "less a point for each column": (whole(ir.subtract(WHOLE_IMAGE, constant(np.arange(6), "int32"))), (SIGNED,)),
    "integers of more than a byte": (whole(ir.subtract(WIDE, constant(7, "int32"))), (WIDE,)),
    "bytes as they are": (ir.nn.conv2d(SIGNED, BYTES, out_dtype="int32"), (SIGNED,)),
    "bytes as floats": (ir.nn.conv2d(ir.cast(SIGNED, dtype="float32"), ir.cast(BYTES, dtype="float32")), (SIGNED,)),
    "floats beside bytes": (ir.nn.conv2d(real(IMAGE, 0.1, 3), Constant(np.ones((16, 8, 1, 1), "float32"))), (IMAGE,)),
    "scales of rows that another shape mixes": (
        ir.nn.dense(
            real(ROW_OF_5, 0.1, 3),
            ir.reshape(real(Constant(stored((5, 8), "int8")), RNG.uniform(0.1, 0.2, 5), 0), newshape=(8, 5)),
        ),
        (ROW_OF_5,),
    ),
}


@pytest.mark.parametrize("machine", [MACHINE, PAIRS])
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_to_be_bytes_stays(name: str, machine: MachineModel) -> None:
    body, inputs = UNKNOWN[name]
    given = Module(Function(list(inputs), body))
    with PassContext(opt_level=3):
        assert FakeQuantizationToInteger(machine)(given) is given


LARGE = {
    "unsigned weights": ir.nn.conv2d(
        real(IMAGE, 0.1, 3), real(Constant(stored((16, 8, 6, 6), "uint8")), 0.02, 0), padding=3
    ),
    "weights around 3": convolution(IMAGE, weight_zero=3, size=6, padding=3),
}


@pytest.mark.parametrize("name", LARGE)
def test_sums_of_eight_bits_by_eight_leave_float32_sooner(name: str) -> None:
    """288 of them, where those by seven bits and a sign would be whole."""
    with decisions() as log:
        after = rewritten(LARGE[name], IMAGE)
    assert [d.reason for d in log if not d.taken] == ["its weights are not int8 around zero"]
    assert [tuple(arg.dtype for arg in p.args) for p in products(after)] == [("float32", "float32")]


def test_images_of_any_size_and_of_channels_behind_stay() -> None:
    open_image = Var("x", TensorType((1, 8, None, 6), "uint8"))
    last = Var("x", TensorType((1, 5, 6, 8), "uint8"))
    for x, options, reason in (
        (open_image, {}, "its shape is known only when it runs"),
        (last, {"data_layout": "NHWC"}, "it has groups, or layouts of its own"),
    ):
        weight = real(Constant(stored((16, 8, 12, 1) if x is open_image else (16, 8, 1, 1), "int8")), 0.02, 0)
        with decisions() as log:
            body = ir.nn.conv2d(real(x, 0.1, 3), weight, **{"padding": (6, 0) if x is open_image else 0, **options})
            given = Module(Function([x], body))
            with PassContext(opt_level=3):
                found = FakeQuantizationToInteger(MACHINE)(given)
        said = [(d.taken, d.reason) for d in log]
        assert said in ([(False, reason)], [(True, "is made of whole numbers in float32")]), said
        assert (found is given) == (not said[0][0])


def test_why_not_of_pairs() -> None:
    with decisions() as log:
        after = rewritten(convolution(IMAGE, groups=2, **DEEP), IMAGE, machine=PAIRS)
    assert not is_integer(after)
    assert [d.reason for d in log if not d.taken] == ["it has groups, or layouts of its own"]


WHOLE = {
    "depthwise": (convolution(IMAGE, units=8, groups=8, size=3, padding=1), IMAGE),
    "depthwise, signed": (convolution(SIGNED, units=8, groups=8, size=5, padding=2, zero=-7, strides=2), SIGNED),
    "groups": (convolution(IMAGE, groups=2, size=3), IMAGE),
    "ten filters": (convolution(IMAGE, units=10), IMAGE),
    "weights around 3": (convolution(IMAGE, weight_zero=3), IMAGE),
    "of integers": (
        ir.nn.conv2d(
            ir.subtract(ir.cast(SIGNED, dtype="int32"), constant(7, "int32")),
            ir.cast(Constant(stored((8, 1, 3, 3), "int8")), dtype="int32"),
            padding=1,
            groups=8,
            out_dtype="int32",
        ),
        SIGNED,
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_in_floats(name: str) -> None:
    """Every product and sum is the one of integers, through all passes and in the kernels."""
    body, x = WHOLE[name]
    before, after = Module(Function([x], body)), rewritten(body, x)
    (product,) = products(after)
    assert product.dtype == "float32"
    array = stored(x.tensor_type.static_shape, x.dtype)
    image, weight = (evaluate(Module(Function([x], arg)), array) for arg in product.args)
    exact = np.asarray(evaluate(Module(Function([x], product)), array), np.float64)
    np.testing.assert_array_equal(exact, np.rint(exact))
    wide = [Constant(np.asarray(a, np.float64)) for a in (image, weight)]
    again = Call(product.op.with_attributes(out_dtype="float64"), tuple(wide))  # type: ignore[union-attr]
    np.testing.assert_array_equal(exact, evaluate(Module(Function([], again))))
    expected = np.asarray(evaluate(before, array))
    np.testing.assert_allclose(evaluate(after, array), expected, rtol=1e-5, atol=2e-4)
    (found,) = minitvm.build(before, opt_level=3).run({"x": array})
    np.testing.assert_array_equal(found, evaluate(after, array))


def test_floats_are_kept_without_dot_products() -> None:
    """What is of integers anyway is not."""
    plain = MachineModel(64, 32)
    assert not is_integer(rewritten(convolution(IMAGE, **DEEP), IMAGE, machine=plain))
    body, x = CASES["of integers"]
    assert [p.args[0].dtype for p in products(rewritten(body, x, machine=plain))] == ["uint8"]
    assert [p.info.name for p in default_pipeline(plain).passes][1] == "FakeQuantizationToInteger"


def test_zeros_known_only_when_it_runs() -> None:
    """Dynamic quantization: the zero point is computed from the data."""
    zero = Var("zero", TensorType((), "uint8"))
    point = ir.cast(zero, dtype="int32")
    weight = Constant(stored((16, 8, 3, 3), "int8"))
    body = ir.nn.conv2d(
        ir.subtract(ir.cast(IMAGE, dtype="int32"), point), ir.cast(weight, dtype="int32"), padding=1, out_dtype="int32"
    )
    arrays = stored((1, 8, 5, 6), "uint8"), np.asarray(77, "uint8")
    expected = evaluate(Module(Function([IMAGE, zero], body)), *arrays)
    for machine, has_border in ((MACHINE, True), (SIGNED_BYTES, True), (PAIRS, False)):
        after = rewritten(body, IMAGE, zero, machine=machine)
        np.testing.assert_array_equal(evaluate(after, *arrays), expected)
        assert any(c.op.name == "nn.pad" for c in calls(after["main"])) == has_border
