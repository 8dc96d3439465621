"""A slice of the campaign of damaged files (``tests/campaign_files.py``), always the same."""

from __future__ import annotations

import random

from campaign_files import campaign, good_libraries
from damaged_libraries import flip_bytes

from minitvm.errors import LibraryError
from minitvm.runtime import archive

LIBRARIES, MODELS = 300, 50


def test_nothing_but_errors_and_results() -> None:
    jobs = [("library", n) for n in range(LIBRARIES)] + [("model", n) for n in range(MODELS)]
    random.Random(0).shuffle(jobs)
    tally = campaign(iter(jobs), "tests", workers=2, models=False)
    assert not tally.findings, "\n".join(tally.findings)
    assert sum(tally.counts["library"].values()) == LIBRARIES and sum(tally.counts["model"].values()) == MODELS
    for kind in ("library", "model"):
        assert tally.counts[kind]["refused"] > 0 and tally.counts[kind]["ran"] > 0, tally


def test_a_flipped_bit_is_refused_or_means_nothing() -> None:
    rng, libraries = random.Random(1), good_libraries()
    harmless = 0
    for number in range(200):
        good = libraries[number % len(libraries)]
        try:
            found = archive.from_bytes(flip_bytes(good, libraries, rng), "m.mtvm")
        except LibraryError:
            continue
        harmless += 1
        assert archive.to_bytes(found) == good
    assert harmless < 20  # dates and checksums of the zip's own
