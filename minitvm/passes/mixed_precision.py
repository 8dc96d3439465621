"""ToMixedPrecision: products in float16 with sums in float32, what follows them in float16 too, all else as it was.

As Relay's pass of this name, but operators say themselves what fewer bits mean for them (``Op.precision``).
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from minitvm.errors import PassError, TypeInferenceError
from minitvm.ir.decision import Declined, decide
from minitvm.ir.dtypes import limits
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem
from minitvm.ir.op import Op, Precision
from minitvm.ir.ops.elemwise import CastTo
from minitvm.ir.types import FuncType, TensorType, TupleType, Type, leaves
from minitvm.ir.visitor import as_function, children, post_order, rebuild
from minitvm.passes.manager import FunctionPass, PassContext, register_config
from minitvm.passes.places import Asked, Predict, in_pipeline
from minitvm.target import MachineModel

Weigh: TypeAlias = Callable[[Call, Call], "Declined | None"]
"""Why the second of two calls, whose operands have fewer bits, is not worth what it loses."""

WIDE, SHORT = "float32", "float16"
OPTION = register_config(
    "minitvm.mixed_precision", str, "", 'float16: the model\'s products in float16, sums in float32; "": as it says'
)
KEEPS = register_config(
    "minitvm.ToMixedPrecision.keep_orig_output_dtype", bool, False, "results of Relay's ToMixedPrecision stay float32"
)


class ToMixedPrecision(FunctionPass, rounds=True):
    """A float32 model in float16; its inputs and results stay float32.

    In the pipeline it acts where ``PassContext(config={"minitvm.mixed_precision": "float16"})`` says so: behind
    FoldScaleAxis, so that batch norms are in the weights before these are rounded.
    """

    def __init__(self, mixed_precision_type: str = SHORT, weigh: Weigh | None = None) -> None:
        """``weigh``: of products; without it, each is worth it."""
        _check(mixed_precision_type)
        self.weigh = weigh
        self.option = "" if mixed_precision_type else OPTION.name

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        _check(context.option(OPTION.name))
        return _Narrowing(self.weigh).function(function)


@in_pipeline(after="SimplifyExpr")
def _placed(asked: Asked) -> tuple[ToMixedPrecision]:
    weighs = asked.predict is not None and PassContext.current().option(OPTION.name)
    return (ToMixedPrecision("", weighed(asked.predict, asked.machine) if weighs and asked.predict else None),)


def weighed(predict: Predict, machine: MachineModel) -> Weigh:
    """Weighs by predicted cycles, where both are known."""
    return partial(_weighed, predict, machine)


def _weighed(predict: Predict, machine: MachineModel, wide: Call, short: Call) -> Declined | None:
    if not all(node.type.is_static for node in (wide, *wide.args)):
        return None
    before, after = predict(wide), predict(short)
    if isinstance(before, Declined) or isinstance(after, Declined) or machine.pays_to_round(before, after):
        return None
    return Declined(f"{after:,.0f} cycles predicted in {SHORT}, {before:,.0f} without: too few are saved")


def _check(dtype: str) -> None:
    if dtype not in ("", SHORT):
        raise PassError(f"there is no mixed precision in {dtype!r}", hint=f"{SHORT!r} is the one that there is")


class _Narrowing:
    """One function; equal casts are one node."""

    def __init__(self, weigh: Weigh | None) -> None:
        self.weigh = weigh
        self.done: dict[Expr, Expr] = {}
        self.casts: dict[tuple[Expr, str], Expr] = {}

    def function(self, function: Function) -> Function:
        for node in post_order(function.body):
            self.done[node] = self._node(node, tuple(self.done[child] for child in children(node)))
        body = self._as(self.done[function.body], function.body.type)
        return as_function(rebuild(function, (*function.params, body)))

    def _node(self, node: Expr, operands: tuple[Expr, ...]) -> Expr:
        if isinstance(node, Call):
            short = self._in_short(node, operands) if isinstance(node.op, Op) else None
            return short or rebuild(node, [self._as(n, old.type) for n, old in zip(operands, node.args, strict=True)])
        return node if isinstance(node, Function) else rebuild(node, operands)

    def _in_short(self, call: Call, operands: tuple[Expr, ...]) -> Expr | None:
        """The call in float16, where that is worth it, or where its operands are; ``None`` where it stays."""
        assert isinstance(call.op, Op)
        precision = call.op.wanted_precision()
        follows = precision is Precision.FOLLOW and any(_is_short(operand) for operand in operands)
        if precision is not Precision.SHORT and not follows:
            return None
        too_large = next((o for o in operands if isinstance(o, Constant) and not _fits(o)), None)
        if too_large is not None:
            decide("ToMixedPrecision", call, Declined(f"{SHORT} does not hold all numbers of its constant"))
            return None
        try:
            found = rebuild(_by_default(call), [self._as(operand, _shortened(operand.type)) for operand in operands])
        except TypeInferenceError as error:
            decide("ToMixedPrecision", call, Declined(error.message))
            return None
        if found.type != _shortened(call.type):
            decide("ToMixedPrecision", call, Declined(f"its result is {found.type}"))
            return None
        assert isinstance(found, Call)
        why_not = self.weigh(call, found) if precision is Precision.SHORT and self.weigh is not None else None
        if why_not is not None:
            decide("ToMixedPrecision", call, why_not)
            return None
        return found

    def _as(self, expr: Expr, wanted: Type) -> Expr:
        """A value, or a tuple of some, in other dtypes."""
        if expr.type == wanted:
            return expr
        if isinstance(wanted, TupleType):
            fields = (
                expr.fields if isinstance(expr, Tuple) else [TupleGetItem(expr, i) for i in range(len(wanted.fields))]
            )
            return Tuple([self._as(f, t) for f, t in zip(fields, wanted.fields, strict=True)], span=expr.span)
        assert isinstance(wanted, TensorType)
        key = (expr, wanted.dtype)
        if key not in self.casts:
            self.casts[key] = _cast(expr, wanted.dtype)
        return self.casts[key]


def _by_default(call: Call) -> Call:
    """The call without an ``out_dtype`` that says what its operands' dtype says."""
    said = getattr(call.op, "out_dtype", "")
    given = {getattr(type_, "dtype", "") for argument in call.args for type_ in leaves(argument.type)}
    if not said or given != {said} or not isinstance(call.op, Op):
        return call
    return Call(call.op.with_attributes(out_dtype=""), call.args, span=call.span)


def _cast(expr: Expr, dtype: str) -> Expr:
    if isinstance(expr, Constant):
        return Constant(expr.value.astype(dtype), expr.name, expr.span)
    return Call(CastTo(dtype), (expr,), span=expr.span)


def _is_short(expr: Expr) -> bool:
    if isinstance(expr.type, FuncType):
        return False
    return any(isinstance(leaf, TensorType) and leaf.dtype == SHORT for leaf in leaves(expr.type))


def _fits(constant: Constant) -> bool:
    """True if no number of a constant becomes infinite."""
    value = constant.value
    return value.dtype != WIDE or not (abs(value[abs(value) != float("inf")]) > limits(SHORT)[1]).any()


def _shortened(type_: Type) -> Type:
    """A type with float16 for float32."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(_shortened, type_.fields)))
    return type_.with_dtype(SHORT) if isinstance(type_, TensorType) and type_.dtype == WIDE else type_
