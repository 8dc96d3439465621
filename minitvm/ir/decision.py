"""What the compiler chose and what it declined, and why: one record for passes, templates, schedules and placement.

    with decisions() as log:
        module = FuseOps()(module)
    print(*log, sep="\\n")      # nn.relu [Relu_3]: FuseOps declined: into divide: the way there is comm_reduce, ...

Whoever decides calls :func:`decide`; nothing is kept where nobody listens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from minitvm.errors import PassError
from minitvm.ir.types import Span
from minitvm.shown import Shown

if TYPE_CHECKING:  # a decision is read where there are no expressions, too
    from minitvm.ir.expr import Expr


class Exactness(str, Enum):
    """What a rule or a template does to float results."""

    EXACT = "exact"
    """Nothing: every element keeps its bits."""
    REASSOCIATING = "reassociating"
    """Rounding happens in another order, within a bound that is stated; acts at level 2 and above."""
    APPROXIMATE = "approximate"
    """Off by more; acts where ``minitvm.allow_approximate`` names it."""
    UNBOUNDED = "unbounded"
    """Equal for real numbers, with no bound for floats; acts at level 2 and above under ``minitvm.allow_fast_math``."""

    @classmethod
    def _missing_(cls, value: object) -> Exactness:
        raise PassError(f"there is no exactness {value!r}", hint="exact, reassociating, approximate or unbounded")


@dataclass(frozen=True, slots=True)
class Declined:
    """The answer of a rule, layout, template or schedule that does not apply: why not."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decision(Shown):
    """``by`` (a rule, a pass, a template) did something about ``about`` (an operator) or declined, and why.

    ``spans`` are the names of the model's nodes that it is about.
    """

    by: str
    about: str
    taken: bool
    reason: str
    spans: Span = ()

    def __str__(self) -> str:
        origin = f" [{', '.join(self.spans)}]" if self.spans else ""
        return f"{self.about}{origin}: {self.by}{'' if self.taken else ' declined'}: {self.reason}"


class Decisions(list[Decision], Shown):
    """Decisions in order; a list whose ``repr`` is one line, as there may be thousands."""

    def __repr__(self) -> str:
        taken = sum(d.taken for d in self)
        return f"<{len(self)} decisions: {taken} to do something, {len(self) - taken} not to>"

    def __str__(self) -> str:
        return "\n".join(map(str, self))


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


@contextmanager
def unheard() -> Iterator[None]:
    """Nobody hears what is decided inside: it is decided again where it counts."""
    token = _log.set(None)
    try:
        yield
    finally:
        _log.reset(token)


def listening() -> bool:
    """True if anybody keeps decisions: without it, none need be put into words."""
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
    from minitvm.ir.expr import current_span

    name, spans = (about, spans or current_span()) if isinstance(about, str) else (name_of(about), about.span)
    declined = isinstance(answer, Declined)
    return Decision(by, name, not declined, answer.reason if isinstance(answer, Declined) else answer, spans)


def name_of(node: Expr) -> str:
    """A node as one names it in a report: its operator."""
    from minitvm.ir.expr import Call, Tuple, TupleGetItem

    if isinstance(node, Call):
        return str(getattr(node.op, "name", "a call of a function"))
    return {Tuple: "a tuple", TupleGetItem: "a tuple's field"}.get(type(node), "a value")
