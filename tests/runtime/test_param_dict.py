"""Parameter files: TVM's layout, every dtype, and what is wrong with a broken one."""

from __future__ import annotations

import contextlib
import random
import struct

import numpy as np
import pytest

from minitvm.errors import LibraryError
from minitvm.ir.types import DTYPES
from minitvm.runtime.ndarray import array
from minitvm.runtime.param_dict import load_param_dict, save_param_dict


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    found = {f"w.{dtype}": (rng.standard_normal((2, 3)) * 4).astype(dtype) for dtype in DTYPES}
    return found | {"ünïcode": rng.standard_normal(()), "empty": np.zeros((0, 4), "int32")}


def test_save_load() -> None:
    given = arrays()
    found = load_param_dict(save_param_dict({name: array(value) for name, value in given.items()}))
    assert list(found) == list(given)
    for name, value in given.items():
        assert found[name].dtype == value.dtype.name and found[name].shape == value.shape
        assert found[name].numpy().tobytes() == value.tobytes()


def test_layout_is_tvms_byte_for_byte() -> None:
    value = np.array([[1.5, -2.0]], "float32")
    head = struct.pack("<QQ", 0xF7E58D4F05049CB7, 0) + struct.pack("<QQ", 1, 1) + b"w" + struct.pack("<Q", 1)
    body = struct.pack("<QQiiiBBHqqq", 0xDD5E40F096B4A13F, 0, 1, 0, 2, 2, 32, 1, 1, 2, 8) + value.tobytes()
    assert save_param_dict({"w": value}) == head + body


def test_big_endian_and_strided_arrays_are_saved_as_values() -> None:
    value = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(load_param_dict(save_param_dict({"w": value}))["w"].numpy(), value)


@pytest.mark.parametrize("cut", [0, 5, 20, 60, -1])
def test_truncated(cut: int) -> None:
    data = save_param_dict(arrays())
    with pytest.raises(LibraryError, match=r"^the parameters are truncated: \d+ bytes wanted at \d+ of \d+\n"):
        load_param_dict(data[:cut])


def test_something_else() -> None:
    with pytest.raises(LibraryError) as error:
        load_param_dict(b"\x89PNG\r\n\x1a\n" + bytes(64))
    assert str(error.value) == (
        "this is not a parameter file: it starts with 0xa1a0a0d474e5089, not 0xf7e58d4f05049cb7\n"
        "  = hint: save one with save_param_dict(lib.params)"
    )


def test_wrong_length_of_an_array() -> None:
    data = bytearray(save_param_dict({"w": np.zeros((2, 2), "float32")}))
    at = data.index(struct.pack("<qqq", 2, 2, 16))
    data[at : at + 8] = struct.pack("<q", 3)
    with pytest.raises(LibraryError, match=r"^the parameters hold 16 bytes for an array of shape \(3, 2\), float32$"):
        load_param_dict(bytes(data))


@pytest.mark.parametrize("shape", [(0, 1 << 62, 1 << 62), (1 << 62, 0)])
def test_a_shape_that_no_array_has(shape: tuple[int, ...]) -> None:
    data = save_param_dict({"w": np.zeros((0,) * len(shape), "float32")})
    at = data.index(struct.pack("<BBH", 2, 32, 1)) + 4
    changed = data[:at] + struct.pack(f"<{len(shape)}q", *shape) + data[at + 8 * len(shape) :]
    with pytest.raises(LibraryError, match=r"^the parameters hold an array that there is no room for: 0 bytes"):
        load_param_dict(changed)


def test_damaged_bytes() -> None:
    good = save_param_dict(arrays())
    for seed in range(1000):
        rng, data = random.Random(seed), bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 4))):
            value = rng.choice((0, 1, 2, 255, 1 << 31, 1 << 62, (1 << 63) - 1, (1 << 64) - 1))
            struct.pack_into("<Q", data, rng.randrange(len(data) - 8), value)
        with contextlib.suppress(LibraryError):
            load_param_dict(bytes(data))
