# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from minitvm.errors import TypeInferenceError as TypeInferenceError
from minitvm.errors import did_you_mean as did_you_mean
from minitvm.ir import builder as builder
from minitvm.ir.op import Fusion as Fusion
from minitvm.ir.op import Op as Op
from minitvm.ir.op import signature as signature
from minitvm.tvm.relay import operators as operators
from minitvm.tvm.relay import registered as registered
from minitvm.tvm.relay.registered import register_alter_op_layout as register_alter_op_layout
from minitvm.tvm.relay.registered import register_convert_op_layout as register_convert_op_layout
from minitvm.tvm.relay.registered import register_legalize as register_legalize
from minitvm.passes import partition as _contrib
contrib = _contrib
from minitvm.passes.gradient import register_gradient as register_gradient
from minitvm.tvm.relay import op as op
@dataclass(frozen=True, eq=False)
class OpName:
    """An operator by name.  Equal to what calls of it apply, whatever its attributes: ``call.op == op.get("add")``."""
    name: str

    def get_attr(self, attr_name: str) -> Any:
        """What is registered for the operator under a name: ``FTVMAlterOpLayout``; ``None`` where nothing is."""
        ...

    def set_attr(self, attr_name: str, value: Any, plevel: int=10) -> None:
        """Registers something for the operator."""
        ...

    def reset_attr(self, attr_name: str) -> None:
        """Forgets what is registered for it."""
        ...

    @property
    def num_inputs(self) -> int:
        """The number of its arguments; -1 where they are any number."""
        ...

    @property
    def description(self) -> str:
        """What it computes."""
        ...

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        ...

    def __eq__(self, other: object) -> bool:
        ...

    def __hash__(self) -> int:
        ...
class Operators:
    """An operator by its name, as TVM's ``ir.Op`` is."""

    @staticmethod
    def get(op_name: str) -> OpName:
        """The operator of that name."""
        ...

    @staticmethod
    def list_op_names() -> list[str]:
        """All operators' names."""
        ...
OpPattern = Fusion
def get(op_name: str) -> OpName:
    """The operator of that name; :class:`TypeInferenceError` where there is none."""
    ...
def list_op_names() -> list[str]:
    """All operators' names."""
    ...
from minitvm.ir.operators import *
