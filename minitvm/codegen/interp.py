"""The loop interpreter: the living definition of the loop IR, and the oracle of every back end.

Independent iterations run side by side as *lanes*: a parallel, vectorized, block or thread loop multiplies the lanes,
every expression is a numpy array with one element per lane, a branch keeps the lanes that take it.  Serial and
unrolled loops run in order.  Memory of scope ``local`` exists once per lane that reached its ``Alloc``, ``shared``
likewise (one per block); nothing may be read before it is written, and no index may leave its buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minitvm.codegen.affine import storage_size
from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Cast,
    Const,
    For,
    If,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Seq,
    Stmt,
    Store,
)

_SIDE_BY_SIDE = frozenset(LoopKind) - {LoopKind.SERIAL, LoopKind.UNROLLED}
_MOST_LANES = 1 << 18

Array = np.ndarray


def run_kernel(kernel: Kernel, *inputs: Array, check_races: bool = False) -> tuple[Array, ...]:
    """The results of a kernel for arrays of its inputs' shapes and dtypes.

    Raises :class:`CompilerError` for an index out of bounds, a read of memory never written, a result element that
    no store reaches, and (``check_races``) two iterations of one parallel loop that store to the same element.
    """
    if len(inputs) != len(kernel.inputs):
        raise CompilerError(f"{kernel.name} takes {len(kernel.inputs)} arrays, {len(inputs)} given")
    memory = {b: _Memory.holding(b, a) for b, a in zip(kernel.inputs, inputs, strict=True)}
    memory.update({b: _Memory.empty(b, 1) for b in kernel.outputs})
    _Lanes(kernel, memory, check_races=check_races).run(kernel.body)
    return tuple(_result(kernel, memory[b], b) for b in kernel.outputs)


def run_sequence(kernels: Sequence[Kernel], given: Mapping[Buffer, Array]) -> dict[Buffer, Array]:
    """Kernels one after the other over common buffers: what one stores, the next ones find.

    ``given`` are the arrays that exist before; all arrays come back, those included.
    """
    arrays = dict(given)
    for kernel in kernels:
        results = run_kernel(kernel, *(arrays[b] for b in kernel.inputs))
        arrays.update(zip(kernel.outputs, results, strict=True))
    return arrays


@dataclass
class _Memory:
    """``data[instance, offset]``; ``written`` tells what may be read."""

    data: Array
    written: Array

    @staticmethod
    def empty(buffer: Buffer, instances: int) -> _Memory:
        shape = (instances, storage_size(buffer))
        return _Memory(np.zeros(shape, buffer.dtype), np.zeros(shape, bool))

    @staticmethod
    def holding(buffer: Buffer, array: Array) -> _Memory:
        given = np.asarray(array)
        if given.shape != buffer.shape or given.dtype != np.dtype(buffer.dtype):
            raise CompilerError(
                f"{buffer.name} is {buffer.dtype}{list(buffer.shape)}, given {given.dtype}{list(given.shape)}"
            )
        memory = _Memory.empty(buffer, 1)
        where = _offsets(buffer).ravel()
        memory.data[0, where] = given.ravel()
        memory.written[0, where] = True
        return memory


def _offsets(buffer: Buffer) -> Array:
    """The element offset of every index of a buffer."""
    grid = np.full(buffer.shape, buffer.offset, np.int64)
    for axis, stride in enumerate(buffer.row_major_strides):
        shape = [1] * len(buffer.shape)
        shape[axis] = buffer.shape[axis]
        grid += (np.arange(buffer.shape[axis]) * stride).reshape(shape)
    return grid


def _result(kernel: Kernel, memory: _Memory, buffer: Buffer) -> Array:
    where = _offsets(buffer)
    missing = np.argwhere(~memory.written[0][where])
    if len(missing):
        raise CompilerError(f"{kernel.name} never stores {buffer.name}{[int(i) for i in missing[0]]}")
    return memory.data[0][where]


@dataclass
class _Lanes:
    """The lanes that are active at one place of the program."""

    kernel: Kernel
    memory: dict[Buffer, _Memory]
    count: int = 1
    variables: dict[LoopVar, Array] = field(default_factory=dict)
    instances: dict[Buffer, Array] = field(default_factory=dict)
    check_races: bool = False
    in_parallel: bool = False

    # --- statements -------------------------------------------------------------------------------------------

    def run(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts):
                for part in stmts:
                    self.run(part)
            case For():
                self._for(stmt)
            case Store(buffer, index, value):
                self._store(buffer, index, self.eval(value))
            case If(condition, then, orelse):
                self._if(condition, then, orelse)
            case Alloc(buffer, body):
                self._alloc(buffer, body)
            case Barrier():
                pass  # side by side, what comes before it is done
            case _:
                raise AssertionError(stmt)

    def _for(self, stmt: For) -> None:
        if stmt.kind in _SIDE_BY_SIDE:
            assert isinstance(stmt.extent, Const), "only serial loops have an extent that varies"
            step = max(1, _MOST_LANES // self.count)
            for start in range(0, stmt.extent.value, step):
                self._spread(stmt.var, start, min(start + step, stmt.extent.value), stmt.kind).run(stmt.body)
            return
        extent = self.eval(stmt.extent)
        for i in range(int(extent.max(initial=0))):
            active = self if (extent > i).all() else self._subset(extent > i)
            active._with(stmt.var, np.full(active.count, i)).run(stmt.body)

    def _spread(self, var: LoopVar, start: int, stop: int, kind: LoopKind) -> _Lanes:
        """Every lane once per iteration."""
        times = stop - start
        return replace(
            self,
            count=self.count * times,
            variables={
                **{v: np.repeat(x, times) for v, x in self.variables.items()},
                var: np.tile(np.arange(start, stop), self.count),
            },
            instances={b: np.repeat(x, times) for b, x in self.instances.items()},
            in_parallel=self.in_parallel or kind is LoopKind.PARALLEL,
        )

    def _subset(self, mask: Array) -> _Lanes:
        return replace(
            self,
            count=int(mask.sum()),
            variables={v: x[mask] for v, x in self.variables.items()},
            instances={b: x[mask] for b, x in self.instances.items()},
        )

    def _with(self, var: LoopVar, value: Array) -> _Lanes:
        return replace(self, variables={**self.variables, var: value})

    def _if(self, condition: LoopExpr, then: Stmt, orelse: Stmt | None) -> None:
        mask = self.eval(condition)
        if mask.any():
            self._subset(mask).run(then)
        if orelse is not None and not mask.all():
            self._subset(~mask).run(orelse)

    def _alloc(self, buffer: Buffer, body: Stmt) -> None:
        own = buffer.scope != "global"
        memory = {**self.memory, buffer: _Memory.empty(buffer, self.count if own else 1)}
        instances = {**self.instances, buffer: np.arange(self.count)} if own else self.instances
        replace(self, memory=memory, instances=instances).run(body)

    def _store(self, buffer: Buffer, index: Sequence[LoopExpr], value: Array) -> None:
        where = self._address(buffer, index)
        memory = self.memory[buffer]
        if self.check_races and self.in_parallel and len(np.unique(np.stack(where), axis=1)[0]) != self.count:
            raise CompilerError(f"{self.kernel.name}: two iterations store to the same element of {buffer.name}")
        memory.data[where] = value
        memory.written[where] = True

    # --- expressions ------------------------------------------------------------------------------------------

    def eval(self, expr: LoopExpr) -> Array:
        """One value per lane.  Shared subexpressions are evaluated once."""
        return self._eval(expr, {})

    def _eval(self, expr: LoopExpr, done: dict[int, Array]) -> Array:
        if id(expr) not in done:
            done[id(expr)] = self._compute(expr, done)
        return done[id(expr)]

    def _compute(self, expr: LoopExpr, done: dict[int, Array]) -> Array:
        match expr:
            case Const(value, dtype):
                return np.full(self.count, value, dtype)
            case LoopVar():
                return self.variables[expr]
            case Load(buffer, index):
                return self._load(buffer, index)
            case Binary(op, lhs, rhs):
                with np.errstate(all="ignore"):
                    return BINARY[op](self._eval(lhs, done), self._eval(rhs, done))
            case Intrin(name, args):
                with np.errstate(all="ignore"):
                    result = INTRIN[name](*(self._eval(a, done) for a in args))
                return result.astype(expr.dtype, copy=False)
            case Cast(value, dtype):
                with np.errstate(all="ignore"):
                    return self._eval(value, done).astype(dtype)
            case Select(condition, then, orelse):
                return self._select(self._eval(condition, done), then, orelse, expr.dtype)
        raise AssertionError(expr)

    def _select(self, mask: Array, then: LoopExpr, orelse: LoopExpr, dtype: str) -> Array:
        """Each side is evaluated only for the lanes that choose it."""
        result = np.empty(self.count, dtype)
        for chosen, side in ((mask, then), (~mask, orelse)):
            if chosen.any():
                result[chosen] = self._subset(chosen).eval(side)
        return result

    def _load(self, buffer: Buffer, index: Sequence[LoopExpr]) -> Array:
        where = self._address(buffer, index)
        memory = self.memory[buffer]
        if not memory.written[where].all():
            lane = int(np.argmin(memory.written[where]))
            raise CompilerError(
                f"{self.kernel.name} reads {buffer.name} before it is written", where=self._place(index, lane)
            )
        return memory.data[where]

    def _address(self, buffer: Buffer, index: Sequence[LoopExpr]) -> tuple[Array, Array]:
        """(instance, offset) of every lane's access."""
        if buffer not in self.memory:
            raise CompilerError(f"{self.kernel.name} uses {buffer.name}, which is neither a parameter nor allocated")
        offset = np.full(self.count, buffer.offset)
        for axis, (position, stride) in enumerate(zip(index, buffer.row_major_strides, strict=True)):
            value = self.eval(position)
            outside = (value < 0) | (value >= buffer.shape[axis])
            if outside.any():
                lane = int(np.argmax(outside))
                raise CompilerError(
                    f"{self.kernel.name} reaches outside of {buffer.name}: "
                    f"index {int(value[lane])} in dimension {axis} of extent {buffer.shape[axis]}",
                    where=self._place(index, lane),
                )
            offset = offset + value * stride
        return self.instances.get(buffer, np.zeros(self.count, np.int64)), offset

    def _place(self, index: Sequence[LoopExpr], lane: int) -> list[str]:
        at = ", ".join(f"{v.name}={int(x[lane])}" for v, x in self.variables.items())
        return [f"index ({', '.join(str(int(self.eval(i)[lane])) for i in index)}) where {at or 'no loop'}"]


