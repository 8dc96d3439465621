"""What is quantized and how, as ``qconfig(...)`` says: in how many bits, by which scales, and what is left alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from minitvm.errors import ConfigError, did_you_mean
from minitvm.ir.dtypes import limits
from minitvm.ir.expr import Call, Expr
from minitvm.ir.ops.simulated import QAnnotateKind, SimulatedQuantize

_CHOICES = {
    "calibrate_mode": ("global_scale", "kl_divergence", "percentile"),
    "weight_scale": ("power2", "max"),
    "rounding": ("UPWARD", "TONEAREST"),
    "partition_conversions": ("disabled", "enabled", "fully_integral"),
}


@dataclass(frozen=True)
class QConfig:
    """Relay's options, with its names and defaults; ``with`` makes them the current ones of the thread.

    ``skip_conv_layers`` are the places, counted from 0, of 2-D convolutions that stay as they are.
    ``calibrate_chunk_by`` is how many layers' values are held at once while scales are looked for; -1: all.
    """

    nbit_input: int = 8
    nbit_weight: int = 8
    nbit_activation: int = 32
    dtype_input: str = "int8"
    dtype_weight: str = "int8"
    dtype_activation: str = "int32"
    calibrate_mode: str = "global_scale"
    global_scale: float = 8.0
    weight_scale: str = "power2"
    skip_dense_layer: bool = True
    skip_conv_layers: Sequence[int] | None = (0,)
    do_simulation: bool = False
    round_for_shift: bool = True
    debug_enabled_ops: Sequence[str] | None = None
    rounding: str = "UPWARD"
    calibrate_chunk_by: int = -1
    partition_conversions: str = "disabled"

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"qconfig: {name} is {getattr(self, name)!r}", hint=f"one of {', '.join(known)}")
        for kind in ("input", "weight", "activation"):
            bits, dtype = getattr(self, f"nbit_{kind}"), getattr(self, f"dtype_{kind}")
            if not str(dtype).startswith("int") or not 2 <= bits <= int(limits(dtype)[1]).bit_length() + 1:
                raise ConfigError(
                    f"qconfig: {bits} bits of {kind}s in {dtype}", hint="a signed integer that holds them"
                )
        if not self.global_scale > 0:
            raise ConfigError(f"qconfig: global_scale is {self.global_scale}", hint="the largest magnitude to expect")

    def get_nbit_by_kind(self, kind: int) -> int:
        """The bits of a kind of values."""
        return int(getattr(self, f"nbit_{kind2str(kind)}"))

    def get_dtype_by_kind(self, kind: int) -> str:
        """The dtype of a kind of values."""
        return str(getattr(self, f"dtype_{kind2str(kind)}"))

    def guard(self, ref_call: Call) -> bool:
        """True if the operator of a call is to be quantized at all."""
        enabled = self.debug_enabled_ops
        return enabled is None or getattr(ref_call.op, "name", "") in [*map(str, enabled)]

    def __enter__(self) -> QConfig:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _entered.set(_entered.get()[:-1])


def simulated_kind(node: Expr) -> QAnnotateKind | None:
    """The kind of a call of simulated quantization; ``None`` for any other node."""
    if not isinstance(node, Call) or not isinstance(node.op, SimulatedQuantize):
        return None
    return QAnnotateKind(node.op.kind)


_entered: ContextVar[tuple[QConfig, ...]] = ContextVar("qconfig", default=())
_DEFAULT = QConfig()


def kind2str(kind: int) -> str:
    """The name of a :class:`QAnnotateKind` in options."""
    return QAnnotateKind(kind).name.lower()


def current_qconfig() -> QConfig:
    """The options that were entered last; the defaults outside of every ``with``."""
    return (_DEFAULT, *_entered.get())[-1]


def qconfig(**options: Any) -> QConfig:
    """Options for :func:`quantize`, used as ``with qconfig(...):``.  :class:`ConfigError` for one that there is not."""
    known = [field.name for field in dataclasses.fields(QConfig)]
    for name in options:
        if name not in known:
            raise ConfigError(f"qconfig has no option {name!r}", hint=did_you_mean(name, known))
    return QConfig(**options)
