"""What need not be computed: common subexpression elimination, dead code elimination, constant folding.

Without ``let`` a node that nobody uses is not in the graph at all.  Dead are: functions that nothing reachable calls,
fields of a tuple that a function or a branch returns and nobody reads, parameters that this leaves unused, and
tuples that are built only to be taken apart.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.evaluate import NOT_CONSTANT, folded, unfoldable
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops.bodies import Choice, OverFunctions
from minitvm.ir.ops.tensor import NdArraySize, ShapeOf
from minitvm.ir.structural import node_key
from minitvm.ir.types import TensorType, TupleType, accepts, tensor_fields, type_of
from minitvm.ir.visitor import (
    as_function,
    calls,
    children,
    held_functions,
    is_scalar_constant,
    post_order,
    rewrite,
    simplify_projection,
    substitute,
    users,
)
from minitvm.passes.manager import FunctionPass, ModulePass, PassContext, map_functions, register_config
from minitvm.passes.narrow import kept_narrow


class EliminateCommonSubexpr(FunctionPass, opt_level=3):
    """Merge calls with equal attributes whose operands are equal: the same nodes, equal scalars, or tuples of such.

    ``skip(call)`` says which calls to leave alone.  Stateful operators and large equal constants are not merged.
    Neither are calls without operands (fills), and those that repeat elements, which are cheaper than a tensor kept
    alive; they are equal as operands of what is merged.
    """

    def __init__(self, skip: Callable[[Call], bool] | None = None) -> None:
        self.skip = skip

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        first: dict[Hashable, Expr] = {}
        equal: dict[Expr, Expr] = {}
        """Cheap calls, each with the first that is equal to it."""

        def key(operand: Expr) -> Hashable:
            """Equal for what is equal at sight."""
            if isinstance(operand, Tuple):
                return ("tuple", *map(key, operand.fields))
            return node_key(operand) if is_scalar_constant(operand) else equal.get(operand, operand)

        def visit(old: Expr, new: Expr) -> Expr:
            if not self._may_merge(new):
                return new
            found = first.setdefault((node_key(new), *map(key, children(new))), new)
            if found is not new and isinstance(new, Call):
                if _is_cheap(new):
                    equal[new] = found
                    return new
                decide(self.info.name, old, f"computed once, with {', '.join(found.span) or 'an equal call'}")
            return found

        return as_function(rewrite(function, visit))

    def _may_merge(self, node: Expr) -> bool:
        if not isinstance(node, Call):
            return isinstance(node, TupleGetItem)
        if not isinstance(node.op, Op) or (self.skip is not None and self.skip(node)):
            return False
        if node.op.stateful:
            decide(self.info.name, node, Declined("it gives other results every time"))
        return not node.op.stateful


def _is_cheap(call: Call) -> bool:
    """True if it fills a tensor with numbers, or with those of a smaller one."""
    spreads = isinstance(call.op, Op) and call.op.fusion is Fusion.BROADCAST and not call.op.view
    return not call.args or (spreads and len(call.args) == 1)


class DeadCodeElimination(ModulePass, opt_level=1):
    """Drop unread results of called functions and of choices, their unused parameters, and functions never called.

    ``entries`` are the functions to keep whatever calls them.  Loops are left alone: a carried value that nobody
    reads may steer the loop.
    """

    needs: tuple[type, ...] = (Function, Choice, TupleGetItem)
    entries: tuple[str, ...] = ("main",)

    def __init__(self, entries: Sequence[str] = entries) -> None:
        if tuple(entries) != self.entries:
            self.entries, self.needs = tuple(entries), ()  # one that is not there is an error, whatever the module is

    def transform_module(self, module: Module, context: PassContext) -> Module:
        module = map_functions(module, drop_dead_fields)
        reached = _reached([module[entry] for entry in self.entries])
        kept = {name: function for name, function in module.functions.items() if function in reached}
        for name in module.functions.keys() - kept.keys():
            decide(self.info.name, name, "nobody calls it", module[name].span)
        return module if len(kept) == len(module.functions) else Module(kept)


def _reached(functions: Sequence[Function]) -> set[Function]:
    """Functions and all that they call or hold, at any depth."""
    found, pending = set(functions), list(functions)
    while pending:
        for call in calls(pending.pop().body):
            pending.extend(f for f in held_functions(call).values() if f not in found)
            found.update(held_functions(call).values())
    return found


def drop_dead_fields(function: Function) -> Function:
    """``function`` with the calls in it returning only what is read."""
    read_by = users(function)

    def visit(old: Expr, new: Expr) -> Expr:
        return _narrowed(new, read_by[old]) if isinstance(new, Call) else simplify_projection(new)

    return as_function(rewrite(function, visit))


def _narrowed(call: Call, readers: list[Expr]) -> Expr:
    """The call with only those fields of its result that are read; itself where all may be, or it cannot do less."""
    fields, result = _read_fields(readers), call.checked_type
    if fields is None or not isinstance(result, TupleType) or len(fields) == len(result.fields):
        return call
    if isinstance(call.op, Function):
        narrow = _without_unused_params(_keep_fields(call.op, fields), call)
    elif isinstance(call.op, Choice):
        branches = {name: _keep_fields(branch, fields) for name, branch in held_functions(call).items()}
        narrow = Call(call.op.with_attributes(**branches), call.args, span=call.span)
    else:
        return call
    decide("DeadCodeElimination", call, f"of its results only {', '.join(map(str, fields))} are read")
    return _spread_out(narrow, fields)


def _spread_out(call: Call, fields: list[int]) -> Tuple:
    """The results where they were; the others, which nobody reads, are any."""
    places = [fields.index(i) if i in fields else 0 for i in range(max(fields) + 1)]
    return Tuple([TupleGetItem(call, place, span=call.span) for place in places], span=call.span)


def _read_fields(readers: list[Expr]) -> list[int] | None:
    """The fields of a result that its readers read; ``None`` where all may be."""
    fields = {r.index if isinstance(r, TupleGetItem) else None for r in readers}
    return None if None in fields else sorted(f for f in fields if f is not None)


def _keep_fields(function: Function, fields: list[int]) -> Function:
    kept = Tuple([simplify_projection(TupleGetItem(function.body, i)) for i in fields], span=function.body.span)
    return Function(function.params, kept, function.attrs, span=function.span)


def _without_unused_params(function: Function, call: Call) -> Call:
    used = set(post_order(function.body))
    kept = [(p, a) for p, a in zip(function.params, call.args, strict=True) if p in used]
    small = Function([p for p, _ in kept], function.body, function.attrs, span=function.span)
    return Call(small, [a for _, a in kept], span=call.span)


MAX_BYTES = register_config(
    "minitvm.FoldConstant.max_bytes",
    int,
    1 << 20,
    "bytes up to which a folded result may be of any size; larger ones may be 4 times their operands",
)
MAX_GROWTH = 4  # int8 weights may become float32


class FoldConstant(FunctionPass, opt_level=2):
    """Replace calls of constants by their values.

    Left alone: calls without arguments (``zeros``, ``ones``: a fill is cheaper than a stored tensor), stateful
    operators, ``qnn.*`` unless ``fold_qnn``, and results much larger than their operands (``broadcast_to``).
    Also folded: fields of tuples, ``shape_of`` and ``ndarray_size`` of a static type, a choice whose condition is
    known.
    """

    def __init__(self, fold_qnn: bool = False, has_layouts: bool = False) -> None:
        self.fold_qnn, self.has_layouts = fold_qnn, has_layouts

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        limit = context.option(MAX_BYTES.name)
        return as_function(fold_constant_expr(function, self.fold_qnn, limit, self.has_layouts))


def fold_constant_expr(
    expr: Expr, fold_qnn: bool = False, max_bytes: int = MAX_BYTES.default, has_layouts: bool = False
) -> Expr:
    """An expression or a function with everything folded that can be; itself where nothing can."""
    kept = kept_narrow(expr, has_layouts)

    def visit(old: Expr, new: Expr) -> Expr:
        if old in kept:
            decide("FoldConstant", new, Declined(f"kept in its format, which takes less memory than {new.type}"))
            return new
        return _fold_call(new, fold_qnn, max_bytes) if isinstance(new, Call) else simplify_projection(new)

    return rewrite(expr, visit)


def _fold_call(call: Call, fold_qnn: bool, max_bytes: int) -> Expr:
    if isinstance(call.op, (NdArraySize, ShapeOf)):
        return _fold_shape(call, call.op)
    if isinstance(call.op, Choice) and isinstance(call.args[0], Constant):
        return _fold_branch(call, call.op, fold_qnn, max_bytes)
    refusal = unfoldable(call) if call.args else NOT_CONSTANT
    if refusal is NOT_CONSTANT:
        return call
    refusal = refusal or _refusal(call, fold_qnn, max_bytes)
    decide("FoldConstant", call, refusal or "computed now")
    return call if refusal else folded(call, _common_name(call))


def _refusal(call: Call, fold_qnn: bool, max_bytes: int) -> Declined | None:
    """The reason why a call of constants is left to the model's runs."""
    if name_of(call).startswith("qnn.") and not fold_qnn:
        return Declined("quantized operators are kept (fold_qnn)")
    if not call.type.is_static:
        return None
    result = sum(t.nbytes for t in tensor_fields(call.type))
    operands = sum(t.nbytes for arg in call.args for t in tensor_fields(arg.type))
    growth = MAX_GROWTH * getattr(call.op, "per_byte", 1)
    fits = result <= max(max_bytes, growth * operands)
    return None if fits else Declined(f"its result is much larger than its operands: {call.type}")


