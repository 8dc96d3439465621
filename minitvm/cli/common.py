"""What commands share: the terminal and files.  Results go to stdout, progress and complaints to stderr; nothing moves
where nobody watches."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from minitvm.config import version
from minitvm.errors import ConfigError, InputError, no_file
from minitvm.lab.bars import in_terminal

FILE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe: enough that no row is wrapped."""

stdout = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
stderr = Console(stderr=True, highlight=False)


_FIGURES = ("ms", "us", "spread", "MFLOP", "MB", "peak")


def table(*headings: str, title: str | None = None) -> Table:
    """Columns under headings: those that name a unit or a share are figures, to the right."""
    found = Table(box=None, pad_edge=False, show_header=bool(headings), title=title, title_justify="left")
    for heading in headings:
        found.add_column(heading, justify="right" if heading.endswith(_FIGURES) else "left")
    return found


OnProgress = Callable[[int, int, str], None]


def say(text: str) -> None:
    """Text as it is; a long line is the terminal's to wrap."""
    stdout.print(text, soft_wrap=True)


def be_quiet() -> None:
    """No notes, warnings and bars: what stdout gets is said, and errors."""
    stderr.quiet = True


def say_json(result: Mapping[str, Any], subject: object = None, ok: bool = True) -> None:
    """What ``--json`` prints, of every command: who says it, of what, whether all is well, and the command's own
    ``result``.  Seconds and bytes; numbers that JSON has none of are ``null``."""
    command = click.get_current_context().command_path.partition(" ")[2]
    about = None if subject is None else str(subject)
    form = {"minitvm": version(), "command": command, "subject": about, "ok": ok, "result": result}
    say(json.dumps(_plain(form), indent=1, ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Of numpy's values Python's, of what JSON has no number for nothing."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, np.ndarray)):
        return [_plain(one) for one in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


@contextmanager
def compiling(title: str) -> Iterator[OnProgress]:
    """A bar that counts kernels, or runs; silent where stderr is not a terminal.  Gone when it is done."""
    with in_terminal(title, stderr) as on_progress:
        yield on_progress


def gathered(feeds: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, Any]:
    """Arrays ``x[0]``, ``x[1]``, ... as the sequence ``x``, where that is an input's name."""
    known, found = set(names), dict[str, Any]()
    for name, array in feeds.items():
        sequence = name.rpartition("[")[0]
        if name in known or sequence not in known:
            found[name] = array
        else:
            found.setdefault(sequence, []).append(array)
    return found


def _array(npy: bytes) -> np.ndarray:
    return np.asarray(np.lib.format.read_array(io.BytesIO(npy), allow_pickle=False))


def beside(model: Path, suffix: str) -> Path:
    """The path that a command writes to unless it is told; :class:`InputError` where there is no model."""
    if not model.exists():
        raise InputError(no_file(model))
    return model.parent / f"{model.stem}{suffix}"


def output(path: Path, *read: Path | None) -> Path:
    """The path, where a file can be written there that is none of those that are ``read``; else :class:`ConfigError`,
    before anything is compiled for it."""
    for one in read:
        if one is not None and path.exists() and one.exists() and path.samefile(one):
            raise ConfigError(f"{path} is what is read: it would be written over", hint="-o names another file")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, not a file to write", hint="name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written: permission denied", hint="name a file that you may write")
    return path


def output_folder(path: Path | None) -> None:
    """:class:`ConfigError` where a folder to write to cannot be made, before anything is compiled for it."""
    if path is not None and path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, not a folder to write to", hint="name a folder, or what is to be one")


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes as ``numpy.savez`` does, to this path exactly; arrays may have the names of its own parameters."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name; :class:`InputError` where the file is not an ``.npz``."""
    hint = "write one with numpy.savez('inputs.npz', NAME=array, ...)"
    if not path.is_file():
        raise InputError(no_file(path), hint=hint)
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz of arrays", hint=hint)
    try:
        with zipfile.ZipFile(path) as archive:  # np.load mixes up inputs called "x" and "x.npy"
            return {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}
    except Exception as error:  # what zipfile, zlib, numpy and its tokenizer make of damaged bytes is no short list
        raise InputError(f"{path} is not an .npz of arrays", where=[str(error)], hint=hint) from None
