"""Recurrent layers: nn.lstm, nn.gru, nn.rnn.  Sequences of a batch in parallel, the steps of one in order.

The input's projection is done before (one dense over all steps), so a step is: the products of the recurrent weight
with the states, then elementwise gates.  A thread walks through the steps with all of its sequences at once, so that
the weight is read once a step; their states live in memory of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from minitvm.codegen.loops import in_lanes, in_vectors
from minitvm.codegen.problem import TEMPLATES, Choice, Template
from minitvm.codegen.templates.dots import Dots, dot_operations, fits_dots, panel_operations
from minitvm.codegen.templates.gemm import Gemm
from minitvm.codegen.templates.matmul import DOTS, PACKED
from minitvm.codegen.templates.panels import Panels
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.codegen.templates.tile import runs, tile_choices
from minitvm.ir.loop import Alloc, Barrier, Buffer, Const, LoopExpr, LoopKind, Stmt, Store, intrin, loop, seq

Stores = Iterable[tuple[Buffer, tuple[LoopExpr, ...], LoopExpr]]
"""(buffer, index, value) to store, in order."""

Gates = tuple[int, int]
"""The first of some gates, and how many, whose products are made at once."""


def _sigmoid(x: LoopExpr) -> LoopExpr:
    return intrin("sigmoid", x)


def _tanh(x: LoopExpr) -> LoopExpr:
    return intrin("tanh", x)


class Recurrent(Template):
    """``xw``: (steps, batch, gates * hidden), ``weight``: (gates * hidden, hidden), states (batch, hidden); results are
    those of all steps (steps, batch, hidden) and the last states.

    States and gates are kept in the accumulator's dtype; what is stored to the results is rounded.
    """

    gates: ClassVar[int]
    first_state: ClassVar[int] = 2
    """Which of the inputs it is."""

    @property
    def products(self) -> Sequence[Gates]:
        """The gates, as they are multiplied with the state."""
        return [(0, self.gates)]

    @abstractmethod
    def step(self, walk: Walk, t: LoopExpr) -> Stmt:
        """From the states before step ``t`` to those after it."""

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
    def together(self) -> int:
        """Sequences that one thread walks with."""
        return max(1, -(-self.xw.shape[1] // self.machine.threads))

    def product(self, gates: Gates, state: Buffer, sums: Buffer) -> Product:
        """``sums[b, g * hidden + j] = sum over k of state[b, k] * weight[g * hidden + j, k]``."""
        columns = gates[0] * self.hidden, gates[1] * self.hidden
        weight = Matrix.of(self.problem.inputs[1], True)
        return Product(Matrix.of(state), weight.part(*columns), Matrix.of(sums).part(*columns), self.accumulator)

    def memory(self, name: str, columns: int, rows: int) -> Buffer:
        return Buffer(name, (rows, columns), self.accumulator, "shared")

    def choices(self) -> Sequence[Choice]:
        """The weight as it is, or in panels."""
        state, sums = (self.memory(n, g * self.hidden, self.together) for n, g in (("h", 1), ("gates", self.gates)))
        product = self.product(self.products[0], state, sums)
        steps, batch, _ = self.xw.shape
        times = steps * batch // self.together
        dots, panels = times * dot_operations(product, self.machine), panel_operations(product, self.machine, times)
        why_not = f"{dots:,.0f} vector operations with dot products, {panels:,.0f} with panels"
        fits, blocks = fits_dots(product, self.machine, times), -(-product.columns // self.lanes)
        found = [
            (
                tile_choices(
                    DOTS, product.rows, product.columns, times * -(-product.depth // self.lanes), self.machine
                ),
                fits,
            ),
            (tile_choices(PACKED, product.rows, blocks, times * product.depth, self.machine), not fits),
        ]
        return [replace(c, why_not="" if taken else why_not) for choices, taken in found for c in choices]

    def loops(self, choice: Choice) -> Stmt:
        """All sequences, after the weights are where they are wanted."""
        weight = Matrix.of(self.problem.inputs[1], True)
        panels = {
            (first, count): Panels.of(
                weight.part(first * self.hidden, count * self.hidden), self.lanes, self.accumulator
            )
            for first, count in (self.products if choice.scheme == PACKED else ())
        }

        def sequences(start: LoopExpr, count: int) -> Stmt:
            return Walk(self, choice, panels, start, count).loops()

        work = [run.over(sequences, LoopKind.PARALLEL, "b") for run in runs(self.xw.shape[1], self.together)]
        whole = seq(*(p.fill() for p in panels.values()), Barrier() if panels else None, *work)
        for p in panels.values():
            whole = Alloc(p.buffer, whole)
        return whole


@dataclass(frozen=True)
class Walk:
    """``count`` sequences from ``first`` on, through all steps, by one thread."""

    layer: Recurrent
    choice: Choice
    panels: Mapping[Gates, Panels]
    first: LoopExpr
    count: int

    def memory(self, name: str, columns: int) -> Buffer:
        return self.layer.memory(name, columns, self.count)

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

    def read(self, buffer: Buffer, *index: LoopExpr) -> LoopExpr:
        """An element of an input."""
        return buffer[index].astype(self.layer.accumulator)

    def times(self, gates: Gates, state: Buffer) -> Stmt:
        """Products of a state with the weight of some gates."""
        layer, product = self.layer, self.layer.product(gates, state, self.gates)
        if gates in self.panels:
            return Gemm(self.panels[gates].times(product), self.choice.tile, layer.lanes).one(Const(0))
        return Dots.of(product, self.choice.tile, layer.machine).one(Const(0))

    def units(self, element: Callable[[LoopExpr, LoopExpr, LoopExpr], Stores]) -> Stmt:
        """Every hidden unit of every sequence, in vectors; ``element(b, i, j)``: unit ``j`` of sequence ``b``, the
        walk's ``i``-th."""

        def stores(i: LoopExpr, j: LoopExpr) -> Stmt:
            return seq(*(Store(b, at, v.astype(b.dtype)) for b, at, v in element(self.first + i, i, j)))

        def vector(i: LoopExpr, start: LoopExpr, width: int) -> Stmt:
            return in_lanes(width, lambda lane: stores(i, start + lane))

        layer = self.layer
        return loop(self.count, lambda i: in_vectors(layer.hidden, layer.lanes, lambda *at: vector(i, *at)), name="i")

    def loops(self) -> Stmt:
        layer, problem = self.layer, self.layer.problem
        last = problem.outputs[1:]
        given = problem.inputs[layer.first_state :][: len(last)]

        def at(t: LoopExpr) -> Stmt:
            return layer.step(self, layer.xw.shape[0] - 1 - t if layer.attribute("reverse") else t)

        states = list(zip(self.states, given, last, strict=True))
        before = self.units(lambda b, i, j: [(s, (i, j), self.read(g, b, j)) for s, g, _ in states])
        after = self.units(lambda b, i, j: [(o, (b, j), s[i, j]) for s, _, o in states])
        body: Stmt = seq(before, loop(layer.xw.shape[0], at, name="t"), after)
        for buffer in (*([self.reset] if len(layer.products) > 1 else []), self.gates, *reversed(self.states)):
            body = Alloc(buffer, body)
        return body


