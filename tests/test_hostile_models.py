"""A slice of the files that ask for much: an answer within seconds (``python -m tests.hostile_models``)."""

from __future__ import annotations

import pytest

from tests.hostile_models import kinds, tried

SLICE = [
    "constant Concat, 60 times",
    "constant outer product, 22 times",
    "Range to 4,611,686,018,427,387,904",
    "mel bands",
    "loop of constants, 1,000,000 trips",
    "If in If, 11 deep",
    "Gather and Gather, 100 deep",
    "a sparse tensor of [1099511627776]",
    "protobuf 30,000 deep",
    "a weight of [1099511627776], dtype 1",
]


def test_there_are_enough_kinds() -> None:
    assert len(kinds()) >= 110
    assert set(SLICE) <= kinds().keys()


@pytest.mark.parametrize("name", SLICE)
def test_an_answer_comes_soon(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINITVM_POISON", raising=False)  # each trip of a loop in Python
    outcome = tried(kinds()[name]())
    assert outcome.is_good, f"{name}: {outcome}"
