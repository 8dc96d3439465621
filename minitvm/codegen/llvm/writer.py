"""What LLVM IR is written with: values of expressions, a cursor in the text, what is known at the point it is at.

``int64`` expressions stay linear combinations of registers (:data:`Index`) for as long as they can be.  So constants
of unrolled loops vanish from addresses, ranges decide comparisons, and the stride of every access along the lanes of
a vectorized loop is known.
"""

import itertools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeAlias

from minitvm.ir.loop import Buffer, Load, LoopExpr, LoopVar, Store
from minitvm.ir.loop.affine import INT64, Affine, Range, address
from minitvm.target import MachineModel

# --- values ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)
class Val:
    """A register or literal of ``dtype``; ``lanes`` 0 is a scalar.  Nobody changes it (see :class:`Range`)."""

    text: str
    dtype: str
    lanes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """An ``i64`` register, or the lane number of the current vectorized loop, and what it may be."""

    text: str
    range: Range = INT64


Index: TypeAlias = Affine[Atom]

Lanes: TypeAlias = list[Index]
"""An ``int64`` value that is no linear function of the lane: one scalar per lane."""

Value: TypeAlias = "Val | Index | Lanes"


@dataclass(frozen=True, slots=True)
class Apart:
    """Places that data decide: ``start``, the same in all lanes, and a register with what each of them adds."""

    start: Index
    more: Val


Where: TypeAlias = "Index | Lanes | Apart"
"""An element's number from its buffer's base."""

_range_of = attrgetter("range")


def exact(value: Index) -> Range:
    """What the sum may be as a mathematical integer."""
    return value.bounds(_range_of)


def reach(value: Index) -> Range:
    """What it may be in 64 bits."""
    found = exact(value) if value.terms else Range(value.constant, value.constant)
    return found if found.fits else INT64


def power_of_two(count: int) -> int:
    """The next one, ``count`` itself if it is one."""
    return 1 << max(0, count - 1).bit_length()


# --- text -----------------------------------------------------------------------------------------------------

Lines: TypeAlias = "list[str | Lines]"
"""Text in the order of execution; what stands before a loop grows while the loop is written."""

_ODDS = {True: ("!5", 1, 4096), False: ("!6", 4096, 1)}
"""Of a branch that is taken hardly ever or nearly always: a metadata node apart from those of listings, its weights."""
_TRIPS, _MOST_TRIPS = 10, 900
"""Of a loop's branch back: the number of its node, less its trips; as many trips as are told apart."""
_REGISTER = re.compile(r"%[inv]\d+")


@dataclass(frozen=True, slots=True)
class Saved:
    """A point in the text to return to when an attempt is given up."""

    lines: int
    loops: int
    scopes: int
    known: int
    guard: int
    block: str


