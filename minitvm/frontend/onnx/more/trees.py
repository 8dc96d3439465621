"""Ensembles of decision trees, of ``ai.onnx.ml``: ``ml.tree_leaves`` finds leaves, tables hold what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitvm.frontend.onnx.more.ml import ML, classified, column, is_above, labels_of, transformed, two_scores
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, rank, wide
from minitvm.frontend.onnx.registry import Outputs, onnx_op
from minitvm.ir.expr import Constant, Expr

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(7)
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class Trees:
    """Nodes that compare, a column each.  A child is the number of a node, or ``~leaf``."""

    mode: np.ndarray
    feature: np.ndarray
    split: np.ndarray
    missing: np.ndarray
    """Whether NaN goes to the child ``yes``."""
    yes: np.ndarray
    no: np.ndarray
    roots: np.ndarray

    @classmethod
    def of(cls, node: OnnxNode, **columns: Any) -> Trees:
        """The trees from a node's attributes; :class:`FrontendError` where they are not equally long."""
        dtypes = {"split": None, "missing": bool}
        found = {name: np.asarray(values, dtypes.get(name, np.int64)) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in found.items() if name != "roots"}
        if len(set(lengths.values())) > 1:
            raise node.fail(f"the nodes' attributes are not equally long: {lengths}")
        return cls(**found)

    def grown(self, **columns: Any) -> None:
        """Makes room for more nodes."""
        for name, values in columns.items():
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.asarray(values, column.dtype)]))

    def without_members(self, node: OnnxNode, members: np.ndarray) -> None:
        """A node that asks for one of a set becomes a row of nodes that ask for one element each."""
        sets = np.split(members, np.flatnonzero(np.isnan(members)) + 1)[:-1]
        at = np.flatnonzero(self.mode == _MEMBER)
        if len(sets) != len(at):
            raise node.fail(f"membership_values has {len(sets)} sets (each ends in NaN) for {len(at)} nodes")
        for place, values in zip(at, (np.unique(found[:-1]) for found in sets), strict=True):
            first = len(self.mode)
            self.mode[place], self.split[place] = _EQ, values[0] if len(values) else np.nan
            if len(values) > 1:
                end, self.no[place] = self.no[place], first
                more, yes = len(values) - 1, self.yes[place]
                self.grown(
                    mode=[_EQ] * more,
                    feature=[self.feature[place]] * more,
                    split=values[1:],
                    missing=[False] * more,
                    yes=[yes] * more,
                    no=[*range(first + 1, first + more), end],
                )

    def tables(self, node: OnnxNode, leaves: int, features: int, dtype: str) -> tuple[list[np.ndarray], int]:
        """The operands of ``ml.tree_leaves`` behind x, and how many comparisons lead to a leaf at most.

        Every comparison becomes ``x <= split``, with the split just below where x must be less and with the children
        exchanged where it must be greater; two ask whether x is equal.  What ONNX Runtime does with NaN that is not
        ``missing``, too: it is less than nothing and equal to nothing.
        """
        swapped, below = np.isin(self.mode, (_GT, _GTE, _NEQ)), np.isin(self.mode, (_LT, _GTE))
        split = np.asarray(self.split, dtype)
        under = np.where(np.isneginf(split), np.nan, np.nextafter(split, -np.inf, dtype=split.dtype))
        equal = np.flatnonzero(np.isin(self.mode, (_EQ, _NEQ)))
        yes, no = np.where(swapped, self.no, self.yes), np.where(swapped, self.yes, self.no)
        missing, count = np.where(swapped, (self.mode != _NEQ) & ~self.missing, self.missing), len(split)
        never = np.isnan(split) & np.isin(self.mode, (_GT, _GTE))
        tables = np.where(never, np.inf, np.where(below, under, split)), missing, self.feature, yes, no
        splits, missing, feature, yes, no = (np.concatenate([t, t[equal]]) for t in tables)
        splits[count:], missing[count:] = under[equal], False
        yes[count:], no[count:] = no[equal], yes[equal]
        yes[equal] = np.arange(count, len(splits))
        children = np.stack([no, yes], -1)
        depth = self._depth(node, children, leaves)
        if len(splits) and not 0 <= feature.min() <= feature.max() < features:
            raise node.misfit(f"nodes ask for features up to {feature.max()}, the input has {features}")
        ends = [np.where(t < 0, len(splits) + ~t, t).astype(np.int32) for t in (children, self.roots)]
        return [feature.astype(np.int32), splits.astype(dtype), missing.astype(bool), *ends], depth

    def _depth(self, node: OnnxNode, children: np.ndarray, leaves: int) -> int:
        """The longest way; :class:`FrontendError` where it leads outside, or never to a leaf."""
        level, depth = np.unique(self.roots), 0
        while len(level):
            if level[-1] >= len(children) or level[0] < -leaves:
                raise node.fail(f"a child is outside of {len(children)} nodes and {leaves} leaves")
            level = level[level >= 0]
            depth += bool(len(level))
            if depth > len(children):
                raise node.fail("the way through a tree does not end")
            level = np.unique(children[level])
        return depth

    def leaves(self, node: OnnxNode, x: Expr, count: int) -> Expr:
        """(rows, trees) numbers of leaves."""
        if rank(x) != 2:
            raise node.misfit(f"the input must be a matrix, not {x.tensor_type}")
        tables, depth = self.tables(node, count, x.shape[1], x.dtype)
        return emit("ml.tree_leaves", x, *map(Constant, tables), depth=depth)


