"""Rules put to the test: every small case that a pattern admits, before and after, on inputs that tell things apart.

verdict = verify_rule(drop_zero)
assert verdict.holds, verdict
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import minitvm.passes
from minitvm.errors import ConfigError, MiniTVMError
from minitvm.ir.decision import Declined, Exactness
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.pattern import CallPattern, EitherPattern, Pattern, matches
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls, free_vars, post_order, use_counts
from minitvm.lab.drawing import Drawer, NotDrawn, PredicateFailed, strata
from minitvm.passes.bits import first_other_bits
from minitvm.passes.bound import Bound, Of
from minitvm.passes.compare import compare
from minitvm.passes.draws import DRAWS, LARGE, closer, random_inputs, turns
from minitvm.passes.roundings import Results, beyond_reassociation, beyond_roundings, flatten
from minitvm.passes.rule import Rule, check_answer

TRIES = 12_000
"""Expressions that are begun; few of them fit an operator, and of these few a rule."""
MOST_FIRED = 250
"""Cases that fired, from which on no more are drawn: of a rule that fires often, they repeat each other.  Where a
case has several dtypes, half as many must have come behind the last one that was new in these."""
ALIKE = 2
"""Cases of one kind (operators, attributes that are given, dtypes) that are compared; more repeat them, and those of no
element say nothing."""
AFTER_A_FIND = 200
"""Expressions that are drawn behind the first counterexample, for a smaller one."""
LEAST = 5
"""Cases that must have been compared, before a rule holds."""
PATIENCE = 5
"""Times as many expressions are begun, as long as the pattern is matched and those were not compared."""
ROUGH = 1e-2
"""Of the largest magnitude: what an approximate rule may be off."""


@dataclass(frozen=True)
class Counterexample:
    """A case that a rule breaks: the module as text, the inputs, both results."""

    before: Module
    after: Module | None
    inputs: tuple[Any, ...]
    wrong: str

    @property
    def size(self) -> tuple[int, int]:
        return len(calls(self.before.main)), sum(np.asarray(leaf).size for leaf in flatten(self.inputs))

    def __str__(self) -> str:
        lines = [self.wrong, "--- before", self.before.astext(show_meta_data=True)]
        if self.after is not None:
            lines += ["--- after", self.after.astext(show_meta_data=True)]
        names = [param.name for param in self.before.main.params]
        lines += [f"--- %{name} = {value!r}" for name, value in zip(names, self.inputs, strict=False)]
        for title, module in (("before", self.before), ("after", self.after)):
            if module is not None and len(self.inputs) == len(names):
                lines.append(f"--- result {title}: {_evaluated(module, self.inputs)}")
        return "\n".join(line.rstrip() for line in lines)


def _evaluated(module: Module, inputs: tuple[Any, ...]) -> str:
    try:
        return repr(evaluate(module, *inputs))
    except MiniTVMError as error:
        return error.message


@dataclass
class Verdict:
    """What a rule was tried on, and what came of it.

    ``drawn`` expressions fit their operators, ``matched`` the pattern too; on ``fired`` the rule acted, of which
    ``compared`` had results that could be held beside each other.  ``missing``: parts of the pattern that no case had.
    """

    rule: Rule
    tried: int = 0
    drawn: int = 0
    matched: int = 0
    fired: int = 0
    compared: int = 0
    declined: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    ranks: Counter[int] = field(default_factory=Counter)
    kinds: Counter[Hashable] = field(default_factory=Counter)
    typed: dict[Hashable, int] = field(default_factory=dict)
    """By operators and dtypes of cases that have several, how many had fired before the first of them."""
    missing: tuple[str, ...] = ()
    counterexample: Counterexample | None = None

    @property
    def holds(self) -> bool:
        """True if the rule acted often enough, was right each time, and every part of its pattern was seen."""
        return self.counterexample is None and self.compared >= LEAST and not self.missing

    @property
    def state(self) -> str:
        if self.counterexample is not None:
            return "wrong"
        return "holds" if self.holds else "not verified"

    @property
    def why(self) -> str:
        """The reason in words, where it does not hold."""
        if self.counterexample is not None:
            return self.counterexample.wrong
        if self.missing:
            return f"never drawn: {', '.join(self.missing)}"
        if not self.matched:
            return "no expression matched its pattern"
        if not self.fired:
            return f"it never fired; it declined: {'; '.join(list(self.declined)[:3])}"
        return "" if self.holds else f"results of {self.compared} cases could be compared, of {LEAST} at least"

    def __str__(self) -> str:
        counts = f"{self.tried} tried, {self.drawn} well typed, {self.matched} matched, {self.fired} fired"
        lines = [f"{self.rule.name} ({self.rule.exactness.value}): {self.state}; {counts}, {self.compared} compared"]
        if self.fired:
            ranks = ", ".join(f"{rank}: {n}" for rank, n in sorted(self.ranks.items()))
            lines.append(f"  fired on {', '.join(f'{d} {n}' for d, n in self.dtypes.most_common())}; ranks {ranks}")
        lines += [f"  declined {n}: {reason}" for reason, n in self.declined.most_common(4)]
        if self.counterexample is not None:
            lines.append(str(self.counterexample))
        elif self.why:
            lines.append(f"  {self.why}")
        return "\n".join(lines)


def verify_rule(rule: Rule, tries: int = TRIES, seed: int = 0, most: int = MOST_FIRED) -> Verdict:
    """Try a rule on ``tries`` small expressions that its pattern may match: all dtypes, ranks 0 to 5, extents 0 to 4,
    broadcasting, layouts and attributes as the operators' tables allow, constants of special numbers.

    An exact rule must keep every bit (a NaN is a NaN), a reassociating one its bound, on all inputs that tell operators
    apart, where sums cancel and where numbers leave the range; one without a bound is held to 1 % of the largest
    magnitude on small inputs.
    :class:`ConfigError` for what is no rule.
    """
    if not isinstance(rule, Rule):
        raise ConfigError(f"{rule!r} is not a rule", hint="what @rule makes of a function")
    found, parts = Verdict(rule), wanted(rule.pattern)
    seen: set[tuple[int, Any]] = set()
    left = tries
    for case in _cases(rule, tries * PATIENCE, seed, found, seen):
        if left == 1 and found.tried < tries * PATIENCE and found.matched and found.compared < LEAST:
            left = 2
        last_new = max(found.typed.values(), default=0)
        left = AFTER_A_FIND if found.counterexample and left > AFTER_A_FIND else left - 1
        if left <= 0 or (found.fired >= max(most, min(last_new + most // 2, 4 * most)) and not found.counterexample):
            break
        if case is not None:
            _judge(rule, case, found)
    found.missing = tuple(words for part, words in parts.items() if part not in seen)
    return found


def wanted(pattern: Pattern) -> dict[tuple[int, Any], str]:
    """Every part of a pattern that cases must have had, in words."""
    found: dict[tuple[int, Any], str] = {}
    if isinstance(pattern, CallPattern):
        found.update({(id(pattern), op): f"an operator {_name(op)}" for op in pattern.ops})
    if isinstance(pattern, EitherPattern):
        found.update({(id(pattern), i): f"alternative {i + 1} of either" for i in range(len(pattern.alternatives))})
    for part in pattern.parts():
        found.update(wanted(part))
    return found


def _name(op: type[Op] | str) -> str:
    return op if isinstance(op, str) else getattr(op, "name", op.__name__) or op.__name__


def _cases(
    rule: Rule, tries: int, seed: int, found: Verdict, seen: set[tuple[int, Any]]
) -> Iterator[tuple[Expr, str, int] | None]:
    """Expressions that are well typed, ``None`` in place of others; dtypes and ranks by turns."""
    rng, turns = random.Random(seed), strata()
    rng.shuffle(turns)
    for i in range(tries):
        dtype, rank = turns[i % len(turns)]
        drawer = Drawer(rng, dtype, rank)
        found.tried += 1
        try:
            node = drawer.draw(rule.pattern)
        except NotDrawn:
            yield None
            continue
        except PredicateFailed as failed:
            function = Function(free_vars(failed.node), failed.node)
            wrong = f"a predicate of its pattern raised {type(failed.error).__name__}: {failed.error}"
            _keep(found, Counterexample(Module(function), None, (), wrong))
            yield None
            continue
        found.drawn += 1
        matched = found.matched
        yield node, dtype, rank
        if found.matched > matched:
            seen |= drawer.seen.parts


def _judge(rule: Rule, case: tuple[Expr, str, int], found: Verdict) -> None:
    node, dtype, rank = case
    function = Function(free_vars(node), node)
    ways = list(matches(rule.pattern, node, use_counts(function)))
    found.matched += bool(ways)
    for captures in ways:
        before = Module(function)
        try:
            answer = check_answer(rule, node, rule.apply(**captures))
        except Exception as error:  # whatever a rule raises, it is the rule's
            _keep(found, Counterexample(before, None, (), f"it raised {type(error).__name__}: {error}"))
            continue
        if isinstance(answer, Declined):
            found.declined[answer.reason] += 1
        elif answer is not node:
            kind = _kind(node)
            found.kinds[kind] += not _is_empty(node)
            if found.kinds[kind] > ALIKE:
                continue
            if len({dtype for _, _, leaf in kind for dtype in leaf[:1]}) > 1 and not _is_empty(node):
                found.typed.setdefault(tuple((op, leaf[:1]) for op, _, leaf in kind), found.fired)
            found.fired += 1
            found.dtypes[dtype] += 1
            found.ranks[rank] += 1
            _compare(rule, function, Function(function.params, answer), found)


def _is_empty(node: Expr) -> bool:
    return isinstance(type_ := node.checked_type, TensorType) and not type_.size


def _kind(node: Expr) -> tuple[tuple[Any, ...], ...]:
    """What cases have to differ in so as not to repeat each other."""
    found = list[tuple[Any, ...]]()
    for part in post_order(node):
        type_ = part.checked_type
        leaf = (type_.dtype, type_.rank, type_ == node.checked_type) if isinstance(type_, TensorType) else ()
        op = part.op if isinstance(part, Call) and isinstance(part.op, Op) else None
        given = {f.name for f in dataclasses.fields(op) if getattr(op, f.name) != f.default} if op else {type(part)}
        found.append((type(op), frozenset(given), leaf))
    return tuple(found)


def _compare(rule: Rule, before: Function, after: Function, found: Verdict) -> None:
    try:
        answer = _answer(rule, before, after)
    except MiniTVMError as error:
        wrong = f"what it made fails where the call did not: {error.message}"
        _keep(found, Counterexample(Module(before), Module(after), (), wrong))
        return
    if isinstance(answer, Counterexample):
        _keep(found, answer)
    else:
        found.compared += answer


def _keep(found: Verdict, new: Counterexample) -> None:
    """The smallest one."""
    old = found.counterexample
    if old is None or new.size < old.size:
        found.counterexample = new


def known_rules() -> dict[str, Rule]:
    """The rules of minitvm's own passes, by name."""
    names = (module.name for module in pkgutil.iter_modules(minitvm.passes.__path__))
    modules = [importlib.import_module(f"minitvm.passes.{name}") for name in names]
    return {found.name: found for module in modules for found in vars(module).values() if isinstance(found, Rule)}


