"""One budget for all that compiling a model may cost, so that a small file cannot ask for work without end.

``MINITVM_BUDGET`` sets it: ``nodes=2000000,bytes=268435456,steps=200000,seconds=0``; what is not named keeps its
default, 0 is no limit.

* ``nodes``: nodes of the model once its functions are in place;
* ``bytes``: by how much folded constants may be larger than what they are made of, beside 4 times the model's weights;
* ``steps``: operators that folding may evaluate, each trip of a loop anew, large ones counted as many (``COST``);
* ``seconds``: of the clock, from the first to the last stage.

It is asked before the work.  Folding that it does not have is left to the model's runs; what compiling cannot do
without is a :class:`CompilerError` that names it.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from minitvm import config
from minitvm.errors import CompilerError, ConfigError
from minitvm.ir.decision import Declined

NAME = "MINITVM_BUDGET"
DEFAULTS: Mapping[str, int] = {"nodes": 2_000_000, "bytes": 1 << 28, "steps": 200_000, "seconds": 0}
COST = 200_000
"""Arithmetic operations, or bytes of a result, that take about as long as evaluating one small operator."""
SHARE = 4
"""Of the steps, one operator that is folded may have a part of this size."""


def limits() -> dict[str, int]:
    """The limits as ``MINITVM_BUDGET`` says; :class:`ConfigError` where it cannot be read."""
    found = dict(DEFAULTS)
    for part in filter(None, map(str.strip, config.read(NAME).split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in DEFAULTS or not number.isdigit():
            hint = "parts like " + ",".join(f"{n}={v}" for n, v in DEFAULTS.items())
            raise ConfigError(f"{NAME} has {part!r}, which is no limit of a budget", hint=hint)
        found[name] = int(number)
    return found


@dataclass
class Budget:
    """What is allowed and what has been spent, by kind."""

    limits: dict[str, int] = field(default_factory=limits)
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(DEFAULTS, 0.0))
    start: float = field(default_factory=lambda: time.monotonic())
    refused: set[Any] = field(default_factory=set)
    """What has been tried to fold, and was left: it is not tried again."""

    def allow(self, kind: str, more: float) -> None:
        """A limit that is larger for a larger model."""
        if self.limits[kind]:
            self.limits[kind] += int(more)

    def has(self, kind: str, amount: float) -> bool:
        return not self.limits[kind] or self.spent[kind] + amount <= self.limits[kind]

    def spend(self, kind: str, amount: float) -> None:
        self.spent[kind] += amount

    def refusal(self, kind: str, amount: float) -> Declined | None:
        """The reason why something is not done that would cost so much."""
        if self.has(kind, amount):
            return None
        return Declined(f"it would cost {amount:,.0f} {kind}, and {NAME} has {self._left(kind):,.0f} left")

    def require(self, kind: str, amount: float, what: str) -> None:
        """Spends it; :class:`CompilerError` where there is not so much."""
        if not self.has(kind, amount):
            raise CompilerError(
                f"{what} would cost {amount:,.0f} {kind}, and the budget has {self._left(kind):,.0f} left",
                hint=f"{NAME}={kind}={self.limits[kind]} is its limit; 0 is no limit",
            )
        self.spend(kind, amount)

    def _left(self, kind: str) -> float:
        return max(0, self.limits[kind] - self.spent[kind])

    def check_time(self, what: str) -> None:
        """:class:`CompilerError` where more seconds have passed than there are."""
        limit = self.limits["seconds"]
        if limit and time.monotonic() - self.start > limit:
            raise CompilerError(
                f"compiling takes more than {limit} seconds; it had come to {what}",
                hint=f"{NAME}=seconds={limit} is its limit; 0 is no limit",
            )


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def compiling() -> Iterator[Budget]:
    """All that is compiled inside has one budget: that of whoever began, or a new one."""
    found = _current.get()
    if found is not None:
        yield found
        return
    made = Budget()
    token = _current.set(made)
    try:
        with rarely_collected():
            yield made
    finally:
        _current.reset(token)


_MADE_MEANWHILE = 50_000
"""Objects that are made between two looks for garbage while something is compiled."""
_compilations: list[tuple[int, int, int]] = []
"""What the collector's thresholds were before each that is under way."""
_counting = threading.Lock()


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Python's collector looks for garbage after every 700 objects; what compiling makes is nearly all in use."""
    with _counting:
        usual = _compilations[0] if _compilations else gc.get_threshold()
        _compilations.append(usual)
        if usual[0]:
            gc.set_threshold(max(usual[0], _MADE_MEANWHILE), *usual[1:])
    try:
        yield
    finally:
        with _counting:
            _compilations.pop()
            if not _compilations:
                gc.set_threshold(*usual)


def current() -> Budget:
    """The budget of what is being compiled; a new one outside of that."""
    return _current.get() or Budget()


# --- what evaluating may cost ----------------------------------------------------------------------------------


class TooCostly(CompilerError):
    """An evaluation that compiling does not have the steps or the bytes for."""


@dataclass
class Meter:
    """Counts the operators of one evaluation, as it goes: nobody knows how many trips a loop will have."""

    budget: Budget
    most: float
    steps: float = 0

    def count(self, operations: float, nbytes: float) -> None:
        """Counts the cost of an operator before it runs, as far as its type says, or after it; :class:`TooCostly`."""
        self.steps += 1 + (operations + nbytes) / COST
        self.budget.spend("steps", 1 + (operations + nbytes) / COST)
        if self.most and self.steps > self.most:
            kind, limit = "steps", self.budget.limits["steps"]
        elif not self.budget.has("bytes", nbytes):
            kind, limit = "bytes", self.budget.limits["bytes"]
        else:
            self.budget.check_time("constants")
            return
        raise TooCostly(
            f"a value that is needed while compiling takes more {kind} than there are",
            hint=f"{NAME}={kind}={limit} is the limit; 0 is no limit",
        )


_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


def meter() -> Meter | None:
    """What counts the evaluation that is under way; ``None`` where a model runs."""
    return _meter.get()


@contextmanager
def metered() -> Iterator[None]:
    """Evaluation inside costs steps, up to a share of the budget; :class:`TooCostly` where there are no more."""
    if _meter.get() is not None:
        yield
        return
    budget = current()
    left = budget.limits["steps"] and max(2.0, min(budget.limits["steps"] / SHARE, budget._left("steps")))
    token = _meter.set(Meter(budget, left))
    try:
        yield
    finally:
        _meter.reset(token)
