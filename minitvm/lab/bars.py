"""Progress where somebody watches: a bar in a notebook, or in a terminal; else nothing.

with minitvm.lab.progress("compiling") as on_progress:
    library = minitvm.compile("model.onnx", on_progress=on_progress)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from minitvm.driver.kernels import Progress as OnProgress


@contextmanager
def progress(title: str) -> Iterator[OnProgress]:
    """What ``on_progress`` of builds, tuning and profiles takes; its bar is gone when it is done."""
    shell = _notebook()
    with _in_cell(title) if shell is not None else in_terminal(title, Console(stderr=True)) as on_progress:
        yield on_progress


@contextmanager
def in_terminal(title: str, console: Console) -> Iterator[OnProgress]:
    """A bar that counts kernels, or runs; silent where the console is no terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def on_progress(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total)

        yield on_progress


def _notebook() -> Any | None:
    """The shell of a notebook's kernel; a terminal's IPython has no cells to show a bar in."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") else None


@contextmanager
def _in_cell(title: str) -> Iterator[OnProgress]:
    """By HTML that is replaced: needs no widgets, which not every notebook has."""
    cell: Any = importlib.import_module("IPython.display")  # which is there, as a notebook is
    handle = cell.display(cell.HTML(escape(title)), display_id=True)

    def on_progress(done: int, total: int, name: str) -> None:
        bar = f'<progress max="{int(total)}" value="{int(done)}"></progress>'
        handle.update(cell.HTML(f"{escape(title)} {bar} {int(done)}/{int(total)} {escape(name)}"))

    try:
        yield on_progress
    finally:
        handle.update(cell.HTML(""))
