"""Grades chapter 8: a printer of LLVM IR, a kernel on a GPU (without one), and a plan of memory."""

from typing import Any, TypeAlias

import numpy as np

from minitvm.codegen.backend import Backend, backend_of
from minitvm.errors import CompilerError, MiniTVMError
from minitvm.ir.loop import Buffer, Kernel, LoopExpr, LoopKind, Store, const, loop, walk_stmts
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.stmt import For
from minitvm.lab.course import native
from minitvm.lab.course.check import Chapter, Skip, Wrong, close, same
from minitvm.target import Target

CHAPTER = Chapter("chapter8", "Code for CPU and GPU, the executor")

# --- 8.1 ------------------------------------------------------------------------------------------------------

printer = CHAPTER.exercise("llvm_of", "8.1", forbids=("codegen/llvm/emit.py",))


def kernel_of(name: str, n: int, inputs: int, value: Any) -> Kernel:
    """``out[i] = value(a[i], b[i], ...)``."""
    buffers = [Buffer("abcd"[k], (n,), "float32") for k in range(inputs)]
    out = Buffer("out", (n,), "float32")
    body = loop(n, lambda i: Store(out, (i,), value(*(b[i] for b in buffers))), name="i")
    return Kernel(name, (*buffers, out), body)


def _native(llvm_of: Any, kernel: Kernel) -> None:
    text = llvm_of(kernel)
    if not isinstance(text, str) or f"@{kernel.name}(" not in text:
        raise Wrong(
            f"no function @{kernel.name} in {text!r}", "return the text of a module with: define void @NAME(...)"
        )
    try:
        backend_of(Target.parse("llvm"), 1).image(text)
    except CompilerError as error:
        raise Wrong("LLVM does not read it: " + " ".join(error.where) + f"\n{text}", "it names the line") from error
    rng = np.random.default_rng(9)
    arrays = [rng.normal(size=b.shape).astype("float32") for b in kernel.inputs]
    out = native.RUN.get()(text, kernel.name, arrays, kernel.outputs[0].size + 8)
    (expected,) = run_kernel(kernel, *arrays)
    found, behind = out[: expected.size], out[expected.size :]
    if not np.isnan(behind).all():
        raise Wrong(
            f"it writes behind the last of {expected.size} elements", "the loop runs while the next i is below n"
        )
    close(found, expected, f"what the machine code of {kernel.name} stores")


@printer.check("out[i] = a[i] + b[i]")
def _(llvm_of: Any) -> None:
    _native(llvm_of, kernel_of("add_two", 10, 2, lambda a, b: a + b))


@printer.check("all four operations, nested, in their order")
def _(llvm_of: Any) -> None:
    _native(llvm_of, kernel_of("mixed", 33, 3, lambda a, b, c: (a - b) / (c * c + a) - b * a))


@printer.check("constants to the last bit")
def _(llvm_of: Any) -> None:
    hint = "LLVM wants floats as it can hold them: 0x and the 16 digits of the double that the float32 is"
    kernel = kernel_of("scaled", 5, 1, lambda a: a * const(0.1, "float32") + const(-3, "float32"))
    try:
        _native(llvm_of, kernel)
    except Wrong as wrong:
        raise Wrong(wrong.message, hint) from None


@printer.check("a value that is used twice is computed once")
def _(llvm_of: Any) -> None:
    def doubled(a: LoopExpr) -> LoopExpr:
        for _ in range(30):
            a = a + a
        return a

    text = llvm_of(kernel_of("doubled", 4, 1, doubled))
    found = text.count("fadd")
    same(found, 30, "additions in a + a, 30 times over", "expressions are shared: keep a dictionary of those written")


# --- 8.2 ------------------------------------------------------------------------------------------------------

gpu = CHAPTER.exercise("on_gpu", "8.2", forbids=("codegen/cuda/bind.py",))


def _bound(on_gpu: Any, n: int) -> Kernel:
    kernel = on_gpu(kernel_of("axpy", n, 2, lambda a, b: a * const(2, "float32") + b))
    if not isinstance(kernel, Kernel):
        raise Wrong(f"it returned {kernel!r}, not a Kernel", "return what the last step returned")
    return kernel


@gpu.check("a loop of blocks around a loop of 128 threads")
def _(on_gpu: Any) -> None:
    loops = [s for s in walk_stmts(_bound(on_gpu, 1024).body) if isinstance(s, For)]
    kinds = [(s.kind, getattr(s.extent, "value", None)) for s in loops]
    hint = 'schedule.split(kernel, "i", 128, ...), then schedule.bind with LoopKind.BLOCK_X and LoopKind.THREAD_X'
    same(kinds, [(LoopKind.BLOCK_X, 8), (LoopKind.THREAD_X, 128)], "kinds and extents of the loops for n = 1024", hint)


@gpu.check("an extent that 128 does not divide")
def _(on_gpu: Any) -> None:
    rng = np.random.default_rng(10)
    for n in (1, 128, 1000):
        a, b = (rng.normal(size=n).astype("float32") for _ in range(2))
        try:
            (found,) = run_kernel(_bound(on_gpu, n), a, b, check_races=True)
        except MiniTVMError as error:
            raise Wrong(
                f"n = {n}: {error.message}", 'tail="guard" lets the last block\'s threads ask whether i < n'
            ) from error
        close(found, 2 * a + b, f"n = {n}")


@gpu.check("it prints as CUDA C")
def _(on_gpu: Any) -> None:
    text = str(_printed(_bound(on_gpu, 1000)))
    for word in ("__global__", "blockIdx.x", "threadIdx.x"):
        if word not in text:
            raise Wrong(f"there is no {word} in\n{text}", "both loops have to be bound")


