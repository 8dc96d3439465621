"""Grades chapter 3: a pass, two counterexamples, and a proof that notices seven wrong rules."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir import builder as relay
from minitvm.ir.decision import Declined
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Module
from minitvm.ir.pattern import call, const, value
from minitvm.ir.visitor import calls
from minitvm.lab.course.check import Chapter, Wrong, becomes, stays
from minitvm.lab.course.texts import Given, Noise, drawn_inputs, fused, over, shape_of
from minitvm.passes.bound import Bound, Of
from minitvm.passes.rule import Replacement, Rule, rule
from minitvm.testing.checks import as_module, run_opt_pass

CHAPTER = Chapter("chapter3", "A pass and its proof")

# --- 3.1 ------------------------------------------------------------------------------------------------------

merge = CHAPTER.exercise("merge_equal", "3.1", forbids=("passes/redundancy.py", "passes/combine.py"))


@merge.check("two equal calls become one")
def _(merge_equal: Any) -> None:
    hint = "a dictionary from (operator, operands) to the first call that had them; dict.setdefault does both steps"
    becomes(Given(merge_equal), over("add(exp(%x), exp(%x))"), over("%0 = exp(%x); add(%0, %0)"), hint)


@merge.check("what reads merged calls is merged as well")
def _(merge_equal: Any) -> None:
    hint = "look the *new* node up, whose operands are merged already, not the old one"
    before = over("add(nn.relu(exp(%x)), nn.relu(exp(%x)))")
    becomes(Given(merge_equal), before, over("%0 = nn.relu(exp(%x)); add(%0, %0)"), hint)


@merge.check("other attributes, other operands and their order: other calls")
def _(merge_equal: Any) -> None:
    x = "def @main(%x: Tensor[(3, 3), float32], %y: Tensor[(3, 3), float32])"
    hint = "operators are equal where all their attributes are: compare call.op, not call.op.name"
    stays(Given(merge_equal), f"{x} {{ add(sum(%x, axis=[0]), sum(%x, axis=[1])) }}", hint)
    stays(Given(merge_equal), f"{x} {{ add(exp(%x), exp(%y)) }}", "the operands belong to the key")
    stays(Given(merge_equal), f"{x} {{ add(subtract(%x, %y), subtract(%y, %x)) }}", "the order of operands counts")


@merge.check("random numbers are drawn twice")
def _(merge_equal: Any) -> None:
    x = relay.var("x", shape=(3,))
    given = as_module(Module.from_expr(relay.add(Call(Noise(), [x]), Call(Noise(), [x]))))
    found = run_opt_pass(given, Given(merge_equal))
    if len(calls(found.main)) != 3:
        raise Wrong("two calls of a random operator became one", "leave calls alone whose op.stateful is true")


@merge.check("calls of groups stay")
def _(merge_equal: Any) -> None:
    stays(Given(merge_equal), fused(over("sum(exp(%x), axis=[0])")), "a group's op is a Function, which has no traits")


# --- 3.2 ------------------------------------------------------------------------------------------------------

scale = CHAPTER.exercise("scale_counterexample", "3.2")
transposes = CHAPTER.exercise("transpose_counterexample", "3.2")


@rule(call("multiply", call("nn.relu", value("x")), const("c")))
def relu_after_scale(x: Expr, c: Constant) -> Replacement:
    return relay.nn.relu(relay.multiply(x, c))


@rule(call("transpose", call("transpose", value("x"), name="inner"), name="outer"))
def transposed_twice(x: Expr, inner: Call, outer: Call) -> Replacement:
    same_axes = inner.op == outer.op and x.checked_type == outer.checked_type
    return x if same_axes else Declined("the axes differ")


def _shows(wrong: Rule, text: Any, hint: str) -> None:
    if not isinstance(text, str):
        raise Wrong(
            f"it returned {text!r}", "return the text of a module: 'def @main(%x: Tensor[(4,), float32]) { ... }'"
        )
    before = as_module(text)
    after = run_opt_pass(before, wrong)
    if after is before:
        raise Wrong(
            f"the rule {wrong.name} does not fire on\n{before}", "a counterexample has to have what the rule matches"
        )
    arrays = drawn_inputs(before.main.params, seed=3)
    one, other = (evaluate(m, *arrays) for m in (before, after))
    if np.array_equal(one, other):
        raise Wrong(f"before and after agree on random numbers:\n{before}\n{after}", hint)


@scale.check("the rule fires on it, and the numbers differ", points=2)
def _(scale_counterexample: Any) -> None:
    _shows(relu_after_scale, scale_counterexample(), "for which c is c * max(x, 0) not max(c * x, 0)?")


@transposes.check("the rule fires on it, and the numbers differ", points=2)
def _(transpose_counterexample: Any) -> None:
    hint = (
        "a swap of two axes undoes itself; three axes in a circle do not.  The rule looks at types: "
        "with which shape is the type the same all the same?"
    )
    _shows(transposed_twice, transpose_counterexample(), hint)


# --- 3.3 ------------------------------------------------------------------------------------------------------

proof = CHAPTER.exercise("prove", "3.3", limit=20.0)

_ONE = call("nn.dense", value("x"), value("w"), name="dense", single_use=True)
_SHARED = call("nn.dense", value("x"), value("w"), name="dense")


def _wide(dense: Call) -> int:
    return shape_of(dense)[-1]


def _scale(c: Constant, dense: Call) -> np.ndarray | None:
    """The constant as one number or one for each unit, in a column; ``None`` where it is neither."""
    units = _wide(dense)
    if c.value.size == 1:
        return c.value.reshape(())
    return c.value.reshape(units, 1) if c.value.shape in ((units,), (1, units)) else None


def _right(x: Expr, w: Expr, c: Constant, dense: Call) -> Replacement:
    column = _scale(c, dense)
    if column is None:
        return Declined("the constant is neither a number nor one for each unit")
    return relay.nn.dense(x, relay.multiply(w, relay.const(column)))


def _made(pattern: Any, exactness: str, body: Callable[..., Replacement]) -> Rule:
    def scale_into_dense(x: Expr, w: Expr, c: Constant, dense: Call) -> Replacement:
        return body(x, w, c, dense)

    bound = Bound(2, Of.SUMS) if exactness == "reassociating" else None
    return rule(call("multiply", pattern, const("c")), exactness=exactness, bound=bound)(scale_into_dense)


def _as_row(x: Expr, w: Expr, c: Constant, dense: Call) -> Replacement:
    column = _scale(c, dense)
    if column is None or _wide(dense) != shape_of(w)[-1]:
        return _right(x, w, c, dense)
    return relay.nn.dense(x, relay.multiply(w, relay.const(column.T)))


def _first_only(x: Expr, w: Expr, c: Constant, dense: Call) -> Replacement:
    return relay.nn.dense(x, relay.multiply(w, relay.const(c.value.ravel()[0])))


def _of_rows(x: Expr, w: Expr, c: Constant, dense: Call) -> Replacement:
    rows, _ = shape_of(dense)
    if c.value.shape == (rows, 1):
        return relay.nn.dense(relay.multiply(x, relay.const(c.value[:1])), w)
    return _right(x, w, c, dense)


def _forgets(x: Expr, w: Expr, c: Constant, dense: Call) -> Replacement:
    return relay.nn.dense(x, w)


def _never(x: Expr, w: Expr, c: Constant, dense: Call) -> Replacement:
    return Declined("out of order")


RIGHT = _made(_ONE, "reassociating", _right)
WRONG: dict[str, tuple[Rule, str]] = {
    "never fires": (_made(_ONE, "reassociating", _never), "check_rewrite with a constant that fits"),
    "forgets the factor": (_made(_ONE, "reassociating", _forgets), "check_rewrite compares texts and numbers"),
    "takes the first factor for all units": (
        _made(_ONE, "reassociating", _first_only),
        "a constant of several different numbers, one for each unit",
    ),
    "scales the weight's columns where its rows are meant": (
        _made(_ONE, "reassociating", _as_row),
        "one number for each unit, and a square weight: in any other shape the mistake is an error at once",
    ),
    "fires on factors for rows of the data": (
        _made(_ONE, "reassociating", _of_rows),
        "check_unchanged with a constant of shape (rows, 1)",
    ),
    "computes a shared dense twice": (
        _made(_SHARED, "reassociating", _right),
        "check_unchanged where the dense is a second result: (multiply(%0, 2f), %0)",
    ),
    "changes roundings at level 1": (_made(_ONE, "exact", _right), "check_unchanged with opt_level=1"),
}


@proof.check("it accepts the right rule")
def _(prove: Any) -> None:
    try:
        prove(RIGHT)
    except AssertionError as error:
        raise Wrong(
            f"AssertionError: {error}", "this rule is right: what does the check expect that the page does not say?"
        ) from error


def _notices(what: str, wrong: Rule, hint: str) -> None:
    @proof.check(f"it notices a rule that {what}")
    def _(prove: Any) -> None:
        prove(RIGHT)  # a proof that rejects everything shows nothing
        try:
            prove(wrong)
        except (AssertionError, MiniTVMError):
            return
        raise Wrong(f"a rule that {what} passes", hint)


for _what, (_rule, _hint) in WRONG.items():
    _notices(_what, _rule, _hint)
