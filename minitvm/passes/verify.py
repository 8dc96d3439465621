"""Verify: modules between passes are checked for their form and by numbers, beside the operators' references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from minitvm.errors import MiniTVMError, PassError, origin
from minitvm.ir.decision import Exactness, decide
from minitvm.ir.evaluate import evaluate, evaluate_calls
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.structural import structural_hash
from minitvm.ir.verify import verify
from minitvm.ir.visitor import calls, children
from minitvm.passes.bits import first_change
from minitvm.passes.compare import Comparison, Explain, close, compare
from minitvm.passes.draws import DRAWS, Draw
from minitvm.passes.instrument import PassInfo, PassInstrument, Running
from minitvm.passes.roundings import HALF_RTOL, RTOL, Results, beyond_reassociation, flatten
from minitvm.passes.values import Values


@dataclass
class Known:
    """What was computed for the passes before: results of modules' ``main`` (what a pass made is what the next one is
    given), and values of calls."""

    results: WeakKeyDictionary[Function, dict[Draw, Results]] = field(default_factory=WeakKeyDictionary)
    values: Values = field(default_factory=Values)


class NotCompared(PassError):
    """No random inputs tell whether a pass is right."""


class NumbersDiffer(PassError):
    """A pass changed what a module computes."""

    found: Comparison


class Verify(PassInstrument):
    """Checks modules between passes; raises :class:`PassError` that names the pass.

    ``numbers``: also run both modules through the operators' references on random inputs, and name the first call
    whose value has no equal any more; :class:`NotCompared` where that says nothing.  A pass that changes the module
    it was given is caught by its hash.
    """

    def __init__(self, numbers: bool = True, rtol: float = RTOL, seed: int = 0) -> None:
        self.numbers = numbers
        self.rtol = rtol
        self.seed = seed
        self._known = Known()
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
            self._compare(before, module, info)

    def _rtol_for(self, info: PassInfo) -> float:
        return max(self.rtol, HALF_RTOL) if info.rounds else self.rtol

    def _compare(self, before: Module, after: Module, info: PassInfo) -> None:
        name = info.name
        found = compare_numbers(
            before, after, f"pass {name}", self._rtol_for(info), self.seed, draws_of(info), self._known, info.exactness
        )
        decide("Verify", name, str(found))
        if not found.agreed:
            raise NotCompared(
                f"pass {name} changed a module whose numbers cannot be compared",
                where=[f"inputs that are {draw}: {why}" for draw, why in found.skipped.items()],
                hint="instruments=[Verify(numbers=False)] checks its form alone",
            )


def draws_of(info: PassInfo) -> Sequence[Draw]:
    """The inputs that a pass's results are compared on; large ones may become infinite in fewer bits."""
    return DRAWS[:2] if info.rounds else DRAWS


def compare_numbers(
    before: Module,
    after: Module,
    what: str,
    rtol: float = RTOL,
    seed: int = 0,
    draws: Sequence[Draw] = DRAWS,
    known: Known | None = None,
    exactness: Exactness | None = None,
) -> Comparison:
    """Run both ``main`` functions on random inputs; :class:`NumbersDiffer` where the results do.

    The error names the output and the first call that the second module computes and the first one does not: the
    earliest whose operands all have values that occur in the first module.  Says what was compared, which may be
    nothing: inputs that are untyped or very large, or that the module before raises on.  ``exactness``:
    as it is stated, "exact" for the same bits; of what reassociates, sums and products may be in another order.
    """
    known = known or Known()
    known.values.turn()

    def run(inputs: list[Any]) -> Any:
        given = arguments_for(before.main, after.main, inputs, what)
        try:
            return evaluate(after, *given, how=known.values.of)
        except MiniTVMError as error:
            failed = f"{what} made a module that fails where the one before did not: {error.message}"
            raise PassError(failed, where=error.where) from error

    may = _judge(before.main, after.main, rtol, exactness)
    results, how = known.results.get(before.main), known.values.of
    found = compare(before.main, run, rtol, seed, draws, results, after.main, explain=may, how=how)
    known.results[after.main] = found.results
    if found.difference:
        given = arguments_for(before.main, after.main, found.inputs, what)
        raise _differ(what, found, _first_difference(before.main, after.main, found.inputs, given, rtol))
    return found


def _differ(what: str, found: Comparison, where: list[str]) -> NumbersDiffer:
    hint = "both modules ran through the operators' references on the same random inputs"
    error = NumbersDiffer(f"{what} changed {found.difference}", where=where, hint=hint)
    error.found = found
    return error


def _judge(before: Function, after: Function, rtol: float, exactness: Exactness | None) -> Explain | None:
    """What looks at each element, by what is stated of who made it."""

    def explain(inputs: list[Any], found: Results, expected: Results) -> str:
        ways = [(before, inputs), (after, arguments_for(before, after, inputs))]
        return beyond_reassociation(ways, found, expected, rtol)

    if exactness == Exactness.EXACT:
        return first_change(before, after)
    return None if exactness is None else explain


def arguments_for(before: Function, after: Function, inputs: list[Any], what: str = "it") -> list[Any]:
    """The same inputs for ``after``: by name, since a pass may bind parameters."""
    by_name = {p.name: value for p, value in zip(before.params, inputs, strict=True)}
    missing = [p.name for p in after.params if p.name not in by_name]
    if missing:
        raise PassError(f"{what} added parameters: {', '.join(missing)}")
    return [by_name[p.name] for p in after.params]


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
    if not suspects:
        return []
    first = suspects[0]
    name = first.op.name if isinstance(first.op, Op) else str(first.op.attrs.get("name", "a function"))
    return [f"the first new value is computed by {name}: {first.checked_type} {origin(first.span)}".rstrip()]


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


def verifier() -> PassInstrument:
    """What ``MINITVM_VERIFY`` asks for."""
    return Verify()