def _fold_shape(call: Call, op: ShapeOf | NdArraySize) -> Expr:
    type_ = call.args[0].checked_type
    if not isinstance(type_, TensorType) or not type_.is_static:
        return call
    decide("FoldConstant", call, "its argument's shape is known")
    value = type_.size if isinstance(op, NdArraySize) else type_.static_shape
    return Constant(np.asarray(value, op.dtype))


def _fold_branch(call: Call, op: Choice, fold_qnn: bool, max_bytes: int) -> Expr:
    """The body of the branch that a constant condition takes, over the captured values."""
    condition = call.args[0]
    assert isinstance(condition, Constant)
    taken = bool(condition.value.item())
    decide("FoldConstant", call, f"its condition is known to be {str(taken).lower()}")
    branch = op.chosen(taken)
    captured: dict[Expr, Expr] = dict(zip(branch.params, call.args[1:], strict=True))
    return fold_constant_expr(substitute(branch.body, captured), fold_qnn, max_bytes)


def _common_name(call: Call) -> str | None:
    """The parameter that a folded value was made of, where there is just one."""
    names = {node.name for node in post_order(*call.args) if isinstance(node, Constant) and node.name is not None}
    return names.pop() if len(names) == 1 else None


# --- what is known of parameters ---------------------------------------------------------------------------------


