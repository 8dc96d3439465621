"""Verify: after every pass the module is checked, and its numbers are compared with the module's before the pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError, PassError, UserCodeError
from minitvm.ir.evaluate import evaluate, evaluate_calls
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.structural import structural_hash
from minitvm.ir.types import TensorType, TupleType, Type
from minitvm.ir.verify import verify
from minitvm.ir.visitor import calls, children
from minitvm.passes.instrument import PassInfo, PassInstrument, Running

RTOL = 1e-4
HALF_RTOL = 4e-3
"""float16 keeps 11 bits: eight roundings."""


@dataclass(frozen=True)
class Draw:
    """How random inputs are drawn: the ranges of floats and of integers.

    ``extremes``: some integers are the dtype's smallest and largest.  ``extent``: of dimensions that are known only
    when the module runs; ``None``: such inputs are not drawn.
    """

    floats: tuple[float, float]
    integers: tuple[int, int] = (0, 3)
    extremes: bool = False
    extent: int | None = None


DRAWS = (Draw((-1.0, 1.5)), Draw((0.1, 1.5)))
"""Once signed, once positive: where roots are taken, signed floats give NaN.  The integers are indices as a rule."""

MAX_ELEMENTS = 1 << 24
"""Inputs larger than this are not drawn: the numbers of such a module are not compared."""


class Verify(PassInstrument):
    """Checks modules between passes; raises :class:`PassError` that names the pass.

    ``numbers``: also run both modules through the operators' references on random inputs, and name the first call
    whose value has no equal any more.  A pass that changes the module it was given is caught by its hash.
    """

    def __init__(self, numbers: bool = True, rtol: float = RTOL, seed: int = 0) -> None:
        self.numbers = numbers
        self.rtol = rtol
        self.seed = seed
        self._running = Running[tuple[Module, int]]()

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._running.begin(info, (module, structural_hash(module)))

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        before, hash_before = self._running.end(info)
        if structural_hash(before) != hash_before:
            raise PassError(f"pass {info.name} changed the module that it was given", hint="build new nodes instead")
        if module is before:
            return
        try:
            verify(module)
        except MiniTVMError as error:
            raise PassError(
                f"pass {info.name} made a module that is not valid: {error.message}", where=error.where
            ) from error
        if self.numbers:
            compare_numbers(before, module, f"pass {info.name}", self.rtol, self.seed)


def compare_numbers(
    before: Module, after: Module, what: str, rtol: float = RTOL, seed: int = 0, draws: Sequence[Draw] = DRAWS
) -> int:
    """Run both ``main`` functions on random inputs; :class:`PassError` where the results differ.

    Returns how many of the draws could be compared.

    The error names the output and the first call that the second module computes and the first one does not: the
    earliest whose operands all have values that occur in the first module.
    Modules whose inputs are untyped, unknown in shape or very large are not compared, nor those that raise on such
    inputs before ``what``: a branch that the model's real inputs never take, for example.
    """
    if not all(_has_reference(c) for c in calls(before.main)):
        return 0
    given = [random_inputs(before.main, seed, draw) for draw in draws]
    return sum(_compare_on(before, after, inputs, what, rtol) for inputs in given if inputs is not None)


def _compare_on(before: Module, after: Module, inputs: list[Any], what: str, rtol: float) -> bool:
    """Whether the inputs could be compared on; not where the module before raises."""
    given = _arguments_for(before.main, after.main, inputs, what)
    try:
        expected = flatten(evaluate(before, *inputs))
    except UserCodeError:
        raise
    except MiniTVMError:
        return False
    try:
        found = flatten(evaluate(after, *given))
    except MiniTVMError as error:
        raise PassError(
            f"{what} made a module that fails where the one before did not: {error.message}", where=error.where
        ) from error
    if len(expected) != len(found):
        raise PassError(f"{what} changed the number of results from {len(expected)} to {len(found)}")
    for position, (want, have) in enumerate(zip(expected, found, strict=True)):
        if not close(have, want, rtol):
            where = _first_difference(before.main, after.main, inputs, given, rtol)
            raise PassError(
                f"{what} changed result {position}: {difference(have, want)}",
                where=where,
                hint="both modules ran through the operators' references on the same random inputs",
            )
    return True


def _arguments_for(before: Function, after: Function, inputs: list[Any], what: str) -> list[Any]:
    """The same inputs for ``after``: by name, since a pass may bind parameters."""
    by_name = {p.name: value for p, value in zip(before.params, inputs, strict=True)}
    missing = [p.name for p in after.params if p.name not in by_name]
    if missing:
        raise PassError(f"{what} added parameters: {', '.join(missing)}")
    return [by_name[p.name] for p in after.params]


def _has_reference(call: Call) -> bool:
    if isinstance(call.op, Function):
        return all(_has_reference(c) for c in calls(call.op.body))
    return call.op.has_reference() and not call.op.stateful


def random_inputs(function: Function, seed: int = 0, draw: Draw = DRAWS[0]) -> list[Any] | None:
    """Random values for a function's parameters; ``None`` where a type is open or very large."""
    rng = np.random.default_rng(seed)
    types = [None if p.checked_type is None else _closed(p.checked_type, draw.extent) for p in function.params]
    if any(t is None or not t.is_static or _elements(t) > MAX_ELEMENTS for t in types):
        return None
    return [random_value(t, rng, draw) for t in types if t is not None]


