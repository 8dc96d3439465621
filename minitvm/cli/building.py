"""How a model becomes a library on the command line: the options that commands share for it, and what they come to."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from minitvm.cli.common import compiling, gathered, read_npz
from minitvm.cli.open_shapes import as_declared, completed, left_open, of_library, open_inputs
from minitvm.cli.options import LIBRARY, PAGE, PATH, SUFFIX, OnnxModel, option
from minitvm.config import MOST_THREADS
from minitvm.errors import ConfigError, InputError, LibraryError, UnknownValueError, did_you_mean, listing
from minitvm.frontend import describe_onnx
from minitvm.lab.inputs import random_inputs
from minitvm.models import compile
from minitvm.ort.declared import with_values
from minitvm.passes.manager import CONFIG_KEYS, PassContext
from minitvm.passes.pipeline import Sequential
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library, load
from minitvm.session import InferenceSession

Command: TypeAlias = Callable[..., Any]
Decorator: TypeAlias = Callable[[Command], Command]

model = click.argument("model", type=PATH)
onnx_model = click.argument("model", type=PATH, cls=OnnxModel)
_target = option(
    "--target", default="llvm", excludes=(LIBRARY, PAGE), help="Target string: 'llvm -mcpu=skylake-avx512', 'cuda', ..."
)
opt_level = option(
    "-O", "--opt-level", type=click.IntRange(0, 3), default=3, excludes=(LIBRARY, PAGE), help="Optimization level."
)
device = option(
    "--device",
    default=0,
    type=click.IntRange(0),
    excludes=("--generate",),
    help="Number of the GPU, for target 'cuda'.",
)
inputs = option(
    "-i",
    "--inputs",
    type=PATH,
    excludes=("--generate", PAGE),
    help="An .npz with an array per input; random ones by default.",
)


def seed(more: str = "") -> Decorator:
    """``more``: what else is drawn."""
    kind, text = click.IntRange(0), f"Seed of the random inputs{more}."
    return option("--seed", type=kind, default=0, excludes=("--inputs", "--no-run", PAGE), help=text)


def threads(*excludes: str) -> Decorator:
    kind, text = click.IntRange(0, MOST_THREADS), "Threads to run on; 0: one a core."
    return option("-t", "--threads", type=kind, default=0, excludes=(*excludes, PAGE), help=text)


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
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            self.fail(f"{value!r} is not {self.name}; write for example {self.example}", param, ctx)


def _dims(text: str) -> list[int]:
    return [int(d) for d in text.split("x")] if text else []


def _numbers(text: str) -> np.ndarray:
    return np.array([ast.literal_eval(n) for n in text.split(",")] if text else [])


def shapes(more: str = "") -> Decorator:
    """``more``: what the same input again is for."""
    open_dims = "Shape of an input whose dimensions the model leaves open, such as data:1x3x224x224; needed where more"
    text, kind = f"{open_dims} than a batch is open.  Repeatable{more}.", Named("DIMS", _dims, "data:1x3x224x224")
    return option("--shape", "shapes", type=kind, multiple=True, excludes=("--generate", PAGE), help=text)


several_shapes = shapes(
    "; of one input again, a library for several shapes, the first of each input with the first of the others"
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


_config = option(
    "--config",
    type=Setting(),
    multiple=True,
    excludes=(LIBRARY, PAGE),
    help="An option of passes and templates, such as cuda.allow_tf32=true or minitvm.records=FILE.  Repeatable.",
)


_values = option(
    "--value",
    "values",
    type=Named("VALUES", _numbers, "axes:0,1"),
    multiple=True,
    excludes=("--generate", PAGE),
    help="Value of an input that shapes depend on, such as axes:0,1; no input of the library then.  Repeatable.",
)


trusted_keys = option(
    "--trusted-key",
    "trusted_keys",
    type=PATH,
    multiple=True,
    needs=LIBRARY,
    help="Public key (PEM): a library must be signed by it.  Repeatable: by one of them.",
)


def input_names(library: Library) -> list[str]:
    """What a library is run on, and what it was compiled for values of."""
    graph = library.graph
    names = (graph.nodes[i].name for i in graph.arg_nodes)
    return [*(name for name in names if name not in library.params), *library.artifact.values]


def require_inputs(path: Path, feeds: Mapping[str, np.ndarray], model: Path, names: Sequence[str]) -> None:
    """:class:`InputError` where a file has arrays for no input, before anything is compiled for them."""
    unknown = [name for name in gathered(feeds, names) if name not in names]
    if unknown or not feeds:
        near = did_you_mean(unknown[0], names) if unknown else None
        hint = f"its inputs are: {listing(names)}{f'; {near}' if near else ''}"
        raise InputError(f"{path.name} has {listing(unknown)}, and {model.name} no such input", hint=hint)


@dataclass(frozen=True)
class Chosen:
    """The shared options' answer to how a model is compiled."""

    target: str
    opt_level: int
    threads: int | None
    several: tuple[dict[str, list[int]], ...]
    """Shapes by input; more than once only where a library is saved."""
    values: dict[str, np.ndarray]
    trusted_keys: tuple[Path, ...] = ()

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The one set of shapes."""
        if len(self.several) > 1:
            raise ConfigError(
                "--shape is given several times for one input", hint="only 'compile' takes several shapes"
            )
        return self.several[0]

    def of(self, model: Path) -> dict[str, Any]:
        """The same of a model as ``compile`` takes it, but for the level."""
        shapes, values = completed(model, self.shapes, self.values), as_declared(model, self.values)
        return {"shape_dict": shapes, "value_dict": values, "target": self.target, "num_threads": self.threads}

    def opened(self, model: Path, inputs: Path | None, **how: Any) -> tuple[Library, dict[str, np.ndarray] | None]:
        """The library, and the arrays of a file, if any: open inputs have their shapes where none are given."""
        if inputs is None:
            return self.library(model, **how), None
        feeds = read_npz(inputs)
        if model.suffix == SUFFIX:
            library = self.library(model, feeds=feeds, **how)
            require_inputs(inputs, feeds, model, input_names(library))
            return library, feeds
        require_inputs(inputs, feeds, model, [v.name for v in describe_onnx(model).inputs])
        named = {v.name: list(feeds[v.name].shape) for v in open_inputs(model) if v.name in feeds}
        return replace(self, several=({**named, **self.shapes},)).library(model, feeds=feeds, **how), feeds

    def executor(
        self, library: Library, feeds: Mapping[str, np.ndarray] | None, seed: int, device: int = 0
    ) -> tuple[GraphModule, dict[str, Any]]:
        """What runs a library, and what it runs on: ``feeds``, or random inputs."""
        module = GraphModule(library["default"](library.device(device), self.threads))
        if feeds is None:
            return module, random_inputs(module, seed)
        values = library.artifact.values
        return module, gathered({n: a for n, a in feeds.items() if n not in values}, module.input_types())

    def save(self, model: Path, path: Path, key: Path | None, strict: bool) -> Library:
        """Compiles a model, or loads a library, and saves it; for all shapes of the model where none are given."""
        is_library, one = model.suffix == SUFFIX, len(self.several) == 1
        if is_library or (one and (self.shapes or self.values or not open_inputs(model))):
            library = self.library(model, strict=strict)
            library.save(path, key)
            return library
        values = as_declared(model, self.values)
        with compiling(f"compiling {model.name}") as progress:
            how: dict[str, Any] = {"num_threads": self.threads, "opt_level": self.opt_level, "on_progress": progress}
            session = InferenceSession(model, target=self.target, strict=strict, **how)
            for shapes in self.several if self.several[0] else ():
                session.prepare(completed(model, shapes, values), values)
            for name in set(values) - set(session.inputs_by_value):
                raise ConfigError(
                    f"--value {name}: no shape depends on it, so a library for several shapes has it as an input",
                    hint=f"leave out --value {name}, or give one shape",
                )
            try:
                session.save(path, key)
            except LibraryError:
                if session.symbolic is not None and not session.symbolic.taken:
                    named = {value.name: value.shape for value in open_inputs(model)}
                    raise left_open(named, model, session.symbolic.reason) from None
                raise
        return load(path)

    def _loaded(self, path: Path, feeds: Mapping[str, np.ndarray] | None) -> Library:
        """A saved library for the shapes and values that are given, or those of ``feeds``."""
        library = load(path, self.trusted_keys or None)
        whole = (library, *library.others)
        known = {name: value for one in whole for name, value in one.artifact.values.items()}
        for name in self.values:
            if name not in known:
                raise ConfigError(
                    f"--value names {name!r}, and {path.name} was not compiled for a value of it",
                    hint="values of inputs are arrays of --inputs",
                )
        is_fixed = not library.artifact.is_open and not library.others
        if is_fixed and not self.shapes and not self.values:
            return library
        arrays = {} if is_fixed or not feeds else feeds
        values = {n: v.reshape(known[n].shape) if v.size == known[n].size else v for n, v in self.values.items()}
        shapes: Mapping[str, Any] = {name: arrays[name].shape for name in library.shapes[0] if name in arrays}
        if not (self.shapes or shapes or values or library.others):
            shapes = of_library(path, library)
        return library.for_shapes(self.shapes or shapes, values or arrays)

    def library(
        self,
        path: Path,
        trace: bool = False,
        strict: bool = False,
        feeds: Mapping[str, np.ndarray] | None = None,
        passes: Sequence[Any] = (),
        choose: bool = False,
        pipeline: Sequential | None = None,
    ) -> Library:
        """A saved library, loaded; or a model, compiled under a progress bar, after ``passes`` of one's own and through
        ``pipeline`` in place of the default one; for usual sizes of open dimensions where it may ``choose`` these.

        Values that shapes depend on are those of the options, else those of ``feeds``.
        """
        if path.suffix == SUFFIX:
            return self._loaded(path, feeds)
        main = (path, self.target, self.opt_level, completed(path, self.shapes, self.values, choose))
        how: dict[str, Any] = {"num_threads": self.threads, "trace": trace, "strict": strict, "passes": passes}
        how["pipeline"] = pipeline

        def compiled(values: dict[str, np.ndarray]) -> Library:
            with compiling(f"compiling {path.name}") as progress:
                return compile(*main, value_dict=values, on_progress=progress, **how)

        return with_values(compiled, as_declared(path, self.values), feeds or {})


_COMPILING: dict[str, Decorator | None] = {
    "target": _target,
    "opt_level": opt_level,
    "threads": threads(),
    "shapes": shapes(),
    "values": _values,
    "config": _config,
}


def compiles(**other: Decorator | None) -> Decorator:
    """Adds the options that say how a model is compiled, ``other`` ones or none under a name; the command gets them as
    ``chosen``."""
    return lambda command: _compiles(command, {**_COMPILING, **other})


def _compiles(command: Command, options: Mapping[str, Decorator | None]) -> Command:
    @functools.wraps(command)
    def collected(
        target: str,
        threads: int,
        shapes: Any,
        values: Any,
        config: Any,
        opt_level: int = 3,
        trusted_keys: Any = (),
        **own: Any,
    ) -> Any:
        chosen = Chosen(target, opt_level, threads or None, _several(shapes), dict(values), trusted_keys)
        with PassContext(config=dict(config)):
            try:
                return command(chosen=chosen, **own)
            except UnknownValueError as error:
                raise _with_option(error) from None

    made: Command = collected
    for add in filter(None, reversed([*options.values()])):
        made = add(made)
    return made


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


def _with_option(error: UnknownValueError) -> UnknownValueError:
    if error.inputs:
        error.hint = "give the value that it follows from: " + " ".join(f"--value {name}:0,1" for name in error.inputs)
    return error
