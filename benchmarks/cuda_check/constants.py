"""From a run's ``calibrate`` section to the constants that ``codegen/cuda/machine.py`` counts with."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from minitvm.codegen.cuda import machine
from minitvm.codegen.cuda.machine import Seen, gpu_model
from minitvm.errors import ConfigError

TABLE = pathlib.Path(machine.__file__)
_AGAIN = "python -m benchmarks cuda-check --sections calibrate, on such a card"
_NEEDED = (
    *("clock_hz", "launch_gap_s", "latency_l2_cycles", "latency_memory_cycles", "l2_read_bytes_s"),
    "memory_read_bytes_s",
)
_PRODUCTS = {"mma": "mma_f16_flops", "wgmma": "wgmma_f16_flops"}
"""What shows how far instructions get that an architecture may have."""


def seen_of(result: Any) -> Seen:
    """The constants; :class:`ConfigError` for a run of the stand-in, or one that measured less than they need."""
    if not isinstance(result, Mapping) or "device" not in result or result.get("stand_in", True):
        raise ConfigError("these figures are not those of a GPU", hint=_AGAIN)
    device, rows = result["device"], result.get("sections", {}).get("calibrate", [])
    figures = {name: value for row in rows for name, value in row.get("figures", {}).items()}
    card = gpu_model(device["arch"])
    needed = [*_NEEDED, *(name for feature, name in _PRODUCTS.items() if feature in card.features)]
    if missing := [name for name in needed if not figures.get(name, 0) > 0]:
        raise ConfigError(f"the run did not measure {', '.join(missing)}", hint=_AGAIN)
    clock, sms = figures["clock_hz"], device["sms"]
    peak = card.tensor_flops * sms / card.sms
    return Seen(
        device["name"],
        round(figures["launch_gap_s"] * clock),
        round(figures["latency_l2_cycles"]),
        round(figures["latency_memory_cycles"]),
        round(figures["l2_read_bytes_s"] / sms / clock, 2),
        *(round(figures.get(name, 0) / peak, 3) for name in _PRODUCTS.values()),
        round(figures["memory_read_bytes_s"] / device["memory_bytes"], 3),
    )


def replaced(text: str, arch: str, found: Seen) -> tuple[str, Seen]:
    """The table's text with a card's entry, and what was there; :class:`ConfigError` where another card's are."""
    number, before = int(re.sub(r"\D", "", arch)), gpu_model(arch).seen
    entry = re.compile(rf"\b{number}: Seen\([^)]*\)")
    mine = f"{number}: Seen({', '.join(map(repr, found))})".replace("'", '"')
    if entry.search(text) is None:
        return text.replace("_SEEN = {", f"_SEEN = {{{mine}, "), before
    if before.card != found.card:
        raise ConfigError(
            f"the figures are of an {found.card}, those of {arch} in the table are of an {before.card}", hint=_AGAIN
        )
    return entry.sub(mine, text), before


def table(before: Seen, after: Seen) -> list[tuple[str, str, str]]:
    """Name, before, after."""
    return [(name, str(a), str(b)) for name, a, b in zip(Seen._fields, before, after, strict=True)]
