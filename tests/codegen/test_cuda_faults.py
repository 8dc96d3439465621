"""Faults planted in kernels for a GPU: the interpreter names them, and they show on the simulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from test_cuda_emit import tiled
from test_cuda_templates import CASES, made
from test_cuda_templates import kernel_of as template_kernel

from minitvm.codegen.backend import backend_of
from minitvm.codegen.simplify import simplify
from minitvm.errors import CompilerError, MiniTVMError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    CopyAsync,
    CopyCommit,
    CopyWait,
    If,
    Kernel,
    LoopExpr,
    LoopKind,
    Seq,
    Stmt,
    Store,
    const,
    loop,
    map_stmt,
    select,
    seq,
    walk_stmts,
)
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.target import Target
from simulated_gpu import ORDERS, DeviceFault, host_compiler
from simulated_gpu.device import HostGroups
from tests.compilers import needs_compiler, only_simulated

BACKEND = backend_of(Target("cuda"), 1)
X = np.random.default_rng(0).normal(size=(5, 32)).astype("float32")
RACE = "{} {} an element of {} that another thread touched since the last barrier"


def replaced(kernel: Kernel, change: Callable[[Stmt], Stmt]) -> Kernel:
    return Kernel(**{**vars(kernel), "body": map_stmt(kernel.body, on_stmt=change)})


def without(kernel: Kernel, barrier: Stmt) -> Kernel:
    return replaced(kernel, lambda s: Seq(()) if s is barrier else s)


def block_of(*stmts: Callable[[LoopExpr, Buffer, Buffer, Buffer], Stmt]) -> Kernel:
    """Blocks that go through 32 elements each of x, y and shared memory t."""
    x, y, t = Buffer("x", (5, 32), "float32"), Buffer("y", (5, 32), "float32"), Buffer("t", (32,), "float32", "shared")
    body = loop(5, lambda i: Alloc(t, seq(*(s(i, x, y, t) for s in stmts))), LoopKind.BLOCK_X, name="i")
    return Kernel("planted", (x, y), body)


def threads(body: Callable[[LoopExpr], Stmt], count: int = 32) -> Stmt:
    return loop(count, body, LoopKind.THREAD_X, name="j")


def fill(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: Store(t, (j,), x[i, j]))


def read(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: Store(y, (i, j), t[Const(31) - j]))


def wait(*_: object) -> Stmt:
    return Barrier()


def fill_again(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: Store(t, (j,), x[i, Const(31) - j]))


def fill_some(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: If(j < 31, Store(t, (j,), x[i, j])))


def fill_one(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: Store(t, (j // 2,), x[i, j]))


def far(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: Store(y, (i, j), x[i + 4, j + 1]))


def far_in_shared(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: Store(t, (j + 1,), x[i, j]))


def some_wait(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    def thread(j: LoopExpr) -> Stmt:
        return seq(Store(t, (j,), x[i, j]), If(j < 20, Barrier()), Store(y, (i, j), t[j]))

    return threads(thread)


def first_sums(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    """By the first thread of the block."""
    return seq(*(Store(t, (Const(0),), t[0] + t[k]) for k in range(1, 32)))


def all_read_sum(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: Store(y, (i, j), t[0]))


def copy(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: CopyAsync(t, (j,), x[i, j]))


def copy_again(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: CopyAsync(t, (j,), x[i, Const(31) - j]))


def commit(*_: object) -> Stmt:
    return CopyCommit()


def arrive(*_: object) -> Stmt:
    return CopyWait(0)


def arrive_before(*_: object) -> Stmt:
    return CopyWait(1)


def copy_half(i: LoopExpr, x: Buffer, y: Buffer, t: Buffer) -> Stmt:
    return threads(lambda j: CopyAsync(t, (j,), select(j < 16, x[i, j], const(0, "float32"))))


PLANTED: dict[str, tuple[Kernel, str]] = {
    "no barrier": (block_of(fill, read), RACE.format("planted", "reads", "t")),
    "stored over": (block_of(fill, wait, read, fill_again), RACE.format("planted", "stores to", "t")),
    "two at one place": (block_of(fill_one, wait, read), "planted: two iterations store to the same element of t"),
    "no barrier after the first": (
        block_of(fill, wait, first_sums, all_read_sum),
        RACE.format("planted", "reads", "t"),
    ),
    "no barrier before the first": (
        block_of(fill, first_sums, wait, all_read_sum),
        RACE.format("planted", "reads", "t"),
    ),
    "unwritten": (block_of(fill_some, wait, read), "planted reads t before it is written"),
    "out of bounds": (block_of(far), "planted reaches outside of x: index 5 in dimension 0 of extent 5"),
    "out of shared memory": (block_of(far_in_shared), "planted reaches outside of t: index 32 in dimension 0"),
    "no wait for a copy": (block_of(copy, commit, wait, read), "planted reads t before it is waited for"),
    "no commit of a copy": (block_of(copy, arrive, wait, read), "planted reads t before it is waited for"),
    "a wait for earlier copies": (
        block_of(copy, commit, arrive_before, wait, read),
        "planted reads t before it is waited for",
    ),
    "no barrier behind a wait": (block_of(copy, commit, wait, arrive, read), RACE.format("planted", "reads", "t")),
    "copied over": (block_of(fill, wait, read, copy_again, commit, arrive), RACE.format("planted", "stores to", "t")),
    "divergent": (block_of(some_wait), "planted: a barrier that not all threads of a block reach"),
}
RIGHT = {
    "tiled": (tiled(), X[:, ::-1]),
    "twice": (block_of(fill, wait, read, wait, fill_again, wait, read), X),
    "copied": (block_of(copy, commit, arrive, wait, read), X[:, ::-1]),
    "zeros": (block_of(copy_half, commit, arrive, wait, read), np.where(np.arange(32) < 16, X, 0)[:, ::-1]),
    "one of two groups": (block_of(copy, commit, commit, arrive_before, wait, read), X[:, ::-1]),
    "sum": (block_of(fill, wait, first_sums, wait, all_read_sum), np.repeat(X.sum(1, keepdims=True), 32, 1)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_interpreter_names_a_planted_fault(name: str) -> None:
    kernel, message = PLANTED[name]
    with pytest.raises(CompilerError) as error:
        run_kernel(kernel, X, check_races=True)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("name", RIGHT)
def test_the_interpreter_has_nothing_against_what_is_right(name: str) -> None:
    kernel, wanted = RIGHT[name]
    np.testing.assert_allclose(run_kernel(kernel, X, check_races=True)[0], wanted, rtol=1e-5)


def on_gpu(kernels: list[Kernel], arrays: list[np.ndarray]) -> Iterator[tuple[Kernel, Callable[[str], np.ndarray]]]:
    """Each kernel's result on the simulated GPU in an order of threads."""
    launches = [BACKEND.bind(kernel) for kernel in kernels]
    groups = HostGroups([BACKEND.source(found) for found in launches])
    for number, found in enumerate(launches):
        nbytes = BACKEND.workspace(found).nbytes
        assert isinstance(nbytes, int)

        def run(order: str, number: int = number, nbytes: int = nbytes) -> np.ndarray:
            result = np.full(kernels[number].outputs[0].shape, 77, "float32")
            groups.run(number, [*arrays, result], np.full(nbytes, 0xFF, np.uint8), order, seed=3)
            return result

        yield kernels[number], run


