"""What a template is given and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from minitvm.ir.compute import accumulator
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Buffer, Kernel
from minitvm.ir.op import Op
from minitvm.target import MachineModel


@dataclass(frozen=True)
class Problem:
    """One operator over placeholder buffers: shapes, dtypes, attributes; nothing about what is fused around it."""

    op: Op
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]

    @property
    def output(self) -> Buffer:
        return self.outputs[0]

    @property
    def accumulator(self) -> str:
        """The dtype of the registers that sums are kept in; what is stored is rounded once."""
        return accumulator(self.output.dtype)

    @property
    def not_floats(self) -> Declined | None:
        """The refusal of templates whose registers hold floats, where something is not one."""
        dtypes = sorted({b.dtype for b in (*self.inputs, *self.outputs)})
        if all(d.startswith("float") for d in dtypes):
            return None
        return Declined(f"registers hold sums of floats; here {', '.join(dtypes)}")


Config: TypeAlias = Mapping[str, Any]
Template: TypeAlias = Callable[[Problem, MachineModel, Config], "Kernel | Declined"]


@dataclass
class TemplateRegistry:
    """Templates by target kind and operator name, tried in order of registration until one does not decline."""

    table: dict[tuple[str, str], list[Template]] = field(default_factory=dict)

    def register(self, kind: str, *op_names: str) -> Callable[[Template], Template]:
        def add(template: Template) -> Template:
            for name in op_names:
                self.table.setdefault((kind, name), []).append(template)
            return template

        return add

    def find(self, kind: str, op: Op) -> list[Template]:
        return self.table.get((kind, op.name), [])


TEMPLATES = TemplateRegistry()
