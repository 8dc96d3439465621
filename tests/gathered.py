"""Many cases of one test: what fails is said at its end, by the case's name, so that the others run, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minitvm.errors import MiniTVMError

_SHOWN = 50


class Gathered:
    """``with each.case(name)``, and ``each.end()``."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def end(self) -> None:
        """Raises what was wrong."""
        shown = "\n".join(self.failed[:_SHOWN])
        assert not self.failed, f"{len(self.failed)} cases fail:\n{shown}"

    @contextmanager
    def case(self, name: object) -> Iterator[None]:
        try:
            yield
        except (AssertionError, MiniTVMError) as error:
            self.failed.append(f"{name}: {' '.join(str(error).split())[:400]}")
