"""A template: how one operator runs fast on one kind of target; what it is given, what it says of itself.

@TEMPLATES.register("llvm", "nn.dense")
class Dense(Template):
    def choices(self): ...          # its search space, with what each point is predicted to cost
    def loops(self, choice): ...    # the loops of one
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

from minitvm.doors import door
from minitvm.errors import is_again
from minitvm.ir.attributes import print_attributes
from minitvm.ir.decision import Declined, Exactness, decide, listening
from minitvm.ir.expr import Call, Function
from minitvm.ir.loop import Buffer, Kernel, Stmt
from minitvm.ir.op import Op
from minitvm.ir.types import Type, accumulator, tensor_fields
from minitvm.passes.manager import PassContext, register_config
from minitvm.target import MachineModel

RECORDS = register_config("minitvm.records", str, "", "file of tuning records, which `minitvm tune` writes")


class Recorded(Protocol):
    """A choice that was tried, as it prints; ``seconds`` measured, where there was such a machine."""

    choice: str
    seconds: float | None


TRIED: ContextVar[Any] = ContextVar("tried", default=None)
"""What its template takes here, whatever is recorded."""


@dataclass(frozen=True)
class Scaled:
    """What the second input is computed from: ``numbers * scales``, of its shape; the scales of each ``block``
    neighbours along axis 1 are the same, and of numbers ``per_byte`` are in a byte."""

    block: int
    per_byte: int
    numbers: Buffer
    scales: Buffer


@dataclass(frozen=True)
class Problem:
    """One operator over placeholder buffers: shapes, dtypes, attributes; little about what is fused around it."""

    op: Op
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    as_given: bool = True
    """Whether all inputs are in memory, none of them computed as it is loaded; a cast that keeps all values may be."""
    narrow: tuple[str, ...] = ()
    """The dtypes that inputs' elements are of: their own, or narrower ones that they are cast from."""
    by_rows: bool = False
    """Whether threads had better share rows of the result than channels, as they do of what reads it."""
    scaled: Scaled | None = None
    """The parts of the second input, where it is computed from such; loops load these or the input itself."""

    @staticmethod
    def of(call: Call) -> Problem:
        """An operator's call, over buffers ``in0``, ``in1``, ... and ``result0``, ..."""

        def buffers(name: str, types: Sequence[Type]) -> tuple[Buffer, ...]:
            fields = [t for type_ in types for t in tensor_fields(type_)]
            return tuple(Buffer(f"{name}{i}", t.extents, t.dtype) for i, t in enumerate(fields))

        assert isinstance(call.op, Op)
        inputs = buffers("in", [a.type for a in call.args])
        return Problem(call.op, inputs, buffers("result", [call.type]), narrow=tuple(b.dtype for b in inputs))

    def __str__(self) -> str:
        def types(buffers: Sequence[Buffer]) -> str:
            return ", ".join(f"{b.dtype}[{', '.join(map(str, b.shape))}]" for b in buffers)

        computed = "" if self.as_given else ", inputs computed"
        attributes = ", ".join(print_attributes(self.op))
        return f"{self.op.name}({attributes}) {types(self.inputs)} -> {types(self.outputs)}{computed}"

    @property
    def is_static(self) -> bool:
        """True if all extents are numbers."""
        return all(isinstance(extent, int) for buffer in (*self.inputs, *self.outputs) for extent in buffer.shape)

    @property
    def output(self) -> Buffer:
        return self.outputs[0]

    @property
    def accumulator(self) -> str:
        """The dtype of the registers that sums are kept in; what is stored is rounded once."""
        return accumulator(self.output.dtype)

    @property
    def product(self) -> str:
        """What multiplies and adds: ``fma``, or of parts of words one of ``DOT_OPERANDS``."""
        return str(getattr(self.op, "product", "fma"))

    @property
    def not_floats(self) -> Declined | None:
        """The refusal of templates whose registers hold floats, where something is not one, nor words of parts."""
        if self.product != "fma":
            return None
        dtypes = sorted({b.dtype for b in (*self.inputs, *self.outputs)})
        if all(d.startswith("float") for d in dtypes):
            return None
        return Declined(f"registers hold sums of floats; here {', '.join(dtypes)}")


@dataclass(frozen=True)
class Tile:
    """Results that are computed at a time: ``rows``, of each ``blocks`` vectors."""

    rows: int
    blocks: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.blocks} vectors"


@dataclass(frozen=True)
class Choice:
    """A point of a template's search space.

    ``cycles``: of one core, as predicted from the machine model.  ``why_not``: what speaks against it beside them; it
    writes right loops all the same.
    """

    scheme: str
    tile: Tile
    cycles: float
    why_not: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}, tiles of {self.tile}"


