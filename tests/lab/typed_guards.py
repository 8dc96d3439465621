"""Guards that the type checker misses when they are gone: without ``isinstance(x, Call)`` there is no ``x.op``."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from minitvm.lab.mutants import mutants

ROOT = Path(__file__).parents[2]
Guard = tuple[Path, int]
"""A file, and the number of a guard in it."""


def missed(guards: Iterable[Guard], cache: str | None = None) -> set[Guard]:
    """Those without which mypy complains of their file; one guard of each file is taken away at a time."""
    by_file: dict[Path, list[int]] = defaultdict(list)
    for path, number in guards:
        by_file[path].append(number)
    found: set[Guard] = set()
    with tempfile.TemporaryDirectory() as folder:
        for turn in zip_longest(*by_file.values()):
            gone = {path: number for path, number in zip(by_file, turn, strict=True) if number is not None}
            wrong = _complaints(gone, Path(folder), cache or folder)
            found |= {(path, number) for path, number in gone.items() if path.relative_to(ROOT).as_posix() in wrong}
    return found


def _complaints(gone: dict[Path, int], folder: Path, cache: str) -> set[str]:
    """Files of which mypy complains where their guards are gone."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", cache, "--no-error-summary", "--hide-error-context"]
    for at, (path, number) in enumerate(gone.items()):
        shadow = folder / f"{at}.py"
        shadow.write_text(removed(path.read_text(encoding="utf-8"), number), encoding="utf-8")
        command += ["--shadow-file", str(path.relative_to(ROOT)), str(shadow)]
    files = [str(path.relative_to(ROOT)) for path in gone]
    run = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return set(re.findall(r"^([^:\n]+\.py):\d+: error", run.stdout, re.MULTILINE))


def removed(source: str, number: int) -> str:
    """The text without a guard; comments, and so what the checker is told to ignore, stay."""
    mutant = mutants(source)[number]
    node, lines = mutant.node, [line.encode() for line in source.splitlines(keepends=True)]
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]  # type: ignore[attr-defined]
    stand_in = str(mutant.stand_in.value).encode()  # type: ignore[attr-defined]
    return b"".join([*lines[:first], head, b"(", stand_in, b")", tail, *lines[last + 1 :]]).decode()
