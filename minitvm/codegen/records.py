"""Tuning records: what was tried of templates' search spaces, and how it did; one JSON object a line.

A build takes what did best: by the records of the file that the option ``minitvm.records`` names, else by those that
ship for a machine (``MachineModel.records``).  What was measured goes before what was predicted.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from minitvm.codegen.problem import RECORDS, TRIED, Template
from minitvm.errors import ConfigError
from minitvm.passes.manager import PassContext
from minitvm.target import MachineModel

_HINT = "minitvm tune writes them; remove the line, or leave the file out"


@dataclass(frozen=True)
class Key:
    """What a choice is made for."""

    machine: str
    options: str
    template: str
    problem: str


@dataclass(frozen=True)
class Record(Key):
    """One choice that was tried.  ``cycles`` are predicted, ``seconds`` measured, where there was such a machine;
    ``why_not``: what its code was refused for; ``verdict``: why a measurement counts for nothing."""

    choice: str
    cycles: float
    seconds: float | None = None
    why_not: str = ""
    verdict: str = "reliable"

    @staticmethod
    def read(line: str, where: str) -> Record:
        """:class:`ConfigError` where a line is something else."""
        try:
            form = json.loads(line)
            if not isinstance(form, dict):
                raise ValueError(f"it is no object but {line[:40]!r}")
            _check(form)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is no tuning record: {error}", hint=_HINT) from None
        return Record(**form)

    def __str__(self) -> str:
        left_out = (None, "", "reliable")
        return json.dumps({n: value for n, value in asdict(self).items() if value not in left_out or n == "options"})

    @property
    def key(self) -> Key:
        return Key(self.machine, self.options, self.template, self.problem)

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The least is best."""
        return self.why_not != "", self.seconds is None, self.cycles if self.seconds is None else self.seconds


_KINDS: dict[str, tuple[type, ...]] = {"cycles": (int, float), "seconds": (int, float)}


def _check(form: Mapping[str, Any]) -> None:
    known = {field.name for field in fields(Record)}
    for name in (known - {"seconds", "why_not", "verdict"}) - form.keys():
        raise ValueError(f"it has no {name!r}")
    for name, value in form.items():
        if name not in known:
            raise ValueError(f"it has a field {name!r}, which none has")
        kinds = _KINDS.get(name, (str,))
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"its {name!r} is {value!r}")
        if isinstance(value, (int, float)) and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"its {name!r} is {value!r}")


def options() -> str:
    """The options of the present context that templates look at, where they are not at their defaults; part of a
    key."""
    known = PassContext.list_configs()
    given = PassContext.current().config.items()
    own = {name: value for name, value in given if not name.startswith("minitvm.") and value != known[name].default}
    return ", ".join(f"{name}={value}" for name, value in sorted(own.items()))


# --- files ------------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[Record]:
    """The records of a file; :class:`ConfigError` where it cannot be read or holds something else."""
    try:
        if path.exists() and not path.is_file():  # a device may never end
            raise OSError("it is not an ordinary file")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} has no tuning records that can be read: {error}", hint=_HINT) from None
    return [Record.read(line, f"{path}, line {n},") for n, line in enumerate(lines, 1) if line.strip()]


def best(records: Iterable[Record]) -> dict[Key, Record]:
    """The best record by what it was tried for; nothing where all were refused."""
    found: dict[Key, Record] = {}
    for record in records:
        if not record.why_not and (record.key not in found or record.rank < found[record.key].rank):
            found[record.key] = record
    return found


def shipped(machine: MachineModel) -> Mapping[Key, Record]:
    """The records that ship for machines of a kind."""
    return _of_file(str(machine.records)) if machine.records else {}


@functools.lru_cache(maxsize=8)
def _of_file(path: str, changed: int = 0, size: int = 0) -> Mapping[Key, Record]:
    return best(read(Path(path)))


def given() -> Mapping[Key, Record]:
    """The records of the file that the present context names."""
    path = PassContext.current().option(RECORDS.name)
    if not path:
        return {}
    try:
        status = Path(path).stat()
    except OSError as error:
        raise ConfigError(f"{RECORDS.name}: {path} cannot be read: {error.strerror}", hint=_HINT) from None
    return _of_file(path, status.st_mtime_ns, status.st_size)


def records_given() -> str:
    """The same as they are in a file."""
    return "\n".join(map(str, given().values()))


def require_own(machine: str) -> None:
    """:class:`ConfigError` where the file that the present context names is for other machines."""
    machines = sorted({key.machine for key in given()})
    if machines and machine not in machines:
        made = f"made on {machines[0]!r}" + (f" and {len(machines) - 1} other machines" if machines[1:] else "")
        path = PassContext.current().option(RECORDS.name)
        raise ConfigError(
            f"{RECORDS.name}: {path} was {made}, not on {machine!r}", hint="minitvm tune, for this target"
        )


# --- what a template takes --------------------------------------------------------------------------------------------


def key_of(template: Template) -> Key:
    """What records of a template's choices are for."""
    maker = type(template)
    name = f"{maker.__module__.rpartition('.')[2]}.{maker.__name__}"
    return Key(template.machine.name, options(), name, str(template.problem))


@contextmanager
def trying(record: Record) -> Iterator[None]:
    """Inside, the template that the record is for takes its choice."""
    token = TRIED.set(record)
    try:
        yield
    finally:
        TRIED.reset(token)


def recorded(template: Template) -> Record | None:
    """What did best of a template's choices, where something was tried."""
    tried: Record | None = TRIED.get()
    key = key_of(template)
    if tried is not None and tried.key == key:
        return tried
    return given().get(key) or shipped(template.machine).get(key)
