"""What is known at the point of a kernel where LLVM IR is being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from minitvm.codegen.llvm import arith
from minitvm.codegen.llvm.values import INT64_MAX, INT64_MIN, Affine, Atom, Val, Value, number, of_atom
from minitvm.codegen.llvm.writer import Writer
from minitvm.ir.loop import Buffer, LoopVar
from minitvm.target import MachineModel


class NotVectorizable(Exception):
    """The body of a vectorized loop cannot run in lanes; it runs as a serial loop instead."""


@dataclass(frozen=True)
class Place:
    """Where a buffer lives.  ``lanes`` > 0: allocated inside a vectorized loop, one copy per lane, interleaved."""

    base: str
    lanes: int = 0


@dataclass
class Context:
    """The writer, the loop variables' values, and the lanes and mask of the vectorized loop around, if any."""

    w: Writer
    machine: MachineModel
    env: dict[LoopVar, Affine] = field(default_factory=dict)
    places: dict[Buffer, Place] = field(default_factory=dict)
    lanes: int = 0
    lane: Atom | None = None
    mask: Val | None = None
    memo: dict[int, Value] = field(default_factory=dict)
    trail: list[int] = field(default_factory=list)
    atoms: dict[str, Atom] = field(default_factory=dict)
    dummy: str | None = None

    def remember(self, key: int, value: Value) -> None:
        self.memo[key] = value
        self.trail.append(key)

    @contextmanager
    def statement(self) -> Iterator[None]:
        """Values of expressions found inside are forgotten after it: a store may have changed them."""
        mark = len(self.trail)
        yield
        for key in self.trail[mark:]:
            del self.memo[key]
        del self.trail[mark:]

    @contextmanager
    def masked(self, mask: Val) -> Iterator[None]:
        """Only the lanes of ``mask`` (and of the masks around) do what is written inside."""
        outer = self.mask
        self.mask = mask if outer is None else arith.logic(self.w, "and", outer, mask)
        with self.statement():
            yield
        self.mask = outer

    @contextmanager
    def in_lanes(self, lanes: int) -> Iterator[Atom]:
        """Inside, everything runs in ``lanes`` lanes; yields the lane's number."""
        assert self.lane is None and self.mask is None
        self.lanes, self.lane = lanes, Atom("", 0, lanes - 1, lanes)
        try:
            yield self.lane
        finally:
            self.lanes, self.lane, self.mask = 0, None, None

    def symbolic(self, value: Val, lo: int = INT64_MIN, hi: int = INT64_MAX) -> Value:
        """A scalar ``int64`` register as an :class:`Affine`, anything else as it is."""
        if value.dtype != "int64" or value.lanes:
            return value
        if not value.text.startswith("%"):
            return number(int(value.text))
        atom = self.atoms.get(value.text)
        if atom is None:
            atom = self.atoms[value.text] = Atom(value.text, max(lo, INT64_MIN), min(hi, INT64_MAX))
        return of_atom(atom)

    def scratch(self) -> str:
        """Memory that may be read where a lane that reads nothing needs an address."""
        if self.dummy is None:
            self.dummy = self.w.alloca("i8", 64)
        return self.dummy
