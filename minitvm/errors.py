"""Every error a user can cause: what is wrong, where, and what to do next.

``assert`` is for minitvm's own bugs; everything else raises a subclass of :class:`MiniTVMError`.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class MiniTVMError(Exception):
    """The base class.  ``str(error)`` is the message, then `` | place`` lines, then ``  = hint: ...``.

    Parameters
    ----------
    message:
        One sentence that names both sides of a mismatch.
    where:
        Lines that say where: the call as text, its argument types, the ONNX node's name.
    hint:
        What to do next.

    ``inside`` names the rules, passes and the like that it came through, from the innermost out.
    """

    inside: tuple[str, ...] = ()

    def __init__(self, message: str, *, where: Sequence[str] = (), hint: str | None = None) -> None:
        self.message = message
        self.where = tuple(where)
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        lines = [self.message, *(f"  | {line}" for line in (*self.where, *(f"in {name}" for name in self.inside)))]
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


class NoSuchFileError(FrontendError):
    """There is no file where a model is looked for."""


class NotAModelError(FrontendError):
    """A file or bytes that are no ONNX model: empty, text, damaged, of another framework."""


class UnknownValueError(FrontendError):
    """The importer needs a value that is computed when the model runs.

    ``inputs`` names the model's inputs that it follows from; none where something else decides: what a loop carries,
    the size of an open dimension.
    """

    inputs: tuple[str, ...] = ()


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


class StoppedError(MiniTVMError):
    """A run that was told to end."""


class DeviceError(MiniTVMError):
    """A device that is there fails: out of memory, a kernel that faults, memory that was lost with it."""


class UserCodeError(MiniTVMError):
    """An exception inside a rule, pass, instrument, operator, template, layout rule or ONNX builder of a user's."""


# --- the boundary: what Python and the system raise -------------------------------------------------------------------


class StageError(MiniTVMError):
    """What Python, numpy or the system raised at a stage, chained; by itself a mistake of minitvm's.

    ``stage`` says what was done: opening, importing, compiling, loading, running, saving, and of what.
    """

    stage: str = ""


class OutOfMemoryError(StageError, MemoryError):
    """There is no memory for what a stage needs."""

    def __new__(cls, *_: object, **__: object) -> OutOfMemoryError:
        return Exception.__new__(cls)  # MemoryError's refuses a class whose first base is another


class RecursionLimitError(StageError, RecursionError):
    """Something is nested more deeply than Python goes."""


class SystemRefusedError(StageError, OSError):
    """The system refuses a file, a thread or whatever else a stage needs; ``errno`` and ``filename`` are its words."""


_PYTHONS = (MemoryError, OSError, LookupError, ValueError, ArithmeticError, RuntimeError, BufferError, EOFError)
"""What becomes a :class:`StageError`.  ``AssertionError``, ``TypeError`` and the like are bugs, and look like it."""


