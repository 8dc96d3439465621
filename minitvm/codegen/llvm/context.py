"""What is known at the point of a kernel where LLVM IR is being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from minitvm.codegen.llvm import arith
from minitvm.codegen.llvm.values import Atom, Index, Val, Value
from minitvm.codegen.llvm.writer import Writer
from minitvm.ir.loop import Buffer, Load, LoopExpr, LoopVar, Store
from minitvm.ir.loop.affine import INT64, Affine, Range, address
from minitvm.target import MachineModel


class NotVectorizable(Exception):
    """The body of a vectorized loop cannot run in lanes; it runs as a serial loop instead."""


@dataclass(frozen=True)
class Place:
    """Where a buffer lives.  ``lanes`` > 0: allocated inside a vectorized loop, one copy per lane, interleaved.

    ``padded``: it is the thread's own, and has memory up to the next power of two.
    """

    base: str
    lanes: int = 0
    padded: bool = False


@dataclass
class Context:
    """The writer, the loop variables' values, and the lanes and mask of the vectorized loop around, if any.

    Values of expressions are remembered in *frames*: each binding of a loop variable, each block and each
    statement opens one.  A value goes into the deepest frame that it depends on and is forgotten with it.
    """

    w: Writer
    machine: MachineModel
    read_only: frozenset[Buffer] = frozenset()
    places: dict[Buffer, Place] = field(default_factory=dict)
    lanes: int = 0
    lane: Atom | None = None
    mask: Val | None = None
    memo: dict[LoopExpr, Value] = field(default_factory=dict)
    levels: dict[LoopExpr, int] = field(default_factory=dict)
    frames: list[list[LoopExpr]] = field(default_factory=lambda: [[]])
    block_level: int = 0
    atoms: dict[str, Atom] = field(default_factory=dict)
    addresses: dict[Load | Store, Affine[LoopExpr]] = field(default_factory=dict)
    dummy: str | None = None

    @property
    def top(self) -> int:
        return len(self.frames) - 1

    def remember(self, key: LoopExpr, value: Value, level: int) -> None:
        """``value`` holds while frame ``level`` is open, and in the current block."""
        level = max(level, self.block_level)
        self.memo[key] = value
        self.levels[key] = level
        self.frames[level].append(key)

    @contextmanager
    def statement(self) -> Iterator[None]:
        """A frame: what memory holds may be different after it."""
        self.frames.append([])
        try:
            yield
        finally:
            for key in self.frames.pop():
                del self.memo[key]

    @contextmanager
    def bound(self, var: LoopVar, value: Index) -> Iterator[None]:
        """A frame in which a loop variable has a value."""
        with self.statement():
            self.memo[var] = value
            self.levels[var] = self.top
            self.frames[-1].append(var)
            yield

    @contextmanager
    def block(self) -> Iterator[None]:
        """A frame whose registers are not visible after it."""
        outer = self.block_level
        with self.statement():
            self.block_level = self.top
            try:
                yield
            finally:
                self.block_level = outer

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is written inside runs where the ``i1`` holds."""
        with self.w.when(condition), self.block():
            yield

    @contextmanager
    def counted(self, start: str, stop: str, bounds: Range, plain: bool) -> Iterator[Index]:
        """A loop; see :meth:`Writer.counted`."""
        with self.w.counted(start, stop, plain) as counter, self.block():
            yield Affine.of(Atom(counter, bounds))

    @contextmanager
    def masked(self, mask: Val) -> Iterator[None]:
        """Only the lanes of ``mask`` (and of the masks around) do what is written inside."""
        outer = self.mask
        self.mask = mask if outer is None else arith.logic(self.w, "and", outer, mask)
        with self.statement():
            yield
        self.mask = outer

    @contextmanager
    def in_lanes(self, lanes: int) -> Iterator[Index]:
        """Inside, everything runs in ``lanes`` lanes; yields the lane's number."""
        assert self.lane is None and self.mask is None
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
