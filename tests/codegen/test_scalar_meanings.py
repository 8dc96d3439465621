"""Where C, numpy and processors differ, one meaning: references, interpreter, folding, LLVM and CUDA C agree on it.

Expected values come from Python's integers; the table is the one in docs/loop-ir.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import test_cuda_numbers as cuda
from native_kernel import run_native

from minitvm.codegen.legalize import spell_scalars
from minitvm.codegen.simplify import simplify
from minitvm.ir.loop import Binary, Buffer, Cast, Const, Kernel, LoopExpr, LoopKind, Store, const, loop, seq
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.op import OPS
from tests.compilers import needs_compiler

INTS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]

Fold = Callable[[int, int], int]


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)  # callers wrap to fewer bits
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


def _shifted(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def _shifted_right(a: int, b: int, bits: int) -> int:
    return a >> b if 0 <= b < bits else -1 if a < 0 else 0


MEANING: dict[str, tuple[str, Callable[[int, int, int], int]]] = {
    "div": ("divide", lambda a, b, bits: _truncated(a, b) if b else a),
    "mod": ("mod", lambda a, b, bits: a - _truncated(a, b) * b if b else 0),
    "floordiv": ("floor_divide", lambda a, b, bits: a // b if b else a),
    "floormod": ("floor_mod", lambda a, b, bits: a % b if b else 0),
    "pow": ("power", lambda a, b, bits: _power(a, b)),
    "shl": ("left_shift", _shifted),
    "shr": ("right_shift", _shifted_right),
    "add": ("add", lambda a, b, bits: a + b),
    "sub": ("subtract", lambda a, b, bits: a - b),
    "mul": ("multiply", lambda a, b, bits: a * b),
}


def _wrapped(values: list[int], dtype: str) -> np.ndarray:
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([v % (1 << bits) for v in values], "uint64").astype(f"uint{bits}").view(dtype)


def integers(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of what could go wrong."""
    info, bits = np.iinfo(dtype), 8 * np.dtype(dtype).itemsize
    ends = [info.min, info.min + 1, info.max, info.max - 1]
    picks = sorted({v for v in (*ends, -3, -2, -1, 0, 1, 2, 3, 7, bits - 1, bits) if info.min <= v <= info.max})
    a, b = np.meshgrid(np.array(picks, dtype), np.array(picks, dtype))
    return a.ravel(), b.ravel()


def elementwise(value: Callable[..., LoopExpr], *arrays: np.ndarray, dtype: str, kind: LoopKind) -> Kernel:
    ins = [Buffer(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
    out, n = Buffer("out", arrays[0].shape, dtype), len(arrays[0])
    return Kernel("all", (*ins, out), loop(n, lambda i: Store(out, (i,), value(*(b[i] for b in ins))), kind, name="i"))


def folded(value: Callable[..., LoopExpr], *arrays: np.ndarray, dtype: str) -> np.ndarray:
    """What the simplifier makes of constants."""
    out = Buffer("out", (len(arrays[0]),), dtype)
    rows = [[const(v, a.dtype.name) for v in a.tolist()] for a in arrays]
    stores = [Store(out, (Const(n),), value(*operands)) for n, operands in enumerate(zip(*rows, strict=True))]
    kernel = simplify(Kernel("folded", (out,), seq(*stores)))
    (found,) = run_kernel(kernel)
    assert all(isinstance(s.value, Const) for s in kernel.body.stmts)  # type: ignore[attr-defined]
    return np.asarray(found)


def check(value: Callable[..., LoopExpr], want: np.ndarray, *arrays: np.ndarray) -> None:
    dtype = want.dtype.name
    serial = elementwise(value, *arrays, dtype=dtype, kind=LoopKind.SERIAL)
    lanes = elementwise(value, *arrays, dtype=dtype, kind=LoopKind.VECTORIZED)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run_kernel(serial, *arrays)[0], want, err_msg="interp")
        np.testing.assert_array_equal(run_kernel(spell_scalars(serial), *arrays)[0], want, err_msg="machine operations")
        np.testing.assert_array_equal(folded(value, *arrays, dtype=dtype), want, err_msg="folding")
    for kernel in (serial, lanes):
        np.testing.assert_array_equal(run_native(kernel, *arrays)[0], want, err_msg="LLVM")


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", MEANING)
def test_integers(op: str, dtype: str) -> None:
    a, b = integers(dtype)
    name, exact = MEANING[op]
    bits = 8 * a.dtype.itemsize
    want = _wrapped([exact(x, y, bits) for x, y in zip(a.tolist(), b.tolist(), strict=True)], dtype)
    check(lambda x, y: Binary(op, x, y), want, a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(OPS[name]().reference(a, b), want, err_msg="reference")


def reals(source: str, dtype: str) -> np.ndarray:
    """Numbers around both ends of an integer dtype, halves, NaN and infinities, as far as ``source`` has them."""
    info = np.iinfo(dtype)
    some = [0.0, -0.0, 0.5, -0.5, -0.99, 1.5, -1.5, 300.7, -300.7, 70000.5, 3e9, -3e9, 5e9, 1e19, 2e19, -1e19, 1e30]
    ends = [float(e) for e in (info.min, info.max, info.max + 1, info.min - 1)]
    with np.errstate(over="ignore"):
        values = np.array([*some, *ends, np.nan, np.inf, -np.inf]).astype(source)
        below, above = (np.nextafter(values, values.dtype.type(end)) for end in (-np.inf, np.inf))
    return np.concatenate([values, below, above])


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("dtype", INTS)
def test_floats_to_integers_saturate(source: str, dtype: str) -> None:
    values, info = reals(source, dtype), np.iinfo(dtype)

    def exact(v: float) -> int:
        return 0 if math.isnan(v) else min(max(v, info.min), info.max) if math.isinf(v) else math.trunc(v)

    want = np.array([int(min(max(exact(v), info.min), info.max)) for v in values.tolist()], dtype)
    check(lambda x: Cast(x, dtype), want, values)
    np.testing.assert_array_equal(OPS["cast"](dtype=dtype).reference(values), want, err_msg="reference")


@pytest.mark.parametrize("source", FLOATS)
def test_everything_but_zero_is_true(source: str) -> None:
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-7, 0.5, -1.0]).astype(source)
    check(lambda x: Cast(x, "bool"), np.array([False, False, *[True] * 6]), values)


@needs_compiler
@pytest.mark.parametrize("dtype", INTS)
def test_cuda_c(dtype: str) -> None:
    """The CUDA C that is printed, by the host's compiler."""
    pairs = integers(dtype)
    thread = LoopKind.THREAD_X
    cases = [
        (elementwise(lambda x, y, o=op: Binary(o, x, y), *pairs, dtype=dtype, kind=thread), pairs) for op in MEANING
    ]
    for source in FLOATS:
        values = reals(source, dtype)
        cases.append((elementwise(lambda x: Cast(x, dtype), values, dtype=dtype, kind=thread), (values,)))
    compiled = cuda.Compiled([kernel for kernel, _ in cases])
    for number, (kernel, arrays) in enumerate(cases):
        (found,) = compiled.run(number, arrays, "reverse")
        np.testing.assert_array_equal(found, run_kernel(kernel, *arrays)[0], err_msg=str(kernel))
