"""Weights in a mapped file are copied piece by piece, and what was copied leaves memory."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from minitvm.frontend.files import File
from minitvm.ir import arrays


@pytest.mark.parametrize(
    ("shape", "offset", "calls"), [((6, 4096), 128, 6), ((3, 7000), 4, 3), ((1, 30_000), 0, 1), ((9,), 0, 1)]
)
def test_pieces_of_a_mapped_file(
    shape: tuple[int, ...], offset: int, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows larger than a piece, one at a time."""
    monkeypatch.setattr(arrays, "_COPIED", 16 * 1024)
    values = np.random.default_rng(1).normal(size=shape).astype("float32")
    path = tmp_path / "weights"
    path.write_bytes(bytes(offset) + values.tobytes())
    given = File(path).array("float32", shape, offset)
    let_go = Mock(wraps=arrays.let_go)
    monkeypatch.setattr(arrays, "let_go", let_go)
    found = arrays._in_pages(given)
    np.testing.assert_array_equal(found, values)
    assert let_go.call_count == calls and not found.flags.writeable
    np.testing.assert_array_equal(given, values)  # read again where it is asked for
