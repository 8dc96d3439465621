"""What a run's steps take, as ``GraphModuleDebug.profile`` gives it: a table, CSV and JSON, of TVM's columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minitvm.runtime.measured import Measured, doubts

COLUMNS = ("Name", "Duration (us)", "Percent", "Device", "Count", "Argument Shapes")


@dataclass(frozen=True)
class ProfiledCall:
    """One step of a run, or ``count`` that are alike, with their seconds together; ``predicted`` are the cost model's.

    ``shapes``: of its arguments, then of its results.
    """

    name: str
    seconds: Measured
    device: str
    shapes: str
    predicted: float = 0.0
    count: int = 1

    @property
    def best(self) -> float:
        """The seconds to reckon with."""
        return self.seconds.best(self.predicted)

    def and_another(self, other: ProfiledCall) -> ProfiledCall:
        """The two as one."""
        (one, two), worse = (self.seconds, other.seconds), min(self.seconds, other.seconds, key=_is_reliable)
        both = Measured(one.seconds + two.seconds, max(one.spread, two.spread), min(one.runs, two.runs), worse.verdict)
        return replace(self, seconds=both, predicted=self.predicted + other.predicted, count=self.count + other.count)


def _is_reliable(one: Measured) -> bool:
    return one.is_reliable


@dataclass(frozen=True)
class Profile:
    """The steps of a run in order, each timed alone, and ``total``, a whole run."""

    calls: tuple[ProfiledCall, ...]
    total: Measured
    configuration: dict[str, Any] = field(default_factory=dict)

    def table(self, sort: bool = True, aggregate: bool = True, col_sums: bool = True) -> str:
        """A line per step: the longest first with ``sort``, those of one kernel and shape together with ``aggregate``;
        with ``col_sums`` their sum and a whole run.  Below it stands what is unreliable."""
        calls = _together(self.calls) if aggregate else [*self.calls]
        if sort:
            calls.sort(key=lambda one: -one.best)
        rows = [COLUMNS, *map(self._row, calls)]
        if col_sums:
            rows += [("-" * 10, *[""] * 5), self._row(self._sum("Sum", calls))]
            rows += [self._row(ProfiledCall("Total", self.total, self._device, ""))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *doubts([*(one.seconds for one in self.calls), self.total], "step")])

    __str__ = table

    def csv(self) -> str:
        """The steps in order, one a line below the columns' names."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *map(self._row, self.calls)])
        return text.getvalue()

    def json(self) -> str:
        """The steps, the whole run and how it was measured; times are in microseconds."""
        calls = [
            {
                "Name": {"string": one.name},
                "Duration (us)": {"microseconds": one.best * 1e6},
                "Percent": {"percent": self._percent(one)},
                "Device": {"string": one.device},
                "Count": {"count": one.count},
                "Argument Shapes": {"string": one.shapes},
                "Measured": one.seconds.form,
            }
            for one in self.calls
        ]
        whole = {self._device: {"Duration (us)": {"microseconds": self.total.seconds * 1e6}}}
        return json.dumps({"calls": calls, "device_metrics": whole, "configuration": self.configuration})

    @property
    def _device(self) -> str:
        return self.calls[0].device if self.calls else ""

    def _sum(self, name: str, calls: Sequence[ProfiledCall]) -> ProfiledCall:
        found = Measured(sum(one.best for one in calls))
        return ProfiledCall(name, found, self._device, "", count=sum(one.count for one in calls))

    def _percent(self, one: ProfiledCall) -> float:
        """Of the whole run."""
        return 100 * one.best / self.total.seconds if self.total.seconds > 0 else 0.0

    def _row(self, one: ProfiledCall) -> tuple[str, ...]:
        time = one.seconds.text(one.predicted, 1e6, 2)
        return one.name, time, f"{self._percent(one):.2f}", one.device, str(one.count), one.shapes


def _together(calls: Iterable[ProfiledCall]) -> list[ProfiledCall]:
    """Calls of one name and shape as one."""
    found: dict[tuple[str, str, str], ProfiledCall] = {}
    for one in calls:
        key = one.name, one.device, one.shapes
        found[key] = found[key].and_another(one) if key in found else one
    return [*found.values()]
