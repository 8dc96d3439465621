"""Bound kernels as CUDA C without headers: one ``extern "C" __global__`` function each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.codegen.cuda import spell
from minitvm.codegen.cuda.arrival import Arrival, arrival_of
from minitvm.codegen.cuda.bind import Launch, dynamic_shared, launch_of
from minitvm.codegen.cuda.express import Names, Shared, Writer, flat, identifier
from minitvm.codegen.cuda.resources import blocks_at_least
from minitvm.codegen.cuda.wide import Step, Widening, by_lanes, stores_of
from minitvm.codegen.listing import UNKNOWN, LoopLines
from minitvm.codegen.storage import spell_stored
from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    CopyAsync,
    CopyCommit,
    CopyWait,
    For,
    If,
    Kernel,
    Ldmatrix,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Mma,
    Seq,
    Stmt,
    Store,
    Wgmma,
    WgmmaSync,
    all_of,
    seq,
    stmt_exprs,
    substitute_vars,
)
from minitvm.ir.loop.affine import Range, bounds, counter

_AXES = {
    LoopKind.BLOCK_X: 0, LoopKind.BLOCK_Y: 1, LoopKind.BLOCK_Z: 2,
    LoopKind.THREAD_X: 0, LoopKind.THREAD_Y: 1, LoopKind.THREAD_Z: 2,
}  # fmt: skip


def emit_cuda(*kernels: Kernel) -> str:
    """The source of kernels whose loops are bound (:func:`bind_plain`); launch them as :func:`launch_of` says.

    Parameters are pointers in a kernel's order.  Raises :class:`CompilerError` for loops of the CPU.
    """
    bodies = [body_of(spell_stored(kernel)) for kernel in kernels]
    return "\n".join([*helpers_of(bodies), *(body.function() for body in bodies)])


def helpers_of(bodies: Sequence[Body]) -> list[str]:
    """The functions that they call."""
    used = set[str]().union(*(body.helpers for body in bodies))
    known = [name for name in spell.HELPERS if name in used]
    return [spell.helper(name) + "\n" for name in (*known, *sorted(used.difference(known)))]


def function_name(kernel: Kernel) -> str:
    """The kernel's name as C allows it."""
    return identifier(kernel.name, "k_")


def body_of(kernel: Kernel) -> Body:
    """Written with indices of 32 bits, or of 64 where some index may be larger."""
    body = Body(kernel, "int")
    body.statement(kernel.body, 1)
    if not body.names.fits:
        body = Body(kernel, "long long")
        body.statement(kernel.body, 1)
    return body


