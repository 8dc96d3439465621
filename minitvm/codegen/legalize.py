"""Functions that a target cannot spell, or only as a call for every element, become arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from functools import cache

from minitvm.codegen import polynomials
from minitvm.ir.loop import Binary, Buffer, Const, Intrin, Kernel, Load, LoopExpr, map_expr, map_stmt

_FLOAT32: dict[str, Callable[[LoopExpr], LoopExpr]] = {
    "exp": polynomials.exp,
    "expm1": polynomials.expm1,
    "log": polynomials.log,
    "log2": polynomials.log2,
    "log1p": polynomials.log1p,
    "tanh": polynomials.tanh,
    "sigmoid": polynomials.sigmoid,
    "erf": polynomials.erf,
    "sin": polynomials.sin,
    "cos": polynomials.cos,
    "tan": polynomials.tan,
}


def legalize(kernel: Kernel, native: Set[str]) -> Kernel:
    """The kernel with every function that is not ``native`` and has a polynomial replaced by it.

    float16 is computed in float32.  float64, and functions without a polynomial here, stay: every target can call
    its mathematics library for them.  ``pow`` with small whole exponents becomes multiplications on every target.
    """

    def visit(expr: LoopExpr) -> LoopExpr:
        if isinstance(expr, Intrin) and expr.name not in native and expr.name in _FLOAT32:
            return in_float32(expr, _FLOAT32[expr.name], expr.args)
        if isinstance(expr, Binary) and expr.op == "pow" and expr.dtype.startswith("float"):
            return _power(expr, native)
        return expr

    body = map_stmt(kernel.body, lambda e: map_expr(e, visit))
    if body is kernel.body:
        return kernel
    return Kernel(kernel.name, kernel.params, body, kernel.results, kernel.spans)


def in_float32(expr: LoopExpr, formula: Callable[..., LoopExpr], operands: tuple[LoopExpr, ...]) -> LoopExpr:
    """The formula in float32, for float32 and float16; ``expr`` itself for float64."""
    if expr.dtype == "float64":
        return expr
    given, value = _fused(formula, len(operands))
    singles = {load: operand.astype("float32") for load, operand in zip(given, operands, strict=True)}
    found = map_expr(value, lambda node: singles.get(node, node) if isinstance(node, Load) else node)
    return found.astype(expr.dtype)


@cache
def _fused(formula: Callable[..., LoopExpr], count: int) -> tuple[tuple[LoopExpr, ...], LoopExpr]:
    """Stand-ins for operands, and a formula of them, its products fused with its sums and with nobody else's."""
    given = tuple(Buffer(f"x{i}", (), "float32")[()] for i in range(count))
    return given, map_expr(formula(*given), polynomials.multiply_add)


def _power(expr: Binary, native: Set[str]) -> LoopExpr:
    exponent = expr.rhs
    if isinstance(exponent, Const) and math.isfinite(exponent.value):
        simple = polynomials.constant_power(expr.lhs, float(exponent.value))
        if simple is not None:
            return simple
    if "pow" in native:
        return expr
    return in_float32(expr, polynomials.power, (expr.lhs, expr.rhs))
