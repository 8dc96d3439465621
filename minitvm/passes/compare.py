"""Differential testing: two functions on random inputs that tell operators apart, and their results side by side."""

from __future__ import annotations  # so that numpy.random is imported by who draws numbers

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError, UserCodeError
from minitvm.ir.decision import Declined
from minitvm.ir.dtypes import STORED, carrier, is_float, step_after_one
from minitvm.ir.evaluate import How, evaluate, evaluate_call
from minitvm.ir.expr import Call, Function
from minitvm.ir.ops.bodies import few_trips
from minitvm.ir.types import is_numeric, type_of
from minitvm.passes.draws import DRAWS, Draw, closer, random_inputs, turns
from minitvm.passes.roundings import HALF_RTOL, RTOL, Results, beyond_roundings, flatten, is_small, moved

_ONE_STEP = {dtype: step_after_one(dtype) for dtype in STORED if is_float(dtype)}
"""Numbers beside each other, relative to the smaller one."""
ROUNDINGS = 8
"""Units in the last place by which inputs are moved to see what rounding alone changes."""
SAMPLES = 16
"""How often they are moved: all up, all down, and as chance has it, by more and more (a kernel's sum rounds as often
as it has terms), but by no more than a quarter of the tolerance."""
TRIPS = 100
"""A loop of more says nothing: its number of trips may be any integer that is drawn."""


@dataclass
class Comparison:
    """What two functions were compared on."""

    agreed: list[str] = field(default_factory=list)
    """The draws on which every result is the same."""
    skipped: dict[str, str] = field(default_factory=dict)
    """The draws that say nothing, and why."""
    results: dict[Draw, Results] = field(default_factory=dict)
    """The other function's, by draw."""
    difference: str = ""
    """The first result that differs, and how."""
    inputs: list[Any] = field(default_factory=list)
    """Those on which it differs."""
    draw: Draw | None = None
    """The one that they are of."""
    expected: dict[Draw, Results] = field(default_factory=dict)
    """The function's own results, by draw."""
    unstable: dict[str, float] = field(default_factory=dict)
    """By draw, the largest share of a result's elements that rounding alone moves by more than the tolerance: they
    were left out."""

    def note(self, draw: Draw, answer: Declined | float) -> None:
        """Counts a draw on which nothing differs: the share of elements that were left out, or why it says nothing."""
        if isinstance(answer, Declined):
            self.skipped[draw.name] = answer.reason
            return
        if answer:
            self.unstable[draw.name] = max(answer, self.unstable.get(draw.name, 0.0))
        if draw.name not in self.agreed and draw.share == Draw.share:
            self.agreed.append(draw.name)

    def __str__(self) -> str:
        alike = {why: [n for n, w in self.skipped.items() if w == why] for why in self.skipped.values()}
        skipped = "".join(f"; not on {', '.join(names)}: {why}" for why, names in alike.items())
        left = (f"; on {name} without the {share:.2%} that rounding decides" for name, share in self.unstable.items())
        return f"the numbers agree on inputs that are {', '.join(self.agreed) or 'nothing'}{''.join(left)}{skipped}"


Verdict = Declined | str | float
"""Why inputs say nothing; what differs; the share of elements that rounding decides."""
Run = Callable[[list[Any]], Any]
"""From a function's inputs to its result, or why it has none."""
Explain = Callable[[list[Any], Results, Results], str]
"""From inputs, what was found and what was expected to what is wrong."""


