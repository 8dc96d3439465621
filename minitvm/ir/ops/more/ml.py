"""Of decision trees, which leaf a row of features comes to; of support vectors, what pairs of classes say together."""

import math

import numpy as np

from minitvm.ir.dims import differ
from minitvm.ir.loop import (
    Buffer,
    If,
    LoopExpr,
    LoopKind,
    Stmt,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    select,
    seq,
    store,
)
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind, require_same_dtype, unflatten_index
from minitvm.ir.ops.sorting import counter, with_counters
from minitvm.ir.types import TensorType, accumulator


class TreeLeaves(Op, name="ml.tree_leaves", fusion=Fusion.OPAQUE):
    """The leaf of each row in each tree, after at most ``depth`` comparisons.

    x: (n, f) floats; of each of m nodes features: (m,) int32, splits: (m,) like x, missing: (m,) bool, and
    children: (m, 2) int32; roots: (t,) int32 -> (n, t) int32.

    A row goes from a node to its second child where its feature is at most ``splits``, else to its first; where the
    feature is NaN, as ``missing`` says.  A child, or root, of m or more is leaf ``child - m``.
    """

    depth: int

    def infer(
        self,
        x: TensorType,
        features: TensorType,
        splits: TensorType,
        missing: TensorType,
        children: TensorType,
        roots: TensorType,
    ) -> TensorType:
        require_kind(self, x, "f", "x")
        require_same_dtype(self, x, splits)
        if x.rank != 2 or splits.rank != 1 or roots.rank != 1:
            raise self.reject(f"x must be a matrix, splits and roots vectors: {x}, {splits} and {roots}")
        (m,) = splits.shape
        tables = {"features": (features, (m,)), "missing": (missing, (m,)), "children": (children, (m, 2))}
        for name, (given, shape) in tables.items():
            dtype = "bool" if name == "missing" else "int32"
            expected = TensorType(shape, dtype)
            if given.dtype != dtype or given.rank != len(shape) or any(map(differ, given.shape, shape)):
                raise self.reject(f"{name} must be {expected}, not {given}")
        if roots.dtype != "int32":
            raise self.reject(f"roots are {roots}, expected int32")
        if self.depth and 0 in (m, x.shape[1]):
            raise self.reject(f"{self.depth} comparisons of {x} with {splits} splits: there is nothing to compare")
        return TensorType((x.shape[0], roots.shape[0]), "int32")

    def reference(
        self,
        x: np.ndarray,
        features: np.ndarray,
        splits: np.ndarray,
        missing: np.ndarray,
        children: np.ndarray,
        roots: np.ndarray,
    ) -> np.ndarray:
        count = len(splits)
        node = np.broadcast_to(roots, (len(x), len(roots)))
        for _ in range(self.depth):
            at = np.clip(node, 0, count - 1)
            value = np.take_along_axis(x, np.clip(features[at], 0, x.shape[1] - 1).astype(np.int64), 1)
            second = np.where(np.isnan(value), missing[at], value <= splits[at])
            node = np.where(node < count, children[at, second.astype(np.int64)], node)
        return np.asarray(np.maximum(node - count, 0), np.int32)

    def statements(
        self,
        x: Buffer,
        features: Buffer,
        splits: Buffer,
        missing: Buffer,
        children: Buffer,
        roots: Buffer,
        leaves: Buffer,
    ) -> Stmt:
        count, width, node = splits.shape[0], x.shape[1], counter("node")

        def step(row: LoopExpr) -> Stmt:
            at = maximum(node[0], 0)
            value = x[row, minimum(maximum(features[at].astype("int64"), 0), width - 1)]
            second = select(intrin("isnan", value), missing[at], value <= splits[at])
            return If(node[0] < count, store(node, [0], children[at, second.astype("int64")].astype("int64")))

        def one(place: LoopExpr) -> Stmt:
            row, tree = unflatten_index(place, leaves.shape)
            walk = loop(self.depth, lambda _: step(row), name="level")
            found = maximum(node[0] - count, 0).astype("int32")
            put = store(leaves, [row, tree], found)
            return with_counters([node], seq(store(node, [0], roots[tree].astype("int64")), walk, put))

        return loop(math.prod(leaves.shape), one, LoopKind.PARALLEL, name="place")


