"""Hand-written kernels, compiled and run, against numpy and the interpreter."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hand_written import PARALLEL, VECTORIZED, elementwise, packed, random_array, tiled_matmul
from native_kernel import run_native

from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    If,
    Kernel,
    LoopExpr,
    LoopKind,
    Prefetch,
    Stmt,
    const,
    intrin,
    loop,
    nest,
    select,
    seq,
    store,
)
from minitvm.ir.loop.interp import run_kernel
from minitvm.target import MachineModel

# --- loops and buffers ----------------------------------------------------------------------------------------


def test_a_prefetch_is_to_the_second_level() -> None:
    x, out = Buffer("x", (64,), "float32"), Buffer("out", (64,), "float32")
    body = loop(60, lambda i: seq(Prefetch(x[i + 4]), store(out, (i,), x[i])))
    text = emit(Kernel("k", (x, out), body), MachineModel(32, 16))
    assert "call void @llvm.prefetch.p0(ptr %v" in text and ", i32 0, i32 2, i32 1)" in text


def test_what_hardly_ever_holds_leaves_registers_to_the_rest() -> None:
    x, out = Buffer("x", (16,), "float32"), Buffer("out", (16,), "float32")

    def body(kind: LoopKind) -> Stmt:
        def element(i: LoopExpr) -> Stmt:
            rare = intrin("unlikely", x[i] < 0.0)
            return If(rare, store(out, (i,), -x[i]), store(out, (i,), x[i] + 1.0))

        return loop(16, element, kind)

    a = random_array((16,), "float32")
    for kind, weighed in ((LoopKind.SERIAL, ["!5", "!6"]), (VECTORIZED, [])):
        kernel = Kernel("k", (x, out), body(kind))
        assert re.findall(r"br i1 .*!prof (!\d)", emit(kernel, MachineModel(32, 16))) == weighed
        for found in (run_native(kernel, a), run_kernel(kernel, a)):
            np.testing.assert_array_equal(found[0], np.where(a < 0, -a, a + 1))


def test_elements_of_one_address() -> None:
    x, out = Buffer("x", (8,), "float32"), Buffer("out", (8,), "float32")
    told = [intrin("same_memory", x[2], x[2]), intrin("same_memory", x[2], out[2])]
    body = seq(*(store(out, (i,), select(same, const(1, "float32"), x[0])) for i, same in enumerate(told)))
    kernel = Kernel("k", (x, out), seq(body, loop(6, lambda i: store(out, (i + 2,), x[i]))))
    a = random_array((8,), "float32")
    for found in (run_native(kernel, a), run_kernel(kernel, a)):
        assert found[0].tolist() == [1.0, a[0], *a[:6]]


def test_vectorized_loop_around_loops_and_a_buffer_per_lane() -> None:
    """A reduction in every lane, into a buffer that each lane has for itself."""
    x, out = Buffer("x", (7, 20), "float32"), Buffer("out", (20,), "float32")
    acc = Buffer("acc", (2,), "float32", "local")

    def lane(j: LoopExpr) -> object:
        step = lambda k: store(acc, (k % 2,), acc[k % 2] + x[k, j])  # noqa: E731
        init = loop(2, lambda k: store(acc, (k,), const(0, "float32")))
        return Alloc(acc, seq(init, loop(7, step), store(out, (j,), acc[0] - acc[1])))

    a = random_array((7, 20), "float32")
    kernel = Kernel("columns", (x, out), loop(20, lane, VECTORIZED))
    np.testing.assert_allclose(run_native(kernel, a)[0], a[::2].sum(0) - a[1::2].sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run_kernel(kernel, a)[0], a[::2].sum(0) - a[1::2].sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lanes", [3, 13, 16, 24, 49, 61, 97, 112])
def test_accumulators_are_powers_of_two(lanes: int) -> None:
    """LLVM keeps any other vector as so many single elements from one block to the next."""
    x, out = Buffer("x", (5, lanes), "float32"), Buffer("out", (lanes,), "float32")
    acc = Buffer("acc", (lanes,), "float32", "local")
    clear = loop(lanes, lambda k: store(acc, (k,), const(0, "float32")), VECTORIZED)
    add = loop(5, lambda r: loop(lanes, lambda k: store(acc, (k,), acc[k] + x[r, k]), VECTORIZED))
    put = loop(lanes, lambda k: store(out, (k,), acc[k]), VECTORIZED)
    kernel = Kernel("sums", (x, out), Alloc(acc, seq(clear, add, put)))
    a = random_array((5, lanes), "float32")
    np.testing.assert_allclose(run_native(kernel, a)[0], a.sum(0), rtol=1e-5, atol=1e-6)
    found = re.findall(r"load <(\d+) x float>, ptr %[av]\d+, align 64", emit(kernel, MachineModel(64, 32)))
    assert all(int(n).bit_count() == 1 for n in found)


def test_lanes_that_depend_on_each_other_run_in_order() -> None:
    """All lanes add to one element: no lanes, a serial loop."""
    x, out = Buffer("x", (13,), "float32"), Buffer("out", (1,), "float32")
    acc = Buffer("acc", (1,), "float32", "local")
    total = loop(13, lambda i: store(acc, (0,), acc[0] + x[i]), VECTORIZED)
    kernel = Kernel(
        "total", (x, out), Alloc(acc, seq(store(acc, (0,), const(0, "float32")), total, store(out, (0,), acc[0])))
    )
    a = random_array((13,), "float32")
    np.testing.assert_allclose(run_native(kernel, a)[0], [a.sum()], rtol=1e-6)


def test_nested_vectorized_loops_and_extents_known_at_run_time() -> None:
    x, out = Buffer("x", (6, 8), "float32"), Buffer("out", (6, 8), "float32")
    body = lambda i, j: store(out, (i, j), x[i, j] * i.astype("float32") + j.astype("float32"))  # noqa: E731
    a, (i, j) = random_array((6, 8), "float32"), np.mgrid[:6, :8].astype(np.float32)
    both = Kernel("both", (x, out), nest((6, 8), body, VECTORIZED))
    np.testing.assert_allclose(run_native(both, a)[0], a * i + j, rtol=1e-6)
    fill = nest((6, 8), lambda i, j: store(out, (i, j), const(0, "float32")))
    triangle = loop(6, lambda i: loop(i + 1, lambda j: store(out, (i, j), x[i, j])))
    np.testing.assert_array_equal(run_native(Kernel("tril", (x, out), seq(fill, triangle)), a)[0], np.tril(a))
    lanes = loop(6, lambda i: loop(i + 1, lambda j: store(out, (i, j), x[i, j])), VECTORIZED)
    np.testing.assert_array_equal(run_native(Kernel("tril2", (x, out), seq(fill, lanes)), a)[0], np.tril(a))


def test_what_an_inner_loop_does_not_change_is_written_before_it() -> None:
    x, scale, out = Buffer("x", (5, 7, 6), "float32"), Buffer("s", (5,), "float32"), Buffer("out", (5, 7, 6), "float32")
    body = lambda i, j, k: store(out, (i, j, k), x[i, j, k] * scale[i // 2])  # noqa: E731
    kernel = Kernel("scaled", (x, scale, out), nest((5, 7, 6), body))
    *before, inner = emit(kernel, MachineModel(16, 16)).partition("= phi")[2].rpartition("= phi")
    assert "udiv" in before[0] and inner.count("= load float") == 1
    assert not re.search("udiv|urem", inner)
    a, b = random_array((5, 7, 6), "float32"), random_array((5,), "float32", 1)
    np.testing.assert_array_equal(run_native(kernel, a, b)[0], a * b[np.arange(5) // 2, None, None])


def test_a_read_stays_behind_its_condition() -> None:
    """The address is no element's where the condition does not hold."""
    x, out = Buffer("x", (3,), "float32"), Buffer("out", (9, 4), "float32")
    guarded = lambda i, j: seq(store(out, (i, j), const(0, "float32")), If(i < 3, store(out, (i, j), x[i])))  # noqa: E731
    kernel = Kernel("guarded", (x, out), nest((9, 4), guarded))
    text = emit(kernel, MachineModel(16, 16))
    assert text.index("= load float") > text.rindex("icmp slt")
    a = random_array((3,), "float32")
    np.testing.assert_array_equal(run_native(kernel, a)[0], np.repeat(np.append(a, [0] * 6), 4).reshape(9, 4))


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_tiled_matmul(threads: int, vector_bytes: int) -> None:
    lanes = vector_bytes // 4
    width = 2 * lanes
    a, b = random_array((18, 12), "float32", 1), random_array((12, 3 * width), "float32", 2)
    machine = MachineModel(vector_bytes, 16, features=machine_model(host()).features)
    kernel = tiled_matmul(18, 3 * width, 12, lanes)
    (found,) = run_native(kernel, *packed(a, b, 6, width), threads=threads, machine=machine)
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-5)


