"""Every guard of the compiler's passes against their tests: ``python -m tests.lab.guards passes [combine.py ...]``.

A guard is what ``minitvm lab mutate`` removes.  Of 1,200 each cannot have a process of its own: tests are collected
once, one child notes in which of them a guard decides (its value is not that of what stands in for it), and one more
child for each guard runs these, the quickest first, on functions whose code is exchanged.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import os
import pickle
import select
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

import pytest

import minitvm.passes
from minitvm.lab.mutants import Mutant, mutants, place, replaced
from tests.lab import typed_guards

ROOT = Path(__file__).parents[2]
PASSES = Path(minitvm.passes.__file__).parent
TESTS = ("tests/passes", "tests/lab/test_verify_rule.py")
PATIENCE = 5.0
"""Times the CPU seconds of a test, and ten: what takes longer hangs."""
LONGEST = 900.0
"""Seconds for all tests of a guard: what neither ends nor computes hangs, too."""
T = TypeVar("T")
Guard = tuple[Path, int]
"""A file, and the number of a guard in it."""


# --- a file with other code, in a process that has imported it --------------------------------------------------------


def exchange(path: Path, source: str, tree: ast.Module, **names: Any) -> int:
    """Give the functions of a file the code that they have in another tree, which may use ``names``; how many."""
    old, new = (compile(one, str(path), "exec", dont_inherit=True) for one in (ast.parse(source), tree))
    codes = dict(_codes(new))
    changed = {code: codes[key] for key, code in _codes(old) if key in codes and codes[key] != code}
    gc.unfreeze()  # what tests/conftest.py has set aside
    count = 0
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and found.__code__.co_filename == str(path) and found.__code__ in changed:
            found.__globals__.update(names)
            found.__code__ = changed[found.__code__]
            count += 1
    return count


def _codes(code: CodeType, number: int = 0) -> Iterator[tuple[tuple[str, int, int], CodeType]]:
    """Those of all functions inside, by name, line and number."""
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            key = inner.co_qualname, inner.co_firstlineno
            yield (*key, number + seen[key]), inner
            yield from _codes(inner, 100 * seen[key])
            seen[key] += 1


def take_away(path: Path, source: str, mutant: Mutant) -> int:
    """Take one guard from the functions that hold it; how many there are.  What stands in for it has its names as well,
    so that functions keep the variables that they close over."""
    assert isinstance(mutant.node, ast.expr) and isinstance(mutant.stand_in, ast.Constant)
    both = ast.Or() if mutant.stand_in.value else ast.And()
    kept = dataclasses.replace(mutant, stand_in=ast.BoolOp(both, [mutant.stand_in, mutant.node]))
    return exchange(path, source, replaced(source, kept))


class _Noting(ast.NodeTransformer):
    """Each guard goes through ``_noted``, with its number and its stand-in."""

    def __init__(self, found: Sequence[Mutant]) -> None:
        self.numbers = {place(mutant.node): (i, mutant.stand_in) for i, mutant in enumerate(found)}

    def visit(self, node: ast.AST) -> Any:
        known = self.numbers.get(place(node))
        node = self.generic_visit(node)
        if known is None:
            return node
        given = [ast.Constant(known[0]), known[1], node]
        return ast.copy_location(ast.Call(ast.Name("_noted", ast.Load()), given, []), node)


# --- children ---------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], T], seconds: float | None = None) -> T | None:
    """What a function returns in a process forked from this one; ``None`` where it dies, or takes longer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(reading)
        try:
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    received, end = b"", None if seconds is None else time.monotonic() + seconds
    while select.select([reading], [], [], None if end is None else max(0.0, end - time.monotonic()))[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            break
        received += part
    os.close(reading)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return pickle.loads(received) if received else None


def run(items: Sequence[pytest.Item], seconds: Sequence[float]) -> str:
    """The first of them that fails, or nothing; what takes far longer than its CPU seconds ends the process."""
    for item, following, usual in zip(items, [*items[1:], None], seconds, strict=True):
        signal.setitimer(signal.ITIMER_PROF, 10 + PATIENCE * usual)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            return item.nodeid
    return ""


@dataclasses.dataclass
class Seen:
    """What a run of all tests showed: CPU seconds of each, and the tests in which a guard decides, by their numbers."""

    seconds: list[float]
    decides: dict[Guard, set[int]]


def note(files: Sequence[Path], noted: Callable[[Path, int, bool, Any], Any]) -> None:
    """From now on each guard asks ``noted``: the file, its number, its stand-in, its value."""
    for path in files:
        source = path.read_text(encoding="utf-8")
        tree = ast.fix_missing_locations(_Noting(mutants(source)).visit(ast.parse(source)))
        exchange(path, source, tree, _noted=functools.partial(noted, path))


def see(items: Sequence[pytest.Item], files: Sequence[Path]) -> Seen:
    found, current = Seen([], defaultdict(set)), 0

    def noted(path: Path, number: int, stand_in: bool, value: Any) -> Any:
        if bool(value) != stand_in:
            found.decides[path, number].add(current)
        return value

    note(files, noted)
    for current, item in enumerate(items):
        start = time.process_time()
        following = items[current + 1] if current + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        found.seconds.append(time.process_time() - start)
        assert not item.session.testsfailed, f"{item.nodeid} fails as it is"
    return found


# --- the campaign -----------------------------------------------------------------------------------------------------


class Guards:
    """A plugin of pytest that runs the tests in its own way."""

    def __init__(self, files: Sequence[Path], only: Callable[[Guard], bool], jobs: int) -> None:
        self.files, self.only, self.jobs = files, only, jobs
        self.count, self.left = 0, dict[Guard, str]()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        seen = in_child(lambda: see(session.items, self.files))
        assert seen is not None, "the tests fail as they are"
        guards = [(path, i) for path in self.files for i in range(len(_guards(path))) if self.only((path, i))]
        with ThreadPoolExecutor(self.jobs) as pool:
            judged = pool.map(lambda guard: self._judge(guard, session.items, seen), guards)
            for guard, said in zip(guards, judged, strict=True):
                self.count += 1
                if said:
                    self.left[guard] = said
                    print(f"  survives: {said}", flush=True)
        return True

    def _judge(self, guard: Guard, tests: Sequence[pytest.Item], seen: Seen) -> str:
        """What is to be said of a guard that no test misses."""
        path, mutant = guard[0], _guards(guard[0])[guard[1]]
        chosen = sorted(seen.decides.get(guard, ()), key=lambda i: seen.seconds[i])
        items, seconds = [tests[i] for i in chosen], [seen.seconds[i] for i in chosen]
        source = path.read_text(encoding="utf-8")

        def work() -> str:
            try:
                return run(items, seconds) if take_away(path, source, mutant) else "executed while it is imported"
            except BaseException as error:
                return f"{type(error).__name__}: {error}"

        missed = in_child(work, LONGEST) if items else ""
        return "" if missed != "" else f"{path.name}:{mutant.line}: {mutant.removed}  (decides in {len(items)} tests)"


@functools.cache
def _guards(path: Path) -> list[Mutant]:
    return mutants(path.read_text(encoding="utf-8"))


def files_of(names: Sequence[str]) -> list[Path]:
    """Those of the passes by their names, or all."""
    found = sorted(PASSES.rglob("*.py"))
    return [path for path in found if not names or path.name in names or str(path.relative_to(PASSES)) in names]


def survivors(
    files: Sequence[Path],
    tests: Sequence[str] = TESTS,
    only: Callable[[Guard], bool] = lambda guard: True,
    jobs: int = 2,
) -> tuple[int, list[str]]:
    """How many guards there are, and what is wrong with some: no test misses them, nor does the type checker, and
    nobody says why; or it is said of one that is missed."""
    plugin = Guards(files, only, jobs)
    given = [str(ROOT / test) for test in tests]
    pytest.main([*given, "-q", "-s", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"], [plugin])
    left = plugin.left.keys() - typed_guards.missed(plugin.left)
    reasons, kept = spared(), {name(guard) for guard in left}
    unsaid = [said for guard, said in plugin.left.items() if guard in left and name(guard) not in reasons]
    wrong = [f"nothing misses {said}" for said in unsaid]
    known = {name((path, i)) for path in files for i in range(len(_guards(path))) if only((path, i))}
    return plugin.count, [*wrong, *(f"{one} is missed, but spared" for one in reasons if one in known - kept)]


def name(guard: Guard) -> str:
    """A guard as ``spared.txt`` has it: its file, and its text."""
    return f"{guard[0].relative_to(PASSES).as_posix()}: {_guards(guard[0])[guard[1]].removed}"


def spared() -> dict[str, str]:
    """Guards that no test need miss, and why."""
    found, reason = dict[str, str](), ""
    for line in (Path(__file__).parent / "spared.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line:
            found[line] = reason
    return found
