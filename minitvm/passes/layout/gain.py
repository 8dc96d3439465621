"""Whether a convolution that stands alone gains by running in blocks what its image and its result cost to move."""

from __future__ import annotations

from minitvm.ir.compute import accumulator
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Function
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.relayout import Site
from minitvm.ir.types import tensor_fields
from minitvm.ir.visitor import calls
from minitvm.target import MachineModel

_STEP = 0.5
"""Cycles of a vector's multiply-add."""
_UNSHARED = 1.7
"""Cycles more of a multiply-add whose pixels no other channel reads: each loads its own, between two cache lines."""
_MOVE = 1.25
"""Cycles that an element costs which is moved from one layout to another."""
_MOVE_NEAR = 0.5
"""The same of a depthwise convolution in the caches, whose padded image would be copied otherwise."""


def stands_alone(function: Function) -> bool:
    """True where no two convolutions share a layout."""
    return sum(isinstance(call.op, Conv2d) for call in calls(function.body)) == 1


def moving_costs_more(site: Site, function: Function, machine: MachineModel) -> Declined | None:
    """The refusal to move a convolution that stands alone in ``function``.

    In plain layouts lanes are pixels, of which the last ones are wasted.  What is moved back is no more than what the
    function returns: pools and the like follow the layout.
    """
    if not isinstance(site.op, Conv2d) or str(site.op.layouts[0]) != "NCHW":
        return None
    data, result = site.type(0), site.call.tensor_type
    batch, units, *pixels = result.static_shape
    lanes = machine.lanes(accumulator(result.dtype))
    products = site.type(1).size // units
    vectors = _vectors(site.op, pixels, site.type(1).static_shape[3], lanes)
    depthwise = site.op.groups == units
    saved = (vectors - pixels[0] * pixels[1] / lanes) * _STEP + depthwise * vectors * _UNSHARED
    returned = sum(field.size for field in tensor_fields(function.body.type) if field.is_static)
    moved = data.size + min(result.size, returned)
    near = depthwise and moved * machine.vector_bytes <= 4 * machine.l2_bytes * lanes
    if batch * units * products * saved > moved * (_MOVE_NEAR if near else _MOVE):
        return None
    return Declined(f"it stands alone, and {moved} elements would be moved for it")


def _vectors(op: Conv2d, pixels: list[int], taps: int, lanes: int) -> int:
    """Vectors of pixels that a plane takes, row by row or with what lies between the rows."""
    rows, columns = pixels
    between = (taps - 1) * op.dilation[1] // op.strides[1] if taps > op.strides[1] else 0
    joined = (rows - 1) * (columns + between) + columns
    return min(rows * -(-columns // lanes), -(-joined // lanes))
