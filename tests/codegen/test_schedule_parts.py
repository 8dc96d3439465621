"""Schedule steps that take loops apart, and copies in other layouts: the text, the same numbers, every refusal."""

from __future__ import annotations

from small_kernels import A, B, C, X, check, matmul, padded, prefix_sum, refusal, scale, shifted, wavefront

from minitvm.codegen import schedule
from minitvm.codegen.loops import or_zero
from minitvm.codegen.simplify import simplify
from minitvm.ir.loop import Buffer, Const, Kernel, LoopExpr, Stmt, Store, const, loop, seq

# --- partition ------------------------------------------------------------------------------------------------


def test_partition_where_it_is_told() -> None:
    check(scale(), schedule.partition(scale(), "j", (4, 9)), """\
  for i in 6:
    for j_0 in 4:
      y[i, j_0] = x[i, j_0] * 2f
    for j_1 in 5:
      y[i, j_1 + 4] = x[i, j_1 + 4] * 2f
    for j_2 in 1:
      y[i, j_2 + 9] = x[i, j_2 + 9] * 2f
""")  # fmt: skip


def test_partition_takes_padding_out_of_the_inner_loop() -> None:
    check(padded(), schedule.partition(padded(), "j"), """\
  for i in 6:
    for j_0 in 1:
      z[i, j_0] = 0f
      for k in 3:
        z[i, j_0] = z[i, j_0] + select(0 <= j_0 + k - 1, x[i, j_0 + k - 1], 0f)
    for j_1 in 8:
      z[i, j_1 + 1] = 0f
      for k in 3:
        z[i, j_1 + 1] = z[i, j_1 + 1] + x[i, j_1 + 1 + k - 1]
    for j_2 in 1:
      z[i, j_2 + 9] = 0f
      for k in 3:
        z[i, j_2 + 9] = z[i, j_2 + 9] + select(j_2 + 9 + k - 1 < 10, x[i, j_2 + 9 + k - 1], 0f)
""")  # fmt: skip


def test_partition_leaves_out_parts_that_do_nothing() -> None:
    guarded = schedule.vectorize(schedule.split(scale(), "j", 4), "j_inner")
    ragged = schedule.partition(guarded, "j_outer", (2,))
    (last,) = [f.var for f in schedule.loops(ragged) if f.var.name == "j_inner"][1:]
    check(scale(), schedule.partition(ragged, last), """\
  for i in 6:
    for j_outer_0 in 2:
      vectorized j_inner in 4:
        y[i, j_outer_0 * 4 + j_inner] = x[i, j_outer_0 * 4 + j_inner] * 2f
    for j_outer_1 in 1:
      vectorized j_inner_0 in 2:
        y[i, (j_outer_1 + 2) * 4 + j_inner_0] = x[i, (j_outer_1 + 2) * 4 + j_inner_0] * 2f
""")  # fmt: skip


def test_partition_refusals() -> None:
    assert refusal(lambda: schedule.partition(scale(), "j")) == (
        "scale: no condition in loop j changes along it\n  = hint: or in too many places; at= says where to cut it"
    )
    for at in ((0,), (10,), (5, 3)):
        said = refusal(lambda at=at: schedule.partition(scale(), "j", at))
        assert said == f"scale: loop j of 10 iterations cannot be cut at {', '.join(map(str, at))}"


# --- fission, distribute, predicate -----------------------------------------------------------------------------


def test_fission() -> None:
    cut = schedule.partition(scale(), "j", (8,))
    check(scale(), schedule.fission(cut, "i"), """\
  for i in 6:
    for j_0 in 8:
      y[i, j_0] = x[i, j_0] * 2f
  for i in 6:
    for j_1 in 2:
      y[i, j_1 + 8] = x[i, j_1 + 8] * 2f
""")  # fmt: skip


def test_fission_refusals() -> None:
    meet = "wavefront: iterations of loop i depend on each other through z"
    cut = schedule.partition(wavefront(), "j", (4,))
    assert refusal(lambda: schedule.fission(cut, "i")) == meet
    check(prefix_sum(), schedule.fission(schedule.partition(prefix_sum(), "j", (4,)), "i"))
    assert refusal(lambda: schedule.fission(scale(), "j")) == (
        "scale: loop j is not directly around several statements\n"
        "  = hint: distribute moves memory in the loop out of it"
    )
    parallel = schedule.parallel(schedule.partition(scale(), "j", (4,)), "i")
    assert refusal(lambda: schedule.fission(parallel, "i")) == "scale: loop i is parallel\n  = hint: fission first"


