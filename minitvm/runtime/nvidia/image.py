"""A group's image: what is launched for it, one JSON line, then machine code for one architecture (a cubin).

The same records stand in the group's source, a comment line each, so that source alone decides what the image is.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MARK = "// launch "
"""What a line of source with a record begins with."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: blocks of the grid and threads of a block, x, y, z each."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    """Bytes of dynamic shared memory."""
    params: tuple[int, ...]
    """What it is passed, addresses all: the group's parameter of that number, or, where negative, ``-1 - offset`` bytes
    into the group's workspace."""
    counters: int = 0
    """Of uint32, that it is passed behind those; they are 0 before it runs, and when it has run."""


def record(launch: Launch) -> str:
    """The launch as a line of source."""
    return MARK + json.dumps(asdict(launch))


def records(source: str) -> list[Launch]:
    """The launches of a source, in order."""
    return [_launch(json.loads(line[len(MARK) :])) for line in source.splitlines() if line.startswith(MARK)]


def pack(launches: Sequence[Launch], code: bytes) -> bytes:
    """The image of code; some of its functions may be launched twice, and some never."""
    return json.dumps([asdict(launch) for launch in launches]).encode("ascii") + b"\n" + code


def unpack(image: bytes) -> tuple[list[Launch], bytes]:
    head, _, code = image.partition(b"\n")
    return [_launch(form) for form in json.loads(head)], code


def _launch(form: dict[str, Any]) -> Launch:
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in form.items()}
    return Launch(**plain)
