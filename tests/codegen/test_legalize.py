"""Polynomials against numpy in float64, over all of float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Set

import numpy as np
import pytest
from native_kernel import run_native

from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.ir.loop import (
    Binary,
    Buffer,
    Const,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    const,
    intrin,
    loop,
    minimum,
    store,
    walk_exprs,
)
from minitvm.ir.loop.interp import run_kernel

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1e-38, -1e-40, 3.4e38, -3.4e38]
SPECIAL += [88.72284, 88.7229]  # around the largest argument of exp


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float, float]] = {
    "exp": (np.exp, -105, 90, 1.0),
    "expm1": (np.expm1, -20, 90, 2.0),
    "log": (np.log, 0, 10, 1.0),
    "log2": (np.log2, 0, 4, 1.5),
    "log1p": (np.log1p, -1, 3, 1.5),
    "tanh": (np.tanh, -10, 10, 2.5),
    "sigmoid": (sigmoid, -110, 30, 2.5),
    "erf": (np.vectorize(math.erf), -4.5, 4.5, 1.5),
    "sin": (np.sin, -100, 100, 1.5),
    "cos": (np.cos, -100, 100, 1.5),
    "tan": (np.tan, -100, 100, 3.5),
}
"""Reference in float64, the interesting range, the error that ``polynomials`` states."""


def samples(low: float, high: float, count: int = 40_000) -> np.ndarray:
    """All bit patterns, and more of the range where something happens."""
    rng = np.random.default_rng(7)
    patterns = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near_zero = np.exp(rng.uniform(-30, 0, count)) * rng.choice([-1, 1], count)
    parts = [rng.uniform(low, high, count), near_zero, np.array(SPECIAL)]
    return np.concatenate([patterns, *(p.astype(np.float32) for p in parts)])


def elementwise(
    value: Callable[..., LoopExpr], count: int, size: int, dtype: str = "float32", native: Set[str] = SPELLINGS
) -> Kernel:
    ins = [Buffer(f"x{i}", (size,), dtype) for i in range(count)]
    out = Buffer("out", (size,), dtype)
    body = loop(size, lambda i: store(out, (i,), value(*(b[i] for b in ins))), LoopKind.VECTORIZED)
    return legalize(Kernel("function", (*ins, out), body), native)


def largest_error(found: np.ndarray, exact: np.ndarray) -> float:
    """In units of the last place; infinite where NaN, infinity or the sign of a zero is wrong."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded) & np.isfinite(found)
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    if not (finite | same).all():
        return math.inf
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    return float((np.abs(found[finite].astype(np.float64) - exact[finite]) / unit).max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_what_the_table_says(name: str) -> None:
    reference, low, high, bound = FUNCTIONS[name]
    x = samples(low, high)
    (found,) = run_native(elementwise(lambda v: intrin(name, v), 1, len(x)), x)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    assert largest_error(found, exact) <= bound


def test_exponentials_by_an_instruction_that_scales() -> None:
    x = samples(-105, 90)
    kernel = elementwise(lambda v: intrin("exp", v), 1, len(x), native=SPELLINGS | {"ldexp"})
    assert any(isinstance(node, Intrin) and node.name == "ldexp" for node in walk_exprs(kernel.body))
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
        for (found,) in (run_native(kernel, x), run_kernel(kernel, x)):
            assert largest_error(found, exact) <= FUNCTIONS["exp"][-1]


def test_exponentials_of_what_is_not_above_0_take_fewer_operations() -> None:
    """Of a softmax: one factor for all of its powers of two, and NaN stays."""
    x = samples(-110, 5)
    little = elementwise(lambda v: intrin("exp", minimum(v, 0.0)), 1, len(x))
    (found,) = run_native(little, x)
    with np.errstate(all="ignore"):
        exact = np.exp(np.minimum(x.astype(np.float64), 0))
    assert largest_error(found, exact) <= FUNCTIONS["exp"][-1]
    usual = elementwise(lambda v: intrin("exp", v), 1, len(x))
    assert len(list(walk_exprs(little.body))) < len(list(walk_exprs(usual.body)))


@pytest.mark.parametrize(
    ("name", "most"), {"exp": 21, "expm1": 21, "tanh": 21, "sigmoid": 19, "erf": 35, "log": 36}.items()
)
def test_operations_of_a_function(name: str, most: int) -> None:
    """Multiply-adds count once; integers, comparisons and conversions of bits are not free."""
    body = elementwise(lambda v: intrin(name, v), 1, 8).body
    assert len({node for node in walk_exprs(body) if not isinstance(node, (Const, Load, LoopVar))}) <= most


def test_the_larger_one_is_the_first_unless_the_second_is() -> None:
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(SPECIAL, SPECIAL))
    kernel = elementwise(lambda a, b: Binary("larger", a, b), 2, len(x))
    for (found,) in (run_native(kernel, x, y), run_kernel(kernel, x, y)):
        np.testing.assert_array_equal(found, np.where(x < y, y, x))


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "tanh", "erf", "sin", "tan", "log1p"])
def test_zeros_keep_their_sign_and_subnormal_numbers_their_value(name: str) -> None:
    x = np.array([0.0, -0.0, 1e-45, -1e-45, 2e-39, -2e-39], np.float32)
    (found,) = run_native(elementwise(lambda v: intrin(name, v), 1, 6), x)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name][0](x.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(found, exact)
    if name not in ("exp", "log"):
        np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


def test_power() -> None:
    rng = np.random.default_rng(3)
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 3, -3, 0.5, -0.5, 2.5, 1e30, 1e-40, 16777217.0])
    x, y = (v.ravel() for v in np.meshgrid(special, special))
    x = np.concatenate([x, rng.uniform(0, 10, 5000), np.exp(rng.uniform(-80, 80, 5000))]).astype(np.float32)
    y = np.concatenate([y, rng.uniform(-40, 40, 5000), rng.uniform(-3, 3, 5000)]).astype(np.float32)
    (found,) = run_native(elementwise(lambda a, b: Binary("pow", a, b), 2, len(x)), x, y)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert largest_error(found, exact) <= 1.0
    zeros = exact == 0
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(exact[zeros]))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 4.0, -1.0, -2.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_constant_powers_are_multiplications(exponent: float, dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal(64).astype(dtype)
    x[:4] = [0.0, np.inf, -np.inf, np.nan]
    kernel = elementwise(lambda v: Binary("pow", v, const(exponent, dtype)), 1, 64, dtype)
    assert not any(isinstance(e, Binary) and e.op == "pow" for e in walk_exprs(kernel.body))
    (found,) = run_native(kernel, x)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, np.power(x, np.asarray(exponent, dtype)), rtol=4e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_interpreter_agrees(name: str) -> None:
    """The same arithmetic without fused multiplications."""
    reference, low, high, _ = FUNCTIONS[name]
    x = np.random.default_rng(5).uniform(max(low, -80), min(high, 80), 500).astype(np.float32)
    kernel = elementwise(lambda v: intrin(name, v), 1, 500)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
        np.testing.assert_allclose(run_kernel(kernel, x)[0], exact, rtol=6e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_result_is_rounded_before_anything_is_added(name: str, sign: float) -> None:
    """exp(89) is infinite, so that exp(89) - infinity is NaN: no multiply-add reaches across an operator's result."""
    _, low, high, _ = FUNCTIONS[name]
    x = samples(low, high, 500)
    (alone,) = run_native(elementwise(lambda v: intrin(name, v), 1, len(x)), x)
    for other in (np.full_like(x, np.inf), alone[::-1].copy()):
        (found,) = run_native(elementwise(lambda v, w: intrin(name, v) + w * sign, 2, len(x)), x, other)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(found, alone + np.float32(sign) * other)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float16_by_way_of_float32(name: str) -> None:
    x = np.random.default_rng(5).uniform(0.1, 8, 200).astype(np.float16)
    kernel = elementwise(lambda v: intrin(name, v), 1, 200, "float16")
    exact = FUNCTIONS[name][0](x.astype(np.float64))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(run_native(kernel, x)[0], exact.astype(np.float16), rtol=1.1e-3)


def test_float64_and_native_functions_stay() -> None:
    def kernel(dtype: str) -> Kernel:
        x, out = Buffer("x", (4,), dtype), Buffer("out", (4,), dtype)
        return Kernel("k", (x, out), loop(4, lambda i: store(out, (i,), intrin("exp", x[i]))))

    double, single = kernel("float64"), kernel("float32")
    assert legalize(double, SPELLINGS) is double
    assert legalize(single, SPELLINGS | {"exp"}) is single
    assert not any(isinstance(e, Intrin) and e.name == "exp" for e in walk_exprs(legalize(single, SPELLINGS).body))