def compare(
    function: Function,
    other: Run,
    rtol: float = RTOL,
    seed: int = 0,
    draws: Sequence[Draw] = DRAWS,
    known: Mapping[Draw, Results] | None = None,
    typed: Function | None = None,
    ways: Sequence[Run] = (),
    atol: float = 0.0,
    explain: Explain | None = None,
    how: How | None = None,
) -> Comparison:
    """Run a function by its operators' references and ``other``, until a draw of inputs shows a difference.

    Elements that rounding alone changes by more than the tolerance (the sine of a large sum) are left out, and where
    the calls are few each element is held to what its own operators leave open (:func:`beyond_roundings`).  A draw
    that the function itself raises on, a branch that the model's real inputs never take for example, says nothing.
    ``known`` are results of the function that somebody has already; ``typed`` has the types of parameters that the
    function leaves open.  ``ways`` are those in which somebody else's ``other`` rounds as well: what they change is
    left out, too; so are differences up to ``atol``.  ``explain`` judges elements in place of that, and says of what
    differs by more than the tolerance whether it may.  ``how`` is that of :func:`evaluate`, for the function.
    """
    done, asked = Comparison(), _Asked(function, other, known or {}, rtol, atol, ways, explain, how)
    drawn = turns(typed or function, draws)
    for draw in (*drawn, *closer(function)) if asked.strict and draws is DRAWS else drawn:
        inputs = random_inputs(function, seed, draw, typed)
        answer = inputs if isinstance(inputs, Declined) else asked.verdict(done, draw, inputs)
        if isinstance(answer, str):
            assert not isinstance(inputs, Declined)
            done.difference, done.inputs, done.draw = answer, inputs, draw
            return done
        done.note(draw, answer)
    return done


@dataclass(frozen=True)
class _Asked:
    """What :func:`compare` was asked for."""

    function: Function
    other: Run
    known: Mapping[Draw, Results]
    rtol: float
    atol: float
    ways: Sequence[Run]
    explain: Explain | None
    how: How | None

    @property
    def strict(self) -> bool:
        return self.rtol <= RTOL and not (self.atol or self.ways)

    @few_trips(TRIPS)
    def verdict(self, done: Comparison, draw: Draw, inputs: list[Any]) -> Verdict:
        """What these inputs say; the results of both functions are kept."""
        function = self.function
        try:
            expected = self.known.get(draw) or flatten(evaluate(function, *inputs, how=self.how))
        except UserCodeError:
            raise
        except MiniTVMError as error:
            return Declined(f"it raises {error.message!r}")
        done.expected[draw] = expected
        result = self.other(inputs)
        if isinstance(result, Declined):
            return result
        found = done.results[draw] = flatten(result)
        nearby = partial(_nearby, function, inputs)
        answer = _answer(found, expected, nearby, self.rtol, self.atol, self.ways, inputs)
        return _looked_at(answer, self.explain, self.strict, function, inputs, found, expected)


def _looked_at(
    answer: Verdict,
    explain: Explain | None,
    strict: bool,
    function: Function,
    inputs: list[Any],
    found: Results,
    expected: Results,
) -> Verdict:
    """The answer once each element is looked at by itself."""
    alike = [(f.shape, f.dtype) for f in found] == [(e.shape, e.dtype) for e in expected]
    if explain is not None and alike and (strict or isinstance(answer, str)):
        return explain(inputs, found, expected) or (0.0 if isinstance(answer, str) else answer)
    if explain is None and strict and not isinstance(answer, str) and is_small(function):
        return beyond_roundings(function, inputs, found, expected) or answer
    return answer


def _answer(
    found: Results,
    expected: Results,
    nearby: Callable[[int], Results],
    rtol: float,
    atol: float = 0.0,
    ways: Sequence[Run] = (),
    inputs: Sequence[Any] = (),
) -> Declined | str | float:
    """What differs where rounding does not explain it; the share of elements that it does explain where it does."""
    if len(found) != len(expected):
        return f"the number of results from {len(expected)} to {len(found)}"
    if all(close(f, e, rtol, atol=atol) for f, e in zip(found, expected, strict=True)):
        return 0.0
    theirs = [flatten(result) for way in ways if not isinstance(result := way(list(inputs)), Declined)]
    stable = _stable(found, theirs, rtol) if theirs else [np.ones(e.shape, bool) for e in expected]
    if any(map(np.any, stable)) or not theirs:
        ours = _stable(expected, map(nearby, range(SAMPLES)), rtol)
        stable = [one & other for one, other in zip(stable, ours, strict=True)]
    for position, (have, want, counts) in enumerate(zip(found, expected, stable, strict=True)):
        if not close(have, want, rtol, counts, atol):
            return f"result {position}: {difference(have, want, counts)}"
    if not any(map(np.any, stable)):
        return Declined("every result depends on how inputs are rounded, or on chance")
    return max(1 - float(elements.mean()) if elements.size else 0.0 for elements in stable)


