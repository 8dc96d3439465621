"""Passes make of modules near those of their tests what they made of them when numbers were compared."""

from __future__ import annotations

import itertools

import near
import pytest

CASES = {step: list(cases) for step, cases in itertools.groupby(near.cases(), key=lambda case: case.step)}


@pytest.mark.parametrize("step", CASES)
def test_becomes_what_is_noted(step: str) -> None:
    for case in CASES[step]:
        names = ("as it is", *(change.__name__ for change in near.CHANGES))
        for i, (have, want) in enumerate(zip(case.outcomes(), case.becomes.split(), strict=True)):
            kind = names[(i - 1) % len(near.CHANGES) + 1] if i else names[0]
            assert have == want, f"module {i} near it ({kind}); python -m tests.passes.near --again\n{case.text}"


def test_modules_near_one_are_of_all_kinds() -> None:
    kinds = {step: {one for case in cases for one in case.becomes.split()} for step, cases in CASES.items()}
    assert len(CASES) >= 20 and sum(map(len, CASES.values())) >= 200
    assert sum(len(found - {"-", "="}) >= 2 for found in kinds.values()) >= 20
