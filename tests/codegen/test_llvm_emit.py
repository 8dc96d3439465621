"""Hand-written kernels, compiled and run, against numpy and the interpreter."""

from __future__ import annotations

import math
import re
import zlib

import numpy as np
import pytest
from native_kernel import run_native

from minitvm.codegen.llvm.compile import cpu_of, host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.errors import CompilerError
from minitvm.ir.dtypes import COMPUTED
from minitvm.ir.loop import (
    BINARY_OPS,
    COMPARISONS,
    INTRINSICS,
    PARTS,
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Cast,
    Const,
    Dot,
    If,
    Kernel,
    LoopExpr,
    LoopKind,
    Stmt,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    nest,
    select,
    seq,
    store,
)
from minitvm.ir.loop.interp import run_kernel
from minitvm.target import MachineModel, Target

PARALLEL, VECTORIZED, UNROLLED, SERIAL = (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED, LoopKind.SERIAL)
LOGICAL = ("and", "or", "xor")


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(dtype.encode())])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        low = 0 if kind == "u" else -40
        return rng.integers(low, 41, shape).astype(dtype)
    return (rng.standard_normal(shape) * 3).astype(dtype)


def elementwise(n: int, dtypes: list[str], result: str, value: object, kind: LoopKind = VECTORIZED) -> Kernel:
    """``out[i] = value(in0[i], ...)`` in one loop of a kind."""
    assert callable(value)
    ins = [Buffer(f"x{i}", (n,), d) for i, d in enumerate(dtypes)]
    out = Buffer("out", (n,), result)
    return Kernel("elementwise", (*ins, out), loop(n, lambda i: store(out, (i,), value(*(b[i] for b in ins))), kind))


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


FLOAT_ONLY = ("not", "fma", *PARTS, "bitcast_int", "bitcast_float")


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


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("lanes", [3, 4, 8, 16, 32])
def test_parts_of_words_are_multiplied(lanes: int, name: Dot) -> None:
    """By one instruction where vectors have its width; else one by one."""
    rng = np.random.default_rng(3)
    x, y, z = (rng.integers(-(2**31), 2**31, lanes).astype("int32") for _ in range(3))
    np.testing.assert_array_equal(run_native(dots(lanes, name), x, y, z)[0], added_up(x, y, z, *PARTS[name]))


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
        run_native(dots(lanes, "dot2"), x, y, z, cpu=made)[0], added_up(x, y, z, *PARTS["dot2"])
    )
    by_pairs = "pmadd" in emit(dots(lanes, "dot2"), machine_model(made))
    assert by_pairs == (lanes in (4, 8, 16) and 4 * lanes <= made.vector_bytes and cpu != "sandybridge")


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


# --- loads and stores -----------------------------------------------------------------------------------------

