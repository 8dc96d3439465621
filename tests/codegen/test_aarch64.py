"""AArch64: which instructions multiply bytes, that every sum is exact, and which tiles stay in registers.

Machine code runs under an emulator, where one is installed.
"""

from __future__ import annotations

import re

import emulated
import numpy as np
import pytest
from emulated import DOTS, MIXED, TARGET
from operator_cases.products import few_bits_operands
from test_llvm_compile import loops_of, networks_layers

import minitvm
from minitvm.codegen.llvm.compile import assembly, cpu_of, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.driver.report import BuildReport
from minitvm.ir import builder as ir
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Constant, Expr, Function, Module, Var
from minitvm.ir.loop import DOT_OPERANDS, Buffer, Dot, Kernel, LoopExpr, LoopKind, Stmt, intrin, loop, store
from minitvm.ir.types import TensorType
from minitvm.target import Target

needs_emulator = pytest.mark.skipif(not emulated.INSTALLED, reason="no emulator: pip install unicorn pyelftools")

INSTRUCTIONS = {"dot4": "usdot", "sdot4": "sdot", "udot4": "udot"}
ENDS = {"uint8": [255, 0, 255, 128, 127, 254, 1], "int8": [-128, 127, -128, 0, -1, 1, -127]}
"""Bytes at the ends of their range and beside them."""


def has(target: str) -> set[str]:
    return set(machine_model(cpu_of(Target.parse(target))).features.intersection(DOT_OPERANDS))


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ("", set()),
        ("-mcpu=cortex-a72", set()),
        ("-mattr=+dotprod", {"sdot4", "udot4"}),
        ("-mcpu=cortex-a76", {"sdot4", "udot4"}),
        ("-mcpu=apple-m1", {"sdot4", "udot4"}),
        ("-mcpu=neoverse-n1", {"sdot4", "udot4"}),
        ("-mcpu=cortex-a76 -mattr=-dotprod", set()),
        ("-mattr=+dotprod,+i8mm", {"sdot4", "udot4", "dot4"}),
        ("-mcpu=neoverse-v1", {"sdot4", "udot4", "dot4"}),
    ],
)
def test_which_products_a_processor_has(options: str, known: set[str]) -> None:
    assert has(f"{TARGET} {options}".strip()) == known


