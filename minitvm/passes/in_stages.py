"""A model with data-dependent shapes, in stages: what needs a size that data decide runs behind what measures it.

The first stage is ``main``.  What needs sizes that the n-th stage computes is the next one: a call of
``control.stage``, whose body is compiled for all of these sizes.  Sizes that are measured at the same depth share a
stage, so there are as many as the longest chain of sizes, not as there are sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minitvm.ir.dims import SymbolicDim, Undecided, facts, symbol, symbols_of
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import Op
from minitvm.ir.ops.stage import Sized, Stage
from minitvm.ir.ops.tensor import Extent
from minitvm.ir.types import TensorType, is_named, symbols
from minitvm.ir.visitor import children, held_functions, post_order, rebuild, sizes_of


def in_stages(module: Module, params: Mapping[str, np.ndarray], measured: Mapping[str, Expr]) -> Module:
    """The module with ``main`` in stages, where sizes are ``measured``: by symbol the expression of its value.

    Weights that stages read become constants there.  Raises :class:`Undecided` where a stage reads what is no tensor.
    """
    used = _used(module.main, measured) if measured else {}
    if not used:
        return module
    return module.with_function("main", _Cutting(module.main, params, used).run())


def staged_body(body: Expr, measured: Mapping[str, Expr]) -> Expr:
    """What a branch or a trip computes, in stages behind the sizes that it measures itself."""
    return in_stages(Module(Function([], body)), {}, measured).main.body


def _names(node: Expr) -> frozenset[str]:
    """The symbols that a node's type, attributes and bodies are made with."""
    own = node.op.symbols if isinstance(node, Call) and isinstance(node.op, Op) else frozenset()
    bodies = held_functions(node).values() if isinstance(node, Call) else ()
    return own.union(symbols(node.type), *map(sizes_of, bodies))


def _used(main: Function, measured: Mapping[str, Expr]) -> dict[str, Expr]:
    """Those that the model counts on, in the order in which they were met."""
    found: set[str] = set()
    fresh = {name for node in post_order(main.body) for name in _names(node)} & measured.keys()
    fresh |= {name for fact in facts() for name in symbols_of(_open(fact))} & measured.keys()
    while fresh:
        found |= fresh
        below = (node for name in fresh for node in post_order(measured[name]))
        fresh = {name for node in below for name in _names(node)} & measured.keys() - found
    return {name: count for name, count in measured.items() if name in found}


def _open(fact: Any) -> list[SymbolicDim]:
    return [dim for dim in (fact.a, fact.b) if isinstance(dim, SymbolicDim)]


