"""No guard of a solution is there for nothing: all chapters with ``python -m tests.lab.guards``."""

from __future__ import annotations

import pytest

from tests.lab.guards import survivors


@pytest.mark.parametrize("chapter", ["chapter2", "chapter6"])
def test_a_guard_that_is_gone_is_missed_by_a_check(chapter: str) -> None:
    count, left = survivors(chapter)
    assert count >= 4 and left == []
