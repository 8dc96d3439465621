"""Rules that are nearly right, each with its mistake in one sentence; and right ones of forms that are unusual.

A verifier is tested with these: ``python -m tests.lab.nearly_wrong 20`` tries them all with 20 seeds, and the rules of
minitvm's own passes, which are right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm import relay
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.pattern import Pattern, call, const, filled, scalar, tuple_of, value
from minitvm.lab.rule_check import LEAST, known_rules, verify_rule
from minitvm.passes import Bound, Declined, Of, Replacement, Rule, rule
from minitvm.passes.bound import out_of_range

WRONG: dict[str, tuple[Rule, str]] = {}
RIGHT: dict[str, Rule] = {}
SUMS: dict[str, Any] = {"exactness": "reassociating", "bound": Bound(2, Of.SUMS)}
REALS: dict[str, Any] = {"exactness": "unbounded"}

Decorator = Callable[[Callable[..., Replacement]], Rule]


def wrong(why: str, pattern: Pattern, **claims: Any) -> Decorator:
    def decorate(function: Callable[..., Replacement]) -> Rule:
        made = rule(pattern, **claims)(function)
        WRONG[made.name] = made, why
        return made

    return decorate


def right(pattern: Pattern, **claims: Any) -> Decorator:
    def decorate(function: Callable[..., Replacement]) -> Rule:
        made = rule(pattern, **claims)(function)
        RIGHT[made.name] = made
        return made

    return decorate


def conv(x: str, w: str, name: str, **more: Any) -> Pattern:
    return call("nn.conv2d", value(x), const(w), name=name, **more)


def op_of(node: Call) -> Any:
    """Its operator, whose attributes are those of its class."""
    return node.op


def shape(node: Expr) -> tuple[int, ...]:
    return node.tensor_type.static_shape


def by_filter(c: np.ndarray, filters: int) -> np.ndarray | None:
    """One factor for each filter, before the weight's other axes."""
    if c.size == 1:
        return c.reshape(1, 1, 1, 1)
    return c.reshape(-1, 1, 1, 1) if c.shape in ((filters, 1, 1), (1, filters, 1, 1)) else None


