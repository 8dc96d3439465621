"""Loops written in the order in which they run: what stands in a ``with`` is in that loop, condition or memory.

    code = LoopBuilder()
    with code.loop(8, "row") as i, code.lanes(16) as lane:
        code.store(out, (i, lane), x[i, lane] * 2)
    code.stmt

As the builders of MLIR and of TVM's TIR have it.  What takes a loop apart, as a reduction of which some steps are
written out, is a generator: its body is written once for every place where it stands (``for k in steps(code, ...)``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from minitvm.ir.dims import Dim
from minitvm.ir.loop.expr import Buffer, Const, Index, LoopExpr, LoopVar, all_of, as_index
from minitvm.ir.loop.stmt import Alloc, For, If, LoopKind, Stmt, seq, store


class LoopBuilder:
    """Statements, and the blocks around the place where the next one goes."""

    def __init__(self) -> None:
        self._blocks: list[list[Stmt]] = [[]]

    @property
    def stmt(self) -> Stmt:
        """All that has been written; every block has to be closed."""
        (written,) = self._blocks
        return seq(*written)

    def emit(self, *stmts: Stmt) -> None:
        """Statements that were made elsewhere."""
        self._blocks[-1] += stmts

    def store(self, buffer: Buffer, index: Sequence[Index], value: LoopExpr) -> None:
        self.emit(store(buffer, index, value))

    @contextmanager
    def block(self, around: Callable[[Stmt], Stmt]) -> Iterator[None]:
        """What is written in here is what ``around`` makes of it."""
        self._blocks.append([])
        yield
        self.emit(around(seq(*self._blocks.pop())))

    @contextmanager
    def loop(self, extent: Index | Dim, name: str = "i", kind: LoopKind = LoopKind.SERIAL) -> Iterator[LoopExpr]:
        var = LoopVar(name)
        with self.block(lambda body: For(var, as_index(extent), body, kind)):
            yield var

    @contextmanager
    def nest(self, extents: Sequence[Index | Dim], names: str = "ijklmnopq") -> Iterator[tuple[LoopExpr, ...]]:
        """A loop for each extent, the first one outermost."""
        with ExitStack() as loops:
            yield tuple(loops.enter_context(self.loop(n, names[d % len(names)])) for d, n in enumerate(extents))

    @contextmanager
    def unrolled(self, values: range, name: str = "u") -> Iterator[LoopExpr]:
        with self.loop(len(values), name, LoopKind.UNROLLED) as i:
            yield i + values.start

    @contextmanager
    def lanes(self, width: int) -> Iterator[LoopExpr]:
        """All at once, in a vector; no loop where there is one."""
        if width == 1:
            yield Const(0)
        else:
            with self.loop(width, "lane", LoopKind.VECTORIZED) as lane:
                yield lane

    @contextmanager
    def when(self, condition: LoopExpr | None) -> Iterator[None]:
        """Code in here runs where a condition holds; ``None`` always does."""
        if condition is None:
            yield
        else:
            with self.block(lambda body: If(condition, body)):
                yield

    def where(self, conditions: Sequence[LoopExpr]) -> AbstractContextManager[None]:
        """Code in here runs where all of them hold."""
        return self.when(all_of(conditions) if conditions else None)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Code in here runs where the condition of the :meth:`when` right before does not hold."""
        before = self._blocks[-1].pop()
        assert isinstance(before, If) and before.orelse is None
        with self.block(lambda body: If(before.condition, before.then, body)):
            yield

    @contextmanager
    def memory(self, *buffers: Buffer) -> Iterator[None]:
        """Buffers that live in here, the first one longest."""
        with ExitStack() as blocks:
            for buffer in buffers:
                blocks.enter_context(self.block(partial(Alloc, buffer)))
            yield
