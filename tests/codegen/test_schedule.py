"""Schedule steps: the text before and after, the same numbers, and every reason to refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minitvm.codegen import schedule
from minitvm.errors import ScheduleError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Const,
    Kernel,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    const,
    intrin,
    loop,
    minimum,
    seq,
)
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.text import print_kernel
from minitvm.ir.loop.verify import verify_kernel

A, B, C = Buffer("a", (6, 5), "float32"), Buffer("b", (5, 8), "float32"), Buffer("c", (6, 8), "float32")


def matmul() -> Kernel:
    def element(i: LoopExpr, j: LoopExpr) -> Stmt:
        zero = Store(C, (i, j), const(0, "float32"))
        update = loop(5, lambda k: Store(C, (i, j), C[i, j] + A[i, k] * B[k, j]), name="k")
        return seq(zero, update)

    return Kernel("matmul", (A, B, C), loop(6, lambda i: loop(8, lambda j: element(i, j), name="j"), name="i"))


X, Y = Buffer("x", (6, 10), "float32"), Buffer("y", (6, 10), "float32")


def scale() -> Kernel:
    body = loop(6, lambda i: loop(10, lambda j: Store(Y, (i, j), X[i, j] * const(2, "float32")), name="j"), name="i")
    return Kernel("scale", (X, Y), body)


def prefix_sum() -> Kernel:
    first = loop(6, lambda i: Store(Y, (i, Const(0)), X[i, 0]), name="first")
    rest = loop(6, lambda i: loop(9, lambda j: Store(Y, (i, j + 1), Y[i, j] + X[i, j + 1]), name="j"), name="i")
    return Kernel("prefix_sum", (X, Y), seq(first, rest))


def shifted() -> Kernel:
    """A temporary, then a window of three over it."""
    t, y = Buffer("t", (6, 10), "float32"), Buffer("y", (6, 8), "float32")
    fill = loop(6, lambda p: loop(10, lambda q: Store(t, (p, q), intrin("exp", X[p, q])), name="q"), name="p")
    window = loop(
        6, lambda i: loop(8, lambda j: Store(y, (i, j), t[i, j] + t[i, j + 1] + t[i, j + 2]), name="j"), name="i"
    )
    return Kernel("shifted", (X, y), Alloc(t, seq(fill, Barrier(), window)))


def check(before: Kernel, after: Kernel, expected: str | None = None, exact: bool = True) -> Kernel:
    """The same numbers, a well-formed kernel, and (where given) this text of its body."""
    verify_kernel(after)
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=b.shape).astype(b.dtype) for b in before.inputs]
    want, have = run_kernel(before, *arrays), run_kernel(after, *arrays, check_races=True)
    for w, h in zip(want, have, strict=True):
        np.testing.assert_allclose(h, w, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    if expected is not None:
        assert print_kernel(after).split("\n", 1)[1] == expected
    return after


def refusal(step: Callable[[], Kernel]) -> str:
    with pytest.raises(ScheduleError) as error:
        step()
    return str(error.value)


# --- split, fuse, tile ----------------------------------------------------------------------------------------


def test_text_before() -> None:
    assert (
        print_kernel(matmul())
        == """\
kernel matmul(a: float32[6, 5], b: float32[5, 8]) -> c: float32[6, 8]
  for i in 6:
    for j in 8:
      c[i, j] = 0f
      for k in 5:
        c[i, j] = c[i, j] + a[i, k] * b[k, j]
"""
    )


def test_split_exact() -> None:
    check(scale(), schedule.split(scale(), "j", 5, tail="exact"), """\
  for i in 6:
    for j_outer in 2:
      for j_inner in 5:
        y[i, j_outer * 5 + j_inner] = x[i, j_outer * 5 + j_inner] * 2f
""")  # fmt: skip


def test_split_guards_the_last_round() -> None:
    check(scale(), schedule.split(scale(), "j", 4), """\
  for i in 6:
    for j_outer in 3:
      for j_inner in 4:
        if j_outer * 4 + j_inner < 10:
          y[i, j_outer * 4 + j_inner] = x[i, j_outer * 4 + j_inner] * 2f
