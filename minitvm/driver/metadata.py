"""What a kernel costs: floating-point operations and bytes, counted from its group's operators; seconds, predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minitvm.ir.expr import Call, Function
from minitvm.ir.op import Op
from minitvm.ir.types import TensorType, tensor_fields
from minitvm.ir.visitor import calls
from minitvm.target import MachineModel

_VECTORS_A_SECOND, _BYTES_A_SECOND = 6e9, 2e10  # a multiplication and an addition a cycle, at 3 GHz; the second cache


@dataclass(frozen=True)
class Cost:
    """``flops`` operations, ``nbytes`` of inputs and results (each once), ``seconds`` on one thread as predicted."""

    flops: float
    nbytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.flops / 1e6:.3f} MFLOP, {self.nbytes / 1e3:.1f} kB, {self.seconds * 1e6:.1f} us predicted"


def group_cost(group: Function, machine: MachineModel) -> Cost:
    """A rough estimate: vectors are full, multiplied and added without a stop, and all memory is the second cache."""
    flops = sum(map(call_flops, calls(group.body)))
    results = tensor_fields(group.ret_type)
    nbytes = sum(t.nbytes for t in (*_inputs(group), *results))
    lanes = machine.lanes(results[0].dtype) if results else 1
    return Cost(flops, nbytes, flops / (lanes * _VECTORS_A_SECOND) + nbytes / _BYTES_A_SECOND)


def call_flops(call: Call) -> float:
    """Operations of one call, as its operator counts them."""
    assert isinstance(call.op, Op)
    return call.op.flops([t for a in call.args for t in tensor_fields(a.type)], tensor_fields(call.type))


def _inputs(group: Function) -> list[TensorType]:
    return [t for p in group.params for t in tensor_fields(p.type)]


def group_metadata(group: Function, machine: MachineModel) -> dict[str, Any]:
    """The kernel's signature: types of its ``inputs`` and ``results``.  And ``flops``, ``bytes``, ``seconds`` as in
    :class:`Cost`, ``dtype`` of the first result, ``ops``, ``spans``."""
    inside, results, cost = calls(group.body), tensor_fields(group.ret_type), group_cost(group, machine)
    return {
        "inputs": [str(t) for t in _inputs(group)],
        "results": [str(t) for t in results],
        "flops": cost.flops,
        "bytes": cost.nbytes,
        "seconds": cost.seconds,
        "dtype": results[0].dtype if results else "",
        "ops": [c.op.name for c in inside if isinstance(c.op, Op)],
        "spans": list(dict.fromkeys(s for c in inside for s in c.span) or group.span),
    }
