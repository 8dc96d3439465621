"""Solutions of chapter 2."""

import numpy as np

from minitvm import relay
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.pattern import call, const, value
from minitvm.passes import Bound, Declined, Replacement, rule


@rule(call("negative", call("negative", value("x"))))
def drop_double_negation(x: Expr) -> Replacement:
    return x


@rule(call("maximum", value("x"), const("c"), name="whole"))
def maximum_is_relu(x: Expr, c: Constant, whole: Call) -> Replacement:
    if np.any(c.value != 0):
        return Declined("the constant is not zero")
    if x.type != whole.type:
        return Declined("the constant broadcasts x to a larger shape")
    return relay.nn.relu(x)


@rule(
    call("multiply", call("multiply", value("x"), const("a"), single_use=True), const("b")),
    exactness="reassociating",
    bound=Bound(3),
)
def merge_scales(x: Expr, a: Constant, b: Constant) -> Replacement:
    return relay.multiply(x, relay.const(a.value * b.value))


@rule(call("divide", value("x"), const("c")))
def divide_by_power_of_two(x: Expr, c: Constant) -> Replacement:
    if c.value.dtype.kind != "f":
        return Declined("integers are not divided by multiplying")
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / c.value
    mantissas, _ = np.frexp(c.value)
    normal = np.abs(inverse) >= np.finfo(c.value.dtype).tiny
    if not np.all((np.abs(mantissas) == 0.5) & np.isfinite(inverse) & normal):
        return Declined("the constant is no power of two with an inverse")
    return relay.multiply(x, relay.const(inverse.astype(c.value.dtype)))
