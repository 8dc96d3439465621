"""``qnn.lstm``: an LSTM by a state of bytes.  Before each step one thread measures all states, and makes words of them;
products of words are tiles as of any other product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from minitvm.codegen.problem import TEMPLATES, Choice
from minitvm.codegen.templates.matmul import product_choices
from minitvm.codegen.templates.product import Gemm, Matrix, Product
from minitvm.codegen.templates.recurrent import Gates, Lstm, Walk
from minitvm.codegen.templates.tile import Run, pieces, vectors
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Binary, Buffer, Const, Load, LoopExpr, const, intrin, maximum, minimum, select
from minitvm.ir.ops.more.qnn_recurrent import BLOCK, PARTS_OF_WORD

_TYPICAL_STEPS = 32
"""What an open number of steps is taken for."""


@dataclass(frozen=True)
class QuantizedWalk(Walk):
    """All sequences through all steps by one thread, as they share a range."""

    layer: QuantizedLstm

    @cached_property
    def states(self) -> list[Buffer]:
        """The state has zeros behind it where a word has more rows than there are."""
        rows = PARTS_OF_WORD * self.layer.depth
        return [self.memory("h", rows), self.memory("c", self.layer.hidden)]

    @cached_property
    def gates(self) -> Buffer:
        return Buffer("gates", (self.count, self.layer.columns), "int32", "shared")

    @cached_property
    def words(self) -> Buffer:
        return Buffer("words", (self.count, self.layer.depth), "int32", "shared")

    @cached_property
    def edges(self) -> Buffer:
        """The least and the greatest state of each lane."""
        return Buffer("edges", (2, self.layer.lanes), "float32", "shared")

    @cached_property
    def form(self) -> Buffer:
        """The scale and the zero point; before, the least and the greatest."""
        return Buffer("form", (3,), "float32", "shared")

    @property
    def scratch(self) -> list[Buffer]:
        return [self.words, self.edges, self.form]

    def recurrent(self, i: LoopExpr, column: LoopExpr) -> LoopExpr:
        layer, (scale, zero) = self.layer, (self.form[0], self.form[1])
        sums, (_, _, corrections, scales, *_) = self.gates[i, column], layer.problem.inputs
        total = sums - zero.astype("int32") * corrections[0, column]
        if layer.has_zeros:
            total = total - self.gates[i, 4 * layer.hidden] * corrections[1, column]
        return total.astype("float32") * (scale * scales[column])

    def times(self, gates: Gates, state: Buffer, t: LoopExpr) -> None:
        tiles = Gemm(self.layer.product_of(self.words, self.gates), self.choice.tile, self.layer.lanes)
        self._fill_up(state)
        self._measure(state)
        self._levels(state)
        tiles.one(self.code, Const(0), t)

    def _fill_up(self, state: Buffer) -> None:
        """Zeros behind the state."""
        hidden, rows = self.layer.hidden, state.shape[1]
        if rows > hidden:
            with self.code.loop(self.count) as i:
                for j in range(hidden, rows):
                    self.code.store(state, (i, j), const(0, state.dtype))

    def _measure(self, state: Buffer) -> None:
        """The range that holds 0 and all states, in the lanes of a vector, then across them."""
        code, lanes, edges, form = self.code, self.layer.lanes, self.edges, self.form
        zero, (low, high) = const(0, "float32"), (form[0], form[1])
        with code.lanes(lanes) as lane:
            for row in range(2):
                code.store(edges, (row, lane), zero)
        with code.loop(self.count) as i:
            for j in vectors(code, state.shape[1], lanes):
                for row, most in enumerate(_MOST):
                    code.store(edges, (row, j % lanes), most(edges[row, j % lanes], state[i, j]))
        for row in range(2):
            code.store(form, (row,), zero)
        with code.loop(lanes, "lane") as lane:
            for row, most in enumerate(_MOST):
                code.store(form, (row,), most(form[row], edges[row, lane]))
        step = select(Binary("eq", low, high), const(1, "float32"), (high - low) / 255.0)
        point = _within(intrin("round", (zero - low) / form[2]))
        for place, value in ((2, step), (1, point), (0, form[2])):  # what is made of the edges takes their places
            code.store(form, (place,), value)

    def _levels(self, state: Buffer) -> None:
        """Words of the state's levels."""
        depth, (scale, zero) = self.layer.depth, (self.form[0], self.form[1])
        with self.code.loop(self.count) as i:
            for r in vectors(self.code, depth, self.layer.lanes):
                found: LoopExpr = const(0, "int32")
                for part in range(PARTS_OF_WORD):
                    level = _within(intrin("round", state[i, r + part * depth] / scale) + zero).astype("int32")
                    found = found | Binary("shl", level, const(8 * part, "int32"))
                self.code.store(self.words, (i, r), found)


_MOST = (minimum, maximum)


def _within(level: LoopExpr) -> LoopExpr:
    return minimum(maximum(level, 0.0), 255.0)


@TEMPLATES.register("llvm", "qnn.lstm")
class QuantizedLstm(Lstm):
    """``corrections``: sums of the weight's columns, and their zero points where there are any."""

    first_state = 4
    walk = QuantizedWalk

    def refusal(self) -> Declined | None:
        known = all(isinstance(extent, int) for extent in (*self.xw.shape[1:], self.hidden))
        return None if known else Declined("its sequences, or their features, are not known before a run")

    @cached_property
    def hidden(self) -> int:
        return self.problem.outputs[1].shape[1]

    @property
    def depth(self) -> int:
        """Words of a state."""
        return self.problem.inputs[1].shape[1]

    @property
    def has_zeros(self) -> bool:
        return self.problem.inputs[2].shape[0] == 2

    @property
    def columns(self) -> int:
        """The columns of the weight: those of the gates, and one of ones where levels are added up."""
        return 4 * self.hidden + self.has_zeros

    @cached_property
    def walks(self) -> list[Run]:
        return pieces(self.xw.shape[1], 1)

    def product_of(self, words: Buffer, sums: Buffer) -> Product:
        weight = self.problem.inputs[1]

        def at(_: LoopExpr, r: LoopExpr, j: LoopExpr) -> Load:
            return Load(weight, (j // BLOCK, r, j % BLOCK))

        right = Matrix.stored(1, self.depth, self.columns, at, False)
        product = Product(Matrix.of(words), right, Matrix.of(sums), "int32", multiply=self.problem.product)
        return replace(product, panels=right.at)

    def choices(self) -> Sequence[Choice]:
        steps, batch, _ = self.xw.shape
        sizes = {"words": self.depth, "gates": self.columns}
        words, sums = (Buffer(name, (max(1, batch), size), "int32", "shared") for name, size in sizes.items())
        times = steps if isinstance(steps, int) else _TYPICAL_STEPS
        return product_choices(self.product_of(words, sums), self.machine, times)