class Body:
    def __init__(self, kernel: Kernel, index: str) -> None:
        self.kernel = kernel
        self.launch: Launch = launch_of(kernel)
        self.dynamic, _ = dynamic_shared(kernel)
        self.names = Names(index)
        self.helpers: set[str] = set()
        self.lines: list[str] = []
        self.written: list[tuple[int, int, Stmt]] = []
        """Every statement with its first line and the one behind it; an inner one comes before those around it."""
        self.ranges: dict[LoopVar, Range] = {}
        self.around: list[LoopKind] = []
        self.guarded = False  # inside a thread loop that not all threads of the block enter
        self.private: set[Buffer] = set()
        self.packs: set[Buffer] = set()
        parameters = [self._parameter(b, b in kernel.inputs) for b in kernel.params]
        self.counters = Buffer("counters", (self.launch.counters,), "uint32")
        self.block = LoopKind.BLOCK_X.value  # what the number of a block is
        if self.launch.counters:
            parameters.append(self._parameter(self.counters, False))
        self.parameters = ", ".join(parameters)

    def head(self) -> list[str]:
        spans = self.kernel.spans
        origin = [f"// {', '.join(' '.join(s.split()) for s in spans)}"] if spans else []
        threads = self.launch.threads
        bounds = f"__launch_bounds__({threads}, {blocks_at_least(self.kernel, threads)})"
        arrival = arrival_of(self.kernel)
        cluster = f"__cluster_dims__({arrival.parts}, 1, 1) " if arrival and arrival.together else ""
        head = f'extern "C" __global__ void {cluster}{bounds}'
        align = 1024 if any(buffer.swizzled for buffer in self.dynamic) else 16
        memory = [f"    extern __shared__ __align__({align}) unsigned char dynamic[];"] if self.dynamic else []
        signature = f"{function_name(self.kernel)}({self.parameters})"
        return [*origin, head, signature, "{", *memory]

    def function(self) -> str:
        return "\n".join([*self.head(), *self.lines, "}"]) + "\n"

    def pairs(self, loops: LoopLines) -> list[tuple[str, int]]:
        """The function's lines, each with that of its statement."""
        origins = [UNKNOWN] * len(self.lines)
        for start, stop, stmt in reversed(self.written):
            if loops.of(stmt) != UNKNOWN:
                origins[start:stop] = [loops.of(stmt)] * (stop - start)
        head = [(line, UNKNOWN) for line in self.head()]
        return [*head, *zip(self.lines, origins, strict=True), ("}", UNKNOWN)]

    def _parameter(self, buffer: Buffer, read_only: bool) -> str:
        kind = spell.STORAGE[buffer.dtype]
        return f"{'const ' if read_only else ''}{kind} *__restrict__ {self.names.of(buffer)}"

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # --- statements -------------------------------------------------------------------------------------------

    def statement(self, stmt: Stmt, depth: int) -> None:
        start = len(self.lines)
        self._statement(stmt, depth)
        self.written.append((start, len(self.lines), stmt))

    def _statement(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case Seq(stmts):
                for number, part in enumerate(stmts):
                    if isinstance(part, Arrival):
                        self.arrival(part, seq(*stmts[number + 1 :]), depth)
                        break
                    self.statement(part, depth)
            case For():
                self.loop(stmt, depth)
            case CopyAsync():
                self.copy(stmt, 1, depth)
            case Store():
                self.store(stmt, depth)
            case If(_, then, orelse):
                self.branch(self.values(stmt, depth)[0], then, orelse, depth)
            case Alloc(buffer, body):
                self.alloc(buffer, depth)
                self.statement(body, depth)
            case Mma():
                self.mma(stmt, depth)
            case Ldmatrix():
                self.matrices(stmt, depth)
            case Wgmma():
                self.group_product(stmt, depth)
            case WgmmaSync(what, left):
                self.helpers.add(f"wgmma_{what}")
                self.line(depth, f"wgmma_{what}{f'<{left}>' if what == 'wait' else ''}();")
            case Barrier():
                self.barrier(depth)
            case CopyCommit():
                self.helpers.add("cp_async_commit")
                self.line(depth, "cp_async_commit();")
            case CopyWait(left):
                self.helpers.add("cp_async_wait")
                self.line(depth, f"cp_async_wait<{left}>();")

    def arrival(self, stmt: Arrival, rest: Stmt, depth: int) -> None:
        """All blocks go on when all have arrived; or the last of those that share a counter, in place of each."""
        if stmt.together:
            self.helpers.add("cluster_barrier")
            self.line(depth, "cluster_barrier();")
            self.statement(rest, depth)
            return
        tiles, block, number = self.launch.grid[0] // stmt.parts, self.block, self.names.temporary()
        along = f"blockIdx.y * {tiles} + " * (self.launch.grid[1] > 1)
        counter = f"{self.names.of(self.counters)} + {along}{block} / {stmt.parts}"
        self.helpers.add("last_to_arrive")
        first = f"{block} / {stmt.parts} * {stmt.parts}"
        self.line(depth, f"if (last_to_arrive({stmt.parts}, {counter})) {{")
        self.line(depth + 1, f"for (int {number} = {first}; {number} < {first} + {stmt.parts}; ++{number}) {{")
        self.block = number
        self.statement(rest, depth + 2)
        self.block = block
        self.line(depth + 1, "}")
        self.line(depth, "}")

    def loop(self, stmt: For, depth: int) -> None:
        if stmt.kind is LoopKind.PARALLEL:
            raise CompilerError(
                f"{self.kernel.name}: loop {stmt.var.name} is {stmt.kind.value}, which a GPU has no word for",
                hint="bind it to blocks and threads first: minitvm.codegen.cuda.bind.bind_plain(kernel)",
            )
        extent = self.values(stmt, depth)[0]
        self.ranges[stmt.var] = counter(stmt.extent, self.ranges)
        self.names.met(bounds(stmt.extent, self.ranges))
        if stmt.kind in _AXES:
            self.bound(stmt, depth)
        elif stmt.kind is LoopKind.VECTORIZED:
            self.lanes(stmt, depth)
        else:
            self.counted(stmt, extent, depth)
        self.names.given.pop(stmt.var, None)

    def counted(self, stmt: For, extent: str, depth: int) -> None:
        name = self.names.of(stmt.var)
        if stmt.kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED):
            self.line(depth, "#pragma unroll")
        self.line(depth, f"for ({self.names.index} {name} = 0; {name} < {extent}; ++{name}) {{")
        self.statement(stmt.body, depth + 1)
        self.line(depth, "}")

    # --- lanes of a thread ------------------------------------------------------------------------------------

    def lanes(self, loop: For, depth: int) -> None:
        """Statement by statement for all lanes, with wide accesses; stores lane by lane where there is more to it."""
        stores = stores_of(loop.body)
        if stores is None or self._idle_axes():
            self.counted(loop, self.values(loop, depth)[0], depth)
            return
        assert isinstance(loop.extent, Const)
        widening = Widening(loop.var, loop.extent.value, self.ranges, lambda b: b in self.private)
        for store in stores:
            if isinstance(store, CopyAsync):
                self.copies(loop, store, widening, depth)
                continue
            self.line(depth, "{")
            self.wide_store(loop, store, widening, depth + 1)
            self.line(depth, "}")

    def copies(self, loop: For, store: CopyAsync, widening: Widening, depth: int) -> None:
        """One for all lanes, or one by one."""
        if widening.copied(store) is None:
            self.statement(by_lanes(loop, store), depth)
            return
        *index, value = (substitute_vars(e, {loop.var: Const(0)}) for e in (*store.index, store.value))
        self.copy(CopyAsync(store.buffer, tuple(index), value), widening.lanes, depth)

    def copy(self, stmt: CopyAsync, lanes: int, depth: int) -> None:
        """Writes a copy of so many neighbours from one element on, or of as many zeros."""
        found, nbytes = stmt.source(), lanes * np.dtype(stmt.buffer.dtype).itemsize
        if found is None or nbytes < 4:  # nothing but zeros is left of it; or less than what is copied so
            self.store(stmt, depth)
            return
        source, conditions = found
        target, what, *asked = (
            flat(e, self.ranges)
            for e in (Load(stmt.buffer, stmt.index), source, *([all_of(conditions)] * bool(conditions)))
        )
        assert isinstance(target, Load) and isinstance(what, Load)
        shared, writer = self._writer([*target.index, *what.index, *asked], depth)
        to, start, *real = shared.roots
        places = [writer.element(stmt.buffer, to), writer.element(source.buffer, start)]
        arguments = ", ".join([*(f"&{place}" for place in places), *map(writer.root, real)])
        self.lines += writer.lines
        self.helpers.add("cp_async")
        self.line(depth, f"cp_async<{nbytes}>({arguments});")

    def wide_store(self, loop: For, store: Store, widening: Widening, depth: int) -> None:
        place, found = widening.first(Load(store.buffer, store.index)), widening.of(store.value)
        self.steps(loop, found.steps, depth)
        if place is None:
            self.statement(by_lanes(loop, Store(store.buffer, store.index, found.value)), depth)
            return
        if isinstance(found.value, Load) and found.value.buffer in self.packs:
            whole = found.value.buffer
        else:
            whole = self.declare_pack(widening.pack(store.buffer.dtype), depth)
            self.statement(by_lanes(loop, Store(whole, (loop.var,), found.value)), depth)
        self.line(depth, f"{self.wide(place, whole, depth)} = {self.names.of(whole)};")

    def wide(self, first: Load, pack: Buffer, depth: int) -> str:
        """The memory from an element on that a pack is copied from or to."""
        element = self.place(first, depth)
        constant = "const " if first.buffer in self.kernel.inputs else ""
        return f"*({constant}{_pack_type(pack)} *)&{element}"

    def place(self, load: LoopExpr, depth: int, swizzled: bool = True) -> str:
        """An element in memory, as it stands there."""
        found = flat(load, self.ranges)
        assert isinstance(found, Load)
        shared, writer = self._writer(found.index, depth)
        element = writer.element(found.buffer, shared.roots[0], swizzled)
        self.lines += writer.lines
        return element

    def steps(self, loop: For, steps: Sequence[Step], depth: int) -> None:
        """Fill packs: from memory, or by the side that a condition chooses."""
        for step in steps:
            if step.source is not None:
                self.declare_pack(step.pack, depth, f" = {self.wide(step.source, step.pack, depth)}")
                continue
            self.declare_pack(step.pack, depth)
            assert step.condition is not None
            (condition,) = self.texts([step.condition], depth)
            for head, side in zip((f"if ({condition}) {{", "} else {"), step.sides, strict=True):
                self.line(depth, head)
                self.steps(loop, side.steps, depth + 1)
                self.statement(by_lanes(loop, Store(step.pack, (loop.var,), side.value)), depth + 1)
            self.line(depth, "}")

    def declare_pack(self, pack: Buffer, depth: int, value: str = "") -> Buffer:
        self.private.add(pack)
        self.helpers.add("Pack")
        self.packs.add(pack)
        self.line(depth, f"{_pack_type(pack)} {self.names.of(pack)}{value};")
        return pack

    def bound(self, stmt: For, depth: int) -> None:
        """``blockIdx`` and ``threadIdx``; with a check where other loops of the kind have more iterations."""
        assert isinstance(stmt.extent, Const)
        is_thread = stmt.kind.value.startswith("thread")
        most = (self.launch.block if is_thread else self.launch.grid)[_AXES[stmt.kind]]
        name = self.names.of(stmt.var)
        value = self.block if stmt.kind is LoopKind.BLOCK_X else stmt.kind.value
        partial, was = stmt.extent.value < most, self.guarded
        self.line(depth, f"if ({value} < {stmt.extent.value}) {{" if partial else "{")
        self.line(depth + 1, f"const {self.names.index} {name} = {value};")
        self.guarded = was or (partial and is_thread)
        self.around.append(stmt.kind)
        self.statement(stmt.body, depth + 1)
        self.around.pop()
        self.guarded = was
        self.line(depth, "}")

    def store(self, stmt: Store, depth: int) -> None:
        """What all threads share is stored by the first where no loop tells the threads apart."""
        idle = [] if stmt.buffer in self.private else self._idle_axes()
        if idle:
            self.line(depth, f"if ({' && '.join(f'{axis} == 0' for axis in idle)}) {{")
        inner = depth + bool(idle)
        place, what = flat(Load(stmt.buffer, stmt.index), self.ranges), flat(stmt.value, self.ranges)
        assert isinstance(place, Load)
        shared, writer = self._writer([*place.index, what], inner)
        target = writer.element(stmt.buffer, shared.roots[0])
        value = writer.stored(shared.roots[1], stmt.buffer.dtype)
        self.lines += writer.lines
        self.line(inner, f"{target} = {value};")
        if idle:
            self.line(depth, "}")

    def _idle_axes(self) -> list[str]:
        axes = zip((LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z), self.launch.block, strict=True)
        return [kind.value for kind, extent in axes if extent > 1 and kind not in self.around]

    def branch(self, condition: str, then: Stmt, orelse: Stmt | None, depth: int) -> None:
        self.line(depth, f"if ({condition}) {{")
        self.statement(then, depth + 1)
        if orelse is not None:
            self.line(depth, "} else {")
            self.statement(orelse, depth + 1)
        self.line(depth, "}")

    def alloc(self, buffer: Buffer, depth: int) -> None:
        if buffer.scope == "global":
            raise CompilerError(
                f"{self.kernel.name} allocates {buffer.name} in global memory, which a kernel cannot",
                hint="bind_plain makes it a parameter",
            )
        if buffer.scope == "local":
            self.private.add(buffer)
        qualifier = "__shared__ __align__(16) " if buffer.scope == "shared" else ""
        kind, name, size = spell.STORAGE[buffer.dtype], self.names.of(buffer), max(1, buffer.size)
        if buffer in self.dynamic:
            self.line(depth, f"{kind} *const {name} = ({kind} *)(dynamic + {self.dynamic[buffer]});")
        else:
            self.line(depth, f"{qualifier}{kind} {name}[{size}];")

    def mma(self, stmt: Mma, depth: int) -> None:
        """Each element is rounded as it is taken; equal ones are rounded once."""
        self.line(depth, "{")
        a, b = (self._fragment(part, stmt.kind, depth + 1) for part in (stmt.a, stmt.b))
        sums, called = self.place(Load(stmt.sums, (*stmt.at, Const(0))), depth + 1), spell.PRODUCTS[stmt.kind]
        self.helpers.add(called)
        self.line(depth + 1, f"{called}(*(float (*)[4])&{sums}, {a}, {b});")
        self.line(depth, "}")

    def _fragment(self, values: Sequence[LoopExpr], kind: str, depth: int) -> str:
        name, texts = self.names.temporary(), self.texts(values, depth)
        if kind == "tf32":
            self.helpers.add("to_tf32")
            texts = [f"to_tf32({text})" for text in texts]
        self.line(depth, f"const unsigned {name}[{len(texts)}] = {{{', '.join(texts)}}};")
        return name

    def matrices(self, stmt: Ldmatrix, depth: int) -> None:
        called = f"ldmatrix_x{stmt.count}{'_trans' if stmt.transposed else ''}"
        assert isinstance(stmt.row, Load)
        to, row = (self.place(load, depth) for load in (Load(stmt.to, (*stmt.at, Const(0))), stmt.row))
        self.helpers.add(called)
        self.line(depth, f"{called}(*(unsigned (*)[{stmt.count}])&{to}, &{row});")

    def group_product(self, stmt: Wgmma, depth: int) -> None:
        """Factors are named by where rows would begin if nothing were swizzled."""
        sums, *factors = (
            self.place(load, depth, swizzled=False)
            for load in (Load(stmt.sums, (*stmt.at, Const(0), Const(0))), stmt.a, stmt.b)
        )
        assert isinstance(stmt.b, Load)
        count, right = stmt.sums.shape[-2] * 4, stmt.b.buffer
        apart = right.strides[-3] * 2 if stmt.transposed else 16
        called = f"{spell.GROUP_PRODUCTS[stmt.kind]}{'_lines' * stmt.transposed}<{2 * count}>"
        self.helpers.add(called)
        self.line(depth, f"{called}(*(float (*)[{count}])&{sums}, &{factors[0]}, &{factors[1]}, {apart});")

    def barrier(self, depth: int) -> None:
        if self.guarded:
            raise CompilerError(f"{self.kernel.name}: a barrier that not all threads of the block reach")
        self.line(depth, "__syncthreads();")

    # --- expressions ------------------------------------------------------------------------------------------

    def values(self, stmt: Stmt, depth: int) -> list[str]:
        """The expressions that stand in a statement; names of shared parts are declared before it."""
        return self.texts(stmt_exprs(stmt), depth)

    def texts(self, exprs: Sequence[LoopExpr], depth: int) -> list[str]:
        shared, writer = self._writer([flat(e, self.ranges) for e in exprs], depth)
        texts = [writer.root(root) for root in shared.roots]
        self.lines += writer.lines
        return texts

    def _writer(self, roots: Sequence[LoopExpr], depth: int) -> tuple[Shared, Writer]:
        shared = Shared(roots)
        writer = Writer(self.names, self.ranges, self.helpers, shared)
        writer.pad = "    " * depth
        return shared, writer


def _pack_type(pack: Buffer) -> str:
    return f"Pack<{spell.STORAGE[pack.dtype]}, {pack.size}>"
