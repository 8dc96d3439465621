"""Passes in order, and orders of one's own: what stands where among them, and what is put there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from minitvm.errors import PassError
from minitvm.ir.decision import decide
from minitvm.ir.expr import Module
from minitvm.passes.context import KNOWN_PASSES, PassContext, Placement, closest
from minitvm.passes.instrument import PassInfo
from minitvm.passes.manager import PASSES, Pass, as_pass


@dataclass(frozen=True)
class Place:
    """Where a pass stands among passes, some of which are made of passes; ``runs``: at the level that was asked for."""

    path: tuple[int, ...]
    step: Pass
    runs: bool


class Sequential(Pass):
    """Passes in order.  Runs those that the current ``PassContext`` enables, each after the passes it requires.

    Names may say which run is meant where a pass has several: ``FoldConstant#2`` is the second one.
    """

    def __init__(
        self, passes: Sequence[Any], opt_level: int = 0, name: str = "sequential", required: Sequence[str] = ()
    ) -> None:
        if not isinstance(passes, Iterable):
            raise PassError(f"{name}: {passes!r} is not a list of passes")
        self.passes = tuple(_step(step, name) for step in passes)
        self.info = PassInfo(name, opt_level, tuple(required))
        KNOWN_PASSES.add(name)

    def transform(self, module: Module, context: PassContext) -> Module:
        for step in self.passes:
            if not context.pass_enabled(step.info):
                decide(step.info.name, "the whole module", context.why_not(step.info))
                continue
            for name in step.info.required:
                module = get_pass(name)(module)
            module = step(module)
        return module

    # --- orders of one's own ---

    @property
    def names(self) -> tuple[str, ...]:
        """Those of all passes, in order; of one that is made of passes its own, then theirs."""
        return tuple(place.step.info.name for place in self._places())

    def before(self, name: str, step: Any) -> Sequential:
        """The same passes, and one more before the first run of a pass."""
        return self._put(name, 0, lambda found: (as_pass(step), found))

    def after(self, name: str, step: Any) -> Sequential:
        """The same passes, and one more after the last run of a pass."""
        return self._put(name, -1, lambda found: (found, as_pass(step)))

    def without(self, name: str) -> Sequential:
        """The same passes but all runs of one, or the run that the name says."""
        return self._everywhere(name, lambda found: ())

    def replaced(self, name: str, step: Any) -> Sequential:
        """The same passes with another one for all runs of one, or for the run that the name says."""
        return self._everywhere(name, lambda found: (as_pass(step),))

    def with_step(self, place: Place, step: Pass) -> Sequential:
        """The same passes with another one in a place that :meth:`find` found in these."""
        return self._edited(place.path, lambda _: (step,))

    def placed(self, placements: Iterable[Placement], context: PassContext) -> Sequential:
        """With what a context places; runs are counted as they are at its level.  The one said last stands nearest."""
        made = self
        for p in placements:
            which = 0 if p.side == "before" else -1
            path = made.find(p.anchor, context)[which].path
            step = as_pass(p.step)
            made = made._edited(path, lambda old, s=step, w=which: (s, old) if w == 0 else (old, s))  # type: ignore[misc]
        return made

    def find(self, name: str, context: PassContext | None = None) -> list[Place]:
        """Where a pass stands: those that run, or where none does, all; :class:`PassError` where it does not."""
        wanted, hash_, number = str(name).partition("#")
        same = [place for place in self._places(context) if place.step.info.name == wanted]
        if not same:
            raise PassError(f"{self.info.name} has no pass {wanted!r}", hint=closest(wanted, sorted(set(self.names))))
        found = [place for place in same if place.runs] or same
        if not hash_:
            return found
        if not number.isdecimal() or not 1 <= int(number) <= len(found):
            hint = f"the runs are {', '.join(f'{wanted}#{n}' for n in range(1, len(found) + 1))}"
            raise PassError(f"{self.info.name} has no run {name!r}", hint=hint)
        return [found[int(number) - 1]]

    def _places(self, context: PassContext | None = None) -> Iterator[Place]:
        for i, step in enumerate(self.passes):
            runs = context is None or context.pass_enabled(step.info)
            yield Place((i,), step, runs)
            if isinstance(step, Sequential):
                inside = step._places(context)
                yield from (Place((i, *place.path), place.step, runs and place.runs) for place in inside)

    def _put(self, name: str, which: int, becomes: Callable[[Pass], tuple[Pass, ...]]) -> Sequential:
        return self._edited(self.find(name)[which].path, becomes)

    def _everywhere(self, name: str, becomes: Callable[[Pass], tuple[Pass, ...]]) -> Sequential:
        made = self
        for place in reversed(self.find(name)):
            made = made._edited(place.path, becomes)
        return made

    def _edited(self, path: tuple[int, ...], becomes: Callable[[Pass], tuple[Pass, ...]]) -> Sequential:
        """With what stands at a path replaced by what ``becomes`` makes of it."""
        at, rest = path[0], path[1:]
        old = self.passes[at]
        new = (old._edited(rest, becomes),) if rest and isinstance(old, Sequential) else becomes(old)
        passes = (*self.passes[:at], *new, *self.passes[at + 1 :])
        return Sequential(passes, self.info.opt_level, self.info.name, self.info.required)


def _step(given: Any, name: str) -> Pass:
    try:
        return as_pass(given)
    except PassError as error:
        error.message = f"{name}: {error.message}"
        raise


def get_pass(name: str) -> Pass:
    """A pass by its name, built with its defaults; :class:`PassError` where there is none."""
    if name not in PASSES:
        raise PassError(f"there is no pass {name!r}", hint=closest(name, sorted(PASSES)))
    try:
        return PASSES[name]()
    except TypeError as error:
        raise PassError(f"pass {name} needs arguments, so it cannot be run by name", hint="call it") from error