def shows(run: Callable[[str], np.ndarray], wanted: np.ndarray) -> list[str]:
    """The orders in which a result is wrong, or a fault stops the kernel."""
    found = []
    for order in ORDERS:
        try:
            if not np.allclose(run(order), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max()):
                found.append(order)
        except DeviceFault:
            found.append(order)
    return found


@needs_compiler
@only_simulated
def test_planted_faults_show_on_the_simulated_gpu() -> None:
    kernels = [kernel for kernel, _ in PLANTED.values()]
    wanted = dict.fromkeys(PLANTED, X[:, ::-1])
    for name in PLANTED:
        if name.startswith("none "):
            wanted[name] = np.repeat(X.sum(1, keepdims=True), 32, 1)
    for name, (_, run) in zip(PLANTED, on_gpu(kernels, [X]), strict=True):
        assert shows(run, wanted[name]), name


@needs_compiler
def test_what_is_right_gives_the_right_numbers() -> None:
    for (_, run), (_, result) in zip(on_gpu([k for k, _ in RIGHT.values()], [X]), RIGHT.values(), strict=True):
        assert not shows(run, result)


SUBJECTS = {name: next(i for i, case in enumerate(CASES) if case[0] == name) for name in ("nn.matmul", "nn.conv2d")}


@pytest.mark.parametrize("name", SUBJECTS)
def test_no_barrier_of_a_template_can_be_left_out(name: str) -> None:
    """Each is missed by the interpreter, and by some order on the simulated GPU."""
    template, arrays, expected = made(SUBJECTS[name])
    kernel = template_kernel(template, template.choice)
    blocks = [s for s in walk_stmts(kernel.body) if getattr(s, "kind", None) is LoopKind.BLOCK_X]
    inside = [s for block in blocks for s in walk_stmts(block) if isinstance(s, Barrier)]
    assert inside
    faulty = [simplify(without(kernel, barrier)) for barrier in inside]
    for one in faulty:
        with pytest.raises(MiniTVMError, match=r"an element of \w+ that another thread touched since the last barrier"):
            run_kernel(one, *arrays, check_races=True)
    if host_compiler() is None:
        return
    for _, run in on_gpu(faulty, arrays):
        assert shows(run, expected)


@pytest.mark.parametrize("stages", [2, 3])
def test_no_wait_of_a_pipeline_can_be_left_out(stages: int) -> None:
    template, arrays, expected = made(SUBJECTS["nn.matmul"])
    kernel = template_kernel(template, next(c for c in template.candidates if getattr(c.tile, "copied", 0) == stages))
    for kind in (CopyCommit, CopyWait):
        faulty = simplify(replaced(kernel, lambda s, kind=kind: Seq(()) if isinstance(s, kind) else s))  # type: ignore[misc]
        with pytest.raises(MiniTVMError, match=r"reads (left|right) before it is waited for"):
            run_kernel(faulty, *arrays)
        for _, run in on_gpu([faulty], arrays) if host_compiler() is not None else ():
            assert shows(run, expected)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            block_of(lambda i, x, y, t: threads(lambda j: CopyAsync(t, (j,), x[i, j] + x[i, j]))),
            "a copy is of an element",
        ),
        (block_of(lambda i, x, y, t: threads(lambda j: CopyAsync(y, (i, j), x[i, j]))), "a copy is of an element"),
        (
            block_of(lambda i, x, y, t: threads(lambda j: If(j < 9, CopyWait(0)))),
            "under a condition that tells threads",
        ),
    ],
)
def test_what_is_no_copy_is_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(CompilerError, match=message):
        verify_kernel(kernel)
