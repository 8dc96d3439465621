"""ShareMemory: what only joins tensors, or cuts one up, needs no kernel where each part is a stretch of the whole.

The operands of a concatenation are made where they lie in its result (``joined``); the results of a split or a slice
are read where they lie in its operand (``starts``, in bytes).  An operand that cannot be made there, since it is an
input, a result of the model, or has a place in another concatenation, is copied, alone.

Every part begins at a multiple of 64 bytes, which kernels count on of what they write.  So parts are whole lines of
the cache, but for the last one, and threads that write to neighbours do not disturb each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minitvm.ir.arrays import ALIGNMENT
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import Copy
from minitvm.ir.ops.slicing import Concatenate
from minitvm.ir.types import Type, leaves, tensor_fields
from minitvm.ir.visitor import as_function, calls, children, rewrite
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import in_pipeline

Value = tuple[Expr, int]
"""One result of a node."""


@in_pipeline()
class ShareMemory(FunctionPass, opt_level=3):
    """Groups of FuseOps that only join, or only cut up, run no kernel where memory allows it."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        groups = [c for c in calls(function.body) if (of := _group(c)) and (_join(of) or _cut(of.body))]
        if not groups:
            return function
        found = _Sharing(set(_owners(function.body)))
        for act in (found.join, found.cut):
            for call in groups:
                act(call)
        return as_function(rewrite(function, found.shared)) if found.joined or found.starts else function


def shares_memory(context: PassContext) -> bool:
    """True if concatenations may be made where they lie: the pass is not left out."""
    return context.pass_enabled(ShareMemory.info)


def made_in_place(whole: Expr, joined: Expr) -> list[Expr]:
    """What makes the parts of a concatenation of ``joined``, if in its result's memory; else nothing."""
    return [*map(reshaped, children(joined))] if joins(whole) and joined in children(whole) else []


def joins(call: Expr) -> bool:
    """True if it is a concatenation whose operands may be made in its result."""
    if not isinstance(call, Call) or not isinstance(call.op, Concatenate) or not call.args[0].type.is_static:
        return False
    return not isinstance(_joined_at(call), Declined)


def _joined_at(call: Call) -> tuple[int, ...] | Declined:
    """The place where the operands of a concatenation begin in its result."""
    assert isinstance(call.op, Op)
    return _in_bytes(call.op.starts(call.args[0].type), call.args[0].type)


def _in_bytes(starts: tuple[int, ...] | None, parts: Type) -> tuple[int, ...] | Declined:
    if starts is None:
        return Declined("parts are not one stretch of memory each")
    types = tensor_fields(parts)
    found = tuple(start * type_.with_shape(()).nbytes for start, type_ in zip(starts, types, strict=True))
    uneven = next((start for start in found if start % ALIGNMENT), None)
    if uneven is not None:
        return Declined(f"a part begins at byte {uneven}, which is no multiple of {ALIGNMENT}")
    return found if all(type_.nbytes for type_ in types) else Declined("a part has no elements")


# --- groups -------------------------------------------------------------------------------------------------------


def _group(expr: Expr) -> Function | None:
    return expr.op if isinstance(expr, Call) and isinstance(expr.op, Function) else None


def reshaped(expr: Expr) -> Expr:
    """What a group, or an operator within one, gives another shape."""
    while isinstance(expr, Call):
        group = _group(expr)
        if not (group.attrs.get("reshape_only") if group else isinstance(expr.op, Op) and expr.op.view):
            break
        expr = expr.args[0]
    return expr


def _owner(expr: Expr) -> Value:
    """The result whose memory a tensor is, as FuseOps leaves it."""
    expr = reshaped(expr)
    return (expr.tuple, expr.index) if isinstance(expr, TupleGetItem) else (expr, 0)


def _owners(body: Expr) -> Iterator[Value]:
    """Of all results of a function."""
    if isinstance(body, Tuple):
        for part in body.fields:
            yield from _owners(part)
    else:
        yield _owner(body)
        yield from ((body, i) for i in range(1, len(leaves(body.type))))


def _join(group: Function) -> Call | None:
    """The concatenation of its parameters, in order, that a group is; reshapes do not count."""
    found = reshaped(group.body)
    if not isinstance(found, Call) or not isinstance(found.op, Concatenate) or not isinstance(found.args[0], Tuple):
        return None
    return found if tuple(map(reshaped, found.args[0].fields)) == tuple(group.params) else None


