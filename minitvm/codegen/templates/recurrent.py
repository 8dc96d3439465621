"""Recurrent layers (nn.lstm, nn.gru, nn.rnn): sequences of a batch in parallel, the steps of one in order.

The input's projection is done before (one dense over all steps), so a step is: the products of the recurrent weight
with the states, then elementwise gates.  A thread walks through the steps with all of its sequences at once, so that
the weight is read once a step; their states live in memory of its own.  Or, where sequences are fewer than threads, all
threads walk together: each has a part of the weight in its caches, and a barrier stands after everything they share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

from minitvm.codegen.loops import parallel
from minitvm.codegen.problem import TEMPLATES, Choice, Template
from minitvm.codegen.templates.matmul import DOTS, PACKED, Panels, product_choices
from minitvm.codegen.templates.product import Dots, Gemm, Matrix, Product
from minitvm.codegen.templates.tile import Run, over_all, pieces, vectors
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Barrier, Buffer, Const, LoopExpr, LoopKind, Stmt, intrin
from minitvm.ir.loop.builder import LoopBuilder

Stores = Iterable[tuple[Buffer, tuple[LoopExpr, ...], LoopExpr]]
"""(buffer, index, value) to store, in order."""

Gates = tuple[int, int]
"""The first of some gates, and how many, whose products are made at once."""


_STEPS = 32
"""What an open number of steps is taken for where packing the weight is weighed."""

ALL_THREADS = ", steps by all threads"

_sigmoid, _tanh = partial(intrin, "sigmoid"), partial(intrin, "tanh")


class Recurrent(Template):
    """``xw``: (steps, batch, gates * hidden), ``weight``: (gates * hidden, hidden), states (batch, hidden); results are
    those of all steps (steps, batch, hidden) and the last states.

    States and gates are kept in the accumulator's dtype; what is stored to the results is rounded.
    """

    symbolic = True
    gates: ClassVar[int]
    first_state: ClassVar[int] = 2
    """Which of the inputs it is."""
    walk: ClassVar[type[Walk]]

    def refusal(self) -> Declined | None:
        """Steps may be as many as a run says; how wide a state is decides about tiles."""
        known = all(isinstance(extent, int) for extent in (*self.xw.shape[1:], self.hidden))
        return super().refusal() if known else Declined("its sequences, or their features, are not known before a run")

    @property
    def products(self) -> Sequence[Gates]:
        """The gates, as they are multiplied with the state."""
        return [(0, self.gates)]

    @abstractmethod
    def step(self, walk: Walk, t: LoopExpr) -> None:
        """Computes the states after step ``t`` from those before it."""

    @cached_property
    def xw(self) -> Buffer:
        return self.problem.inputs[0]

    @cached_property
    def y(self) -> Buffer:
        return self.problem.outputs[0]

    @cached_property
    def hidden(self) -> int:
        return self.problem.inputs[1].shape[1]

    def attribute(self, name: str) -> bool:
        return bool(self.problem.op.attributes().get(name, False))

    @cached_property
    def walks(self) -> list[Run]:
        """The sequences that a thread walks with, for every thread that there are some for."""
        batch = self.xw.shape[1]
        return pieces(batch, min(batch, self.machine.threads))

    @property
    def together(self) -> int:
        """Most sequences that one thread walks with."""
        return max((run.size for run in self.walks), default=1)

    def weight(self, gates: Gates) -> Matrix:
        """The weight of some gates: (hidden, gates * hidden)."""
        return self.part(Matrix.of(self.problem.inputs[1], True), gates)

    def part(self, matrix: Matrix, gates: Gates) -> Matrix:
        """The columns of some gates."""
        return matrix.part(gates[0] * self.hidden, gates[1] * self.hidden)

    def product(self, gates: Gates, state: Buffer, sums: Buffer) -> Product:
        """``sums[b, g * hidden + j] = sum over k of state[b, k] * weight[g * hidden + j, k]``."""
        return Product(Matrix.of(state), self.weight(gates), self.part(Matrix.of(sums), gates), self.accumulator)

    def memory(self, name: str, columns: int, rows: int, scope: str = "shared") -> Buffer:
        return Buffer(name, (rows, columns), self.accumulator, scope)

    def choices(self) -> Sequence[Choice]:
        """The weight as it is, or in panels; sequences by a thread each, or by all where that leaves some idle."""
        batch, threads = self.xw.shape[1], self.machine.threads
        idle = threads / len(self.walks) if self.walks else 1
        apart = [replace(c, cycles=c.cycles * idle) for c in self._choices(self.together)]
        return [*apart, *map(self._by_all, self._choices(batch))] if 0 < batch < threads else apart

    def _choices(self, together: int) -> list[Choice]:
        """Of so many sequences at a time."""
        state, sums = (self.memory(n, g * self.hidden, together) for n, g in (("h", 1), ("gates", self.gates)))
        product, (steps, batch, _) = self.product(self.products[0], state, sums), self.xw.shape
        times = (steps if isinstance(steps, int) else _STEPS) * batch // together
        found = product_choices(product, self.machine, times, in_place=False)
        return [replace(c, cycles=c.cycles * self.gates / self.products[0][1]) for c in found]

    def _by_all(self, c: Choice) -> Choice:
        steps, threads = self.xw.shape[0], self.machine.threads
        columns = self.gates * self.hidden // (1 if c.scheme == DOTS else self.lanes)
        tiles = max(1, columns // c.tile.blocks)
        idle = -(-tiles // threads) * threads / tiles
        meetings = 2 * len(self.products) * (steps if isinstance(steps, int) else _STEPS)
        return replace(c, scheme=c.scheme + ALL_THREADS, cycles=c.cycles * idle + meetings * CPU.barrier * threads)

    def loops(self, choice: Choice) -> Stmt:
        """All sequences, after the weights are where they are wanted."""
        code, packed = LoopBuilder(), self.products if choice.scheme.startswith(PACKED) else ()
        panels = {gates: Panels.of(self.weight(gates), self.lanes, self.accumulator) for gates in packed}
        with code.memory(*(p.buffer for p in panels.values())):
            for p in panels.values():
                p.fill(code, self.machine)
            if panels:
                code.emit(Barrier())
            if choice.scheme.endswith(ALL_THREADS):
                self.walk(code, self, choice, panels, Const(0), self.xw.shape[1], by_all=True).loops()
            elif self.walks:
                for start, count in over_all(code, self.walks, "b", LoopKind.PARALLEL):
                    self.walk(code, self, choice, panels, start, count).loops()
        return code.stmt


@dataclass(frozen=True)
class Walk:
    """``count`` sequences from ``first`` on, through all steps, by one thread or by all."""

    code: LoopBuilder
    layer: Recurrent
    choice: Choice
    panels: Mapping[Gates, Panels]
    first: LoopExpr
    count: int
    by_all: bool = False

    def memory(self, name: str, columns: int) -> Buffer:
        return self.layer.memory(name, columns, self.count, "global" if self.by_all else "shared")

    @cached_property
    def states(self) -> list[Buffer]:
        return [self.memory(name, self.layer.hidden) for name in ("h", "c")[: len(self.layer.problem.outputs) - 1]]

    @cached_property
    def gates(self) -> Buffer:
        """Products of the weight with the state."""
        return self.memory("gates", self.layer.gates * self.layer.hidden)

    @cached_property
    def reset(self) -> Buffer:
        """The state behind a reset gate."""
        return self.memory("reset", self.layer.hidden)

    @property
    def scratch(self) -> list[Buffer]:
        """Memory beside states and gates."""
        return [self.reset] if len(self.layer.products) > 1 else []

    def recurrent(self, i: LoopExpr, column: LoopExpr) -> LoopExpr:
        """The product of a gate's column of the weight with the state of sequence ``i``."""
        return self.gates[i, column]

    def read(self, buffer: Buffer, *index: LoopExpr) -> LoopExpr:
        """An element of an input."""
        return buffer[index].astype(self.layer.accumulator)

    def times(self, gates: Gates, state: Buffer, t: LoopExpr) -> None:
        """Products of a state with the weight of some gates, in step ``t``."""
        layer, product = self.layer, self.layer.product(gates, state, self.gates)
        gemm: Gemm = Dots.of(product, self.choice.tile, layer.machine)
        if gates in self.panels:
            gemm = Gemm(self.panels[gates].times(product), self.choice.tile, layer.lanes)
        if self.by_all:
            gemm.nest(self.code, layer.machine)
            self.code.emit(Barrier())
        else:
            gemm.one(self.code, Const(0), t)

    def units(self, element: Callable[[LoopExpr, LoopExpr, LoopExpr], Stores]) -> None:
        """Every hidden unit of every sequence, in vectors; ``element(b, i, j)``: unit ``j`` of sequence ``b``, the
        walk's ``i``-th."""
        for i, j in self._units_by_all() if self.by_all else self._units():
            for buffer, at, value in element(self.first + i, i, j):
                self.code.store(buffer, at, value.astype(buffer.dtype))
        if self.by_all:
            self.code.emit(Barrier())

    def _units(self) -> Iterator[tuple[LoopExpr, LoopExpr]]:
        with self.code.loop(self.count) as i:
            for j in vectors(self.code, self.layer.hidden, self.layer.lanes):
                yield i, j

    def _units_by_all(self) -> Iterator[tuple[LoopExpr, LoopExpr]]:
        hidden, lanes = self.layer.hidden, self.layer.lanes
        for run in (Run(0, hidden // lanes, lanes), Run(hidden // lanes * lanes, 1, hidden % lanes)):
            if run.count and run.size:
                extents = self.count, run.count
                with parallel(self.code, extents, name="units") as (i, v), self.code.lanes(run.size) as lane:
                    yield i, run.start(v) + lane

    def loops(self) -> None:
        layer, problem = self.layer, self.layer.problem
        last = problem.outputs[1:]
        given = problem.inputs[layer.first_state :][: len(last)]
        states = list(zip(self.states, given, last, strict=True))
        with self.code.memory(*self.states, self.gates, *self.scratch):
            self.units(lambda b, i, j: [(s, (i, j), self.read(g, b, j)) for s, g, _ in states])
            with self.code.loop(layer.xw.shape[0], "t") as t:
                layer.step(self, layer.xw.shape[0] - 1 - t if layer.attribute("reverse") else t)
            self.units(lambda b, i, j: [(o, (b, j), s[i, j]) for s, _, o in states])


Recurrent.walk = Walk


@TEMPLATES.register("llvm", "nn.lstm")
class Lstm(Recurrent):
    """Gates in ONNX's order i, o, f, c; with peephole weights (i, o, f) the gates see the cell too."""

    gates = 4

    def step(self, walk: Walk, t: LoopExpr) -> None:
        (h, c), peephole = walk.states, self.problem.inputs[self.first_state + 2 :]

        def gate(g: int, b: LoopExpr, i: LoopExpr, j: LoopExpr) -> LoopExpr:
            column = j + g * self.hidden
            total = walk.read(self.xw, t, b, column) + walk.recurrent(i, column)
            return total + walk.read(peephole[0], column) * c[i, j] if peephole and g < 3 else total

        def output(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
            yield c, (i, j), _sigmoid(gate(2, b, i, j)) * c[i, j] + _sigmoid(gate(0, b, i, j)) * _tanh(gate(3, b, i, j))
            yield h, (i, j), _sigmoid(gate(1, b, i, j)) * _tanh(c[i, j])
            yield self.y, (t, b, j), h[i, j]

        walk.times(self.products[0], h, t)
        walk.units(output)


@TEMPLATES.register("llvm", "nn.gru")
class Gru(Recurrent):
    """Gates in ONNX's order z, r, h; the recurrent bias of h is inside or outside of the reset."""

    gates, first_state = 3, 3

    @property
    def products(self) -> Sequence[Gates]:
        return [(0, 3)] if self.attribute("linear_before_reset") else [(0, 2), (2, 1)]

    def step(self, walk: Walk, t: LoopExpr) -> None:
        (h,), first, *then = walk.states, *self.products

        def recurrent(g: int, i: LoopExpr, j: LoopExpr) -> LoopExpr:
            column = j + g * self.hidden
            return walk.gates[i, column] + walk.read(self.problem.inputs[2], column)

        def total(g: int, b: LoopExpr, i: LoopExpr, j: LoopExpr) -> LoopExpr:
            return walk.read(self.xw, t, b, j + g * self.hidden) + recurrent(g, i, j)

        def reset(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
            yield walk.reset, (i, j), _sigmoid(total(1, b, i, j)) * h[i, j]

        def output(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
            z, inner = _sigmoid(total(0, b, i, j)), recurrent(2, i, j)
            scaled = inner if then else _sigmoid(total(1, b, i, j)) * inner
            candidate = _tanh(walk.read(self.xw, t, b, j + 2 * self.hidden) + scaled)
            yield h, (i, j), (1.0 - z) * candidate + z * h[i, j]
            yield self.y, (t, b, j), h[i, j]

        walk.times(first, h, t)
        for gates in then:
            walk.units(reset)
            walk.times(gates, walk.reset, t)
        walk.units(output)


@TEMPLATES.register("llvm", "nn.rnn")
class Rnn(Recurrent):
    """``h = tanh(xw + R h)``."""

    gates = 1

    def step(self, walk: Walk, t: LoopExpr) -> None:
        (h,) = walk.states

        def output(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
            yield h, (i, j), _tanh(walk.read(self.xw, t, b, j) + walk.gates[i, j])
            yield self.y, (t, b, j), h[i, j]

        walk.times(self.products[0], h, t)
        walk.units(output)
