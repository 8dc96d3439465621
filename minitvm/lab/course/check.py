"""What the graders of the course are made of: chapters of exercises, exercises of checks, a check says what is wrong.

CHAPTER = Chapter("chapter1", "IR and types")
block = CHAPTER.exercise("residual_block", "1.1", forbids=("ir/visitor.py",))

@block.check("the result has the type of the input")
def _(residual_block: Any) -> None:
    if ...:
        raise Wrong("its type is ...", "the sum needs ...")
"""

from __future__ import annotations

import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeAlias

import numpy as np

import minitvm
from minitvm.errors import MiniTVMError, did_you_mean
from minitvm.ir import visitor
from minitvm.ir.expr import Call, Constant, Expr, Module
from minitvm.ir.op import Op
from minitvm.lab.course.remote import HINT, KIND, PLACE, Gone, exceptions_of
from minitvm.lab.course.remote import Wrong as Wrong
from minitvm.passes.instrument import PassInfo
from minitvm.passes.manager import OfFunction, Pass
from minitvm.passes.redundancy import FoldConstant
from minitvm.passes.rule import Rule
from minitvm.testing import checks

ROOT = Path(minitvm.__file__).parent


class Skip(Exception):
    """A check that this machine cannot make, with the reason; its points count as earned."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check."""

    exercise: str
    check: str
    points: int
    passed: bool
    message: str = ""
    hint: str = ""

    def form(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Check:
    title: str
    run: Callable[[Any], None]
    points: int


@dataclass
class Exercise:
    """One function (or rule, or class) that the student writes."""

    name: str
    number: str
    forbids: tuple[str, ...] = ()
    """Files of minitvm that hold the answer: the student's code may not run into them."""
    limit: float = 10.0
    """Seconds of one check."""
    is_rule: bool = False
    """A rewrite rule, not a function."""
    checks: list[Check] = field(default_factory=list)

    def check(self, title: str, points: int = 1) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        """Makes a check of a function that takes what the student wrote."""

        def decorate(run: Callable[[Any], None]) -> Callable[[Any], None]:
            self.checks.append(Check(title, run, points))
            return run

        return decorate

    def outcomes(self, work: Work, file: str) -> Iterator[Outcome]:
        """The checks one by one; ``file`` is where the student's code says that it is from."""
        for check in self.checks:
            yield self._outcome(check, work, file)

    def _outcome(self, check: Check, work: Work, file: str) -> Outcome:
        message, hint, passed = "", "", False
        forbids = self.forbids if isinstance(work, Mapping) else ()
        try:
            with watched(forbids, file) as entered:
                check.run(found_in(work, self.name, self.is_rule) if isinstance(work, Mapping) else work(self))
            passed = True
        except Skip as skip:
            message, passed = f"not checked here: {skip}", True
        except SystemExit:
            message, hint = "your code called exit()", "return, or raise an exception"
        except Gone:
            assert not isinstance(work, Mapping)
            message, hint = work.ended()
        except Exception as error:
            message, hint = explained(error, file)
        if entered:
            passed, message = False, f"your code runs minitvm/{sorted(entered)[0]}, which is the answer"
            hint = "the exercise is to write it; read that file afterwards and compare"
        return Outcome(self.name, check.title, check.points, passed, message, hint)


class Elsewhere(Protocol):
    """A student's code in another process."""

    def __call__(self, exercise: Exercise) -> Any: ...

    def ended(self) -> tuple[str, str]: ...


Work: TypeAlias = "Mapping[str, Any] | Elsewhere"


def found_in(work: Mapping[str, Any], name: str, is_rule: bool) -> Any:
    """What a student defined; :class:`Wrong` where that is nothing of the kind."""
    if name in work:
        refuse_ours(name, work[name])
        return as_rule(name, work[name]) if is_rule else as_function(name, work[name])
    others = [other for other in work if not other.startswith("_")]
    raise Wrong(f"there is no {name} in the file", did_you_mean(name, others, str) or "define it")


@dataclass
class Chapter:
    """The exercises of a chapter, in order."""

    name: str
    title: str
    exercises: list[Exercise] = field(default_factory=list)

    def exercise(
        self, name: str, number: str, forbids: tuple[str, ...] = (), limit: float = 10.0, is_rule: bool = False
    ) -> Exercise:
        made = Exercise(name, number, forbids, limit, is_rule)
        self.exercises.append(made)
        return made


# --- what a student's code runs into --------------------------------------------------------------------------


@contextmanager
def watched(forbidden: tuple[str, ...], file: str) -> Iterator[set[str]]:
    """The forbidden files of minitvm that code called by ``file`` enters while this is open."""
    paths = {str(ROOT / name): name for name in forbidden}
    entered: set[str] = set()

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        name = paths.get(frame.f_code.co_filename) if event == "call" else None
        if name is not None and name not in entered and _is_below(frame, file):
            entered.add(name)

    before = sys.getprofile()
    if paths and file not in ("", "<string>"):  # which code that dataclasses make says it is from, too
        sys.setprofile(on_call)
    try:
        yield entered
    finally:
        sys.setprofile(before)


def _is_below(frame: FrameType | None, file: str) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    return False


# --- what a student's exception means -------------------------------------------------------------------------

_HINTS: dict[type[BaseException], str] = {
    NotImplementedError: "write it: the chapter (minitvm lab read CHAPTER) says what it has to do",
    RecursionError: "graphs are thousands of nodes deep and Python's stack is not: walk with a list or with post_order",
    NameError: "is everything imported that you use?",
    KeyError: "print the dictionary's keys just before this line",
    MemoryError: "something grows without end: what does the loop add to?",
}


def explained(error: BaseException, file: str) -> tuple[str, str]:
    """An exception in a student's words: what it is, at which of their lines; and what to try."""
    reasons = list(exceptions_of(error))
    wrong = next((e for e in reasons if isinstance(e, Wrong)), None)
    if wrong is not None:
        return wrong.message, wrong.hint
    if isinstance(error, NotImplementedError) or isinstance(error.__cause__, NotImplementedError):
        return "not written yet", _HINTS[NotImplementedError]
    said = error.message if isinstance(error, MiniTVMError) else str(error)
    place = next((p for e in reasons if (p := getattr(e, PLACE, ""))), "") or place_of(error, file)
    message = f"{getattr(error, KIND, type(error).__name__)}: {said}" + (f"\n{place}" if place else "")
    hint = getattr(error, HINT, None) or (error.hint if isinstance(error, MiniTVMError) else None)
    return message, hint or next((h for kind, h in _HINTS.items() if isinstance(error, kind)), "")


def place_of(error: BaseException, file: str) -> str:
    """The last line of the student's that an exception came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not lines or lines[-1] is None:
        return ""
    return f"in line {lines[-1]}: {linecache.getline(file, lines[-1]).strip()}"


def refuse_ours(name: str, found: Any) -> None:
    """What is minitvm's by another name is no answer."""
    code = getattr(getattr(found, "apply", found), "__code__", None)
    home = code.co_filename if code is not None else getattr(sys.modules.get(type(found).__module__), "__file__", "")
    if home and ROOT in Path(home).parents:
        place = Path(home).relative_to(ROOT.parent).as_posix()
        raise Wrong(f"{name} is minitvm's own, from {place}", "the exercise is to write it; read that file afterwards")


def as_function(name: str, found: Any) -> Any:
    if not callable(found):
        raise Wrong(f"{name} is {found!r}, not a function", f"write it as: def {name}(...):")
    return found


def as_rule(name: str, found: Any) -> Rule:
    if not isinstance(found, Rule):
        raise Wrong(f"{name} is a {type(found).__name__}, not a rule", "put @rule(pattern) above the function")
    return found


@contextmanager
def hinted(hint: str) -> Iterator[None]:
    """An exception of the student's code comes with this hint, as a wrong answer would."""
    try:
        yield
    except Exception as error:
        if hint:
            setattr(error, HINT, hint)
        raise


# --- what checks ask ------------------------------------------------------------------------------------------


def same(found: Any, expected: Any, what: str, hint: str = "") -> None:
    """Python values that are equal."""
    if found is None and expected is not None:
        raise Wrong(f"{what}: got None", "does the function return on every way through it?")
    if found != expected:
        raise Wrong(f"{what}: got {found!r}, expected {expected!r}", hint)


def close(found: Any, expected: Any, what: str, hint: str = "", rtol: float = 1e-4) -> None:
    """Arrays (or tuples of them) of one shape and dtype whose elements agree to ``rtol`` of the largest."""
    if isinstance(expected, tuple):
        same(isinstance(found, tuple) and len(found), len(expected), f"{what}: results", hint)
        for one, other in zip(found, expected, strict=True):
            close(one, other, what, hint, rtol)
        return
    if found is None:
        raise Wrong(f"{what}: got None", "does the function return on every way through it?")
    have, want = np.asarray(found), np.asarray(expected)
    same(have.shape, want.shape, f"{what}: the shape", hint)
    with np.errstate(all="ignore"):
        scale = float(np.max(np.abs(want), initial=0.0, where=np.isfinite(want)))
        if not np.allclose(have, want, rtol=rtol, atol=rtol * scale, equal_nan=True):
            worst = np.unravel_index(np.argmax(np.nan_to_num(np.abs(have - want), nan=np.inf)), want.shape)
            at = [int(i) for i in worst]
            raise Wrong(f"{what}: element {at} is {have[worst]}, expected {want[worst]}", hint)


def becomes(passes: checks.Rewriter, before: str, after: str, hint: str = "", **context: Any) -> Module:
    """A rule or pass makes one text of the other, with the same numbers, and leaves what it is given alone.

    What a rule leaves to FoldConstant is folded first, on both sides: ``x * (a * b)`` is ``x * c``.
    """
    try:
        with hinted(hint):
            if isinstance(passes, Rule):
                return checks.check_rewrite(folded(passes), before, normal(checks.as_module(after)), **context)
            return checks.check_rewrite(passes, before, after, **context)
    except AssertionError as error:
        raise Wrong(f"given\n{_text(before)}\n{error}", hint) from error


def folded(rule: Rule) -> Pass:
    """A rule, and :func:`normal` behind it."""
    step = rule.as_pass()
    made = OfFunction(lambda module: normal(step(module)))
    made.info = PassInfo(rule.name, exactness=rule.exactness)
    return made


def normal(module: Module) -> Module:
    """Constants folded, and the second operands of operators that commute."""

    def visit(old: Expr, new: Expr) -> Expr:
        if not isinstance(new, Call) or not isinstance(new.op, Op) or not new.op.commutative or len(new.args) != 2:
            return new
        return Call(new.op, new.args[::-1], span=new.span) if isinstance(new.args[0], Constant) else new

    return Module(visitor.as_function(visitor.rewrite(FoldConstant()(module).main, visit)))


def stays(passes: checks.Rewriter, source: str | Module, hint: str = "", **context: Any) -> None:
    """A rule or pass does not fire: the same module comes back."""
    try:
        with hinted(hint):
            checks.check_unchanged(passes, source, **context)
    except AssertionError as error:
        raise Wrong(f"given\n{_text(source)}\n{error}", hint) from error


def _text(source: str | Module) -> str:
    return inspect.cleandoc(str(source))