@TEMPLATES.register("llvm", "nn.lstm")
class Lstm(Recurrent):
    """Gates in ONNX's order i, o, f, c; with peephole weights (i, o, f) the gates see the cell too."""

    gates = 4

    def step(self, walk: Walk, t: LoopExpr) -> Stmt:
        (h, c), peephole = walk.states, self.problem.inputs[4:]

        def gate(g: int, b: LoopExpr, i: LoopExpr, j: LoopExpr) -> LoopExpr:
            column = j + g * self.hidden
            total = walk.read(self.xw, t, b, column) + walk.gates[i, column]
            return total + walk.read(peephole[0], column) * c[i, j] if peephole and g < 3 else total

        def cell(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
            update = _sigmoid(gate(2, b, i, j)) * c[i, j] + _sigmoid(gate(0, b, i, j)) * _tanh(gate(3, b, i, j))
            yield c, (i, j), update

        def output(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
            yield h, (i, j), _sigmoid(gate(1, b, i, j)) * _tanh(c[i, j])
            yield self.y, (t, b, j), h[i, j]

        return seq(walk.times(self.products[0], h), walk.units(cell), walk.units(output))


@TEMPLATES.register("llvm", "nn.gru")
class Gru(Recurrent):
    """Gates in ONNX's order z, r, h; the recurrent bias of h is inside or outside of the reset."""

    gates, first_state = 3, 3

    @property
    def products(self) -> Sequence[Gates]:
        return [(0, 3)] if self.attribute("linear_before_reset") else [(0, 2), (2, 1)]

    def step(self, walk: Walk, t: LoopExpr) -> Stmt:
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

        again = [walk.units(reset), *(walk.times(gates, walk.reset) for gates in then)] if then else []
        return seq(walk.times(first, h), *again, walk.units(output))


@TEMPLATES.register("llvm", "nn.rnn")
class Rnn(Recurrent):
    """``h = tanh(xw + R h)``."""

    gates = 1

    def step(self, walk: Walk, t: LoopExpr) -> Stmt:
        (h,) = walk.states

        def output(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
            yield h, (i, j), _tanh(walk.read(self.xw, t, b, j) + walk.gates[i, j])
            yield self.y, (t, b, j), h[i, j]

        return seq(walk.times(self.products[0], h), walk.units(output))
