"""Schedule steps that say how a loop runs: the text before and after, the same numbers, every reason to refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from small_kernels import C, X, Y, check, matmul, prefix_sum, refusal, scale, sums, triangle

from minitvm.codegen import schedule
from minitvm.ir.dims import symbol
from minitvm.ir.loop import Alloc, Binary, Buffer, Kernel, LoopExpr, LoopKind, Stmt, Store, const, loop, nest, seq

# --- kinds ----------------------------------------------------------------------------------------------------


def test_kinds() -> None:
    kernel = schedule.vectorize(schedule.parallel(schedule.split(scale(), "j", 5), "i"), "j_inner")
    check(scale(), schedule.unroll(kernel, "j_outer"), """\
  parallel i in 6:
    unrolled j_outer in 2:
      vectorized j_inner in 5:
        y[i, j_outer * 5 + j_inner] = x[i, j_outer * 5 + j_inner] * 2f
""")  # fmt: skip


def test_lanes_around_loops_that_they_share() -> None:
    check(matmul(), schedule.vectorize(schedule.split(schedule.cache_write(matmul(), C, "j"), "j", 8), "j_inner"), """\
  for i in 6:
    for j_outer in 1:
      alloc c_local: float32[1, 1, 8] local:
        vectorized j_inner in 8:
          c_local[0, 0, j_inner] = 0f
        for k in 5:
          vectorized j_inner in 8:
            c_local[0, 0, j_inner] = c_local[0, 0, j_inner] + a[i, k] * b[k, j_outer * 8 + j_inner]
        for u in 1:
          for v in 1:
            vectorized j_inner in 8:
              c[i + u, j_outer * 8 + j_inner + v] = c_local[u, v, j_inner]
""")  # fmt: skip


def test_rows_jammed_around_lanes() -> None:
    kernel = schedule.cache_write(matmul(), C, "j")
    kernel = schedule.vectorize(schedule.split(kernel, "j", 8), "j_inner")
    check(matmul(), schedule.jam(schedule.split(kernel, "i", 3), "i_inner"), """\
  for i_outer in 2:
    for j_outer in 1:
      alloc c_local: float32[3, 1, 1, 8] local:
        unrolled i_inner in 3:
          vectorized j_inner in 8:
            c_local[i_inner, 0, 0, j_inner] = 0f
        for k in 5:
          unrolled i_inner in 3:
            vectorized j_inner in 8:
              c_local[i_inner, 0, 0, j_inner] = c_local[i_inner, 0, 0, j_inner] + a[i_outer * 3 + i_inner, k] * B
        for u in 1:
          for v in 1:
            unrolled i_inner in 3:
              vectorized j_inner in 8:
                c[i_outer * 3 + i_inner + u, j_outer * 8 + j_inner + v] = c_local[i_inner, u, v, j_inner]
""".replace("B\n", "b[k, j_outer * 8 + j_inner]\n"))  # fmt: skip


def test_jam_refusals() -> None:
    assert "reduction into c" in refusal(lambda: schedule.jam(matmul(), "k"))
    assert refusal(lambda: schedule.jam(triangle(), "r")).startswith("triangle: loops inside loop r vary with it")


def test_lanes_of_what_each_one_asks() -> None:
    guarded = schedule.split(scale(), "j", 4)
    check(scale(), schedule.vectorize(guarded, "j_inner"))
    check(scale(), schedule.vectorize(guarded, "j_outer"))
    for kernel, name in ((schedule.split(matmul(), "j", 3), "j_inner"), (triangle(), "r")):
        said = refusal(lambda kernel=kernel, name=name: schedule.vectorize(kernel, name))
        assert f"loops inside loop {name} vary with it" in said


def row_sums(first: LoopExpr, op: str = "add") -> Kernel:
    """Each row's sum, kept in an accumulator that begins with ``first``."""
    z, t = Buffer("z", (6,), "float32"), Buffer("t", (), "float32", "local")

    def row(i: LoopExpr) -> Stmt:
        update = loop(10, lambda k: Store(t, (), Binary(op, t[()], X[i, k])), name="k")
        return Alloc(t, seq(Store(t, (), first), update, Store(z, (i,), t[()])))

    return Kernel("row_sums", (X, z), loop(6, row, name="i"))