class _Cutting:
    def __init__(self, main: Function, params: Mapping[str, np.ndarray], measured: Mapping[str, Expr]) -> None:
        self.main, self.params, self.measured = main, params, measured
        self.given = sorted({*sizes_of(main)} - measured.keys())
        """Symbols that inputs' shapes say, and what is around a body."""
        self.level: dict[Expr, int] = {}
        self.depth: dict[str, int] = {}
        """Of measured symbols, the stage that is the first to know them."""
        self.seen = 0
        """Of them those that stages know so far: what is counted on of one that no stage knows matters to nobody."""
        self.order = post_order(*measured.values(), main.body)
        self.known: set[Expr] = set()
        """What follows from weights alone, which passes fold where it is used."""
        for node in self.order:
            self._find_level(node)
        self.made: dict[Expr, Expr] = {}
        """What nodes that later stages read are in ``main``."""

    def _find_level(self, node: Expr) -> None:
        """The symbols of a node are measured by what comes before it, in the order of the import."""
        below = (self.level[child] for child in children(node) if child in self.level)
        is_weight = isinstance(node, Constant) or (isinstance(node, Var) and node.name in self.params)
        if is_weight or (children(node) and all(child in self.known for child in children(node))):
            self.known.add(node)
        self.level[node] = max([*below, *(self._depth_of(n) for n in _names(node) if n in self.measured)], default=0)

    def _depth_of(self, name: str) -> int:
        if name not in self.depth:
            for node in post_order(self.measured[name]):
                if node not in self.level:
                    self._find_level(node)
            self.depth[name] = self.level[self.measured[name]] + 1
        return self.depth[name]

    def run(self) -> Function:
        for name in self.measured:
            self._depth_of(name)
        for level in range(1, max(self.depth.values()) + 1):
            self._make_stage(level)
        return Function(self.main.params, self.outside(self.main.body), self.main.attrs, span=self.main.span)

    def outside(self, node: Expr) -> Expr:
        """A value in ``main``."""
        node = unsized(node)
        if self.level[node] == 0:
            return node
        if isinstance(node, Tuple):
            return Tuple([self.outside(field) for field in node.fields], span=node.span)
        return self.made[node]

    def _make_stage(self, level: int) -> None:
        body = _Body(self, level)
        results = self._read_later(level)
        if not results:
            return
        inside = [body.value(node) for node in results]
        names = sorted((n for n, depth in self.depth.items() if depth <= level), key=lambda n: -self.depth[n])
        sizes = [self.outside(self.measured[name]) for name in names]
        sizes += [Call(Extent(symbol(name), "int64"), []) for name in self.given]
        function = Function(list(body.params.values()), Tuple(inside))
        op = Stage(function, (*names, *self.given), len(names), len(names) - self.seen, tuple(body.axes))
        self.seen = len(names)
        call = Call(op, [*sizes, *body.arguments])
        for index, node in enumerate(results):
            self.made[node] = TupleGetItem(call, index)

    def _read_later(self, level: int) -> list[Expr]:
        """What later stages, sizes and the model's result read of one."""
        found: dict[Expr, None] = {}
        pending = [self.main.body, *self.measured.values()]
        pending += [child for node in self.order if self.level[node] > level for child in children(node)]
        while pending:
            node = unsized(pending.pop())
            if isinstance(node, Tuple):
                pending.extend(node.fields)
            elif self.level.get(node) == level:
                found[node] = None
        return list(found)


def unsized(node: Expr) -> Expr:
    """What was given names for its dimensions."""
    return node.args[0] if isinstance(node, Call) and isinstance(node.op, Sized) else node


class _Body:
    """The body of a stage while it is made."""

    def __init__(self, cutting: _Cutting, level: int) -> None:
        self.cutting, self.level = cutting, level
        self.params: dict[Expr, Var] = {}
        self.arguments: list[Expr] = []
        self.axes: list[int] = []
        self.inside: dict[Expr, Expr] = {}
        for node in cutting.order:
            is_all = node is cutting.main.body and isinstance(node, Tuple)  # which main makes
            if cutting.level[node] == level and not is_all:
                self.inside[node] = self._made(node)

    def value(self, node: Expr) -> Expr:
        """What a node is in the body."""
        if node in self.inside:
            return self.inside[node]
        if node in self.cutting.known:
            return self._weight(node)
        if isinstance(node, Tuple):
            return Tuple([self.value(field) for field in node.fields], span=node.span)
        return self._param(node, node, -1)

    def _weight(self, root: Expr) -> Expr:
        for node in post_order(root, operands=lambda e: () if e in self.inside else children(e)):
            if isinstance(node, Var):
                self.inside[node] = Constant(self.cutting.params[node.name], span=node.span)
            elif node not in self.inside:
                self.inside[node] = rebuild(node, [self.inside[child] for child in children(node)])
        return self.inside[root]

    def _made(self, node: Expr) -> Expr:
        if unsized(node) is not node:
            return self._param(node, node, -1)
        if isinstance(node, Call) and isinstance(node.op, Op) and node.op.cuts:
            value, attributes = node.args[0], node.op.attributes()
            if attributes["extent"] is not None and self.cutting.level[value] < self.level:
                return self._param(node, value, attributes["axis"] % value.tensor_type.rank)
        return rebuild(node, [self.value(child) for child in children(node)])

    def _param(self, node: Expr, value: Expr, axis: int) -> Expr:
        """A parameter of the node's type for a value from before."""
        if not isinstance(node.type, TensorType) or not is_named(node.type):
            raise Undecided(f"a stage reads {node.type}")
        if node not in self.params:
            self.params[node] = Var(f"a{len(self.params)}", node.type)
            self.arguments.append(self.cutting.outside(value))
            self.axes.append(axis)
        return self.params[node]
