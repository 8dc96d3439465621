"""The plain binding to blocks and threads, by numbers; CUDA C, by text."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_kernels import GROUPS, MACHINE, inputs_of, kernel_of
from op_samples import Sample
from test_lower import LOWERED, as_function

from minitvm.codegen.cuda.bind import Launch, bind_plain, launch_of
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Cast,
    Const,
    Kernel,
    LoopExpr,
    LoopKind,
    Shuffle,
    Stmt,
    Store,
    binary,
    const,
    intrin,
    loop,
    select,
    seq,
)
from minitvm.ir.loop.interp import run_kernel, run_sequence
from minitvm.ir.loop.verify import verify_kernel

_CPU_WORDS = (LoopKind.PARALLEL.value + " ", LoopKind.VECTORIZED.value + " ", "barrier", "alloc shared")


def two_of_each(samples: list[Sample]) -> list[Sample]:
    """The last two samples of every operator."""
    chosen: dict[str, list[Sample]] = {}
    for sample in samples:
        chosen.setdefault(sample.op.name, []).append(sample)
    return [s for found in chosen.values() for s in found[-2:]]


def check_bound(kernel: Kernel, arrays: list[np.ndarray]) -> tuple[Kernel, ...]:
    """The bound kernels are well formed, printable, and compute what ``kernel`` does, bit for bit."""
    expected = run_kernel(kernel, *arrays)
    bound = bind_plain(kernel)
    for part in bound:
        verify_kernel(part)
        assert not any(word in str(part) for word in _CPU_WORDS)
        assert 'extern "C" __global__' in emit_cuda(part)
    results = run_sequence(bound, dict(zip(kernel.inputs, arrays, strict=True)))
    for buffer, want in zip(kernel.outputs, expected, strict=True):
        if want.size:
            np.testing.assert_array_equal(results[buffer], want)
    return bound


@pytest.mark.parametrize("sample", two_of_each(LOWERED), ids=str)
def test_bound_operator_gives_the_same_numbers(sample: Sample) -> None:
    function_, arrays = as_function(sample)
    kernel = simplify(lower(function_, "kernel", MACHINE))
    check_bound(kernel, [a.reshape(p.shape) for a, p in zip(arrays, kernel.inputs, strict=True)])


@pytest.mark.parametrize("name", GROUPS)
def test_bound_group_gives_the_same_numbers(name: str) -> None:
    kernel = kernel_of(name)
    check_bound(kernel, inputs_of(kernel))


def test_lanes_that_keep_to_themselves_become_threads() -> None:
    (bound,) = bind_plain(kernel_of("conv"))
    assert launch_of(bound) == Launch((6, 1, 1), (8, 1, 1))
    assert "alloc acc: float32[4, 2] local" in str(bound)  # one lane's part of [4, 2, 8]


def test_lanes_that_exchange_values_run_in_one_thread() -> None:
    (bound,) = bind_plain(kernel_of("softmax"))
    assert launch_of(bound) == Launch((1, 1, 1), (6, 1, 1))


def test_team_barrier_cuts_a_kernel_and_the_workspace_becomes_a_parameter() -> None:
    pack, product = bind_plain(kernel_of("matmul"))
    assert [b.name for b in pack.inputs] == ["p1"] and [b.name for b in pack.outputs] == ["packed"]
    assert [b.name for b in product.inputs] == ["p0", "packed"] and [b.name for b in product.outputs] == ["out0"]
    assert (pack.name, product.name) == ("matmul_0", "matmul_1")


def parallel(extent: int, body) -> Stmt:  # type: ignore[no-untyped-def]
    return loop(extent, body, LoopKind.PARALLEL, name="i")


def vectorized(extent: int, body) -> Stmt:  # type: ignore[no-untyped-def]
    return loop(extent, body, LoopKind.VECTORIZED, name="lane")


def test_shared_memory_of_an_iteration_becomes_a_slice_of_a_workspace() -> None:
    x, y = Buffer("x", (5, 8), "float32"), Buffer("y", (5, 8), "float32")
    row = Buffer("row", (8,), "float32", "shared")

    def body(i: LoopExpr) -> Stmt:
        fill = vectorized(8, lambda k: Store(row, (k,), x[i, k]))
        return Alloc(row, seq(fill, vectorized(8, lambda k: Store(y, (i, k), row[Const(7) - k]))))

    kernel = Kernel("reverse", (x, y), parallel(5, body))
    (bound,) = check_bound(kernel, [np.arange(40, dtype="float32").reshape(5, 8)])
    assert [(b.name, b.shape) for b in bound.outputs] == [("y", (5, 8)), ("row", (5, 8))]


def test_lanes_of_a_statement_that_read_what_others_stored_stay_in_step() -> None:
    x, y = Buffer("x", (3, 8), "float32"), Buffer("y", (3, 8), "float32")
    t = Buffer("t", (8,), "float32", "local")

    def body(i: LoopExpr) -> Stmt:
        return Alloc(t, vectorized(8, lambda k: seq(Store(t, (k,), x[i, k]), Store(y, (i, k), t[Const(7) - k]))))

    check_bound(Kernel("swap", (x, y), parallel(3, body)), inputs_of(Kernel("k", (x, y), seq())))


def test_exchange_within_one_statement_is_refused() -> None:
    x, y = Buffer("x", (8,), "float32"), Buffer("y", (8,), "float32")
    t = Buffer("t", (8,), "float32", "local")
    stmts = (vectorized(8, lambda k: Store(t, (k,), x[k])), vectorized(8, lambda k: Store(t, (k,), t[Const(7) - k])))
    kernel = Kernel("k", (x, y), Alloc(t, seq(*stmts, vectorized(8, lambda k: Store(y, (k,), t[k])))))
    with pytest.raises(CompilerError) as error:
        bind_plain(kernel)
    assert str(error.value) == "lanes of loop lane exchange values through t in one statement"


# --- text -----------------------------------------------------------------------------------------------------


def test_text_of_an_elementwise_kernel() -> None:
    (bound,) = bind_plain(Kernel(**{**vars(kernel_of("elementwise")), "spans": ("conv1", "relu\n1")}))
    assert (
        emit_cuda(bound)
        == """\
