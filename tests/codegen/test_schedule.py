"""Schedule steps: the text before and after, the same numbers, and every reason to refuse."""

from __future__ import annotations

from small_kernels import A, B, C, X, Y, check, matmul, prefix_sum, refusal, scale, shifted, sums, triangle, wavefront

from minitvm.codegen import schedule
from minitvm.ir.loop import Kernel, Store, loop
from minitvm.ir.loop.text import print_kernel

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
        "  = hint: tail='peel' makes nests of what is left over"
    )
    assert refusal(lambda: schedule.tile(matmul(), "j", "k", 2, 5)).startswith("matmul: loop k is not perfectly nested")


# --- order ----------------------------------------------------------------------------------------------------


def test_reorder() -> None:
    check(scale(), schedule.reorder(scale(), "j", "i"), """\
  for j in 10:
    for i in 6:
      y[i, j] = x[i, j] * 2f
""")  # fmt: skip


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


def test_reorder_of_iterations_that_meet_across_both_loops() -> None:
    """Found wrong: along either loop alone nothing meets, from one corner to the other it does."""
    assert refusal(lambda: schedule.reorder(wavefront(), "j", "i")) == (
        "wavefront: loops j and i cannot change places: iterations depend on each other through z"
    )


def test_reorder_keeps_loops_and_kinds() -> None:
    """Found wrong: a loop named twice ran twice, lanes and threads changed places with loops around them."""
    assert refusal(lambda: schedule.reorder(scale(), "j", "j")) == "scale: a loop is named twice"
    lanes = schedule.vectorize(schedule.parallel(scale(), "i"), "j")
    assert refusal(lambda: schedule.reorder(lanes, "j", "i")) == (
        "scale: loop j is vectorized, and has to stay innermost"
    )
    threads = schedule.parallel(scale(), "i")
    assert refusal(lambda: schedule.reorder(threads, "j", "i")) == (
        "scale: loop i is parallel, and has to stay outermost"
    )


def test_reorder_refuses_imperfect_nests() -> None:
    assert refusal(lambda: schedule.reorder(matmul(), "k", "j")).startswith(
        "matmul: loop k is not perfectly nested in loop j"
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
    assert refusal(lambda: schedule.cache_write(prefix_sum(), Y, "i")) == (
        "prefix_sum: loop i does not store all of its part of y before it reads it, nor adds to all of it\n"
        "  = hint: the loops of the reduction must be inside, and no condition around the store"
    )
    guarded = schedule.split(scale(), "j", 4)
    assert refusal(lambda: schedule.cache_write(guarded, Y, "j_outer")).startswith(
        "scale: loop j_outer does not store all of its part of y"
    )
    assert refusal(lambda: schedule.compute_at(kernel, A, "j")) == (
        "matmul: a is a parameter; only memory of the kernel can move"
    )


def test_memory_has_a_place() -> None:
    """Found wrong: copies in lanes, of memory that lives further in, and for a loop that it does not reach."""
    kernel = schedule.cache_read(matmul(), A, "k")
    inside = "matmul: a_local is allocated inside loop k already"
    assert refusal(lambda: schedule.cache_write(kernel, "a_local", "k")) == inside
    assert refusal(lambda: schedule.compute_at(kernel, "a_local", "j")) == inside.replace("loop k", "loop j")
    lanes = schedule.vectorize(scale(), "j")
    for step in (schedule.cache_read, schedule.cache_write, schedule.stage):
        said = refusal(lambda step=step: step(lanes, X if step is not schedule.cache_write else Y, "j"))
        assert said == "scale: loop j is vectorized\n  = hint: a loop around it has memory for all lanes"


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
