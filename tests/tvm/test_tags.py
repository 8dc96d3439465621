"""Names of devices as TVM has them, in place of target strings."""

from __future__ import annotations

import pytest

import minitvm
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.errors import TargetError
from minitvm.target import Target
from minitvm.tvm.tags import TAGS


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("nvidia/geforce-rtx-3070", "cuda -arch=sm_86"),
        ("nvidia/nvidia-h100", "cuda -arch=sm_90"),
        ("raspberry-pi/4b-aarch64", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -mattr=+neon"),
        ("aws/cpu/c5.12xlarge", "llvm -mcpu=cascadelake"),
    ],
)
def test_a_tag_is_its_target(tag: str, text: str) -> None:
    assert Target(tag) == Target.parse(tag) == minitvm.Target(text)
    assert str(Target(tag)) == text


def test_every_tag_is_of_something_that_is_compiled_for() -> None:
    for tag in TAGS:
        target = Target(tag)
        if target.kind == "cuda":
            assert gpu_model(target.options["arch"]).arch == target.options["arch"]


@pytest.mark.parametrize("text", ["nvidia/geforce-256", "apple/m1-gpu", "", "nvidia/geforce-rtx-3070 -libs=cudnn"])
def test_what_is_no_tag(text: str) -> None:
    with pytest.raises(TargetError, match="unknown target"):
        Target.parse(text)
