"""The table of ONNX operators: ``(domain, op_type) -> since_version -> builder``.

A builder takes an :class:`~minitvm.frontend.onnx.node.OnnxNode` and returns the node's outputs as graph IR.
Opset differences end here: of an operator's builders, the newest not newer than the model's opset is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from minitvm.errors import FrontendError, is_again, place_of
from minitvm.ir.expr import Expr

if TYPE_CHECKING:
    from minitvm.frontend.onnx.node import OnnxNode

Outputs: TypeAlias = "Expr | Sequence[Expr | None]"
"""One output, or several in order; ``None`` for an optional output that the builder does not offer."""
Builder: TypeAlias = "Callable[[OnnxNode], Outputs]"

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

BUILDERS: dict[tuple[str, str], dict[int, Builder]] = {}


def onnx_op(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Builder], Builder]:
    """Registers a builder for operator types from opset ``since`` of their domain on; one that is defined again (a cell
    that is run again) takes the first one's place.  :class:`FrontendError` where another one is there."""

    def register(builder: Builder) -> Builder:
        for op_type in op_types:
            versions = BUILDERS.setdefault((domain, op_type), {})
            old = versions.get(since)
            if old is not None and not is_again(old, builder):
                raise FrontendError(
                    f"{op_type} of opset {since} is built by {place_of(old)} already, and again by {place_of(builder)}",
                    hint="since= a later opset; a cell that is run again defines the same function anew",
                )
            versions[since] = builder
        return builder

    return register


def formulas(table: Mapping[str, Builder], domain: str = "") -> None:
    """Registers builders by operator type, or by type and first opset as ONNX writes it: ``Softmax-13``."""
    for name, builder in table.items():
        op_type, _, since = name.partition("-")
        onnx_op(op_type, since=int(since or 1), domain=domain)(builder)


def builder_for(domain: str, op_type: str, opset: int) -> Builder | None:
    """The newest builder not newer than ``opset``; ``None`` where there is none."""
    versions = BUILDERS.get((domain, op_type), {})
    usable = [since for since in versions if since <= opset]
    return versions[max(usable)] if usable else None


def supported_operators() -> list[str]:
    """Names of all operators with a builder, those of other domains as ``domain.name``."""
    return sorted(f"{domain}.{name}" if domain else name for domain, name in BUILDERS)
