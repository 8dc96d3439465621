"""What a kernel costs: floating-point operations and bytes, counted from the operators of its group."""

from __future__ import annotations

from typing import Any

from minitvm.ir.expr import Call, Function
from minitvm.ir.op import Op
from minitvm.ir.types import TensorType, tensor_fields
from minitvm.ir.visitor import calls


def call_flops(call: Call) -> float:
    """Operations of one call, as its operator counts them."""
    assert isinstance(call.op, Op)
    return call.op.flops([t for a in call.args for t in tensor_fields(a.type)], tensor_fields(call.type))


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
