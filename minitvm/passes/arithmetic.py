"""Rules of SimplifyExpr about numbers: casts, clips that a dtype makes needless, argmax of quantized values;
identities, constants that meet, squares."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined
from minitvm.ir.dtypes import STORED, carrier
from minitvm.ir.dtypes import is_float as is_float_dtype
from minitvm.ir.expr import Call, Constant, Expr, Tuple
from minitvm.ir.op import Op
from minitvm.ir.ops._shape import Ranking
from minitvm.ir.ops.elemwise import Add, BinaryOp, CastTo, Clip, Divide, Multiply, Sqrt, Subtract
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.ops.quantize import Dequantize
from minitvm.ir.pattern import Pattern, Where, call, const, filled, scalar, uniform, value
from minitvm.passes.bound import MOST, Bound, Of, holds_sum, is_open, out_of_range
from minitvm.passes.rule import Replacement, Rule, rule


def is_lossless(source: str, target: str) -> bool:
    """True if every value of ``source`` is one of ``target``: a wider dtype is not enough.

    int8 to uint8 and int32 to float32 lose values though no byte; int64 to float64 loses too.
    """
    if target in STORED:
        return source == target
    lossy = source in ("int64", "uint64") and target == "float64"  # numpy calls that safe
    return bool(np.can_cast(carrier(source), target)) and not lossy


def _range(dtype: str) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _is_integer(expr: Expr) -> bool:
    return np.dtype(expr.dtype).kind in "iu"


@rule(call(CastTo, value("x"), name="cast_"))
def drop_cast_to_same(cast_: Call, x: Expr) -> Replacement:
    return x if x.dtype == cast_.dtype else Declined(f"{x.dtype} becomes {cast_.dtype}")


@rule(call(CastTo, call(CastTo, value("x"), name="inner"), name="outer"))
def merge_casts(outer: Call, inner: Call, x: Expr) -> Replacement:
    """The first of two casts goes where it keeps every value, and the second then means the same."""
    first, middle, last = x.dtype, inner.dtype, outer.dtype
    if not is_lossless(first, middle):
        return Declined(f"{first} to {middle} does not keep every value")
    integers = all(np.dtype(d).kind in "iu" for d in (first, middle, last))
    if not (integers or last == "bool" or is_float_dtype(last) or is_lossless(first, last)):
        return Declined(f"{middle} to {last} and {first} to {last} differ outside of {last}'s range")
    if first == last == "float8_e5m2" and outer.op != CastTo(last, saturate=False):
        return Declined("infinities saturate")
    return x if first == last else Call(outer.op, (x,))


@rule(call(Clip, value("x"), name="clip"))
def drop_clip_of_everything(clip: Call, x: Expr) -> Replacement:
    op = clip.op
    assert isinstance(op, Clip)
    low, high = _range(x.dtype) if _is_integer(x) else (-np.inf, np.inf)
    whole = op.a_min <= low and op.a_max >= high
    return x if whole else Declined(f"[{op.a_min:g}, {op.a_max:g}] is less than {x.dtype} holds")


@rule(call(CastTo, call(CastTo, call(Clip, name="clip", where=_is_integer), name="inner"), name="outer"))
def drop_cast_within_clip(outer: Call, inner: Call, clip: Call) -> Replacement:
    """``cast(cast(clip(x)))``: the first cast changes nothing where the clip's range fits its dtype."""
    op, middle = clip.op, inner.dtype
    assert isinstance(op, Clip)
    if np.dtype(middle).kind not in "iu":
        return Declined(f"{middle} is not an integer dtype")
    low, high = _range(middle)
    if not low <= op.a_min <= op.a_max <= high:
        return Declined(f"[{op.a_min:g}, {op.a_max:g}] does not fit {middle}")
    return clip if outer.dtype == clip.dtype else Call(outer.op, (clip,))


_DEQUANTIZED = call(Dequantize, value("x"), scalar("scale"), scalar("zero"), name="dequantize")


@rule(call(Ranking, _DEQUANTIZED, name="arg"))
def drop_dequantize_before_argmax(arg: Call, x: Expr, scale: Constant, zero: Constant, dequantize: Call) -> Replacement:
    """A positive scale keeps the order, where differences of 1 survive it."""
    if not _keeps_order(x, scale, zero, dequantize):
        return Declined(f"a scale of {scale.value} does not keep the order of all values")
    return Call(arg.op, (x,))