@dataclass
class Votes:
    """What leaves say: column by column the leaf, the target that it speaks for, and its weight."""

    leaf: np.ndarray
    target: np.ndarray
    weight: np.ndarray

    def summed(self, node: OnnxNode, leaves: Expr, count: int, targets: int, aggregate: str = "SUM") -> Expr:
        """(rows, targets): all votes together.  Of MIN and MAX it is 0 where there is none, as in ONNX Runtime."""
        if not len(self.leaf) == len(self.target) == len(self.weight):
            raise node.fail(f"{len(self.leaf)} leaves have {len(self.target)} targets and {len(self.weight)} weights")
        if len(self.target) and not 0 <= self.target.min() <= self.target.max() < targets:
            raise node.fail(f"targets are numbered up to {self.target.max()}, there are {targets}")
        if aggregate not in _AGGREGATES:
            raise node.fail(f"attribute aggregate_function={aggregate!r} is not supported", ", ".join(_AGGREGATES))
        node.afford(count * targets * self.weight.itemsize, f"{count:,} leaves that speak for {targets:,} targets")
        if aggregate in ("SUM", "AVERAGE"):
            table = np.zeros((count, targets), self.weight.dtype)
            np.add.at(table, (self.leaf, self.target), self.weight)
            found = emit("sum", emit("take", Constant(table), leaves, axis=0), axis=(1,))
            return found / leaves.shape[1] if aggregate == "AVERAGE" else found
        return self._extreme(leaves, count, targets, aggregate.lower())

    def _extreme(self, leaves: Expr, count: int, targets: int, name: str) -> Expr:
        end, given = np.inf if name == "min" else -np.inf, np.zeros((count, targets), bool)
        table = np.full(given.shape, end, self.weight.dtype)
        (np.minimum if name == "min" else np.maximum).at(table, (self.leaf, self.target), self.weight)
        given[self.leaf, self.target] = True
        found = emit(name, emit("take", Constant(table), leaves, axis=0), axis=(1,))
        if given.all():
            return found
        return emit("where", emit("any", emit("take", Constant(given), leaves, axis=0), axis=(1,)), found, 0)


def _numbers(node: OnnxNode, name: str, dtype: str) -> np.ndarray:
    """An attribute, or the one of doubles in its place."""
    found = node.attr(f"{name}_as_tensor")
    return np.asarray(node.attr(name, []) if found is None else found).reshape(-1).astype(dtype)


def _by_ids(node: OnnxNode, what: str, dtype: str) -> tuple[Trees, Votes, int]:
    """Trees whose nodes have numbers in each tree, leaves among them; ``what`` they vote for; how many leaves."""
    trees, numbers = node.require("nodes_treeids"), node.require("nodes_nodeids")
    place = {pair: i for i, pair in enumerate(zip(trees, numbers, strict=True))}
    named = node.require("nodes_modes")
    modes = np.array([_MODES.index(m) if m in _MODES else -1 for m in named])
    if unknown := set(named) - {*_MODES[:_MEMBER], "LEAF"}:
        raise node.fail(f"nodes_modes has {unknown.pop()!r}", ", ".join([*_MODES[:_MEMBER], "LEAF"]))
    inside = modes >= 0
    code = np.where(inside, np.cumsum(inside) - 1, 0 - np.cumsum(~inside))  # nodes from 0 on, leaves from ~0 down

    def children(name: str) -> np.ndarray:
        ids = node.require(name)
        found = [place[trees[i], ids[i]] for i in np.flatnonzero(inside).tolist()]
        return code[np.array(found, np.int64)]

    roots: dict[int, int] = {}
    for i, tree in enumerate(trees):
        roots.setdefault(tree, i)
    missing = node.attr("nodes_missing_value_tracks_true") or [0] * len(modes)
    made = Trees.of(
        node,
        mode=modes[inside],
        feature=np.array(node.require("nodes_featureids"))[inside],
        split=_numbers(node, "nodes_values", dtype)[inside],
        missing=np.array(missing, bool)[inside],
        yes=children("nodes_truenodeids"),
        no=children("nodes_falsenodeids"),
        roots=code[[*roots.values()]],
    )
    voters = zip(node.require(f"{what}_treeids"), node.require(f"{what}_nodeids"), strict=True)
    at = ~code[np.array([place[pair] for pair in voters], np.int64)]
    kept = at >= 0  # those of nodes that are no leaves count for nothing
    target = np.array(node.require(f"{what}_ids"), np.int64)
    votes = Votes(at[kept], target[kept], _numbers(node, f"{what}_weights", dtype)[kept])
    return made, votes, int(np.sum(~inside))


