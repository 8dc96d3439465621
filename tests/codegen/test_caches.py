"""Sizes of caches: those of the machine for itself, usual ones for a named CPU, or what the target says."""

from __future__ import annotations

import pathlib

import pytest

from minitvm.codegen.backend import backend_of
from minitvm.codegen.llvm.compile import USUAL, caches_of, of_host
from minitvm.errors import TargetError
from minitvm.target import Target

KB = 1024


def machine_of(text: str) -> tuple[int, int, int]:
    machine = backend_of(Target.parse(text), 1).machine
    return machine.l1_bytes, machine.l2_bytes, machine.l3_bytes


def described(folder: pathlib.Path, siblings: str, *caches: tuple[str, str, str, str]) -> pathlib.Path:
    """A processor as Linux describes it: hardware threads of the core, and level, type, size and sharers of caches."""
    (folder / "topology").mkdir(parents=True)
    (folder / "topology" / "thread_siblings").write_text(f"{siblings}\n")
    for number, values in enumerate(caches):
        index = folder / "cache" / f"index{number}"
        index.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_map"), values, strict=True):
            (index / name).write_text(f"{value}\n")
    return folder


def test_of_a_machine(tmp_path: pathlib.Path) -> None:
    first = (("1", "Data", "48K", "3"), ("1", "Instruction", "32K", "3"))
    assert of_host(described(tmp_path / "a", "3", *first, ("2", "Unified", "2048K", "3"))) == (
        *(48 * KB, 2048 * KB),
        USUAL[2],
    )
    shared = ("2", "Unified", "4M", "00000000,0000000f")  # by four cores
    assert of_host(described(tmp_path / "b", "1", ("1", "Data", "32K", "1"), shared, ("3", "Unified", "36M", "f"))) == (
        *(32 * KB, 1024 * KB),
        36864 * KB,  # all of it: one thread may fill it
    )
    assert of_host(described(tmp_path / "c", "1", ("1", "Data", "what", "1"))) == USUAL
    assert of_host(tmp_path / "nowhere") == USUAL


def test_of_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINITVM_CPU", raising=False)
    for named in ("llvm -mcpu=haswell", "llvm -mtriple=aarch64-linux-gnu"):
        assert machine_of(named) == USUAL  # the same kernels wherever they are compiled
    assert machine_of("llvm -mcpu=haswell -caches=16K,3M") == (16 * KB, 3072 * KB, USUAL[2])
    assert machine_of("llvm -mcpu=haswell -caches=16K,3M,8M") == (16 * KB, 3072 * KB, 8192 * KB)
    assert machine_of("llvm") == machine_of("llvm -mcpu=native") == of_host()
    monkeypatch.setenv("MINITVM_CPU", "haswell")
    assert machine_of("llvm") == USUAL


@pytest.mark.parametrize("said", ["32K", "32,512", "0K,1M", "32K,1M,8M,64M"])
def test_no_sizes(said: str) -> None:
    with pytest.raises(TargetError) as error:
        caches_of(Target.parse(f"llvm -caches={said}"))
    assert str(error.value) == (
        f"caches {said!r} are no two or three sizes\n"
        "  = hint: first, second and perhaps third level, as in -caches=32K,1M,16M"
    )
