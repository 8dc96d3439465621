"""Grades chapter 7: a kernel from nothing, lanes, and a tile in registers held against what the machine can do.

A noisy machine slows the kernel and the loop that measures the machine alike, and only ever slows: so both run by
turns, in this process, and the best of each counts.  A try is a millisecond of either, so that some of them are
not interrupted.  Tries go on until the share is reached or they are used up.
"""

from typing import Any

import numpy as np

import minitvm
from minitvm.codegen.backend import backend_of
from minitvm.ir import builder as relay
from minitvm.ir.expr import Module
from minitvm.ir.loop import Alloc, For, Kernel, Load, LoopKind, Store, stmt_exprs, walk_exprs, walk_stmts
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.lab.course.check import Chapter, Skip, Wrong, close, hinted, same
from minitvm.passes.manager import PassContext
from minitvm.runtime.executor import GraphModule
from minitvm.target import Target

CHAPTER = Chapter("chapter7", "Loops and schedules up to 80 % of peak")

ROWS, SUMS, COLUMNS = 96, 192, 384
TRIES = 12

# --- 7.1 ------------------------------------------------------------------------------------------------------

product = CHAPTER.exercise("matmul", "7.1")


def _written(matmul: Any, m: int, k: int, n: int) -> Kernel:
    kernel = matmul(m, k, n)
    if not isinstance(kernel, Kernel):
        raise Wrong(f"it returned {kernel!r}, not a Kernel", 'Kernel("matmul", (a, b, c), loop(m, ...))')
    same([b.shape for b in kernel.params], [(m, k), (k, n), (m, n)], "the shapes of the parameters")
    return kernel


def _run(kernel: Kernel) -> None:
    rng = np.random.default_rng(7)
    x, y = (rng.normal(size=b.shape).astype("float32") for b in kernel.inputs)
    hint = "every c[i, j] is set to 0 before the sum begins, and then gets a[i, r] * b[r, j] for each r"
    with hinted(hint):
        verify_kernel(kernel)
        (found,) = run_kernel(kernel, x, y, check_races=True)
    close(found, x @ y, "c", hint)


@product.check("c = a @ b in the interpreter")
def _(matmul: Any) -> None:
    _run(_written(matmul, 4, 3, 5))


@product.check("a single row, column or summand")
def _(matmul: Any) -> None:
    for sizes in ((1, 3, 4), (3, 1, 4), (3, 4, 1)):
        _run(_written(matmul, *sizes))


@product.check("it has three loops")
def _(matmul: Any) -> None:
    kernel = _written(matmul, 4, 3, 5)
    extents = sorted(map(_extent, _loops(kernel)))
    same(extents, [3, 4, 5], "the extents of the loops", "loop(extent, lambda i: body), one inside the other")


# --- 7.2 and 7.3 ----------------------------------------------------------------------------------------------

lanes = CHAPTER.exercise("in_lanes", "7.2", limit=30.0)
tile = CHAPTER.exercise("fast", "7.3", limit=90.0)


def plain(m: int = ROWS, k: int = SUMS, n: int = COLUMNS) -> tuple[Kernel, Module, str]:
    """The plain kernel of a product, the model that it is of, and its name there."""
    module = Module.from_expr(relay.nn.matmul(relay.var("a", shape=(m, k)), relay.var("b", shape=(k, n))))
    report = minitvm.build(module).report
    (name,) = report.groups
    return report.kernel(name).plain, module, name


def _loops(kernel: Kernel, kind: LoopKind | None = None) -> list[For]:
    return [s for s in walk_stmts(kernel.body) if isinstance(s, For) and kind in (None, s.kind)]


def built(schedule: Any, m: int = ROWS, k: int = SUMS, n: int = COLUMNS) -> GraphModule:
    """The product with a student's schedule as a running model, whose numbers are right."""
    _, module, name = plain(m, k, n)
    with PassContext(config={"minitvm.schedules": {name: schedule}}):
        made = GraphModule(minitvm.build(module)["default"]())
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(m, k)).astype("float32"), rng.normal(size=(k, n)).astype("float32")
    made.run(a=x, b=y)
    close(made.get_output(0).numpy(), x @ y, "the product, compiled")
    return made


def share_of_peak(made: GraphModule, enough: float = 1.0, tries: int = TRIES) -> float:
    """What the kernel reaches of this core's multiply-adds, the best of some tries of both by turns."""
    backend = backend_of(Target.parse("llvm"), 1)
    flops = peak = 0.0
    for attempt in range(tries):
        peak = max(peak, backend.measured_flops(30))
        seconds = made.benchmark(number=5, repeat=10).min
        flops = max(flops, 2.0 * ROWS * SUMS * COLUMNS / seconds)
        if flops >= enough * peak and attempt >= 3:
            break
    return flops / peak


