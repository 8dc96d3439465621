"""Scalar operations in hand-written kernels, compiled and run, against numpy: in order and in lanes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hand_written import SERIAL, VECTORIZED, elementwise, random_array
from native_kernel import run_native

from minitvm.codegen.llvm.compile import cpu_of, host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.ir.dtypes import COMPUTED
from minitvm.ir.loop import (
    BINARY_OPS,
    COMPARISONS,
    DOT_OPERANDS,
    INTRINSICS,
    Binary,
    Cast,
    Dot,
    Kernel,
    LoopExpr,
    LoopKind,
    const,
    intrin,
    maximum,
    minimum,
)
from minitvm.target import Target

LOGICAL = ("and", "or", "xor")


# --- scalar operations ----------------------------------------------------------------------------------------


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C's integer division."""
    quotient = np.abs(a.astype(object)) // np.abs(b.astype(object))
    return np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype)


def reference_binary(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    floating = a.dtype.kind == "f"
    table = {
        "add": np.add,
        "sub": np.logical_xor if a.dtype == bool else np.subtract,
        "mul": np.multiply,
        "div": np.true_divide if floating else truncated,
        "mod": np.fmod,
        "floordiv": np.floor_divide,
        "floormod": np.mod,
        "min": np.minimum,
        "max": np.maximum,
        "larger": lambda a, b: np.where(a < b, b, a),
        "pow": np.power,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "shl": np.left_shift,
        "shr": np.right_shift,
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
    }
    with np.errstate(all="ignore"):
        return table[op](a, b)


def binary_cases() -> list[tuple[str, str]]:
    cases = []
    for dtype in COMPUTED:
        for op in sorted(BINARY_OPS):
            if op in LOGICAL + ("shl", "shr") and dtype.startswith("float"):
                continue
            if dtype == "bool" and op in ("div", "mod", "floordiv", "floormod", "pow", "shl", "shr"):
                continue
            cases.append((op, dtype))
    return cases


def operands(op: str, dtype: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = random_array((n,), dtype, 1), random_array((n,), dtype, 2)
    b[::5] = a[::5]
    if op in ("div", "mod", "floordiv", "floormod") and a.dtype.kind in "iu":
        b[b == 0] = 7
    if op == "pow":
        a, b = (np.abs(a), b) if a.dtype.kind == "f" else (a % 5, np.abs(b) % 4)
        a, b = a.astype(dtype), b.astype(dtype)
    if op in ("shl", "shr"):
        b = (np.abs(b) % (np.dtype(dtype).itemsize * 8)).astype(dtype)
    return a, b


@pytest.mark.parametrize(("op", "dtype"), binary_cases())
def test_binary(op: str, dtype: str) -> None:
    n = 13
    a, b = operands(op, dtype, n)
    result = "bool" if op in COMPARISONS else dtype
    kernel = elementwise(n, [dtype, dtype], result, lambda x, y: Binary(op, x, y))
    (found,) = run_native(kernel, a, b)
    expected = reference_binary(op, a, b)
    assert found.dtype == expected.dtype
    if op == "pow" and dtype.startswith("float"):
        np.testing.assert_allclose(found, expected, rtol={"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype])
    else:
        np.testing.assert_array_equal(found, expected)


def test_scalar_and_vector_code_agree_on_everything_binary() -> None:
    """The same operators in a serial loop, with LLVM's own vectorizer at work."""
    for op, dtype in binary_cases():
        if dtype not in ("int32", "uint8", "float32", "int64"):
            continue
        a, b = operands(op, dtype, 9)
        result = "bool" if op in COMPARISONS else dtype
        lanes, serial = (
            run_native(elementwise(9, [dtype, dtype], result, lambda x, y, op=op: Binary(op, x, y), kind), a, b)[0]
            for kind in (VECTORIZED, SERIAL)
        )
        np.testing.assert_array_equal(lanes, serial, err_msg=f"{op} {dtype}")


@pytest.mark.parametrize("dtype", [d for d in COMPUTED if "int" in d])
@pytest.mark.parametrize("kind", [SERIAL, VECTORIZED])
def test_no_integer_division_traps(dtype: str, kind: LoopKind) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.array([low, high, low, 5, 0, high, 1, low], dtype)
    b = np.array([0, 0, 1, 0, 0, 1, 3, 0], dtype)
    if low < 0:
        b[0] = -1
    for op in ("div", "mod", "floordiv", "floormod"):
        (found,) = run_native(elementwise(8, [dtype, dtype], dtype, lambda x, y, op=op: Binary(op, x, y), kind), a, b)
        assert found[2] == (low if op.endswith("div") else 0), op
        if low < 0:
            assert found[0] == (low if op.endswith("div") else 0), op


def test_shifts_by_the_width_shift_everything_out() -> None:
    a, b = np.array([-1, 5, -8, 1], np.int32), np.array([32, 40, 99, 31], np.int32)
    left, right = (
        run_native(elementwise(4, ["int32"] * 2, "int32", lambda x, y, op=op: Binary(op, x, y)), a, b)[0]
        for op in ("shl", "shr")
    )
    np.testing.assert_array_equal(left, [0, 0, 0, -(2**31)])
    np.testing.assert_array_equal(right, [-1, 0, -1, 0])
    (logical,) = run_native(elementwise(4, ["uint32"] * 2, "uint32", lambda x, y: Binary("shr", x, y)), abs(a), b)
    np.testing.assert_array_equal(logical, [0, 0, 0, 0])


def test_integer_power_with_negative_exponents_truncates() -> None:
    a, b = np.array([1, -1, -1, 2, 0, -3], np.int32), np.array([-3, -3, -2, -1, -1, 3], np.int32)
    (found,) = run_native(elementwise(6, ["int32"] * 2, "int32", lambda x, y: Binary("pow", x, y)), a, b)
    np.testing.assert_array_equal(found, [1, -1, 1, 0, 0, -27])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [1, 8, 16, 37])
def test_minimum_and_maximum_keep_nan(dtype: str, n: int) -> None:
    a, b = random_array((n,), dtype, 3), random_array((n,), dtype, 4)
    a[::3], b[1::3] = np.nan, np.nan
    kernel = elementwise(n, [dtype] * 2, dtype, lambda x, y: maximum(minimum(x, y), -1.0))
    (found,) = run_native(kernel, a, b)
    np.testing.assert_array_equal(found, np.maximum(np.minimum(a, b), np.asarray(-1, dtype)))


def reference_intrinsic(name: str, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    table = {
        "neg": np.negative,
        "abs": np.abs,
        "not": np.logical_not if x.dtype == bool else np.invert,
        "round": np.rint,
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "erf": np.vectorize(math.erf),
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "asin": np.arcsin,
        "acos": np.arccos,
        "atan": np.arctan,
        "asinh": np.arcsinh,
        "acosh": np.arccosh,
        "atanh": np.arctanh,
    }
    with np.errstate(all="ignore"):
        found = table.get(name, getattr(np, name, None))(wide)  # type: ignore[misc]
    return found if name in ("isnan", "isinf") else found.astype(x.dtype)


FLOAT_ONLY = ("not", "unlikely", "same_memory", "fma", "ldexp", *DOT_OPERANDS, "bitcast_int", "bitcast_float")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", sorted(set(INTRINSICS) - set(FLOAT_ONLY)))
def test_float_functions(name: str, dtype: str) -> None:
    x = random_array((19,), dtype, 5)
    if name in ("log", "log2", "sqrt", "rsqrt"):
        x = np.abs(x) + np.asarray(0.01, dtype)
    if name in ("asin", "acos", "atanh", "log1p"):
        x = (np.tanh(x.astype(np.float64)) * 0.9).astype(dtype)
    if name == "acosh":
        x = (np.abs(x) + np.asarray(1.01, dtype)).astype(dtype)
    if name in ("floor", "ceil", "round", "trunc"):
        x[:8] = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.0, 7.0]
    if name in ("isnan", "isinf", "sign"):
        x[:4] = [np.nan, np.inf, -np.inf, 0.0]
    result = "bool" if name in ("isnan", "isinf") else dtype
    (found,) = run_native(elementwise(19, [dtype], result, lambda v: intrin(name, v)), x)
    expected = reference_intrinsic(name, x)
    if result == "bool":
        np.testing.assert_array_equal(found, expected)
    else:
        tolerance = {"float16": 1e-3, "float32": 4e-7, "float64": 1e-15}[dtype]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [d for d in COMPUTED if not d.startswith("float")])
@pytest.mark.parametrize("name", ["neg", "abs", "not", "sign", "floor", "isnan", "isinf"])
def test_integer_functions(name: str, dtype: str) -> None:
    if dtype == "bool" and name in ("neg", "abs", "floor", "sign"):
        pytest.skip("not defined for bool")
    x = random_array((11,), dtype, 6)
    result = "bool" if name in ("isnan", "isinf") else dtype
    (found,) = run_native(elementwise(11, [dtype], result, lambda v: intrin(name, v)), x)
    np.testing.assert_array_equal(found, x if name == "floor" else reference_intrinsic(name, x))


@pytest.mark.parametrize("name", DOT_OPERANDS)
@pytest.mark.parametrize("lanes", [3, 4, 8, 16, 32])
def test_parts_of_words_are_multiplied(lanes: int, name: Dot) -> None:
    """By one instruction where vectors have its width; else one by one."""
    rng = np.random.default_rng(3)
    x, y, z = (rng.integers(-(2**31), 2**31, lanes).astype("int32") for _ in range(3))
    np.testing.assert_array_equal(run_native(dots(lanes, name), x, y, z)[0], added_up(x, y, z, *DOT_OPERANDS[name]))


def dots(lanes: int, name: str) -> Kernel:
    return elementwise(lanes, ["int32"] * 3, "int32", lambda a, b, c: intrin(name, a, b, c))


def added_up(x: np.ndarray, y: np.ndarray, z: np.ndarray, first: str, second: str) -> np.ndarray:
    apart = [v[:, None].view(d).astype("int64") for v, d in ((x, first), (y, second))]
    return ((apart[0] * apart[1]).sum(1) + z).astype("int32")


@pytest.mark.parametrize("cpu", ["x86-64", "sandybridge", "haswell", "skylake-avx512"])
@pytest.mark.parametrize("lanes", [3, 4, 8, 16, 32])
def test_pairs_in_words_are_multiplied(cpu: str, lanes: int) -> None:
    """By one instruction where vectors have its width, also the least and the largest."""
    if host().arch != "x86" or host().vector_bytes < (made := cpu_of(Target.parse(f"llvm -mcpu={cpu}"))).vector_bytes:
        pytest.skip("this machine has no such instructions")
    x, y, z = (random_array((lanes,), "int32", seed) for seed in (3, 4, 5))
    x[:3], y[:3] = [-0x7FFF8000, 0x7FFF7FFF, -1], [-0x7FFF8000, 0x7FFF7FFF, 0x7FFF8000]
    np.testing.assert_array_equal(
        run_native(dots(lanes, "dot2"), x, y, z, cpu=made)[0], added_up(x, y, z, *DOT_OPERANDS["dot2"])
    )
    by_pairs = "pmadd" in emit(dots(lanes, "dot2"), machine_model(made))
    assert by_pairs == (lanes in (4, 8, 16) and 4 * lanes <= made.vector_bytes and cpu != "sandybridge")


@pytest.mark.parametrize("cpu", ["x86-64", "sandybridge", "haswell", "skylake-avx512", ""])
@pytest.mark.parametrize("name", ["dot4", "sdot4", "udot4"])
def test_bytes_in_words_are_multiplied_without_an_instruction_for_it(cpu: str, name: Dot) -> None:
    """By pairs; where a mask keeps the first ones below 128, by an instruction that others are too large for."""
    made = cpu_of(Target.parse(f"llvm -mcpu={cpu}")) if cpu else host()
    if host().arch != "x86" or host().vector_bytes < made.vector_bytes:
        pytest.skip("this machine has no such instructions")
    for lanes, mask in itertools.product((3, 4, 8, 16), (0x7F7F7F7F, -1)):
        x, y, z = (random_array((lanes,), "int32", seed) for seed in (3, 4, 5))
        x[:3], y[:3] = [-1, 0x7F7F7F7F, -0x7F7F7F80], [-0x7F7F7F80, 0x7F7F7F7F, -0x7F7F7F80]
        kernel = elementwise(lanes, ["int32"] * 3, "int32", lambda a, b, c, m=mask: intrin(name, a & m, b, c))
        expected = added_up(x & np.int32(mask), y, z, *DOT_OPERANDS[name])
        np.testing.assert_array_equal(run_native(kernel, x, y, z, cpu=made)[0], expected)
        small = "pmadd" in (text := emit(kernel, machine_model(made))) and "ub" in text
        narrow = lanes in (4, 8, 16) and 4 * lanes <= made.vector_bytes
        assert small == (narrow and cpu in ("haswell", "skylake-avx512") and name == "dot4" and mask > 0)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", ""])
@pytest.mark.parametrize(
    ("mask", "other"), [(0x0F0F0F0F, -0x7F7F7F80), (0x03030303, 0x7F7F7F7F), (0x7F7F7F7F, -0x7F7F7F80)]
)
def test_many_products_of_small_bytes_in_a_sum_are_exact(mask: int, other: int, cpu: str) -> None:
    """More of the largest than 16 bits hold."""
    made = cpu_of(Target.parse(f"llvm -mcpu={cpu}")) if cpu else host()
    if host().arch != "x86" or host().vector_bytes < made.vector_bytes:
        pytest.skip("this machine has no such instructions")
    x, y, z = np.full(8, -1, "int32"), np.full(8, other, "int32"), random_array((8,), "int32", 5)

    def chain(a: LoopExpr, b: LoopExpr, total: LoopExpr) -> LoopExpr:
        for at in range(50):
            total = intrin("dot4", Binary("shr", a, const(at % 2, "int32")) & mask, b, total)
        return total

    expected = z + 50 * (added_up(x & np.int32(mask), y, np.zeros(8, "int32"), *DOT_OPERANDS["dot4"]))
    found = run_native(elementwise(8, ["int32"] * 3, "int32", chain), x, y, z, cpu=made)[0]
    np.testing.assert_array_equal(found, expected.astype("int32"))


def test_fma_rounds_once_and_bitcasts_keep_bits() -> None:
    x = random_array((9,), "float32", 7)
    (fused,) = run_native(elementwise(9, ["float32"], "float32", lambda v: intrin("fma", v, v, -(v * 1.0))), x)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(fused, (wide * wide - wide).astype(np.float32))
    for dtype, bits in (("float16", "int16"), ("float32", "int32"), ("float64", "int64")):
        y = random_array((9,), dtype, 8)
        (raw,) = run_native(elementwise(9, [dtype], bits, lambda v: intrin("bitcast_int", v)), y)
        np.testing.assert_array_equal(raw, y.view(bits))
        (back,) = run_native(elementwise(9, [bits], dtype, lambda v: intrin("bitcast_float", v)), raw)
        np.testing.assert_array_equal(back, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["add", "sub"])
def test_products_are_rounded_before_they_are_added(dtype: str, op: str) -> None:
    x, y = random_array((37,), dtype, 1), random_array((37,), dtype, 2)
    x[::5] = np.finfo(dtype).max
    z = -(x * y)
    z[::5] = -np.inf
    (found,) = run_native(elementwise(37, [dtype] * 3, dtype, lambda a, b, c: Binary(op, a * b * 2.0, c)), x, y, z)
    with np.errstate(all="ignore"):
        product = x * y * np.asarray(2, dtype)
        np.testing.assert_array_equal(found, product + z if op == "add" else product - z)


@pytest.mark.parametrize("source", COMPUTED)
@pytest.mark.parametrize("target", COMPUTED)
def test_cast(source: str, target: str) -> None:
    x = random_array((21,), source, 9)
    if np.dtype(source).kind == "f" and np.dtype(target).kind == "u":
        x = np.abs(x)
    x[0] = 0
    (found,) = run_native(elementwise(21, [source], target, lambda v: Cast(v, target)), x)
    np.testing.assert_array_equal(found, x.astype(target))


def test_float64_to_float16_rounds_once() -> None:
    tie = 1 + 2.0**-11
    x = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-45, 65520.0, 65519.999999, 1e300, 2.0**-25, 3e-8])
    x = np.concatenate([x, [np.nan, np.inf, -np.inf, 0.0, -0.0], np.random.default_rng(0).standard_normal(100)])
    (found,) = run_native(elementwise(len(x), ["float64"], "float16", lambda v: Cast(v, "float16")), x)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    np.testing.assert_array_equal(found.view(np.uint16)[:9], expected.view(np.uint16)[:9])
    np.testing.assert_array_equal(found, expected)


def test_floats_beyond_an_integer_saturate() -> None:
    x = np.array([1e20, -1e20, np.inf, -np.inf, np.nan, 300.0, -300.0, 127.9], np.float32)
    (found,) = run_native(elementwise(8, ["float32"], "int8", lambda v: Cast(v, "int8")), x)
    np.testing.assert_array_equal(found, [127, -128, 127, -128, 0, 127, -128, 127])
