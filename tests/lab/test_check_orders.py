"""Rewrites that are right for real numbers only: a check calls them wrong, though float64 sees no difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitvm.ir.decision import Exactness
from minitvm.lab import check
from minitvm.lab.check_result import Outcome
from minitvm.passes import Rule
from minitvm.passes.arithmetic import add_any_constants, drop_any_added_zero, multiply_any_constants, multiply_any_sum


def model(body: str, size: int = 16) -> str:
    return f"def @main(%x: Tensor[({size},), float32]) {{ {body} }}"


CASES: list[tuple[Rule, str]] = [
    (add_any_constants, "add(add(%x, 12582912f), -12582912f)"),
    (multiply_any_sum, "multiply(add(%x, -1600000f), 123.456f)"),
    (multiply_any_sum, "floor(multiply(add(%x, 1f), 100f))"),
    (multiply_any_constants, "multiply(multiply(%x, 1e30f), 1e-30f)"),
    (multiply_any_constants, "multiply(multiply(%x, 1e-38f), 1e10f)"),
    (drop_any_added_zero, "divide(1f, add(%x, 0f))"),
]


@pytest.mark.parametrize(("unbounded", "body"), CASES)
def test_a_rule_without_a_bound_is_found_wrong(unbounded: Rule, body: str) -> None:
    always = replace(unbounded, exactness=Exactness.EXACT, name="always")
    found = check(model(body), parts=["passes"], passes=[always], reduction=0)
    wrong = [row for row in found.compared if row.outcome is Outcome.DIFFERS]
    assert [row.what.split(" ")[0].split("/")[-1] for row in wrong][:1] == ["always"], found


@pytest.mark.parametrize("body", [body for _, body in CASES])
def test_the_default_rules_are_found_right(body: str) -> None:
    found = check(model(body), parts=["passes", "model"], reduction=0)
    assert not [row for row in found.compared if row.outcome is not Outcome.AGREES], found