# --- scalar operations, a table each --------------------------------------------------------------------------


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b)
    quotient = a // safe
    return quotient + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return a - _divide(a, b) * np.where(b == 0, 1, b)


def _floor_divide(a: Array, b: Array) -> Array:
    return np.floor(a / b) if a.dtype.kind == "f" else a // np.where(b == 0, 1, b)


def _floor_remainder(a: Array, b: Array) -> Array:
    return np.mod(a, b) if a.dtype.kind == "f" else a % np.where(b == 0, 1, b)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a | b if a.dtype == bool else a + b,
    "sub": lambda a, b: a ^ b if a.dtype == bool else a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "mod": _remainder,
    "floordiv": _floor_divide,
    "floormod": _floor_remainder,
    "min": np.minimum,
    "max": np.maximum,
    "pow": lambda a, b: np.power(a, np.maximum(b, 0)) if a.dtype.kind in "iu" else np.power(a, b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64)], x.dtype).reshape(x.shape)


def _sigmoid(x: Array) -> Array:
    z = x.astype(np.float64)
    return np.where(z >= 0, 1 / (1 + np.exp(-z)), np.exp(z) / (1 + np.exp(z))).astype(x.dtype)


_BITS = {2: (np.int16, np.float16), 4: (np.int32, np.float32), 8: (np.int64, np.float64)}

INTRIN: dict[str, Callable[..., Array]] = {
    **{
        n: getattr(np, n)
        for n in ["abs", "sign", "floor", "ceil", "trunc", "sqrt", "exp", "log", "log2", "log1p", "expm1", "tanh"]
    },
    **{n: getattr(np, n) for n in ["sin", "cos", "tan", "sinh", "cosh", "isnan", "isinf"]},
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "neg": np.negative,
    "not": np.invert,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _erf,
    "sigmoid": _sigmoid,
    "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype) if a.dtype != np.float64 else a * b + c,
    "bitcast_int": lambda x: x.view(_BITS[x.dtype.itemsize][0]),
    "bitcast_float": lambda x: x.view(_BITS[x.dtype.itemsize][1]),
}
