"""Loops cut where a condition changes: windows and padding run without conditions but at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from test_nests import agree, drawn, kernel_of

from minitvm.codegen.simplify import simplify_expr
from minitvm.codegen.walks import segments
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Call
from minitvm.ir.loop import (
    Binary,
    Const,
    For,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Store,
    const,
    select,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.affine import Range
from minitvm.ir.op import Op
from minitvm.target import MachineModel

AVX2 = MachineModel(32, 16)
J, R = LoopVar("j"), LoopVar("r")


def check(name: str, array: np.ndarray, **attributes: object) -> None:
    x = var("x", shape=array.shape)
    call = call_op(name, x, **attributes)
    assert isinstance(call, Call) and isinstance(call.op, Op)
    agree(call, [x], [array], np.asarray(call.op.reference(array)))


@pytest.mark.parametrize("name", ["nn.max_pool2d", "nn.avg_pool2d"])
@pytest.mark.parametrize(
    ("window", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2), (7, 2, 3), (7, 7, 3)]
)
@pytest.mark.parametrize("size", [7, 16, 33, 41])
def test_windows_of_images_of_any_size(name: str, window: int, stride: int, pad: int, size: int) -> None:
    check(name, drawn(2, 3, 8, size), pool_size=(window, window), strides=(stride, stride), padding=(pad,) * 4)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("width", [((0, 0), (1, 2)), ((3, 0), (0, 4)), ((2, 2), (4, 1))])
@pytest.mark.parametrize("size", [6, 16, 19, 35])
def test_padding_of_every_mode(mode: str, width: tuple[tuple[int, int], ...], size: int) -> None:
    check("nn.pad", drawn(5, size), pad_width=width, pad_mode=mode)


def conditions(value: LoopExpr) -> list[LoopExpr]:
    return [n for n in walk_exprs(value) if isinstance(n, Select)]


def test_most_of_a_window_has_no_condition() -> None:
    position = J * 2 + R - 1
    value = select((position >= 0) & (position < 113), const(1.0, "float32"), const(0.0, "float32"))
    parts = segments(value, J, 57, {J: Range(0, 56), R: Range(0, 2)})
    assert [(p.start, p.count, len(conditions(p.value))) for p in parts] == [(0, 1, 1), (1, 55, 0), (56, 1, 1)]


def test_a_condition_that_does_not_depend_on_the_loop_cuts_nothing() -> None:
    value = select(R < 2, const(1.0, "float32"), const(0.0, "float32"))
    (whole,) = segments(value, J, 57, {J: Range(0, 56), R: Range(0, 2)})
    assert whole.value is value


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_inside_of_a_pooling_runs_in_vectors_without_asking(stride: int) -> None:
    x = var("x", shape=(1, 4, 40, 140))
    call = call_op("nn.max_pool2d", x, pool_size=(3, 3), strides=(stride, stride), padding=(1,) * 4)
    kernel = kernel_of(call, [x], AVX2)
    vectors = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZED]
    stores = [s for v in vectors for s in walk_stmts(v.body) if isinstance(s, Store)]
    wide = [v for v in vectors if isinstance(v.extent, Const) and int(v.extent.value) >= 8]
    assert wide and not any(conditions(s.value) for s in stores)


def test_a_division_by_a_multiple_of_a_stride_forgets_what_is_finer() -> None:
    c, p = LoopVar("c"), LoopVar("p")
    ranges = {c: Range(0, 255), p: Range(0, 1088)}
    position = c * 1089 + p
    assert simplify_expr(position // 69696, ranges) == Binary("floordiv", c, Const(64))
    assert str(simplify_expr(position % 69696, ranges)) == str(c % 64 * 1089 + p)
