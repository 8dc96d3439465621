"""Dtypes that are only stored: every code decoded, every rounding boundary encoded, by the numpy definition, the loop
interpreter over machine operations, LLVM and CUDA C; against exact arithmetic, ml_dtypes and onnx's reference.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import test_cuda_numbers as cuda
from native_kernel import run_native
from onnx.reference.ops.op_cast import cast_to
from test_scalar_meanings import elementwise

from minitvm.codegen.legalize import spell_scalars
from minitvm.codegen.storage import FORMATS, code_dtype
from minitvm.errors import CompilerError, TypeInferenceError
from minitvm.ir import builder as b
from minitvm.ir.dtypes import COMPUTED, DTYPES, STORED, bits_of, is_float, packed, unpacked
from minitvm.ir.loop import Binary, Kernel, LoopKind
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.scalar import convert
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import OPS
from minitvm.passes.arithmetic import is_lossless
from tests.compilers import needs_compiler

FLOATS = [dtype for dtype in STORED if is_float(dtype)]
FLOAT8 = [dtype for dtype in FLOATS if dtype.startswith("float8") and "e8m0" not in dtype]
FROM = ("float16", "float32", "float64", "bool", "int8", "uint16", "int32", "uint32", "int64", "uint64")


def every(dtype: str) -> np.ndarray:
    """Every code."""
    return np.arange(1 << bits_of(dtype)).astype(code_dtype(dtype)).view(dtype)


def same(have: np.ndarray, want: np.ndarray, what: str) -> None:
    """Bit for bit, but for the bits of a NaN."""
    assert have.dtype == want.dtype, what
    bits = code_dtype(want.dtype.name)
    wrong = have.view(bits) != want.view(bits)
    if is_float(want.dtype.name):
        wrong &= ~(np.isnan(have.astype("float64")) & np.isnan(want.astype("float64")))
    assert not wrong.any(), f"{what}: {have[wrong][:5]}, not {want[wrong][:5]}"


def cast_kernel(values: np.ndarray, dtype: str, kind: LoopKind = LoopKind.VECTORIZED) -> Kernel:
    return elementwise(lambda x: x.astype(dtype), values, dtype=dtype, kind=kind)


def check_cast(values: np.ndarray, dtype: str, want: np.ndarray) -> None:
    what, kernel = f"{values.dtype.name} to {dtype}", cast_kernel(values, dtype)
    with np.errstate(all="ignore"):
        same(convert(values, dtype), want, f"{what}, numpy")
        same(run_kernel(kernel, values)[0], want, f"{what}, interpreter")
        codes = values.view(code_dtype(values.dtype.name)) if values.dtype.name in STORED else values
        same(run_kernel(spell_scalars(kernel), codes)[0].view(dtype), want, f"{what}, machine operations")
    same(run_native(kernel, values)[0], want, f"{what}, LLVM")


@pytest.mark.parametrize("dtype", STORED)
def test_every_code_is_the_number_that_ml_dtypes_says(dtype: str) -> None:
    values = every(dtype)
    check_cast(values, STORED[dtype], values.astype(STORED[dtype]))
    for target in ("float64", "float16", "int32", "bool"):
        with np.errstate(all="ignore"):
            check_cast(values, target, convert(values.astype(STORED[dtype]), target))


@pytest.mark.parametrize("dtype", STORED)
def test_from_one_stored_dtype_to_another(dtype: str) -> None:
    values = every(dtype)
    for target in (other for other in STORED if other != dtype):
        with np.errstate(all="ignore"):
            check_cast(values, target, convert(values.astype(STORED[dtype]), target))


# --- rounding ---------------------------------------------------------------------------------------------------


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest number by exact arithmetic on float64, halves to even codes; beyond half a step, what is beyond."""
    form = FORMATS[dtype]
    sign = 1 << (bits_of(dtype) - 1)
    codes = np.arange(form.largest + 1).astype(code_dtype(dtype))
    numbers = codes.view(dtype).astype("float64")
    numbers = np.append(numbers, 2 * numbers[-1] - numbers[-2])
    size = np.abs(values.astype("float64"))
    middles = (numbers[1:] + numbers[:-1]) / 2
    code = np.searchsorted(middles, size, "left")
    code += (size == middles[np.minimum(code, len(middles) - 1)]) & (code % 2 == 1)
    code = np.where(code > form.largest, form.beyond, code)
    code = np.where(np.isnan(size), form.nan, code)
    signed = np.where(form.one_zero & (code % sign == 0), code, code ^ np.where(np.signbit(values), sign, 0))
    return signed.astype(code_dtype(dtype)).view(dtype)