def test_partial_sums_stay_in_memory() -> None:
    """A piece of the depth at a time: the sums of all columns in memory, those of a piece in a register."""
    s = schedule.Steps(matmul())
    s.do(schedule.cache_write, "c", "j")
    s.do(schedule.distribute, "j")
    s.do(schedule.partition, "k", (3,))
    s.do(schedule.reorder, "j_1", "k_0")
    s.do(schedule.cache_write, "c_local", "j_1")
    check(matmul(), simplify(s.kernel), """\
  for i in 6:
    alloc c_local: float32[8, 1, 1] shared:
      for j in 8:
        c_local[j, 0, 0] = 0f
      for j_1 in 8:
        alloc c_local_local: float32[1, 1, 1] local:
          c_local_local[0, 0, 0] = c_local[j_1, 0, 0]
          for k_0 in 3:
            c_local_local[0, 0, 0] = c_local_local[0, 0, 0] + a[i, k_0] * b[k_0, j_1]
          c_local[j_1, 0, 0] = c_local_local[0, 0, 0]
      for k_1 in 2:
        for j_1_1 in 8:
          c_local[j_1_1, 0, 0] = c_local[j_1_1, 0, 0] + a[i, k_1 + 3] * b[k_1 + 3, j_1_1]
      for j_2 in 8:
        c[i, j_2] = c_local[j_2, 0, 0]
""")  # fmt: skip


def test_loops_of_one_iteration_are_distributed_and_come_apart() -> None:
    one = schedule.split(schedule.cache_write(matmul(), C, "j"), "j", 1)
    text = str(check(matmul(), schedule.distribute(one, "j_inner")))
    assert "c_local: float32[1, 1] shared" in text and "for j_inner" not in text
    for extent in (1, 2):
        body = seq(Store(C, (Const(0), Const(0)), const(1, "float32")), Store(C, (Const(0), Const(0)), C[0, 1]))
        kernel = Kernel("twice", (C,), loop(extent, lambda _, body=body: body))
        if extent == 1:
            assert str(schedule.fission(kernel, "i")).count("for i in 1") == 2
        else:
            assert refusal(lambda kernel=kernel: schedule.fission(kernel, "i")).startswith(
                "twice: iterations of loop i"
            )


def test_predicate_asks_where_something_is_stored() -> None:
    """Lanes beyond the last column are computed from zeros of a panel, and not stored."""
    kernel = schedule.stage(schedule.cache_write(matmul(), C, "j"), B, None, "BA3b")
    kernel = schedule.split(kernel, "j", 3)
    kernel = schedule.jam(schedule.predicate(kernel, "j_inner"), "j_inner")
    text = str(check(matmul(), kernel))
    assert "alloc b_global: float32[3, 5, 3]" in text and text.count("if j_outer * 3 + j_inner < 8") == 1


def test_predicate_refusals() -> None:
    assert refusal(lambda: schedule.predicate(scale(), "j")) == (
        "scale: an iteration of loop j is not under one condition"
    )
    guarded = schedule.split(scale(), "j", 4)
    assert refusal(lambda: schedule.predicate(guarded, "j_inner")) == (
        "scale: without its condition loop j_inner may leave x, or read what is not there yet"
    )


# --- ragged ends of two axes --------------------------------------------------------------------------------------


def test_tile_with_ragged_ends_asks_nothing() -> None:
    check(scale(), schedule.tile(scale(), "i", "j", 4, 8, tail="peel"), """\
  for i_outer in 1:
    for j_outer in 1:
      for i_inner in 4:
        for j_inner in 8:
          y[i_outer * 4 + i_inner, j_outer * 8 + j_inner] = x[i_outer * 4 + i_inner, j_outer * 8 + j_inner] * 2f
  for i_outer in 1:
    for j_outer in 1:
      for i_inner in 4:
        for j_inner in 2:
          y[i_outer * 4 + i_inner, j_outer * 2 + j_inner + 8] = X0 * 2f
  for i_outer in 1:
    for j_outer in 1:
      for i_inner in 2:
        for j_inner in 8:
          y[i_outer * 2 + i_inner + 4, j_outer * 8 + j_inner] = X1 * 2f
  for i_outer in 1:
    for j_outer in 1:
      for i_inner in 2:
        for j_inner in 2:
          y[i_outer * 2 + i_inner + 4, j_outer * 2 + j_inner + 8] = X2 * 2f
""".replace("X0", "x[i_outer * 4 + i_inner, j_outer * 2 + j_inner + 8]")
   .replace("X1", "x[i_outer * 2 + i_inner + 4, j_outer * 8 + j_inner]")
   .replace("X2", "x[i_outer * 2 + i_inner + 4, j_outer * 2 + j_inner + 8]"))  # fmt: skip
    assert "cannot change places" in refusal(lambda: schedule.tile(wavefront(), "i", "j", 4, 4, tail="peel"))


