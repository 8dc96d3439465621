"""A slice of the planted mistakes; ``python -m tests.lab.planted`` looks for all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from patience import PATIENCE

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.lab.planted.__main__ import look

SLICE = (
    "wraps_around",
    "always_a_number",
    "fold_off_by_one",
    "swapped_parameters",
    "maximum_as_minimum",
    "shared_memory",
)


@pytest.mark.parametrize("name", SLICE)
def test_a_planted_mistake_is_found_named_and_made_small(name: str) -> None:
    found = look(name, reduction=PATIENCE)
    assert found.finding is not None and found.is_named, found.row()
    assert found.finding.calls <= 5
