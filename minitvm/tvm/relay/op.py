"""Relay's ``op``: the operators as functions, ``op.nn.conv2d(...)``, and by name, ``op.get("nn.conv2d")``."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minitvm.errors import TypeInferenceError, did_you_mean
from minitvm.ir import builder
from minitvm.ir.op import OPS, Fusion, Op, signature
from minitvm.tvm import lacking
from minitvm.tvm.relay import operators, registered
from minitvm.tvm.relay.registered import register_alter_op_layout, register_convert_op_layout, register_legalize

if TYPE_CHECKING:
    from minitvm.passes import partition as contrib
    from minitvm.passes.gradient import register_gradient as register_gradient
    from minitvm.tvm.relay import op as op

__path__: list[str] = []  # a package, for what Relay has below it
_FAMILIES = ("tensor", "transform", "reduce", "algorithm")
"""Relay's files of operators that have no namespace of their own."""


@dataclass(frozen=True, eq=False)
class OpName:
    """An operator by name.  Equal to what calls of it apply, whatever its attributes: ``call.op == op.get("add")``."""

    name: str

    def get_attr(self, attr_name: str) -> Any:
        """What is registered for the operator under a name: ``FTVMAlterOpLayout``; ``None`` where nothing is."""
        return OPS[self.name].fusion.value if attr_name == "TOpPattern" else registered.attribute(self.name, attr_name)

    def set_attr(self, attr_name: str, value: Any, plevel: int = 10) -> None:
        """Registers something for the operator."""
        registered.set_attribute(self.name, attr_name, value, plevel)

    def reset_attr(self, attr_name: str) -> None:
        """Forgets what is registered for it."""
        registered.reset_attribute(self.name, attr_name)

    @property
    def num_inputs(self) -> int:
        """The number of its arguments; -1 where they are any number."""
        known = signature(OPS[self.name])
        return -1 if known.variadic else len(known.names)

    @property
    def description(self) -> str:
        """What it computes."""
        return builder.described(OPS[self.name])

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        return builder.call_op(self.name, *args, **attributes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Op, OpName)) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class _EveryOperator(type):
    """What calls apply, and what names it, are operators."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (Op, OpName))


class Operators(metaclass=_EveryOperator):
    """An operator by its name, as TVM's ``ir.Op`` is."""

    @staticmethod
    def get(op_name: str) -> OpName:
        """The operator of that name."""
        return get(op_name)

    @staticmethod
    def list_op_names() -> list[str]:
        """All operators' names."""
        return list_op_names()


OpPattern = Fusion


def get(op_name: str) -> OpName:
    """The operator of that name; :class:`TypeInferenceError` where there is none."""
    if op_name not in OPS:
        raise TypeInferenceError(f"there is no operator {op_name!r}", hint=did_you_mean(op_name, OPS, str))
    return OpName(op_name)


def list_op_names() -> list[str]:
    """All operators' names."""
    return sorted(OPS)


def __getattr__(name: str) -> Any:
    if name == "op":  # Relay's file of what is registered for operators
        return importlib.import_module(__name__)
    if name in _FAMILIES:
        return importlib.import_module("minitvm.tvm.relay")
    if f"relay.op.{name}" in lacking.HELD or lacking.why(f"relay.op.{name}") or name.startswith("_"):
        return lacking.attribute("relay.op", name)
    return operators.function(name)