# --- stage, prefetch ----------------------------------------------------------------------------------------------


def test_stage_makes_panels_of_a_matrix() -> None:
    check(matmul(), schedule.stage(matmul(), B, None, "BA3b"), """\
  alloc b_global: float32[3, 5, 3] global:
    for u in 3:
      for v in 5:
        for w in 3:
          b_global[u, v, w] = select(u * 3 + w < 8, b[v, u * 3 + w], 0f)
    barrier
    for i in 6:
      for j in 8:
        c[i, j] = 0f
        for k in 5:
          c[i, j] = c[i, j] + a[i, k] * b_global[j // 3, k, j % 3]
""")  # fmt: skip


def test_stage_copies_a_part_transposed() -> None:
    kernel = schedule.stage(schedule.split(matmul(), "j", 4), B, "j_outer", "BA", "shared")
    assert "alloc b_shared: float32[4, 5] shared" in str(check(matmul(), kernel))


def test_stage_of_padded_rows_leaves_no_condition_inside() -> None:
    check(padded(), schedule.stage(padded(), X, "i"), """\
  for i in 6:
    alloc x_local: float32[1, 12] local:
      for u in 1:
        for v in 12:
          x_local[u, v] = select((0 <= -1 + v) & (-1 + v < 10), x[i + u, -1 + v], 0f)
      for j in 10:
        z[i, j] = 0f
        for k in 3:
          z[i, j] = z[i, j] + x_local[0, j + k]
""")  # fmt: skip


def test_stage_keeps_a_choice_that_asks_something_else() -> None:
    z = Buffer("z", (6, 8), "float32")

    def some(i: LoopExpr, j: LoopExpr) -> Stmt:
        return Store(z, (i, j), or_zero((j >= 1) & (j < 7), X[i, j + 1]))

    kernel = Kernel("some", (X, z), loop(6, lambda i: loop(8, lambda j: some(i, j), name="j"), name="i"))
    assert "select((1 <= j) & (j < 7), x_local" in str(check(kernel, schedule.stage(kernel, X, "i")))


def test_stage_refusals() -> None:
    assert refusal(lambda: schedule.stage(matmul(), B, None, "BC")) == (
        "matmul: layout BC is none of b, whose dimensions are AB"
    )
    assert refusal(lambda: schedule.stage(shifted(), "t")) == (
        "shifted: t is no input, so a copy may be out of date\n  = hint: give the loop whose iterations copy their part"
    )
    assert refusal(lambda: schedule.stage(matmul(), C, "j")) == (
        "matmul: loop j stores to c, so a copy would be out of date"
    )


def test_prefetch_of_what_the_next_iteration_reads() -> None:
    kernel = schedule.split(matmul(), "j", 4, tail="exact")
    check(matmul(), schedule.prefetch(kernel, B, "k", "j_outer"), """\
  for i in 6:
    for j_outer in 2:
      for j_inner in 4:
        c[i, j_outer * 4 + j_inner] = 0f
        for k in 5:
          c[i, j_outer * 4 + j_inner] = c[i, j_outer * 4 + j_inner] + a[i, k] * b[k, j_outer * 4 + j_inner]
          prefetch b[k, min((j_outer + 1) * 4 + j_inner, 7)]
""")  # fmt: skip
    check(matmul(), schedule.prefetch(kernel, A, "i"))


def test_prefetch_refusals() -> None:
    assert refusal(lambda: schedule.prefetch(matmul(), B, "k", "k_outer")).startswith("matmul has no loop k_outer")
    assert refusal(lambda: schedule.prefetch(matmul(), A, "i", "j")) == "matmul: loop j is not around loop i"
    assert refusal(lambda: schedule.prefetch(matmul(), C, "k")) == "matmul: c may hold nothing yet where it is fetched"