""")  # fmt: skip


def test_split_shortens_the_last_round() -> None:
    check(scale(), schedule.split(scale(), "j", 4, tail="shorter"), """\
  for i in 6:
    for j_outer in 3:
      for j_inner in min(4, 10 - j_outer * 4):
        y[i, j_outer * 4 + j_inner] = x[i, j_outer * 4 + j_inner] * 2f
""")  # fmt: skip


def test_split_peels_what_is_left_over() -> None:
    check(scale(), schedule.split(scale(), "j", 4, tail="peel"), """\
  for i in 6:
    for j_outer in 2:
      for j_inner in 4:
        y[i, j_outer * 4 + j_inner] = x[i, j_outer * 4 + j_inner] * 2f
    for j_tail in 2:
      y[i, j_tail + 8] = x[i, j_tail + 8] * 2f
""")  # fmt: skip


def test_split_by_more_than_there_is() -> None:
    check(matmul(), schedule.split(matmul(), "j", 16, tail="peel"))
    check(matmul(), schedule.split(matmul(), "k", 16, tail="guard"))


def test_peeled_loops_have_variables_of_their_own() -> None:
    peeled = check(matmul(), schedule.split(matmul(), "i", 4, tail="peel"))
    variables = [f.var for f in schedule.loops(peeled)]
    assert len(set(variables)) == len(variables) == 7


def test_fuse() -> None:
    check(scale(), schedule.fuse(scale(), "i", "j"), """\
  for i_j in 60:
    y[i_j // 10, i_j % 10] = x[i_j // 10, i_j % 10] * 2f
""")  # fmt: skip


def test_tile() -> None:
    tiled = schedule.tile(scale(), "i", "j", 3, 5, tail="exact")
    assert [f.var.name for f in schedule.loops(tiled)] == ["i_outer", "j_outer", "i_inner", "j_inner"]
    check(scale(), tiled)


def test_split_refusals() -> None:
    assert refusal(lambda: schedule.split(scale(), "j", 4, tail="exact")) == (
        "scale: the 10 iterations of loop j are not divisible by 4\n  = hint: tail='guard' or tail='peel'"
    )
    assert refusal(lambda: schedule.split(scale(), "j", 4, tail="none")) == (
        "unknown tail 'none'\n  = hint: one of guard, shorter, peel, exact"
    )
    assert refusal(lambda: schedule.split(scale(), "j", 0)) == "scale: loop j cannot be split by 0"
    assert refusal(lambda: schedule.split(scale(), "k", 2)) == "scale has no loop k\n  = hint: its loops: i, j"
    assert refusal(lambda: schedule.split(schedule.vectorize(scale(), "j"), "j", 2)) == (
        "scale: loop j is vectorized\n  = hint: split first, then vectorize the inner loop"
    )


def triangle() -> Kernel:
    zero = loop(6, lambda i: loop(10, lambda j: Store(Y, (i, j), const(0, "float32")), name="j"), name="i")
    body = loop(6, lambda r: loop(minimum(r + 1, 4), lambda s: Store(Y, (r, s), X[r, s]), name="s"), name="r")
    return Kernel("triangle", (X, Y), seq(zero, body))


def test_extents_that_vary_are_refused() -> None:
    expected = "triangle: the extent of loop s is not a constant"
    for step in (schedule.unroll, schedule.vectorize, lambda k, v: schedule.split(k, v, 2)):
        assert refusal(lambda step=step: step(triangle(), "s")) == expected
    assert refusal(lambda: schedule.reorder(triangle(), "s", "r")) == (
        "triangle: the extent of loop s depends on a loop that it would leave"
    )


def test_name_of_two_loops_is_refused() -> None:
    twice = schedule.split(schedule.split(scale(), "j", 5), "i", 3)
    peeled = schedule.split(twice, "i_inner", 2, tail="peel")
    assert refusal(lambda: schedule.unroll(peeled, "j_outer")) == (
        "scale has 2 loops j_outer\n  = hint: pass the variable of the one that is meant: loops(kernel)"
    )
    inner = [f.var for f in schedule.loops(peeled) if f.var.name == "j_inner"]
    check(scale(), schedule.unroll(peeled, inner[1]))


def test_fuse_refusals() -> None:
    assert refusal(lambda: schedule.fuse(matmul(), "j", "k")) == (
        "matmul: loop k is not perfectly nested in loop j\n"
        "  = hint: nothing may stand between the two; cache_write moves an accumulator out of the way"
    )
    mixed = schedule.parallel(scale(), "i")
    assert refusal(lambda: schedule.fuse(mixed, "i", "j")) == "scale: loop i is parallel, loop j serial"


def test_tile_refusals() -> None:
    assert refusal(lambda: schedule.tile(scale(), "i", "j", 4, 5)) == (
        "scale: the 6 iterations of loop i are not divisible by 4\n"
        "  = hint: a guard would stand between the loops; split with tail='peel' first"
    )
    assert refusal(lambda: schedule.tile(matmul(), "j", "k", 2, 5)).startswith("matmul: loop k is not perfectly nested")


# --- order ----------------------------------------------------------------------------------------------------


def test_reorder() -> None:
    check(scale(), schedule.reorder(scale(), "j", "i"), """\
  for j in 10:
    for i in 6:
      y[i, j] = x[i, j] * 2f
""")  # fmt: skip


def sums(value: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr]) -> Kernel:
    """``z[i] = value(z[i], ...)`` over two loops."""
    z = Buffer("z", (6,), "float32")
    zero = loop(6, lambda i: Store(z, (i,), const(0, "float32")), name="zero")
    body = loop(
        6,
        lambda i: loop(2, lambda r: loop(5, lambda s: Store(z, (i,), value(z[i], i, r * 5 + s)), name="s"), name="r"),
        name="i",
    )
    return Kernel("sums", (X, z), seq(zero, body))


def test_reorder_of_a_sum_keeps_it_up_to_rounding() -> None:
    total = sums(lambda z, i, k: z + X[i, k])
    swapped = check(total, schedule.reorder(total, "s", "r"), exact=False)
    assert [f.var.name for f in schedule.loops(swapped)] == ["zero", "i", "s", "r"]
    check(total, schedule.reorder(total, "r", "s", "i"))  # each sum in its order: bit for bit


def test_reorder_that_changes_results_is_refused() -> None:
    horner = sums(lambda z, i, k: z * X[i, k] + X[i, k])
    assert refusal(lambda: schedule.reorder(horner, "s", "r")) == (
        "sums: loops s and r cannot change places: iterations depend on each other through z"
    )
    last_wins = sums(lambda z, i, k: X[i, k])
    assert "cannot change places" in refusal(lambda: schedule.reorder(last_wins, "s", "r"))


def test_reorder_refuses_imperfect_nests() -> None:
    assert refusal(lambda: schedule.reorder(matmul(), "k", "j")).startswith(
        "matmul: loop k is not perfectly nested in loop j"
    )


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


# --- memory ---------------------------------------------------------------------------------------------------


def test_cache_write_keeps_the_sum_in_a_register() -> None:
    check(matmul(), schedule.cache_write(matmul(), C, "j"), """\
  for i in 6:
    for j in 8:
      alloc c_local: float32[1, 1] local:
        c_local[0, 0] = 0f
        for k in 5:
          c_local[0, 0] = c_local[0, 0] + a[i, k] * b[k, j]
        for u in 1:
          for v in 1:
            c[i + u, j + v] = c_local[u, v]
""")  # fmt: skip


def test_cache_write_of_a_row() -> None:
    cached = schedule.cache_write(matmul(), C, "i", scope="shared")
    assert "alloc c_shared: float32[1, 8] shared" in str(cached)
    check(matmul(), cached)


def test_cache_read_copies_what_an_iteration_reads() -> None:
    cached = schedule.cache_read(matmul(), B, "j")
    assert "alloc b_local: float32[5, 1] local" in str(cached)
    check(matmul(), cached)
    split = schedule.split(matmul(), "j", 3)
    guarded = schedule.cache_read(split, B, "j_outer", scope="shared")
    assert "alloc b_shared: float32[5, 3] shared" in str(guarded)
    assert "if j_outer * 3 + v < 8:" in str(guarded)  # the last round reaches over the edge
    check(matmul(), guarded)


def test_compute_at_moves_the_producer_to_its_reader() -> None:
    kernel = shifted()
    t = kernel.body.buffer  # type: ignore[attr-defined]
    moved = schedule.compute_at(kernel, t, "i")
    check(kernel, moved, """\
  for i in 6:
    alloc t: float32[1, 10] local:
      for u in 1:
        for v in 10:
          t[u, v] = exp(x[i + u, v])
      for j in 8:
        y[i, j] = t[0, j] + t[0, j + 1] + t[0, j + 2]
""")  # fmt: skip
    check(kernel, schedule.compute_at(kernel, t, "j"))


def test_memory_refusals() -> None:
    kernel = matmul()
    assert refusal(lambda: schedule.cache_read(kernel, X, "j")) == ("matmul has no buffer x\n  = hint: it has: a, b, c")
    assert refusal(lambda: schedule.cache_read(kernel, C, "j")) == (
        "matmul: loop j stores to c, so a copy would be out of date"
    )
    assert refusal(lambda: schedule.cache_read(scale(), Y, "j")) == "scale: loop j does not read y"
    assert refusal(lambda: schedule.cache_write(scale(), X, "j")) == "scale: loop j does not store to x"
    assert refusal(lambda: schedule.cache_write(kernel, C, "k")) == (
        "matmul: loop k does not store all of its part of c before it reads it\n"
        "  = hint: the loops of the reduction must be inside, and no condition around the store"
    )
    guarded = schedule.split(scale(), "j", 4)
    assert refusal(lambda: schedule.cache_write(guarded, Y, "j_outer")).startswith(
        "scale: loop j_outer does not store all of its part of y"
    )
    assert refusal(lambda: schedule.compute_at(kernel, A, "j")) == (
        "matmul: a is a parameter; only memory of the kernel can move"
    )


def test_compute_at_refusals() -> None:
    kernel = shifted()
    t = kernel.body.buffer  # type: ignore[attr-defined]
    assert refusal(lambda: schedule.compute_at(kernel, t, "p")) == "shifted: loop p computes t itself"
    fused = schedule.fuse(kernel, "p", "q")
    assert refusal(lambda: schedule.compute_at(fused, t, "i")) == (
        "shifted: t is not stored by one perfect nest with a loop for each dimension"
    )


def test_region_that_is_no_box_is_refused() -> None:
    kernel = Kernel("square", (X, Y), loop(6, lambda i: loop(2, lambda j: Store(Y, (i, j), X[i, i % 4 + j]), name="j")))
    check_box = refusal(lambda: schedule.cache_read(triangular(), X, "r"))
    assert check_box == "gather: what loop r touches of x is no box of constant size (dimension 1)"
    assert "alloc x_local: float32[1, 2] local" in str(schedule.cache_read(kernel, X, schedule.loops(kernel)[0].var))


def triangular() -> Kernel:
    body = loop(6, lambda r: loop(2, lambda s: Store(Y, (r, s), X[r, s] + X[r, r]), name="s"), name="r")
    return Kernel("gather", (X, Y), body)


# --- all of it ------------------------------------------------------------------------------------------------


def test_a_matmul_step_by_step() -> None:
    kernel = matmul()
    kernel = schedule.split(kernel, "j", 4, tail="exact")
    kernel = schedule.cache_write(kernel, C, "i")
    kernel = schedule.parallel(kernel, "i")
    kernel = schedule.unroll(kernel, "j_outer")
    check(matmul(), kernel)
