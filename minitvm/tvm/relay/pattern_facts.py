"""Patterns that ask something of what another pattern matches: attributes, a type, a shape, a dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minitvm.ir.expr import Call, Expr, Function
from minitvm.ir.op import OPS, Op
from minitvm.ir.types import TensorType, Type, accepts
from minitvm.tvm.relay.op import OpName
from minitvm.tvm.relay.patterns import DFPattern, Found
from minitvm.tvm.relay.reach import Reach


class Restricted(DFPattern):
    """What another pattern matches, if something holds of it."""

    def __init__(self, pattern: DFPattern) -> None:
        self.pattern = pattern

    def parts(self) -> tuple[DFPattern, ...]:
        return (self.pattern,)

    def holds(self, node: Any) -> bool:
        raise NotImplementedError(type(self).__name__)

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        if self.holds(node):
            yield from self.pattern.matches(node, found, reach)


class AttrPattern(Restricted):
    """Matches nodes with such attributes: of an operator what is registered for it, of a call its operator's, a
    function's own."""

    def __init__(self, pattern: DFPattern, attrs: Mapping[str, Any]) -> None:
        super().__init__(pattern)
        self.attrs = dict(attrs)

    def holds(self, node: Any) -> bool:
        return all(_attribute(node, name) == _plain(value) for name, value in self.attrs.items())


def _attribute(node: Any, name: str) -> Any:
    if isinstance(node, (Op, OpName)):
        return OpName(node.name).get_attr(name) if node.name in OPS else None
    if isinstance(node, Function):
        return _plain(node.attrs.get(name))
    return _plain(getattr(node.op, name, None)) if isinstance(node, Call) and isinstance(node.op, Op) else None


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _type_of(node: Any) -> Type | None:
    return node.checked_type if isinstance(node, Expr) else None


class TypePattern(Restricted):
    """Matches nodes of a type, which may have open sizes."""

    def __init__(self, pattern: DFPattern, ttype: Type) -> None:
        super().__init__(pattern)
        self.type = ttype

    def holds(self, node: Any) -> bool:
        known = _type_of(node)
        return known is not None and accepts(self.type, known)


class ShapePattern(Restricted):
    """Matches tensors of a shape."""

    def __init__(self, pattern: DFPattern, shape: Sequence[int]) -> None:
        super().__init__(pattern)
        self.shape = shape

    def holds(self, node: Any) -> bool:
        known = _type_of(node)
        return isinstance(known, TensorType) and known.shape == tuple(self.shape)


class DataTypePattern(Restricted):
    """Matches tensors of a dtype."""

    def __init__(self, pattern: DFPattern, dtype: str) -> None:
        super().__init__(pattern)
        self.dtype = dtype

    def holds(self, node: Any) -> bool:
        known = _type_of(node)
        return isinstance(known, TensorType) and known.dtype == self.dtype