def boundaries(dtype: str, source: str) -> np.ndarray:
    """The numbers of a dtype, the middles between them, and what ``source`` has on both sides of each."""
    codes = np.arange(FORMATS[dtype].largest + 1).astype(code_dtype(dtype))
    numbers = codes.view(dtype).astype("float64")
    exact = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, numbers[-1:] * [1.02, 1.05, 1.2, 2, 1e9]])
    rng = np.random.default_rng(3)
    spread = np.exp2(rng.uniform(-140, 129, 4096))
    with np.errstate(all="ignore"):
        found = np.concatenate([exact, spread, [0.0, np.inf, np.nan]]).astype(source)
        near = [np.nextafter(found, found.dtype.type(end)) for end in (np.inf, 0)]
    return np.concatenate([s * part for part in (found, *near) for s in (1, -1)]).astype(source)


@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_floats_are_rounded_once_to_the_nearest(dtype: str, source: str) -> None:
    values = boundaries(dtype, source)
    check_cast(values, dtype, rounded(values, dtype))
    if source != "float64":  # ml_dtypes rounds float64 to float32 first
        with np.errstate(all="ignore"):
            same(convert(values, dtype), values.astype(dtype), "ml_dtypes")


@pytest.mark.parametrize("source", [s for s in FROM if not s.startswith("float")])
def test_integers(source: str) -> None:
    info = np.iinfo(source) if source != "bool" else None
    rng = np.random.default_rng(5)
    ends = [] if info is None else [info.min, info.max, *range(max(info.min, -70), 70)]
    values = np.array([0, 1, *ends]).astype(source) if info else np.array([False, True])
    if info is not None:
        powers = np.exp2(rng.uniform(0, np.log2(float(info.max)), 4000)).astype(source)
        values = np.concatenate([values, powers, (0 - powers) if info.min else powers])
    for dtype in STORED:
        if dtype in FORMATS:
            want = rounded(values, dtype)
        elif is_float(dtype):
            want = convert(values.astype("float64"), dtype)
        else:
            want = (values.astype("int64") & ((1 << bits_of(dtype)) - 1)).astype("uint8").view(dtype)
        check_cast(values, dtype, want)


@pytest.mark.parametrize("dtype", [d for d in STORED if not is_float(d)])
def test_floats_to_few_bits(dtype: str) -> None:
    """As onnx's tests have it: an integer first, of which the lowest bits are kept."""
    values = np.concatenate([np.linspace(-40, 40, 1001), [1e12, -1e12, np.inf, -np.inf, np.nan]]).astype("float32")
    whole = np.clip(np.nan_to_num(np.trunc(values.astype("float64"))), -(2.0**31), 2.0**31 - 1).astype("int64")
    check_cast(values, dtype, (whole & ((1 << bits_of(dtype)) - 1)).astype("uint8").view(dtype))
    same(convert(values[:1001], dtype), values[:1001].astype(dtype), "ml_dtypes")