def _keeps_order(x: Expr, scale: Constant, zero: Constant, dequantize: Call) -> bool:
    """True if of two integers the larger one becomes the larger float."""
    if np.dtype(x.dtype).itemsize > 2:
        return False
    low, high = _range(x.dtype)
    every: Any = np.arange(low, high + 1).astype(x.dtype)
    assert isinstance(dequantize.op, Dequantize)
    with np.errstate(all="ignore"):  # a scale may be infinite
        return bool((np.diff(dequantize.op.reference(every, scale.value, zero.value)) > 0).all())


def is_float(expr: Expr) -> bool:
    return expr.tensor_type.is_float


def _is_negative(fill: Expr) -> bool:
    """True if a fill is -0.0 or below."""
    return is_float(fill) and bool(np.signbit(uniform(fill)))


def _identity(
    name: str,
    op: type[BinaryOp],
    number: float,
    of: Where | None = None,
    where: Where | None = None,
    exactness: str = "exact",
    bound: Bound | None = None,
) -> Rule:
    """``op(x, number)`` is ``x``, where what the number fills has no larger shape; ``of`` says which x, ``where`` which
    fills."""

    def drop(whole: Call, x: Expr, fill: Expr) -> Replacement:
        same = whole.checked_type == x.checked_type
        return x if same else Declined(f"it also changes {x.checked_type} to {whole.checked_type}")

    drop.__name__ = name
    pattern = call(op, value("x", where=of), filled(number, "fill", where), name="whole")
    return rule(pattern, exactness=exactness, bound=bound)(drop)


def _is_float_zero(fill: Expr) -> bool:
    return is_float(fill) and not _is_negative(fill)


def _has_no_negative_zero(expr: Expr) -> bool:
    """True if a float is never -0.0: a sum is that of two of them alone."""
    if isinstance(expr, Constant):
        return not bool((np.signbit(expr.value) & (expr.value == 0)).any())
    added = expr.args if isinstance(expr, Call) and isinstance(expr.op, (Add, BiasAdd)) else ()
    return any(isinstance(arg, Constant) and _has_no_negative_zero(arg) for arg in added)