# --- threads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_parallel_loops_divide_all_iterations(threads: int, n: int) -> None:
    x, out = Buffer("x", (n, 3), "float32"), Buffer("out", (n, 3), "float32")
    kernel = Kernel("rows", (x, out), nest((n, 3), lambda i, j: store(out, (i, j), x[i, j] + 1.0), PARALLEL))
    a = random_array((n, 3), "float32")
    np.testing.assert_array_equal(run_native(kernel, a, threads=threads)[0], a + 1)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_barriers_and_workspaces(threads: int) -> None:
    """Thread 0 prepares, all work, all read what the others wrote; every thread has scratch of its own."""
    n = 37
    x, out = Buffer("x", (n,), "float32"), Buffer("out", (n,), "float32")
    doubled, total = Buffer("doubled", (n,), "float32"), Buffer("total", (1,), "float32")
    scratch = Buffer("scratch", (16,), "float32", "shared")
    first = seq(store(total, (0,), const(0, "float32")), loop(n, lambda i: store(total, (0,), total[0] + x[i])))
    middle = loop(n, lambda i: store(doubled, (i,), x[i] * 2.0), PARALLEL)

    def last(i: LoopExpr) -> object:
        fill = loop(16, lambda s: store(scratch, (s,), doubled[(i + s) % n]))
        return seq(fill, store(out, (i,), scratch[0] + scratch[15] + total[0]))

    body = seq(first, middle, Barrier(), Alloc(scratch, loop(n, last, PARALLEL)))
    kernel = Kernel("phases", (x, out), Alloc(doubled, Alloc(total, body)))
    a = random_array((n,), "float32")
    i = np.arange(n)
    (found,) = run_native(kernel, a, threads=threads)
    np.testing.assert_allclose(found, 2 * a + 2 * a[(i + 15) % n] + a.sum(), rtol=1e-5, atol=1e-5)


