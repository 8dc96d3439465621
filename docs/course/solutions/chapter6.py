"""Solutions of chapter 6."""

import re

from minitvm import relay
from minitvm.ir.expr import Call, Expr
from minitvm.ir.pattern import call, value
from minitvm.passes import Declined, Replacement, rule


def place(layout: str, shape: dict[str, int], index: dict[str, int]) -> int:
    parts = re.findall(r"([A-Z])|(\d+)([a-z])", layout)
    blocks = {inner.upper(): int(size) for _, size, inner in parts if inner}
    at = 0
    for axis, size, inner in parts:
        if inner:
            extent, here = int(size), index[inner.upper()] % int(size)
        else:
            block = blocks.get(axis, 1)
            extent, here = shape[axis] // block, index[axis] // block
        at = at * extent + here
    return at


@rule(call("layout_transform", call("layout_transform", value("x"), name="first"), name="second"))
def cancel_transforms(x: Expr, first: Call, second: Call) -> Replacement:
    if first.op.dst_layout != second.op.src_layout or first.op.src_layout != second.op.dst_layout:
        return Declined("the second is not the way back")
    return x


@rule(call("nn.relu", call("layout_transform", value("x"), name="transform", single_use=True)))
def relu_first(x: Expr, transform: Call) -> Replacement:
    return Call(transform.op, [relay.nn.relu(x)])


@rule(call("nn.conv2d", value("x"), value("w"), name="conv"))
def blocked(x: Expr, w: Expr, conv: Call) -> Replacement:
    op = conv.op
    if op.groups != 1 or (op.data_layout, op.kernel_layout) != ("NCHW", "OIHW"):
        return Declined("only plain convolutions without groups")
    out, channels, *_ = w.type.shape
    if out % 8 or channels % 8:
        return Declined(f"{channels} and {out} channels are not in blocks of 8")
    image = relay.layout_transform(x, src_layout="NCHW", dst_layout="NCHW8c")
    weight = relay.layout_transform(w, src_layout="OIHW", dst_layout="OIHW8i8o")
    made = relay.nn.contrib_conv2d_NCHWc(
        image, weight, strides=op.strides, padding=op.padding, dilation=op.dilation,
        data_layout="NCHW8c", kernel_layout="OIHW8i8o", out_layout="NCHW8c",
    )  # fmt: skip
    return relay.layout_transform(made, src_layout="NCHW8c", dst_layout="NCHW")
