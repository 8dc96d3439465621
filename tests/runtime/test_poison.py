"""Poisoned runs: kernels that forget, invent or overwrite, each put into a library in the place of a right one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from small_model import Model, expected, sample

from minitvm import relay
from minitvm.codegen.llvm.compile import compile_object, cpu_of, host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.llvm.entry import entry_text
from minitvm.driver import build
from minitvm.errors import CompilerError
from minitvm.ir.loop import Alloc, Buffer, Const, If, Kernel, LoopExpr, LoopVar, Stmt, Store, loop, nest, seq
from minitvm.ir.types import TensorType
from minitvm.runtime.direct import DirectCall
from minitvm.runtime.library import Library
from minitvm.runtime.poison import A_NUMBER, NOT_A_NUMBER, PoisonedInstance, difference, fill
from minitvm.target import Target

LENGTH = 11
Body = Callable[[Buffer, Buffer], Stmt]


def add_one(dtype: str = "float32", threads: int = 1) -> Library:
    x = relay.var("x", shape=(LENGTH,), dtype=dtype)
    return build(relay.Function([x], relay.logical_not(x) if dtype == "bool" else x + x), num_threads=threads)


def with_kernel(library: Library, body: Body, length: int = LENGTH) -> Library:
    """The library with its one kernel replaced by ``body(x, y)``; ``length`` is what the kernel takes y for."""
    (node,) = (n for n in library.graph.nodes if n.is_kernel)
    x, y = Buffer("x", (LENGTH,), node.types[0].dtype), Buffer("y", (length,), node.types[0].dtype)
    kernel = Kernel(node.func, (x, y), body(x, y))
    return with_object(library, node.func, emit(kernel, machine_model(host())))


def entry_of(library: Library) -> str:
    """With all that a kernel may call."""
    features = machine_model(cpu_of(Target.parse(library.target))).features
    return entry_text(library.graph, library.plan, dict.fromkeys(library.plan.workspaces, 0), features)


def with_object(library: Library, name: str, llvm_ir: str) -> Library:
    objects = {**library.artifact.objects, name: compile_object(llvm_ir, host())}
    entry = compile_object(entry_of(library), host())
    return Library(dataclasses.replace(library.artifact, objects=objects, entry=entry))


def run(library: Library, value: np.ndarray, threads: int = 1) -> np.ndarray:
    instance = library["default"](None, threads)
    instance.assign("x", value)
    instance.run()
    result: np.ndarray = instance.value(library.graph.heads[0]).copy()
    return result


def copy(x: Buffer, y: Buffer, count: int = LENGTH) -> Stmt:
    return loop(count, lambda i: Store(y, (i,), x[i]))


def values(dtype: str) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2, LENGTH).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("count", [0, 1, LENGTH - 1])
def test_elements_never_written_are_named(dtype: str, count: int) -> None:
    library = with_kernel(add_one(dtype), lambda x, y: copy(x, y, count))
    place = re.escape(f"never writes element [{count}] of its result 0, Tensor[({LENGTH},), {dtype}]")
    with pytest.raises(CompilerError, match=place) as error:
        run(library, values(dtype))
    assert f"{LENGTH - count} of {LENGTH} elements depend on what was in memory before" in str(error.value)
    assert f"node {library.graph.nodes[1].name!r}, threads: 1" in str(error.value)


def test_the_model_s_nodes_are_named() -> None:
    library = add_one()
    nodes = tuple(dataclasses.replace(n, spans=("/net/Add_7",)) if n.is_kernel else n for n in library.graph.nodes)
    graph = dataclasses.replace(library.graph, nodes=nodes)
    broken = with_kernel(Library(dataclasses.replace(library.artifact, graph=graph)), lambda x, y: copy(x, y, 2))
    with pytest.raises(CompilerError, match=r'\| from ONNX node "/net/Add_7"'):
        run(broken, values("float32"))


@pytest.mark.parametrize("marker", [NOT_A_NUMBER, A_NUMBER])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32"])
def test_honest_results_that_look_like_a_marker_are_no_error(dtype: str, marker: int) -> None:
    memory = np.zeros(LENGTH * 8 + 8, np.uint8)
    fill(memory, marker)
    given = memory[: LENGTH * np.dtype(dtype).itemsize].view(dtype)
    assert run(with_kernel(add_one(dtype), copy), given).tobytes() == given.tobytes()


def test_honest_nan_is_no_error() -> None:
    assert np.isnan(run(add_one(), np.full(LENGTH, np.nan, "float32"))).all()


def test_reading_memory_that_nobody_wrote_is_named() -> None:
    def body(x: Buffer, y: Buffer) -> Stmt:
        rest = loop(LENGTH - 4, lambda i: Store(y, (i + 4,), x[i + 4]))
        return seq(loop(4, lambda i: Store(y, (i,), x[i] + y[i])), rest)

    with pytest.raises(CompilerError, match=re.escape("computes element [0] of its result 0")) as error:
        run(with_kernel(add_one(), body), values("float32"))
    assert "nan over one marker" in str(error.value)


def with_workspace(library: Library, nbytes: int) -> Library:
    """The library with a workspace for its one kernel."""
    (index,) = (i for i, node in enumerate(library.graph.nodes) if node.is_kernel)
    func, plan = library.graph.nodes[index].func, library.plan
    plan = dataclasses.replace(plan, workspaces={index: plan.nbytes}, nbytes=plan.nbytes + nbytes)
    needs = {**library.function_metadata[func], "workspace": nbytes}
    return Library(dataclasses.replace(library.artifact, plan=plan, metadata={func: needs}))


def test_a_workspace_holds_no_zeros() -> None:
    own = Buffer("own", (64,), "float32", "global")

    def body(x: Buffer, y: Buffer) -> Stmt:
        return Alloc(own, loop(LENGTH, lambda i: Store(y, (i,), x[i] + own[i])))

    library = with_kernel(with_workspace(add_one(), 256), body)
    with pytest.raises(CompilerError, match="from memory that nobody wrote"):
        run(library, values("float32"))


def test_writing_past_the_end_is_named() -> None:
    library = with_kernel(add_one(), lambda x, y: loop(LENGTH + 1, lambda i: Store(y, (i,), x[i % LENGTH])), LENGTH + 1)
    with pytest.raises(CompilerError, match=r"writes past the end of its result 0, Tensor\[\(11,\), float32\]"):
        run(library, values("float32"))


@pytest.mark.parametrize("length", [16, 32])
def test_writing_into_what_lies_behind_is_named(length: int) -> None:
    """A result that fills its place, so that one element more is in the next one."""
    x = relay.var("x", shape=(length,))
    library = build(relay.Function([x], x + x), num_threads=1)
    (node,) = (n for n in library.graph.nodes if n.is_kernel)
    source, result = Buffer("x", (length,), "float32"), Buffer("y", (length + 1,), "float32")
    kernel = Kernel(node.func, (source, result), loop(length + 1, lambda i: Store(result, (i,), source[i % length])))
    instance = with_object(library, node.func, emit(kernel, machine_model(host())))["default"](None, 1)
    instance.assign("x", np.ones(length, "float32"))
    with pytest.raises(CompilerError, match="writes next to its results, into memory of others"):
        instance.run()


def test_a_segment_that_leaves_out_a_kernel_is_named(model: Model) -> None:
    library = model[2]
    last = max(i for i, node in enumerate(library.graph.nodes) if node.is_kernel)
    head, _, tail = entry_of(library).partition("define void @segment_0")
    line = f"  call void @node_{last}(ptr %slots, i64 %thread, i64 %threads, ptr %place)\n"
    assert line in tail
    entry = compile_object(head + "define void @segment_0" + tail.replace(line, ""), host())
    broken = Library(dataclasses.replace(library.artifact, entry=entry))
    with pytest.raises(CompilerError, match=r"segment_0 gives another element .* than its kernels one by one"):
        run(broken, sample(0))


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_all_threads_are_watched(threads: int) -> None:
    def body(x: Buffer, y: Buffer) -> Stmt:
        def at(i: LoopVar) -> Stmt:
            inside: LoopExpr = i < Const(LENGTH - 1)
            return If(inside, Store(y, (i,), x[i]))

        return loop(LENGTH, at)

    with pytest.raises(CompilerError, match=rf"\[{LENGTH - 1}\].*\n.*\n.*threads: {threads}\n"):
        run(with_kernel(add_one(threads=threads), body), values("float32"), threads)


def test_a_right_model_runs_as_ever(model: Model) -> None:
    _, params, library = model
    instance = library["default"]()
    assert isinstance(instance, PoisonedInstance)
    for seed in range(3):
        instance.assign("x", sample(seed))
        instance.run()
        for head, want in zip(library.graph.heads, expected(params, sample(seed)), strict=True):
            np.testing.assert_allclose(instance.value(head), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("setting", ["", "0", None])
def test_without_the_variable_a_run_has_the_native_steps_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch, setting: str | None
) -> None:
    monkeypatch.delenv("MINITVM_POISON") if setting is None else monkeypatch.setenv("MINITVM_POISON", setting)
    instance = model[2]["default"]()
    assert not isinstance(instance, PoisonedInstance)
    assert len(instance.steps) == 1


def test_an_odd_number_of_bytes_has_the_high_byte_of_the_marker_too() -> None:
    memory = [np.zeros(64, np.uint8), np.zeros(64, np.uint8)]
    for marker, where in zip((NOT_A_NUMBER, A_NUMBER), memory, strict=True):
        fill(where, marker)
        where[:5] = 1
    found = difference(*memory, TensorType((2, 3), "int8"))
    assert found is not None and found.unwritten and found.index == (1, 2) and found.count == 1


@pytest.mark.parametrize("shape", [(3, 5), (1 << 7, 1 << 6), ((1 << 14) + 3,)])
def test_results_that_a_session_hands_out_are_watched_too(shape: tuple[int, ...]) -> None:
    """Large ones are written where the caller gets them, not into the arena."""
    x = relay.var("x", shape=shape)
    library = build(relay.Function([x], relay.greater(x, x * relay.const(0.5))), num_threads=1)
    call = DirectCall(library["default"](None, 1))
    value = np.random.default_rng(1).standard_normal(shape).astype("float32")
    (found,) = call.run({"x": value})
    np.testing.assert_array_equal(found, value > value * np.float32(0.5))
    (node,) = (n for n in library.graph.nodes if n.is_kernel)
    source, result = Buffer("x", shape, "float32"), Buffer("y", shape, "bool")
    short = nest((shape[0] - 1, *shape[1:]), lambda *i: Store(result, i, source[i] < source[i]))
    kernel = Kernel(node.func, (source, result), short)
    broken = with_object(library, node.func, emit(kernel, machine_model(host())))
    first = [shape[0] - 1, *[0] * (len(shape) - 1)]
    with pytest.raises(CompilerError, match=re.escape(f"never writes element {first} of")):
        DirectCall(broken["default"](None, 1)).run({"x": value})
