"""Every error a user can cause: what is wrong, where, and what to do next.

``assert`` is for minitvm's own bugs; everything else raises a subclass of :class:`MiniTVMError`.
"""

from __future__ import annotations

from collections.abc import Sequence


class MiniTVMError(Exception):
    """Base class.  ``str(error)`` is the message, then ``  | place`` lines, then ``  = hint: ...``.

    Parameters
    ----------
    message:
        One sentence that names both sides of a mismatch.
    where:
        Lines that say where: the call as text, its argument types, the ONNX node's name.
    hint:
        What to do next.
    """

    def __init__(self, message: str, *, where: Sequence[str] = (), hint: str | None = None) -> None:
        self.message = message
        self.where = tuple(where)
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        lines = [self.message, *(f"  | {line}" for line in self.where)]
        if self.hint is not None:
            lines.append(f"  = hint: {self.hint}")
        return "\n".join(lines)


class IRError(MiniTVMError):
    """A graph that is not well formed: cycles, unbound variables, untyped expressions."""


class TypeInferenceError(MiniTVMError):
    """An operator rejects the shapes, dtypes or attributes it was given."""


class ParseError(MiniTVMError):
    """Text that is not a module.  ``line`` and ``column`` (from 1) say where; ``where`` shows the line with a caret."""

    line: int = 0
    column: int = 0


class FrontendError(MiniTVMError):
    """A model file that cannot be imported."""


class UnsupportedOperatorError(FrontendError):
    """The model contains operators that the importer does not know; lists all of them."""


class PassError(MiniTVMError):
    """A pass is unknown, misused, or produced a wrong module."""


class ConfigError(MiniTVMError):
    """An unknown option, a wrong type or value of one."""


class TargetError(MiniTVMError):
    """An unknown target, target option, or a target that this machine cannot run."""


class ScheduleError(MiniTVMError):
    """A schedule step does not apply to the loops it was given."""


class CompilerError(MiniTVMError):
    """A kernel cannot be lowered or compiled for the target."""


class InputError(MiniTVMError):
    """A model's input is missing, unknown, or of the wrong shape, rank or dtype."""


class LibraryError(MiniTVMError):
    """A saved library that cannot be loaded: truncated, altered, another version or CPU, not signed by who must."""
