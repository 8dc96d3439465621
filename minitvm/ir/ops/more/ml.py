"""Of decision trees, which leaf a row of features comes to; of support vectors, what pairs of classes say together."""

import math

import numpy as np

from minitvm.ir.dims import differ
from minitvm.ir.loop import Buffer, LoopExpr, LoopKind, Stmt, const, intrin, maximum, minimum, select
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind, require_same_dtype, unflatten_index
from minitvm.ir.ops.more.sorting import counter
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
        count, width, node, code = splits.shape[0], x.shape[1], counter("node"), LoopBuilder()
        with code.loop(math.prod(leaves.shape), "place", LoopKind.PARALLEL) as place, code.memory(node):
            row, tree = unflatten_index(place, leaves.shape)
            code.store(node, [0], roots[tree].astype("int64"))
            with code.loop(self.depth, "level"), code.when(node[0] < count):
                at = maximum(node[0], 0)
                value = x[row, minimum(maximum(features[at].astype("int64"), 0), width - 1)]
                second = select(intrin("isnan", value), missing[at], value <= splits[at])
                code.store(node, [0], children[at, second.astype("int64")].astype("int64"))
            code.store(leaves, [row, tree], maximum(node[0] - count, 0).astype("int32"))
        return code.stmt


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
        (n, k, _), dtype, code = q.shape, accumulator(q.dtype), LoopBuilder()
        qp, p = (Buffer(name, (k,), dtype, "shared") for name in ("qp", "p"))
        total, step, error = (Buffer(name, (1,), dtype, "local") for name in ("total", "step", "error"))
        enough = const(0.005 / max(k, 1), dtype)
        with code.loop(n, "row", LoopKind.PARALLEL) as row, code.memory(qp, p, total, step, error):
            with code.loop(k, "t") as t:
                code.store(p, [t], const(1 / max(k, 1), dtype))
            code.store(error, [0], enough)
            with code.loop(max(100, k), "round"), code.when(enough <= error[0]):
                self._start(code, q, row, qp, p, total, error)
                with code.when(enough <= error[0]), code.loop(k, "t") as t:
                    self._move(code, q, row, t, qp, p, total, step)
            with code.loop(k, "t") as t:
                code.store(found, [row, t], p[t].astype(q.dtype))
        return code.stmt

    def _start(
        self, code: LoopBuilder, q: Buffer, row: LoopExpr, qp: Buffer, p: Buffer, total: Buffer, error: Buffer
    ) -> None:
        """``qp``, ``total`` and ``error`` for the present ``p``."""
        (k,), zero = p.shape, const(0, p.dtype)
        code.store(total, [0], zero)
        code.store(error, [0], zero)
        with code.loop(k, "t") as t:
            code.store(qp, [t], zero)
            with code.loop(k, "j") as j:
                code.store(qp, [t], qp[t] + q[row, t, j].astype(p.dtype) * p[j])
            code.store(total, [0], total[0] + p[t] * qp[t])
        with code.loop(k, "t") as t:
            code.store(error, [0], maximum(error[0], intrin("abs", qp[t] - total[0])))

    def _move(
        self,
        code: LoopBuilder,
        q: Buffer,
        row: LoopExpr,
        t: LoopExpr,
        qp: Buffer,
        p: Buffer,
        total: Buffer,
        step: Buffer,
    ) -> None:
        """One share changes; the others keep their ratios."""
        own, grown = q[row, t, t].astype(p.dtype), step[0] + 1
        code.store(step, [0], (total[0] - qp[t]) / own)
        code.store(total, [0], (total[0] + step[0] * (step[0] * own + qp[t] * 2)) / grown / grown)
        code.store(p, [t], p[t] + step[0])
        with code.loop(p.shape[0], "j") as j:
            code.store(qp, [j], (qp[j] + step[0] * q[row, t, j].astype(p.dtype)) / grown)
            code.store(p, [j], p[j] / grown)
