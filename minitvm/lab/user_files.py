"""Python files of the user's: what they define."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from minitvm.errors import InputError, no_file
from minitvm.passes import Pass, Rule


def passes_of(path: Path) -> list[Any]:
    """The list ``passes`` of a Python file; else the passes and rules that it makes, in order.

    :class:`InputError` where the file cannot be read or run, or has none.
    """
    hint = "a list 'passes', or passes and rules made with @rule, @function_pass, ...: docs/write-a-pass.md"
    names = names_of(path, hint)
    found = names.get("passes", [value for value in names.values() if isinstance(value, (Pass, Rule))])
    if not isinstance(found, (list, tuple)) or not found:
        raise InputError(f"{path} has no passes", hint=hint)
    return list(dict.fromkeys(found))


def names_of(path: Path, hint: str, run_name: str = "<run_path>") -> dict[str, Any]:
    """What a Python file defines, once it ran; :class:`InputError` where it cannot be read or run."""
    if not path.is_file():
        raise InputError(no_file(path), hint=hint)
    try:
        return runpy.run_path(str(path), run_name=run_name)
    except Exception as error:  # whatever a user's file raises
        raise InputError(
            f"{path} cannot be run: {type(error).__name__}: {error}", where=[_place(path, error)]
        ) from error


def _place(path: Path, error: Exception) -> str:
    """The last line of the file that was running."""
    lines, trace = [getattr(error, "lineno", None)], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f"{path}:{next((line for line in reversed(lines) if line), 1)}"
