"""Convolutions as they are predicted to take the least time, in blocks of channels: directly, as Winograd's, or, where
elements would be moved for one alone, not in blocks at all.  What AlterOpLayout asks of a blocked one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Var
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_winograd import SIZES, TAPS, Conv2dWinograd, Transforms, WinogradWeights
from minitvm.ir.relayout import Move, Placement, Site, calling
from minitvm.ir.types import TensorType
from minitvm.passes.alter_op_layout import Faster, in_whole_blocks
from minitvm.passes.places import Predict, remembering


def ways(predict: Predict) -> Faster:
    """:func:`faster` for one pipeline."""
    return partial(faster, remembering(predict))


_LARGEST = 2.0**100
"""Weights of which transforms do not overflow."""
_WORTH = 0.85
"""Of the direct one's cycles: weights take up to four times the memory, and results are rounded more often."""


def faster(predict: Predict, site: Site, direct: Placement, moved: int = 0, copied: int = 0) -> Placement | Declined:
    """One of Winograd's, the placement that is given, or why neither; ``moved`` elements would change their layout only
    for it, and so many be ``copied`` for Winograd's only."""
    if not isinstance(site.op, Conv2d):
        return direct
    ways, refusal = _Ways(predict, site, direct, moved, copied), _refusal(site, direct)
    if refusal is None:
        found = ways.best()
        if isinstance(found, Placement):
            return found
        refusal = found
    decide("Winograd", site.call, refusal)
    return ways.stays() or direct


def _refusal(site: Site, direct: Placement) -> Declined | None:
    op, weight, data = site.op, site.call.args[1], direct.args[0]
    assert isinstance(op, Conv2d)
    if site.type(1).static_shape[2:] != (TAPS, TAPS):
        return Declined(f"its taps are not {TAPS} x {TAPS}")
    if {*op.strides, *op.dilation, op.groups} != {1}:
        return Declined("it has strides, dilation or groups")
    if not isinstance(data, Move) or not data.new.is_blocked:
        return Declined("its input channels come in no blocks")
    if not isinstance(weight, Constant):
        return Declined("its weights are not constant: they would be transformed at every run")
    if {site.type(0).dtype, weight.dtype, site.call.dtype} != {"float32"}:
        return Declined(f"it computes {site.call.dtype} from {site.type(0).dtype} and {weight.dtype}, not float32")
    if weight.value.size and not np.abs(weight.value).max() <= _LARGEST:
        return Declined("its weights are so large, or no numbers, that their transforms are no numbers")
    return None


def _of_one_image(type_: TensorType) -> TensorType:
    """Of which nothing but the batch is open: tiles of an image may be none where a symbol is 1."""
    return type_.with_shape(tuple(extent if isinstance(extent, int) else 1 for extent in type_.shape))