def product_of(weight: np.ndarray, factors: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(weight * factors)


# --- layouts ----------------------------------------------------------------------------------------------------------

SCALED = call("multiply", conv("x", "w", "conv", single_use=True), const("c"), name="whole")


@wrong("In NHWC a factor of shape (o, 1, 1) is one for each row, which are as many as channels.", SCALED, **SUMS)
def scale_of_any_layout(x: Expr, w: Constant, c: Constant, conv: Call, whole: Call) -> Replacement:
    factors = by_filter(c.value, w.value.shape[0])
    if whole.type != conv.type or factors is None:
        return Declined("not one for each channel")
    return Call(conv.op, [x, Constant(product_of(w.value, factors))])


@wrong("The weight of kernel layout HWIO has its filters last; a square one has as many rows.", SCALED, **SUMS)
def scale_of_any_kernel_layout(x: Expr, w: Constant, c: Constant, conv: Call, whole: Call) -> Replacement:
    factors = by_filter(c.value, w.value.shape[0])
    if whole.type != conv.type or factors is None or op_of(conv).data_layout != "NCHW":
        return Declined("not one for each channel")
    return Call(conv.op, [x, Constant(product_of(w.value, factors))])


_TRANSPOSED = call("nn.conv2d_transpose", value("x"), const("w"), name="conv", single_use=True)


@wrong(
    "The weight of a transposed convolution has its filters on axis 1.",
    call("multiply", _TRANSPOSED, const("c"), name="whole"),
    **SUMS,
)
def scale_of_transposed(x: Expr, w: Constant, c: Constant, conv: Call, whole: Call) -> Replacement:
    factors = by_filter(c.value, w.value.shape[0])
    if whole.type != conv.type or factors is None or op_of(conv).data_layout != "NCHW":
        return Declined("not one for each channel")
    return Call(conv.op, [x, Constant(product_of(w.value, factors))])


@wrong(
    "The factor lies along the last axis of the data, and along another one before the transposition.",
    call("transpose", call("multiply", value("x"), const("c")), name="whole"),
)
def transpose_before_factor(x: Expr, c: Constant, whole: Call) -> Replacement:
    moved = Call(whole.op, [x])
    found = relay.multiply(moved, c)
    return found if found.type == whole.type else Declined("it would broadcast")


@wrong(
    "bias_add's axis is not always the one before two others.", call("nn.bias_add", value("x"), const("b"), name="y")
)
def bias_to_add(x: Expr, b: Constant, y: Call) -> Replacement:
    if len(shape(x)) != 4:
        return Declined("no image")
    found = relay.add(x, Constant(b.value.reshape(-1, 1, 1)))
    return found if found.type == y.type else Declined("it would broadcast")


@wrong(
    "Two transpositions that undo each other's shape need not undo each other.",
    call("transpose", call("transpose", value("x")), name="second"),
)
def cancel_transposes(x: Expr, second: Call) -> Replacement:
    return x if second.type == x.type else Declined("another shape")


# --- siblings ---------------------------------------------------------------------------------------------------------


@wrong(
    "One of two convolutions may be padded on the left, the other one on the right.",
    call("add", conv("x", "a", "one"), conv("x", "b", "two")),
    **SUMS,
)
def add_of_convolutions(x: Expr, a: Constant, b: Constant, one: Call, two: Call) -> Replacement:
    if one.type != two.type or a.value.shape != b.value.shape:
        return Declined("other shapes")
    return Call(one.op, [x, Constant(a.value + b.value)])


@wrong(
    "The groups of two convolutions stand one behind the other, not in turns.",
    call("concatenate", tuple_of(conv("x", "a", "one"), conv("x", "b", "two")), name="whole"),
)
def combine_grouped(x: Expr, a: Constant, b: Constant, one: Call, two: Call, whole: Call) -> Replacement:
    if one.op != two.op or a.value.shape[1:] != b.value.shape[1:] or op_of(whole).axis != 1:
        return Declined("they differ")
    if op_of(one).data_layout != "NCHW" or op_of(one).kernel_layout != "OIHW":
        return Declined("the channels lie elsewhere")
    op = op_of(one).with_attributes(channels=None)
    return Call(op, [x, Constant(np.concatenate([a.value, b.value]))])


@wrong(
    "The two images are of one type, and not the same one.",
    call("add", call("nn.dense", value("x"), const("a")), call("nn.dense", value("y"), const("b"))),
    **SUMS,
)
def add_of_dense(x: Expr, y: Expr, a: Constant, b: Constant) -> Replacement:
    if x.type != y.type or a.value.shape != b.value.shape or a.value.dtype != b.value.dtype:
        return Declined("other shapes")
    return relay.nn.dense(x, Constant(a.value + b.value))


# --- axes, keepdims ---------------------------------------------------------------------------------------------------


@wrong(
    "The axis of the outer sum is one of what the inner one has left.",
    call("sum", call("sum", value("x"), name="inner"), name="outer"),
    **SUMS,
)
def merge_sums(x: Expr, inner: Call, outer: Call) -> Replacement:
    one, two = op_of(inner), op_of(outer)
    if one.axis is None or two.axis is None or one.exclude or two.exclude or one.keepdims != two.keepdims:
        return Declined("other attributes")
    if min(*one.axis, *two.axis, 0) < 0 or set(one.axis) & set(two.axis):
        return Declined("axes that are counted from behind")
    found = relay.sum(x, axis=(*one.axis, *two.axis), keepdims=one.keepdims)
    return found if found.type == outer.type else Declined("another shape")


@wrong(
    "A negative axis counts from behind, where the new dimension in front changes nothing.",
    call("nn.softmax", call("expand_dims", value("x"), name="inner"), name="outer"),
)
def softmax_before_expansion(x: Expr, inner: Call, outer: Call) -> Replacement:
    if op_of(inner).axis != 0 or op_of(inner).num_newaxis != 1 or op_of(outer).axis == 0:
        return Declined("another axis")
    try:
        return relay.expand_dims(relay.nn.softmax(x, axis=op_of(outer).axis - 1), axis=0)
    except Exception:
        return Declined("there is no such axis")


@wrong(
    "Without keepdims what was summed stands beside other axes.",
    call("divide", value("x"), call("sum", value("x"), name="sum"), name="whole"),
    **REALS,
)
def divide_by_sum(x: Expr, sum: Call, whole: Call) -> Replacement:
    op = op_of(sum)
    if op.axis is None or op.exclude or len(op.axis) != 1 or whole.type != x.type or x.dtype != "float32":
        return Declined("not one axis")
    return relay.divide(x, relay.sum(x, axis=op.axis, keepdims=True))


@wrong("All of the axes have to be of extent 1, not one of them.", call("max", value("x"), name="whole"))
def max_over_one(x: Expr, whole: Call) -> Replacement:
    op = op_of(whole)
    if not op.keepdims or op.exclude or not any(shape(x)[a] == 1 for a in op.axis or ()):
        return Declined("several elements")
    found = relay.broadcast_to(relay.strided_slice(x, [0] * len(shape(x)), shape(whole)), shape(whole))
    return found if found.type == whole.type else Declined("another shape")


@wrong("Over one element, too, infinity less infinity is NaN.", call("nn.softmax", value("x"), name="whole"))
def softmax_over_one(x: Expr, whole: Call) -> Replacement:
    if shape(x)[op_of(whole).axis] != 1:
        return Declined("several elements")
    return relay.ones_like(x)


@wrong("Exclude means all axes but those.", call("mean", value("x"), name="whole"), **SUMS)
def mean_by_sum(x: Expr, whole: Call) -> Replacement:
    op = op_of(whole)
    if op.axis is None or x.dtype != "float32" or not all(shape(x)):
        return Declined("all axes")
    count = np.prod([shape(x)[a] for a in op.axis], dtype=int)
    made = relay.sum(x, axis=op.axis, keepdims=op.keepdims, exclude=op.exclude)
    return relay.divide(made, relay.const(np.float32(count)))


# --- sizes ------------------------------------------------------------------------------------------------------------


@wrong(
    "Of an even number of elements, every other one from behind is another.",
    call("reverse", call("strided_slice", value("x"), name="inner"), name="outer"),
)
def reverse_before_slice(x: Expr, inner: Call, outer: Call) -> Replacement:
    axis = op_of(outer).axis
    made = Call(inner.op, [relay.reverse(x, axis=axis)])
    return made if made.type == outer.type else Declined("another shape")


@wrong("The mean of no elements is NaN.", call("mean", call("full", scalar("c"), name="inner"), name="outer"))
def mean_of_fill(c: Constant, inner: Call, outer: Call) -> Replacement:
    if c.dtype != "float32" or not np.isin(c.value, (0, 1, 2, 3, -1)):
        return Declined("it may round")
    return relay.full(c, shape(outer), "float32")


@wrong("x may be the smaller one of the two.", call("add", value("x"), filled(0), name="whole"))
def zero_is_broadcast(x: Expr, whole: Call) -> Replacement:
    if x.dtype[:3] != "int":
        return Declined("the sign of a zero")
    return relay.broadcast_to(x, shape(x)) if len(shape(whole)) == len(shape(x)) else Declined("another rank")


@wrong(
    "What is broadcast along rows is not so along columns.",
    call("transpose", call("add", value("x"), value("y")), name="t"),
)
def transpose_of_one_operand(x: Expr, y: Expr, t: Call) -> Replacement:
    if len(shape(x)) != 2 or len(shape(y)) != 1:
        return Declined("no row")
    made = relay.add(Call(t.op, [x]), y)
    return made if made.type == t.type else Declined("it would broadcast")


# --- numbers ----------------------------------------------------------------------------------------------------------


@wrong("0 - 0 is 0, and -0 is not.", call("subtract", filled(0), value("x"), name="whole"))
def zero_less_x(x: Expr, whole: Call) -> Replacement:
    return relay.negative(x) if whole.type == x.type else Declined("it broadcasts")


@wrong(
    "A NaN is not greater than 0, and the rectifier keeps it.",
    call("where", call("greater", value("x"), filled(0)), value("x"), filled(0), name="whole"),
)
def where_to_relu(x: Expr, whole: Call) -> Replacement:
    return relay.nn.relu(x) if whole.type == x.type else Declined("it broadcasts")


@wrong("Infinity less itself is NaN.", call("subtract", value("x"), value("x")))
def x_less_x(x: Expr) -> Replacement:
    return relay.zeros_like(x)


@wrong("0 divided by 0 is NaN.", call("divide", value("x"), value("x")), **REALS)
def x_by_x(x: Expr) -> Replacement:
    return relay.ones_like(x)


@wrong(
    "A product of integers wraps around.", call("floor_divide", call("multiply", value("x"), scalar("c")), scalar("c"))
)
def divide_what_was_multiplied(x: Expr, c: Constant) -> Replacement:
    if c.value.dtype.kind not in "iu" or c.value == 0:
        return Declined("not whole")
    return x


@wrong("Of unsigned numbers the negative one is large.", call("maximum", value("x"), call("negative", value("x"))))
def maximum_to_abs(x: Expr) -> Replacement:
    if x.dtype.startswith("float"):
        return Declined("the sign of a zero")
    return relay.abs(x)


@wrong("Division truncates, and a shift rounds down.", call("divide", value("x"), scalar("c"), name="whole"))
def divide_by_shift(x: Expr, c: Constant, whole: Call) -> Replacement:
    if c.value.dtype.kind not in "i" or int(c.value) not in (2, 4, 8):
        return Declined("no power of two")
    return relay.right_shift(x, Constant(np.asarray(int(c.value).bit_length() - 1, x.dtype)))


@wrong("mod has the sign of the dividend.", call("floor_mod", value("x"), scalar("c")))
def floor_mod_to_mod(x: Expr, c: Constant) -> Replacement:
    return relay.mod(x, c) if c.value.dtype.kind in "iu" and c.value > 0 else Declined("not positive")


@wrong(
    "A dtype of as many bytes need not hold a number of the first.",
    call("cast", call("cast", value("x"), name="inner"), name="outer"),
)
def cast_of_wide_cast(x: Expr, inner: Call, outer: Call) -> Replacement:
    first, second = (np.dtype(d) for d in (x.dtype, inner.dtype) if d in _PLAIN) if _plain(x, inner) else (None, None)
    if first is None or second is None or second.itemsize < first.itemsize or first.kind == "f" != second.kind:
        return Declined("it is narrower")
    return x if outer.type == x.type else Declined("another dtype")


_PLAIN = ("float32", "float64", "int32", "int64", "int8", "uint8", "int16", "float16")


def _plain(*nodes: Expr) -> bool:
    return all(node.dtype in _PLAIN for node in nodes)


# --- windows ----------------------------------------------------------------------------------------------------------

_PADDED = call("nn.pad", value("x"), filled(0), name="pad")


def _border(pad: Call) -> tuple[int, ...] | None:
    """(top, left, bottom, right) of an image in NCHW that is padded along rows and columns alone."""
    width = op_of(pad).pad_width
    if op_of(pad).pad_mode != "constant" or len(width) != 4 or any(map(sum, width[:2])):
        return None
    return tuple(width[axis][end] for end in (0, 1) for axis in (2, 3))


def _into(pool: Call, pad: Call, x: Expr, **more: Any) -> Replacement:
    border = _border(pad)
    if border is None or op_of(pool).layout != "NCHW" or any(op_of(pool).padding):
        return Declined("not an image with a border")
    try:
        made = Call(op_of(pool).with_attributes(padding=border, **more), [x])
    except Exception:
        return Declined("a border larger than the window")
    return made if made.type == pool.type else Declined("another shape")


@wrong("Padding is counted only where count_include_pad says so.", call("nn.avg_pool2d", _PADDED, name="pool"), **SUMS)
def pad_into_average(x: Expr, pad: Call, pool: Call) -> Replacement:
    return _into(pool, pad, x)


@wrong("A maximum's padding is below all numbers, not 0.", call("nn.max_pool2d", _PADDED, name="pool"))
def pad_into_maximum(x: Expr, pad: Call, pool: Call) -> Replacement:
    return _into(pool, pad, x)


@wrong(
    "What is dilated and padded by 2 has the shape of what is padded by 1.",
    call("add", conv("x", "a", "one"), conv("x", "b", "two")),
    **REALS,
)
def add_of_dilated(x: Expr, a: Constant, b: Constant, one: Call, two: Call) -> Replacement:
    plain = [op_of(c).with_attributes(padding=(), dilation=()) for c in (one, two)]
    if plain[0] != plain[1] or one.type != two.type or a.type != b.type or one.type != x.type:
        return Declined("they differ")
    return Call(one.op, [x, Constant(a.value + b.value)]) if a.value.dtype.kind == "f" else Declined("it wraps")


@wrong(
    "The second group reads other channels.",
    call("nn.conv2d", call("multiply", value("x"), const("c"), single_use=True), const("w"), name="conv"),
    **SUMS,
)
def factor_of_channels(x: Expr, c: Constant, w: Constant, conv: Call) -> Replacement:
    op, per_group = op_of(conv), w.value.shape[1]
    if (op.data_layout, op.kernel_layout) != ("NCHW", "OIHW") or c.value.shape != (shape(x)[1], 1, 1):
        return Declined("not one for each channel")
    return Call(op, [x, Constant(product_of(w.value, c.value[:per_group].reshape(1, -1, 1, 1)))])


# --- right ones -------------------------------------------------------------------------------------------------------


def scaled(conv: Call, x: Expr, weight: np.ndarray, factors: np.ndarray) -> Replacement:
    product = product_of(weight, factors)
    return out_of_range(product, weight, factors) or Call(conv.op, [x, Constant(product)])


@right(SCALED, **SUMS)
def scale_of_nchw(x: Expr, w: Constant, c: Constant, conv: Call, whole: Call) -> Replacement:
    factors = by_filter(c.value, w.value.shape[0])
    if op_of(conv).layouts != (Layout("NCHW"), Layout("OIHW"), Layout("NCHW")):
        return Declined("the channels lie elsewhere")
    if w.value.dtype.kind != "f" or not w.dtype == c.dtype == conv.dtype:
        return Declined("integers wrap around")
    if whole.type != conv.type or factors is None:
        return Declined("not one for each channel")
    return scaled(conv, x, w.value, factors)


@right(call("add", conv("x", "a", "one"), conv("x", "b", "two")), **REALS)
def add_of_equal_convolutions(x: Expr, a: Constant, b: Constant, one: Call, two: Call) -> Replacement:
    if one.op != two.op or a.type != b.type or a.value.dtype.kind != "f" or one.dtype != a.dtype:
        return Declined("they differ")
    return Call(one.op, [x, Constant(a.value + b.value)])


_BESIDE = call("concatenate", tuple_of(conv("x", "a", "one"), conv("x", "b", "two")), name="whole")


@right(_BESIDE, exactness="reassociating", bound=Bound(2, Of.SUMS))
def combine_convolutions(x: Expr, a: Constant, b: Constant, one: Call, two: Call, whole: Call) -> Replacement:
    if one.op != two.op or a.value.shape[1:] != b.value.shape[1:] or op_of(whole).axis != 1:
        return Declined("they differ")
    if op_of(one).layouts != (Layout("NCHW"), Layout("OIHW"), Layout("NCHW")) or op_of(one).groups != 1:
        return Declined("the channels lie elsewhere")
    op = op_of(one).with_attributes(channels=None)
    return Call(op, [x, Constant(np.concatenate([a.value, b.value]))])


@right(
    call(
        "concatenate",
        tuple_of(call("nn.dense", value("x"), value("a"), name="one"), call("nn.dense", value("x"), value("b"))),
        name="whole",
    ),
    **SUMS,
)
def combine_dense(x: Expr, a: Expr, b: Expr, one: Call, whole: Call) -> Replacement:
    if op_of(whole).axis not in (1, -1) or a.dtype != b.dtype:
        return Declined("along another axis")
    made = relay.nn.dense(x, relay.concatenate([a, b], axis=0), out_dtype=one.dtype)
    return made if made.type == whole.type else Declined("another type")


_PRODUCTS = [call("multiply", value("x"), value(n), single_use=True) for n in "yz"]


@right(call("add", *_PRODUCTS, name="whole"), **REALS)
def factor(x: Expr, y: Expr, z: Expr, whole: Call) -> Replacement:
    found = relay.multiply(x, relay.add(y, z))
    return found if found.type == whole.type else Declined("another type")


@right(call("nn.relu", call("add", *_PRODUCTS), name="whole"), **REALS)
def factor_before_relu(x: Expr, y: Expr, z: Expr, whole: Call) -> Replacement:
    found = relay.nn.relu(relay.multiply(x, relay.add(y, z)))
    return found if found.type == whole.type else Declined("another type")


@right(call("add", call("add", value("x"), value("y"), single_use=True), value("z"), name="whole"), **REALS)
def other_order_of_sum(x: Expr, y: Expr, z: Expr, whole: Call) -> Replacement:
    if "add" in (getattr(getattr(y, "op", None), "name", ""), getattr(getattr(z, "op", None), "name", "")):
        return Declined("it would come back")
    found = relay.add(x, relay.add(y, z))
    return found if found.type == whole.type else Declined("another type")


@right(call("subtract", value("x"), value("y"), name="whole"))
def subtraction_to_sum(x: Expr, y: Expr, whole: Call) -> Replacement:
    return relay.add(relay.negative(y), x)


@right(call("maximum", value("x"), value("y"), name="whole"))
def commuted_maximum(x: Expr, y: Expr, whole: Call) -> Replacement:
    if not x.dtype.startswith(("int", "uint")):
        return Declined("which of two zeros or NaNs it is")
    return relay.negative(relay.negative(relay.maximum(y, x)))


@right(call("transpose", call("add", value("x"), value("y")), name="t"))
def transpose_of_both(x: Expr, y: Expr, t: Call) -> Replacement:
    if len(shape(x)) != len(shape(y)):
        return Declined("other ranks")
    return relay.add(Call(t.op, [y]), Call(t.op, [x]))


@right(call("max", call("max", value("x"), name="inner"), name="outer"))
def merge_kept_maxima(x: Expr, inner: Call, outer: Call) -> Replacement:
    one, two = op_of(inner), op_of(outer)
    if not (one.keepdims and two.keepdims) or one.exclude or two.exclude or None in (one.axis, two.axis):
        return Declined("other axes")
    rank = len(shape(x))
    return relay.max(x, axis=tuple(sorted({a % rank for a in (*one.axis, *two.axis)})), keepdims=True)


@right(call("floor_divide", value("x"), scalar("c"), name="whole"))
def floor_divide_by_shift(x: Expr, c: Constant, whole: Call) -> Replacement:
    if c.value.dtype.kind != "i" or int(c.value) not in (1, 2):
        return Declined("no power of two")
    return relay.right_shift(x, Constant(np.asarray(int(c.value).bit_length() - 1, x.dtype)))


@right(call("nn.avg_pool2d", _PADDED, name="pool"), **SUMS)
def pad_into_counting_average(x: Expr, pad: Call, pool: Call) -> Replacement:
    if op_of(pool).ceil_mode:
        return Declined("the last window may be cut off")
    return _into(pool, pad, x, count_include_pad=True)


@right(call("nn.conv2d", call("multiply", value("x"), const("c"), single_use=True), const("w"), name="conv"), **SUMS)
def factor_of_each_channel(x: Expr, c: Constant, w: Constant, conv: Call) -> Replacement:
    op = op_of(conv)
    if w.value.dtype.kind != "f" or not w.dtype == c.dtype == conv.dtype or not np.isfinite(c.value).all():
        return Declined("integers wrap around, and infinity times a padding's zero is NaN")
    if (op.data_layout, op.kernel_layout) != ("NCHW", "OIHW") or c.value.shape != (shape(x)[1], 1, 1):
        return Declined("not one for each channel")
    of_group = c.value.reshape(op.groups, -1).repeat(w.value.shape[0] // op.groups, axis=0)
    return scaled(conv, x, w.value, of_group[:, :, None, None])


@right(call("nn.relu", call("concatenate", tuple_of(value("x"), value("y")), name="both"), name="whole"))
def relu_of_parts(x: Expr, y: Expr, both: Call, whole: Call) -> Replacement:
    return Call(both.op, [relay.Tuple([relay.nn.relu(x), relay.nn.relu(y)])])


def main(seeds: int) -> int:
    """Verdicts that are wrong, over some seeds."""
    bad, own = 0, known_rules()
    for seed in range(seeds):
        states = {
            name: verify_rule(found, seed=seed)
            for name, found in [*((n, r) for n, (r, _) in WRONG.items()), *RIGHT.items()]
        }
        states |= {name: verify_rule(found, seed=seed, most=LEAST) for name, found in own.items()}
        for name, verdict in states.items():
            rejected = verdict.state != "holds" if name in RIGHT else verdict.counterexample is not None
            if rejected != (name in WRONG):
                bad += 1
                print(f"seed {seed}: {verdict}", flush=True)
    rights = len(RIGHT) + len(own)
    print(f"{len(WRONG)} wrong rules and {rights} right ones, {seeds} seeds: {bad} verdicts that are not so")
    return bad


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]) if sys.argv[1:] else 1)))
