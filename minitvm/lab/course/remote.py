"""Two processes that call each other's functions: the grader and the student's code."""

from __future__ import annotations

import builtins
import contextlib
import pickle
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import minitvm.errors
from minitvm.errors import MiniTVMError
from minitvm.ir.expr import Expr
from minitvm.lab.course.message import nodes_of, read, written

PLACE = "place_in_the_course"
"""The attribute of an exception that says at which line of the student's it was raised."""
HINT, KIND = "hint_of_the_course", "kind_in_the_course"


class Wrong(Exception):
    """What a check found: a sentence that names both sides, and a hint that leads on without giving the answer."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Gone(Exception):
    """The other side has ended, or says what is no message."""


def _own(_: BaseException) -> str:
    return ""


class Peer:
    """One end: ``functions`` are those that the other side may call, by number."""

    def __init__(self, source: IO[bytes], target: IO[bytes], place: Callable[[BaseException], str] = _own) -> None:
        self.source, self.target, self.place = source, target, place
        self.functions: list[Callable[..., Any]] = []
        self.around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._lock = threading.RLock()

    def handle(self, function: Callable[..., Any]) -> int:
        self.functions.append(function)
        return len(self.functions) - 1

    def remote(self, number: int) -> Callable[..., Any]:
        """A function of the other side's."""

        def call(*args: Any, **named: Any) -> Any:
            with self._lock:
                return self._asked(number, args, named)

        return call

    def _asked(self, number: int, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = nodes_of([args, named])
        self._send("call", (number, args, named), ())
        kind, answer = self._next(given)
        while kind == "call":
            self._answer(answer)
            kind, answer = self._next(given)
        if kind == "raised":
            raise _exception(*answer)
        return answer

    def serve(self) -> None:
        """Answers until the other side ends."""
        with contextlib.suppress(Gone):
            while True:
                kind, asked = self._next(())
                if kind == "call":
                    self._answer(asked)

    def _answer(self, asked: tuple[int, tuple[Any, ...], dict[str, Any]]) -> None:
        number, args, named = asked
        given = nodes_of([args, named])
        try:
            with self.around():
                found = self.functions[number](*args, **named)
            self._send("value", found, given)
        except Gone:
            raise
        except BaseException as error:  # whatever the function raises, SystemExit too
            self._send("raised", _form(error, self.place(error)), ())

    def _send(self, kind: str, value: Any, known: Sequence[Expr]) -> None:
        data = written((kind, value), known, self.handle)
        try:
            self.target.write(struct.pack("<Q", len(data)) + data)
            self.target.flush()
        except OSError as error:
            raise Gone from error

    def _next(self, known: Sequence[Expr]) -> tuple[str, Any]:
        """A message of the other side's; a call's nodes are new ones."""
        head = self.source.read(8)
        data = self.source.read(struct.unpack("<Q", head)[0]) if len(head) == 8 else b""
        if not data:
            raise Gone("it has ended")
        try:
            kind, value = read(data, known, self.remote)
        except (
            MiniTVMError,
            pickle.UnpicklingError,
            EOFError,
            ValueError,
            TypeError,
            AttributeError,
            IndexError,
            KeyError,
        ) as error:
            raise Gone(f"it sent what is no data: {error}") from error
        return str(kind), value


def _form(error: BaseException, place: str) -> tuple[str, str, str, str, str]:
    kind = next(k.__name__ for k in type(error).__mro__ if _known(k.__name__) is k)
    said = error.message if isinstance(error, (MiniTVMError, Wrong)) else str(error)
    hint = error.hint if isinstance(error, (MiniTVMError, Wrong)) else None
    name = type(error).__name__
    cause = "NotImplementedError" if isinstance(error.__cause__, NotImplementedError) else ""
    return cause or kind, str(said), str(getattr(error, HINT, None) or hint or ""), place, name


def _known(name: str) -> type[BaseException] | None:
    if name == "Wrong":
        return Wrong
    found = getattr(builtins, name, None) or getattr(minitvm.errors, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _exception(kind: str, message: str, hint: str, place: str, name: str) -> BaseException:
    error: BaseException
    found = _known(str(kind)) or RuntimeError
    if issubclass(found, (Wrong, MiniTVMError)):
        error = Wrong(str(message), str(hint)) if found is Wrong else MiniTVMError(str(message), hint=str(hint) or None)
    else:
        try:
            error = found(str(message))
        except TypeError:  # one that takes more
            error = RuntimeError(f"{kind}: {message}")
    setattr(error, PLACE, str(place))
    setattr(error, KIND, str(name))
    return error


def exceptions_of(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those that it was raised for."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
