"""Kernels as text: readable, and a key that is equal exactly where the structure is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce

import pytest

from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Cast,
    Const,
    For,
    If,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Seq,
    Store,
    const,
    intrin,
    loop,
    map_expr,
    maximum,
    nest,
    select,
    seq,
    store,
    walk_exprs,
)
from minitvm.ir.loop.text import print_kernel, print_loop_expr, print_stmt
from tests.steps import assert_linear


def dense(lanes: int = 16, name: str = "acc", var: str = "i", kind: LoopKind = LoopKind.PARALLEL) -> Kernel:
    x, w, y = Buffer("x", (4, 8), "float32"), Buffer("w", (16, 8), "float32"), Buffer("y", (4, 16), "float32")
    acc = Buffer(name, (lanes,), "float32", "local")

    def row(i: LoopVar) -> Alloc:
        clear = loop(lanes, lambda j: store(acc, (j,), const(0, "float32")), LoopKind.VECTORIZED, "j")
        body = loop(
            8, lambda k: loop(lanes, lambda j: store(acc, (j,), acc[j] + x[i, k] * w[j, k]), name="j"), name="k"
        )
        last = loop(lanes, lambda j: store(y, (i, j), maximum(acc[j], 0)), name="j")
        return Alloc(acc, seq(clear, body, last))

    return Kernel("dense", (x, w, y), loop(4, row, kind, var))


def test_reads_like_pseudo_code() -> None:
    assert print_kernel(dense()) == (
        "kernel dense(x: float32[4, 8], w: float32[16, 8]) -> y: float32[4, 16]\n"
        "  parallel i in 4:\n"
        "    alloc acc: float32[16] local:\n"
        "      vectorized j in 16:\n"
        "        acc[j] = 0f\n"
        "      for k in 8:\n"
        "        for j in 16:\n"
        "          acc[j] = acc[j] + x[i, k] * w[j, k]\n"
        "      for j in 16:\n"
        "        y[i, j] = max(acc[j], 0f)\n"
    )
    assert str(dense()) == print_kernel(dense())


def test_equal_structure_prints_equally() -> None:
    assert print_kernel(dense()) == print_kernel(dense())


@pytest.mark.parametrize(
    "change",
    [
        lambda k: dense(lanes=8),
        lambda k: dense(name="sum"),
        lambda k: dense(kind=LoopKind.SERIAL),
        lambda k: replace(k, name="dense2"),
        lambda k: replace(k, results=2),
        lambda k: replace(k, body=seq(k.body, Barrier())),
    ],
)
def test_another_structure_prints_differently(change: Callable[[Kernel], Kernel]) -> None:
    assert print_kernel(change(dense())) != print_kernel(dense())


def one_store(buffer: Buffer) -> Kernel:
    return Kernel("k", (buffer,), nest(buffer.shape, lambda *i: store(buffer, i, const(1, buffer.dtype))))


def test_scopes_and_dtypes_show() -> None:
    assert len({print_kernel(one_store(Buffer("a", (2, 3), dtype))) for dtype in ("float32", "float64")}) == 2
    allocs = {print_stmt(Alloc(Buffer("t", (1,), "int8", scope), Barrier())) for scope in ("global", "shared", "local")}
    assert allocs == {f"alloc t: int8[1] {scope}:\n  barrier" for scope in ("global", "shared", "local")}


def test_variables_and_buffers_of_one_name_are_told_apart() -> None:
    a, b = Buffer("t", (4, 4), "int32"), Buffer("t", (4, 4), "int32")
    outer = loop(4, lambda i: loop(4, lambda j: store(b, (i, j), a[j, i])), name="i")
    assert print_kernel(Kernel("k", (a, b), seq(outer, outer))) == (
        "kernel k(t: int32[4, 4]) -> t1: int32[4, 4]\n"
        + "  for i in 4:\n    for i1 in 4:\n      t1[i, i1] = t[i1, i]\n" * 2
    )


def test_conditions_and_empty_sequences() -> None:
    a = Buffer("a", (4,), "int32")
    i = LoopVar("i")
    stmt = For(i, Const(4), If(i < 2, store(a, (i,), const(1, "int32")), Seq(())))
    assert print_stmt(stmt) == "for i in 4:\n  if i < 2:\n    a[i] = 1i32\n  else:\n    pass"


def f32(value: float) -> Const:
    return const(value, "float32")


A, B, C = LoopVar("a"), LoopVar("b"), LoopVar("c")


def test_a_variable_that_no_loop_binds_is_marked_in_a_kernel() -> None:
    y = Buffer("y", (1,), "int64")
    assert print_kernel(Kernel("k", (y,), store(y, (A,), B))).splitlines()[1] == "  y[a?] = b?"
    assert print_stmt(store(y, (A,), B)) == "y[a] = b"


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (A + (B + C), "a + (b + c)"), ((A + B) + C, "a + b + c"), (A - (B - C), "a - (b - c)"),
        ((A + B) * C, "(a + b) * c"),
        (A + B * C, "a + b * c"), (A * (B // C), "a * (b // c)"), (A * B // C, "a * b // c"), (A % 4, "a % 4"),
        (Binary("div", A, B), "a / b"), (Binary("mod", A, B), "mod(a, b)"), (Binary("pow", A, B), "pow(a, b)"),
        ((A < B) & (B <= C), "(a < b) & (b <= c)"), (A.equal(B), "a == b"),
        (Binary("eq", A < B, B < C), "(a < b) == (b < c)"), (Binary("shl", A, Const(2)), "a << 2"),
        (Binary("lt", A + B, C), "a + b < c"), (Binary("xor", A, Binary("or", B, C)), "a ^ (b | c)"),
        (-A, "neg(a)"), (A.astype("float32"), "float32(a)"), (select(A < 1, f32(1), 2), "select(a < 1, 1f, 2f)"),
        (intrin("fma", f32(1), f32(0.1), f32(-0.0)), "fma(1f, 0.1f, -0f)"), (f32(float("inf")), "inff"),
        (f32(float("nan")), "nanf"), (Const(1e-9, "float64"), "1e-09f64"), (Const(3, "uint8"), "3u8"), (Const(3), "3"),
        (Const(True, "bool"), "True"), (Const(0.1, "float16"), "0.1f16"), (Const(-2, "int32"), "-2i32"),
    ],
)  # fmt: skip
def test_expressions(expr: LoopExpr, text: str) -> None:
    assert print_loop_expr(expr) == text


def test_comparison_in_a_conjunction_needs_brackets() -> None:
    """In the printed precedence ``&`` binds tighter than ``<``: without brackets two trees would print alike."""
    assert print_loop_expr(Binary("and", A < B, B < C)) != print_loop_expr(
        Binary("lt", Binary("lt", A, Binary("and", B, B)), C)
    )


def test_float32_constants_print_what_the_dtype_holds() -> None:
    assert print_loop_expr(f32(0.1)) == print_loop_expr(f32(0.10000000149011612)) == "0.1f"
    assert print_loop_expr(Const(0.1, "float64")) != print_loop_expr(Const(0.10000000149011612, "float64"))


def shared(depth: int, share: bool) -> LoopExpr:
    """x -> x * x + 1, ``depth`` times: as a tree 2**depth leaves."""
    x = Buffer("x", (1,), "float32")
    expr: LoopExpr = x[0]
    for _ in range(depth):
        other = expr if share else map_expr(expr, lambda e: Load(e.buffer, e.index) if isinstance(e, Load) else e)
        expr = expr * other + f32(1)
    return expr


def test_shared_parts_are_written_once_however_they_are_shared() -> None:
    text = print_loop_expr(shared(5, True))
    assert text.startswith("let t0 = ") and text.count("x[0]") <= 16
    assert print_loop_expr(shared(5, False)) == text


def test_equal_means_identical() -> None:
    """Whatever thread it is built in, as long as the other one is alive; constants by representation and type."""
    x = Buffer("x", (4,), "float32")
    i = LoopVar("i")
    assert x[i + 1] is x[i + 1]
    assert LoopVar("i") != i
    assert Const(3) is Const(3, "int64")
    numbers = [Const(v, "float32") for v in (0.0, -0.0, 1, 1.0, True, float("nan"))]
    assert len(set(numbers)) == len(numbers)
    assert Const(float("nan"), "float32") is numbers[-1]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: reduce(lambda e, k: e + x[i * k], range(1, 200), x[i] * f32(0.5)), range(32)))
    assert all(expr is found[0] for expr in found)


def test_shared_trees_take_linear_time() -> None:
    def walk(depth: int) -> Callable[[], None]:
        deep = shared(depth, True)

        def work() -> None:
            assert len(print_loop_expr(deep)) < 250 * depth
            assert sum(1 for _ in walk_exprs(deep)) == 3 + depth * 2
            assert map_expr(deep, lambda e: e) is deep

        return work

    walk(400)()
    assert_linear(walk, 50)


def test_long_chains_do_not_overflow_the_stack() -> None:
    expr: LoopExpr = Buffer("x", (1,), "float32")[0]
    for i in range(5000):
        expr = Intrin("exp", (Cast(expr, "float32"),)) if i % 2 else Select(expr < f32(1), expr, f32(2))
    text = print_loop_expr(expr)
    assert text.count("let ") > 50
    assert max(map(len, text.split("; "))) < 1000


def test_store_prints_its_index_and_value() -> None:
    a = Buffer("a", (2, 2), "bool")
    assert print_stmt(Store(a, (Const(0), Const(1)), Const(True, "bool"))) == "a[0, 1] = True"
