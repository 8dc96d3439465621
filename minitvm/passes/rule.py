"""Local rewrites: a pattern and one function whose parameters are the pattern's captures.

    @rule(call(Add, value("x"), const("c")))
    def drop_zero(x: Expr, c: Constant) -> Expr | Declined:
        return x if not c.value.any() else Declined("the constant is not zero")

A rule keeps its state in its captures, returns a replacement of the same type, and says why it does not fire.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from minitvm.errors import PassError, blame
from minitvm.ir.decision import Declined, Exactness, decide, decision, listening, name_of, record
from minitvm.ir.expr import Call, Expr, Function, Module, describe_call
from minitvm.ir.pattern import Pattern, matches
from minitvm.ir.types import alike
from minitvm.ir.visitor import as_function, children, kinds_of, post_order, rewrite, use_counts
from minitvm.passes.applications import note
from minitvm.passes.instrument import PassInfo
from minitvm.passes.manager import KNOWN_PASSES, FunctionPass, PassContext, register_config

register_config(
    "minitvm.allow_approximate",
    tuple,
    ("Winograd",),
    "names of approximate rules and templates that may act, as a tuple of strings",
)

MAX_ROUNDS = 64


Replacement: TypeAlias = Expr | Declined


@dataclass(frozen=True)
class Rule:
    name: str
    pattern: Pattern
    apply: Callable[..., Replacement]
    exactness: Exactness

    def as_pass(self) -> "RulePass":
        """A pass of this rule alone, by its name, of level 0."""
        return rule_pass(self, name=self.name)

    def allowed(self, context: PassContext) -> bool:
        """Whether the rule may act at this level and with these options."""
        if self.exactness is Exactness.APPROXIMATE:
            return self.name in context.option("minitvm.allow_approximate")
        return self.exactness is Exactness.EXACT or context.opt_level >= 2


def rule(pattern: Pattern, exactness: str = "exact") -> Callable[[Callable[..., Replacement]], Rule]:
    """Makes a :class:`Rule` of a function; :class:`PassError` where its parameters are not captures of ``pattern``."""
    if exactness not in [e.value for e in Exactness]:
        raise PassError(f"there is no exactness {exactness!r}", hint="exact, reassociating or approximate")

    def decorate(function: Callable[..., Replacement]) -> Rule:
        _check_parameters(function, pattern)
        return Rule(function.__name__, pattern, function, Exactness(exactness))

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

    def __init__(self, rules: Sequence[Rule], root: Function, said: set[object]) -> None:
        self.rules = rules
        self.said = said
        """What was declined, in earlier rounds too: it is said once."""
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
                    self._note(candidate, node, answer)
                    if isinstance(answer, Expr) and answer is not node:
                        note(candidate.name, node, answer)
                        return answer
            except Exception as error:
                blame(error, candidate.apply, f"rule {candidate.name}", lambda: _lines(node))
        return node

    def _count_operands(self, replacement: Expr) -> None:
        """Count the uses that nodes built by a rule make of their operands."""
        pending = [replacement]
        while pending:
            node = pending.pop()
            if node not in self.counted:
                self.counted.add(node)
                self.uses.update(children(node))
                pending.extend(children(node))

    def _note(self, candidate: Rule, node: Expr, answer: Replacement) -> None:
        if answer is not node and listening():
            if isinstance(answer, Expr):
                decide(candidate.name, node, f"becomes {name_of(answer)}")
                return
            found = decision(candidate.name, node, answer)
            said = found if found.spans else (candidate, node, answer)
            if said not in self.said:
                self.said.add(said)
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
    said: set[object] = set()
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
