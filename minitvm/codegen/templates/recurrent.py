"""Recurrent layers: nn.lstm, nn.gru, nn.rnn.  Sequences of a batch in parallel, the steps of one in order.

The input's projection is done before (one dense over all steps), so a step is: the products of the recurrent weight
with the states, then elementwise gates.  A thread walks through the steps with all of its sequences at once, so that
the weight is read once a step; their states live in memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.problem import TEMPLATES, Config, Problem
from minitvm.codegen.templates.dots import dots_of_one, fits_dots
from minitvm.codegen.templates.panels import Panels
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.codegen.templates.tile import runs
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Alloc, Barrier, Buffer, Const, Kernel, LoopExpr, LoopKind, Stmt, Store, intrin, loop, seq
from minitvm.target import MachineModel

Stores = Sequence[tuple[Buffer, tuple[LoopExpr, ...], LoopExpr]]
"""(buffer, index, value) to store, in order."""


def _sigmoid(x: LoopExpr) -> LoopExpr:
    return intrin("sigmoid", x)


def _tanh(x: LoopExpr) -> LoopExpr:
    return intrin("tanh", x)


@dataclass(frozen=True)
class Recurrence:
    """Buffers and sizes of one problem.

    State and gates are kept in ``dtype``, the accumulator's; what is stored to the results is rounded.
    """

    problem: Problem
    machine: MachineModel

    @property
    def xw(self) -> Buffer:
        """(steps, batch, gates * hidden)."""
        return self.problem.inputs[0]

    @property
    def weight(self) -> Buffer:
        """(gates * hidden, hidden)."""
        return self.problem.inputs[1]

    @property
    def y(self) -> Buffer:
        """(steps, batch, hidden)."""
        return self.problem.output

    @property
    def dtype(self) -> str:
        return self.problem.accumulator

    @property
    def steps(self) -> int:
        return self.xw.shape[0]

    @property
    def batch(self) -> int:
        return self.xw.shape[1]

    @property
    def hidden(self) -> int:
        return self.weight.shape[1]

    @property
    def reverse(self) -> bool:
        return bool(self.problem.op.attributes().get("reverse", False))

    @property
    def together(self) -> int:
        """Sequences that one thread walks with."""
        return max(1, -(-self.batch // self.machine.threads))

    def read(self, buffer: Buffer, *index: LoopExpr) -> LoopExpr:
        """An element of an input."""
        return buffer[index].astype(self.dtype)

    def kernel(self, weights: Iterable[Weights], body: Callable[[Walk], Stmt]) -> Kernel:
        """``body`` for all sequences, after the weights are where they are wanted."""
        packed = [w.panels for w in weights if w.panels is not None]
        parts = runs(self.batch, self.together)
        work = [
            loop(part.count, lambda t, p=part: body(Walk(self, p.start(t), p.size)), LoopKind.PARALLEL, name="b")  # type: ignore[misc]
            for part in parts
        ]
        whole = seq(*(p.fill() for p in packed), Barrier() if packed else None, *work)
        for panels in packed:
            whole = Alloc(panels.buffer, whole)
        problem = self.problem
        return Kernel(problem.op.name, (*problem.inputs, *problem.outputs), whole, results=len(problem.outputs))


@dataclass(frozen=True)
class Weights:
    """The recurrent weight of ``count`` gates from ``first`` on, as it is or in panels."""

    r: Recurrence
    first: int
    count: int

    @cached_property
    def panels(self) -> Panels | None:
        """``None`` where the products are dot products with the weight's rows."""
        state = Buffer("state", (self.r.together, self.r.hidden), self.r.dtype)
        gates = Buffer("gates", (self.r.together, (self.first + self.count) * self.r.hidden), self.r.dtype)
        product = self._product(state, gates)
        if fits_dots(product, self.r.machine, self.r.steps * self.r.batch // self.r.together):
            return None
        return Panels.of(product.right, self.r.machine.lanes(self.r.dtype), self.r.dtype, 1)

    def _product(self, state: Buffer, gates: Buffer) -> Product:
        columns = self.first * self.r.hidden, self.count * self.r.hidden
        return Product(
            Matrix(state), Matrix(self.r.weight, True).part(*columns), Matrix(gates).part(*columns), self.r.dtype
        )

    def times(self, state: Buffer, gates: Buffer) -> Stmt:
        """``gates[b, g * hidden + j] = sum over k of state[b, k] * weight[g * hidden + j, k]``."""
        product = self._product(state, gates)
        if self.panels is None:
            return dots_of_one(product, Const(0), self.r.machine)
        return self.panels.gemm(product).one(Const(0), self.r.machine)


@dataclass(frozen=True)
class Walk:
    """``count`` sequences from ``first`` on, through all steps."""

    r: Recurrence
    first: LoopExpr
    count: int

    def memory(self, name: str, columns: int) -> Buffer:
        return Buffer(name, (self.count, columns), self.r.dtype, "shared")

    def units(self, element: Callable[[LoopExpr, LoopExpr, LoopExpr], Stores]) -> Stmt:
        """Every hidden unit of every sequence, in vectors; ``element(b, i, j)``: unit ``j`` of sequence ``b``, the
        walk's ``i``-th."""
        lanes = self.r.machine.lanes(self.r.dtype)
        whole, rest = divmod(self.r.hidden, lanes)

        def stores(i: LoopExpr, j: LoopExpr) -> Stmt:
            return seq(*(Store(b, at, v.astype(b.dtype)) for b, at, v in element(self.first + i, i, j)))

        def vector(i: LoopExpr, start: LoopExpr, width: int) -> Stmt:
            return loop(width, lambda lane: stores(i, start + lane), LoopKind.VECTORIZED, name="lane")

        def sequence(i: LoopExpr) -> Stmt:
            vectors = loop(whole, lambda v: vector(i, v * lanes, lanes), name="v") if whole else None
            return seq(vectors, vector(i, Const(whole * lanes), rest) if rest else None)

        return loop(self.count, sequence, name="i")

    def steps(self, memory: Sequence[Buffer], before: Stmt, step: Callable[[LoopExpr], Stmt], after: Stmt) -> Stmt:
        """``before``, every ``step(t)`` in order, ``after``."""

        def at(t: LoopExpr) -> Stmt:
            return step(self.r.steps - 1 - t if self.r.reverse else t)

        body: Stmt = seq(before, loop(self.r.steps, at, name="t"), after)
        for buffer in reversed(memory):
            body = Alloc(buffer, body)
        return body


@TEMPLATES.register("llvm", "nn.lstm")
def lstm(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Gates in ONNX's order i, o, f, c; with peephole weights (i, o, f) the gates see the cell too."""
    if (refusal := problem.not_floats) is not None:
        return refusal
    r = Recurrence(problem, machine)
    h0, c0, *peephole = problem.inputs[2:]
    _, last_h, last_c = problem.outputs
    weights = Weights(r, 0, 4)

    def body(walk: Walk) -> Stmt:
        h, c, gates = walk.memory("h", r.hidden), walk.memory("c", r.hidden), walk.memory("gates", 4 * r.hidden)

        def step(t: LoopExpr) -> Stmt:
            def gate(g: int, b: LoopExpr, i: LoopExpr, j: LoopExpr) -> LoopExpr:
                total = r.read(r.xw, t, b, j + g * r.hidden) + gates[i, j + g * r.hidden]
                return total + r.read(peephole[0], j + g * r.hidden) * c[i, j] if peephole and g < 3 else total

            def cell(*at: LoopExpr) -> Stores:
                _, i, j = at
                update = _sigmoid(gate(2, *at)) * c[i, j] + _sigmoid(gate(0, *at)) * _tanh(gate(3, *at))
                return [(c, (i, j), update)]

            def output(*at: LoopExpr) -> Stores:
                b, i, j = at
                return [(h, (i, j), _sigmoid(gate(1, *at)) * _tanh(c[i, j])), (r.y, (t, b, j), h[i, j])]

            return seq(weights.times(h, gates), walk.units(cell), walk.units(output))

        before = walk.units(lambda b, i, j: [(h, (i, j), r.read(h0, b, j)), (c, (i, j), r.read(c0, b, j))])
        after = walk.units(lambda b, i, j: [(last_h, (b, j), h[i, j]), (last_c, (b, j), c[i, j])])
        return walk.steps((h, c, gates), before, step, after)

    return r.kernel([weights], body)


@TEMPLATES.register("llvm", "nn.gru")
def gru(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Gates in ONNX's order z, r, h; the recurrent bias of h is inside or outside of the reset."""
    if (refusal := problem.not_floats) is not None:
        return refusal
    r = Recurrence(problem, machine)
    h0, last_h = problem.inputs[3], problem.outputs[1]
    inside = bool(problem.op.attributes()["linear_before_reset"])
    weights = [Weights(r, 0, 3)] if inside else [Weights(r, 0, 2), Weights(r, 2, 1)]

    def body(walk: Walk) -> Stmt:
        h, gates, reset = walk.memory("h", r.hidden), walk.memory("gates", 3 * r.hidden), walk.memory("reset", r.hidden)

        def step(t: LoopExpr) -> Stmt:
            gate = _GruGates(r, t, gates)

            def output(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
                z = _sigmoid(gate.total(0, b, i, j))
                value = (1.0 - z) * gate.candidate(b, i, j, inside) + z * h[i, j]
                return [(h, (i, j), value), (r.y, (t, b, j), h[i, j])]

            if inside:
                return seq(weights[0].times(h, gates), walk.units(output))
            scaled = walk.units(lambda b, i, j: [(reset, (i, j), _sigmoid(gate.total(1, b, i, j)) * h[i, j])])
            return seq(weights[0].times(h, gates), scaled, weights[1].times(reset, gates), walk.units(output))

        before = walk.units(lambda b, i, j: [(h, (i, j), r.read(h0, b, j))])
        after = walk.units(lambda b, i, j: [(last_h, (b, j), h[i, j])])
        return walk.steps((h, gates) if inside else (h, gates, reset), before, step, after)

    return r.kernel(weights, body)


@dataclass(frozen=True)
class _GruGates:
    r: Recurrence
    t: LoopExpr
    gates: Buffer

    def recurrent(self, g: int, i: LoopExpr, j: LoopExpr) -> LoopExpr:
        column = j + g * self.r.hidden
        return self.gates[i, column] + self.r.read(self.r.problem.inputs[2], column)

    def total(self, g: int, b: LoopExpr, i: LoopExpr, j: LoopExpr) -> LoopExpr:
        return self.r.read(self.r.xw, self.t, b, j + g * self.r.hidden) + self.recurrent(g, i, j)

    def candidate(self, b: LoopExpr, i: LoopExpr, j: LoopExpr, inside: bool) -> LoopExpr:
        recurrent = self.recurrent(2, i, j)
        if inside:
            recurrent = _sigmoid(self.total(1, b, i, j)) * recurrent
        return _tanh(self.r.read(self.r.xw, self.t, b, j + 2 * self.r.hidden) + recurrent)


@TEMPLATES.register("llvm", "nn.rnn")
def rnn(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """``h = tanh(xw + R h)``."""
    if (refusal := problem.not_floats) is not None:
        return refusal
    r = Recurrence(problem, machine)
    h0, last_h = problem.inputs[2], problem.outputs[1]
    weights = Weights(r, 0, 1)

    def body(walk: Walk) -> Stmt:
        h, gates = walk.memory("h", r.hidden), walk.memory("gates", r.hidden)

        def step(t: LoopExpr) -> Stmt:
            def output(b: LoopExpr, i: LoopExpr, j: LoopExpr) -> Stores:
                return [(h, (i, j), _tanh(r.read(r.xw, t, b, j) + gates[i, j])), (r.y, (t, b, j), h[i, j])]

            return seq(weights.times(h, gates), walk.units(output))

        before = walk.units(lambda b, i, j: [(h, (i, j), r.read(h0, b, j))])
        after = walk.units(lambda b, i, j: [(last_h, (b, j), h[i, j])])
        return walk.steps((h, gates), before, step, after)

    return r.kernel([weights], body)
