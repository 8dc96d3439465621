"""Graphs as flat lists, for ``pickle``: nodes refer to each other by number, so that depth costs no recursion and what
is shared stays so."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from minitvm.errors import IRError
from minitvm.ir.node import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from minitvm.ir.op import OPS, Op
from minitvm.ir.visitor import children, post_order

Row: TypeAlias = "tuple[type[Expr], tuple[int, ...], tuple[Any, ...], tuple[str, ...]]"
"""A node: its class, the numbers of what is below it, what else it is made of, its span."""
Rows: TypeAlias = "tuple[list[Row], list[int]]"
"""All nodes, operands before users, and which of them are the roots."""


def _below(node: Expr) -> tuple[Expr, ...]:
    """A node's operands, and before them the function that it calls."""
    return (node.op, *node.args) if isinstance(node, Call) and isinstance(node.op, Function) else children(node)


def packed(roots: Iterable[Expr]) -> Rows:
    """Functions among the attributes of operators are packed by themselves."""
    wanted = list(roots)
    order = post_order(*wanted, operands=_below)
    number = {node: i for i, node in enumerate(order)}
    rows = [(type(node), tuple(number[n] for n in _below(node)), _rest(node), node.span) for node in order]
    return rows, [number[root] for root in wanted]


def _rest(node: Expr) -> tuple[Any, ...]:
    if isinstance(node, Var):
        return node.name, node.checked_type
    if isinstance(node, Constant):
        return node.value, node.name
    if isinstance(node, Call):
        return () if isinstance(node.op, Function) else (node.op.name, node.op.attributes())
    if isinstance(node, Function):
        return (dict(node.attrs),)
    return (node.index,) if isinstance(node, TupleGetItem) else getattr(node, "rest", ())


def unpacked(rows: Rows) -> list[Expr]:
    """The roots, with types found again."""
    nodes: list[Expr] = []
    for kind, below, rest, span in rows[0]:
        nodes.append(_node(kind, [nodes[i] for i in below], rest, span))
    return [nodes[i] for i in rows[1]]


def _operator(name: str, attributes: dict[str, Any]) -> Op:
    if name not in OPS:
        hint = "import what defines it before the graph is read"
        raise IRError(f"there is no operator {name!r}, which a stored graph calls", hint=hint)
    return OPS[name].of(attributes)


def _node(kind: type[Expr], below: list[Any], rest: tuple[Any, ...], span: tuple[str, ...]) -> Expr:
    if kind is Call:
        op, args = (_operator(*rest), below) if rest else (below[0], below[1:])
        return Call(op, args, span=span)
    if kind is Function:
        return Function(below[:-1], below[-1], rest[0], span=span)
    if kind is Tuple:
        return Tuple(below, span=span)
    if kind is TupleGetItem:
        return TupleGetItem(below[0], rest[0], span=span)
    make: Callable[..., Expr] = kind
    return make(*below, *rest, span=span)