def _scheduled(schedule: Any) -> Kernel:
    made = schedule(plain()[0])
    if not isinstance(made, Kernel):
        raise Wrong(f"it returned {made!r}, not a Kernel", "return what the last step returned")
    verify_kernel(made)
    return made


@lanes.check("a vectorized loop of 16 along the columns of the result")
def _(in_lanes: Any) -> None:
    vectors = _loops(_scheduled(in_lanes), LoopKind.VECTORIZED)
    if not vectors:
        raise Wrong("no loop is vectorized", 'split "j" by 16 and vectorize the inner loop')
    extents = set(map(_extent, vectors))
    same(extents, {16}, "the lanes of its vectorized loops", 'schedule.split(kernel, "j", 16, tail="exact")')
    for vector in vectors:
        for store in (s for s in walk_stmts(vector.body) if isinstance(s, Store) and s.buffer.name == "out0"):
            if vector.var not in walk_exprs(store.index[-1]):
                raise Wrong(f"lanes run along rows: {store}", "columns lie side by side in memory, rows do not")


@lanes.check("the numbers stay")
def _(in_lanes: Any) -> None:
    built(in_lanes)


@tile.check("the numbers stay")
def _(fast: Any) -> None:
    built(fast)


@tile.check("at least 4 vectors of sums in registers")
def _(fast: Any) -> None:
    sums = _sums(_scheduled(fast))
    hint = (
        "a multiply-add takes 4 cycles and one or two start in each: fewer than 4 or 8 vectors wait for each other. "
        "schedule.jam on a loop of rows gives each row a sum of its own"
    )
    if sums < 4 * _lanes():
        raise Wrong(f"{sums} sums are kept while the loop over r runs, expected {4 * _lanes()} at least", hint)


def _lanes() -> int:
    return backend_of(Target.parse("llvm"), 1).machine.lanes("float32")


def _sums(kernel: Kernel) -> int:
    """Elements of local memory that live around a loop of all summands."""
    found = [s for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "local"]
    return max((int(np.prod(s.buffer.shape)) for s in found if _sums_inside(s)), default=0)


def _sums_inside(alloc: Alloc) -> bool:
    return any(int(getattr(s.extent, "value", 0)) > 16 for s in walk_stmts(alloc.body) if isinstance(s, For))


@tile.check("a load serves several multiply-adds")
def _(fast: Any) -> None:
    kernel = _scheduled(fast)
    loads, adds = _work(kernel)
    hint = (
        "jam rows: a vector of b that was loaded is used for each of them; and a wider row uses each element of a more"
    )
    if loads > 1.5 * adds:
        raise Wrong(f"{loads} vectors are loaded for {adds} multiply-adds in the loop over r", hint)


def _work(kernel: Kernel) -> tuple[int, int]:
    """Different loads of inputs, and multiply-adds, of one round of the innermost serial loop, in vectors."""
    inner = [
        f
        for f in _loops(kernel, LoopKind.SERIAL)
        if not any(g in walk_stmts(f.body) for g in _loops(kernel, LoopKind.SERIAL) if g is not f)
    ]
    loads = adds = 0
    for found in inner:
        jammed, vectors = _kinds(found, LoopKind.UNROLLED), _kinds(found, LoopKind.VECTORIZED)
        width = max(1, int(np.prod([_extent(v) for v in vectors[:1]])) // _lanes())
        for store in (s for s in walk_stmts(found.body) if isinstance(s, Store)):
            adds += int(np.prod([_extent(u) for u in jammed])) * width
            for load in {e for root in stmt_exprs(store) for e in walk_exprs(root) if isinstance(e, Load)}:
                if load.buffer.scope == "local":
                    continue
                used = {v for i in load.index for v in walk_exprs(i)}
                wide = width if any(v.var in used for v in vectors) else 1
                loads += int(np.prod([_extent(u) for u in jammed if u.var in used])) * wide
    return loads, adds


def _kinds(found: For, kind: LoopKind) -> list[For]:
    return [s for s in walk_stmts(found.body) if isinstance(s, For) and s.kind is kind]


def _extent(found: For) -> int:
    return int(getattr(found.extent, "value", 1))


def _reaches(share: float, points: int) -> None:
    @tile.check(f"{share:.0%} of what this core can do at most", points)
    def _(fast: Any) -> None:
        found = share_of_peak(built(fast), share)
        if found > 1.3:
            raise Skip(
                f"it is {found:.1f} times as fast as a loop of multiply-adds: this core has no instruction for them"
            )
        if found < share:
            hint = (
                "the best of several tries counts, so try again if the machine was busy; else: other tile sizes "
                "(rows x columns = 8 to 24 vectors), and is the loop of lanes the innermost?"
            )
            raise Wrong(f"it reached {found:.0%}", hint)


for _share, _points in ((0.2, 1), (0.5, 2), (0.8, 3)):
    _reaches(_share, _points)