def test_barriers_in_a_serial_loop_that_all_threads_run() -> None:
    """Pointer jumping: each round reads what every thread wrote in the round before."""
    n, rounds = 32, 5
    x, out = Buffer("x", (n,), "int32"), Buffer("out", (n,), "int32")
    state = Buffer("state", (2, n), "int32")
    start = loop(n, lambda i: store(state, (0, i), x[i]), PARALLEL)

    def jump(r: LoopExpr) -> object:
        far = lambda i: state[r % 2, (i + 7) % n] + state[r % 2, i]  # noqa: E731
        return seq(loop(n, lambda i: store(state, ((r + 1) % 2, i), far(i)), PARALLEL), Barrier())

    finish = loop(n, lambda i: store(out, (i,), state[rounds % 2, i]), PARALLEL)
    kernel = Kernel("jumps", (x, out), Alloc(state, seq(start, Barrier(), loop(rounds, jump), finish)))
    a = random_array((n,), "int32")
    expected = a
    for _ in range(rounds):
        expected = expected + np.roll(expected, -7)
    for threads in (1, 2, 4):
        np.testing.assert_array_equal(run_native(kernel, a, threads=threads)[0], expected)


def test_large_local_buffers_leave_the_stack() -> None:
    n = 40_000
    x, out = Buffer("x", (n,), "float32"), Buffer("out", (3, n), "float32")
    copy = Buffer("copy", (n,), "float32", "local")

    def row(r: LoopExpr) -> object:
        fill = loop(n, lambda i: store(copy, (i,), x[i] + r.astype("float32")), VECTORIZED)
        return Alloc(copy, seq(fill, loop(n, lambda i: store(out, (r, i), copy[n - 1 - i]), VECTORIZED)))

    a = random_array((n,), "float32")
    (found,) = run_native(Kernel("large", (x, out), loop(3, row, PARALLEL)), a, threads=2)
    np.testing.assert_array_equal(found, np.stack([(a + np.float32(r))[::-1] for r in range(3)]))


