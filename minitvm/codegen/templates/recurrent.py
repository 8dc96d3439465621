"""Recurrent layers: nn.lstm, nn.gru, nn.rnn.  Sequences of a batch in parallel, the steps of one in order.

The input's projection is done before (one dense over all steps), so a step is: the products of the recurrent weight
with the state, then elementwise gates.  The state lives in local memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minitvm.codegen.nests import stage_nest
from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.rewrite import redirect
from minitvm.ir.compute import sum_over
from minitvm.ir.loop import Alloc, Buffer, Kernel, LoopExpr, LoopKind, LoopVar, Stmt, Store, intrin, loop, seq
from minitvm.target import MachineModel

_STACK_BYTES = 64 * 1024


def _sigmoid(x: LoopExpr) -> LoopExpr:
    return intrin("sigmoid", x)


def _tanh(x: LoopExpr) -> LoopExpr:
    return intrin("tanh", x)


@dataclass(frozen=True)
class Recurrence:
    """Buffers and sizes of one problem, and the loops they have in common.

    State and gates are kept in ``dtype``, the accumulator's; what is stored to the results is rounded.
    """

    xw: Buffer  # (steps, batch, gates * hidden)
    weight: Buffer  # (gates * hidden, hidden)
    y: Buffer  # (steps, batch, hidden)
    dtype: str
    machine: MachineModel
    reverse: bool

    def read(self, buffer: Buffer, *index: LoopExpr) -> LoopExpr:
        """An element of an input."""
        return buffer[index].astype(self.dtype)

    @property
    def steps(self) -> int:
        return self.xw.shape[0]

    @property
    def batch(self) -> int:
        return self.xw.shape[1]

    @property
    def hidden(self) -> int:
        return self.weight.shape[1]

    def local(self, name: str, *shape: int) -> Buffer:
        return Buffer(name, shape, self.dtype, "local" if 8 * math.prod(shape) <= _STACK_BYTES else "shared")

    def units(self, element: Callable[[LoopExpr], Sequence[tuple[Buffer, tuple[LoopExpr, ...], LoopExpr]]]) -> Stmt:
        """Every hidden unit, in vectors: ``element(j)`` lists (buffer, index, value) to store, in order."""
        lanes = self.machine.lanes(self.dtype)
        whole = self.hidden // lanes

        def stores(j: LoopExpr) -> Stmt:
            return seq(*(Store(b, i, v.astype(b.dtype)) for b, i, v in element(j)))

        vectors = loop(
            whole, lambda v: loop(lanes, lambda k: stores(v * lanes + k), LoopKind.VECTORIZED, name="lane"), name="v"
        )
        rest = self.hidden - whole * lanes
        tail = loop(rest, lambda j: stores(j + whole * lanes), name="tail") if rest else None
        return seq(vectors if whole else None, tail)

    def products(self, out: Buffer, state: Buffer, first_gate: int = 0) -> Stmt:
        """``out[g * hidden + j] = sum over k of weight[(first_gate + g) * hidden + j, k] * state[k]``."""
        j = LoopVar("j")
        row = j + first_gate * self.hidden
        value = sum_over(self.hidden, lambda k: self.weight[row, k].astype(self.dtype) * state[k])
        return stage_nest(out, (j,), value, self.machine, parallel=False)

    def sequence(
        self,
        step: Callable[[LoopExpr, LoopExpr], Stmt],
        before: Callable[[LoopExpr], Stmt],
        after: Callable[[LoopExpr], Stmt],
        memory: Sequence[Buffer],
    ) -> Stmt:
        """``before(b)``, every ``step(t, b)`` in order, ``after(b)``; for each sequence of the batch."""

        def one(b: LoopExpr) -> Stmt:
            def at(t: LoopExpr) -> Stmt:
                return step(self.steps - 1 - t if self.reverse else t, b)

            body: Stmt = seq(before(b), loop(self.steps, at, name="t"), after(b))
            for buffer in reversed(memory):
                body = Alloc(buffer, body)
            return body

        return loop(self.batch, one, LoopKind.PARALLEL, name="b")


def _recurrence(problem: Problem, machine: MachineModel) -> Recurrence | Declined:
    if (refusal := problem.not_floats) is not None:
        return refusal
    xw, weight = problem.inputs[:2]
    reverse = bool(problem.op.attributes().get("reverse", False))
    return Recurrence(xw, weight, problem.outputs[0], problem.accumulator, machine, reverse)


@TEMPLATES.register("llvm", "nn.lstm")
def lstm(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Gates in ONNX's order i, o, f, c; with peephole weights (i, o, f) the gates see the cell too."""
    r = _recurrence(problem, machine)
    if isinstance(r, Declined):
        return r
    h0, c0, *peephole = problem.inputs[2:]
    _, last_h, last_c = problem.outputs
    h, c, gates = r.local("h", r.hidden), r.local("c", r.hidden), r.local("gates", 4 * r.hidden)

    def step(t: LoopExpr, b: LoopExpr) -> Stmt:
        def gate(g: int, j: LoopExpr) -> LoopExpr:
            total = r.read(r.xw, t, b, j + g * r.hidden) + gates[j + g * r.hidden]
            return total + r.read(peephole[0], j + g * r.hidden) * c[j] if peephole and g < 3 else total

        def cell(j: LoopExpr) -> list[tuple[Buffer, tuple[LoopExpr, ...], LoopExpr]]:
            update = _sigmoid(gate(2, j)) * c[j] + _sigmoid(gate(0, j)) * _tanh(gate(3, j))
            return [(c, (j,), update)]

        def output(j: LoopExpr) -> list[tuple[Buffer, tuple[LoopExpr, ...], LoopExpr]]:
            value = _sigmoid(gate(1, j)) * _tanh(c[j])
            return [(h, (j,), value), (r.y, (t, b, j), h[j])]

        return seq(r.products(gates, h), r.units(cell), r.units(output))

    body = r.sequence(
        step,
        lambda b: r.units(lambda j: [(h, (j,), r.read(h0, b, j)), (c, (j,), r.read(c0, b, j))]),
        lambda b: r.units(lambda j: [(last_h, (b, j), h[j]), (last_c, (b, j), c[j])]),
        (h, c, gates),
    )
    return Kernel(problem.op.name, (*problem.inputs, *problem.outputs), body, results=3)