LENGTHS = [1, 2, 3, 7, 8, 16, 33, 64, 100, 200]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("stride", [0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_load_strides(n: int, stride: int, dtype: str) -> None:
    start = 5 + max(0, -stride) * n
    x = Buffer("x", (start + max(stride, 0) * n + 1,), dtype)
    out = Buffer("out", (n,), dtype)
    kernel = Kernel("strided", (x, out), loop(n, lambda i: store(out, (i,), x[i * stride + start]), VECTORIZED))
    a = random_array(x.shape, dtype, n)
    np.testing.assert_array_equal(run_native(kernel, a)[0], a[start + stride * np.arange(n)])


@pytest.mark.parametrize("n", [3, 8, 20, 77])
@pytest.mark.parametrize("stride", [1, 2, 5])
def test_store_strides(n: int, stride: int) -> None:
    x, out = Buffer("x", (n,), "float32"), Buffer("out", (n * stride + 2,), "float32")
    fill = loop(n * stride + 2, lambda i: store(out, (i,), const(-1, "float32")))
    scatter = loop(n, lambda i: store(out, (i * stride + 1,), x[i]), VECTORIZED)
    a = random_array((n,), "float32")
    expected = np.full(out.shape, -1, np.float32)
    expected[1 + stride * np.arange(n)] = a
    np.testing.assert_array_equal(run_native(Kernel("scatter", (x, out), seq(fill, scatter)), a)[0], expected)


@pytest.mark.parametrize("kind", [SERIAL, VECTORIZED])
def test_indices_of_reshapes_and_gathers(kind: LoopKind) -> None:
    """Floor division and modulo of the lane, negative operands, an index read from memory."""
    n = 60
    x, at, out = Buffer("x", (5, 12), "float32"), Buffer("at", (n,), "int32"), Buffer("out", (3, n), "float32")

    def body(i: LoopExpr) -> object:
        shifted = i - 30
        return seq(
            store(out, (0, i), x[i % 5, i // 5]),
            store(out, (1, i), x[(shifted // 7) % 5, shifted % 12]),
            store(out, (2, i), x[at[i].astype("int64") // 12, at[i].astype("int64") % 12]),
        )

    a, where = random_array((5, 12), "float32"), np.random.default_rng(1).integers(0, 60, n).astype(np.int32)
    kernel = Kernel("indices", (x, at, out), loop(n, body, kind))
    i = np.arange(n)
    (found,) = run_native(kernel, a, where)
    np.testing.assert_array_equal(found[0], a[i % 5, i // 5])
    np.testing.assert_array_equal(found[1], a[((i - 30) // 7) % 5, (i - 30) % 12])
    np.testing.assert_array_equal(found[2], a.reshape(-1)[where])


# --- guards ---------------------------------------------------------------------------------------------------


def padded(n: int, pad: int, x: Buffer, i: LoopExpr) -> LoopExpr:
    inside = Binary("and", const(pad, "int64") <= i, i < n + pad)
    return select(inside, x[i - pad], 0.5)


@pytest.mark.parametrize("kind", [SERIAL, VECTORIZED, UNROLLED])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_guarded_loads_pad(kind: LoopKind, dtype: str, n: int) -> None:
    x, out = Buffer("x", (n,), dtype), Buffer("out", (n + 6,), dtype)

    def value(i: LoopExpr) -> LoopExpr:
        inside = Binary("and", const(3, "int64") <= i, i < n + 3)
        return select(inside, x[i - 3], const(1, dtype))

    kernel = Kernel("pad", (x, out), loop(n + 6, lambda i: store(out, (i,), value(i)), kind))
    a = random_array((n,), dtype, 11)
    np.testing.assert_array_equal(run_native(kernel, a)[0], np.pad(a, 3, constant_values=1))


def test_guarded_loads_never_touch_what_lies_outside() -> None:
    """Addresses far outside of the process's memory, behind conditions that are false there."""
    far, n = 1 << 44, 16
    x, c, out = Buffer("x", (n,), "float32"), Buffer("c", (n,), "bool"), Buffer("out", (5, n), "float32")

    def body(i: LoopExpr) -> object:
        away = select(c[i], Const(0), Const(far))
        return seq(
            store(out, (0, i), select(c[i], x[i + away], -1.0)),  # by lane, gathered
            store(out, (1, i), select(i < 8, x[i + (i // 8) * far], -1.0)),
            store(out, (2, i), select(c[0], -1.0, x[i + far])),  # the same for all lanes: a branch
            store(out, (3, i), select(c[i], x[i], select(c[i], x[i + far * 2], 2.0))),
            store(out, (4, i), select(c[i], x[0 * i + away], 3.0)),
        )

    a, mask = random_array((n,), "float32"), np.arange(n) % 3 == 0
    for kind in (VECTORIZED, SERIAL):
        (found,) = run_native(Kernel("far", (x, c, out), loop(n, body, kind)), a, mask)
        np.testing.assert_array_equal(found[0], np.where(mask, a, -1))
        np.testing.assert_array_equal(found[1], np.where(np.arange(n) < 8, a, -1))
        np.testing.assert_array_equal(found[2], np.full(n, -1))
        np.testing.assert_array_equal(found[3], np.where(mask, a, 2))
        np.testing.assert_array_equal(found[4], np.where(mask, a[0], 3))


@pytest.mark.parametrize(("rows", "masked"), [(7, False), (8, True)])
def test_lanes_beyond_their_row_need_a_mask_only_at_the_buffer_s_end(rows: int, masked: bool) -> None:
    x, out = Buffer("x", (8, 5), "float32"), Buffer("out", (rows, 8), "float32")

    def element(i: LoopExpr, lane: LoopExpr) -> Stmt:
        return store(out, (i, lane), select(lane < 5, x[i, lane], const(-1, "float32")))

    kernel = Kernel("k", (x, out), loop(rows, lambda i: loop(8, lambda lane: element(i, lane), VECTORIZED)))
    assert ("masked.load" in emit(kernel, machine_model(host()))) == masked
    given = random_array((8, 5), "float32")
    (found,) = run_native(kernel, given)
    np.testing.assert_array_equal(found, np.pad(given[:rows], ((0, 0), (0, 3)), constant_values=-1))


def test_uniform_load_behind_a_mask_that_no_lane_passes() -> None:
    x, c, out = Buffer("x", (1,), "float32"), Buffer("c", (8,), "bool"), Buffer("out", (4, 8), "float32")
    row = lambda r, i: store(out, (r, i), select(c[i], x[r * (1 << 44)], 5.0))  # noqa: E731
    kernel = Kernel("none", (x, c, out), loop(4, lambda r: loop(8, lambda i: row(r, i), VECTORIZED)))
    (found,) = run_native(kernel, np.array([2.0]), np.zeros(8, bool))
    np.testing.assert_array_equal(found, np.full((4, 8), 5))


@pytest.mark.parametrize("n", [5, 16, 29])
def test_if_by_lane_masks_stores(n: int) -> None:
    x, out = Buffer("x", (n,), "float32"), Buffer("out", (2 * n,), "float32")

    def body(i: LoopExpr) -> object:
        return seq(
            store(out, (i,), const(9, "float32")),
            store(out, (n + i,), const(8, "float32")),
            If(x[i] < 0.0, store(out, (i,), x[i]), If(i < 3, store(out, (n + i,), x[i] * 2.0))),
        )

    a = random_array((n,), "float32", 3)
    i = np.arange(n)
    expected = np.concatenate([np.where(a < 0, a, 9), np.where((a >= 0) & (i < 3), a * 2, 8)]).astype(np.float32)
    for kind in (VECTORIZED, SERIAL, PARALLEL):
        (found,) = run_native(Kernel("masked", (x, out), loop(n, body, kind)), a)
        np.testing.assert_array_equal(found, expected)


def test_masked_stores_with_a_stride() -> None:
    x, out = Buffer("x", (12,), "float32"), Buffer("out", (24,), "float32")
    fill = loop(24, lambda i: store(out, (i,), const(1, "float32")))
    body = loop(12, lambda i: If(x[i] < 0.0, store(out, (i * 2,), x[i])), VECTORIZED)
    a = random_array((12,), "float32", 4)
    expected = np.ones(24, np.float32)
    expected[::2][a < 0] = a[a < 0]
    np.testing.assert_array_equal(run_native(Kernel("every_other", (x, out), seq(fill, body)), a)[0], expected)


# --- loops and buffers ----------------------------------------------------------------------------------------


def test_vectorized_loop_around_loops_and_a_buffer_per_lane() -> None:
    """A reduction in every lane, into a buffer that each lane has for itself."""
    x, out = Buffer("x", (7, 20), "float32"), Buffer("out", (20,), "float32")
    acc = Buffer("acc", (2,), "float32", "local")

    def lane(j: LoopExpr) -> object:
        step = lambda k: store(acc, (k % 2,), acc[k % 2] + x[k, j])  # noqa: E731
        init = loop(2, lambda k: store(acc, (k,), const(0, "float32")))
        return Alloc(acc, seq(init, loop(7, step), store(out, (j,), acc[0] - acc[1])))

    a = random_array((7, 20), "float32")
    kernel = Kernel("columns", (x, out), loop(20, lane, VECTORIZED))
    np.testing.assert_allclose(run_native(kernel, a)[0], a[::2].sum(0) - a[1::2].sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run_kernel(kernel, a)[0], a[::2].sum(0) - a[1::2].sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lanes", [3, 13, 16, 24, 49, 61, 97, 112])
def test_accumulators_are_powers_of_two(lanes: int) -> None:
    """LLVM keeps any other vector as so many single elements from one block to the next."""
    x, out = Buffer("x", (5, lanes), "float32"), Buffer("out", (lanes,), "float32")
    acc = Buffer("acc", (lanes,), "float32", "local")
    clear = loop(lanes, lambda k: store(acc, (k,), const(0, "float32")), VECTORIZED)
    add = loop(5, lambda r: loop(lanes, lambda k: store(acc, (k,), acc[k] + x[r, k]), VECTORIZED))
    put = loop(lanes, lambda k: store(out, (k,), acc[k]), VECTORIZED)
    kernel = Kernel("sums", (x, out), Alloc(acc, seq(clear, add, put)))
    a = random_array((5, lanes), "float32")
    np.testing.assert_allclose(run_native(kernel, a)[0], a.sum(0), rtol=1e-5, atol=1e-6)
    found = re.findall(r"load <(\d+) x float>, ptr %[av]\d+, align 64", emit(kernel, MachineModel(64, 32)))
    assert all(int(n).bit_count() == 1 for n in found)


def test_lanes_that_depend_on_each_other_run_in_order() -> None:
    """All lanes add to one element: no lanes, a serial loop."""
    x, out = Buffer("x", (13,), "float32"), Buffer("out", (1,), "float32")
    acc = Buffer("acc", (1,), "float32", "local")
    total = loop(13, lambda i: store(acc, (0,), acc[0] + x[i]), VECTORIZED)
    kernel = Kernel(
        "total", (x, out), Alloc(acc, seq(store(acc, (0,), const(0, "float32")), total, store(out, (0,), acc[0])))
    )
    a = random_array((13,), "float32")
    np.testing.assert_allclose(run_native(kernel, a)[0], [a.sum()], rtol=1e-6)


def test_nested_vectorized_loops_and_extents_known_at_run_time() -> None:
    x, out = Buffer("x", (6, 8), "float32"), Buffer("out", (6, 8), "float32")
    body = lambda i, j: store(out, (i, j), x[i, j] * i.astype("float32") + j.astype("float32"))  # noqa: E731
    a, (i, j) = random_array((6, 8), "float32"), np.mgrid[:6, :8].astype(np.float32)
    both = Kernel("both", (x, out), nest((6, 8), body, VECTORIZED))
    np.testing.assert_allclose(run_native(both, a)[0], a * i + j, rtol=1e-6)
    fill = nest((6, 8), lambda i, j: store(out, (i, j), const(0, "float32")))
    triangle = loop(6, lambda i: loop(i + 1, lambda j: store(out, (i, j), x[i, j])))
    np.testing.assert_array_equal(run_native(Kernel("tril", (x, out), seq(fill, triangle)), a)[0], np.tril(a))
    lanes = loop(6, lambda i: loop(i + 1, lambda j: store(out, (i, j), x[i, j])), VECTORIZED)
    np.testing.assert_array_equal(run_native(Kernel("tril2", (x, out), seq(fill, lanes)), a)[0], np.tril(a))


def test_what_an_inner_loop_does_not_change_is_written_before_it() -> None:
    x, scale, out = Buffer("x", (5, 7, 6), "float32"), Buffer("s", (5,), "float32"), Buffer("out", (5, 7, 6), "float32")
    body = lambda i, j, k: store(out, (i, j, k), x[i, j, k] * scale[i // 2])  # noqa: E731
    kernel = Kernel("scaled", (x, scale, out), nest((5, 7, 6), body))
    *before, inner = emit(kernel, MachineModel(16, 16)).partition("= phi")[2].rpartition("= phi")
    assert "udiv" in before[0] and inner.count("= load float") == 1
    assert not re.search("udiv|urem", inner)
    a, b = random_array((5, 7, 6), "float32"), random_array((5,), "float32", 1)
    np.testing.assert_array_equal(run_native(kernel, a, b)[0], a * b[np.arange(5) // 2, None, None])


def test_a_read_stays_behind_its_condition() -> None:
    """The address is no element's where the condition does not hold."""
    x, out = Buffer("x", (3,), "float32"), Buffer("out", (9, 4), "float32")
    guarded = lambda i, j: seq(store(out, (i, j), const(0, "float32")), If(i < 3, store(out, (i, j), x[i])))  # noqa: E731
    kernel = Kernel("guarded", (x, out), nest((9, 4), guarded))
    text = emit(kernel, MachineModel(16, 16))
    assert text.index("= load float") > text.rindex("icmp slt")
    a = random_array((3,), "float32")
    np.testing.assert_array_equal(run_native(kernel, a)[0], np.repeat(np.append(a, [0] * 6), 4).reshape(9, 4))


def tiled_matmul(m: int, n: int, k: int, lanes: int, rows: int = 6, columns: int = 2, unroll: int = 4) -> Kernel:
    """``C = A B`` with a register tile; A as (m/rows, k, rows), B as (n/width, k, width)."""
    width = columns * lanes
    a = Buffer("a", (m // rows, k, rows), "float32")
    b, c = Buffer("b", (n // width, k, width), "float32"), Buffer("c", (m, n), "float32")
    acc = Buffer("acc", (rows, width), "float32", "local")

    def each(body: object) -> object:
        assert callable(body)
        cell = lambda r, q: loop(lanes, lambda v: body(r, q * lanes + v), VECTORIZED)  # noqa: E731
        return nest((rows, columns), cell, UNROLLED)

    def tile(i: LoopExpr, j: LoopExpr) -> object:
        def step(s: LoopExpr) -> object:
            return each(lambda r, v: store(acc, (r, v), intrin("fma", a[i, s, r], b[j, s, v], acc[r, v])))

        zero = each(lambda r, v: store(acc, (r, v), const(0, "float32")))
        inner = loop(k // unroll, lambda o: loop(unroll, lambda u: step(o * unroll + u), UNROLLED))
        write = each(lambda r, v: store(c, (i * rows + r, j * width + v), acc[r, v]))
        return Alloc(acc, seq(zero, inner, write))

    return Kernel("matmul", (a, b, c), nest((m // rows, n // width), tile, PARALLEL))


def packed(a: np.ndarray, b: np.ndarray, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    (m, k), n = a.shape, b.shape[1]
    return a.reshape(m // rows, rows, k).transpose(0, 2, 1), b.reshape(k, n // width, width).transpose(1, 0, 2)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_tiled_matmul(threads: int, vector_bytes: int) -> None:
    lanes = vector_bytes // 4
    width = 2 * lanes
    a, b = random_array((18, 12), "float32", 1), random_array((12, 3 * width), "float32", 2)
    machine = MachineModel(vector_bytes, 16, features=machine_model(host()).features)
    kernel = tiled_matmul(18, 3 * width, 12, lanes)
    (found,) = run_native(kernel, *packed(a, b, 6, width), threads=threads, machine=machine)
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-5)


# --- threads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_parallel_loops_divide_all_iterations(threads: int, n: int) -> None:
    x, out = Buffer("x", (n, 3), "float32"), Buffer("out", (n, 3), "float32")
    kernel = Kernel("rows", (x, out), nest((n, 3), lambda i, j: store(out, (i, j), x[i, j] + 1.0), PARALLEL))
    a = random_array((n, 3), "float32")
    np.testing.assert_array_equal(run_native(kernel, a, threads=threads)[0], a + 1)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_barriers_and_workspaces(threads: int) -> None:
    """Thread 0 prepares, all work, all read what the others wrote; every thread has scratch of its own."""
    n = 37
    x, out = Buffer("x", (n,), "float32"), Buffer("out", (n,), "float32")
    doubled, total = Buffer("doubled", (n,), "float32"), Buffer("total", (1,), "float32")
    scratch = Buffer("scratch", (16,), "float32", "shared")
    first = seq(store(total, (0,), const(0, "float32")), loop(n, lambda i: store(total, (0,), total[0] + x[i])))
    middle = loop(n, lambda i: store(doubled, (i,), x[i] * 2.0), PARALLEL)

    def last(i: LoopExpr) -> object:
        fill = loop(16, lambda s: store(scratch, (s,), doubled[(i + s) % n]))
        return seq(fill, store(out, (i,), scratch[0] + scratch[15] + total[0]))

    body = seq(first, middle, Barrier(), Alloc(scratch, loop(n, last, PARALLEL)))
    kernel = Kernel("phases", (x, out), Alloc(doubled, Alloc(total, body)))
    a = random_array((n,), "float32")
    i = np.arange(n)
    (found,) = run_native(kernel, a, threads=threads)
    np.testing.assert_allclose(found, 2 * a + 2 * a[(i + 15) % n] + a.sum(), rtol=1e-5, atol=1e-5)


def test_barriers_in_a_serial_loop_that_all_threads_run() -> None:
    """Pointer jumping: each round reads what every thread wrote in the round before."""
    n, rounds = 32, 5
    x, out = Buffer("x", (n,), "int32"), Buffer("out", (n,), "int32")
    state = Buffer("state", (2, n), "int32")
    start = loop(n, lambda i: store(state, (0, i), x[i]), PARALLEL)

    def jump(r: LoopExpr) -> object:
        far = lambda i: state[r % 2, (i + 7) % n] + state[r % 2, i]  # noqa: E731
        return seq(loop(n, lambda i: store(state, ((r + 1) % 2, i), far(i)), PARALLEL), Barrier())

    finish = loop(n, lambda i: store(out, (i,), state[rounds % 2, i]), PARALLEL)
    kernel = Kernel("jumps", (x, out), Alloc(state, seq(start, Barrier(), loop(rounds, jump), finish)))
    a = random_array((n,), "int32")
    expected = a
    for _ in range(rounds):
        expected = expected + np.roll(expected, -7)
    for threads in (1, 2, 4):
        np.testing.assert_array_equal(run_native(kernel, a, threads=threads)[0], expected)


def test_large_local_buffers_leave_the_stack() -> None:
    n = 40_000
    x, out = Buffer("x", (n,), "float32"), Buffer("out", (3, n), "float32")
    copy = Buffer("copy", (n,), "float32", "local")

    def row(r: LoopExpr) -> object:
        fill = loop(n, lambda i: store(copy, (i,), x[i] + r.astype("float32")), VECTORIZED)
        return Alloc(copy, seq(fill, loop(n, lambda i: store(out, (r, i), copy[n - 1 - i]), VECTORIZED)))

    a = random_array((n,), "float32")
    (found,) = run_native(Kernel("large", (x, out), loop(3, row, PARALLEL)), a, threads=2)
    np.testing.assert_array_equal(found, np.stack([(a + np.float32(r))[::-1] for r in range(3)]))


# --- text -----------------------------------------------------------------------------------------------------


def test_a_barrier_inside_a_parallel_loop_is_refused() -> None:
    out = Buffer("out", (4,), "float32")
    body = loop(4, lambda i: seq(store(out, (i,), const(0, "float32")), Barrier()), PARALLEL)
    with pytest.raises(CompilerError) as caught:
        emit(Kernel("bad", (out,), body), machine_model(host()))
    assert str(caught.value) == (
        "bad: a barrier inside a parallel loop, which threads reach different numbers of times\n"
        "  = hint: on a CPU barriers stand between loop nests, outside of any parallel loop"
    )


def test_a_loop_bound_to_a_gpu_is_refused() -> None:
    out = Buffer("out", (4,), "float32")
    kernel = Kernel("bad", (out,), loop(4, lambda i: store(out, (i,), const(0, "float32")), LoopKind.THREAD_X))
    with pytest.raises(CompilerError) as caught:
        emit(kernel, machine_model(host()))
    assert str(caught.value) == (
        "bad: a loop bound to threadIdx.x has no meaning on a CPU\n  = hint: lower the function for kind 'llvm'"
    )


def test_shared_nodes_are_written_once() -> None:
    def doubled(x: LoopExpr) -> LoopExpr:
        for _ in range(400):
            x = x + x
        return x

    text = emit(elementwise(8, ["float32"], "float32", doubled), machine_model(host()))
    assert text.count("fadd") == 400


def test_guards_that_ranges_decide_leave_no_branch() -> None:
    x, out = Buffer("x", (8, 8), "float32"), Buffer("out", (8, 8), "float32")
    inside = lambda i, j: select((i * 8 + j) < 64, x[i, (i * 8 + j) % 8], 0.0)  # noqa: E731
    body = loop(8, lambda i: loop(8, lambda j: store(out, (i, j), inside(i, j)), VECTORIZED))
    text = emit(Kernel("decided", (x, out), body), machine_model(host()))
    assert "select" not in text and "urem" not in text and "load <8 x float>" in text


@pytest.mark.parametrize("block", [3, 4, 7, 8])
def test_a_split_position_is_one_number_whatever_else_is_divided(block: int) -> None:
    """``x[work % 4, p // 9, p % 9 // 3, p % 3]`` with a ``p`` that holds ``work // 4``: neighbours in memory."""
    x, out = (Buffer(name, (4, 3 * block, 3, 3), "float32") for name in ("x", "out"))
    machine = machine_model(host())

    def work(i: LoopExpr) -> Stmt:
        def lane(v: LoopExpr, j: LoopExpr) -> Stmt:
            p = (i // 4 * 3 + v) * 3 * block + j
            index = (i % 4, p // 3 // 3, p // 3 % 3, p % 3)
            return store(out, index, x[index] + 1.0)

        return loop(3, lambda v: loop(3 * block, lambda j: lane(v, j), VECTORIZED))

    kernel = Kernel("split", (x, out), loop(12, work, LoopKind.PARALLEL))
    given = random_array(x.shape, "float32")
    (found,) = run_native(kernel, given)
    np.testing.assert_array_equal(found, given + 1)
    assert not re.search(r"insertelement .*, i64 [1-9]", emit(kernel, machine))
