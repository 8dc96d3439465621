"""Every guard of every solution of the course against its grader, and of the compiler's own passes against their tests:

    python -m tests.lab.guards [chapter4 ...]
    python -m tests.lab.guards passes [share_rows.py ...] [--tests tests/passes/test_share_rows.py ...]

A guard that no check misses when it is gone is a missing check.  Guards are those of ``minitvm lab mutate``.
"""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any

from minitvm.lab.course import TITLES, chapter_of
from minitvm.lab.mutants import mutants, without
from tests.lab import own_guards

ROOT = pathlib.Path(__file__).parents[2]
SOLUTIONS = ROOT / "docs" / "course" / "solutions"
SPARED = {"chapter7": "what needs a machine by itself", "chapter8": "what needs a machine by itself"}


def survivors(chapter: str) -> tuple[int, list[str]]:
    """How many guards there are, and those that no check misses: line and text."""
    path = SOLUTIONS / f"{chapter}.py"
    source = path.read_text(encoding="utf-8")
    found = mutants(source)
    return len(found), [
        f"{path.name}:{mutant.line}: {mutant.removed}" for i, mutant in enumerate(found) if _is_full(chapter, source, i)
    ]


def _is_full(chapter: str, source: str, index: int) -> bool:
    """True if the solution has all points without this guard."""
    module = types.ModuleType(f"{chapter}_{index}")
    sys.modules[module.__name__] = module
    file = f"<{module.__name__}>"
    exec(compile(without(source, index), file, "exec"), vars(module))
    work: dict[str, Any] = vars(module)
    return all(o.passed for exercise in chapter_of(chapter).exercises for o in exercise.outcomes(work, file))


def main(arguments: list[str]) -> int:
    """How many guards nothing misses."""
    return of_passes(arguments[1:]) if arguments[:1] == ["passes"] else of_chapters(arguments)


def of_passes(arguments: list[str]) -> int:
    at = arguments.index("--tests") if "--tests" in arguments else len(arguments)
    files = own_guards.files_of(arguments[:at])
    count, left = own_guards.survivors(files, arguments[at + 1 :] or own_guards.TESTS)
    print(*left, sep="\n")
    print(f"{len(files)} files: {count - len(left)} of {count} guards are missed when they are gone, or spared")
    return len(left)


def of_chapters(chapters: list[str]) -> int:
    missing = 0
    for chapter in chapters or [name for name in TITLES if name not in SPARED]:
        count, left = survivors(chapter)
        print(
            f"{chapter}: {count - len(left)} of {count} guards are missed when they are gone",
            *left,
            sep="\n  ",
            flush=True,
        )
        missing += len(left)
    return missing


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
