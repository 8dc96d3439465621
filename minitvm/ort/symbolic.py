"""Libraries for all shapes: each serves those for which what it took for granted of sizes holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import TypeAlias

from minitvm.ir.decision import Decision
from minitvm.runtime.bind import DoesNotFit
from minitvm.runtime.bound import Bound
from minitvm.runtime.library import Library

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Measured: TypeAlias = Mapping[str, int]
"""What sizes were that the data decide, by name."""

MOST_KEPT = 8
"""Of one model: sizes that decide more than so many ways get libraries of their own."""


class SymbolicLibraries:
    """What a model is compiled to for all shapes, as runs ask for it.

    The first is compiled as the first run's sizes decide what the model asks of them; a run for which that does not
    hold has another one made, with the facts turned round.  Who asks while one is made waits for it.
    """

    def __init__(self, make: Callable[[Shapes, Measured], Library | Decision]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._jobs: list[Future[Library | Decision]] = []

    def done(self) -> list[Library | Decision]:
        """What was made so far, or why it was not."""
        return [job.result() for job in self._jobs if job.done()]

    def bound(self, shapes: Shapes) -> Bound | Library | None:
        """What runs inputs of these shapes; ``None`` where there can be no library for all."""
        for job in list(self._jobs):
            found = bound_to(job.result(), shapes)
            if found is not None or isinstance(job.result(), Decision):
                return found
        made, mine = self._next(shapes)
        if made is None:
            return None
        return bound_to(made.result(), shapes) if mine else self.bound(shapes)

    def others(self, shapes: Shapes, than: Bound | Library, found: DoesNotFit) -> Iterator[Bound | Library]:
        """Yields the libraries that may fit what a run with one of them has ``found`` of sizes that the data decide;
        what it goes on to find is looked at when the next one is asked for, which may be made for it."""
        tried = [opened(than)]
        while min(found.measured.values(), default=0) >= 0:  # none is for a size below 0
            known = (job.result() for job in list(self._jobs))
            one = next((one for one in known if one not in tried and bound_to(one, shapes) is not None), None)
            if one is None:
                made, _ = self._next(shapes, found.measured)
                one = None if made is None else made.result()
            if not isinstance(one, Library) or one in tried:
                return
            tried.append(one)
            fitting = bound_to(one, shapes)
            if fitting is not None:
                yield fitting

    def any(self, shapes: Shapes) -> Library | Decision:
        """One of them: the first, which is made for ``shapes`` where there is none yet."""
        if not self._jobs:
            self._next(shapes)
        return self._jobs[0].result()

    def forget_refusal(self) -> None:
        """What was refused for sizes for which the model is wrong says nothing of others."""
        with self._lock:
            self._jobs = [job for job in self._jobs if not job.done() or isinstance(job.result(), Library)]

    def _next(
        self, shapes: Shapes, measured: Measured = MappingProxyType({})
    ) -> tuple[Future[Library | Decision] | None, bool]:
        """One more, made here unless somebody else has begun one meanwhile; ``None`` where there are enough."""
        with self._lock:
            begun = next((job for job in self._jobs if not job.done()), None)
            if begun is not None:
                return begun, False
            if len(self._jobs) == MOST_KEPT:
                return None, False
            job: Future[Library | Decision] = Future()
            self._jobs.append(job)
        try:
            job.set_result(self._make(shapes, measured))
        except BaseException as error:
            with self._lock:
                self._jobs.remove(job)
            job.set_exception(error)
        return job, True


def opened(library: Bound | Library) -> Library:
    """The library for all shapes."""
    return library if isinstance(library, Library) else library.opened


def bound_to(found: Library | Decision, shapes: Shapes) -> Bound | Library | None:
    """What runs inputs of these shapes, where it is for them."""
    if isinstance(found, Decision):
        return None
    try:
        return found.at(shapes)
    except DoesNotFit:
        return None