# --- the operator -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_cast_saturates_as_onnx_says(dtype: str, saturate: bool) -> None:
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for source in ("float32", "float16"):
        values = boundaries(dtype, source)
        with np.errstate(all="ignore"):
            have = OPS["cast"](dtype=dtype, saturate=saturate).reference(values)
            same(have, cast_to(values, code, saturate), f"{source} to {dtype}")
    values = np.array([np.inf, -np.inf, np.nan, 1e6, -1e6, 0.0, -0.0], "float32")
    found = OPS["cast"](dtype=dtype, saturate=saturate).reference(values).astype("float32")
    largest, infinite = float(np.array([FORMATS[dtype].largest], "uint8").view(dtype)[0]), dtype == "float8_e5m2"
    beyond = largest if saturate else np.inf if infinite else np.nan  # the table of Cast
    want = np.array([beyond, -beyond, np.nan, beyond, -beyond, 0.0, 0.0 if FORMATS[dtype].one_zero else -0.0])
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found[5:]), np.signbit(want[5:]))


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode: str, saturate: bool) -> None:
    cast = OPS["cast"](dtype="float8_e8m0fnu", saturate=saturate, round_mode=mode)
    rng = np.random.default_rng(9)
    normal = np.exp2(rng.uniform(-126, 127, 4000)).astype("float32")
    edges = np.exp2(np.arange(-126, 127)).astype("float32")
    values = np.concatenate([normal, edges, edges * 1.5, np.nextafter(edges * 1.5, 0), np.nextafter(edges, 9e9)])
    want = onnx.numpy_helper.to_float8e8m0(values.astype("float32"), saturate, mode)
    same(cast.reference(values.astype("float32")), want, mode)
    least, most, nan = 2.0**-127, 2.0**127, np.nan
    special = np.array([0.0, np.inf, 3.4e38, 2.0**-128, nan, least, most], "float32")
    large = most if saturate or mode == "down" else nan
    want = np.array([least, most, large, least, nan] if saturate else [nan, nan, large, nan, nan], "float32")
    want = np.append(want, np.float32([least, most]))
    np.testing.assert_array_equal(cast.reference(special).astype("float32"), want)


@pytest.mark.parametrize("middle", DTYPES)
def test_a_lossless_cast_keeps_every_value(middle: str) -> None:
    for first in STORED:
        if is_lossless(first, middle):
            values = every(first)
            same(convert(convert(values, middle), first), convert(convert(values, STORED[first]), first), first)


def test_nothing_is_computed_in_them() -> None:
    for dtype in STORED:
        x = b.var("x", shape=(3,), dtype=dtype)
        with pytest.raises(TypeInferenceError, match=rf"^add: {dtype} is for storage; nothing is computed in it"):
            b.add(x, x)
        with pytest.raises(TypeInferenceError, match=rf"hint: cast to {STORED[dtype]} and back"):
            b.sum(x)
    values = every("int4")
    with pytest.raises(CompilerError, match="add of int4, which is only stored"):
        verify_kernel(elementwise(lambda x: Binary("add", x, x), values, dtype="int4", kind=LoopKind.SERIAL))


def test_packed() -> None:
    rng = np.random.default_rng(1)
    for dtype in DTYPES:
        for size in (0, 1, 3, 4, 7):
            values = convert(rng.integers(-2, 2, size).astype("float32") ** 2, dtype)
            data = packed(values)
            assert len(data) == -(-size * bits_of(dtype) // 8)
            assert unpacked(data, dtype, size).tobytes() == values.tobytes()
    assert packed(np.array([1, -2, 3], "int4")) == b"\xe1\x03"
    assert packed(np.array([1, 2, 3, 0, 1], "uint2")) == b"\x39\x01"


@needs_compiler
def test_cuda_c() -> None:
    """The CUDA C that is printed, by the host's compiler."""
    cases = []
    for dtype in STORED:
        given = [(every(dtype), STORED[dtype]), (np.arange(-9, 9), dtype)]
        given += [(boundaries(dtype, source), dtype) for source in ("float32", "float64") if dtype in FORMATS]
        cases += [(cast_kernel(values[:1024], to, LoopKind.THREAD_X), values[:1024]) for values, to in given]
    compiled = cuda.Compiled([kernel for kernel, _ in cases])
    for number, (kernel, values) in enumerate(cases):
        (found,) = compiled.run(number, [values], "reverse")
        with np.errstate(all="ignore"):
            same(found, convert(values, kernel.outputs[0].dtype), str(kernel))


def test_the_tables_name_the_same_dtypes() -> None:
    assert set(DTYPES) == set(COMPUTED) | set(STORED)
    assert set(FORMATS) | {"float8_e8m0fnu"} == set(FLOATS)
