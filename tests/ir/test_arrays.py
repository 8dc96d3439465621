"""Weights of mapped files are copied by pieces, and what was copied leaves memory; arrays that last lie together."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from minitvm.errors import InputError
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


@pytest.mark.skipif(not arrays._CHUNK, reason="there are no large pages")
def test_arrays_that_last_lie_together_and_leave_memory_by_themselves() -> None:
    rng = np.random.default_rng(2)
    sizes = [int(n) for n in rng.integers(arrays.WORTH_SHARING, 3 * arrays.WORTH_SHARING, 40)]
    made = [arrays.aligned_empty((n,), "uint8", lasts=True) for n in sizes]
    for number, array in enumerate(made):
        array[:] = number + 1
    pages = {id(arrays._memory(arrays._owner(array))) for array in made}
    spans = sorted((array.ctypes.data, array.nbytes) for array in made)
    assert len(pages) <= 2 and all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
    middle, memory = made.pop(20), arrays._memory(arrays._owner(made[20]))
    start = middle.ctypes.data - np.frombuffer(memory, np.uint8).ctypes.data
    is_there = 0 <= start < len(memory)
    del middle, array
    if is_there:
        assert not np.frombuffer(memory, np.uint8)[start : start + sizes[20]].any()
    for number, array in zip([*range(20), *range(21, 40)], made, strict=True):
        assert array.ctypes.data % arrays.ALIGNMENT == 0 and (array == number + 1).all()


def test_memory_that_cannot_be_had() -> None:
    for lasts in (False, True):
        with pytest.raises(InputError, match="bytes of memory cannot be had"):
            arrays.aligned_empty((1 << 62,), "uint8", lasts)
