"""Convolutions as Winograd's where these are predicted to take less time: what AlterOpLayout asks of a blocked one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Var
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_winograd import SIZES, TAPS, Conv2dWinograd, Transforms, WinogradWeights
from minitvm.ir.relayout import Move, Placement, Site
from minitvm.ir.types import TensorType, as_tensor, closed
from minitvm.passes.alter_op_layout import in_whole_blocks
from minitvm.target import MOVE

Predict: TypeAlias = Callable[[Call], "float | Declined"]
"""The cycles that a call is predicted to take on the target, or why nothing there computes it so."""


def remembering(predict: Predict) -> Predict:
    """The same, asked once about calls that are alike: networks repeat their layers."""
    known: dict[object, float | Declined] = {}

    def ask(call: Call) -> float | Declined:
        key = call.op, tuple(arg.type for arg in call.args)
        if key not in known:
            known[key] = predict(call)
        return known[key]

    return ask


_WORTH = 0.85
"""Of the direct one's cycles: weights take up to four times the memory, and results are rounded more often."""


def faster(predict: Predict, site: Site, direct: Placement, moved: int = 0) -> Placement:
    """One of Winograd's, or the placement that is given; ``moved`` elements change their layout only for it."""
    if not isinstance(site.op, Conv2d):
        return direct
    refusal = _refusal(site, direct)
    if refusal is None:
        found = _Ways(predict, site, direct).best(moved * MOVE)
        if isinstance(found, Placement):
            return found
        refusal = found
    decide("Winograd", site.call, refusal)
    return direct


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
    return None


@dataclass(frozen=True)
class _Ways:
    """A convolution's placements, compared by predicted cycles."""

    predict: Predict
    site: Site
    direct: Placement

    def best(self, cost: float) -> Placement | Declined:
        """``cost``: cycles that any of them takes more than the direct one."""
        before = self._cycles(self.direct)
        if isinstance(before, Declined):
            return before
        ways = {size: self._winograd(size) for size in SIZES}
        cycles = {size: self._cycles(way) for size, way in ways.items()}
        known = {size: c + cost for size, c in cycles.items() if not isinstance(c, Declined)}
        if not known:
            return next(c for c in cycles.values() if isinstance(c, Declined))
        size = min(known, key=lambda s: known[s])
        told = f"{known[size]:,.0f} cycles predicted in tiles of {size} x {size}, {before:,.0f} directly"
        if known[size] > _WORTH * before:
            return Declined(told)
        decide("Winograd", self.site.call, f"{told}; {self._error(size)}")
        return ways[size]

    def _winograd(self, size: int) -> Placement:
        op, units, moved = self.site.op, self.site.type(1).static_shape[0], self.direct.args[0]
        assert isinstance(op, Conv2d) and isinstance(moved, Move) and isinstance(self.direct.result, Move)
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
        found = as_tensor(closed(self.site.call.args[index].type, 1))
        return TensorType(move.new.shape_from(move.old, found.shape), found.dtype) if isinstance(move, Move) else found

    def _cycles(self, way: Placement) -> float | Declined:
        return self.predict(self._alone(way))

    def _error(self, size: int) -> str:
        bound = Transforms.of(size).bound(self.site.type(1).static_shape[1], "float32")
        return f"off by at most {bound:.1e} of the largest input times the sum of a filter"
