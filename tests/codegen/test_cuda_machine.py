"""What is known of a GPU: the table, and how many blocks an SM holds."""

from __future__ import annotations

import pytest

from minitvm.codegen.cuda.machine import gpu_model
from minitvm.errors import TargetError


def test_architectures_are_known_with_and_without_a_letter() -> None:
    assert (gpu_model("sm_90").sms, gpu_model("sm_90a").sms, gpu_model("sm_80").sms) == (132, 132, 108)
    assert "cp.async" in gpu_model("sm_80").features and "cp.async" not in gpu_model("sm_75").features


def test_an_unknown_one_names_those_that_are() -> None:
    with pytest.raises(TargetError, match="unknown GPU architecture 'sm_12'") as caught:
        gpu_model("sm_12")
    assert str(caught.value.hint).startswith("known: sm_75, sm_80")


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),  # threads: 64 warps
        (32, 16, 0, 32),  # blocks
        (256, 128, 0, 2),  # registers: 64 K in all
        (256, 255, 0, 1),
        (128, 32, 48 * 1024, 4),  # shared memory, with 1 KiB of each block for the system
        (1024, 65, 0, 0),  # none: a block has more registers than an SM
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert gpu_model("sm_90").occupancy(threads, registers, shared) == blocks


@pytest.mark.parametrize(("batch", "units", "pixels", "pays"), [(1, 64, 56 * 56, False), (32, 512, 14 * 14, True)])
def test_a_layout_alone_pays_where_products_take_longer_than_two_launches(
    batch: int, units: int, pixels: int, pays: bool
) -> None:
    moved = 2 * batch * units * pixels
    gpu = gpu_model("sm_90")
    assert gpu.pays_to_move(batch * units * units * 9 * pixels, moved) == pays
    assert not gpu.pays_to_move(0, moved)
