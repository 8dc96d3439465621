"""FuseOps: operators that one kernel can compute together become one function marked ``primitive``.

Which operators those are is decided in ``partition``; here the groups are cut out of the graph.  A group's
parameters ``p0, p1, ...`` are always tensors, in the order in which a walk from the result meets them: a tuple that
comes from outside is put together inside.  Scalar constants become literals of element-wise kernels.  Groups that
are equal share one ``Function`` object, so that a kernel is compiled once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field

from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops.control import StopFusion
from minitvm.ir.structural import node_key
from minitvm.ir.types import TupleType
from minitvm.ir.visitor import as_function, children, is_scalar_constant, post_order, rebuild, rebuild_over, span_of
from minitvm.passes.fuse.partition import Group, partition
from minitvm.passes.manager import FunctionPass, PassContext, register_config

MAX_NAME = 80
MAX_DEPTH = 256

register_config("minitvm.FuseOps.max_depth", int, MAX_DEPTH, "the most operators that one kernel may hold")


def is_lowerable(call: Call) -> bool:
    """Whether a call can become a kernel: static types, and a compute rule or a template.  Others are host calls."""
    if not isinstance(call.op, Op) or not (call.op.has_compute() or call.op.lowered_by_template):
        return False
    return call.type.is_static and all(arg.type.is_static for arg in call.args)


class FuseOps(FunctionPass, opt_level=0):
    """Each group of operators that fuse becomes a function marked ``primitive``; what is not lowerable stays as it is.

    Acts by the context's level (or ``opt_level``): at 0 each operator is its own kernel.
    """

    def __init__(self, opt_level: int | None = None) -> None:
        self.opt_level = opt_level

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        level = context.opt_level if self.opt_level is None else self.opt_level
        groups = partition(function, _pattern_of, level, context.option("minitvm.FuseOps.max_depth"))
        return as_function(rebuild(function, (*function.params, _Rewriter(groups).run(function.body))))


def _pattern_of(call: Call) -> Fusion:
    if isinstance(call.op, (Function, StopFusion)) or not is_lowerable(call):
        return Fusion.OPAQUE
    return call.op.fusion


@dataclass
class _Rewriter:
    groups: dict[Expr, Group]
    done: dict[Expr, Expr] = field(default_factory=dict)
    shared: dict[Hashable, Function] = field(default_factory=dict)

    def run(self, root: Expr) -> Expr:
        for node in post_order(root):
            group = self.groups.get(node)
            if group is None or group.root is node or _is_outer_field(node, self.groups):
                self.done[node] = self._rewrite(node, group)
        return self.done[root]

    def _rewrite(self, node: Expr, group: Group | None) -> Expr:
        if isinstance(node, Call) and isinstance(node.op, StopFusion):
            return self.done[node.args[0]]
        is_field = isinstance(node, TupleGetItem) and self.groups.get(node.tuple) is group
        if group is None or not (is_field or (isinstance(node, Call) and is_lowerable(node))):
            return rebuild_over(node, self.done)
        parts = _Cut(group, self.groups)
        key = parts.collect(node)
        if key not in self.shared:
            self.shared[key] = parts.function(node)
        fields = [self.done[e] if index is None else TupleGetItem(self.done[e], index) for e, index in parts.sources]
        return Call(self.shared[key], fields, span=span_of(*parts.calls))


Source = tuple[Expr, "int | None"]
"""What a parameter stands for: a tensor from outside, or one field of a tuple from outside."""


@dataclass
class _Cut:
    """One group while it is cut out: its nodes in post-order, and what comes from outside."""

    group: Group
    groups: dict[Expr, Group]
    order: list[Expr] = field(default_factory=list)
    sources: dict[Source, Var] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def collect(self, root: Expr) -> Hashable:
        """Find the nodes and parameters; the key is equal for equal groups."""
        self.order = post_order(root, operands=self._needs)
        for node in self.order:
            if not self._inside(node) and not self._only_literal(node):
                fields = enumerate(node.type.fields) if isinstance(node.type, TupleType) else [(None, node.type)]
                for index, type_ in fields:
                    self.sources[node, index] = Var(f"p{len(self.sources)}", type_)
        self.calls = [n for n in self.order if isinstance(n, Call) and self._inside(n)]
        number = {node: i for i, node in enumerate(self.order)}
        return tuple(self._key(node, number) for node in self.order)

    def _needs(self, node: Expr) -> tuple[Expr, ...]:
        return children(node) if self._inside(node) else ()

    def _inside(self, node: Expr) -> bool:
        """A tuple is put together inside whoever wrote it; a projection of an outer tuple is a parameter."""
        if isinstance(node, Tuple):
            return True
        return self.groups.get(node) is self.group and not _is_outer_field(node, self.groups)

    def _only_literal(self, node: Expr) -> bool:
        """A scalar constant, all of whose users in the group compute element by element."""
        users = [n for n in self.order if self._inside(n) and node in children(n)] if is_scalar_constant(node) else []
        ops = [user.op for user in users if isinstance(user, Call) and isinstance(user.op, Op)]
        return len(ops) == len(users) > 0 and all(op.fusion <= Fusion.COMM_REDUCE for op in ops)

    def _key(self, node: Expr, number: dict[Expr, int]) -> Hashable:
        if self._inside(node):
            return node_key(node), tuple(number[child] for child in children(node))
        is_literal = isinstance(node, Constant) and (node, None) not in self.sources
        return node_key(node) if is_literal else node.checked_type

    def function(self, root: Expr) -> Function:
        """The group as a function; :meth:`collect` comes first."""
        local: dict[Expr, Expr] = {}
        for node in self.order:
            local[node] = self._local(node, local)
        ops = [call.op for call in self.calls if isinstance(call.op, Op)]
        shares_memory = all(op.view for op in ops)
        attrs = {"primitive": True, "name": _kernel_name([op.name for op in ops]), "reshape_only": shares_memory}
        return Function(list(self.sources.values()), local[root], attrs, span=span_of(*self.calls))

    def _local(self, node: Expr, local: dict[Expr, Expr]) -> Expr:
        if self._inside(node):
            return rebuild(node, [local[child] for child in children(node)])
        if isinstance(node.type, TupleType):
            return Tuple([self.sources[node, i] for i in range(len(node.type.fields))], span=())
        return self.sources.get((node, None), node)


def _is_outer_field(node: Expr, groups: dict[Expr, Group]) -> bool:
    """A projection that joined a group without its tuple: it stays outside, so that parameters are tensors."""
    return isinstance(node, TupleGetItem) and groups.get(node.tuple) is not groups.get(node)


def _kernel_name(ops: list[str]) -> str:
    """``fused_nn_conv2d_add_nn_relu``; long names end in a hash of the rest."""
    name = "_".join(["fused", *ops]).replace(".", "_")
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