class PairwiseCoupling(Op, name="ml.pairwise_coupling", fusion=Fusion.OPAQUE):
    """The shares p of k classes, 1 together, for which p q p is least: libsvm's iteration, which ends where the error
    is less than 0.005 / k, after 100 (or k) rounds at most (Wu, Lin and Weng 2004, the second approach).

    q: (n, k, k) floats, symmetric -> (n, k).
    """

    def infer(self, q: TensorType) -> TensorType:
        require_kind(self, q, "f", "q")
        if q.rank != 3 or differ(q.shape[1], q.shape[2]):
            raise self.reject(f"q must be (n, k, k), not {q}")
        return q.with_shape(q.shape[:2])

    def reference(self, q: np.ndarray) -> np.ndarray:
        rows = [self._coupled(one) for one in q.astype(accumulator(q.dtype.name))]
        return np.array(rows, q.dtype).reshape(q.shape[:2])

    def _coupled(self, q: np.ndarray) -> np.ndarray:
        k = len(q)
        p = np.full(k, 1 / max(k, 1), q.dtype)
        for _ in range(max(100, k)):
            qp = q @ p
            total = p @ qp
            if not np.max(np.abs(qp - total), initial=0) >= 0.005 / max(k, 1):
                break
            for t in range(k):
                step = (total - qp[t]) / q[t, t]
                total = (total + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) / (1 + step)
                p[t] += step
                qp, p = (qp + step * q[t]) / (1 + step), p / (1 + step)
        return p

    def statements(self, q: Buffer, found: Buffer) -> Stmt:
        (n, k, _), dtype = q.shape, accumulator(q.dtype)
        qp, p = (Buffer(name, (k,), dtype, "shared") for name in ("qp", "p"))
        total, step, error = (Buffer(name, (1,), dtype, "local") for name in ("total", "step", "error"))

        def start(row: LoopExpr) -> Stmt:
            """``qp``, ``total`` and ``error`` for the present ``p``."""

            def product(t: LoopExpr) -> Stmt:
                add = loop(k, lambda j: store(qp, [t], qp[t] + q[row, t, j].astype(dtype) * p[j]), name="j")
                return seq(store(qp, [t], const(0, dtype)), add, store(total, [0], total[0] + p[t] * qp[t]))

            def look(t: LoopExpr) -> Stmt:
                return store(error, [0], maximum(error[0], intrin("abs", qp[t] - total[0])))

            clear = (store(buffer, [0], const(0, dtype)) for buffer in (total, error))
            return seq(*clear, loop(k, product, name="t"), loop(k, look, name="t"))

        def move(row: LoopExpr, t: LoopExpr) -> Stmt:
            own, grown = q[row, t, t].astype(dtype), step[0] + 1
            energy = (total[0] + step[0] * (step[0] * own + qp[t] * 2)) / grown / grown

            def other(j: LoopExpr) -> Stmt:
                changed = (qp[j] + step[0] * q[row, t, j].astype(dtype)) / grown
                return seq(store(qp, [j], changed), store(p, [j], p[j] / grown))

            took = store(p, [t], p[t] + step[0])
            return seq(
                store(step, [0], (total[0] - qp[t]) / own), store(total, [0], energy), took, loop(k, other, name="j")
            )

        def one(row: LoopExpr) -> Stmt:
            moves = loop(k, lambda t: move(row, t), name="t")
            enough = const(0.005 / max(k, 1), dtype)
            again = If(enough <= error[0], seq(start(row), If(enough <= error[0], moves)))
            fill = loop(k, lambda t: store(p, [t], const(1 / max(k, 1), dtype)), name="t")
            put = loop(k, lambda t: store(found, [row, t], p[t].astype(q.dtype)), name="t")
            rounds = loop(max(100, k), lambda _: again, name="round")
            body = seq(fill, store(error, [0], enough), rounds, put)
            return with_counters([qp, p, total, step, error], body)

        return loop(n, one, LoopKind.PARALLEL, name="row")