def stage(doing: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """``@stage("running the model")`` on what people call: the boundary at which every exception gets a name.

    A :class:`MiniTVMError` passes, and so do ``KeyboardInterrupt`` and what an :class:`as_raised` function raised.  One
    public function may call another: the outermost turns the exception, which names the innermost's stage, so that
    what lies between meets exceptions as they were raised.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def boundary(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except _PYTHONS as error:
                found = _converted(error, doing, sys._getframe())
                if found is error:
                    raise
                raise found from error

        return boundary

    return decorate


def _converted(error: Exception, doing: str, frame: types.FrameType) -> Exception:
    """The exception as it leaves a boundary, whose frame is given."""
    if isinstance(error, MiniTVMError) or "as_raised" in vars(error):
        return error
    vars(error).setdefault("stage", doing)
    caller = frame.f_back
    while caller is not None:
        if caller.f_code is frame.f_code:  # a boundary, too: closures of one function share their code
            return error
        caller = caller.f_back
    return _of_stage(error, vars(error)["stage"])


def _of_stage(error: Exception, doing: str) -> StageError:
    found = _named(error, doing)
    found.stage = doing
    return found


def _named(error: Exception, doing: str) -> StageError:
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        hint = "give the process more memory, or smaller inputs; what was made before can go on being used"
        detail = f": {error}" if str(error) else ""
        return OutOfMemoryError(f"{doing} takes more memory than there is{detail}", hint=hint)
    if isinstance(error, RecursionError):
        hint = "something is nested very deeply: sys.setrecursionlimit(10_000) lets Python go deeper"
        return RecursionLimitError(f"{doing} goes deeper than Python does: {error}", hint=hint)
    if isinstance(error, OSError):
        refused = SystemRefusedError(f"{doing} failed: {error}")
        refused.errno, refused.strerror, refused.filename = error.errno, error.strerror, error.filename
        return refused
    if type(error) is RuntimeError and "new thread" in str(error):
        hint = "let it use fewer threads (num_threads, MINITVM_NUM_THREADS), or allow the process more"
        return SystemRefusedError(f"{doing} failed: the system starts no more threads ({error})", hint=hint)
    hint = "this is a mistake of minitvm's: please report it, with the traceback that this one is chained to"
    return StageError(f"{doing} failed: {type(error).__name__}: {error}", hint=hint)


class as_raised:
    """``with as_raised():`` around a function of the caller's: what it raises passes every boundary as it is."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            vars(error)["as_raised"] = True


def warn(text: str, kind: type[Warning] = UserWarning) -> None:
    """A warning at the line that led here: the nearest one that is not minitvm's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "minitvm":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)


# --- other people's code ----------------------------------------------------------------------------------------------


def is_own(maker: object) -> bool:
    """True if a class or function is minitvm's."""
    return maker.__module__.partition(".")[0] == "minitvm"


def is_again(old: object, new: object) -> bool:
    """True if one class or function is another one defined once more, as a cell of a notebook does that is run again:
    of the same name in the same place, and not minitvm's."""
    if is_own(old) or is_own(new):
        return False
    return all(getattr(old, name, None) == getattr(new, name, "") for name in ("__module__", "__qualname__"))


def place_of(maker: object) -> str:
    """The place where a class or function is defined, for errors."""
    return f"{maker.__module__}.{getattr(maker, '__qualname__', maker)}"


Lines = Callable[[], Sequence[str]]
"""Says where: asked only where something is wrong."""


class user_code:
    """``with user_code(maker, "rule drop_zero", where)``: what ``maker`` (a class or function) raises gets a name.

    A :class:`MiniTVMError` passes, and says what it came through; any other exception of code that is not minitvm's
    own becomes a :class:`UserCodeError`, chained to it.  minitvm's own asserts and bugs pass as they are, and so does
    what is no ``Exception`` (``KeyboardInterrupt``).  ``caught_as_raised``: ``except`` of its own kind catches it, too.
    """

    __slots__ = ("caught_as_raised", "maker", "what", "where")

    def __init__(self, maker: object, what: str, where: Lines = tuple, caught_as_raised: bool = False) -> None:
        self.maker, self.what, self.where, self.caught_as_raised = maker, what, where, caught_as_raised

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, MiniTVMError):
            error.inside = (*error.inside, self.what)
        elif isinstance(error, Exception) and not is_own(self.maker):
            kind = _also(type(error)) if self.caught_as_raised else UserCodeError
            raise kind(
                f"{self.what} raised {type(error).__name__}: {error}",
                where=[*self.where(), _raised_at(error, self.maker.__module__)],
                hint="the exception that this one is chained to has the whole traceback",
            ) from error


def _also(kind: type[Exception]) -> type[UserCodeError]:
    """A :class:`UserCodeError` that is of another kind as well."""
    return types.new_class("UserCodeError", (UserCodeError, kind), {}, lambda body: body.update(__module__=__name__))


def blame(error: Exception, maker: object, what: str, where: Lines = tuple) -> NoReturn:
    """:class:`user_code` for the ``except`` of a place that is passed too often to enter a ``with``."""
    with user_code(maker, what, where):
        raise error


def _raised_at(error: Exception, module: str) -> str:
    """The innermost line of ``module`` that an exception came through."""
    import traceback  # not where nothing is wrong

    frames = list(traceback.walk_tb(error.__traceback__))
    theirs = [found for found in frames if found[0].f_globals.get("__name__") == module]
    frame, line = (theirs or frames)[-1]
    return f"raised at {frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"


# --- how errors are worded ------------------------------------------------------------------------------------


def no_file(path: Path) -> str:
    """What is wrong with a path at which there is no file to read."""
    return f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}"


def require(module: str, what: str) -> types.ModuleType:
    """A module of a package that ``what`` needs; :class:`ConfigError` where it is not installed."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as absent:
        if absent.name != package:
            raise
        text = f"{what} needs the package {package}, which is not installed"
        raise ConfigError(text, hint=f"pip install {package}") from absent


def did_you_mean(word: object, known: Iterable[str], show: Callable[[str], str] = repr, most: int = 1) -> str | None:
    """``did you mean 'x'?``, of the known words that are close to one, whatever their case; ``None`` if none is."""
    import difflib  # not where nothing is wrong

    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(word).lower(), lower, n=most)
    return f"did you mean {' or '.join(show(lower[name]) for name in near)}?" if near else None


def listing(names: Iterable[str], limit: int = 12) -> str:
    """Names for an error text, shortened after ``limit``."""
    known = list(names)
    return ", ".join(known[:limit]) + (f", ... ({len(known)} in all)" if len(known) > limit else "") or "none"


def origin(span: Sequence[str]) -> str:
    """``from ONNX node "a", "b"``, for what came from those nodes of the model; nothing where it is not known."""
    return "from ONNX node " + ", ".join(json.dumps(name, ensure_ascii=False) for name in span) if span else ""
