"""Which of two ways a run takes, with a clock of its own: the faster one, at a cost of a few percent."""

from collections.abc import Iterator
from itertools import cycle

import pytest

from minitvm.runtime.pace import Paced


class Machine:
    """Seconds that pass while a team or one thread runs, and who ran."""

    def __init__(self, team: Iterator[float], alone: float = 1.0) -> None:
        self.now, self.ran = 0.0, ""
        self.team, self.alone = team, alone
        self.paced = Paced(self._together, self._alone, lambda: self.now)

    def _together(self) -> None:
        self.now += next(self.team)
        self.ran += "t"

    def _alone(self) -> None:
        self.now += self.alone
        self.ran += "a"

    def run(self, times: int) -> float:
        """The mean of a run."""
        before = self.now
        for _ in range(times):
            self.paced()
        return (self.now - before) / times


def test_a_team_that_is_faster_runs_on_after_one_comparison() -> None:
    machine = Machine(cycle([0.55]))
    assert machine.run(1000) < 0.56
    assert machine.ran == "tttttaaaa" + 991 * "t"


def test_what_takes_long_now_and_then_changes_nothing() -> None:
    machine = Machine(cycle([*19 * [0.55], 2.0]))
    assert machine.run(2000) < (19 * 0.55 + 2) / 20 * 1.03


@pytest.mark.parametrize("team", [[1.15], [0.55, 1.8], [0.55, 0.55, 3.0]])
def test_one_thread_takes_over_from_a_team_that_is_slower(team: list[float]) -> None:
    machine = Machine(cycle(team))
    machine.run(50)
    assert machine.run(1000) < 1.03


def test_a_team_gets_its_core_back() -> None:
    machine = Machine(cycle([1.3]))
    machine.run(500)
    machine.team = cycle([0.55])
    machine.run(70)
    assert machine.run(200) < 0.57


def test_a_neighbour_who_comes_later_is_noticed() -> None:
    machine = Machine(cycle([0.55]))
    machine.run(5000)
    machine.team = cycle([0.55, 1.9])
    machine.run(1100)
    assert machine.run(500) < 1.03


def test_an_error_of_a_run_arrives_and_the_next_run_goes_on() -> None:
    def fails() -> None:
        raise ValueError("broken")

    paced = Paced(fails, fails)
    for _ in range(10):
        with pytest.raises(ValueError, match="broken"):
            paced()
