"""Grades chapter 2: four rules, and where they must not fire."""

from typing import Any

import numpy as np

from minitvm.ir.decision import Exactness
from minitvm.ir.evaluate import evaluate
from minitvm.lab.course.check import Chapter, Wrong, becomes, stays
from minitvm.lab.course.texts import over
from minitvm.testing.checks import as_module, run_opt_pass

CHAPTER = Chapter("chapter2", "The first rewrite")

_BUILT_IN = ("passes/simplify_expr.py", "passes/arithmetic.py", "passes/canonicalize.py")


# --- 2.1 ------------------------------------------------------------------------------------------------------

negation = CHAPTER.exercise("drop_double_negation", "2.1", forbids=_BUILT_IN, is_rule=True)


@negation.check("-(-x) becomes x")
def _(rule: Any) -> None:
    hint = 'a pattern inside a pattern: call("negative", call("negative", value("x")))'
    becomes(rule, over("nn.relu(negative(negative(%x)))"), over("nn.relu(%x)"), hint)


@negation.check("four of them become none, three become one")
def _(rule: Any) -> None:
    becomes(rule, over("negative(negative(negative(negative(%x))))"), over("%x"))
    becomes(rule, over("negative(negative(negative(%x)))"), over("negative(%x)"))


@negation.check("one alone stays, and so does another operator between")
def _(rule: Any) -> None:
    stays(rule, over("negative(%x)"), "one negation is not two: the pattern has to hold both")
    stays(rule, over("negative(exp(negative(%x)))"))


# --- 2.2 ------------------------------------------------------------------------------------------------------

relu = CHAPTER.exercise("maximum_is_relu", "2.2", forbids=_BUILT_IN, is_rule=True)


@relu.check("maximum(x, 0) becomes nn.relu(x), in both orders")
def _(rule: Any) -> None:
    becomes(rule, over("maximum(%x, 0f)"), over("nn.relu(%x)"))
    becomes(rule, over("maximum(0f, %x)"), over("nn.relu(%x)"))


@relu.check("another number stays")
def _(rule: Any) -> None:
    stays(
        rule, over("maximum(%x, 1f)"), "c.value is a numpy array: fire where all of it is 0, else return Declined(...)"
    )
    stays(
        rule, over("maximum(%x, const([0, 0, 6], float32))"), "are all elements of the constant 0, or only the first?"
    )


@relu.check("zeros that make the result larger than x stay")
def _(rule: Any) -> None:
    hint = 'relu(x) has x\'s shape: name the whole call (name="whole") and compare whole.type with x.type'
    stays(rule, over("maximum(%x, const([[0], [0]], float32))", shape="(3,)"), hint)


# --- 2.3 ------------------------------------------------------------------------------------------------------

scales = CHAPTER.exercise("merge_scales", "2.3", forbids=_BUILT_IN, is_rule=True)


@scales.check("(x * a) * b becomes x * (a * b)")
def _(rule: Any) -> None:
    becomes(rule, over("multiply(multiply(%x, 2f), 3f)"), over("multiply(%x, 6f)"))
    after = over("multiply(%x, const([6, 9, 12], float32))")
    hint = "a.value and b.value broadcast as numpy's"
    becomes(rule, over("multiply(multiply(%x, const([2, 3, 4], float32)), 3f)"), after, hint)


@scales.check("x * a stays where somebody else reads it")
def _(rule: Any) -> None:
    source = "def @main(%x: Tensor[(2, 3), float32]) { %0 = multiply(%x, 2f); (multiply(%0, 3f), %0) }"
    stays(rule, source, "then both products would be computed: say single_use=True of the inner call")


@scales.check("it says that roundings change")
def _(rule: Any) -> None:
    if rule.exactness is not Exactness.REASSOCIATING:
        hint = "(x * a) * b rounds twice, x * (a * b) at other places: it may act at level 2 and above only"
        raise Wrong(f'its exactness is "{rule.exactness.value}", expected "reassociating"', hint)
    stays(rule, over("multiply(multiply(%x, 2f), 3f)"), opt_level=1)


# --- 2.4 ------------------------------------------------------------------------------------------------------

divide = CHAPTER.exercise("divide_by_power_of_two", "2.4", forbids=_BUILT_IN, is_rule=True)


@divide.check("x / 8 becomes x * 0.125")
def _(rule: Any) -> None:
    becomes(rule, over("divide(%x, 8f)"), over("multiply(%x, 0.125f)"))
    becomes(
        rule, over("divide(%x, const([2, -4, 0.5], float32))"), over("multiply(%x, const([0.5, -0.25, 2], float32))")
    )


@divide.check("all that it changes stays the same to the last bit")
def _(rule: Any) -> None:
    x = np.random.default_rng(2).normal(size=(2, 3)).astype("float32")
    for number in (3, 10, 0.1, 7, 1e30, 2**-20, 96):
        before = as_module(over(f"divide(%x, {number:f}f)"))
        one, other = (evaluate(m, x) for m in (before, run_opt_pass(before, rule)))
        if one.tobytes() != other.tobytes():
            hint = "np.frexp(c) gives the mantissa, which is 0.5 or -0.5 for powers of two and nothing else"
            raise Wrong(f"x / {number:g}: {one.ravel()[0]!r} became {other.ravel()[0]!r}", hint)


@divide.check("0, an inverse that is not representable, and integers stay")
def _(rule: Any) -> None:
    stays(rule, over("divide(%x, 0f)"), "x / 0 is infinity or NaN: is 1 / 0 finite?")
    tiny = over(f"divide(%x, {2.0**-149!r}f)")
    stays(rule, tiny, "2 ** -149 is a power of two, but its inverse is larger than any float32")
    stays(rule, over("divide(%x, 4i32)", dtype="int32"), "1 / 4 of integers is 0: fire for floats only")