def _gpu() -> Backend:
    return backend_of(Target.parse("cuda -arch=sm_80"), 1)


def _printed(kernel: Kernel) -> Any:
    return _gpu().source(_gpu().bind(kernel))


@gpu.check("NVRTC compiles it")
def _(on_gpu: Any) -> None:
    source = _printed(_bound(on_gpu, 1000))
    try:
        _gpu().image(source)
    except CompilerError as error:
        if error.message.startswith("NVRTC is not installed"):
            raise Skip("NVRTC is not installed: pip install cuda-bindings nvidia-cuda-nvrtc (no GPU needed)") from None
        raise Wrong(error.message + "\n" + "\n".join(error.where), "compare with the text on the page") from error


# --- 8.3 ------------------------------------------------------------------------------------------------------

memory = CHAPTER.exercise("plan_memory", "8.3")

Steps: TypeAlias = list[tuple[str, list[str], int]]


def _lives(steps: Steps, keep: set[str]) -> dict[str, tuple[int, int]]:
    """First and last step of each result."""
    found = {name: (at, at) for at, (name, _, _) in enumerate(steps)}
    for at, (_, reads, _) in enumerate(steps):
        found.update({name: (found[name][0], at) for name in reads if name in found})
    return found | {name: (found[name][0], len(steps)) for name in keep}


def needed(steps: Steps, keep: set[str]) -> int:
    """The most bytes that live at any step: no plan does with less."""
    lives, size = _lives(steps, keep), {name: nbytes for name, _, nbytes in steps}
    return max(sum(size[n] for n, (a, b) in lives.items() if a <= at <= b) for at in range(len(steps)))


def _planned(plan_memory: Any, steps: Steps, keep: set[str]) -> int:
    """The bytes of the student's plan, which is one."""
    offsets = plan_memory([(name, list(reads), nbytes) for name, reads, nbytes in steps], set(keep))
    if not isinstance(offsets, dict):
        raise Wrong(f"it returned {offsets!r}", "return a dictionary from names to offsets")
    lives, size = _lives(steps, keep), {name: nbytes for name, _, nbytes in steps}
    same(sorted(offsets), sorted(size), "the names in the plan", "one for each step; inputs are not planned")
    names = list(size)
    for n, one in enumerate(names):
        if not isinstance(offsets[one], int) or offsets[one] < 0:
            raise Wrong(f"{one} lies at {offsets[one]!r}", "offsets are whole numbers from 0")
        for other in names[n + 1 :]:
            _check_apart(one, other, lives, size, offsets, steps)
    return max(int(offsets[name]) + size[name] for name in names)


def _check_apart(
    one: str, other: str, lives: dict[str, tuple[int, int]], size: dict[str, int], at: dict[str, int], steps: Steps
) -> None:
    together = lives[one][0] <= lives[other][1] and lives[other][0] <= lives[one][1]
    if together and at[one] < at[other] + size[other] and at[other] < at[one] + size[one]:
        places = " and ".join(
            f"{n} at {at[n]} to {at[n] + size[n]} (steps {lives[n][0]} to {lives[n][1]})" for n in (one, other)
        )
        hint = "a result lives from its step to its last reader, both included: a step reads while it writes"
        raise Wrong(f"{places} overlap, with the steps {steps}", hint)


def _no_more(plan_memory: Any, steps: Steps, keep: set[str], share: float, hint: str) -> None:
    found, least = _planned(plan_memory, steps, keep), needed(steps, keep)
    if found > share * least:
        raise Wrong(f"{found} bytes where {least} live at most at a time, with the steps {steps}", hint)


def _chain(count: int, nbytes: int = 100) -> Steps:
    return [(f"t{n}", [f"t{n - 1}" if n else "x"], nbytes) for n in range(count)]


@memory.check("a chain needs two places, however long it is")
def _(plan_memory: Any) -> None:
    hint = "t0 is dead when t2 is made, and its place is free again"
    _no_more(plan_memory, _chain(8), {"t7"}, 1.0, hint)


@memory.check("what is read later stays until then")
def _(plan_memory: Any) -> None:
    steps = [*_chain(5), ("sum", ["t4", "t0"], 100)]
    _no_more(plan_memory, steps, {"sum"}, 1.0, "t0 lives until sum; the others take turns")


@memory.check("results of the model live to the end")
def _(plan_memory: Any) -> None:
    _no_more(plan_memory, _chain(6), {"t1", "t5"}, 1.0, "those in keep are read by whoever called")


@memory.check("different sizes share one piece of memory")
def _(plan_memory: Any) -> None:
    steps: Steps = [("a", ["x"], 400), ("b", ["a"], 100), ("c", ["b"], 100), ("d", ["c", "b"], 300)]
    _no_more(plan_memory, steps, {"d"}, 1.0, "two small results fit where one large one was: place large ones first")


@memory.check("60 random models, at most 1.3 times what has to live", points=2)
def _(plan_memory: Any) -> None:
    found = least = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        steps: Steps = []
        for n in range(3 + seed % 12):
            reads = sorted({f"t{max(0, n - int(k))}" for k in rng.integers(1, 4, 2)}) if n else ["x"]
            steps.append((f"t{n}", [r for r in reads if r != f"t{n}"], int(rng.integers(1, 9)) * 64))
        keep = {steps[-1][0]}
        found, least = found + _planned(plan_memory, steps, keep), least + needed(steps, keep)
    if found > 1.3 * least:
        raise Wrong(
            f"{found} bytes over all, {least} live at most", "try the largest first, each at the lowest free place"
        )