def _cut(expr: Expr) -> tuple[int, ...] | None:
    """The elements at which the parts begin that a group cuts out of its parameter; ``None`` where it computes."""
    if isinstance(expr, Var):
        return (0,)
    if isinstance(expr, TupleGetItem):
        found = _cut(expr.tuple)
        return found and (found[expr.index],)
    if not isinstance(expr, Call) or not isinstance(expr.op, Op) or len(expr.args) != 1:
        return None
    (data,) = expr.args
    is_known = data.type.is_static and expr.type.is_static
    base, starts = _cut(data), expr.op.starts(data.type) if is_known else None
    return None if base is None or starts is None else tuple(base[0] + start for start in starts)


# --- what is made of them -----------------------------------------------------------------------------------------


@dataclass
class _Sharing:
    """``results`` have to be whole: nobody's parts."""

    results: set[Value]
    placed: set[Value] = field(default_factory=set)
    """Parts of concatenations."""
    joined: dict[Expr, tuple[int, ...]] = field(default_factory=dict)
    """Calls of concatenations, with the operands that are copied."""
    starts: dict[Expr, tuple[int, ...]] = field(default_factory=dict)
    """Calls that cut up, with the bytes at which their results begin."""
    groups: dict[object, Function] = field(default_factory=dict)

    def join(self, call: Call) -> None:
        group = _group(call)
        join = _join(group) if group else None
        if join is None or not join.args[0].type.is_static:
            return
        at, refused = _joined_at(join), dict[int, str]()
        here: set[Value] = set()
        for number, arg in enumerate(call.args):
            refusal = self._refusal(arg, here)
            if refusal:
                refused[number] = refusal
            here.add(_owner(arg))
        reasons = "; ".join(f"operand {number} {reason}" for number, reason in refused.items())
        if isinstance(at, Declined):
            self._decide(call, at)
        elif 2 * len(refused) > len(call.args):
            self._decide(call, Declined(f"most operands cannot be made in its result: {reasons}"))
        else:
            self._decide(call, "operands are made in its result" + (f", others copied: {reasons}" if reasons else ""))
            self.joined[call] = tuple(refused)
            self.placed |= {_owner(arg) for number, arg in enumerate(call.args) if number not in refused}

    def _refusal(self, arg: Expr, here: set[Value]) -> str:
        """The reason why an operand cannot be made where a concatenation wants it."""
        value = _owner(arg)
        if _group(value[0]) is None:
            what = {Var: "is an input", Constant: "is a constant"}
            return what.get(type(value[0]), "is made by Python or control flow")
        if value in self.results:
            return "is a result of the model"
        return "has a place in another concatenation" if value in self.placed or value in here else ""

    def cut(self, call: Call) -> None:
        group = _group(call)
        starts = _cut(group.body) if group and not group.attrs.get("reshape_only") else None
        if starts is None:
            return
        found, own = _in_bytes(starts, call.type), {(call, i) for i in range(len(starts))}
        if isinstance(_owner(call.args[0])[0], Var | Constant):
            found = Declined("what it is cut out of lies anywhere")
        elif own & self.results:
            found = Declined("it is a result of the model")
        elif own & self.placed:
            found = Declined("it is made in the result of a concatenation")
        self._decide(call, found if isinstance(found, Declined) else "read where it lies")
        if not isinstance(found, Declined):
            self.starts[call] = found

    def _decide(self, call: Call, answer: str | Declined) -> None:
        group = _group(call)
        assert group is not None
        decide("ShareMemory", str(group.attrs["name"]), answer, call.span)

    def shared(self, old: Expr, new: Expr) -> Expr:
        """A call as it is to be, over new arguments."""
        group = _group(new)
        if not isinstance(new, Call) or group is None:
            return new
        if old in self.joined:
            copied = self.joined[old]
            args = [self._copied(arg) if n in copied else arg for n, arg in enumerate(new.args)]
            return Call(self._marked(group, joined=True), args, span=new.span)
        if old in self.starts:
            return Call(self._marked(group, starts=self.starts[old]), new.args, span=new.span)
        return new

    def _marked(self, group: Function, **how: object) -> Function:
        """The same group, which runs no kernel; one for equal ones."""
        made = Function(group.params, group.body, {**group.attrs, **how}, span=group.span)
        return self.groups.setdefault(group, made)

    def _copied(self, arg: Expr) -> Call:
        param = Var("p0", arg.type)
        attrs = {"primitive": True, "name": "fused_copy", "reshape_only": False}
        group = self.groups.setdefault(arg.type, Function([param], Call(Copy(), [param]), attrs))
        return Call(group, [arg], span=arg.span)
