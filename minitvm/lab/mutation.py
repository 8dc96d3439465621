"""Mutation testing: whether tests notice that a pass forgets one of its preconditions."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import minitvm
from minitvm.errors import ConfigError, no_file
from minitvm.lab import mutants as program
from minitvm.lab.mutants import mutants
from minitvm.passes.manager import PASSES, closest

OnProgress = Callable[[int, int, str], None]
PATIENCE = 4.0
"""Times as long as the tests take otherwise, and 20 seconds: a mutant that takes longer hangs."""


@dataclass(frozen=True)
class Outcome:
    """A precondition, by its line and text, and whether its absence was noticed: ``how`` in words."""

    line: int
    removed: str
    noticed: bool
    how: str


@dataclass(frozen=True)
class Mutation:
    """What came of it: a file, its tests, one outcome for each precondition."""

    path: Path
    tests: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def survivors(self) -> tuple[Outcome, ...]:
        """Preconditions that no test misses."""
        return tuple(outcome for outcome in self.outcomes if not outcome.noticed)

    def __str__(self) -> str:
        lines = [f"  {self.path.name}:{o.line}: {o.removed}" for o in self.survivors]
        noticed = len(self.outcomes) - len(self.survivors)
        head = f"{self.path.name}: {noticed} of {len(self.outcomes)} preconditions are missed when they are gone"
        return "\n".join([head, *(["nobody misses"] * bool(lines)), *lines])


def mutate(
    what: str,
    tests: Sequence[str] = (),
    jobs: int = 0,
    only: tuple[int, int] | None = None,
    on_progress: OnProgress | None = None,
) -> Mutation:
    """Run ``tests`` (pytest's arguments; by default those of a checkout that name the pass) with one precondition of a
    pass gone after another, each in a process of its own, ``jobs`` at a time.

    ``what`` is a pass's name, or a path.  ``only`` a first and a last line.  No file is changed.
    :class:`ConfigError` where there is no such pass, nothing to remove, no tests, or where these fail as it is.
    """
    path = _path(what)
    chosen = tuple(tests) or _tests_of(what, path)
    source = path.read_text(encoding="utf-8")
    numbered = [(i, m) for i, m in enumerate(mutants(source)) if only is None or only[0] <= m.line <= only[1]]
    if not numbered:
        raise ConfigError(f"{path.name} has no preconditions: no guard, no 'and'")
    start = time.monotonic()
    status = _run(path, -1, chosen, None)
    if status != 0:
        raise ConfigError(f"the tests fail as it is (pytest's exit status is {status})", where=list(chosen))
    patience, outcomes = 20 + PATIENCE * (time.monotonic() - start), list[Outcome]()
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        statuses = pool.map(lambda item: _run(path, item[0], chosen, patience), numbered)
        for (_, mutant), found in zip(numbered, statuses, strict=True):
            how = {None: "the tests hang", 0: "survives", 1: "a test fails"}.get(found, "the tests cannot run")
            outcomes.append(Outcome(mutant.line, mutant.removed, found != 0, how))
            if on_progress is not None:
                on_progress(len(outcomes), len(numbered), f"line {mutant.line}")
    return Mutation(path, chosen, tuple(outcomes))


def _run(path: Path, index: int, tests: Sequence[str], seconds: float | None) -> int | None:
    """pytest's exit status; ``None`` where it took longer than that."""
    environment = {**os.environ, "MINITVM_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", program.__name__, str(path), str(index), *tests]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def _path(what: str) -> Path:
    if what.endswith(".py"):
        path = Path(what).resolve()
        if not path.is_file():
            raise ConfigError(no_file(path))
        return path
    import minitvm.passes  # noqa: F401  (registers them)

    if what not in PASSES:
        raise ConfigError(f"there is no pass {what!r}", hint=closest(what, sorted(PASSES)))
    return Path(inspect.getfile(PASSES[what])).resolve()


def _root() -> Path | None:
    """The checkout, where minitvm is used from one."""
    root = Path(minitvm.__file__).parents[1]
    return root if (root / "tests" / "passes").is_dir() else None


def _tests_of(what: str, path: Path) -> tuple[str, ...]:
    """The files of tests of passes that name the pass, or the file."""
    root = _root()
    folder = root / "tests" / "passes" if root and path.is_relative_to(root) else path.parent
    name = path.stem if what.endswith(".py") else what
    found = [str(test) for test in sorted(folder.glob("test_*.py")) if name in test.read_text(encoding="utf-8")]
    if not found:
        raise ConfigError(f"no tests name {name}", hint="say which: --tests test_my_pass.py")
    return tuple(found)