def in_fours(name: Dot, count: int) -> Kernel:
    """``d[i] = name(a[i], b[i], c[i])``, four at a time."""
    a, b, c, d = (Buffer(letter, (count,), "int32") for letter in "abcd")

    def four(i: LoopExpr) -> Stmt:
        return loop(
            4, lambda j: store(d, (i * 4 + j,), intrin(name, *(x[i * 4 + j] for x in (a, b, c)))), LoopKind.VECTORIZED
        )

    return Kernel("in_fours", (a, b, c, d), loop(count // 4, four))


@needs_emulator
@pytest.mark.parametrize("target", [TARGET, DOTS, MIXED])
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_bytes_at_the_ends_of_their_range(name: Dot, target: str) -> None:
    """Each by each, by the instruction where there is one; sums wrap around."""
    pairs = np.array(np.meshgrid(*(np.array(ENDS[part], part).view("uint8") for part in DOT_OPERANDS[name]))).reshape(
        2, -1
    )
    x, y = (np.resize(side, 112).view("<i4") for side in pairs)
    total = np.resize(np.array([2**31 - 1, -(2**31), 0], "int32"), 28)
    kernel = in_fours(name, 28)
    (found,) = emulated.run_emulated(kernel, x, y, total, target=target)
    apart = [
        words.view(part).reshape(28, 4).astype("int64") for words, part in zip((x, y), DOT_OPERANDS[name], strict=True)
    ]
    np.testing.assert_array_equal(found, ((apart[0] * apart[1]).sum(1) + total).astype("int32"))
    text = emit(kernel, emulated.machine(target=target))
    assert re.findall(r"neon\.(\w*dot)\b", text) == [INSTRUCTIONS[name]] * 2 * (name in has(target))


# --- models of quantized tensors --------------------------------------------------------------------------------------


def real(values: Expr, scale: float, zero: int) -> Expr:
    return ir.qnn.dequantize(
        values, *(Constant(np.asarray(v, d)) for v, d in ((scale, "float32"), (zero, values.dtype)))
    )


def weights(shape: tuple[int, ...], dtype: str) -> Constant:
    return Constant(np.resize(np.array(ENDS[dtype], dtype), shape))


def product(kind: str, depth: int, dtype: str, zero: int, weight_dtype: str) -> tuple[Expr, Var]:
    """With windows over the edge; scales are powers of two, so that sums as floats are exact."""
    weight_zero = 128 if weight_dtype == "uint8" else 0
    if kind == "conv2d":
        x = Var("x", TensorType((1, depth, 4, 7), dtype))
        weight = real(weights((8, depth, 3, 3), weight_dtype), 2.0**-9, weight_zero)
        return ir.nn.conv2d(real(x, 2.0**-7, zero), weight, padding=(1, 0, 2, 1), strides=(1, 2)), x
    x = Var("x", TensorType((3, depth), dtype))
    weight = real(weights((9, depth) if kind == "dense" else (depth, 9), weight_dtype), 2.0**-9, weight_zero)
    turned = weight if kind == "dense" else ir.transpose(weight, axes=(1, 0))
    return ir.nn.dense(real(x, 2.0**-7, zero), turned), x


def built(module: Module, target: str) -> BuildReport:
    return minitvm.build(module, target, opt_level=3, num_threads=2, trace=True).report


def instructions(report: BuildReport) -> set[str]:
    texts = (report.kernel(name).text("llvm") for name in report.groups)
    return {found for text in texts for found in re.findall(r"@llvm\.aarch64\.neon\.(\w*dot|[su]mull)\b", text)}


TAKEN = {(DOTS, "uint8"): "sdot", (DOTS, "int8"): "sdot", (MIXED, "uint8"): "usdot", (MIXED, "int8"): "sdot"}


@needs_emulator
@pytest.mark.parametrize(("target", "dtype"), TAKEN)
@pytest.mark.parametrize("weight_dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("kind", "depth"), [("conv2d", 7), ("dense", 13), ("turned", 64)])
def test_quantized_products(kind: str, depth: int, weight_dtype: str, target: str, dtype: str) -> None:
    """To the last bit, of the least and the largest bytes; without USDOT unsigned data become signed ones."""
    zero = np.iinfo(dtype).min if weight_dtype == "int8" else 3
    sums, x = product(kind, depth, dtype, zero, weight_dtype)
    scale, point = Constant(np.asarray(0.037, "float32")), Constant(np.asarray(107, "uint8"))
    module = Module(Function([x], ir.qnn.quantize(sums, scale, point, out_dtype="uint8")))
    report = built(module, target)
    assert instructions(report) == {TAKEN[target, dtype]}
    array = np.resize(np.array(ENDS[dtype], dtype), x.tensor_type.static_shape)
    assert report.module is not None
    found = emulated.run_model(report.module, array, target=target)
    np.testing.assert_array_equal(found, evaluate(module, array))


LONG = {"dot4": "smull", "sdot4": "smull", "udot4": "umull"}


@needs_emulator
@pytest.mark.parametrize("target", [TARGET, DOTS, MIXED])
@pytest.mark.parametrize(("data", "weight"), [("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8")])
def test_products_of_integers(data: str, weight: str, target: str) -> None:
    """Which no float can stand for; without an instruction NEON's long products are added up."""
    x = Var("x", TensorType((3, 13), data))
    wide = ir.cast(x, dtype="int32"), ir.cast(weights((9, 13), weight), dtype="int32")
    module = Module(Function([x], ir.nn.dense(*wide, out_dtype="int32")))
    dot: Dot = next(dot for dot, parts in DOT_OPERANDS.items() if parts == (data, weight))
    report, own = built(module, target), has(target)
    assert instructions(report) == {LONG[dot] if not own else INSTRUCTIONS[dot] if dot in own else "sdot"}
    array = np.resize(np.array(ENDS[data], data), (3, 13))
    assert report.module is not None
    found = emulated.run_model(report.module, array, target=target)
    np.testing.assert_array_equal(found, evaluate(module, array))


@needs_emulator
@pytest.mark.parametrize(("target", "name"), [(TARGET, "smull"), (DOTS, "sdot"), (MIXED, "usdot")])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_blocks(bits: int, target: str, name: str) -> None:
    """Rows that are quantized as they come, by weights of few bits; of 8 bits they become signed for SDOT."""
    operands = few_bits_operands(np.random.default_rng(bits), (3, 2, 21), 16, bits, bits == 8, "float32")
    x = Var("x", TensorType((3, 32), "float32"))
    numbers, *others = ir.call_op("qnn.quantize_blocks", x, block=16)
    args = (ir.call_op("qnn.words", numbers), *others, *map(Constant, operands[3:]))
    module = Module(Function([x], ir.call_op("qnn.dense_blocks", *args, units=21, block=16, bits=bits)))
    report = built(module, target)
    assert instructions(report) == {name}
    array = np.random.default_rng(0).normal(size=(3, 32)).astype("float32")
    assert report.module is not None
    found = emulated.run_model(report.module, array, target=target)
    np.testing.assert_allclose(found, evaluate(module, array), rtol=1e-5, atol=1e-4)


# --- registers --------------------------------------------------------------------------------------------------------


def reductions(report: BuildReport, target: str) -> list[list[str]]:
    """Innermost loops of products that store nothing but what they spill."""
    texts = (assembly(report.kernel(name).text("llvm"), cpu_of(Target.parse(target))) for name in report.groups)
    bodies = (body for text in texts for body in loops_of(text))
    products = ("fmla", "sdot", "udot", "usdot")
    return [
        body
        for body in bodies
        if sum(i.startswith(products) for i in body) >= 8
        and not any(i.startswith(("str", "stp")) and "[sp" not in i for i in body)
    ]


def spilled(body: list[str]) -> list[str]:
    return [i for i in body if "[sp" in i and re.search(r"\bq\d", i)]


@pytest.mark.parametrize("cpu", ["generic", "neoverse-n1", "apple-m1"])
def test_kernels_of_networks_keep_their_sums_in_registers(cpu: str) -> None:
    """However the processor's loads are put before its products; these take a lane of what was loaded."""
    target = f"{TARGET} -mcpu={cpu}"
    inner = reductions(minitvm.build(networks_layers(), target, num_threads=2).report, target)
    assert len(inner) >= 4
    for body in inner:
        assert spilled(body) == [], body
        assert sum(i.startswith("ld1r") for i in body) <= 2, body


@pytest.mark.parametrize(("kind", "shape", "units"), [("conv2d", (1, 64, 14, 14), 64), ("dense", (128, 768), 768)])
@pytest.mark.parametrize(("target", "name"), [(DOTS, "sdot"), (MIXED, "usdot")])
def test_products_of_words_stay_in_registers(
    kind: str, shape: tuple[int, ...], units: int, target: str, name: str
) -> None:
    """Of few rows, as a broadcast takes as long as a product."""
    x = Var("x", TensorType(shape, "uint8"))
    weight = real(weights((units, shape[1], *(3, 3)[: len(shape) - 2]), "int8"), 0.01, 0)
    sums = (
        ir.nn.conv2d(real(x, 0.1, 3), weight, padding=1) if kind == "conv2d" else ir.nn.dense(real(x, 0.1, 3), weight)
    )
    inner = reductions(built(Module(Function([x], sums)), target), target)
    assert inner
    for body in inner:
        assert spilled(body) == [], body
        assert sum(i.startswith(name) for i in body) >= 5 * sum(i.startswith("ld1r") for i in body), body
