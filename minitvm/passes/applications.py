"""Every replacement that a rule makes, kept where somebody watches; which is wrong, and the smallest module of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.decision import name_of, position_of
from minitvm.ir.evaluate import Value, evaluate, value_of
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Var, describe_call
from minitvm.ir.visitor import children, free_vars, post_order, substitute
from minitvm.passes.compare import DRAWS, RTOL, Draw, close, compare, flatten


@dataclass(frozen=True)
class Application:
    """A rule that has replaced a node; ``number`` counts from 1, in one run of a pass."""

    rule: str
    number: int
    about: str
    """The node, with its types and the ONNX nodes that it came from, or where it stands."""
    node: Expr
    became: Expr

    def __str__(self) -> str:
        return f"rule {self.rule}, its application {self.number}, on {self.about}"

    @property
    def sides(self) -> tuple[Function, Function]:
        """The node and what it became, each a function of what is below both."""
        below = {n for child in children(self.node) for n in post_order(child)}
        shared = [n for n in _frontier(self.became, below) if not isinstance(n, (Var, Constant))]
        fresh: dict[Expr, Expr] = {n: Var(f"v{i}", n.checked_type) for i, n in enumerate(shared)}
        sides = [substitute(side, fresh) for side in (self.node, self.became)]
        params = list(dict.fromkeys(v for side in sides for v in free_vars(side)))
        return Function(params, sides[0]), Function(params, sides[1])

    @property
    def module(self) -> Module:
        """The smallest that it replaces something in."""
        before, _ = self.sides
        return Module(Function(free_vars(before.body), before.body))


def _frontier(root: Expr, below: set[Expr]) -> list[Expr]:
    """The first nodes of a set on every way down."""
    found, pending, seen = list[Expr](), [root], set[Expr]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in below:
            found.append(node)
        else:
            pending.extend(children(node))
    return found


_watched: ContextVar[list[Application] | None] = ContextVar("applications", default=None)


@contextmanager
def applications(watch: bool = True) -> Iterator[list[Application]]:
    """The replacements that rules make inside, on this thread, in order; what lies around it sees them, too."""
    made: list[Application] = []
    if not watch:
        yield made
        return
    outer, token = _watched.get(), _watched.set(made)
    try:
        yield made
    finally:
        _watched.reset(token)
        if outer is not None:
            outer.extend(made)


def made_inside() -> Sequence[Application]:
    """Those of the innermost :func:`applications` so far."""
    return _watched.get() or ()


def note(rule: str, node: Expr, became: Expr) -> None:
    """Keep a replacement where somebody watches."""
    made = _watched.get()
    if made is None:
        return
    first, *operands = describe_call(node) if isinstance(node, Call) else [name_of(node)]
    about = first if node.span else f"{first} at {position_of(node)}"
    number = 1 + sum(before.rule == rule for before in made)
    made.append(Application(rule, number, ";".join([about, *operands]), node, became))


def first_wrong(
    made: Sequence[Application],
    params: Sequence[Var],
    inputs: Sequence[Any],
    rtol: float = RTOL,
    seed: int = 0,
    draw: Draw = DRAWS[0],
) -> Application | None:
    """The first replacement whose value is not that of what it replaced, on inputs of a function that differed: each
    stands for itself, whatever came before and after.  Of branches, whose inputs are not known, on inputs of their own.
    """
    values: dict[Expr, Value] = dict(zip(params, inputs, strict=True))
    where = (params, values, rtol, seed, draw)
    return next((one for one in made if _is_wrong(one, *where)), None) or next(
        (one for one in made if _is_known(one, values) and not _agrees(one, values, rtol, not_a_number=True)), None
    )


def _is_known(one: Application, values: dict[Expr, Value]) -> bool:
    return {*free_vars(one.node), *free_vars(one.became)} <= values.keys()


def _is_wrong(
    one: Application, params: Sequence[Var], values: dict[Expr, Value], rtol: float, seed: int, draw: Draw
) -> bool:
    known = _is_known(one, values)
    if known and _agrees(one, values, rtol):
        return False
    before, after = (Function(params, one.node), Function(params, one.became)) if known else one.sides
    try:
        draws = [draw] if known else DRAWS
        return bool(compare(before, lambda inputs: evaluate(after, *inputs), rtol, seed, draws).difference)
    except MiniTVMError:
        return True


def _agrees(one: Application, values: dict[Expr, Value], rtol: float, not_a_number: bool = False) -> bool:
    """``not_a_number``: NaN is not infinity, which it is for ``close``; a tanh that follows tells them apart."""
    try:
        have, want = (flatten(value_of(node, values)) for node in (one.became, one.node))
    except MiniTVMError:
        return False
    pairs = list(zip(have, want, strict=True))
    same = not not_a_number or all(np.array_equal(h != h, w != w) for h, w in pairs)
    return same and all(close(h, w, rtol) for h, w in pairs)
