"""What a kernel costs: floating-point operations and bytes, counted from the operators of its group."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minitvm.ir.expr import Call, Function
from minitvm.ir.op import Fusion, Op
from minitvm.ir.types import TensorType, tensor_fields
from minitvm.ir.visitor import calls


def _conv_flops(call: Call) -> float:
    """Two per multiplication: every result element needs the weight's elements of its output channel."""
    weight = call.args[1].tensor_type
    layout = str(getattr(call.op, "kernel_layout", "OIHW"))
    letters = [c for c in layout if c.isalpha()]
    channels = math.prod(d for c, d in zip(letters, weight.static_shape, strict=True) if c in "Oo")
    return 2.0 * call.tensor_type.size * weight.size / max(1, channels)


def _conv_transpose_flops(call: Call) -> float:
    """As the convolution it is the gradient of: every input element meets the weight's elements of its channel."""
    data, weight = call.args[0].tensor_type, call.args[1].tensor_type
    return 2.0 * data.size * weight.size / max(1, weight.static_shape[0])


def _dense_flops(call: Call) -> float:
    """Two per multiplication; the reduced extent is the last of the first operand, or its product of the rest."""
    data = call.args[0].tensor_type
    transposed = bool(getattr(call.op, "transpose_a", False))
    return 2.0 * call.tensor_type.size * data.static_shape[-2 if transposed else -1]


_FLOPS: dict[str, Callable[[Call], float]] = {
    "nn.conv1d": _conv_flops,
    "nn.conv2d": _conv_flops,
    "nn.conv3d": _conv_flops,
    "nn.contrib_conv2d_NCHWc": _conv_flops,
    "nn.contrib_depthwise_conv2d_NCHWc": _conv_flops,
    "nn.conv1d_transpose": _conv_transpose_flops,
    "nn.conv2d_transpose": _conv_transpose_flops,
    "nn.conv3d_transpose": _conv_transpose_flops,
    "nn.dense": _dense_flops,
    "nn.contrib_dense_pack": _dense_flops,
    "nn.matmul": _dense_flops,
    "nn.batch_matmul": _dense_flops,
}


def call_flops(call: Call) -> float:
    """Operations of one call: by formula for products, one per element read by a reduction or written otherwise."""
    assert isinstance(call.op, Op)
    if call.op.name in _FLOPS:
        return _FLOPS[call.op.name](call)
    if call.op.fusion is Fusion.COMM_REDUCE:
        return float(sum(t.size for a in call.args for t in tensor_fields(a.type)))
    if call.op.fusion <= Fusion.BROADCAST or call.op.fusion is Fusion.OUT_ELEMWISE_FUSABLE:
        return float(sum(t.size for t in tensor_fields(call.type)))
    return 0.0


def _bytes(types: tuple[TensorType, ...]) -> int:
    return sum(t.nbytes for t in types)


def group_metadata(group: Function) -> dict[str, Any]:
    """The kernel's signature: types of its ``inputs`` and ``results``.  And ``flops``, ``bytes`` (inputs and results
    once), ``dtype`` of the first result, ``ops``, ``spans``."""
    inside = calls(group.body)
    inputs = tuple(t for p in group.params for t in tensor_fields(p.type))
    results = tensor_fields(group.ret_type)
    return {
        "inputs": [str(t) for t in inputs],
        "results": [str(t) for t in results],
        "flops": sum(call_flops(c) for c in inside),
        "bytes": _bytes(inputs) + _bytes(results),
        "dtype": results[0].dtype if results else "",
        "ops": [c.op.name for c in inside if isinstance(c.op, Op)],
        "spans": list(dict.fromkeys(s for c in inside for s in c.span) or group.span),
    }
