"""Where allocations lie."""

from __future__ import annotations

from minitvm.codegen.backend import STACK_LIMIT, plan_workspace
from minitvm.ir.loop import Alloc, Buffer, Kernel, Stmt, const, loop, seq, store

OUT = Buffer("out", (4,), "float32")


def use(*buffers: Buffer) -> Stmt:
    return seq(*(store(b, (0,), const(1, b.dtype)) for b in (*buffers, OUT)))


def kernel(body: Stmt) -> Kernel:
    return Kernel("k", (OUT,), body)


def test_globals_never_overlap_and_start_at_cache_lines() -> None:
    a, b = Buffer("a", (3,), "float32"), Buffer("b", (100,), "int8")
    plan = plan_workspace(kernel(seq(Alloc(a, use(a)), Alloc(b, use(b)))), threads=4)
    assert plan.offsets == {a: 0, b: 64}
    assert (plan.nbytes, plan.thread_bytes) == (192, 0)


def test_a_threads_own_buffers_overlap_where_they_do_not_live_together() -> None:
    whole = Buffer("whole", (16,), "float32")
    a, b, c = (Buffer(n, (32,), "float32", "shared") for n in "abc")
    body = Alloc(whole, seq(Alloc(a, Alloc(b, use(a, b))), loop(2, lambda i: Alloc(c, use(c)))))
    plan = plan_workspace(kernel(body), threads=3)
    assert plan.offsets == {whole: 0, a: 64, b: 192, c: 64}
    assert plan.per_thread == {a, b, c}
    assert (plan.thread_bytes, plan.nbytes) == (256, 64 + 3 * 256)
    assert plan_workspace(kernel(body), threads=1).offsets == plan.offsets


def test_local_buffers_stay_on_the_stack_until_they_are_large() -> None:
    small = Buffer("small", (STACK_LIMIT,), "int8", "local")
    large = Buffer("large", (STACK_LIMIT + 1,), "int8", "local")
    plan = plan_workspace(kernel(Alloc(small, Alloc(large, use(small, large)))))
    assert plan.offsets == {large: 0}
    assert plan.nbytes == STACK_LIMIT + 64
