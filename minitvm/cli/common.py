"""What commands share: options, arrays, and the terminal.  Results go to stdout, progress and complaints to stderr;
nothing moves where nobody watches."""

from __future__ import annotations

import ast
import functools
import io
import pathlib
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, cast

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from minitvm.errors import ConfigError, InputError, LibraryError, UnknownValueError, did_you_mean, listing
from minitvm.frontend import ValueDescription, describe_onnx
from minitvm.lab.bars import in_terminal
from minitvm.models import compile, with_values
from minitvm.passes.manager import CONFIG_KEYS, PassContext
from minitvm.runtime.library import Library, load
from minitvm.session import InferenceSession

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


@contextmanager
def compiling(title: str) -> Iterator[OnProgress]:
    """A bar that counts kernels, or runs; silent where stderr is not a terminal.  Gone when it is done."""
    with in_terminal(title, stderr) as on_progress:
        yield on_progress


Command = TypeVar("Command", bound=Callable[..., Any])

SUFFIX = ".mtvm"
PATH = click.Path(path_type=pathlib.Path)

model = click.argument("model", type=PATH)
_target = click.option(
    "--target",
    default="llvm",
    show_default=True,
    help="Target string: 'llvm -mcpu=skylake-avx512', 'cuda', ...",
)
opt_level = click.option(
    "-O", "--opt-level", type=click.IntRange(0, 3), default=3, show_default=True, help="Optimization level."
)
device = click.option(
    "--device", default=0, show_default=True, type=click.IntRange(0), help="Number of the GPU, for target 'cuda'."
)
threads = click.option(
    "-t", "--threads", type=click.IntRange(0), default=0, help="Threads to run on; 0 (the default) is one a core."
)


class Named(click.ParamType):  # type: ignore[type-arg]
    """``NAME:...``: a name, and what ``parse`` makes of what follows it."""

    def __init__(self, rest: str, parse: Callable[[str], Any], example: str) -> None:
        self.name, self.parse, self.example = f"NAME:{rest}", parse, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        name, colon, text = str(value).rpartition(":")
        try:
            if not colon:
                raise ValueError
            return name, self.parse(text)
        except (ValueError, SyntaxError):
            self.fail(f"{value!r} is not {self.name}; write for example {self.example}", param, ctx)


def _dims(text: str) -> list[int]:
    return [int(d) for d in text.split("x")] if text else []


def _numbers(text: str) -> np.ndarray:
    return np.array([ast.literal_eval(n) for n in text.split(",")] if text else [])


_shapes = click.option(
    "--shape",
    "shapes",
    type=Named("DIMS", _dims, "data:1x3x224x224"),
    multiple=True,
    help="Shape of an input whose dimensions the model leaves open, such as data:1x3x224x224; needed where more than a"
    " batch is open.  Repeatable; of one input again,"
    " a library for several shapes, the first of each input with the first of the others.",
)


class Setting(click.ParamType):  # type: ignore[type-arg]
    """``NAME=VALUE``: an option of :class:`PassContext`."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        name, equals, text = str(value).partition("=")
        kind = CONFIG_KEYS[name].type if name in CONFIG_KEYS else str
        try:
            if not equals or kind not in (bool, int, str):
                raise ValueError
            return name, {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            self.fail(f"{value!r} is not NAME=VALUE; write for example cuda.allow_tf32=true", param, ctx)


_config = click.option(
    "--config",
    type=Setting(),
    multiple=True,
    help="An option of passes and templates, such as cuda.allow_tf32=true or minitvm.records=FILE.  Repeatable.",
)


_values = click.option(
    "--value",
    "values",
    type=Named("VALUES", _numbers, "axes:0,1"),
    multiple=True,
    help="Value of an input that shapes depend on, such as axes:0,1; no input of the library then.  Repeatable.",
)


trusted_keys = click.option(
    "--trusted-key",
    "trusted_keys",
    type=PATH,
    multiple=True,
    help="Public key (PEM): a library must be signed by it.  Repeatable: by one of them.",
)


def require_model(path: pathlib.Path) -> None:
    """:class:`ConfigError` where a model's way is asked of a library."""
    if path.suffix == SUFFIX:
        raise ConfigError("a library keeps its code, not the way to it", hint="give the .onnx file it was made from")


