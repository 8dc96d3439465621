"""How large the caches of a core are: of this machine as it says, of one that is only named as most are."""

from __future__ import annotations

import pathlib
import re
from functools import cache

from minitvm import config
from minitvm.errors import TargetError
from minitvm.target import MachineModel, Target

Caches = tuple[int, int]
"""Bytes of the first level's data cache and of the second level."""

USUAL: Caches = (MachineModel.l1_bytes, MachineModel.l2_bytes)
_SYSTEM = pathlib.Path("/sys/devices/system/cpu/cpu0")
_SIZE = r"([1-9]\d*)([KM])"
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def caches_of(target: Target) -> Caches:
    """What ``-caches`` says; else this machine's where the target is this machine, by no name."""
    said = target.options.get("caches")
    if said is not None:
        return _parse(said)
    named = target.options.get("mtriple") or target.options.get("mcpu", "native") != "native"
    return USUAL if named or config.read("MINITVM_CPU") else of_host()


def _parse(said: str) -> Caches:
    found = re.fullmatch(f"{_SIZE},{_SIZE}", said)
    if found is None:
        raise TargetError(f"caches {said!r} are no two sizes", hint="first and second level, as in -caches=32K,1M")
    first, second = (int(number) * _UNITS[unit] for number, unit in (found.groups()[:2], found.groups()[2:]))
    return first, second


@cache
def of_host(system: pathlib.Path = _SYSTEM) -> Caches:
    """As Linux describes the first core, a core's share of what several have in common; elsewhere the usual ones."""
    try:
        core = _threads(system / "topology" / "thread_siblings")
        found = {level: size * core // threads for level, size, threads in map(_described, system.glob("cache/index*"))}
    except (OSError, ValueError, LookupError):
        return USUAL
    return found.get(1) or USUAL[0], found.get(2) or USUAL[1]


def _described(index: pathlib.Path) -> tuple[int, int, int]:
    """Level (0 for instructions), bytes, and hardware threads that share it."""
    level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
    return (
        int(level) * (kind != "Instruction"),
        int(size[:-1]) * _UNITS.get(size[-1], 1),
        _threads(index / "shared_cpu_map"),
    )


def _threads(path: pathlib.Path) -> int:
    return max(1, int(path.read_text().replace(",", ""), 16).bit_count())
