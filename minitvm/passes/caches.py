"""Caches that grow by concatenation, as memory with room: ``concatenate([past, new])`` that a model hands out becomes
new places written behind the past, where it lies.

    %past: (batch, heads, past, size)              %past: (batch, heads, room, size), %past.places: (past, 0)
    concatenate((%past, %new), axis=2)       ->    tensor_scatter(%past, %new, past, axis=2)

Whatever else reads the past or the result reads its first places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minitvm.errors import CompilerError
from minitvm.ir import builder as ir
from minitvm.ir.dims import PLACES, ROOM, Dim, symbol
from minitvm.ir.expr import Call, Expr, Function, Tuple, Var
from minitvm.ir.ops.more.scatter import TensorScatter
from minitvm.ir.ops.slicing import Concatenate
from minitvm.ir.ops.tensor import Extent
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import rewrite


@dataclass(frozen=True)
class _Cache:
    past: Var
    axis: int
    memory: Var
    places: Var

    @staticmethod
    def of(past: Var, axis: int) -> _Cache:
        shape = list(past.tensor_type.shape)
        places = Var(past.name + PLACES, TensorType((shape[axis], 0), "bool"))
        shape[axis] = symbol(ROOM)
        return _Cache(past, axis, Var(past.name, past.tensor_type.with_shape(tuple(shape))), places)

    @property
    def used(self) -> Dim:
        return self.past.tensor_type.shape[self.axis]

    def first(self, held: Expr, count: Dim) -> Expr:
        return ir.strided_slice(held, begin=(0,), end=(count,), axes=(self.axis,))

    def written(self, new: Expr) -> Expr:
        """The memory with new places behind those in use."""
        start = ir.broadcast_to(Call(Extent(self.used), ()), shape=self.past.tensor_type.shape[:1])
        return Call(TensorScatter(self.axis), (self.memory, new, start))

    def is_grown(self, head: Expr) -> bool:
        """True if a result is the past with something behind it."""
        if not isinstance(head, Call) or not isinstance(head.op, Concatenate) or not isinstance(head.args[0], Tuple):
            return False
        fields, axis = head.args[0].fields, head.op.axis % head.tensor_type.rank
        return len(fields) == 2 and fields[0] is self.past and axis == self.axis


def with_room(function: Function, grown: Mapping[str, tuple[int, int]]) -> Function:
    """The function whose inputs ``grown`` are memory with room, and so is the result that each is with new places
    behind it; by name the result's position and the axis of the places.  Behind its inputs are those that say how many
    places are in use.

    :class:`CompilerError` where such a result is something else.
    """
    caches = [_Cache.of(param, grown[param.name][1]) for param in function.params if param.name in grown]
    heads = function.body.fields if isinstance(function.body, Tuple) else (function.body,)
    joins = {heads[grown[cache.past.name][0]]: cache for cache in caches}
    for head, cache in joins.items():
        if not cache.is_grown(head):
            raise CompilerError(f"input {cache.past.name!r} with new places behind it is no result")
    written: dict[Expr, Expr] = {}

    def visit(old: Expr, new: Expr) -> Expr:
        if old not in joins:
            found = next((cache for cache in caches if cache.past is old), None)
            return new if found is None else found.first(found.memory, found.used)
        assert isinstance(new, Call) and isinstance(new.args[0], Tuple)
        cache, written[old] = joins[old], joins[old].written(new.args[0].fields[1])
        return cache.first(written[old], old.tensor_type.shape[cache.axis])

    body = rewrite(Tuple(heads), visit)
    assert isinstance(body, Tuple)
    results = dict(enumerate(body.fields)) | {grown[c.past.name][0]: written[head] for head, c in joins.items()}
    memory = {cache.past: cache.memory for cache in caches}
    params = [*(memory.get(param, param) for param in function.params), *(cache.places for cache in caches)]
    return Function(params, Tuple(list(results.values())), function.attrs, span=function.span)
