"""A stretch of a model behind sizes that its data decide: compiled once for all of them, bound when they are known.

    %found = nonzero(%x)
    control.stage(%found.1, %found.0, body=fn (%places: Tensor[(2, measured_0), int64]) {...}, ...)

What is found is handed over with the room behind it; ``axes`` says along which axis it is cut to how much there is.
What control flow makes is exactly as long: ``control.sized`` names its dimensions, and a stage reads it as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.dims import MEASURED, Atom, Dim, SymbolicDim, anonymous, number, replace
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Expr, Function, Var
from minitvm.ir.op import Fusion, Op
from minitvm.ir.types import FuncType, TensorType, TupleType, Type, bound
from minitvm.ir.visitor import children, held_functions, post_order, rebuild


class Stage(Op, name="control.stage", fusion=Fusion.OPAQUE, hosted=True, takes_stored=True):
    """``body`` over values, some of which are as long as others say.

    First for each symbol of ``sizes`` its value, () int64: the data decide the first ``measured``, and no stage before
    knew ``fresh`` of them; then the body's parameters, which may be longer along ``axes`` (-1: nowhere)
    -> what the body returns; dimensions that the data decide are anonymous.
    """

    body: Function
    sizes: tuple[str, ...]
    measured: int
    fresh: int
    """So many of these were not known to stages before."""
    axes: tuple[int, ...]

    @property
    def assumed_sizes(self) -> tuple[Sequence[str], ...]:
        return self.by_data, self.sizes[: self.fresh], self.sizes[: self.measured]

    @property
    def by_data(self) -> tuple[str, ...]:
        """The sizes that the data decide, here or around the body that it stands in."""
        return tuple(name for name in self.sizes if name.startswith(MEASURED))

    def infer(self, *given: Type) -> Type:
        body, count = self.body.checked_type, len(self.sizes)
        if not isinstance(body, FuncType) or len(body.params) != len(self.axes) or len(given) != count + len(self.axes):
            raise self.reject(f"{len(given)} values for {count} sizes and {len(self.axes)} values of the body")
        return _without(body.result, self.sizes[: self.measured])

    def reference(self, *given: Any) -> Any:
        count = len(self.sizes)
        values = dict(zip(self.sizes, (int(np.asarray(size).item()) for size in given[:count]), strict=True))
        body = _numbered(self.body, values)
        shapes = (param.tensor_type.static_shape for param in body.params)
        return evaluate(body, *self.cut(given[count:], shapes))

    def cut(self, values: Any, shapes: Any) -> list[np.ndarray]:
        """Values to the lengths that they have; :class:`InputError` where one is shorter."""
        found = []
        for value, shape, axis in zip(values, shapes, self.axes, strict=True):
            if axis >= 0:
                value = np.ascontiguousarray(value[(slice(None),) * axis + (slice(shape[axis]),)])
            if value.shape != tuple(shape):
                raise InputError(f"a value of shape {list(value.shape)} where {list(shape)} is expected")
            found.append(value)
        return found


class Sized(Op, name="control.sized", fusion=Fusion.OPAQUE, hosted=True, takes_stored=True):
    """``value`` itself, whose dimensions are ``extents``: names for those that the data decide."""

    extents: tuple[Dim, ...]

    def infer(self, value: TensorType) -> TensorType:
        return value.with_shape(self.extents)

    def reference(self, value: np.ndarray) -> np.ndarray:
        return value


def _without(type_: Type, names: tuple[str, ...]) -> Type:
    """``type_`` with anonymous dimensions for those that are made with the symbols."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(_without(field, names) for field in type_.fields))
    assert isinstance(type_, TensorType)
    atoms = {Atom("symbol", (name,)) for name in names}
    is_open = [isinstance(d, SymbolicDim) and not atoms.isdisjoint(d.symbols()) for d in type_.shape]
    return type_.with_shape(tuple(anonymous() if open_ else d for d, open_ in zip(type_.shape, is_open, strict=True)))


def _numbered(function: Function, values: Mapping[str, int]) -> Function:
    """The function where symbols are numbers."""
    atoms = {Atom("symbol", (name,)): value for name, value in values.items()}
    dims = {SymbolicDim((((atom,), 1),)): value for atom, value in atoms.items()}
    params = [Var(param.name, bound(param.type, dims)) for param in function.params]
    done: dict[Expr, Expr] = dict(zip(function.params, params, strict=True))

    def known(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(known, value))
        if isinstance(value, Function):
            return _numbered(value, values)
        return number(replace(value, atoms), {}) if isinstance(value, SymbolicDim) else value

    for node in post_order(function.body):
        if isinstance(node, Call):  # whose operands are of other types than before
            op: Any = node.op
            if isinstance(op, Function):
                op = _numbered(op, values)
            elif op.symbols or held_functions(node):
                op = op.with_attributes(**{name: known(value) for name, value in op.attributes().items()})
            done[node] = Call(op, [done[arg] for arg in node.args], span=node.span)
        elif node not in done and not isinstance(node, Function):
            done[node] = rebuild(node, [done[child] for child in children(node)])
    return Function(params, done[function.body], function.attrs, span=function.span)