def test_rfactor_sums_in_lanes() -> None:
    total = row_sums(const(0, "float32"))
    check(total, schedule.rfactor(total, "k", 4), """\
  for i in 6:
    alloc t: float32[4] local:
      vectorized lane in 4:
        t[lane] = 0f
      for k_outer in 2:
        vectorized k_inner in 4:
          t[k_inner] = t[k_inner] + x[i, k_outer * 4 + k_inner]
      vectorized k_tail in 2:
        t[k_tail] = t[k_tail] + x[i, k_tail + 8]
      vectorized lane in 2:
        t[lane] = t[lane] + t[lane + 2]
      t[0] = t[0] + t[1]
      z[i] = t[0]
""", exact=False)  # fmt: skip


@pytest.mark.parametrize("width", [1, 3, 7, 10, 16])
@pytest.mark.parametrize(("op", "first"), [("add", 0.0), ("mul", 1.0), ("max", -np.inf), ("min", np.inf)])
def test_rfactor_of_any_width(op: str, first: float, width: int) -> None:
    total = row_sums(const(first, "float32"), op)
    check(total, schedule.rfactor(total, "k", width), exact=False)


def test_rfactor_refusals() -> None:
    alone = (
        "row_sums: t is not memory for loop k alone, set before it to what changes no result\n"
        "  = hint: cache_write gives a loop an accumulator of its own"
    )
    assert refusal(lambda: schedule.rfactor(row_sums(const(1, "float32")), "k", 4)) == alone
    assert refusal(lambda: schedule.rfactor(matmul(), "k", 4)) == alone.replace("row_sums: t", "matmul: c")
    around = Kernel("row_sums", (X, Y), Alloc(T, loop(6, lambda i: rows_in_place(i), name="i")))
    assert refusal(lambda: schedule.rfactor(around, "k", 4)) == alone
    assert refusal(lambda: schedule.rfactor(scale(), "j", 4)) == (
        "scale: loop j is no reduction: it has to hold one update, t = t + x"
    )


T = Buffer("t", (), "float32", "local")


def rows_in_place(i: LoopExpr) -> Stmt:
    """The accumulator lives around all rows."""
    update = loop(10, lambda k: Store(T, (), T[()] + X[i, k]), name="k")
    return seq(Store(T, (), const(0, "float32")), update, loop(10, lambda j: Store(Y, (i, j), T[()]), name="j"))


def test_bind() -> None:
    kernel = schedule.bind(schedule.bind(scale(), "i", LoopKind.BLOCK_X), "j", LoopKind.THREAD_X)
    check(scale(), kernel, """\
  blockIdx.x i in 6:
    threadIdx.x j in 10:
      y[i, j] = x[i, j] * 2f
""")  # fmt: skip


@pytest.mark.parametrize("step", [schedule.vectorize, lambda k, v: schedule.bind(k, v, LoopKind.THREAD_X)])
def test_reduction_side_by_side_is_refused(step: Callable[[Kernel, str], Kernel]) -> None:
    assert refusal(lambda: step(matmul(), "k")) == (
        "matmul: loop k is a reduction into c: its iterations cannot run side by side"
    )


def test_parallel_refusals() -> None:
    total = sums(lambda z, i, k: z + X[i, k])
    outside = schedule.reorder(total, "r", "i", "s")
    assert refusal(lambda: schedule.parallel(outside, "r")) == (
        "sums: loop r is a reduction into z: its iterations cannot run side by side"
    )
    assert refusal(lambda: schedule.parallel(scale(), "j")) == (
        "scale: loop j is inside loop i\n  = hint: only outermost loops can be parallel; reorder first"
    )


def test_dependence_between_iterations_is_refused() -> None:
    assert refusal(lambda: schedule.vectorize(prefix_sum(), "j")) == (
        "prefix_sum: iterations of loop j depend on each other through y"
    )
    check(prefix_sum(), schedule.parallel(prefix_sum(), "i"))  # rows do not meet


def test_halving_in_lanes_is_free_of_dependences() -> None:
    t, z = Buffer("t", (8,), "float32", "local"), Buffer("z", (), "float32")
    fill = loop(8, lambda k: Store(t, (k,), X[0, k]), name="fill")
    fold = loop(4, lambda k: Store(t, (k,), t[k] + t[k + 4]), name="fold")
    kernel = Kernel("halve", (X, z), Alloc(t, seq(fill, fold, Store(z, (), t[0] + t[1] + t[2] + t[3]))))
    check(kernel, schedule.vectorize(kernel, "fold"))
    overlap = loop(5, lambda k: Store(t, (k,), t[k] + t[k + 3]), name="fold")
    touching = Kernel("halve", (X, z), Alloc(t, seq(fill, overlap, Store(z, (), t[0]))))
    assert refusal(lambda: schedule.vectorize(touching, "fold")) == (
        "halve: iterations of loop fold depend on each other through t"
    )


