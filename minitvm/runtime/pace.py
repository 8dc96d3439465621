"""Whether a run gets its whole team: where another program keeps a core busy, one thread is sooner done than a team
that waits for the one without a core.

What is fast is tried: a few runs each way, compared by their means.  A team is doubted where two of its runs took much
longer than its best; a thread alone is doubted again and again, each time after twice as many runs.  The way that loses
is tried so seldom that it costs a few percent (the strategy of a bandit with two arms whose rewards drift: Auer,
Cesa-Bianchi, Fischer, "Finite-time analysis of the multiarmed bandit problem", 2002).
"""

import time
from collections import deque
from collections.abc import Callable
from statistics import fmean

TRIED = 4
"""Runs of each way that a comparison takes."""
SLOW, DOUBTS = 1.4, 2
"""So many of a team's runs that take so many times its best one are a reason to doubt it."""
LONGEST = 64
"""Runs between two comparisons of a thread alone; those of a team may be sixteen times further apart."""
BETTER = 0.97
"""What the other way has to take of this one's time."""


class Paced:
    """Calls ``together`` or ``alone``, which do the same, whichever has been faster."""

    def __init__(
        self, together: Callable[[], None], alone: Callable[[], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._ways = {True: together, False: alone}
        self._clock = clock
        self._seconds = {way: deque[float](maxlen=TRIED) for way in self._ways}
        self._team = True
        """The way that is held to be faster; the other one is on trial while ``_trial`` is above 0."""
        self._trial = 0
        self._runs, self._wait = 0, TRIED + 1
        """Since the last comparison, and how many before the next one; the first run of all is no measure."""
        self._best, self._slow = float("inf"), DOUBTS

    def __call__(self) -> None:
        way = self._team is not (self._trial > 0)
        start = self._clock()
        self._ways[way]()
        seconds = self._clock() - start
        self._seconds[way].append(seconds)
        if self._trial:
            self._tried()
        else:
            self._ran(seconds)

    def _ran(self, seconds: float) -> None:
        """The way that is held to be faster has run once more: is it time to try the other one?"""
        self._runs += 1
        if self._team:
            self._best = min(1.001 * self._best, seconds)
            self._slow += seconds > SLOW * self._best
        if self._runs >= self._wait and (not self._team or self._slow >= DOUBTS):
            self._trial = TRIED
            self._seconds[not self._team].clear()

    def _tried(self) -> None:
        """The other way has run once more; after the last time the better one goes on."""
        self._trial -= 1
        if self._trial:
            return
        if fmean(self._seconds[not self._team]) < BETTER * fmean(self._seconds[self._team]):
            self._team, self._wait = not self._team, TRIED
        else:
            self._wait = min(2 * self._wait, LONGEST * (16 if self._team else 1))
        self._runs, self._slow = 0, 0