@dataclass(frozen=True)
class Chosen:
    """How a model is compiled, as the shared options say."""

    target: str
    opt_level: int
    threads: int | None
    several: tuple[dict[str, list[int]], ...]
    """Shapes by input; more than once only where a library is saved."""
    values: dict[str, np.ndarray]
    trusted_keys: tuple[pathlib.Path, ...] = ()

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The one set of shapes."""
        if len(self.several) > 1:
            raise ConfigError(
                "--shape is given several times for one input", hint="only 'compile' takes several shapes"
            )
        return self.several[0]

    def for_feeds(self, model: pathlib.Path, feeds: Mapping[str, np.ndarray] | None) -> Chosen:
        """Open inputs whose shapes are not given take those of the arrays."""
        if feeds is None or model.suffix == SUFFIX:
            return self
        named = {v.name: list(feeds[v.name].shape) for v in _open_inputs(model) if v.name in feeds}
        return replace(self, several=({**named, **self.shapes},))

    def save(self, model: pathlib.Path, path: pathlib.Path, key: pathlib.Path | None, strict: bool) -> Library:
        """Compiles a model, or loads a library, and saves it; for all shapes of the model where none are given."""
        if model.suffix == SUFFIX or (len(self.several) == 1 and (self.shapes or not _open_inputs(model))):
            library = self.library(model, strict=strict)
            library.save(path, key)
            return library
        values = as_declared(model, self.values)
        with compiling(f"compiling {model.name}") as progress:
            how: dict[str, Any] = {"num_threads": self.threads, "opt_level": self.opt_level, "on_progress": progress}
            session = InferenceSession(model, target=self.target, strict=strict, **how)
            for shapes in self.several if self.several[0] else ():
                session.prepare(completed(model, shapes), values)
            try:
                session.save(path, key)
            except LibraryError:
                if not session.libraries and session.symbolic is not None:
                    named = {value.name: value.shape for value in _open_inputs(model)}
                    raise _open(named, model, session.symbolic.reason) from None
                raise
        return load(path)

    def _loaded(self, path: pathlib.Path, feeds: Mapping[str, np.ndarray] | None) -> Library:
        """A saved library for the shapes and values that are given, or those of ``feeds``."""
        library = load(path, self.trusted_keys or None)
        if not library.artifact.is_open and not library.others:
            return library
        arrays = {name: feeds[name].shape for name in library.shapes[0] if feeds and name in feeds}
        return library.for_shapes(self.shapes or arrays, self.values or feeds)

    def library(
        self,
        path: pathlib.Path,
        trace: bool = False,
        strict: bool = False,
        feeds: Mapping[str, np.ndarray] | None = None,
        passes: Sequence[Any] = (),
    ) -> Library:
        """A saved library, loaded; or a model, compiled under a progress bar, after ``passes`` of one's own.

        Values that shapes depend on are those of the options, else those of ``feeds``.
        """
        if path.suffix == SUFFIX:
            return self._loaded(path, feeds)
        if self.trusted_keys:
            raise ConfigError(
                f"{path.name} is no library: only libraries are signed", hint="minitvm compile --sign KEY"
            )
        main = (path, self.target, self.opt_level, completed(path, self.shapes))
        how: dict[str, Any] = {"num_threads": self.threads, "trace": trace, "strict": strict, "passes": passes}

        def compiled(values: dict[str, np.ndarray]) -> Library:
            with compiling(f"compiling {path.name}") as progress:
                return compile(*main, value_dict=values, on_progress=progress, **how)

        try:
            return with_values(compiled, as_declared(path, self.values), feeds or {})
        except UnknownValueError as error:
            raise _with_option(error) from None


def compiles(command: Command) -> Command:
    """Adds the options that say how a model is compiled; the command gets them as ``chosen``."""

    @functools.wraps(command)
    def collected(
        target: str,
        opt_level: int,
        threads: int,
        shapes: Any,
        values: Any,
        config: Any,
        trusted_keys: Any = (),
        **own: Any,
    ) -> Any:
        chosen = Chosen(target, opt_level, threads or None, _several(shapes), dict(values), trusted_keys)
        with PassContext(config=dict(config)):
            return command(chosen=chosen, **own)

    for option in (_config, _values, _shapes, threads, opt_level, _target):
        collected = option(collected)
    return cast(Command, collected)


def _several(given: Sequence[tuple[str, list[int]]]) -> tuple[dict[str, list[int]], ...]:
    """One set of shapes, or as many as an input has; an input with one shape has it in all of them."""
    found: dict[str, list[list[int]]] = {}
    for name, shape in given:
        found.setdefault(name, []).append(shape)
    count = max(map(len, found.values()), default=1)
    for name, shapes in found.items():
        if len(shapes) not in (1, count):
            raise ConfigError(
                f"--shape gives {len(shapes)} shapes for {name!r}, and {count} for another input",
                hint="give every input one shape, or as many as the others",
            )
    return tuple({name: shapes[i % len(shapes)] for name, shapes in found.items()} for i in range(count))


OpenDim: TypeAlias = int | str | None
"""A dimension: its size, or the name that the model gives it, if any."""


def _open_inputs(path: pathlib.Path) -> list[ValueDescription]:
    return [v for v in describe_onnx(path).inputs if not _is_known(v.shape)]


def completed(path: pathlib.Path, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The shapes that are given, and those of other open inputs: what dimensions of the same name have, and 1 for a
    batch where nothing more is open.  :class:`ConfigError` names all inputs of which more is."""
    inputs = {value.name: value.shape for value in describe_onnx(path).inputs}
    for name in shapes:
        if name not in inputs:
            hint = did_you_mean(name, inputs, most=3) or f"inputs: {listing(inputs)}"
            raise ConfigError(f"--shape names {name!r}, which is no input of {path.name}", hint=hint)
    pairs = (pair for name, shape in shapes.items() for pair in zip(inputs[name], shape, strict=False))
    sizes = {dim: size for dim, size in pairs if isinstance(dim, str)}
    missing = [value for value in _open_inputs(path) if value.name not in shapes]
    rest = {v.name: [sizes.get(d, d) if isinstance(d, str) else d for d in v.shape] for v in missing}
    left = {name: shape for name, shape in rest.items() if not _is_known(shape)}
    if left and not _is_batch(left.values()):
        raise _open(left, path)
    if left:
        stderr.print(f"a batch of 1: {' '.join(_example(*one) for one in left.items())} says another", markup=False)
    known = {name: [d if isinstance(d, int) else 1 for d in shape] for name, shape in rest.items()}
    return {**shapes, **known}


