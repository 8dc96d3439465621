"""A kernel as LLVM IR text: statements, loops by kind, threads.

The text is written directly, one function a module (``docs/architecture.md`` has its interface).  Loops that the loop
IR calls vectorized become vector instructions here, unrolled ones are written out, so LLVM is told to leave them alone.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from minitvm.codegen.backend import STACK_LIMIT, Workspace, plan_workspace
from minitvm.codegen.legalize import spell_scalars
from minitvm.codegen.llvm import express, memory
from minitvm.codegen.llvm.arith import DOTS, WIDTH, memory_text
from minitvm.codegen.llvm.chains import in_rounds, in_turns
from minitvm.codegen.llvm.positions import without_quotients
from minitvm.codegen.llvm.writer import (
    Context,
    Index,
    NotVectorizable,
    Place,
    Val,
    Writer,
    exact,
    flattened,
    power_of_two,
    reach,
)
from minitvm.errors import CompilerError
from minitvm.ir.dims import Dim
from minitvm.ir.dtypes import bits_of
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    For,
    If,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    Prefetch,
    Seq,
    Size,
    Stmt,
    Store,
    walk_stmts,
)
from minitvm.ir.loop.affine import COUNT, Affine, Range
from minitvm.ir.loop.expr import size_expr
from minitvm.target import MachineModel

Run: TypeAlias = Callable[[Stmt], None]

_WIDEST = 4  # hardware registers that one emitted vector may span; longer loops are cut into pieces of half of it
_MOST_PIECES = 4  # so many pieces are written out, more become a loop


Note: TypeAlias = Callable[[Stmt], str]
"""A comment for the instructions of a statement."""


def emit(kernel: Kernel, machine: MachineModel) -> str:
    """The kernel as an LLVM module's text: one function named ``kernel.name``."""
    return emit_spelled(spelled_for(kernel, machine), machine)


def spelled_for(kernel: Kernel, machine: MachineModel) -> Kernel:
    """The kernel in the machine's operations."""
    plain = without_quotients(kernel) if kernel.sizes else kernel
    return in_rounds(spell_scalars(plain, "fma" in machine.features))


def emit_spelled(kernel: Kernel, machine: MachineModel, note: Note | None = None) -> str:
    """:func:`emit` of a kernel without scalars left to spell."""
    emitter = _Emitter(kernel, machine, note)
    emitter.team(emitter.kernel.body)
    return emitter.module()