@TEMPLATES.register("llvm", "nn.gru")
def gru(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Gates in ONNX's order z, r, h; the recurrent bias of h is inside or outside of the reset."""
    r = _recurrence(problem, machine)
    if isinstance(r, Declined):
        return r
    bias, h0 = problem.inputs[2:4]
    last_h = problem.outputs[1]
    inside = bool(problem.op.attributes()["linear_before_reset"])
    h, gates, reset = r.local("h", r.hidden), r.local("gates", 3 * r.hidden), r.local("reset", r.hidden)
    size = r.hidden

    def step(t: LoopExpr, b: LoopExpr) -> Stmt:
        def gate(g: int, j: LoopExpr) -> LoopExpr:
            return r.read(r.xw, t, b, j + g * size) + gates[j + g * size] + r.read(bias, j + g * size)

        def candidate(j: LoopExpr) -> LoopExpr:
            recurrent = gates[j + 2 * size] + r.read(bias, j + 2 * size)
            if inside:
                recurrent = _sigmoid(gate(1, j)) * recurrent
            return _tanh(r.read(r.xw, t, b, j + 2 * size) + recurrent)

        def output(j: LoopExpr) -> list[tuple[Buffer, tuple[LoopExpr, ...], LoopExpr]]:
            z = _sigmoid(gate(0, j))
            return [(h, (j,), (1.0 - z) * candidate(j) + z * h[j]), (r.y, (t, b, j), h[j])]

        if inside:
            return seq(r.products(gates, h), r.units(output))
        two, third = _split_gates(gates, size)
        return seq(
            redirect(r.products(two, h), {two: gates}),
            r.units(lambda j: [(reset, (j,), _sigmoid(gate(1, j)) * h[j])]),
            redirect(r.products(third, reset, first_gate=2), {third: gates}, lambda index: (index[0] + 2 * size,)),
            r.units(output),
        )

    body = r.sequence(
        step,
        lambda b: r.units(lambda j: [(h, (j,), r.read(h0, b, j))]),
        lambda b: r.units(lambda j: [(last_h, (b, j), h[j])]),
        (h, gates) if inside else (h, gates, reset),
    )
    return Kernel(problem.op.name, (*problem.inputs, *problem.outputs), body, results=2)


def _split_gates(gates: Buffer, size: int) -> tuple[Buffer, Buffer]:
    return (
        Buffer("two", (2 * size,), gates.dtype, gates.scope),
        Buffer("third", (size,), gates.dtype, gates.scope),
    )


@TEMPLATES.register("llvm", "nn.rnn")
def rnn(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """``h = tanh(xw + R h)``."""
    r = _recurrence(problem, machine)
    if isinstance(r, Declined):
        return r
    h0 = problem.inputs[2]
    last_h = problem.outputs[1]
    h, gates = r.local("h", r.hidden), r.local("gates", r.hidden)

    def step(t: LoopExpr, b: LoopExpr) -> Stmt:
        return seq(
            r.products(gates, h),
            r.units(lambda j: [(h, (j,), _tanh(r.read(r.xw, t, b, j) + gates[j])), (r.y, (t, b, j), h[j])]),
        )

    body = r.sequence(
        step,
        lambda b: r.units(lambda j: [(h, (j,), r.read(h0, b, j))]),
        lambda b: r.units(lambda j: [(last_h, (b, j), h[j])]),
        (h, gates),
    )
    return Kernel(problem.op.name, (*problem.inputs, *problem.outputs), body, results=2)
