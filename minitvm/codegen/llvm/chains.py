"""What follows a tile's sums and is long (an exponential and what is made of it) as a loop over the tile's rows.

Written out it would be most of a kernel's code: forty times the same twenty instructions, which take LLVM longer than
all the rest, and the processor's front end, too.  Sums are in registers, which a loop cannot count through, so they are
kept in memory first: a store and a load beside each chain, where registers would not hold all of them anyway.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from minitvm.codegen.backend import STACK_LIMIT
from minitvm.codegen.llvm.express import long_chains
from minitvm.codegen.loops import bind_vars, redirect, with_memory
from minitvm.ir.loop import (
    Buffer,
    Const,
    For,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Stmt,
    Store,
    allocated,
    as_index,
    map_stmt,
    nest,
    seq,
    stmt_children,
    walk_exprs,
    walk_stmts,
)

_WORTH = 16
"""Chains from which on there are rounds."""
_LEAST, _MOST = 4, 8
"""Chains of one round: a processor has some rounds under way at once, and registers for so many chains."""


def in_rounds(kernel: Kernel) -> Kernel:
    """The kernel with long chains that are written out many times in loops."""
    own = frozenset(allocated(kernel.body))
    found: dict[Stmt, Stmt] = {
        loop: _in_rounds(loop, chains, own) for loop, chains in _outermost(kernel.body, kernel.outputs)
    }
    return replace(kernel, body=map_stmt(kernel.body, on_stmt=lambda stmt: found.get(stmt, stmt))) if found else kernel


def _outermost(stmt: Stmt, results: Sequence[Buffer]) -> Iterator[tuple[For, int]]:
    """Unrolled loops with nothing but long chains below them, as far out as there are; and how many an iteration."""
    chains = 0
    if isinstance(stmt, For) and stmt.kind is LoopKind.UNROLLED:
        chains = long_chains(stmt.body, results)
        if chains:
            yield stmt, chains
    for part in () if chains else stmt_children(stmt):
        yield from _outermost(part, results)


def _in_rounds(loop: For, chains: int, own: frozenset[Buffer]) -> Stmt:
    """The loop in rounds of some iterations each, what is left over written out; itself where that saves nothing."""
    assert isinstance(loop.extent, Const)
    extent = int(loop.extent.value)
    sizes = [n for n in range(1, extent // 2 + 1) if n * chains >= _LEAST and (n == 1 or n * chains <= _MOST)]
    if not sizes or extent * chains < _WORTH:
        return loop
    sums = dict.fromkeys(b for b in _counted_through(loop) if b in own and b.scope == "local" and b.fits(STACK_LIMIT))
    size = min(sizes, key=lambda n: (n + extent % n, -n))
    rounds = extent // size
    kept = {buffer: Buffer(f"{buffer.name}_kept", buffer.shape, buffer.dtype, scope="local") for buffer in sums}
    outer, inner, rest = (LoopVar(f"{loop.var.name}{end}") for end in ("_round", "", "_rest"))
    one = bind_vars(redirect(loop.body, kept), {loop.var: outer * size + inner})
    body = For(outer, as_index(rounds), For(inner, as_index(size), one, LoopKind.UNROLLED))
    over = bind_vars(loop.body, {loop.var: rest + rounds * size})
    left = For(rest, as_index(extent - rounds * size), over, LoopKind.UNROLLED) if extent % size else None
    return with_memory(kept.values(), seq(*(_copied(*pair) for pair in kept.items()), body, left))


def _copied(buffer: Buffer, to: Buffer) -> Stmt:
    *outer, lanes = buffer.shape

    def lines(*at: LoopExpr) -> Stmt:
        return nest([lanes], lambda i: Store(to, (*at, i), Load(buffer, (*at, i))), LoopKind.VECTORIZED)

    return nest(outer, lines, LoopKind.UNROLLED)


def _counted_through(loop: For) -> Iterator[Buffer]:
    """What the chain reads at places that the loop's variable decides."""
    for store in walk_stmts(loop):
        for node in walk_exprs(store.value) if isinstance(store, Store) else ():
            if isinstance(node, Load) and any(part is loop.var for index in node.index for part in walk_exprs(index)):
                yield node.buffer
