"""What a compiler says that it computes, and AnnotateTarget, which asks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from minitvm.doors import door
from minitvm.errors import PassError, TypeInferenceError, did_you_mean, user_code
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, TupleGetItem
from minitvm.ir.op import OPS
from minitvm.ir.ops.external import CompilerBegin, CompilerEnd
from minitvm.ir.visitor import children, post_order, rebuild
from minitvm.passes.manager import FunctionPass, PassContext

DEFAULT = "default"
"""What no other compiler computes."""

Support: TypeAlias = "Callable[[Expr], bool] | bool"

SUPPORTED: dict[tuple[str, str], Support] = {}
"""By operator and compiler: whether it computes a call."""


@door
def set_attribute(op_name: str, attr_name: str, value: Any, level: int) -> None:
    """What Relay's passes ask operators for."""
    raise PassError(f"attribute {attr_name!r} of an operator is not known here", hint='there is "target.mylib"')


def register_op_attr(op_name: str, attr_key: str, value: Support | None = None, level: int = 10) -> Any:
    """``register_op_attr("nn.conv2d", "target.mylib", value)``: whether a compiler computes an operator's calls: a
    boolean, or a function of a call; a decorator without a value.  ``FTVMLegalize`` and the like are what
    Relay's passes ask for.

    Raises :class:`TypeInferenceError` where there is no such operator, :class:`PassError` for another attribute.
    """
    if op_name not in OPS:
        raise TypeInferenceError(f"there is no operator {op_name!r}", hint=did_you_mean(op_name, OPS, str))
    if value is None:
        return lambda given: register_op_attr(op_name, attr_key, given, level)
    if not attr_key.startswith("target."):
        set_attribute(op_name, attr_key, value, level)
        return value
    SUPPORTED[op_name, attr_key.removeprefix("target.")] = value
    return value


class AnnotateTarget(FunctionPass):
    """Puts marks around every call: who computes it, the first of ``targets`` that can, or ``default``.

    A call of a composite function is for the compiler that its name begins with (``mylib.conv2d_relu``).  A tuple, or a
    part of one, goes with what it is made of, unless ``include_non_call_ops`` is false.
    """

    def __init__(self, targets: str | Iterable[str], include_non_call_ops: bool = True) -> None:
        self.targets = [targets] if isinstance(targets, str) else list(targets)
        self.include = include_non_call_ops

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        if function.attrs.get("Composite") or function.attrs.get("Compiler"):
            return function
        who: dict[Expr, str] = {}
        done: dict[Expr, Expr] = {}
        for node in post_order(function.body):
            if isinstance(node, (Call, Tuple, TupleGetItem)):
                who[node] = self._target(node, who)
                operands = [begun(ended(done[c], c, who), who[node]) for c in children(node)]
                done[node] = rebuild(node, operands)
            else:
                done[node] = node
        if not set(who.values()) - {DEFAULT}:
            decide("AnnotateTarget", "a function", Declined(f"{', '.join(self.targets)} computes nothing of it"))
            return function
        body = ended(done[function.body], function.body, who)
        return Function(function.params, body, function.attrs, span=function.span)

    def _target(self, node: Expr, who: dict[Expr, str]) -> str:
        if not isinstance(node, Call):
            below = {who.get(child, DEFAULT) for child in children(node)}
            return below.pop() if self.include and len(below) == 1 else DEFAULT
        return next((target for target in self.targets if _computes(target, node)), DEFAULT)


def _computes(target: str, call: Call) -> bool:
    if isinstance(call.op, Function):
        return str(call.op.attrs.get("Composite", "")).partition(".")[0] == target
    support = SUPPORTED.get((call.op.name, target), False)
    if isinstance(support, bool):
        return support
    with user_code(support, f"target.{target} of {call.op.name}"):
        return bool(support(call))


def ended(new: Expr, old: Expr, who: dict[Expr, str]) -> Expr:
    """A value that leaves what computes it; a parameter or constant itself."""
    return Call(CompilerEnd(who[old]), (new,)) if old in who else new


def begun(new: Expr, target: str) -> Expr:
    """A value that goes into what computes with it."""
    return Call(CompilerBegin(target), (new,))
