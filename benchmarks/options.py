"""Options that the benchmark's commands share: lists of names and numbers, checked before anything runs."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import click

from benchmarks import cases
from benchmarks.layer_kinds import KINDS
from benchmarks.onnx_models import NETWORKS
from benchmarks.runtimes import installed
from minitvm.driver import backend_for
from minitvm.errors import MiniTVMError

PATH = click.Path(path_type=pathlib.Path)
MODELS = "Names, or paths of .onnx files."


def split(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def models(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    names = {name: cases.found(name) for name in split(context, parameter, value)}
    for name, known in names.items():
        if known is None:
            raise click.BadParameter(f"{name!r} is neither a file nor one of {', '.join((*NETWORKS, *cases.real()))}")
    return [known for known in names.values() if known]


def models_and(other: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A callback for models, and one that has a name only."""

    def checked(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        words = split(context, parameter, value)
        return [w if w == other else models(context, parameter, w)[0] for w in words]

    return checked


def target(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for value in values:
            backend_for(value, 1)
    except MiniTVMError as error:
        raise click.BadParameter(str(error)) from error
    return values


def threads(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    words = split(context, parameter, value)
    if not words or not all(word.isdigit() and int(word) for word in words):
        raise click.BadParameter(f"{value!r} is not a list of positive numbers, such as 1,2")
    return [int(word) for word in words]


def runtimes(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    peers, here = split(context, parameter, value), installed()
    for name in peers:
        if name not in here:
            raise click.BadParameter(f"{name!r} is not installed; here are {', '.join(here)}")
    return ["minitvm", *(name for name in peers if name != "minitvm")]


def levels(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    words = split(context, parameter, value)
    if not words or not all(word in "0123" and len(word) == 1 for word in words):
        raise click.BadParameter(f"{value!r} is not a list of levels from 0 to 3, such as 2,3")
    return [int(word) for word in words]


def kinds(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    words = split(context, parameter, value)
    for word in words:
        kind, _, number = word.partition("/")
        if kind not in KINDS or ("/" in word and not number.isdigit()):
            raise click.BadParameter(f"{word!r} is no kind of layer, nor one of them as conv/17: {', '.join(KINDS)}")
    return words


def of(names: list[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A callback for words that are some of ``names``."""

    def checked(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        words = split(context, parameter, value)
        for word in words:
            if word not in names:
                raise click.BadParameter(f"{word!r} is none of {', '.join(names)}")
        return words

    return checked