# --- text -----------------------------------------------------------------------------------------------------


def test_a_barrier_inside_a_parallel_loop_is_refused() -> None:
    out = Buffer("out", (4,), "float32")
    body = loop(4, lambda i: seq(store(out, (i,), const(0, "float32")), Barrier()), PARALLEL)
    with pytest.raises(CompilerError) as caught:
        emit(Kernel("bad", (out,), body), machine_model(host()))
    assert str(caught.value) == (
        "bad: a barrier inside a parallel loop, which threads reach different numbers of times\n"
        "  = hint: on a CPU barriers stand between loop nests, outside of any parallel loop"
    )


def test_a_loop_bound_to_a_gpu_is_refused() -> None:
    out = Buffer("out", (4,), "float32")
    kernel = Kernel("bad", (out,), loop(4, lambda i: store(out, (i,), const(0, "float32")), LoopKind.THREAD_X))
    with pytest.raises(CompilerError) as caught:
        emit(kernel, machine_model(host()))
    assert str(caught.value) == (
        "bad: a loop bound to threadIdx.x has no meaning on a CPU\n  = hint: lower the function for kind 'llvm'"
    )


def test_shared_nodes_are_written_once() -> None:
    def doubled(x: LoopExpr) -> LoopExpr:
        for _ in range(400):
            x = x + x
        return x

    text = emit(elementwise(8, ["float32"], "float32", doubled), machine_model(host()))
    assert text.count("fadd") == 400


def test_guards_that_ranges_decide_leave_no_branch() -> None:
    x, out = Buffer("x", (8, 8), "float32"), Buffer("out", (8, 8), "float32")
    inside = lambda i, j: select((i * 8 + j) < 64, x[i, (i * 8 + j) % 8], 0.0)  # noqa: E731
    body = loop(8, lambda i: loop(8, lambda j: store(out, (i, j), inside(i, j)), VECTORIZED))
    text = emit(Kernel("decided", (x, out), body), machine_model(host()))
    assert "select" not in text and "urem" not in text and "load <8 x float>" in text


@pytest.mark.parametrize("block", [3, 4, 7, 8])
def test_a_split_position_is_one_number_whatever_else_is_divided(block: int) -> None:
    """``x[work % 4, p // 9, p % 9 // 3, p % 3]`` with a ``p`` that holds ``work // 4``: neighbours in memory."""
    x, out = (Buffer(name, (4, 3 * block, 3, 3), "float32") for name in ("x", "out"))
    machine = machine_model(host())

    def work(i: LoopExpr) -> Stmt:
        def lane(v: LoopExpr, j: LoopExpr) -> Stmt:
            p = (i // 4 * 3 + v) * 3 * block + j
            index = (i % 4, p // 3 // 3, p // 3 % 3, p % 3)
            return store(out, index, x[index] + 1.0)

        return loop(3, lambda v: loop(3 * block, lambda j: lane(v, j), VECTORIZED))

    kernel = Kernel("split", (x, out), loop(12, work, LoopKind.PARALLEL))
    given = random_array(x.shape, "float32")
    (found,) = run_native(kernel, given)
    np.testing.assert_array_equal(found, given + 1)
    assert not re.search(r"insertelement .*, i64 [1-9]", emit(kernel, machine))