def _is_known(shape: Iterable[OpenDim]) -> bool:
    return all(isinstance(d, int) for d in shape)


def _is_batch(shapes: Iterable[Sequence[OpenDim]]) -> bool:
    """Whether all that is open is one leading dimension, not the length of mere vectors."""
    found = list(shapes)
    return all(_is_known(s[1:]) for s in found) and len({s[0] for s in found}) == 1 and any(s[1:] for s in found)


def _open(shapes: Mapping[str, Sequence[OpenDim]], path: pathlib.Path, why: str = "") -> ConfigError:
    """Open dimensions are the command line's business: the hint is an option, not a Python argument."""
    what = " and ".join(f"input {name!r} open: {list(shape)}" for name, shape in shapes.items())
    return ConfigError(
        f"{path.name} leaves dimensions of {what}",
        where=[why] if why else [],
        hint="give them, for example " + " ".join(_example(*one) for one in shapes.items()),
    )


def _example(name: str, shape: Sequence[OpenDim]) -> str:
    return f"--shape {name}:" + "x".join(str(d if isinstance(d, int) else 1) for d in shape)


def as_declared(path: pathlib.Path, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers of the command line in the dtype and shape that the model gives its inputs."""
    declared = {value.name: value for value in describe_onnx(path).inputs}
    found = dict(values)
    for name in set(values) & set(declared):
        shape = [d if isinstance(d, int) else -1 for d in declared[name].shape] if declared[name].has_rank else [-1]
        try:
            found[name] = values[name].astype(declared[name].dtype).reshape(shape)
        except ValueError as error:
            raise ConfigError(f"--value {name}: {error}", hint=f"the input is {list(declared[name].shape)}") from None
    return found


def _with_option(error: UnknownValueError) -> UnknownValueError:
    if error.inputs:
        error.hint = "give the value that it follows from: " + " ".join(f"--value {name}:0,1" for name in error.inputs)
    return error


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


def output(path: pathlib.Path, *read: pathlib.Path | None) -> pathlib.Path:
    """The path, where a file can be written there that is none of those that are ``read``; else :class:`ConfigError`,
    before anything is compiled for it."""
    for one in read:
        if one is not None and path.exists() and one.exists() and path.samefile(one):
            raise ConfigError(f"{path} is what is read: it would be written over", hint="-o names another file")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, not a file to write", hint="name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
    return path


def write_npz(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """As ``numpy.savez``, for names that are its own parameters too, and to this very path."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Arrays by name; :class:`InputError` where the file is not an ``.npz``."""
    hint = "write one with numpy.savez('inputs.npz', NAME=array, ...)"
    if not path.is_file():
        raise InputError(f"there is no file {path}", hint=hint)
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz of arrays", hint=hint)
    try:
        with zipfile.ZipFile(path) as archive:  # np.load mixes up inputs called "x" and "x.npy"
            return {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}
    except Exception as error:  # what zipfile, zlib, numpy and its tokenizer make of damaged bytes is no short list
        raise InputError(f"{path} is not an .npz of arrays", where=[str(error)], hint=hint) from None