# --- results ----------------------------------------------------------------------------------------------------------

Answer = Counterexample | bool
"""What differs; whether anything was compared."""


def _answer(rule: Rule, before: Function, after: Function) -> Answer:
    if rule.exactness is Exactness.EXACT:
        return _held(before, after, first_other_bits)
    if rule.bound is None:
        return _rough(before, after)
    return _held(before, after, functools.partial(_beyond, rule.bound, before))


def _rough(before: Function, after: Function) -> Answer:
    """As far as small numbers go, and others as far as what is on the way lets them."""

    def explain(inputs: list[Any], found: Results, expected: Results) -> str:
        return beyond_reassociation([(before, inputs), (after, inputs)], found, expected, ROUGH)

    done = compare(before, lambda inputs: evaluate(after, *inputs), rtol=ROUGH, draws=DRAWS, explain=explain)
    if done.difference:
        return Counterexample(Module(before), Module(after), tuple(done.inputs), done.difference)
    return bool(done.agreed)


def _beyond(bound: Bound, before: Function, inputs: list[Any], have: Results, want: Results) -> str:
    """What is moved by more than the bound; near the end of the range, and beyond, nothing is said of sums."""
    sums = bound.of is Of.SUMS
    kept = [np.where(_close_to_the_end(w), w, h) for h, w in zip(have, want, strict=True)] if sums else have
    units = [bound.roundings, -bound.roundings] + [bound.roundings] * 6 if sums else []
    return beyond_roundings(before, inputs, kept, want, margin=2.0, units=units, roundings=bound.roundings)


def _close_to_the_end(want: np.ndarray) -> np.ndarray:
    if want.dtype.kind != "f":
        return np.zeros(want.shape, bool)
    return np.asarray(~(np.abs(want) < np.finfo(want.dtype).max / 16 * 15))


Judge = Callable[[list[Any], Results, Results], str]
"""From inputs, results and those that are expected to what is wrong, or nothing."""


def _held(before: Function, after: Function, judge: Judge) -> Answer:
    """On every draw that the call itself takes, those near cancellation, underflow and overflow among them."""
    compared = False
    for draw in (*turns(before, DRAWS), *closer(before), LARGE):
        inputs = random_inputs(before, 0, draw)
        if isinstance(inputs, Declined):
            continue
        want = _taken(before, inputs)
        if want is None:
            continue
        compared, wrong = True, judge(inputs, flatten(evaluate(after, *inputs)), want)
        if wrong:
            wrong = f"{wrong}, of inputs that are {draw.name}"
            return Counterexample(Module(before), Module(after), tuple(inputs), wrong)
    return compared


def _taken(function: Function, inputs: list[Any]) -> list[np.ndarray] | None:
    try:
        return flatten(evaluate(function, *inputs))
    except MiniTVMError:
        return None