def _stable(expected: Results, nearby: Iterable[Results], rtol: float) -> list[np.ndarray]:
    """The elements that rounding leaves where they are; none of a result that it mostly changes, as a recurrence over
    many steps does: the others are there by chance."""
    kept = [np.ones(e.shape, bool) for e in expected]
    for other in nearby:
        if [m.shape for m in other] != [e.shape for e in expected]:
            return [np.zeros(e.shape, bool) for e in expected]  # rounding decides how many there are
        kept = [k & _near(m, e, rtol) for k, m, e in zip(kept, other, expected, strict=True)]
        if not any(k.mean() >= 0.5 for k in kept if k.size):
            break
    return [k & (k.mean() >= 0.5) if k.size else k for k in kept]


def _nearby(function: Function, inputs: list[Any], sample: int) -> Results:
    """The results where inputs, and what is computed of them, are rounded in another way."""
    units, rng = ROUNDINGS * 2 ** (sample // 2), np.random.default_rng(sample)
    ends = ((units,), (-units,))[sample : sample + 1] or ((-units, units),)
    values = [moved(value, ends[0], rng) for value in inputs]

    def other(call: Call, *given: Any) -> Any:
        return moved(evaluate_call(call, *given), ends[0], rng, inside=True)

    return flatten(evaluate(function, *values, how=other))


# --- results --------------------------------------------------------------------------------------------------


def _near(have: np.ndarray, want: np.ndarray, rtol: float, atol: float = 0.0) -> np.ndarray:
    """The elements that agree: floats to ``rtol`` of the largest magnitude, everything else exactly.

    Infinity and NaN are one: ``(x - y) * s`` may be ``x * s - y * s``.
    """
    if not is_float(want.dtype.name):
        return np.asarray(have == want)
    bound = max(rtol, _ONE_STEP.get(want.dtype.name, HALF_RTOL if want.dtype == np.float16 else 0))
    have, want = (a.astype(carrier(a.dtype.name)) for a in (have, want))
    finite = np.abs(want[np.isfinite(want)].astype("float64"))
    with np.errstate(all="ignore"):
        slack = max(bound * float(finite.max(initial=0)), atol)
        near: np.ndarray = np.isclose(have.astype("float64"), want, rtol=bound, atol=slack)
    return np.asarray(near | ~(np.isfinite(have) | np.isfinite(want)))


def close(
    have: np.ndarray, want: np.ndarray, rtol: float = RTOL, where: np.ndarray | None = None, atol: float = 0.0
) -> bool:
    """Same shape and dtype; floats to ``rtol`` of the largest magnitude, everything else exactly.

    ``where``: the elements that count.
    """
    if have.shape != want.shape or have.dtype != want.dtype:
        return False
    near = _near(have, want, rtol, atol)
    return bool(np.all(near if where is None else near | ~where))


def first_difference(found: Results, expected: Results) -> str:
    """The first result that differs, and how; empty where none does."""
    pairs = enumerate(zip(found, expected, strict=True))
    return next((f"result {i}: {difference(have, want)}" for i, (have, want) in pairs if not close(have, want)), "")


def difference(have: np.ndarray, want: np.ndarray, where: np.ndarray | None = None) -> str:
    """The place where two arrays differ most, in words."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"it was {want.dtype.name} {want.shape} and is {have.dtype.name} {have.shape}"
    if not is_numeric(type_of(want)):
        place = tuple(map(int, np.argwhere(have != want)[0]))
        return f"element {place} was {want[place]!r} and is {have[place]!r}"
    with np.errstate(all="ignore"):
        gap = np.abs(have.astype("float64") - want.astype("float64"))
    have, want = (a.astype(carrier(a.dtype.name)) for a in (have, want))
    same = (have == want) | (np.isnan(have) & np.isnan(want))
    gap = np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))
    at = np.unravel_index(int(np.argmax(gap if where is None else np.where(where, gap, -1.0))), gap.shape)
    return f"element {tuple(map(int, at))} was {want[at]:.6g} and is {have[at]:.6g}"
