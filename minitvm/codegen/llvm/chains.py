"""What follows a tile's sums and is long (an exponential and what is made of it) as a loop over the tile's rows.

Written out it would be most of a kernel's code: forty times the same twenty instructions, which take LLVM longer than
all the rest, and the processor's front end, too.  Sums are in registers, which a loop cannot count through, so they are
kept in memory first: a store and a load beside each chain, where registers would not hold all of them anyway.

And instruction interleaving of iterations that are written out: an instruction of each in turn.  A processor looks a
few hundred instructions ahead.  Of iterations that are long chains each it would see one or two, and wait for their
latencies.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from minitvm.codegen.backend import STACK_LIMIT
from minitvm.codegen.llvm.express import long_chains
from minitvm.codegen.llvm.writer import Lines
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
            if isinstance(node, Load) and loop.var in node.mentions:
                yield node.buffer


# --- instruction interleaving ---------------------------------------------------------------------------------

_TOGETHER = 8  # chains; of more, registers hold too little

_REGISTER = re.compile(r"%v\d+")


def in_turns(pieces: Sequence[Lines]) -> Lines:
    """The text of iterations, a few at a time; as it is where one has blocks of its own."""
    whole: Lines = [line for piece in pieces for line in piece]
    if not all(isinstance(line, str) and line.startswith("  ") and " br " not in line for line in whole):
        return whole
    stores = max(sum(line.startswith("  store ") for line in map(str, piece)) for piece in pieces)
    size = max(1, _TOGETHER // max(1, stores))
    count = -(-len(pieces) // size)
    ends = [len(pieces) * i // count for i in range(count + 1)]
    groups = [pieces[a:b] for a, b in itertools.pairwise(ends)]
    return [line for group in groups for line in _merged([list(map(str, piece)) for piece in group])]


def _merged(pieces: list[list[str]]) -> Lines:
    """An instruction of each in turn, once what it uses is there: a later piece may use registers of an earlier one."""
    missing = {line.split()[0] for piece in pieces for line in piece if " = " in line}
    found: Lines = []
    while any(pieces):
        for piece in pieces:
            if piece and missing.isdisjoint(_REGISTER.findall(piece[0].partition(" = ")[2] or piece[0])):
                line = piece.pop(0)
                missing.discard(line.split()[0])
                found.append(line)
    return found
