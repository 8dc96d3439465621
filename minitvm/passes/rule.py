"""Rewrite rules: a pattern, and one function whose parameters are the pattern's captures.

    @rule(call(Add, value("x"), const("c")))
    def drop_zero(x: Expr, c: Constant) -> Expr | Declined:
        return x if not c.value.any() else Declined("the constant is not zero")

A rule keeps its state in its captures, returns a replacement of the same type, and says why it does not fire.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeAlias

from minitvm.errors import PassError, blame
from minitvm.ir.decision import Decision, Declined, Exactness, decision, listening, name_of, record
from minitvm.ir.dims import Undecided
from minitvm.ir.expr import Call, Expr, Function, Module, describe_call
from minitvm.ir.pattern import Pattern, matches
from minitvm.ir.types import Span, alike
from minitvm.ir.visitor import as_function, children, kinds_of, post_order, rewrite, span_of, use_counts
from minitvm.passes.bound import USUAL, Bound
from minitvm.passes.instrument import PassInfo
from minitvm.passes.manager import KNOWN_PASSES, FunctionPass, PassContext, register_config

register_config(
    "minitvm.allow_approximate",
    tuple,
    ("Winograd",),
    "names of approximate rules and templates that may act, as a tuple of strings",
)
FAST_MATH = register_config(
    "minitvm.allow_fast_math",
    bool,
    False,
    "rules without a bound act from level 2 on: results may lose digits, overflow, or miss a rounding that was meant",
)

MAX_ROUNDS = 64
MOST_NAMES = 64
"""Of a replacement's origin."""


@dataclass(frozen=True)
class Application:
    """A rule that has replaced a node; ``number`` counts from 1."""

    rule: str
    number: int
    about: str
    """The node, with its types and the ONNX nodes that it came from."""

    def __str__(self) -> str:
        return f"rule {self.rule}, its application {self.number}, on {self.about}"


@dataclass
class Applications:
    """The replacements that rules have made on this thread; after ``most`` of them, none does any more."""

    most: int | None = None
    made: list[Application] = field(default_factory=list)


_applications: ContextVar[Applications | None] = ContextVar("applications", default=None)


@contextmanager
def applications(most: int | None = None) -> Iterator[Applications]:
    """Counts the replacements that rules make inside, and stops them after ``most``: what a search for the one that is
    wrong needs."""
    counted = Applications(most)
    token = _applications.set(counted)
    try:
        yield counted
    finally:
        _applications.reset(token)


def _may_replace(candidate: "Rule", node: Expr) -> bool:
    counted = _applications.get()
    if counted is None:
        return True
    if counted.most is not None and len(counted.made) >= counted.most:
        return False
    number = 1 + sum(before.rule == candidate.name for before in counted.made)
    counted.made.append(Application(candidate.name, number, "; ".join(_lines(node))))
    return True


Replacement: TypeAlias = Expr | Declined


@dataclass(frozen=True)
class Rule:
    name: str
    pattern: Pattern
    apply: Callable[..., Replacement]
    exactness: Exactness
    bound: Bound | None = None
    """Of a reassociating rule."""

    def as_pass(self) -> "RulePass":
        """A pass of this rule alone, by its name, of level 0."""
        return rule_pass(self, name=self.name)

    def allowed(self, context: PassContext) -> bool:
        """True if the rule may act at this level and with these options."""
        if self.exactness is Exactness.APPROXIMATE:
            return self.name in context.option("minitvm.allow_approximate")
        if self.exactness is Exactness.UNBOUNDED and not context.option(FAST_MATH.name):
            return False
        return self.exactness is Exactness.EXACT or context.opt_level >= 2


def rule(
    pattern: Pattern, exactness: str = "exact", bound: Bound | None = None
) -> Callable[[Callable[..., Replacement]], Rule]:
    """Makes a :class:`Rule` of a function; :class:`PassError` where its parameters are not captures of ``pattern``,
    or one that is not reassociating states a bound.  A reassociating one that states none is held to :data:`USUAL`."""
    stated = Exactness(exactness)
    if exactness == "reassociating":
        bound = bound or USUAL
    elif bound is not None:
        raise PassError(f"a rule that is {exactness} states no bound", hint="reassociating ones say how far they move")

    def decorate(function: Callable[..., Replacement]) -> Rule:
        _check_parameters(function, pattern)
        return Rule(function.__name__, pattern, function, stated, bound)

    return decorate


def rules_in(*modules: ModuleType) -> tuple[Rule, ...]:
    """All rules that modules define, in their order."""
    return tuple(found for module in modules for found in vars(module).values() if isinstance(found, Rule))


def _check_parameters(function: Callable[..., Replacement], pattern: Pattern) -> None:
    captures, parameters = sorted(pattern.names()), sorted(inspect.signature(function).parameters)
    if captures != parameters:
        raise PassError(
            f"rule {function.__name__}: its parameters are {', '.join(parameters) or 'none'}, "
            f"the pattern captures {', '.join(captures) or 'nothing'}",
            hint="name each parameter after a capture, and take every capture",
        )