@dataclass(frozen=True)
class _Ways:
    """A convolution's placements, compared by predicted cycles."""

    predict: Predict
    site: Site
    direct: Placement
    moved: int
    copied: int

    @cached_property
    def _as_it_is(self) -> float | Declined:
        """Cycles with pixels in lanes, over a copy of the image where windows are not its pixels."""
        cycles = self._cycles(Placement((None,) * len(self.direct.args), None, calling(self.site.op)))
        op, window = self._op, self._type(1, None).static_shape[2:]
        copied = math.prod(window) > 1 and ({*op.strides} != {1} or {*op.padding} != {0})
        moved = copied * self._type(0, None).size
        return cycles if isinstance(cycles, Declined) else cycles + moved * CPU.relayout_element

    @cached_property
    def _directly(self) -> float | Declined:
        """Cycles in blocks, and those that it takes to move what is moved for these."""
        cycles = self._cycles(self.direct)
        if isinstance(cycles, Declined) or not self.moved:
            return cycles
        return cycles * self._inside() + self.moved * CPU.relayout_element

    def stays(self) -> Declined | None:
        """The reason why the convolution stays as it is."""
        assert isinstance(self.direct.result, Move)
        if not self.moved or not self.direct.result.new.is_blocked:
            return None
        before, after = (math.inf if isinstance(c, Declined) else c for c in (self._as_it_is, self._directly))
        told = f"{before:,.0f} cycles predicted as it is, {after:,.0f} in blocks"
        alone = f"it stands alone, and {self.moved} elements would be moved for it"
        return None if after < before else Declined(f"{alone}: {told}")

    @property
    def _op(self) -> Conv2d:
        assert isinstance(self.site.op, Conv2d)
        return self.site.op

    def best(self) -> Placement | Declined:
        before = self._directly
        if isinstance(before, Declined):
            return before
        as_it_is = self._as_it_is if self.moved else before
        before = before if isinstance(as_it_is, Declined) else min(before, as_it_is)
        ways = {size: self._winograd(size) for size in SIZES}
        cycles = {size: self._cycles(way) for size, way in ways.items()}
        copies = (self.moved + self.copied) * CPU.relayout_element
        known = {size: c + copies for size, c in cycles.items() if not isinstance(c, Declined)}
        if not known:
            return next(c for c in cycles.values() if isinstance(c, Declined))
        size = min(known, key=lambda s: known[s])
        told = f"{known[size]:,.0f} cycles predicted in tiles of {size} x {size}, {before:,.0f} directly"
        if known[size] > _WORTH * before:
            return Declined(told)
        decide("Winograd", self.site.call, f"{told}; {self._error(size)}")
        return ways[size]

    def _winograd(self, size: int) -> Placement:
        op, units, moved = self._op, self.site.type(1).static_shape[0], self.direct.args[0]
        assert isinstance(moved, Move) and isinstance(self.direct.result, Move)
        direct = self._alone(self.direct)
        blocks = direct.args[1].tensor_type.static_shape[-2:]
        kernel = f"OHWI{blocks[0]}i{blocks[1]}o"
        layouts = {"data_layout": str(moved.new), "kernel_layout": kernel, "out_layout": str(self.direct.result.new)}
        made = Conv2dWinograd.of({"padding": op.padding, "tile_size": size, "channels": units, **layouts})

        def build(args: Sequence[Expr]) -> Expr:
            transformed = Call(WinogradWeights(size), (args[1],), span=args[1].span or None)
            return Call(made, (args[0], in_whole_blocks(transformed, "OIHW", kernel, "O")))

        return Placement((moved, None), self.direct.result, build)

    def _alone(self, way: Placement) -> Call:
        """The call that a placement builds, of one image, over operands of the right types."""
        operands = [Var(f"p{i}", self._type(i, move)) for i, move in enumerate(way.args)]
        built = way.build(operands)
        assert isinstance(built, Call)
        return built

    def _type(self, index: int, move: object) -> TensorType:
        found = _of_one_image(self.site.call.args[index].tensor_type)
        return TensorType(move.new.shape_from(move.old, found.shape), found.dtype) if isinstance(move, Move) else found

    def _cycles(self, way: Placement) -> float | Declined:
        return self.predict(self._alone(way))

    def _inside(self) -> float:
        """The share of multiply-adds that read no padding, which is all that blocks multiply."""
        op, (data, weight) = self._op, (self._type(i, None) for i in range(2))
        outputs = _of_one_image(self.site.call.tensor_type).static_shape[2:]

        def along(extent: int, count: int, taps: int, stride: int, dilation: int, before: int) -> float:
            at = [tap * dilation - before for tap in range(taps)]  # what a tap of the first window reads
            read = [min(count, -((first - extent) // stride)) - max(0, -(first // stride)) for first in at]
            return sum(max(0, some) for some in read) / (count * taps)

        shapes = data.static_shape[2:], outputs, weight.static_shape[2:]
        return math.prod(map(along, *shapes, op.strides, op.dilation, op.padding))

    def _error(self, size: int) -> str:
        bound = Transforms.of(size).bound(self.site.type(1).static_shape[1], "float32")
        return f"off by at most {bound:.1e} of the largest input times the sum of a filter"
