"""Schedules as lists of steps: what is printed, what is replayed, handles, and what is wrong with a line."""

from __future__ import annotations

import pytest
from small_kernels import B, C, check, matmul, refusal, scale, shifted

from minitvm.codegen import schedule
from minitvm.ir.loop import Buffer, Kernel, LoopKind, Store, const, nest, seq
from minitvm.ir.loop.text import print_kernel
from tests.steps import steps as count_lines


def register_tile() -> schedule.Steps:
    """A packed product: tiles of 3 rows by one vector of 4, a sum for each in registers."""
    s = schedule.Steps(matmul())
    s.do(schedule.stage, B, None, "BA4b")
    s.do(schedule.cache_write, C, "j")
    (row, column, tall, wide, *_), _ = s.do(schedule.tile, "i", "j", 3, 4)
    s.do(schedule.vectorize, wide)
    s.do(schedule.jam, tall)
    s.do(schedule.parallel, row)
    assert column.name == "j_outer"
    return s


def test_a_list_of_steps_is_the_schedule() -> None:
    made = register_tile()
    assert (
        str(made)
        == """\
u, v, w, b_global = stage(b, None, 'BA4b')
u_1, v_1, c_local = cache_write(c, j)
i_outer, j_outer, i_inner, j_inner = tile(i, j, 3, 4)
j_inner, j_inner_1, j_inner_2, c_local = vectorize(j_inner)
i_inner, j_inner, i_inner_1, j_inner_1, i_inner_2, j_inner_2, c_local = jam(i_inner)
parallel(i_outer)"""
    )
    check(matmul(), made.kernel, exact=False)
    again = schedule.replay(matmul(), str(made).splitlines())
    assert (print_kernel(again.kernel), str(again)) == (print_kernel(made.kernel), str(made))


@pytest.mark.parametrize("count", range(7))
def test_any_prefix_is_a_schedule(count: int) -> None:
    check(matmul(), schedule.replay(matmul(), register_tile().steps[:count]).kernel, exact=False)


def test_loops_of_one_name_get_names_of_their_own() -> None:
    s = schedule.Steps(shifted())
    assert [f.var.name for f in schedule.loops(s.kernel)] == ["p", "q", "i", "j"]
    (outer, inner, tail, copy), _ = s.do(schedule.split, "i", 4, "peel")
    assert [v.name for v in (outer, inner, tail, copy)] == ["i_outer", "i_inner", "i_tail", "j_1"]
    s.do(schedule.vectorize, "j_1")
    check(shifted(), s.kernel)


def test_handles_stay() -> None:
    """A loop's variable is the loop, whatever its line called the ones that came after it."""
    s = schedule.Steps(scale())
    i, j = (f.var for f in schedule.loops(s.kernel))
    (outer, inner), _ = s.do(schedule.split, j, 5, tail="exact")
    s.do(schedule.reorder, outer, i)
    s.do(schedule.bind, i, LoopKind.THREAD_X)
    s.do(schedule.unroll, inner)
    assert str(s).splitlines()[1:] == ["reorder(j_outer, i)", "bind(i, 'threadIdx.x')", "unroll(j_inner)"]
    check(scale(), schedule.replay(scale(), str(s).splitlines()).kernel)


def test_lines_may_name_what_they_make() -> None:
    s = schedule.replay(scale(), ["strips, lanes = split(j, 5, tail='exact')", "vectorize(lanes)", "parallel(i)"])
    check(scale(), s.kernel, """\
  parallel i in 6:
    for strips in 2:
      vectorized lanes in 5:
        y[i, strips * 5 + lanes] = x[i, strips * 5 + lanes] * 2f
""")  # fmt: skip


def test_lines_that_are_no_steps() -> None:
    for line in ("split(j, 5", "j.split(5)", "split(j, 2 + 3)", "import numpy", "x"):
        assert refusal(lambda line=line: schedule.replay(scale(), [line]).kernel) == (
            f"no step of a schedule: {line!r}\n  = hint: as in: j_outer, j_inner = split(j, 8, tail='exact')"
        )
    assert refusal(lambda: schedule.replay(scale(), ["interchange(i, j)"]).kernel).startswith(
        "there is no step interchange\n  = hint: there are: bind, cache_read, "
    )
    assert refusal(lambda: schedule.replay(scale(), ["split(j)"]).kernel).startswith(
        "split(j): missing a required argument: 'factor'\n  = hint: split(kernel"
    )
    assert refusal(lambda: schedule.replay(scale(), ["a = split(j, 5)"]).kernel) == (
        "scale: the step makes j_outer, j_inner, and has 1 names for it"
    )
    assert refusal(lambda: schedule.replay(scale(), ["a, i = split(j, 5)"]).kernel) == (
        "scale has a loop or a buffer i already"
    )
    assert refusal(lambda: schedule.replay(scale(), ["split(k, 5)"]).kernel) == (
        "scale has no loop k\n  = hint: its loops: i, j"
    )


def test_a_step_walks_what_it_changes() -> None:
    """Its work hardly grows with the nests beside the one that it is about."""

    def lines(nests: int) -> int:
        body = seq(*(nest((6, 8), lambda i, j: Store(out, (i, j), const(0, "float32"))) for _ in range(nests)))
        kernel = Kernel("k", (out,), body)
        for loop in schedule.loops(kernel):  # what is below them is looked at once
            schedule.find_loop(kernel, loop.var)
        last = schedule.loops(kernel)[-1].var
        return count_lines(lambda: schedule.vectorize(kernel, last))

    out = Buffer("out", (6, 8), "float32")
    assert lines(40) < 3 * lines(4)
