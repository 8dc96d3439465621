"""Libraries by what they are compiled for, the ones used last; and when shapes are worth kernels of their own."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from minitvm.runtime.bound import Bound
from minitvm.runtime.direct import AS_EVER, How
from minitvm.runtime.library import Library

Key: TypeAlias = "tuple[tuple[int, ...] | bytes, ...]"
"""What a library is compiled for: the shapes of the inputs, and the values that shapes depend on."""

FEWEST_RUNS = 3
"""Before shapes are taken for ones that come again."""


@dataclass
class Specialised:
    """A library for some shapes and values of the inputs."""

    library: Library | Bound
    constant: frozenset[str]
    """Inputs whose values it was compiled for."""
    symbolic: bool = False
    """Whether its kernels are those for all shapes."""
    _runs: int = 0
    _seconds: float = 0.0
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self._may_get_own = self.symbolic and isinstance(self.library, Bound)

    @property
    def own(self) -> Library:
        """The library with a memory plan for these shapes alone."""
        return self.library if isinstance(self.library, Library) else self.library.library

    def run(self, feeds: Mapping[str, Any], how: How = AS_EVER) -> list[Any]:
        if self.constant:
            feeds = {name: array for name, array in feeds.items() if name not in self.constant}
        if not self._may_get_own:
            return self.library.call(feeds, how)
        start = time.perf_counter()
        results = self.library.call(feeds, how)
        self.count(time.perf_counter() - start)
        return results

    def count(self, seconds: float) -> None:
        with self._counting:
            self._runs, self._seconds = self._runs + 1, self._seconds + seconds

    def is_worth(self, seconds: float, runs: int | None) -> bool:
        """True if kernels for these shapes alone are worth ``seconds``, or have been asked for after so many ``runs``:
        true once."""
        if not self._may_get_own:
            return False
        with self._counting:
            found = self._runs >= FEWEST_RUNS and self._seconds >= seconds if runs is None else self._runs == runs
            if found:
                self._seconds = float("-inf")
            return found


class Specialisations:
    """The libraries for single shapes, as many as are to be kept.  Each is made by the first thread that asks for it,
    for which those wait who need the same one, and nobody else."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Specialised] = OrderedDict()
        self._being_made: dict[Key, Future[Specialised]] = {}

    def all(self) -> list[Specialised]:
        """The one used last at the end."""
        with self._lock:
            return list(self._kept.values())

    def known(self, key: Key) -> Specialised | None:
        """What is kept, which is the one used last from now on."""
        with self._lock:
            return self._used(key)

    def _used(self, key: Key) -> Specialised | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def get(self, key: Key, make: Callable[[], Specialised], better: bool = False) -> Specialised:
        """:meth:`known`, or what is made; ``better``: kernels for all shapes do not do."""
        with self._lock:
            known = self._used(key)
            if known is not None and not (better and known.symbolic):
                return known
            mine, job = key not in self._being_made, self._being_made.setdefault(key, Future())
        if mine:
            self._make(key, job, make)
        return job.result()

    def drop(self, key: Key) -> None:
        """What is kept does not do."""
        with self._lock:
            self._kept.pop(key, None)

    def put(self, key: Key, found: Specialised) -> Specialised:
        """Puts a library in the place of what was kept."""
        with self._lock:
            self._put(key, found)
        return found

    def _put(self, key: Key, found: Specialised) -> None:
        self._kept[key] = found
        self._kept.move_to_end(key)
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def _make(self, key: Key, job: Future[Specialised], make: Callable[[], Specialised]) -> None:
        try:
            found = make()
        except BaseException as error:
            with self._lock:
                del self._being_made[key]
            job.set_exception(error)
            return
        with self._lock:
            self._put(key, found)
            del self._being_made[key]
        job.set_result(found)
