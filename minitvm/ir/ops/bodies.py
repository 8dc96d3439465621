"""What operators have in common that call functions which they hold: the branches of a choice, the body of a loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from minitvm import config
from minitvm.ir.expr import Function
from minitvm.ir.op import Op

_most_trips: ContextVar[int | None] = ContextVar("most_trips", default=None)


@contextmanager
def few_trips(most: int) -> Iterator[None]:
    """Within it the reference of a loop raises :class:`InputError` after ``most`` trips."""
    token = _most_trips.set(most)
    try:
        yield
    finally:
        _most_trips.reset(token)


def most_trips() -> int | None:
    """The number of trips that a loop may have, as :func:`few_trips` or ``MINITVM_MAX_TRIPS`` says."""
    return _most_trips.get() or config.read_int("MINITVM_MAX_TRIPS") or None


class OverFunctions(Op):
    """Calls functions that are its attributes.  Their last parameters are the call's last arguments."""

    @property
    def first_captured(self) -> int:
        """The place of the first argument that is the same whenever a function is called."""
        raise NotImplementedError

    def run(self, call: Callable[..., Any], *values: Any) -> Any:
        """The result, where ``call(function, *values)`` computes what a function returns."""
        raise NotImplementedError


class Choice(OverFunctions):
    """Calls one of its functions, as its first argument, one bool, says, and returns what that does."""

    first_captured = 1

    def chosen(self, condition: bool) -> Function:
        """The function that is called."""
        raise NotImplementedError
