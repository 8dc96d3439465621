# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from dataclasses import dataclass
from typing import Any
from minitvm.errors import TypeInferenceError as TypeInferenceError
from minitvm.errors import did_you_mean as did_you_mean
from minitvm.ir import builder as builder
from minitvm.ir.op import Op as Op
@dataclass(frozen=True, eq=False)
class OpName:
    """An operator by name.  Equal to what calls of it apply, whatever its attributes: ``call.op == op.get("add")``."""
    name: str

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        ...

    def __eq__(self, other: object) -> bool:
        ...

    def __hash__(self) -> int:
        ...
def get(op_name: str) -> OpName:
    """The operator of that name; :class:`TypeInferenceError` where there is none."""
    ...
def list_op_names() -> list[str]:
    """All operators' names."""
    ...
from minitvm.ir.operators import *