def test_kind_refusals() -> None:
    assert refusal(lambda: schedule.vectorize(schedule.vectorize(scale(), "j"), "i")) == (
        "scale: loops inside loop i vary with it, or are lanes themselves\n"
        "  = hint: only what all lanes do alike can be vectorized; reorder first"
    )
    assert refusal(lambda: schedule.unroll(schedule.vectorize(scale(), "j"), "j")) == (
        "scale: loop j is vectorized already"
    )
    assert refusal(lambda: schedule.bind(scale(), "i", LoopKind.PARALLEL)) == (
        "a loop is bound to a block or a thread, not to parallel"
    )
    bound = schedule.bind(scale(), "i", LoopKind.BLOCK_X)
    assert refusal(lambda: schedule.bind(bound, "j", LoopKind.BLOCK_X)) == (
        "scale: blockIdx.x is bound to loop i already"
    )


def test_threads_stay_outside() -> None:
    """Found wrong: a copy, or the loop that a split makes, between two loops that threads share."""
    kernel = schedule.parallel(schedule.parallel(scale(), "i"), "j")
    why = "scale: parallel loop j would be inside loop {}, or what is in it\n  = hint: make loops parallel last"
    assert refusal(lambda: schedule.cache_read(kernel, X, "i")) == why.format("i")
    assert refusal(lambda: schedule.split(kernel, "i", 2)) == why.format("i_outer")


def test_iterations_of_fused_loops_are_known_to_keep_apart() -> None:
    """By quotient and remainder, whether or not what is stored lies side by side."""
    z = Buffer("z", (8, 9, 7), "float32")

    def store(i: LoopExpr, j: LoopExpr, k: LoopExpr) -> Stmt:
        return Store(z, (i + 1, j * 2, k + 2), X[i, j] * X[i, k])

    zero = loop(8, lambda i: loop(9, lambda j: loop(7, lambda k: Store(z, (i, j, k), const(0, "float32")))))
    nest = loop(6, lambda i: loop(5, lambda j: loop(4, lambda k: store(i, j, k), name="c"), name="b"), name="a")
    kernel = Kernel("apart", (X, z), seq(zero, nest))
    check(kernel, schedule.parallel(schedule.fuse(kernel, "a", "b", "c"), "a_b_c"))
    check(kernel, schedule.vectorize(schedule.fuse(kernel, "b", "c"), "b_c"))
    meets = schedule.fuse(matmul(), "i", "j")
    check(matmul(), schedule.parallel(meets, "i_j"))
    total = sums(lambda z, i, k: z + X[i, k])
    fused = schedule.fuse(total, "r", "s")
    assert "loop r_s is a reduction into z" in refusal(lambda: schedule.vectorize(fused, "r_s"))
    halves = Kernel(
        "halves", (X, Y), seq(rows(), loop(12, lambda i: Store(Y, (i // 3, i % 2), X[i // 3, i % 2]), name="v"))
    )
    assert (
        refusal(lambda: schedule.parallel(halves, "v")) == "halves: iterations of loop v depend on each other through y"
    )


def test_fused_loops_of_open_sizes_are_known_to_keep_apart() -> None:
    """Quotient and remainder by a number that only a run knows, around a loop of which every position is stored to."""
    n, m = symbol("n"), symbol("m")
    x, y = (Buffer(name, (4, n, m), "float32") for name in "xy")  # type: ignore[arg-type]

    def kernel(step: int) -> Kernel:
        def row(i: LoopExpr, j: LoopExpr) -> Stmt:
            return loop(4, lambda r: Store(y, (r, i, j // step), x[r, i, j]), name="r")

        return Kernel("open", (x, y), nest((n, m), row, names="ij"))  # type: ignore[arg-type]

    steps = ["i_j = fuse(i, j)", "i_j_outer, i_j_inner, i_j_tail, r_1 = split(i_j, 8, 'peel')", "vectorize(i_j_inner)"]
    made = schedule.replay(kernel(1), [*steps[:2], "reorder(r, i_j_inner)", steps[2], "parallel(i_j_outer)"])
    assert "vectorized i_j_inner in 8" in str(made.kernel) and "parallel i_j_outer in" in str(made.kernel)
    why = "open: iterations of loop i_j_outer depend on each other through y"
    assert refusal(lambda: schedule.replay(kernel(2), [*steps[:2], "parallel(i_j_outer)"])) == why


def rows() -> Stmt:
    return loop(6, lambda i: loop(10, lambda j: Store(Y, (i, j), X[i, j]), name="j"), name="i")
