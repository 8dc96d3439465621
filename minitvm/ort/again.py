"""Runs of what is bound like the last one, which looked at all of it: a step costs what was bound anew."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from minitvm.ort.plain import Plain
from minitvm.runtime.bound import Bound, SizePlan
from minitvm.runtime.lasting import Lasting
from minitvm.runtime.library import Library
from minitvm.runtime.specialised import Specialised


class Engine(Protocol):
    """What is asked of a model that is compiled."""

    def at(self, opened: Bound, values: Mapping[str, int], feeds: Mapping[str, Any]) -> Specialised | None: ...

    def has_run(self, found: Specialised, feeds: Mapping[str, Any]) -> None: ...


class Again:
    """Runs of inputs that are ``plain``, and of results in memory that is bound, as one was at some ``sizes``, in the
    plan of memory that it had."""

    def __init__(self, engine: Engine, lasting: Lasting, plain: Plain, bound: Bound, room: SizePlan) -> None:
        self.engine, self._lasting, self._plain, self._bound, self._room = engine, lasting, plain, bound, room
        self._sizes = bound.sizes
        self._staying: Specialised | None = None
        """What runs at these sizes, once they have come twice."""

    @staticmethod
    def of(engine: Engine, lasting: Lasting, plain: Plain, last: Specialised | None) -> Again | None:
        """``None`` where such runs have kernels of their own, or compute in Python."""
        if last is None or not isinstance(last.library, Bound):
            return None
        room = last.library.room
        return None if room is None else Again(engine, lasting, plain, last.library, room)

    def run(self, new: Mapping[str, Any]) -> list[Any] | None:
        """All results, where ``new`` inputs are others than in the last run; ``None`` where what is bound has to be
        looked at as a whole."""
        before = self._sizes.values
        values = self._plain.values_with(new, before)
        if values is before:
            return self._run_once_more(new)
        sizes = None if values is None else self._room.grown(values, before)
        if sizes is None:
            return None
        self._sizes, self._staying = sizes, None
        return self._room.call_again(sizes, self._lasting, new)

    def _run_once_more(self, new: Mapping[str, Any]) -> list[Any] | None:
        """At the same sizes: they may be worth kernels of their own, for which all runs at them count."""
        feeds, staying = self._lasting.feeds, self._staying
        if staying is None:
            staying = self.engine.at(self._bound, self._sizes.values, feeds)
            if staying is None or isinstance(staying.library, Library):
                return None
            if self._sizes is not self._bound.sizes:
                staying.count(0.0)
            self._staying = staying
        start = time.perf_counter()
        results = self._room.call_again(self._sizes, self._lasting, new)
        if results is not None:
            staying.count(time.perf_counter() - start)
            self.engine.has_run(staying, feeds)
        return results