def _based(node: OnnxNode, found: Expr) -> Expr:
    base = _numbers(node, "base_values", found.dtype)
    return found + Constant(base) if len(base) else found


@onnx_op("TreeEnsembleRegressor", domain=ML)
def regressor(node: OnnxNode) -> Expr:
    """Every transform acts on one target as on several; ONNX Runtime leaves one target as it is, but for PROBIT."""
    dtype, targets = wide(node[0].dtype), node.require("n_targets")
    trees, votes, count = _by_ids(node, "target", dtype)
    leaves = trees.leaves(node, cast(node[0], dtype), count)
    found = _based(node, votes.summed(node, leaves, count, targets, node.attr("aggregate_function")))
    return cast(transformed(node, found), "float32")


@onnx_op("TreeEnsembleClassifier", domain=ML)
def classifier(node: OnnxNode) -> Outputs:
    dtype, classes = wide(node[0].dtype), len(labels_of(node))
    trees, votes, count = _by_ids(node, "class", dtype)
    leaves = trees.leaves(node, cast(node[0], dtype), count)
    scores = votes.summed(node, leaves, count, classes)
    ids, least = set(votes.target.tolist()), 0.5 if np.all(votes.weight >= 0) else 0.0
    if classes > 2 or len(ids) != 1 or ids == {1}:
        scores = _based(node, scores)
        return classified(node, scores, is_above(column(scores, 1), least) if classes == 2 and ids == {1} else None)
    score = column(scores, 0)
    if len(base := _numbers(node, "base_values", dtype)):
        score = score + Constant(base[:1])
    if classes == 1:
        return [is_above(score, 0), cast(transformed(node, score), "float32")]
    complement = node.attr("post_transform") == "PROBIT" or (node.attr("post_transform") == "NONE" and least > 0)
    return classified(node, two_scores(score, complement), is_above(score, least))


def _named(node: OnnxNode, name: str, names: Sequence[str]) -> str:
    """What an attribute's number stands for."""
    number = int(node.attr(name))
    if not 0 <= number < len(names):
        raise node.refuse(name, ", ".join(f"{i}: {each}" for i, each in enumerate(names)))
    return names[number]


@onnx_op("TreeEnsemble", since=5, domain=ML)
def ensemble(node: OnnxNode) -> Expr:
    """Nodes and leaves apart, in a row over all trees."""
    dtype, target = wide(node[0].dtype), np.array(node.require("leaf_targetids"), np.int64)
    children = [
        np.where(node.require(f"nodes_{side}leafs"), ~np.array(ids := node.require(f"nodes_{side}nodeids")), ids)
        for side in ("true", "false")
    ]
    modes = np.array(node.require("nodes_modes"), np.int64)
    if len(modes) and not 0 <= modes.min() <= modes.max() <= _MEMBER:
        raise node.refuse("nodes_modes", ", ".join(f"{i}: {each}" for i, each in enumerate(_MODES)))
    trees = Trees.of(
        node,
        mode=modes,
        feature=node.require("nodes_featureids"),
        split=np.array(node.require("nodes_splits"), dtype),
        missing=node.attr("nodes_missing_value_tracks_true") or [0] * len(modes),
        yes=children[0],
        no=children[1],
        roots=node.require("tree_roots"),
    )
    members = node.attr("membership_values")
    trees.without_members(node, np.array([] if members is None else members, dtype))
    votes = Votes(np.arange(len(target)), target, np.array(node.require("leaf_weights"), dtype))
    leaves = trees.leaves(node, cast(node[0], dtype), len(target))
    aggregate = _named(node, "aggregate_function", _AGGREGATES)
    found = votes.summed(node, leaves, len(target), node.require("n_targets"), aggregate)
    return cast(transformed(node, found, _named(node, "post_transform", _TRANSFORMS)), node[0].dtype)