def _closed(type_: Type, extent: int | None) -> Type:
    """The type with ``extent`` for what is not known."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(_closed(field, extent) for field in type_.fields))
    if not isinstance(type_, TensorType):
        return type_
    return type_.with_shape(tuple(extent if d is None else d for d in type_.shape))


def _elements(type_: Type) -> int:
    if isinstance(type_, TupleType):
        return sum(map(_elements, type_.fields))
    return type_.size if isinstance(type_, TensorType) else 0


def random_value(type_: Type, rng: np.random.Generator, draw: Draw = DRAWS[0]) -> Any:
    """A random array of a type, or a tuple of them."""
    if isinstance(type_, TupleType):
        return tuple(random_value(field, rng, draw) for field in type_.fields)
    assert isinstance(type_, TensorType), type_
    shape, dtype = type_.static_shape, np.dtype(type_.dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return _random_integers(shape, dtype, rng, draw)
    return np.asarray(rng.uniform(*draw.floats, shape), dtype)


def _random_integers(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator, draw: Draw) -> np.ndarray:
    info, (low, high) = np.iinfo(dtype), draw.integers
    values = np.asarray(rng.integers(max(low, info.min), high, shape, endpoint=True), dtype)
    if not draw.extremes:
        return values
    ends = np.array([info.min, info.min + 1, info.max, info.max // 3], dtype)
    return np.asarray(np.where(rng.random(shape) < 0.25, rng.choice(ends, shape), values))


def flatten(value: Any) -> list[np.ndarray]:
    return [leaf for part in value for leaf in flatten(part)] if isinstance(value, tuple) else [np.asarray(value)]


def close(have: np.ndarray, want: np.ndarray, rtol: float = RTOL) -> bool:
    """Same shape and dtype; floats to ``rtol`` of the largest magnitude, everything else exactly."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return False
    if want.dtype.kind != "f":
        return bool(np.array_equal(have, want))
    bound = max(rtol, HALF_RTOL) if want.dtype == np.float16 else rtol
    finite = np.abs(want[np.isfinite(want)].astype("float64"))
    with np.errstate(all="ignore"):
        slack = bound * float(finite.max(initial=0))
        return bool(np.allclose(have.astype("float64"), want, rtol=bound, atol=slack, equal_nan=True))


def difference(have: np.ndarray, want: np.ndarray) -> str:
    """Where two arrays differ most, in words."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"it was {want.dtype.name} {want.shape} and is {have.dtype.name} {have.shape}"
    with np.errstate(all="ignore"):
        gap = np.abs(have.astype("float64") - want.astype("float64"))
    gap = np.where(np.isnan(gap), np.where(np.isnan(have) == np.isnan(want), 0.0, np.inf), gap)
    at = np.unravel_index(int(np.argmax(gap)), gap.shape)
    return f"element {tuple(map(int, at))} was {want[at]:.6g} and is {have[at]:.6g}"


def _first_difference(before: Function, after: Function, inputs: list[Any], given: list[Any], rtol: float) -> list[str]:
    """The first call of ``after`` whose new value leads to a wrong result through new values only.

    A value is new where no call of ``before`` computes it; a correct rewrite makes new values too, but what uses
    them is as before.
    """
    known: dict[tuple[Any, ...], list[np.ndarray]] = {}
    for leaf in (leaf for _, value in evaluate_calls(before, *inputs) for leaf in flatten(value)):
        known.setdefault((leaf.shape, leaf.dtype.name), []).append(leaf)

    def is_new(leaf: np.ndarray) -> bool:
        return not any(close(leaf, k, rtol) for k in known.get((leaf.shape, leaf.dtype.name), ()))

    new = {call for call, value in evaluate_calls(after, *given) if any(map(is_new, flatten(value)))}
    reached = _reached(after.body, new)
    suspects = [call for call in calls(after) if call in reached]
    return [f"the first new value is computed by {_describe(suspects[0])}"] if suspects else []


def _reached(root: Expr, new: set[Call]) -> set[Expr]:
    """The calls in ``new`` that a walk from the result meets without passing a call that is not."""
    seen: set[Expr] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node not in seen and (not isinstance(node, Call) or node in new):
            seen.add(node)
            pending.extend(children(node))
    return seen


def _describe(call: Call) -> str:
    name = call.op.name if isinstance(call.op, Op) else str(call.op.attrs.get("name", "a function"))
    origin = f" from ONNX node {', '.join(map(repr, call.span))}" if call.span else ""
    return f"{name}: {call.checked_type}{origin}"
