"""The part ``passes`` of a check: the module before and after every pass, through the operators' references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from minitvm.errors import MiniTVMError, PassError
from minitvm.ir.expr import Module
from minitvm.passes.compare import Comparison
from minitvm.passes.draws import Draw
from minitvm.passes.instrument import PassInfo, PassInstrument
from minitvm.passes.manager import Pass, PassContext
from minitvm.passes.verify import NotCompared, NumbersDiffer, Verify, compare_numbers, draws_of

Pipeline = Callable[[Module, PassInstrument], Module]
"""Runs passes over a module, watched."""
Place = tuple[tuple[str, int], ...]
"""Of a run of a pass: the passes around it and itself, each with how many of its name ran before it in there."""


def running(step: Pass, opt_level: int = 3, **context: Any) -> Pipeline:
    """One pass as a pipeline."""

    def run(module: Module, watch: PassInstrument) -> Module:
        with PassContext(**{"opt_level": opt_level, **context, "instruments": [watch]}):
            return step(module)

    return run


def named(place: Place) -> str:
    """``FoldScaleAxis/FoldConstant``, ``FoldConstant (3rd run)``: as a reader finds it."""
    inner = place[1:] if len(place) > 1 else place
    # the outermost is the pipeline, whatever it is called
    return "/".join(f"{name} (run {number + 1})" if number else name for name, number in inner)


@dataclass
class PassProof:
    """What one run of a pass was compared on; ``error`` says what is wrong with it."""

    place: Place
    before: Module
    after: Module | None = None
    found: Comparison | None = None
    error: MiniTVMError | None = None
    draw: Draw | None = None

    @property
    def kind(self) -> str:
        """What a smaller module has to show, too."""
        if self.error is None:
            return ""
        differs = " changed result" in self.error.message or " changed the number" in self.error.message
        return "differs" if differs else type(self.error).__name__


@dataclass
class _Frame:
    place: Place
    before: Module
    seen: Counter[str] = field(default_factory=Counter)
    last: Module | None = None
    """The result of the last pass that ran inside."""


class Prover(Verify):
    """The same as :class:`Verify`, but goes on: ``proofs`` has what came of every pass that changed something.

    ``only``: the one pass that runs (:func:`named`), with those that it is in.  ``draws``: others than a pass's own.
    ``known_wrong``: passes that need not be compared any more.
    """

    def __init__(self, only: str = "", draws: Sequence[Draw] | None = None, known_wrong: Container[str] = ()) -> None:
        super().__init__()
        self.proofs: list[PassProof] = []
        self._only, self._draws, self._known_wrong = only, draws, known_wrong
        self._frames: list[_Frame] = []
        self._seen: Counter[str] = Counter()

    @property
    def wrong(self) -> list[PassProof]:
        return [proof for proof in self.proofs if proof.error is not None]

    def should_run(self, module: Module, info: PassInfo) -> bool:
        place = self._next(info.name)
        here, there = named(place) + "/", self._only + "/"
        runs = not self._only or len(place) == 1 or here.startswith(there) or there.startswith(here)
        if not runs:
            self._count(info.name)
        return runs

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        super().run_before_pass(module, info)
        place = self._next(info.name)
        self._count(info.name)
        self._frames.append(_Frame(place, module))

    def _next(self, name: str) -> Place:
        around = self._frames[-1] if self._frames else None
        seen = around.seen if around else self._seen
        return (*(around.place if around else ()), (name, seen[name]))

    def _count(self, name: str) -> None:
        (self._frames[-1].seen if self._frames else self._seen)[name] += 1

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        frame = self._frames.pop()
        while frame.place[-1][0] != info.name:  # one that raised, and whose error was caught
            frame = self._frames.pop()
        if self._frames:
            self._frames[-1].last = module
        proof = PassProof(frame.place, frame.before, module)
        if frame.last is module:  # those inside have been compared
            self._running.end(info)
            return
        self._proof = proof
        try:
            super().run_after_pass(module, info)
        except MiniTVMError as error:
            proof.error = error
        if proof.error is not None or proof.found is not None:
            self.proofs.append(proof)

    def _compare(self, before: Module, after: Module, info: PassInfo) -> None:
        proof, what = self._proof, f"pass {info.name}"
        if named(proof.place) in self._known_wrong:
            return
        rtol, draws = self._rtol_for(info), self._draws or draws_of(info)
        try:
            proof.found = compare_numbers(before, after, what, rtol, self.seed, draws, self._known, info.exactness)
        except NumbersDiffer as error:
            proof.found, proof.draw = error.found, error.found.draw
            raise

    def raised(self, error: MiniTVMError) -> None:
        """A pass that raised: the innermost that had begun."""
        if self._frames:
            frame = self._frames[-1]
            self.proofs.append(PassProof(frame.place, frame.before, error=error))


def prove(pipeline: Pipeline, module: Module, prover: Prover) -> tuple[Module | None, Prover]:
    """The module after all passes (``None`` where one raised), and what came of each."""
    try:
        return pipeline(module, prover), prover
    except NotCompared:
        return None, prover
    except MiniTVMError as error:
        if not isinstance(error, PassError) or not prover.wrong:
            prover.raised(error)
        if not prover.wrong:
            raise
        return None, prover


def proof_of(pipeline: Pipeline, module: Module, place: str, draws: Sequence[Draw] | None = None) -> PassProof | None:
    """What came of one pass alone; ``None`` where it is right, or leaves the module as it is."""
    _, prover = prove(pipeline, module, Prover(place, draws))
    return next((proof for proof in prover.wrong if named(proof.place) == place), None)