class _Emitter:
    """``kernel`` has no scalars left to spell."""

    def __init__(self, kernel: Kernel, machine: MachineModel, note: Note | None = None) -> None:
        self.machine = machine
        self.kernel = kernel
        self.note = note
        self.w = Writer(dot_lanes=dict.fromkeys(machine.features, machine.lanes("int32")))
        self.c = Context(self.w, machine, frozenset(kernel.inputs))
        self.workspace: Workspace = plan_workspace(kernel)
        self.bases: dict[tuple[Buffer, int], str] = {}
        self.chains: dict[Stmt, int] = {}
        for number_, buffer in enumerate(kernel.params):
            self.c.places[buffer] = Place(f"%p{number_}")
        for number_, name in enumerate(kernel.sizes):
            place = self.w.pure(f"getelementptr i64, ptr %sizes, i64 {number_}")
            size = self.c.symbolic(Val(self.w.pure(f"load i64, ptr {place}, align 8"), "int64"), COUNT)
            assert isinstance(size, Affine)
            self.c.frame.bind(Size(name), size)

    # --- the module -------------------------------------------------------------------------------------------

    def module(self) -> str:
        lines = ["entry:", *self.w.allocas, "  br label %start", "start:", *flattened(self.w.lines), "  ret void"]
        width = self.machine.vector_bytes * 8
        attributes = f'nounwind {WIDTH}="{width}" "no-trapping-math"="true"'
        if any("vpdpbusd" in symbol for symbol in self.w.declarations):
            attributes += f" {DOTS}"
        head = f"define void @{quoted(self.kernel.name)}({self._parameters()}) {attributes} {{"
        return "\n\n".join([*self.w.declarations.values(), "\n".join([head, *lines, "}"])]) + "\n"

    def _parameters(self) -> str:
        known = "noalias nonnull"
        inputs = len(self.kernel.inputs)
        kinds = (f"{known} readonly" if i < inputs else f"{known} align 64" for i in range(len(self.kernel.params)))
        params = [f"ptr {kind} %p{i}" for i, kind in enumerate(kinds)]
        if self.kernel.sizes:
            params.insert(inputs, f"ptr {known} readonly align 8 %sizes")
        return ", ".join([*params, "ptr noalias align 64 %workspace", "i64 %thread", "i64 %threads", "ptr %place"])

    # --- what all threads do ----------------------------------------------------------------------------------

    def team(self, stmt: Stmt) -> None:
        """A statement that every thread reaches: parallel loops are divided, the rest is thread 0's alone."""
        with self._noted(stmt):
            self._team(stmt)

    def _team(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts):
                self._team_sequence(stmts)
            case Alloc(buffer, body):
                self._place(buffer)
                self.team(body)
            case For(_, _, _, LoopKind.PARALLEL):
                self._parallel([stmt])
            case Barrier():
                self._call("void", "barrier", "ptr %place", "i64 %threads")
            case For(_, extent, _, kind) if kind is LoopKind.SERIAL and _is_shared_work(stmt):
                self._counted(stmt, self.team, partial(self._agree, extent))
            case If(condition, then, orelse) if _is_shared_work(stmt):
                self._agree(condition)
                decided = self._condition(condition)
                self._agree(condition)
                self._branch(decided, then, orelse, self.team)
            case _:
                self._alone(stmt)

    def _team_sequence(self, stmts: tuple[Stmt, ...]) -> None:
        for shape, group in itertools.groupby(stmts, _team_shape):
            if shape == "parallel":
                self._parallel([stmt for stmt in group if isinstance(stmt, For)])
            elif shape == "shared":
                for stmt in group:
                    self.team(stmt)
            else:
                self._alone(*group)

    def _alone(self, *stmts: Stmt) -> None:
        """Thread 0's work."""
        if not stmts:
            return
        with self.c.when(self._call("i1", "alone", "ptr %place", "i64 %thread", "i64 %threads")):
            for stmt in stmts:
                self.stmt(stmt)
            self._call("void", "finished", "ptr %place", "i64 %threads")

    def _agree(self, decides: LoopExpr) -> None:
        """Threads meet before they read what decides where they all go, and before it may be written again."""
        if decides.reads:
            self._call("void", "meet", "ptr %place", "i64 %threads")

    def _call(self, result: str, name: str, *arguments: str) -> str:
        """One of the functions of ``sharing.ll``."""
        kinds = ", ".join(argument.split()[0] for argument in arguments)
        self.w.declare(f"@minitvm.{name}", f"declare {result} @minitvm.{name}({kinds})")
        call = f"call {result} @minitvm.{name}({', '.join(arguments)})"
        if result != "void":
            return self.w.op(call)
        self.w.do(call)
        return ""

    def _parallel(self, nests: Sequence[For]) -> None:
        """Contiguous parts of all iterations of neighbouring loops, as if they were one.

        Perfectly nested parallel loops count as one.
        """
        if not all(isinstance(part.extent, Const) for nest in nests for part in _perfect(nest)):
            for nest in nests:
                self._by_itself(nest)
            return
        totals = [_iterations(nest) for nest in nests]
        begin = 0
        with self._parts(sum(totals)) as (start, stop):
            for nest, total in zip(nests, totals, strict=True):
                first, end = (start, stop) if len(nests) == 1 else self._within(start, stop, begin, total)
                begin += total
                if total == 0:
                    continue
                with (
                    self.c.when(self.w.op(f"icmp slt i64 {first}, {end}")),
                    self.c.counted(first, end, Range(0, total - 1)) as position,
                ):
                    self._divided(_perfect(nest), position)

    def _by_itself(self, nest: For) -> None:
        """A parallel loop whose iterations are counted when the kernel runs."""
        with self.c.frame:
            total = express.evaluate(self.c, math.prod((part.extent for part in _perfect(nest)), start=Const(1)))
        assert isinstance(total, Affine)
        some = reach(total).counter
        with (
            self._parts(memory.scalar(self.c, total)) as (start, stop),
            self.c.when(self.w.op(f"icmp slt i64 {start}, {stop}")),
            self.c.counted(start, stop, some) as position,
        ):
            self._divided(_perfect(nest), position)

    @contextmanager
    def _parts(self, total: int | str) -> Iterator[tuple[str, str]]:
        """What is written inside runs for each part that this thread takes of so many iterations."""
        part = self.w.alloca("i64", 4)
        self.w.do(f"store i64 0, ptr {part}")
        arguments = "ptr %place", f"ptr {part}", f"i64 {total}", "i64 %thread", "i64 %threads"
        with self.w.repeated(lambda: self._call("i1", "take", *arguments)), self.c.block():
            ends = [self.w.op(f"getelementptr i64, ptr {part}, i64 {at}") for at in (2, 3)]
            start, stop = (self.w.op(f"load i64, ptr {end}") for end in ends)
            yield start, stop

    def _within(self, start: str, stop: str, begin: int, total: int) -> tuple[str, str]:
        """The part of ``start..stop`` in a loop of ``total`` that comes after ``begin`` iterations of others."""
        for name in ("smax", "smin"):
            self.w.declare(f"@llvm.{name}.i64", f"declare i64 @llvm.{name}.i64(i64, i64)")
        shifted = [self.w.pure(f"sub i64 {end}, {begin}") for end in (start, stop)]
        first = self.w.pure(f"call i64 @llvm.smax.i64(i64 {shifted[0]}, i64 0)")
        return first, self.w.pure(f"call i64 @llvm.smin.i64(i64 {shifted[1]}, i64 {total})")

    def _divided(self, loops: list[For], position: Index) -> None:
        """Run the body where the loops' variables are the digits of ``position``."""
        with self.c.frame:
            for part in reversed(loops[1:]):
                extent = express.evaluate(self.c, part.extent)
                assert isinstance(extent, Affine)
                digit, rest = (memory.index_binary(self.c, op, position, extent) for op in ("floormod", "floordiv"))
                assert isinstance(digit, Affine) and isinstance(rest, Affine)
                self.c.frame.bind(part.var, digit)
                position = rest
            self.c.frame.bind(loops[0].var, position)
            self.stmt(loops[-1].body)

    # --- what one thread does ---------------------------------------------------------------------------------

    def stmt(self, stmt: Stmt) -> None:
        if self.note is None:
            self._stmt(stmt)
            return
        with self._noted(stmt):
            self._stmt(stmt)

    @contextmanager
    def _noted(self, stmt: Stmt) -> Iterator[None]:
        """What is written inside says that it is the statement's, where somebody asks."""
        if self.note is None:
            yield
            return
        outer, self.w.note = self.w.note, self.note(stmt)
        try:
            yield
        finally:
            self.w.note = outer

    def _stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Store():
                self._store(stmt)
            case For():
                self._loop(stmt)
            case Seq(stmts):
                for part in stmts:
                    self.stmt(part)
            case If(condition, then, orelse):
                rare = True if isinstance(condition, Intrin) and condition.name == "unlikely" else None
                self._if(self._condition(condition), then, orelse, rare)
            case Alloc(buffer, body):
                self._place(buffer)
                self.stmt(body)
            case Prefetch(Load() as element, level):
                with self.c.frame:
                    memory.prefetch(self.c, element.buffer, express.place(self.c, element), level)
            case Barrier():
                self._misplaced_barrier()

    def _misplaced_barrier(self) -> None:
        raise CompilerError(
            f"{self.kernel.name}: a barrier inside a parallel loop, which threads reach different numbers of times",
            hint="on a CPU barriers stand between loop nests, outside of any parallel loop",
        )

    def _store(self, stmt: Store) -> None:
        with self.c.frame:
            place = express.place(self.c, stmt)
            memory.store(self.c, stmt.buffer, place, express.register(self.c, stmt.value))

    def _condition(self, condition: LoopExpr) -> Val:
        with self.c.frame:
            return express.register(self.c, condition)

    def _if(self, condition: Val, then: Stmt, orelse: Stmt | None, rare: bool | None) -> None:
        if not condition.lanes:
            self._branch(condition, then, orelse, self.stmt, rare)
            return
        with express.masked(self.c, condition):
            self.stmt(then)
        if orelse is not None:
            with express.masked(self.c, express.negate(self.c, condition)):
                self.stmt(orelse)

    def _branch(self, condition: Val, then: Stmt, orelse: Stmt | None, run: Run, rare: bool | None = None) -> None:
        if condition.text in ("true", "false"):
            chosen = then if condition.text == "true" else orelse
            if chosen is not None:
                run(chosen)
            return
        with self.c.when(condition.text, rare):
            run(then)
        if orelse is not None:
            with self.c.when(express.negate(self.c, condition).text, None if rare is None else not rare):
                run(orelse)

    # --- loops ------------------------------------------------------------------------------------------------

    def _loop(self, loop: For) -> None:
        if loop.kind is LoopKind.UNROLLED:
            self._unrolled(loop)
        elif loop.kind is LoopKind.VECTORIZED and isinstance(loop.extent, Const):
            self._vectorized(loop)
        elif loop.kind in (LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZED):
            self._counted(loop, self.stmt)
        else:
            raise CompilerError(
                f"{self.kernel.name}: a loop bound to {loop.kind.value} has no meaning on a CPU",
                hint="lower the function for kind 'llvm'",
            )

    def _unrolled(self, loop: For) -> None:
        begins = [len(self.w.lines)]
        for value in range(_constant_extent(loop)):
            with self.c.frame:
                self.c.frame.bind(loop.var, Affine(value))
                self.stmt(loop.body)
            begins.append(len(self.w.lines))
        if self._chains(loop.body):
            self.w.lines[begins[0] :] = in_turns([self.w.lines[a:b] for a, b in itertools.pairwise(begins)])

    def _chains(self, stmt: Stmt) -> int:
        """:func:`express.long_chains`, asked once: what is written out contains it many times."""
        if stmt not in self.chains:
            self.chains[stmt] = express.long_chains(stmt, self.kernel.outputs)
        return self.chains[stmt]

    def _counted(self, loop: For, run: Run, agree: Callable[[], None] = lambda: None) -> None:
        """``agree`` is called before the extent is read, and after."""
        agree()
        with self.c.frame:
            extent = express.evaluate(self.c, loop.extent)
        if not isinstance(extent, Affine) or self.c.step(extent):
            raise NotVectorizable
        if exact(extent).decides("le"):
            return
        if not extent.terms and extent.constant == 1:
            with self.c.frame:
                self.c.frame.bind(loop.var, Affine(0))
                run(loop.body)
            return
        stop, few = memory.scalar(self.c, extent), extent.constant if self._chains(loop.body) else 0
        agree()
        with self._entered(exact(extent), stop), self.c.counted("0", stop, reach(extent).counter, few) as counter:
            self.c.frame.bind(loop.var, counter)
            run(loop.body)

    @contextmanager
    def _entered(self, extent: Range, stop: str) -> Iterator[None]:
        """Skips a loop whose extent may be zero."""
        if extent.decides("le") is False:
            yield
            return
        with self.c.when(self.w.pure(f"icmp sgt i64 {stop}, 0")):
            yield

    def _vectorized(self, loop: For) -> None:
        extent = _constant_extent(loop)
        if self.c.lanes:
            raise NotVectorizable  # the inner of two vectorized loops gets the lanes
        if extent <= 1:
            self._unrolled(loop)
            return
        saved = self.w.save()
        try:
            self._in_pieces(loop, extent)
        except NotVectorizable:
            self.w.restore(saved)
            self._counted(loop, self.stmt)

    def _in_pieces(self, loop: For, extent: int) -> None:
        """Powers of two, up to ``_WIDEST`` registers at a time; less than a register is left over."""
        limit = _WIDEST * self.machine.vector_bytes * 8 // _widest_bits(loop)
        piece = limit // 2
        done = extent // piece * piece if extent > limit else 0
        if done > _MOST_PIECES * piece:
            with self.c.counted("0", str(done // piece), Range(0, done // piece - 1)) as counter:
                self._lanes(loop, counter.scaled(piece), piece)
        else:
            for start in range(0, done, piece):
                self._lanes(loop, Affine(start), piece)
        while done < extent:
            rest = extent - done
            lanes = rest if rest < limit // _WIDEST else 1 << (rest.bit_length() - 1)
            self._lanes(loop, Affine(done), lanes)
            done += lanes

    def _lanes(self, loop: For, start: Index, lanes: int) -> None:
        with self.c.in_lanes(lanes) as lane, self.c.frame:
            self.c.frame.bind(loop.var, start.plus(lane))
            self.stmt(loop.body)

    # --- memory -----------------------------------------------------------------------------------------------

    def _place(self, buffer: Buffer) -> None:
        """Give an allocated buffer its address."""
        if buffer in self.workspace.offsets:
            self.c.places[buffer] = Place(self._in_workspace(buffer))
            return
        lanes = self.c.lanes
        if not buffer.fits(STACK_LIMIT // max(lanes, 1)):
            raise NotVectorizable
        key = (buffer, lanes)
        if key not in self.bases:
            count = buffer.size * max(lanes, 1)
            self.bases[key] = self.w.alloca(memory_text(buffer.dtype), power_of_two(count))
        self.c.places[buffer] = Place(self.bases[key], lanes, padded=True)

    def _in_workspace(self, buffer: Buffer) -> str:
        if self.c.lanes:
            raise NotVectorizable
        plan, base = self.workspace, "%workspace"
        if buffer in plan.per_thread:
            mine = self.w.pure(f"mul i64 %thread, {self._bytes(plan.thread_bytes)}")
            base = self.w.pure(f"getelementptr i8, ptr {base}, i64 {mine}")
        return self.w.pure(f"getelementptr i8, ptr {base}, i64 {self._bytes(plan.offsets[buffer])}")

    def _bytes(self, count: Dim) -> str:
        with self.c.frame:
            found = express.evaluate(self.c, size_expr(count))
        assert isinstance(found, Affine)
        return memory.scalar(self.c, found)


def quoted(name: str) -> str:
    """A symbol's name as LLVM text wants it."""
    return '"' + "".join(c if c.isascii() and (c.isalnum() or c in "_.$-") else f"\\{ord(c):02X}" for c in name) + '"'


def _constant_extent(loop: For) -> int:
    if not isinstance(loop.extent, Const):
        raise CompilerError(
            f"the {loop.kind.value} loop {loop.var.name} has an extent that is not a constant",
            hint="only serial loops may have one",
        )
    return int(loop.extent.value)


def _is_shared_work(stmt: Stmt) -> bool:
    """True where threads have to enter the statement together."""
    return any(isinstance(s, Barrier) or (isinstance(s, For) and s.kind is LoopKind.PARALLEL) for s in walk_stmts(stmt))


def _team_shape(stmt: Stmt) -> str:
    if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL:
        return "parallel"
    return "shared" if _is_shared_work(stmt) else "alone"


def _perfect(loop: For) -> list[For]:
    """The parallel loop with those that are perfectly nested in it."""
    loops = [loop]
    while isinstance(body := loops[-1].body, For) and body.kind is LoopKind.PARALLEL:
        loops.append(body)
    return loops


def _iterations(loop: For) -> int:
    return math.prod(_constant_extent(part) for part in _perfect(loop))


def _widest_bits(loop: For) -> int:
    """The widest element that the loop stores."""
    return max((bits_of(s.buffer.dtype) for s in walk_stmts(loop.body) if isinstance(s, Store)), default=32)
