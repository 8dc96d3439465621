"""Templates and schedules of GPUs by values, a size of each axis; what was found so; that mistakes are found.

All sizes: ``python tests/codegen/cuda_sizes.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from cuda_size_cases import SIZES, SUBJECTS, Problem, Subject, attention, normal
from cuda_sizes import check

from minitvm.codegen.cuda.templates.blocks import Lines
from minitvm.codegen.cuda.templates.product import Staging
from minitvm.codegen.cuda.templates.tile import VECTOR
from tests.compilers import ON_GPU, needs_compiler, only_simulated

pytestmark = needs_compiler
EVERY = 30 if ON_GPU else len(SIZES)
"""Of the sizes: one is tried."""


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_a_size_of_each_axis(subject: Subject) -> None:
    tally = check(subject.problems(EVERY, zlib.crc32(subject.name.encode())))
    assert not tally.wrong
    assert [*tally.problems] == [*subject.axes] and tally.kernels.keys() == tally.problems.keys()


def heads(*widths: int) -> Iterator[tuple[str, Problem]]:
    """Of attention over 9 places, by what its values have."""
    rng = np.random.default_rng(0)
    for width in widths:
        sizes = {"batch": 1, "heads": 2, "queries": 5, "places": 9, "size": 8, "width": width}
        yield "width", attention(sizes, "float32", rng)


def test_columns_of_a_thread_that_are_no_whole_vectors() -> None:
    """Three columns were a vector of three, or one of two and one left out: 20 was wrong, 18 and 22 refused."""
    assert not check(heads(18, 19, 20, 22)).wrong


def test_both_factors_of_phases_have_memory_of_their_own() -> None:
    """Both along the depth and in tiles of as many rows as columns, they were in the same: every result was wrong."""
    rng = np.random.default_rng(0)
    attributes = {"strides": (2,), "data_layout": "NWC", "kernel_layout": "WOI"}
    arrays = normal(rng, "float16", (3, 40, 16), (3, 33, 16))
    tally = check([("width", Problem("nn.conv1d_transpose", arrays, attributes, "float16"))] * 3)
    assert not tally.wrong
    assert any("32 x 32 x" in way for seen in tally.ways.values() for way in seen)


@only_simulated
def test_vectors_that_no_count_is_made_of_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_sizes.verify_kernel", lambda kernel: None)  # which builds do not ask
    monkeypatch.setattr(Lines, "vector", property(lambda self: min(self.count, VECTOR)))
    wrong = [how for _, how in check(heads(18, 20)).wrong]
    assert any("never stores" in how for how in wrong) and any("stores outside of its memory" in how for how in wrong)


@only_simulated
def test_values_beyond_the_depth_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is stored that has to be, but not all of it is right."""
    monkeypatch.setattr("cuda_sizes.verify_kernel", lambda kernel: None)
    monkeypatch.setattr(Staging, "_ends_within", property(lambda self: False))
    arrays = normal(np.random.default_rng(0), "float32", (1, 19, 13), (1, 17, 13))
    tally = check([("depth", Problem("nn.batch_matmul", arrays, {}))])
    assert tally.wrong and tally.kernels
