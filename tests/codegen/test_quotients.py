"""Quantizing without a division: the same numbers as with one, at every step; where it stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_kernel import run_native

from minitvm.codegen.legalize import spell_scalars
from minitvm.codegen.llvm.compile import host
from minitvm.ir.loop import (
    Binary,
    Buffer,
    Cast,
    Kernel,
    LoopExpr,
    LoopKind,
    Store,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    walk_exprs,
)
from minitvm.ir.loop.interp import run_kernel

RNG = np.random.default_rng(7)


def formula(x: LoopExpr, scale: float, zero: int, dtype: str, low: int, high: int) -> LoopExpr:
    steps = intrin("round", x / const(float(np.float32(scale)), "float32")) + float(zero)
    return minimum(maximum(steps, low), high).astype(dtype)


def kernel(x: np.ndarray, scale: float, zero: int, dtype: str, to: str, ends: tuple[int, int] | None = None) -> Kernel:
    given, out = Buffer("x", x.shape, "float32"), Buffer("out", x.shape, to)
    low, high = ends or (np.iinfo(dtype).min, np.iinfo(dtype).max)
    body = loop(
        x.size,
        lambda i: Store(out, (i,), formula(given[i], scale, zero, dtype, low, high).astype(to)),
        LoopKind.VECTORIZED,
    )
    return Kernel("quantize", (given, out), body)


def near_halves(scale: float, zero: int, dtype: str) -> np.ndarray:
    """Some numbers on either side of where quotients are rounded to another one, and those that are special."""
    ends = np.iinfo(dtype)
    halves = np.arange(ends.min - zero - 2, ends.max - zero + 3) + 0.5
    near = (halves * np.float32(scale)).astype("float32")
    beside = [near]
    for side in (-np.inf, np.inf):
        one = near
        for _ in range(4):
            one = np.nextafter(one, np.float32(side))
            beside.append(one)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45, -1e-45, 1e-38]
    return np.concatenate([*beside, np.array(special, "float32")])


def quotients(found: Kernel) -> list[LoopExpr]:
    return [e for e in walk_exprs(found.body) if isinstance(e, Binary) and e.op == "div" and e.dtype == "float32"]


CASES = [("uint8", 0), ("uint8", 128), ("uint8", 255), ("int8", 0), ("int8", -128), ("int8", 5)]


@pytest.mark.parametrize("to", ["", "float32", "int16", "int32"])
@pytest.mark.parametrize(("dtype", "zero"), CASES)
def test_numbers_are_those_of_a_division(dtype: str, zero: int, to: str) -> None:
    """In the interpreter, and in machine code; of scales that are powers of two, near to them, and any."""
    scales = [0.5, 1.0, 6 / 255, float(np.nextafter(np.float32(2), np.float32(0))), *np.exp(RNG.uniform(-9, 3, 4))]
    for scale in scales:
        x = near_halves(scale, zero, dtype)
        plain = kernel(x, scale, zero, dtype, to or dtype)
        spelled = spell_scalars(plain, fuses=True)
        assert quotients(plain) and not quotients(spelled)
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.rint(x / np.float32(scale)) + np.float32(zero)
        ends = np.iinfo(dtype)
        expected = np.where(np.isnan(x), 0, np.clip(steps, ends.min, ends.max)).astype(to or dtype)
        for found in (run_kernel(spelled, x)[0], run_native(plain, x)[0]):
            assert found.tobytes() == (expected + expected.dtype.type(0)).tobytes()


@pytest.mark.parametrize("ends", [(-20, -5), (-7, -1), (-7, 0), (-3, 1), (0, 9), (4, 9)])
@pytest.mark.parametrize("scale", [0.1, 0.5, 1.7])
def test_numbers_are_those_of_a_division_between_any_bounds(scale: float, ends: tuple[int, int]) -> None:
    x = near_halves(scale, 0, "int8")
    plain = kernel(x, scale, 0, "int8", "int8", ends)
    spelled = spell_scalars(plain, fuses=True)
    assert not quotients(spelled)
    np.testing.assert_array_equal(run_kernel(spelled, x)[0], run_kernel(plain, x)[0])
    np.testing.assert_array_equal(run_native(plain, x)[0], run_kernel(plain, x)[0])


def test_what_becomes_floats_again_is_never_an_integer() -> None:
    x = np.zeros(8, "float32")
    spelled = spell_scalars(kernel(x, 0.1, 3, "uint8", "float32"), fuses=True)
    assert not any(isinstance(e, Cast) for e in walk_exprs(spelled.body))


STAYS = {
    "products are rounded before sums": (0.1, "uint8", None, False),
    "a scale near nothing": (1e-30, "uint8", None, True),
    "more steps than are looked at": (0.1, "int16", None, True),
    "ends beyond the integers": (0.1, "int8", (0, 255), True),
    "ends that are one": (0.1, "uint8", (7, 7), True),
}


@pytest.mark.parametrize("why", STAYS)
def test_where_the_division_stays(why: str) -> None:
    scale, dtype, ends, fuses = STAYS[why]
    x = RNG.normal(0, 20, 33).astype("float32")
    plain = kernel(x, scale, 0, dtype, dtype, ends)
    spelled = spell_scalars(plain, fuses=fuses)
    assert quotients(spelled)
    np.testing.assert_array_equal(run_kernel(spelled, x)[0], run_kernel(plain, x)[0])


def test_processors_that_round_products_first_divide() -> None:
    x = near_halves(0.1, 3, "uint8")
    plain = kernel(x, 0.1, 3, "uint8", "uint8")
    found = [run_native(plain, x, cpu=replace(host(), fuses=fuses))[0] for fuses in (False, host().fuses)]
    np.testing.assert_array_equal(*found)
