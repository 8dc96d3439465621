"""What cuBLAS and cuDNN compute of a graph: how they are called, or why they are not."""

from __future__ import annotations

from minitvm.codegen.libraries import Gemm, gemm_of
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call
from minitvm.ir.ops._shape import pads_of
from minitvm.ir.ops.nn_conv import Conv1d, Conv2d, Conv3d, FilterBank
from minitvm.ir.ops.nn_conv_transpose import ConvTranspose
from minitvm.ir.types import TensorType
from minitvm.passes.manager import PassContext
from minitvm.runtime.nvidia.libraries import Convolution, Product

_FLOATS = ("float16", "float32", "float64")
"""Sums of float16 are kept in float32, as ours are."""


def _may_be_tf32(dtype: str) -> bool:
    return dtype == "float32" and bool(PassContext.current().option("cuda.allow_tf32"))


def product_of(call: Call) -> Product | Declined | None:
    """Matrices by rows are transposed matrices by columns: the operands change places."""
    gemm = gemm_of(call, _FLOATS)
    if not isinstance(gemm, Gemm):
        return gemm
    return Product(
        dtype=gemm.dtype,
        transposes=(int(gemm.transpose_b), int(gemm.transpose_a)),
        sizes=(gemm.n, gemm.m, gemm.k),
        leading=(gemm.ldb, gemm.lda, gemm.n),
        strides=(gemm.stride_b, gemm.stride_a, gemm.m * gemm.n),
        batch=gemm.batch,
        allow_tf32=_may_be_tf32(gemm.dtype),
    )


def convolution_of(call: Call) -> Convolution | Declined | None:
    """A convolution as cuDNN has it: channels before the spatial axes, of which one alone is a row of a plane."""
    op = call.op
    if isinstance(op, ConvTranspose):
        return Declined("cuDNN is called for convolutions, not for transposed ones")
    if not isinstance(op, (Conv1d, Conv2d, Conv3d)):
        return None
    types = [*(arg.tensor_type for arg in call.args), call.tensor_type]
    refusal = _dtypes_differ(types) or _not_channels_first(op) or _shapes_differ(types)
    pads = pads_of(op.padding)
    if refusal is None and any(before != after for before, after in pads):
        refusal = Declined(f"cuDNN pads both ends alike, not by {list(op.padding)}")
    if refusal is not None:
        return refusal
    lone = len(op.spatial) == 1
    return Convolution(
        dtype=types[0].dtype,
        shapes=tuple((*t.static_shape[:2], *(1,) * lone, *t.static_shape[2:]) for t in types),
        padding=(*(0,) * lone, *(before for before, _ in pads)),
        strides=(*(1,) * lone, *op.strides),
        dilation=(*(1,) * lone, *op.dilation),
        groups=op.groups,
        allow_tf32=_may_be_tf32(types[0].dtype),
    )


def _dtypes_differ(types: list[TensorType]) -> Declined | None:
    dtypes = sorted({t.dtype for t in types})
    if len(dtypes) == 1 and dtypes[0] in _FLOATS:
        return None
    return Declined(f"the library convolves {' or '.join(_FLOATS)}, not {', '.join(dtypes)}")


def _not_channels_first(op: FilterBank) -> Declined | None:
    wanted = [axes + op.spatial for axes in ("NC", "OI", "NC")]
    given = list(map(str, op.layouts))
    return None if given == wanted else Declined(f"cuDNN is called for {', '.join(wanted)}, not {', '.join(given)}")


def _shapes_differ(types: list[TensorType]) -> Declined | None:
    if not all(t.is_static for t in types):
        return Declined(f"the library is called for numbers only, not for {types[0]}")
    return None if all(t.size for t in types) else Declined(f"nothing is summed: {types[0]} by {types[1]}")
