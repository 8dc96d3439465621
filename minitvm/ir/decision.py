"""What the compiler chose and what it declined, and why: one record for passes, templates, schedules and placement.

    with decisions() as log:
        module = FuseOps()(module)
    print(Decisions(log))      # nn.relu [Relu_3]: FuseOps declined: into divide: the way there is comm_reduce, ...

Whoever decides calls :func:`decide`; nothing is kept where nobody listens.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum

from minitvm.ir.expr import Call, Expr, Tuple, TupleGetItem, current_scope, current_span
from minitvm.ir.text import places
from minitvm.ir.types import Span
from minitvm.shown import Shown


class Exactness(str, Enum):
    """What a rule or a template does to float results."""

    EXACT = "exact"
    """Nothing: every element keeps its bits."""
    REASSOCIATING = "reassociating"
    """Rounding happens in another order; acts at level 2 and above."""
    APPROXIMATE = "approximate"
    """Changed within a bound that the rule states; acts where ``minitvm.allow_approximate`` names it."""


@dataclass(frozen=True, slots=True)
class Declined:
    """The answer of a rule, layout, template or schedule that does not apply: why not."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decision(Shown):
    """``by`` (a rule, a pass, a template) did something about ``about`` (an operator) or declined, and why.

    ``spans`` are the names of the model's nodes that it is about.  Of a call without such a name, ``place`` says where
    it stood, and its type: ``%2: Tensor[(1, 8), float32]``, as the text of what was rewritten numbers it.
    """

    by: str
    about: str
    taken: bool
    reason: str
    spans: Span = ()
    place: str = ""

    @property
    def where(self) -> str:
        """Which of the calls of that operator: the names of the model's nodes, or the place."""
        return ", ".join(self.spans) or self.place

    def __str__(self) -> str:
        origin = f" [{self.where}]" if self.where else ""
        return f"{self.about}{origin}: {self.by}{'' if self.taken else ' declined'}: {self.reason}"


class Decisions(list[Decision], Shown):
    """Decisions in order; a list whose ``repr`` is one line, as there may be thousands."""

    def __repr__(self) -> str:
        taken = sum(d.taken for d in self)
        return f"<{len(self)} decisions: {taken} to do something, {len(self) - taken} not to>"

    def __str__(self) -> str:
        return "\n".join(counted(self))


def counted(some: Iterable[Decision]) -> list[str]:
    """Decisions in words, each once, with how often it was made."""
    return [f"{found}{f', {times} times' if times > 1 else ''}" for found, times in Counter(some).items()]


_log: ContextVar[list[Decision] | None] = ContextVar("decisions", default=None)


@contextmanager
def decisions() -> Iterator[list[Decision]]:
    """Everything that is decided inside, on this thread, in order; what lies around it hears of it too, at the end."""
    found: list[Decision] = []
    outer, token = _log.get(), _log.set(found)
    try:
        yield found
    finally:
        _log.reset(token)
        if outer is not None:
            outer.extend(found)


def listening() -> bool:
    """Whether anybody keeps decisions: without it, none need be put into words."""
    return _log.get() is not None


def decide(by: str, about: Expr | str, answer: Declined | str, spans: Span = ()) -> None:
    """Keep a decision where somebody listens: what was done, or :class:`Declined`.

    ``spans`` are a node's own; of what is no node, those of the ``span_scope``.
    """
    if _log.get() is not None:
        record(decision(by, about, answer, spans))


def record(found: Decision) -> None:
    """Keep a decision where somebody listens."""
    log = _log.get()
    if log is not None:
        log.append(found)


def decision(by: str, about: Expr | str, answer: Declined | str, spans: Span = ()) -> Decision:
    """The record of what :func:`decide` is told."""
    name, spans = (about, spans or current_span()) if isinstance(about, str) else (name_of(about), about.span)
    declined = isinstance(answer, Declined)
    place = "" if spans or isinstance(about, str) else position_of(about)
    return Decision(by, name, not declined, answer.reason if isinstance(answer, Declined) else answer, spans, place)


def position_of(node: Expr) -> str:
    """Where a node stands in what is being rewritten, or the one that it stands for, and its type."""
    scope, type_ = current_scope(), "" if node.checked_type is None else str(node.checked_type)
    if scope.root is not None and not scope.places:
        scope.places.update(places(scope.root))
    stands = scope.places.get(node) or (scope.places.get(scope.node) if scope.node is not None else None)
    return ": ".join(part for part in (stands, type_) if part)


def name_of(node: Expr) -> str:
    """A node as one names it in a report: its operator."""
    if isinstance(node, Call):
        return str(getattr(node.op, "name", "a call of a function"))
    return {Tuple: "a tuple", TupleGetItem: "a tuple's field"}.get(type(node), "a value")
