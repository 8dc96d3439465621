"""Rules that are nearly right are found, right ones of unusual forms hold; with more seeds:
``python -m tests.lab.nearly_wrong 20``."""

from __future__ import annotations

import numpy as np
import pytest

from minitvm import relay
from minitvm.errors import PassError
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.pattern import call, filled, value
from minitvm.ir.visitor import rewrite
from minitvm.lab import rule_check
from minitvm.lab.rule_check import LEAST, verify_rule
from minitvm.passes import PassContext, function_pass, rule
from minitvm.testing import assert_same_numbers, check_rewrite
from tests.lab.nearly_wrong import RIGHT, WRONG, factor

THREE = "def @main(%x: Tensor[(4, 4), float32], %y: Tensor[(4, 4), float32], %z: Tensor[(4, 4), float32]) { BODY }"
FACTORED = [
    ("add(multiply(%x, %y), add(multiply(%x, %z), %y))", "add(%y, multiply(%x, add(%z, %y)))"),
    ("nn.relu(add(multiply(%x, %y), multiply(%x, %z)))", "nn.relu(multiply(%x, add(%y, %z)))"),
    ("nn.relu(add(add(%x, %y), %z))", "nn.relu(add(%x, add(%y, %z)))"),
    ("sigmoid(subtract(multiply(%x, %y), multiply(%x, %z)))", "sigmoid(multiply(%x, subtract(%y, %z)))"),
    ("exp(add(%x, add(%y, %z)))", "multiply(exp(%x), multiply(exp(%y), exp(%z)))"),
]


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_is_nearly_right_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_check, "AFTER_A_FIND", 0)
    found, why = WRONG[name]
    assert verify_rule(found).state == "wrong", why


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rule_of_an_unusual_form_holds(name: str) -> None:
    verdict = verify_rule(RIGHT[name], most=LEAST)
    assert verdict.counterexample is None and verdict.compared, verdict


@pytest.mark.parametrize(("before", "after"), FACTORED)
def test_another_order_of_sums_is_the_same_whatever_is_behind(before: str, after: str) -> None:
    for seed in range(6):
        assert_same_numbers(THREE.replace("BODY", before), THREE.replace("BODY", after), seed=seed)


@pytest.mark.parametrize("wrong", ["multiply(%x, add(%y, %y))", "multiply(%x, subtract(%y, %z))", "multiply(%x, %y)"])
def test_another_sum_is_not(wrong: str) -> None:
    before, after = (THREE.replace("BODY", f"nn.relu({body})") for body in (FACTORED[1][0][8:-1], wrong))
    with pytest.raises(AssertionError, match="changed result 0"):
        assert_same_numbers(before, after)


def test_an_unbounded_rule_is_held_to_what_its_sums_are_made_of() -> None:
    before, after = (THREE.replace("BODY", body) for body in FACTORED[1])
    check_rewrite(factor, before, after, config={"minitvm.allow_fast_math": True})


@rule(call("add", value("x"), filled(0)))
def loses_a_sign(x: Expr) -> Expr:
    return x


def test_an_exact_rule_is_held_to_the_bit() -> None:
    before, after = ("def @main(%x: Tensor[(4,), float32]) { " + body + " }" for body in ("add(%x, 0f)", "%x"))
    with pytest.raises(AssertionError, match="the sign of a zero"):
        check_rewrite(loses_a_sign, before, after)


# --- passes -----------------------------------------------------------------------------------------------------------


def divided(function: Function) -> Function:
    """``x / 10`` for ``x * 0.1``, which is rounded, too."""

    def visit(old: Expr, new: Expr) -> Expr:
        op = getattr(getattr(new, "op", None), "name", "")
        return relay.divide(new.args[0], relay.const(np.float32(10))) if op == "multiply" else new  # type: ignore

    return rewrite(function, visit)  # type: ignore[return-value]


A_TENTH = "def @main(%x: Tensor[(64,), float32]) { multiply(%x, 0.1f) }"
DIVIDED = "def @main(%x: Tensor[(64,), float32]) { divide(%x, 10f) }"


def test_a_pass_states_its_exactness() -> None:
    @function_pass(exactness="exact")
    def claims_too_much(function: Function, module: Module, context: PassContext) -> Function:
        return divided(function)

    @function_pass(exactness="unbounded")
    def claims_enough(function: Function, module: Module, context: PassContext) -> Function:
        return divided(function)

    check_rewrite(claims_enough, A_TENTH, DIVIDED)
    with pytest.raises(AssertionError, match="changed result 0"):
        check_rewrite(claims_too_much, A_TENTH, DIVIDED)
    with pytest.raises(PassError, match="there is no exactness 'precise'"):
        function_pass(exactness="precise")(lambda function, module, context: function)


def test_a_function_of_modules_is_a_pass() -> None:
    check_rewrite(lambda module: Module(divided(module.main)), A_TENTH, DIVIDED)
    with pytest.raises(PassError, match="is not a pass"):
        check_rewrite(3, A_TENTH, DIVIDED)  # type: ignore[arg-type]
