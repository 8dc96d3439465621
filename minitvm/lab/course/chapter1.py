"""Grades chapter 1: building graphs, a type rule, a walk."""

from typing import Any

from minitvm.ir import builder as relay
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Expr, Var
from minitvm.lab.course.check import Chapter, Wrong, close, hinted, same
from minitvm.lab.course.texts import drawn_inputs, shape_of

CHAPTER = Chapter("chapter1", "IR and types")

# --- 1.1 ------------------------------------------------------------------------------------------------------

block = CHAPTER.exercise("residual_block", "1.1")


def _built(residual_block: Any) -> tuple[Expr, list[Var]]:
    x, first, second = (relay.var(name, shape=s) for name, s in (("x", (1, 4, 6, 6)), *_WEIGHTS.items()))
    made = residual_block(x, first, second)
    if not isinstance(made, Call):
        raise Wrong(f"it returned {made!r}, not a call", "return the last call of the graph that you build")
    return made, [x, first, second]


_WEIGHTS = {"first": (4, 4, 3, 3), "second": (4, 4, 3, 3)}


@block.check("its type is that of x")
def _(residual_block: Any) -> None:
    made, (x, *_) = _built(residual_block)
    hint = "a 3 x 3 window loses a row and a column on each side unless padding=(1, 1) puts them back"
    same(str(made.type), str(x.type), "the result's type", hint)


@block.check("it computes relu(conv(relu(conv(x))) + x)", points=2)
def _(residual_block: Any) -> None:
    made, params = _built(residual_block)
    arrays = drawn_inputs(params, seed=1)
    x, first, second = params
    inner = relay.nn.relu(relay.nn.conv2d(x, first, padding=(1, 1)))
    expected = relay.nn.relu(relay.nn.conv2d(inner, second, padding=(1, 1)) + x)
    hint = "compare with the formula from the inside out: is there a relu after the first convolution, and one after +?"
    found, wanted = (evaluate(relay.function(body, params), *arrays) for body in (made, expected))
    close(found, wanted, "its value on random inputs", hint)


# --- 1.2 ------------------------------------------------------------------------------------------------------

shape_rule = CHAPTER.exercise("conv_shape", "1.2", forbids=("ir/ops/nn_conv.py", "ir/ops/_shape.py"))


def _compare(conv_shape: Any, hint: str, *cases: tuple[Any, ...]) -> None:
    for data, weight, strides, padding, dilation in cases:
        given = relay.var("d", shape=data), relay.var("w", shape=weight)
        call = relay.nn.conv2d(*given, strides=strides, padding=padding, dilation=dilation)
        with hinted(hint):
            found = conv_shape(data, weight, strides, padding, dilation)
        what = f"data {data}, weight {weight}, strides {strides}, padding {padding}, dilation {dilation}"
        same(tuple(found) if isinstance(found, list) else found, shape_of(call), what, hint)


@shape_rule.check("windows without padding")
def _(conv_shape: Any) -> None:
    hint = "h - kh + 1 windows of kh rows fit into h rows"
    _compare(conv_shape, hint, *(((2, 3, h, w), (5, 3, 3, 2), (1, 1), (0, 0), (1, 1)) for h, w in ((3, 2), (8, 5))))


@shape_rule.check("padding and strides")
def _(conv_shape: Any) -> None:
    hint = (
        "padding is added on both sides; a last step that does not fit whole is dropped: (h + 2 p - kh) // stride + 1"
    )
    cases = (((1, 3, 9, 8), (4, 3, 3, 3), (s, 2), (p, 1), (1, 1)) for s in (1, 2, 3) for p in (0, 1))
    _compare(conv_shape, hint, *cases)


@shape_rule.check("dilation")
def _(conv_shape: Any) -> None:
    hint = "a window of 3 with dilation 2 reaches over 5 rows: (kh - 1) * dilation + 1"
    _compare(conv_shape, hint, *(((1, 2, 11, 12), (3, 2, 3, k), (1, 2), (1, 0), (2, 3)) for k in (1, 3)))


@shape_rule.check("channels that differ are a ValueError")
def _(conv_shape: Any) -> None:
    try:
        found = conv_shape((1, 3, 8, 8), (4, 5, 3, 3))
    except ValueError as error:
        if not all(n in str(error) for n in "35"):
            raise Wrong(
                f"the message is {str(error)!r}", "a good error names both sides: here 3 and 5 channels"
            ) from None
        return
    raise Wrong(f"a weight for 5 channels on data with 3: got {found}", "compare data[1] with weight[1], and raise")


# --- 1.3 ------------------------------------------------------------------------------------------------------

walk = CHAPTER.exercise("count_calls", "1.3", forbids=("ir/visitor.py", "ir/loop/stmt.py"), limit=5.0)


@walk.check("calls by operator")
def _(count_calls: Any) -> None:
    x = relay.var("x", shape=(4, 4))
    hint = "a Call's operator is call.op, with a name; variables and constants are not calls"
    body, expected = relay.nn.relu(relay.add(relay.exp(x), relay.exp(x))), {"nn.relu": 1, "add": 1, "exp": 2}
    same(count_calls(body), expected, "relu(exp(x) + exp(x)), two calls of exp", hint)
    same(count_calls(x), {}, "a variable alone", hint)


@walk.check("a call that two others read is one call")
def _(count_calls: Any) -> None:
    e = relay.exp(relay.var("x", shape=(4, 4)))
    hint = "a node that is used twice is one object: keep a set of those that you have been at"
    same(count_calls(relay.add(relay.negative(e), e)), {"add": 1, "negative": 1, "exp": 1}, "e = exp(x); -e + e", hint)


@walk.check("tuples are walked through")
def _(count_calls: Any) -> None:
    x = relay.var("x", shape=(4, 4))
    joined = relay.concatenate([relay.exp(x), relay.tanh(x)], axis=0)
    part = relay.split(joined, indices_or_sections=2, axis=0)[1]
    hint = (
        "concatenate's operand is a Tuple, whose fields are the tensors; split's result is taken apart by TupleGetItem"
    )
    expected = {"split": 1, "concatenate": 1, "exp": 1, "tanh": 1}
    same(count_calls(part), expected, "split(concatenate((exp, tanh)))[1]", hint)


@walk.check("40 doublings, which are 2^40 ways from top to bottom")
def _(count_calls: Any) -> None:
    node: Expr = relay.var("x", shape=(2,))
    for _ in range(40):
        node = relay.add(node, node)
    same(count_calls(node), {"add": 40}, "x = x + x, 40 times", "each node once, not each way to it")


@walk.check("3,000 calls, one on top of the other")
def _(count_calls: Any) -> None:
    node: Expr = relay.var("x", shape=(2,))
    for _ in range(3_000):
        node = relay.exp(node)
    try:
        same(count_calls(node), {"exp": 3_000}, "exp(exp(...))")
    except RecursionError:
        raise Wrong(
            "RecursionError", "no recursion: keep the nodes that wait in a list, and take one after the other"
        ) from None