def _starts_from_zero(expr: Expr, deep: int = MOST) -> bool:
    """True if a float is a sum over an axis, which starts from 0.0, with something added to it, or several, moved."""
    if isinstance(expr, Tuple):
        return all(_starts_from_zero(part, deep // 2) for part in expr.fields)
    if not isinstance(expr, Call) or not isinstance(expr.op, Op) or not deep:
        return False
    if isinstance(expr.op, (Add, BiasAdd)):
        return any(_starts_from_zero(arg, deep // 2) for arg in expr.args)
    moves = expr.op.exact is None and expr.op.is_exact() and bool(expr.args)
    return expr.op.is_sum or (moves and all(_starts_from_zero(arg, deep // 2) for arg in expr.args))


_ZERO = Bound(0, Of.SUMS, "of a sum over an axis, which starts from 0.0; if all of it underflows, the sign is open")
drop_added_zero = _identity("drop_added_zero", Add, 0, where=lambda zero: not is_float(zero) or _is_negative(zero))
drop_added_float_zero = _identity("drop_added_float_zero", Add, 0, _has_no_negative_zero, _is_float_zero)
drop_zero_added_to_sum = _identity(
    "drop_zero_added_to_sum", Add, 0, _starts_from_zero, _is_float_zero, "reassociating", _ZERO
)
drop_any_added_zero = _identity("drop_any_added_zero", Add, 0, None, _is_float_zero, "unbounded")
drop_subtracted_zero = _identity(  # subtracting -0.0 turns -0.0 into 0.0
    "drop_subtracted_zero", Subtract, 0, where=lambda zero: not _is_negative(zero)
)
drop_multiplied_one = _identity("drop_multiplied_one", Multiply, 1)
drop_divided_one = _identity("drop_divided_one", Divide, 1)


@rule(call(Add, value("x"), value("x"), name="whole"))
def add_to_itself(whole: Call, x: Expr) -> Expr:
    """``x + x`` is ``x * 2``, to the bit."""
    return x * Constant(np.asarray(2, whole.dtype))


def _by_root(name: str, of: Where | None, exactness: str, bound: Bound | None = None) -> Rule:
    """``a / sqrt(b)`` is ``a * rsqrt(b)``: the division moves to where there are fewer elements, or none."""

    def divide(a: Expr, b: Expr) -> Expr:
        return a * ir.rsqrt(b)

    divide.__name__ = name
    return rule(call(Divide, value("a"), call(Sqrt, value("b", where=of))), exactness=exactness, bound=bound)(divide)


_ROOT = Bound(8, Of.RESULT, "b is made of a sum over an axis, as a variance is")
divide_by_root = _by_root("divide_by_root", holds_sum, "reassociating", _ROOT)
divide_by_any_root = _by_root("divide_by_any_root", None, "unbounded")


def _inside(name: str, smooth: Sequence[str], exactness: str, bound: Bound | None = None) -> Rule:
    """``erf(x / c)`` is ``erf(x * (1 / c))``: a vector's division takes ten times as long as its product."""

    def divide(smooth: Call, x: Expr, c: Constant) -> Replacement:
        if isinstance(x, Constant):
            return ALL_CONSTANT
        with np.errstate(all="ignore"):
            inverse = np.asarray(1 / c.value, c.value.dtype)
        normal = np.isfinite(inverse) & (np.abs(inverse) >= np.finfo(inverse.dtype).tiny)
        return (
            Call(smooth.op, (x * Constant(inverse),)) if normal.all() else Declined("a reciprocal is no normal number")
        )

    divide.__name__ = name
    quotient = call(Divide, value("x"), const("c", where=is_float), single_use=True)
    return rule(call(tuple(smooth), quotient, name="smooth"), exactness=exactness, bound=bound)(divide)


_SHRINKING = Bound(8, Of.RESULT, "f shrinks an error of its argument, relative to the result; 1 / c is a normal number")
divide_inside_by_constant = _inside("divide_inside_by_constant", ("erf", "tanh"), "reassociating", _SHRINKING)
divide_inside_any_by_constant = _inside("divide_inside_any_by_constant", ("exp", "sigmoid"), "unbounded")


ALL_CONSTANT = Declined("all operands are constant; FoldConstant computes them")


def _is_open_float(expr: Expr) -> bool:
    return is_float(expr) and is_open(expr)


_FACTOR = Bound(6, Of.SUMS, "x is made of a layer, and c1 * c2 is far from the ends of the range")


def _multiplied_sum(x: Expr, c1: Constant, c2: Constant) -> Replacement:
    if isinstance(x, Constant):
        return ALL_CONSTANT
    product = _combined(np.multiply, c1, c2)
    return product if isinstance(product, Declined) else x * c2 + product


def _sum_of(x: Pattern) -> Pattern:
    return call(Multiply, call(Add, x, const("c1"), single_use=True), const("c2"))


@rule(_sum_of(value("x", where=_is_open_float)), exactness="reassociating", bound=_FACTOR)
def multiply_sum(x: Expr, c1: Constant, c2: Constant) -> Replacement:
    """``(x + c1) * c2`` is ``x * c2 + c1 * c2``, so that the factor can go into what made x."""
    return _multiplied_sum(x, c1, c2)


@rule(_sum_of(value("x", where=is_float)), exactness="unbounded")
def multiply_any_sum(x: Expr, c1: Constant, c2: Constant) -> Replacement:
    """:func:`multiply_sum` of any x: near ``-c1`` digits are lost that the sum has."""
    return _multiplied_sum(x, c1, c2)


Refusal = Callable[[Constant, Constant], "Declined | None"]


def _chained(
    name: str,
    op: type[BinaryOp],
    ufunc: np.ufunc,
    of: Where | None,
    exactness: str,
    refusal: Refusal | None = None,
    bound: Bound | None = None,
) -> Rule:
    """``op(op(x, c1), c2)`` is ``op(x, c)``, unless the constants are refused."""

    def chain(x: Expr, c1: Constant, c2: Constant) -> Replacement:
        if isinstance(x, Constant):
            return ALL_CONSTANT
        combined = (refusal and refusal(c1, c2)) or _combined(ufunc, c1, c2)
        return combined if isinstance(combined, Declined) else Call(op(), (x, combined))

    chain.__name__ = name
    inner = call(op, value("x", where=of), const("c1"), single_use=True)
    return rule(call(op, inner, const("c2")), exactness=exactness, bound=bound)(chain)


def _combined(ufunc: np.ufunc, c1: Constant, c2: Constant) -> Constant | Declined:
    """The constants as one, unless that is larger than both, no longer finite, or so small that digits are lost."""
    with np.errstate(all="ignore"):
        found = np.asarray(ufunc(c1.value, c2.value))
    if found.size > max(c1.value.size, c2.value.size):
        return Declined(f"{c1.type} and {c2.type} together are larger: {found.shape}")
    if ufunc is np.multiply:
        return out_of_range(found, c1.value, c2.value) or Constant(found)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        return Declined("the constants overflow together")
    return Constant(found)


def _on_two_sides(c1: Constant, c2: Constant) -> Declined | None:
    """One factor above 1 and one below: between them, numbers may leave the range that return to it."""
    a, b = np.abs(c1.value), np.abs(c2.value)
    apart = ~(((a >= 1) & (b >= 1)) | ((a <= 1) & (b <= 1)))
    return Declined("one factor is above 1 and one below: x * c1 may leave the range") if apart.any() else None


CANCELLING = 16
"""Times their sum: constants whose magnitudes together are more round what they are added to."""


def _cancel(c1: Constant, c2: Constant) -> Declined | None:
    """Constants that undo each other: the first is there to round."""
    with np.errstate(all="ignore"):
        size, left = np.abs(c1.value) + np.abs(c2.value), np.abs(c1.value + c2.value)
    return Declined("the constants cancel: adding the first rounds") if (size / CANCELLING > left).any() else None


def _is_integer_like(expr: Expr) -> bool:
    return not is_float(expr)


_PRODUCT = Bound(
    4, Of.RESULT, "x is made of a layer, c1 and c2 are both at least 1 or both at most 1, c1 * c2 is normal"
)
_SUM = Bound(2 * CANCELLING, Of.SUMS, f"x is made of a layer, and |c1| + |c2| is at most {CANCELLING} |c1 + c2|")
multiply_constants_of_floats = _chained(
    "multiply_constants_of_floats", Multiply, np.multiply, _is_open_float, "reassociating", _on_two_sides, _PRODUCT
)
multiply_any_constants = _chained("multiply_any_constants", Multiply, np.multiply, is_float, "unbounded")
multiply_constants_of_integers = _chained(  # exactly, since they wrap around
    "multiply_constants_of_integers", Multiply, np.multiply, _is_integer_like, "exact"
)
add_constants_of_floats = _chained(
    "add_constants_of_floats", Add, np.add, _is_open_float, "reassociating", _cancel, _SUM
)
add_any_constants = _chained("add_any_constants", Add, np.add, is_float, "unbounded")
add_constants_of_integers = _chained("add_constants_of_integers", Add, np.add, _is_integer_like, "exact")


def _leaves(expr: Expr, op: type[Op]) -> Iterator[Expr]:
    """The operands of a tree of calls of ``op``."""
    pending = [expr]
    while pending:
        node = pending.pop()
        if isinstance(node, Call) and isinstance(node.op, op):
            pending.extend(reversed(node.args))
        else:
            yield node


def _monomial(expr: Expr) -> tuple[float, tuple[Expr, ...]] | None:
    """A product as its scalar factor and its two other factors."""
    factor, rest = 1.0, []
    for leaf in _leaves(expr, Multiply):
        if isinstance(leaf, Constant) and leaf.value.ndim == 0:
            factor *= float(leaf.value)
        else:
            rest.append(leaf)
    return (factor, tuple(rest)) if len(rest) == 2 else None


_SUM_OF_PRODUCTS = call(Add, call(Add, call(Multiply), call(Multiply)), call(Multiply), name="whole")


@rule(_SUM_OF_PRODUCTS, exactness="unbounded")
def factor_binomial(whole: Call) -> Replacement:
    """``a x² + b x y + c y²`` is ``a (x - r y) (x - s y)`` where its roots r and s are real.

    Near a root the factors cancel differently: the error is bounded relative to the terms, not to the result.
    """
    terms = [_monomial(leaf) for leaf in _leaves(whole, Add)]
    if None in terms or not is_float(whole):
        return Declined("it is not a float sum of three products of two values")
    coefficients: dict[frozenset[Expr], float] = {}
    for factor, values in cast("list[tuple[float, tuple[Expr, ...]]]", terms):
        coefficients[frozenset(values)] = coefficients.get(frozenset(values), 0.0) + factor
    variables = list(dict.fromkeys(v for term in terms if term for v in term[1]))
    if len(variables) != 2 or variables[0].checked_type != variables[1].checked_type:
        return Declined("it is not a sum over two values of one type")
    x, y = variables
    return _factored(x, y, *(coefficients.get(frozenset(k), 0.0) for k in ((x,), (x, y), (y,))))


def _factored(x: Expr, y: Expr, a: float, b: float, c: float) -> Replacement:
    discriminant = b * b - 4 * a * c
    if a == 0 or c == 0 or discriminant < 0:
        return Declined(f"{a:g} x² + {b:g} x y + {c:g} y² has no real factors")

    def factor(root: float) -> Expr:
        return x + y * _scalar(-root, y)

    low, high = ((-b + sign * discriminant**0.5) / (2 * a) for sign in (-1, 1))
    refusal = out_of_range(np.asarray([_scalar(root, y).value for root in (low, high)]), np.ones(2))
    if refusal is not None:
        return refusal
    first = factor(low)
    product = first * (first if low == high else factor(high))
    return product if a == 1 else product * _scalar(a, x)


def _scalar(number: float, like: Expr) -> Constant:
    with np.errstate(over="ignore"):
        return Constant(np.asarray(number, like.dtype))
