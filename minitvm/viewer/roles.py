"""Kernels by what they are for: ``conv 3x3, 64 → 128 + relu`` rather than the names of all their operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from minitvm.driver.program import call_flops
from minitvm.ir.expr import Call, Function
from minitvm.ir.op import Op
from minitvm.ir.ops.nn_attention import Attention
from minitvm.ir.ops.nn_conv import FilterBank
from minitvm.ir.ops.nn_conv_transpose import ConvTranspose
from minitvm.ir.ops.nn_dense import MatrixProduct
from minitvm.ir.ops.nn_pool import Pool
from minitvm.ir.types import TensorType, tensor_fields
from minitvm.ir.visitor import calls

_MOST_FOLLOWING = 3


def roles_of(groups: Mapping[str, Function]) -> dict[str, str]:
    """A role for each kernel, no two alike: those that are get the size of their result, then a number."""
    roles = {symbol: role_of(group) for symbol, group in groups.items()}
    sized = _where_alike(roles, lambda symbol, _: f", {_extents(groups[symbol])}")
    return _where_alike(sized, lambda _, number: f" ({number})")


def _where_alike(roles: dict[str, str], told: Callable[[str, int], str]) -> dict[str, str]:
    """More is told of roles that several have; ``number``: which of them it is."""
    count, seen = Counter(roles.values()), Counter[str]()
    for symbol, role in roles.items():
        seen[role] += 1
        roles = {**roles, symbol: role + told(symbol, seen[role]) if count[role] > 1 else role}
    return roles


def role_of(group: Function) -> str:
    """The call that most of the work is for, and what follows it."""
    found = [call for call in calls(group.body) if isinstance(call.op, Op)]
    if not found:
        return "copy"
    anchor = max(found, key=_weight)
    after = list(dict.fromkeys(_name(call) for call in found[found.index(anchor) + 1 :]))
    more = [f"{len(after) - _MOST_FOLLOWING} more"] * (len(after) > _MOST_FOLLOWING)
    return " + ".join([_anchor(anchor), *after[:_MOST_FOLLOWING], *more])


def _weight(call: Call) -> tuple[float, int]:
    assert isinstance(call.op, Op)
    return call_flops(call), call.op.fusion


def _anchor(call: Call) -> str:
    operands = [type_ for arg in call.args for type_ in tensor_fields(arg.type)]
    [result, *_] = tensor_fields(call.type)
    match call.op:
        case FilterBank() as op:
            return _convolution(op, operands, result)
        case MatrixProduct() as op:
            depth = operands[0].shape[-2 if op.attributes().get("transpose_a") else -1]
            kind = "product" if result.rank > 2 else "dense"
            return f"{kind} {depth} → {result.shape[-1]}"
        case Attention():
            return f"attention, {operands[0].shape[2]} heads"
        case Pool() as op:
            return f"{_name(call)} {_times(op.pool_size)}"
    return _name(call)


def _convolution(op: FilterBank, operands: Sequence[TensorType], result: TensorType) -> str:
    data, weight, out = op.layouts
    [channels, made] = [layout.primal_shape(type_.shape)["C"] for layout, type_ in ((data, operands[0]), (out, result))]
    taps = weight.primal_shape(operands[1].shape)
    is_winograd = hasattr(op, "tile_size")
    window: Sequence[object] = op.kernel_size or [taps[axis] for axis in op.spatial]
    kind = "transposed conv" if isinstance(op, ConvTranspose) else "conv"
    if op.groups == channels == made:
        return f"depthwise {kind} {_times(window)}, {made}"
    groups = f" in {op.groups} groups" if op.groups > 1 else ""
    return f"{kind} {'3x3' if is_winograd else _times(window)}, {channels} → {made}{groups}{', Winograd' * is_winograd}"


def _name(call: Call) -> str:
    assert isinstance(call.op, Op)
    return (
        call.op.name.removeprefix("nn.")
        .removeprefix("qnn.")
        .removeprefix("control.")
        .removeprefix("contrib_")
        .replace("2d", "")
        .replace("_", " ")
    )


def _times(sizes: Sequence[object]) -> str:
    return "x".join(map(str, sizes))


def _extents(group: Function) -> str:
    return _times(tensor_fields(group.ret_type)[0].shape) or "a number"