class _Sweep:
    """One bottom-up sweep.  ``uses`` counts operand positions of old nodes *and* of those that replace them.

    A rebuilt or replaced node inherits the count of the node it stands for; an operand that a replacement newly
    refers to gains a use.  Without the first, ``single_use`` would hold for everything that was ever rebuilt.
    """

    def __init__(self, rules: Sequence[Rule], root: Function, said: set[Decision]) -> None:
        self.rules = rules
        self.said = said
        """What was decided, in earlier rounds too: it is said once."""
        self.candidates = _candidates(tuple(rules))
        self.uses = use_counts(root)
        self.counted = set(post_order(root))

    def visit(self, node: Expr, new: Expr) -> Expr:
        if new is not node:
            self.counted.add(new)
        replaced = self._apply(new)
        if replaced is not node:
            self._count_operands(replaced)
            self.uses[replaced] += self.uses[node]
        return replaced

    def _apply(self, node: Expr) -> Expr:
        """``node`` after the first rule that fires on it, in one of the ways that its pattern matches."""
        kind = (_kind(node), *map(_kind, children(node)))
        if kind not in self.candidates:
            self.candidates[kind] = [r for r in self.rules if r.pattern.may_match(node)]
        for candidate in self.candidates[kind]:
            try:
                for captures in matches(candidate.pattern, node, self.uses):
                    answer = check_answer(candidate, node, candidate.apply(**captures))
                    if isinstance(answer, Expr) and answer is not node:
                        return self._replaced(candidate, node, answer) if _may_replace(candidate, node) else node
                    self._note(candidate, node, answer, node.span)
            except Undecided as error:  # of a size that a run knows: the rule declines, not the build
                self._note(candidate, node, Declined(str(error)), node.span)
            except Exception as error:
                blame(error, candidate.apply, f"rule {candidate.name}", lambda: _lines(node))
        return node

    def _replaced(self, candidate: Rule, node: Expr, answer: Expr) -> Expr:
        """The answer; a new call comes from all that it stands for."""
        span = self._span_of_replaced(node, answer)
        self._note(candidate, node, answer, span)
        return answer.over(answer.args, span) if isinstance(answer, Call) and answer not in self.counted else answer

    def _count_operands(self, replacement: Expr) -> None:
        """Count the uses that nodes built by a rule make of their operands."""
        pending = [replacement]
        while pending:
            node = pending.pop()
            if node not in self.counted:
                self.counted.add(node)
                self.uses.update(children(node))
                pending.extend(children(node))

    def _span_of_replaced(self, node: Expr, answer: Expr) -> Span:
        """The place where ``node`` comes from, and all below it that nothing needs once ``answer`` is there; where that
        are more than :data:`MOST_NAMES`, itself: of a long chain each step would copy them all."""
        kept, pending = {answer}, [answer]
        while pending:
            found = pending.pop()
            below = [] if found in self.counted else [c for c in children(found) if c not in kept]
            pending.extend(below)
            kept.update(below)
        gone = [node]
        for found in gone:
            gone += [c for c in children(found) if isinstance(c, Call) and c not in kept and self.uses[c] == 1]
        names = span_of(*gone)
        return names if len(names) <= MOST_NAMES else node.span

    def _note(self, candidate: Rule, node: Expr, answer: Replacement, span: Span) -> None:
        if answer is not node and listening():
            became = answer if isinstance(answer, Declined) else f"becomes {name_of(answer)}"
            found = replace(decision(candidate.name, node, became), spans=span)
            if found not in self.said:
                self.said.add(found)
                record(found)


@functools.lru_cache(maxsize=32)
def _candidates(rules: tuple[Rule, ...]) -> dict[object, list[Rule]]:
    """The rules whose pattern may match a node, for each kind over operands of some kinds: found as nodes come by, and
    kept for the next graph."""
    return {}


def _kind(node: Expr) -> object:
    """What ``Pattern.may_match`` depends on."""
    return (type(node.op), len(node.args)) if isinstance(node, Call) else type(node)


def check_answer(candidate: Rule, node: Expr, answer: Any) -> Replacement:
    """What a rule answered; :class:`PassError` where that is nothing a rule may answer, or of another type."""
    if isinstance(answer, Declined) or (isinstance(answer, Expr) and alike(answer.checked_type, node.checked_type)):
        return answer
    wrong, hint = f"returned {answer!r}", "return an Expr or Declined('why not')"
    if isinstance(answer, Expr):
        wrong = f"replaced a {node.checked_type} by a {answer.checked_type}"
        hint = "a replacement has the type of what it replaces"
    raise PassError(f"rule {candidate.name} {wrong}", where=_lines(node), hint=hint)


def _lines(node: Expr) -> list[str]:
    """A node for an error: the call with its types and the ONNX nodes it came from."""
    return describe_call(node) if isinstance(node, Call) else [name_of(node)]


def apply_rules(rules: Sequence[Rule], function: Function) -> Function:
    """Apply rules bottom-up until none fires; the same function back where none did.

    Which rules may act at a level is the caller's choice (``rules_pass`` asks the context).  :class:`PassError`
    where the rules undo each other for ever.
    """
    said: set[Decision] = set()
    for _ in range(MAX_ROUNDS):
        new = as_function(rewrite(function, _Sweep(rules, function, said).visit))
        if new is function:
            return function
        function = new
    names = ", ".join(r.name for r in rules)
    raise PassError(f"no fixed point after {MAX_ROUNDS} rounds of {names}", hint="two of the rules undo each other")


class RulePass(FunctionPass):
    """A pass made of rules."""

    rules: Sequence[Rule] = ()

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return apply_rules([r for r in self.rules if r.allowed(context)], function)

    def nothing_to_do(self, function: Function, context: PassContext) -> Declined | None:
        kinds = kinds_of(function)
        fits = any(r.pattern.may_occur(kinds) for r in self.rules if r.allowed(context))
        return None if fits else Declined("no rule finds the operators that it looks for in it")


def rule_pass(*rules: Rule, name: str, opt_level: int = 0) -> RulePass:
    """A pass object of rules, for a ``Sequential``."""
    made = RulePass()
    made.rules, made.info = rules, PassInfo(name, opt_level)
    KNOWN_PASSES.add(name)
    return made
