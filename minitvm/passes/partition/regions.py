"""Regions: what one compiler computes without a border inside.  They are joined, and become functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.loop import dependency_order
from minitvm.ir.ops.external import CompilerBegin, Mark
from minitvm.ir.visitor import children, post_order, rebuild, rebuild_over, span_of
from minitvm.passes.manager import FunctionPass, ModulePass, PassContext
from minitvm.passes.partition.supported import DEFAULT, begun, ended


class Regions:
    """A function's body without marks, and which region each of its nodes is in, by the region's first node."""

    def __init__(self, body: Expr) -> None:
        self.first: dict[Expr, Expr] = {}
        self.target: dict[Expr, str] = {}
        done: dict[Expr, Expr] = {}
        for node in post_order(body):
            if _is_mark(node):
                done[node] = done[children(node)[0]]
            else:
                done[node] = rebuild_over(node, done)
                self._place(node, done)
        self.body = done[body]
        self.order = [node for node in post_order(self.body) if node in self.first]

    def _place(self, node: Expr, done: Mapping[Expr, Expr]) -> None:
        """In the regions of its operands, where no mark is between; who computes it is on its marks, or theirs."""
        if not isinstance(node, (Call, Tuple, TupleGetItem)):
            return
        new, operands = done[node], children(node)
        self.first[new] = new
        begins = [c.op.compiler for c in operands if isinstance(c, Call) and isinstance(c.op, CompilerBegin)]
        direct = [done[c] for c in operands if not _is_mark(c) and done[c] in self.first]
        self.target[new] = next(iter([*begins, *(self.target[self.first[c]] for c in direct)]), DEFAULT)
        for operand in direct:
            self.join(self.first[operand], self.first[new])

    def join(self, one: Expr, other: Expr) -> None:
        """Makes one region of two, which one compiler computes."""
        for node, first in self.first.items():
            if first is other:
                self.first[node] = one

    def members(self, first: Expr) -> list[Expr]:
        return [node for node in self.order if self.first[node] is first]

    def operands(self, first: Expr) -> list[Expr]:
        """The first nodes of the regions that one reads from."""
        read = (child for node in self.members(first) for child in children(node) if child in self.first)
        return [one for one in dict.fromkeys(self.first[child] for child in read) if one is not first]

    def merge(self) -> None:
        """Joins neighbours that one compiler computes, unless a way from one to the other leads through a third."""
        for node in self.order:
            for child in children(node):
                if child not in self.first or self.first[child] is self.first[node]:
                    continue
                below, above = self.first[child], self.first[node]
                if self.target[below] == self.target[above] and not self._leads_around(below, above):
                    self.join(below, above)

    def _leads_around(self, below: Expr, above: Expr) -> bool:
        waiting, seen = [one for one in self.operands(above) if one is not below], set[Expr]()
        while waiting:
            one = waiting.pop()
            if one is below:
                return True
            if one not in seen:
                seen.add(one)
                waiting.extend(self.operands(one))
        return False

    def marked(self) -> Expr:
        """The body with marks at the borders of regions."""
        who = {node: self.target[first] for node, first in self.first.items()}
        done: dict[Expr, Expr] = {}
        for node in post_order(self.body):
            done[node] = node
            if node in self.first:
                done[node] = rebuild(node, [self._over_border(node, child, done, who) for child in children(node)])
        return ended(done[self.body], self.body, who)

    def _over_border(self, node: Expr, child: Expr, done: Mapping[Expr, Expr], who: dict[Expr, str]) -> Expr:
        if child in self.first and self.first[child] is self.first[node]:
            return done[child]
        return begun(ended(done[child], child, who), who[node])


def _is_mark(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Mark)


class MergeCompilerRegions(FunctionPass):
    """Joins marked regions that one compiler computes and that are neighbours, where no cycle comes of it."""

    needs = (Mark,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        regions = Regions(function.body)
        regions.merge()
        return Function(function.params, regions.marked(), function.attrs, span=function.span)


class PartitionGraph(ModulePass):
    """Makes a function of the module of each marked region, with the attributes ``Compiler`` and ``global_symbol``.

    It is called ``tvmgen_MODNAME_COMPILER_main_N``, and returns a tuple where several values leave the region.
    Constants are inside, or with ``bind_constants=False`` arguments.
    """

    def __init__(self, mod_name: str = "default", bind_constants: bool = True) -> None:
        self.mod_name, self.bind_constants = mod_name, bind_constants

    def transform_module(self, module: Module, context: PassContext) -> Module:
        made: dict[str, Function] = {}
        for name, function in module.functions.items():
            if any(_is_mark(node) for node in post_order(function.body)):
                body = _Cut(Regions(function.body), f"tvmgen_{self.mod_name}", name, self.bind_constants, made).body()
                module = module.with_function(name, Function(function.params, body, function.attrs, span=function.span))
        for name, function in made.items():
            module = module.with_function(name, function)
        return module


class _Cut:
    """One function's regions as calls of functions, which are put into ``made``."""

    def __init__(self, regions: Regions, prefix: str, name: str, bind: bool, made: dict[str, Function]) -> None:
        self.regions, self.prefix, self.name, self.bind, self.made = regions, prefix, name, bind, made
        self.done: dict[Expr, Expr] = {}
        self.used = {
            child
            for node in regions.order
            for child in children(node)
            if child in regions.first and regions.first[child] is not regions.first[node]
        } | {regions.body}

    def body(self) -> Expr:
        regions = self.regions
        for node in post_order(regions.body):
            if node not in regions.first:
                self.done[node] = node
        if regions.body in regions.first:
            for first in dependency_order((regions.first[regions.body],), lambda one: tuple(regions.operands(one))):
                self._emit(first)
        return self.done[regions.body]

    def _emit(self, first: Expr) -> None:
        members, target = self.regions.members(first), self.regions.target[first]
        if target == DEFAULT:
            for node in members:
                self.done[node] = rebuild_over(node, self.done)
            return
        inputs = self._inputs(members)
        results = [node for node in members if node in self.used]
        function = self._function(target, members, inputs, results)
        call = Call(function, [self.done[node] for node in inputs], span=span_of(*members))
        for n, node in enumerate(results):
            self.done[node] = TupleGetItem(call, n) if len(results) > 1 else call

    def _inputs(self, members: Iterable[Expr]) -> list[Expr]:
        inside = set(members)
        read = dict.fromkeys(child for node in members for child in children(node) if child not in inside)
        return [node for node in read if not (self.bind and isinstance(node, Constant))]

    def _function(self, target: str, members: list[Expr], inputs: list[Expr], results: list[Expr]) -> Function:
        number = len(self.made)
        symbol = f"{self.prefix}_{target}_{self.name}_{number}"
        params = [Var(f"{target}_{number}_i{n}", node.type) for n, node in enumerate(inputs)]
        inside: dict[Expr, Expr] = {
            node: node for one in members for node in children(one) if isinstance(node, Constant)
        }
        inside.update(zip(inputs, params, strict=True))
        for node in members:
            inside[node] = rebuild_over(node, inside)
        body = inside[results[0]] if len(results) == 1 else Tuple([inside[node] for node in results])
        attrs = {"Primitive": 1, "Inline": 1, "Compiler": target, "global_symbol": symbol}
        self.made[symbol] = function = Function(params, body, attrs, span=span_of(*members))
        decide("PartitionGraph", f"@{symbol}", f"{target} computes {len(members)} calls", function.span)
        return function