@dataclass
class Writer:
    """Text in order of emission.  ``pure`` reuses a register that already holds the same instruction's result.

    Registers have a level: how many loops are around them, or need to be.  A pure instruction is written before the
    loops that do not change its operands.
    """

    lines: Lines = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    dot_lanes: Mapping[str, int] = field(default_factory=dict)
    """By the machine's features, most lanes in which the machine multiplies parts of words and adds them up at once."""
    small_sums: dict[str, tuple[str, int, Val]] = field(default_factory=dict)
    """Of registers with sums of words: the same in 16 bits, the largest it may be, and what it was added to."""
    block: str = "start"
    note: str = ""
    """A comment behind every instruction that is written from now on: what it is for (``origins.py``)."""
    _count: int = 0
    _known: dict[Hashable, str] = field(default_factory=dict)
    _scopes: list[list[Hashable]] = field(default_factory=lambda: [[]])
    _loops: list[tuple[Lines, list[Hashable]]] = field(default_factory=list)
    """The lines before each open one, and their scope."""
    _levels: dict[str, int] = field(default_factory=dict)
    _guard: int = 0  # loops around the innermost condition

    def name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def op(self, text: str) -> str:
        """Emit an instruction, return its register."""
        return self._write(text, self.lines, len(self._loops))

    def _write(self, text: str, lines: Lines, level: int) -> str:
        self._count += 1
        register = f"%v{self._count}"
        self._levels[register] = level
        lines.append(f"  {register} = {text}{self.note}")
        return register

    def pure(self, text: str, reads: bool = False) -> str:
        """The same as :meth:`op`, for instructions without effects.  One that ``reads`` memory stays behind its
        conditions."""
        register = self._known.get(text)
        if register is None:
            level, levels = self._guard if reads else 0, self._levels
            for operand in _REGISTER.findall(text):
                found = levels.get(operand, 0)
                if found > level:
                    level = found
            lines, scope = self._around(level)
            register = self._known[text] = self._write(text, lines, level)
            scope.append(text)
        return register

    def once(self, key: Hashable, write: Callable[[], str]) -> str:
        """The register that ``write`` gives, found again by ``key`` for as long as it is visible."""
        register = self._known.get(key)
        if register is None:
            register = self._known[key] = write()
            self._around(self.level(register))[1].append(key)
        return register

    def _around(self, level: int) -> tuple[Lines, list[Hashable]]:
        """The place where what so many loops are around is written, and its scope."""
        return (self.lines, self._scopes[-1]) if level == len(self._loops) else self._loops[level]

    def level(self, register: str) -> int:
        """The number of loops that a register needs around it; 0 for a literal."""
        return self._levels.get(register, 0)

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}{self.note}")

    def declare(self, symbol: str, text: str) -> None:
        self.declarations.setdefault(symbol, text)

    def alloca(self, element: str, count: int) -> str:
        self._count += 1
        register = f"%a{self._count}"
        self.allocas.append(f"  {register} = alloca [{max(count, 1)} x {element}], align 64")
        return register

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, then: str, orelse: str, rare: bool | None = None) -> None:
        """``rare``: whether to ``then`` hardly ever or nearly always, so that LLVM keeps registers for what is run."""
        weighed = "" if rare is None else self._weighed(*_ODDS[rare])
        self.do(f"br i1 {condition}, label %{then}, label %{orelse}{weighed}")

    def _back(self, trips: int) -> str:
        return self._weighed(f"!{_TRIPS + trips}", trips - 1, 1)

    def _weighed(self, node: str, then: int, orelse: int) -> str:
        """A branch's weights, if it has any."""
        if then <= 0:
            return ""
        self.declare(node, f'{node} = !{{!"branch_weights", i32 {then}, i32 {orelse}}}')
        return f", !prof {node}"

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A block of its own, behind a condition: registers written inside are not visible after it."""
        outer = self._guard
        self._guard = len(self._loops)
        self._scopes.append([])
        yield
        self._forget(len(self._scopes) - 1)
        self._guard = outer

    def _forget(self, scopes: int, known: int | None = None) -> None:
        """What was written in the scopes from that number on, and in the last one left from ``known`` on."""
        gone = self._scopes[scopes:]
        del self._scopes[scopes:]
        if known is not None:
            gone.append(self._scopes[-1][known:])
            del self._scopes[-1][known:]
        for text in itertools.chain(*gone):
            del self._known[text]

    def save(self) -> Saved:
        scopes = len(self._scopes), len(self._scopes[-1])
        return Saved(len(self.lines), len(self._loops), *scopes, self._guard, self.block)

    def restore(self, saved: Saved) -> None:
        """What was written before loops that are around the attempt stays: nothing is wrong with it."""
        del self.lines[saved.lines :], self._loops[saved.loops :]
        self._forget(saved.scopes, saved.known)
        self._guard, self.block = saved.guard, saved.block

    @contextmanager
    def when(self, condition: str, rare: bool | None = None) -> Iterator[None]:
        """What is written inside runs where the ``i1`` holds; ``rare``: whether hardly ever or nearly always."""
        inside, after = self.name("then"), self.name("end")
        self.branch(condition, inside, after, rare)
        self.label(inside)
        with self.scope():
            yield
        self.jump(after)
        self.label(after)

    @contextmanager
    def counted(self, start: str, stop: str, trips: int = 0) -> Iterator[str]:
        """A loop from ``start`` below ``stop`` that runs at least once (the caller guards); yields the counter.
        ``trips``: LLVM is told how many there are, for it takes others for hot."""
        before, head, after = self.block, self.name("loop"), self.name("done")
        register, following = f"%{self.name('i')}", f"%{self.name('n')}"
        self._loops.append(([], self._scopes[-1]))
        self._scopes.append([])
        self._levels[register] = len(self._loops)
        self.lines.append(self._loops[-1][0])
        self.jump(head)
        self.label(head)
        phi = len(self.lines)
        self.lines.append("")
        yield register
        self.lines[phi] = f"  {register} = phi i64 [ {start}, %{before} ], [ {following}, %{self.block} ]"
        self._forget(len(self._scopes) - 1)
        self._loops.pop()
        self.do(f"{following} = add nuw nsw i64 {register}, 1")
        more = self.op(f"icmp ne i64 {following}, {stop}")
        self.do(f"br i1 {more}, label %{head}, label %{after}{self._back(min(trips, _MOST_TRIPS))}")
        self.label(after)

    @contextmanager
    def repeated(self, asks: Callable[[], str]) -> Iterator[None]:
        """A loop that runs for as long as the ``i1`` that ``asks`` writes holds."""
        head, inside, after = self.name("ask"), self.name("again"), self.name("end")
        self._loops.append(([], self._scopes[-1]))
        self._scopes.append([])
        self.lines.append(self._loops[-1][0])
        self.jump(head)
        self.label(head)
        self.branch(asks(), inside, after)
        self.label(inside)
        yield
        self.jump(head)
        self._forget(len(self._scopes) - 1)
        self._loops.pop()
        self.label(after)


def flattened(lines: Lines) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from flattened(line)


# --- what is known at a point of the kernel -------------------------------------------------------------------


class NotVectorizable(Exception):
    """The body of a vectorized loop cannot run in lanes; it runs as a serial loop instead."""


@dataclass(frozen=True)
class Place:
    """The place where a buffer lives.  ``lanes`` > 0: allocated inside a vectorized loop, one copy per lane,
    interleaved.

    ``padded``: it is the thread's own, and has memory up to the next power of two.
    """

    base: str
    lanes: int = 0
    padded: bool = False


class Frames:
    """Values of expressions: each iteration that is written out, each block and each statement is a frame, entered by
    ``with``.  A value goes into the deepest frame that it depends on, and is forgotten with it.
    """

    def __init__(self) -> None:
        self.values: dict[LoopExpr, Value] = {}
        self.levels: dict[LoopExpr, int] = {}
        self._open: list[list[LoopExpr]] = [[]]
        self.block = 0  # the innermost one that is a block: registers written there are not visible after it

    def __enter__(self) -> None:
        self._open.append([])

    def __exit__(self, *_: object) -> None:
        for key in self._open.pop():
            del self.values[key]

    @property
    def top(self) -> int:
        return len(self._open) - 1

    def remember(self, key: LoopExpr, value: Value, level: int) -> None:
        """``value`` holds while frame ``level`` is open, and in the current block."""
        level = level if level > self.block else self.block
        self.values[key] = value
        self.levels[key] = level
        self._open[level].append(key)

    def bind(self, var: LoopVar, value: Index) -> None:
        """What a loop variable is in this frame."""
        self.remember(var, value, self.top)


@dataclass
class Context:
    """The writer, the loop variables' values, and the lanes and mask of the vectorized loop around, if any."""

    w: Writer
    machine: MachineModel
    read_only: frozenset[Buffer] = frozenset()
    places: dict[Buffer, Place] = field(default_factory=dict)
    lanes: int = 0
    lane: Atom | None = None
    mask: Val | None = None
    frame: Frames = field(default_factory=Frames)
    atoms: dict[str, Atom] = field(default_factory=dict)
    addresses: dict[Load | Store, Affine[LoopExpr]] = field(default_factory=dict)
    dummy: str | None = None

    @contextmanager
    def block(self) -> Iterator[None]:
        """A frame whose registers are not visible after it."""
        outer = self.frame.block
        with self.frame:
            self.frame.block = self.frame.top
            try:
                yield
            finally:
                self.frame.block = outer

    @contextmanager
    def when(self, condition: str, rare: bool | None = None) -> Iterator[None]:
        """What is written inside runs where the ``i1`` holds; ``rare``: whether hardly ever or nearly always."""
        with self.w.when(condition, rare), self.block():
            yield

    @contextmanager
    def counted(self, start: str, stop: str, bounds: Range, trips: int = 0) -> Iterator[Index]:
        """A loop; see :meth:`Writer.counted`."""
        with self.w.counted(start, stop, trips) as counter, self.block():
            yield Affine.of(Atom(counter, bounds))

    @contextmanager
    def in_lanes(self, lanes: int) -> Iterator[Index]:
        """Inside, everything runs in ``lanes`` lanes; yields the lane's number.  One lane is none."""
        assert self.lane is None and self.mask is None
        if lanes == 1:
            yield Affine(0)
            return
        self.lanes, self.lane = lanes, Atom("", Range(0, lanes - 1))
        try:
            yield Affine.of(self.lane)
        finally:
            self.lanes, self.lane, self.mask = 0, None, None

    def step(self, value: Index) -> int:
        """What one lane adds."""
        return 0 if self.lane is None else value.terms.get(self.lane, 0)

    def in_lane(self, value: Index, number: int) -> Index:
        return value if self.lane is None else value.at(self.lane, number)

    def in_order(self, value: Index) -> list[tuple[Atom, int]]:
        """The terms, those of outer loops first: their sums are written before the inner ones."""
        return sorted(value.terms.items(), key=lambda term: self.w.level(term[0].text))

    def symbolic(self, value: Val, reach: Range = INT64) -> Value:
        """A scalar ``int64`` register as an :data:`Index`, anything else as it is."""
        if value.dtype != "int64" or value.lanes:
            return value
        if not value.text.startswith("%"):
            return Affine(int(value.text))
        atom = self.atoms.get(value.text)
        if atom is None:
            atom = self.atoms[value.text] = Atom(value.text, reach if reach.fits else INT64)
        return Affine.of(atom)

    def address(self, access: Load | Store) -> Affine[LoopExpr]:
        """The element's number from the buffer's base; quotients and remainders of one position joined."""
        found = self.addresses.get(access)
        if found is None:
            found = self.addresses[access] = address(access.buffer, access.index)
        return found

    def scratch(self) -> str:
        """Memory that may be read where a lane that reads nothing needs an address."""
        if self.dummy is None:
            self.dummy = self.w.alloca("i8", 64)
        return self.dummy
