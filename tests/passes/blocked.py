"""A convolution on a machine with vectors of 4 floats, before and after it moves to blocks, and what is behind it."""

from __future__ import annotations

from functools import partial

from rewriting import check_rewrite, run, stayed

import minitvm.codegen.templates  # noqa: F401  they predict
from minitvm.codegen.lower import predicted
from minitvm.ir.decision import decisions
from minitvm.passes.alter_op_layout import AlterOpLayout
from minitvm.passes.winograd import faster
from minitvm.target import MachineModel

SSE = MachineModel(vector_bytes=16, vector_registers=16)
AVX2 = MachineModel(vector_bytes=32, vector_registers=16)
AVX512 = MachineModel(vector_bytes=64, vector_registers=32)
WEIGHING = AlterOpLayout(AVX512, weigh=True, faster=partial(faster, partial(predicted, machine=AVX512)))

X = "%x: Tensor[(1, 8, 6, 6), float32]"
W = "%w: Tensor[(8, 8, 3, 3), float32]"
CONV = "%0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);"
BLOCKED = """
%a = layout_transform(%x, src_layout="NCHW", dst_layout="NCHW4c");
%b = layout_transform(%w, src_layout="OIHW", dst_layout="OIHW4i4o");
%0 = nn.contrib_conv2d_NCHWc(%a, %b, padding=[1, 1, 1, 1],
                             data_layout="NCHW4c", kernel_layout="OIHW4i4o", out_layout="NCHW4c");
"""
BACK = 'src_layout="NCHW4c", dst_layout="NCHW"'


def main(body: str, *more: str) -> str:
    return f"def @main({', '.join([X, W, *more])}) {{ {body} }}"


def alters(body: str, expected: str, *more: str) -> None:
    """A convolution, then ``body``, becomes the blocked convolution, then ``expected``."""
    check_rewrite(AlterOpLayout(SSE), main(CONV + body, *more), main(BLOCKED + expected, *more))


def reasons(body: str, *more: str) -> list[str]:
    """Why calls keep their layout, where a convolution is followed by ``body``; the numbers are checked."""
    with decisions() as log:
        run(AlterOpLayout(SSE), main(CONV + body, *more))
    return stayed(log)
