"""Grades chapter 6: where an element lies, transforms that cancel, and a convolution in blocks."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from minitvm.ir.evaluate import evaluate
from minitvm.ir.layout import Layout
from minitvm.lab.course.check import Chapter, Wrong, becomes, close, hinted, same, stays
from minitvm.lab.course.texts import drawn_inputs, operators, reference_cancel, reference_relu_first
from minitvm.lab.course.texts import over as over_any
from minitvm.testing.checks import as_module, run_opt_pass

CHAPTER = Chapter("chapter6", "Layout")
_ANSWER = ("passes/alter_op_layout.py", "passes/convert_layout.py", "passes/simplify_expr.py", "ir/layout.py")

# --- 6.1 ------------------------------------------------------------------------------------------------------

where = CHAPTER.exercise("place", "6.1", forbids=_ANSWER)


def _places(place: Any, layout: str, sizes: tuple[int, ...], hint: str) -> None:
    axes = Layout(layout).primal
    order = "NCHW" if set(axes) == set("NCHW") else "OIHW"
    plain = np.arange(int(np.prod(sizes))).reshape(sizes)
    memory = np.ascontiguousarray(Layout(layout).convert(plain, order)).ravel()
    shape = dict(zip(order, sizes, strict=True))
    for index in product(*(range(0, n, max(1, n // 3)) for n in sizes)):
        with hinted(hint):
            at = place(layout, dict(shape), dict(zip(order, index, strict=True)))
        expected = int(np.flatnonzero(memory == plain[index])[0])
        same(
            at, expected, f"{layout}, shape {shape}: the place of element {dict(zip(order, index, strict=True))}", hint
        )


@where.check("NCHW: the last axis is side by side")
def _(place: Any) -> None:
    _places(place, "NCHW", (2, 3, 4, 5), "((n * C + c) * H + h) * W + w")


@where.check("NHWC, and any other order")
def _(place: Any) -> None:
    hint = "go through the layout's letters: at = at * extent + coordinate"
    for layout in ("NHWC", "CHWN"):
        _places(place, layout, (2, 3, 4, 5), hint)


@where.check("NCHW8c: blocks of channels")
def _(place: Any) -> None:
    hint = "C counts blocks: C // 8 of them, at channel // 8; 8c is channel % 8"
    for layout in ("NCHW8c", "NCHW4c"):
        _places(place, layout, (2, 16, 3, 2), hint)


@where.check("OIHW4i8o: two axes in blocks")
def _(place: Any) -> None:
    _places(place, "OIHW4i8o", (16, 8, 3, 1), "each lower-case letter splits the axis of its upper-case one")


# --- 6.2 and 6.3 ----------------------------------------------------------------------------------------------

cancel = CHAPTER.exercise("cancel_transforms", "6.2", forbids=_ANSWER[:3], is_rule=True)
over = partial(over_any, shape="(1, 8, 4, 4)")


def to(inner: str, source: str, target: str) -> str:
    return f'layout_transform({inner}, src_layout="{source}", dst_layout="{target}")'


@cancel.check("into a layout and back is nothing")
def _(rule: Any) -> None:
    for other in ("NHWC", "NCHW8c"):
        becomes(rule, over(f"exp({to(to('%x', 'NCHW', other), other, 'NCHW')})"), over("exp(%x)"))


@cancel.check("into a layout and on to a third stays")
def _(rule: Any) -> None:
    hint = "x comes back only where the second's target is the first's source"
    stays(rule, over(to(to("%x", "NCHW", "NCHW8c"), "NCHW8c", "NHWC")), hint)
    stays(rule, over(to(to("%x", "NCHW", "NCHW4c"), "NCHW4c", "NCHW8c")), hint)


@cancel.check("twice the same way is not back, even where the shape says so")
def _(rule: Any) -> None:
    hint = "all four names have to fit: first.op.dst_layout is second.op.src_layout, and the other way round"
    stays(rule, over(to(to("%x", "NCHW", "NHWC"), "CHWN", "NCHW"), shape="(4, 4, 4, 4)"), hint)
    stays(rule, over(to(to("%x", "NCHW", "NHWC"), "NCHW", "NHWC"), shape="(4, 4, 4, 4)"), hint)


first = CHAPTER.exercise("relu_first", "6.3", forbids=_ANSWER[:3], is_rule=True)


@first.check("the rectifier goes first")
def _(rule: Any) -> None:
    before, after = over(f"nn.relu({to('%x', 'NCHW', 'NCHW8c')})"), over(to("nn.relu(%x)", "NCHW", "NCHW8c"))
    becomes(rule, before, after, "a call of the same operator: Call(transform.op, [relay.nn.relu(x)])")


@first.check("a transform that somebody else reads stays")
def _(rule: Any) -> None:
    source = over(f"%0 = {to('%x', 'NCHW', 'NCHW8c')}; (nn.relu(%0), %0)")
    stays(rule, source, "then there would be two transforms: single_use=True")


# --- 6.4 ------------------------------------------------------------------------------------------------------

blocks = CHAPTER.exercise("blocked", "6.4", forbids=_ANSWER[:3], is_rule=True)


def conv(channels: int, out: int, more: str = "", weight: str = "", data: str = "") -> str:
    return f"""
    def @main(%x: Tensor[{data or f"(1, {channels}, 6, 5)"}, float32],
              %w: Tensor[{weight or f"({out}, {channels}, 3, 3)"}, float32]) {{ nn.conv2d(%x, %w{more}) }}
    """


def _in_blocks(rule: Any, text: str) -> None:
    given = as_module(text)
    found = run_opt_pass(given, rule)
    ops = sorted(operators(found))
    hint = "transform data and weight, call relay.nn.contrib_conv2d_NCHWc, transform its result back to NCHW"
    same(ops, ["layout_transform"] * 3 + ["nn.contrib_conv2d_NCHWc"], "the operators afterwards", hint)
    arrays = drawn_inputs(given.main.params, seed=6)
    close(evaluate(found, *arrays), evaluate(given, *arrays), "its value", "do strides, padding and dilation arrive?")


@blocks.check("a convolution with channels in eights becomes one in blocks")
def _(rule: Any) -> None:
    _in_blocks(rule, conv(8, 16))


@blocks.check("strides, padding and dilation stay what they were")
def _(rule: Any) -> None:
    _in_blocks(rule, conv(16, 8, ", strides=[2, 1], padding=[1, 0, 1, 2], dilation=[1, 2]"))


@blocks.check("other numbers of channels, groups and other layouts stay")
def _(rule: Any) -> None:
    stays(rule, conv(3, 16), "3 channels are no whole block of 8: Declined")
    stays(rule, conv(8, 12), "12 filters are no whole block of 8: Declined")
    grouped = conv(16, 16, ", groups=2", weight="(16, 8, 3, 3)")
    stays(rule, grouped, "with groups a weight has other axes: ask conv.op.groups")
    lying = conv(8, 8, ', data_layout="NHWC", kernel_layout="HWIO"', "(3, 3, 8, 8)", "(1, 6, 5, 8)")
    stays(rule, lying, "ask conv.op.data_layout and conv.op.kernel_layout first")
    lying = conv(8, 8, ', data_layout="NHWC", kernel_layout="HWIO"', "(8, 8, 8, 8)", "(1, 16, 16, 8)")
    stays(rule, lying, "ask conv.op.data_layout and conv.op.kernel_layout first")


@blocks.check("with 6.2 and 6.3 a chain keeps its blocks from end to end", points=2)
def _(rule: Any) -> None:
    text = """
    def @main(%x: Tensor[(1, 8, 5, 5), float32], %v: Tensor[(16, 8, 3, 3), float32],
              %w: Tensor[(8, 16, 1, 1), float32]) {
      nn.conv2d(nn.relu(nn.conv2d(%x, %v, padding=[1, 1, 1, 1])), %w)
    }
    """
    found = run_opt_pass(text, [rule, reference_cancel, reference_relu_first])
    count = operators(found).count("layout_transform")
    if count > 4:
        hint = "where one ends and the next begins with transforms that are each other's way back, both go"
        raise Wrong(f"{count} transforms are left, expected 4: data in, two weights, result out\n{found}", hint)