def bind_params(function: Function, params: Mapping[str, Any]) -> Function:
    """``function`` with the parameters named in ``params`` replaced by constants of that name.

    Raises :class:`InputError` for a name that is no parameter, and for an array whose shape or dtype is not its
    parameter's.  An untyped parameter takes the array's type.
    """
    by_name = {p.name: p for p in function.params}
    replaced: dict[Expr, Expr] = {}
    for name, value in params.items():
        if name not in by_name:
            known = ", ".join(by_name) or "none"
            raise InputError(f"there is no parameter {name!r} to bind", hint=f"parameters: {known}")
        array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        expected, given = by_name[name].checked_type, type_of(array)
        if isinstance(expected, TensorType) and not accepts(expected, given):
            raise InputError(f"parameter {name!r} is {expected}, the array is {given}")
        replaced[by_name[name]] = Constant(array, name=name)
    return _bound(function, replaced)


def _bound(function: Function, replaced: dict[Expr, Expr]) -> Function:
    """``function`` with other nodes for some of its parameters."""
    if not replaced:
        return function
    kept = [p for p in function.params if p not in replaced]
    return Function(kept, substitute(function.body, replaced), function.attrs, span=function.span)


def bind_module(module: Module, params: Mapping[str, Any]) -> Module:
    """``module`` with ``params`` bound in ``main``."""
    return module.with_function("main", bind_params(module.main, params))


def bind_captured(function: Function) -> Function:
    """``function`` with every constant that control flow captures (what a loop carries changes, so it stays) put into
    the functions that it calls, nested control flow too; and with what functions compute, fused groups aside, in place
    of their calls."""
    return as_function(rewrite(function, lambda _, new: _with_captured(new) if isinstance(new, Call) else new))


def _with_captured(call: Call) -> Expr:
    if isinstance(call.op, Function) and not call.op.is_primitive:
        called = bind_captured(call.op)
        return substitute(called.body, dict(zip(called.params, call.args, strict=True)))
    if not isinstance(call.op, OverFunctions):
        return call
    first, held = call.op.first_captured, held_functions(call)
    moved = {i: arg for i, arg in enumerate(call.args) if i >= first and isinstance(arg, Constant)}
    bound = {name: _bound_inside(function, call, moved) for name, function in held.items()}
    if all(bound[name] is function for name, function in held.items()):
        return call
    decide("bind_captured", call, f"{len(moved)} constants move into the branches")
    kept = [arg for i, arg in enumerate(call.args) if i not in moved]
    return Call(call.op.with_attributes(**bound), kept, span=call.span)


def _bound_inside(function: Function, call: Call, moved: Mapping[int, Constant]) -> Function:
    """A function that a call holds with the parameters of these arguments bound, and bound further inside."""
    before = len(call.args) - len(function.params)
    return bind_captured(_bound(function, {function.params[i - before]: value for i, value in moved.items()}))