// conv1, relu 1
extern "C" __global__ void __launch_bounds__(32, 1)
elementwise(const float *__restrict__ p0, const float *__restrict__ p1, float *__restrict__ out0)
{
    {
        const int row = blockIdx.x;
        {
            const int thread = threadIdx.x;
            out0[thread + row * 45] = tanhf(p0[thread + row * 45] + p1[row % 3]) * 0.5f;
            if (thread < 13) {
                out0[thread + row * 45 + 32] = tanhf(p0[thread + row * 45 + 32] + p1[row % 3]) * 0.5f;
            }
        }
    }
}
"""
    )


def statement_of(value: LoopExpr, *inputs: Buffer) -> str:
    """The lines that store ``value``."""
    out = Buffer("out", (), value.dtype)
    text = emit_cuda(Kernel("k", (*inputs, out), Store(out, (), value)))
    return "\n".join(line.strip() for line in text.split("{\n", 1)[1].splitlines()[:-1]) if not inputs else text


F = Buffer("x", (8,), "float32")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (const(float("inf"), "float32"), "__int_as_float(0x7f800000)"),
        (const(float("nan"), "float64"), "__longlong_as_double(0x7ff8000000000000ll)"),
        (const(-(2**31), "int32"), "(-2147483647 - 1)"),
        (const(-(2**63), "int64"), "(-9223372036854775807ll - 1)"),
        (const(2**40, "int64"), "1099511627776ll"),
        (const(200, "uint8"), "200u"),
        (const(0.1, "float32"), "0.1f"),
        (const(3, "float64"), "3.0"),
        (const(1e30, "float32"), "1e+30f"),
    ],
    ids=str,
)
def test_constants(value: Const, expected: str) -> None:
    assert statement_of(value) == f"out[0] = {expected.strip('()') if expected.startswith('(') else expected};"


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("add", "float32", "x[0] + y[0]"),
        ("add", "int32", "(int)((unsigned int)x[0] + (unsigned int)y[0])"),
        ("mul", "int8", "(signed char)((unsigned int)x[0] * (unsigned int)y[0])"),
        ("div", "uint32", "(unsigned int)(x[0] / ((tmp1 == 0u) ? 1u : tmp1))"),
        ("floormod", "float32", "((tmp2 != 0.0f) && ((tmp2 < 0.0f) != (tmp1 < 0.0f))) ? (tmp2 + tmp1) : tmp2"),
        ("mod", "float64", "fmod(x[0], y[0])"),
        ("pow", "float32", "powf(x[0], y[0])"),
        ("pow", "uint32", "int_pow<unsigned int>(x[0], y[0])"),
        ("max", "float32", "maximum<float>(x[0], y[0])"),
        ("shr", "int32", "(int)(x[0] >> (int)minimum<unsigned int>((unsigned int)y[0], 31u))"),
        ("and", "int32", "(int)(x[0] & y[0])"),
        ("and", "bool", "(unsigned char)((x[0] != 0) && (y[0] != 0))"),
        ("lt", "float32", "(unsigned char)(x[0] < y[0])"),
        ("mul", "float16", "float_to_half(half_to_float(x[0]) * half_to_float(y[0]))"),
    ],
)
def test_binary_operators(op: str, dtype: str, expected: str) -> None:
    x, y = Buffer("x", (1,), dtype), Buffer("y", (1,), dtype)
    assert f"out[0] = {expected};" in statement_of(binary(op, x[0], y[0]), x, y)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (intrin("exp", F[0]), "expf(x[0])"),
        (intrin("rsqrt", F[0]), "1.0f / sqrtf(x[0])"),
        (intrin("exp", intrin("neg", F[0] + F[1])), "expf(-(x[0] + x[1]))"),
        (intrin("isnan", F[0]), "(unsigned char)(tmp1 != tmp1)"),
        (intrin("bitcast_int", F[0]), "__float_as_int(x[0])"),
        (intrin("fma", F[0], F[1], F[2]), "fmaf(x[0], x[1], x[2])"),
        (Cast(intrin("bitcast_int", F[0]), "int8"), "(signed char)__float_as_int(x[0])"),
        (Cast(Cast(F[0], "bool"), "int32"), "(int)(x[0] != 0.0f)"),
        (Cast(F[0], "float64"), "(double)x[0]"),
        (Cast(F[0], "bool"), "(unsigned char)(x[0] != 0.0f)"),
        (F[0] * (F[1] + F[2]) - (F[3] - F[4]), "x[0] * (x[1] + x[2]) - (x[3] - x[4])"),
        (select(F[0] < F[1], const(1.0, "float32"), const(2.0, "float32")), "(x[0] < x[1]) ? 1.0f : 2.0f"),
    ],
    ids=str,
)
def test_functions(value: LoopExpr, expected: str) -> None:
    assert f"out[0] = {expected};" in statement_of(value, F)


def test_shared_parts_get_a_name() -> None:
    total = F[0] + F[1]
    text = statement_of(total * intrin("exp", total), F)
    assert "const float tmp1 = x[0] + x[1];\n    out[0] = tmp1 * expf(tmp1);" in text


def test_only_the_chosen_side_of_a_select_is_loaded() -> None:
    y = Buffer("y", (12,), "float32")
    body = loop(12, lambda i: Store(y, (i,), select(i < 8, F[i], const(0, "float32"))), LoopKind.THREAD_X, name="i")
    text = emit_cuda(Kernel("pad", (F, y), body))
    assert re.sub(r"\n *", " ", text).endswith(
        "float tmp1; if (i < 8) { tmp1 = x[i]; } else { tmp1 = 0.0f; } y[i] = tmp1; } } "
    )


def test_division_of_what_may_be_negative_rounds_down() -> None:
    y = Buffer("y", (9,), "float32")
    text = emit_cuda(Kernel("k", (F, y), loop(9, lambda i: Store(y, (i,), F[(i - 1) // 2 + 1 + i // 5]), name="i")))
    assert "y[i] = x[(i - 1) / 2 - (int)((i - 1) % 2 < 0) + i / 5 + 1];" in text


def test_a_side_that_loads_nothing_new_needs_no_branch() -> None:
    assert "out[0] = (tmp1 < 0.0f) ? (tmp1 * 0.1f) : tmp1;" in statement_of(select(F[0] < 0, F[0] * 0.1, F[0]), F)


def test_names_that_c_does_not_allow() -> None:
    x, y = Buffer("conv/1:0", (4,), "float32"), Buffer("double", (4,), "float32")
    text = emit_cuda(Kernel("exp", (x, y), loop(4, lambda i: Store(y, (i,), x[i]), name="for")))
    assert "k_exp(const float *__restrict__ conv_1_0, float *__restrict__ v_double)" in text
    assert "for (int v_for = 0; v_for < 4; ++v_for) {" in text


def tiled(kind: LoopKind = LoopKind.THREAD_X) -> Kernel:
    """Reverses rows through shared memory."""
    x, y, t = Buffer("x", (5, 32), "float32"), Buffer("y", (5, 32), "float32"), Buffer("t", (32,), "float32", "shared")

    def block(i: LoopExpr) -> Stmt:
        fill = loop(32, lambda j: Store(t, (j,), x[i, j]), kind, name="j")
        read = loop(32, lambda j: Store(y, (i, j), t[Const(31) - j]), kind, name="j")
        return Alloc(t, seq(fill, Barrier(), read))

    return Kernel("tiled", (x, y), loop(5, block, LoopKind.BLOCK_X, name="i"))


def test_shared_memory_and_barriers_of_a_block() -> None:
    text = emit_cuda(tiled())
    assert "__shared__ __align__(16) float t[32];" in text and "__syncthreads();" in text
    (x,) = inputs_of(tiled())
    np.testing.assert_array_equal(run_kernel(tiled(), x)[0], x[:, ::-1])


def test_what_a_block_computes_once_is_stored_by_its_first_thread() -> None:
    y = Buffer("y", (9,), "float32")
    body = seq(Store(y, (Const(8),), F[0]), loop(8, lambda i: Store(y, (i,), F[i]), LoopKind.THREAD_X, name="i"))
    text = emit_cuda(Kernel("k", (F, y), body))
    assert "if (threadIdx.x == 0) {\n        y[8] = x[0];\n    }" in text


def error_of(kernel: Kernel) -> str:
    with pytest.raises(CompilerError) as error:
        emit_cuda(kernel)
    return str(error.value)


def test_cpu_loops_are_refused() -> None:
    y = Buffer("y", (8,), "float32")
    assert error_of(Kernel("k", (F, y), parallel(8, lambda i: Store(y, (i,), F[i])))) == (
        "k: loop i is parallel, which a GPU has no word for\n"
        "  = hint: bind it to blocks and threads first: minitvm.codegen.cuda.bind.bind_plain(kernel)"
    )


def test_workspace_inside_a_kernel_is_refused() -> None:
    y, t = Buffer("y", (8,), "float32"), Buffer("t", (8,), "float32")
    assert error_of(Kernel("k", (F, y), Alloc(t, seq(Store(t, (Const(0),), F[0]))))) == (
        "k allocates t in global memory, which a kernel cannot\n  = hint: bind_plain makes it a parameter"
    )


def test_barrier_that_not_all_threads_reach_is_refused() -> None:
    y = Buffer("y", (8,), "float32")
    store = loop(8, lambda i: Store(y, (i,), F[i]), LoopKind.THREAD_X, name="i")
    few = loop(4, lambda i: Barrier(), LoopKind.THREAD_X, name="i")
    assert error_of(Kernel("k", (F, y), seq(store, few))) == "k: a barrier that not all threads of the block reach"


def test_indices_are_as_wide_as_they_have_to_be() -> None:
    def text(rows: int) -> str:
        x, y = (Buffer(name, (rows, 1024), "int8") for name in "xy")
        return emit_cuda(Kernel("copy", (x, y), loop(rows, lambda i: Store(y, (i, i % 1024), x[i, 0]))))

    assert "for (int i" in text(2**21 - 1)
    assert "for (long long i" in text(2**21 + 1)


def test_all_lanes_reach_a_shuffle_whatever_stands_before_it() -> None:
    """C leaves out the right side of ``||`` where the left one is true, and the warp would wait for that lane."""
    x, y = Buffer("x", (32,), "bool"), Buffer("y", (32,), "bool")
    body = loop(32, lambda i: Store(y, (i,), binary("or", x[i], Shuffle(x[i], 16))), LoopKind.THREAD_X, name="i")
    text = emit_cuda(Kernel("any", (x, y), body))
    assert "const bool tmp2 = (bool)__shfl_xor_sync(0xffffffffu, tmp1, 16);" in text
    assert "y[i] = (unsigned char)(tmp1 || tmp2);" in text