class Template(ABC):
    """A way to make loops for one problem on one machine.  A subclass writes ``loops``, and the rest where it
    differs."""

    exactness: ClassVar[Exactness] = Exactness.REASSOCIATING
    """What it does to float results beside rounding them once: sums in another order, unless it says otherwise."""

    symbolic: ClassVar[bool] = False
    """Whether its loops may run as far as a symbol says."""
    refers_to_results: ClassVar[bool] = False
    """Whether its loops read results or ask where these lie, so that nothing can follow in them."""
    takes_scaled: ClassVar[bool] = False
    """Whether its loops take a second input that is dequantized as the parts of that (:attr:`Problem.scaled`)."""

    op: Any
    """The problem's; a subclass for one operator says of which class it is."""

    def __init__(self, problem: Problem, machine: MachineModel) -> None:
        self.problem, self.machine, self.op = problem, machine, problem.op

    def refusal(self) -> Declined | None:
        """The reason why it does not take the problem; ``None`` where it does."""
        return self.problem.not_floats

    def slower(self) -> Declined | None:
        """The reason why the operators that its own stands for would be faster; ``None`` where they are not, or there
        are none."""
        return None

    def choices(self) -> Sequence[Choice]:
        """The search space: everything that :meth:`loops` can write; by default one way."""
        return [Choice("one by one", Tile(1, 1), 0.0)]

    @abstractmethod
    def loops(self, choice: Choice) -> Stmt:
        """Stores each result once, loads no result, runs on all threads."""

    @property
    def accumulator(self) -> str:
        """The dtype that sums are kept in."""
        return self.problem.accumulator

    @property
    def lanes(self) -> int:
        """Elements of a vector of sums."""
        return self.machine.lanes(self.accumulator)

    @cached_property
    def record(self) -> Recorded | None:
        """What did best where the search space was tried."""
        asked = self.machine.records or TRIED.get() or PassContext.current().option(RECORDS.name)
        return recorded(self) if asked else None

    @cached_property
    def candidates(self) -> tuple[Choice, ...]:
        """The search space: what records name, then what is predicted to be fastest, behind it what something speaks
        against."""
        named = None if self.record is None else self.record.choice

        def order(c: Choice) -> tuple[bool, bool, float, int]:
            return named is not None and str(c) != named, c.why_not != "", round(c.cycles, 6), -c.tile.blocks

        return tuple(sorted(self.choices(), key=order))

    @property
    def choice(self) -> Choice:
        """What is taken."""
        return self.candidates[0]

    def explain(self, title: str, anchor: Call) -> None:
        """Say what was taken of the search space, at which cost, and what speaks against the rest."""
        if not listening():
            return
        spoken_against = (c for c in self.candidates if c.why_not and c.scheme != self.choice.scheme)
        for scheme, why_not in dict.fromkeys((c.scheme, c.why_not) for c in spoken_against):
            decide("schedule", anchor, Declined(f"{scheme}: {why_not}"))
        taken = f"{self.choice}, {self._best} of {len(self.candidates)}"
        if self.record is not None and self.record.choice != str(self.choice):
            decide(title, anchor, Declined(f"what records name, {self.record.choice}: it is none of its ways"))
        predicted = f"{self.choice.cycles:,.0f} cycles predicted"
        decide(title, anchor, f"writes the loops: {taken}; {predicted}; sums in {self.accumulator}")

    @property
    def _best(self) -> str:
        if self.record is None or self.record.choice != str(self.choice):
            return "the best"
        measured = self.record.seconds
        return "by records the best" if measured is None else f"measured ({measured * 1e6:.1f} us), the best"

    def kernel(self, choice: Choice | None = None) -> Kernel | Declined:
        """The loops of a choice, by default the best, as a kernel; or why there are none."""
        refusal = self.refusal()
        if refusal is not None:
            return refusal
        if not self.candidates:
            return Declined("none of its ways goes as far as only a run knows")
        problem = self.problem
        body = self.loops(choice or self.choice)
        return Kernel(self.op.name, (*problem.inputs, *problem.outputs), body, results=len(problem.outputs))


class Statements(Template):
    """The operator's own loops, for every target: any dtype, what it computes in order stays in order."""

    exactness = Exactness.EXACT
    symbolic = True
    refers_to_results = True

    def refusal(self) -> Declined | None:
        return None

    def loops(self, choice: Choice) -> Stmt:
        found: Stmt = self.op.statements(*self.problem.inputs, *self.problem.outputs)
        return found


T = TypeVar("T", bound=type[Template])


@dataclass
class TemplateRegistry:
    """Templates by target kind and operator name, tried in order of registration until one does not decline; then the
    operator's own statements."""

    table: dict[tuple[str, str], list[type[Template]]] = field(default_factory=dict)

    def register(self, kind: str, *ops: str | type[Op]) -> Callable[[T], T]:
        """A class decorator; operators by name or by class.  One that is defined again takes the first one's place."""

        def add(template: T) -> T:
            for op in ops:
                known = self.table.setdefault((kind, op if isinstance(op, str) else op.name), [])
                again = next((i for i, old in enumerate(known) if is_again(old, template)), len(known))
                known[again : again + 1] = [template]
            return template

        return add

    def find(self, kinds: str | Sequence[str], op: Op) -> list[type[Template]]:
        """The templates of a kind; of several kinds those of the first, or, without a compute rule, of the first that
        has any."""
        several = (kinds,) if isinstance(kinds, str) else kinds
        asked = several[:1] if op.has_compute() else several
        found = next(filter(None, (self.table.get((kind, op.name)) for kind in asked)), [])
        return found + [Statements] * op.has_statements()


TEMPLATES = TemplateRegistry()


# --- what is taken in place of a template's own choice ---


@door
def recorded(template: Template) -> Recorded | None:
    """What did best of a template's choices, where something was tried."""
    return None


OVERRIDES: ContextVar[tuple[Any, ...]] = ContextVar("overrides", default=())
"""Those that are in force here (``overrides.Override``), the innermost last."""


@contextmanager
def asking(overrides: Sequence[Any]) -> Iterator[None]:
    """Overrides of elsewhere in force here, on another thread or later."""
    token = OVERRIDES.set(tuple(overrides))
    try:
        yield
    finally:
        OVERRIDES.reset(token)


def override_for(symbol: str, group: Function) -> Any:
    """What is asked for a kernel, or ``None``; the innermost counts."""
    return next((override for override in reversed(OVERRIDES.get()) if override.is_for(symbol, group)), None)
