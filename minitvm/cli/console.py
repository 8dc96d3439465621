"""Terminal output: results on stdout, progress and complaints on stderr; nothing moves where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

FILE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe: enough that no row is wrapped."""

stdout = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
stderr = Console(stderr=True, highlight=False)


def table(*headings: str, title: str | None = None) -> Table:
    """Columns under headings: those that name a unit or a share are figures, to the right."""
    found = Table(box=None, pad_edge=False, show_header=bool(headings), title=title, title_justify="left")
    for heading in headings:
        found.add_column(heading, justify="right" if heading.endswith(("ms", "spread")) else "left")
    return found


OnProgress = Callable[[int, int, str], None]


def say(text: str) -> None:
    """Text as it is; a long line is the terminal's to wrap."""
    stdout.print(text, soft_wrap=True)


@contextmanager
def compiling(title: str) -> Iterator[OnProgress]:
    """A bar that counts kernels; silent where stderr is not a terminal.  Gone when it is done."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task(title, total=None)

        def on_progress(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total)

        yield on_progress
