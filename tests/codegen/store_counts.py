"""How often a kernel's loops store every element, counted from the indices alone: nothing is computed or compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.ir.loop import Alloc, Binary, Buffer, Const, For, If, LoopExpr, LoopVar, Seq, Stmt, Store

_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "min": np.minimum, "max": np.maximum, "larger": np.maximum,
    "lt": operator.lt, "le": operator.le,
    "eq": operator.eq, "ne": operator.ne, "and": operator.and_, "or": operator.or_,
}  # fmt: skip

Values = dict[LoopVar, np.ndarray]


def store_counts(stmt: Stmt, buffer: Buffer) -> np.ndarray:
    """For each element of ``buffer`` how many stores reach it; an index outside of it is an ``IndexError``."""
    counts = np.zeros(buffer.shape, np.int64)
    _visit(stmt, buffer, {}, np.ones(1, bool), counts)
    return counts


def _visit(stmt: Stmt, buffer: Buffer, values: Values, active: np.ndarray, counts: np.ndarray) -> None:
    match stmt:
        case Seq(stmts):
            for part in stmts:
                _visit(part, buffer, values, active, counts)
        case Alloc(_, body):
            _visit(body, buffer, values, active, counts)
        case For(var, extent, body, _) if _stores(body, buffer):
            assert isinstance(extent, Const), "a loop of varying extent is not enumerated"
            apart = {v: x[..., None] for v, x in values.items()}
            _visit(body, buffer, {**apart, var: np.arange(extent.value)}, active[..., None], counts)
        case If(condition, then, orelse):
            holds = np.asarray(_evaluate(condition, values))
            _visit(then, buffer, values, active & holds, counts)
            if orelse is not None:
                _visit(orelse, buffer, values, active & ~holds, counts)
        case Store(target, index, _) if target is buffer:
            where = np.broadcast_arrays(active, *(np.asarray(_evaluate(i, values)) for i in index), *values.values())
            at = tuple(w[where[0]] for w in where[1 : len(index) + 1])
            if any(((i < 0) | (i >= extent)).any() for i, extent in zip(at, buffer.shape, strict=True)):
                raise IndexError(f"{buffer.name} is stored to outside of {buffer.shape}")
            flat = np.ravel_multi_index(at, counts.shape)
            counts += np.bincount(flat, minlength=counts.size).reshape(counts.shape)


def _stores(stmt: Stmt, buffer: Buffer) -> bool:
    match stmt:
        case Seq(stmts):
            return any(_stores(part, buffer) for part in stmts)
        case Alloc(_, body) | For(_, _, body, _):
            return _stores(body, buffer)
        case If(_, then, orelse):
            return _stores(then, buffer) or (orelse is not None and _stores(orelse, buffer))
        case Store(target, _, _):
            return target is buffer
    return False


def _evaluate(expr: LoopExpr, values: Values) -> Any:
    match expr:
        case Const(value, _):
            return value
        case LoopVar():
            return values[expr]
        case Binary(op, lhs, rhs):
            return _OPS[op](_evaluate(lhs, values), _evaluate(rhs, values))
    raise AssertionError(f"an index is made of {type(expr).__name__}")
