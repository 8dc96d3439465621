"""Commands and options that refuse what would do nothing: an option says what it needs, and beside what it is idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from minitvm.cli import common
from minitvm.errors import ConfigError

SUFFIX = ".mtvm"
LIBRARY, PAGE = "a library", "a page"
"""A MODEL that is one, among what an option needs or excludes."""
_KINDS = {LIBRARY: (SUFFIX,), PAGE: (".html", ".json")}
PATH = click.Path(path_type=Path)

Function = TypeVar("Function", bound=Callable[..., Any])


class Option(click.Option):
    """An option that does nothing without what it ``needs``, nor beside any of what it ``excludes``; help says so.

    Both are named as they are given: ``--json``, ``--no-run``, ``CHAPTER``, ``--stage loops|asm`` for some values only.
    What a command does not have is not given.
    """

    def __init__(self, *args: Any, needs: str = "", excludes: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.needs, self.excludes = needs, excludes

    def note(self, command: click.Command) -> str:
        """The same for the help of a command."""
        beside = [condition for condition in self.excludes if parameter(command, condition)]
        needed = f"  Needs {self.needs}." if self.needs else ""
        return needed + (f"  Not beside {', '.join(beside)}." if beside else "")

    def why_idle(self, ctx: click.Context) -> str:
        """What is wrong where it does nothing, and what to do; empty where it is not given, or in its place."""
        name = _given(ctx, self.opts[-1]) or next(filter(None, (_given(ctx, one) for one in self.secondary_opts)), "")
        if not name:
            return ""
        if self.needs and not _given(ctx, self.needs):
            return f"{name} does nothing without {self.needs}: add it, or leave out {name}"
        for other in filter(None, (_given(ctx, excluded) for excluded in self.excludes)):
            return f"{name} does nothing beside {other}: leave out {name}"
        return ""


class OnnxModel(click.Argument):
    """A MODEL that is no library: :class:`ConfigError` for one.  ``pages``: it may be a page of the viewer."""

    def __init__(self, *args: Any, pages: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.pages = pages

    def takes(self, kind: str) -> bool:
        return self.pages and kind == PAGE

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        path = super().type_cast_value(ctx, value)
        if path is not None and path.suffix == SUFFIX:
            raise ConfigError(
                "a library keeps its code, not the way to it", hint="give the .onnx file it was made from"
            )
        return path


def _be_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        common.be_quiet()


_QUIET: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _be_quiet}


class Command(click.Command):
    """A command that refuses its idle options before anything runs; with ``-q``, which all have."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.own = [param for param in self.params if isinstance(param, Option)]
        for option in self.own:
            option.help = f"{option.help}{option.note(self)}"
        self.params.append(Option(["-q", "--quiet"], **_QUIET, help="Print results and errors only."))

    def invoke(self, ctx: click.Context) -> Any:
        for problem in filter(None, (option.why_idle(ctx) for option in self.own)):
            raise click.UsageError(problem, ctx)
        return super().invoke(ctx)


def parameter(command: click.Command, condition: str) -> click.Parameter | None:
    """The one that a condition names, if the command has it, and takes such a MODEL where it is of one."""
    name = "MODEL" if condition in _KINDS else condition.partition(" ")[0]
    found = (p for p in command.params if name in (*p.opts, *p.secondary_opts, p.human_readable_name))
    return next((p for p in found if condition not in _KINDS or _takes(p, condition)), None)


def _takes(model: click.Parameter, kind: str) -> bool:
    return model.takes(kind) if isinstance(model, OnnxModel) else kind == LIBRARY


def is_page(model: Path) -> bool:
    return model.suffix in _KINDS[PAGE]


def _given(ctx: click.Context, condition: str) -> str:
    """What the user gave of it, in words; empty where it was not given."""
    param = parameter(ctx.command, condition)
    if param is None or ctx.get_parameter_source(str(param.name)) is ParameterSource.DEFAULT:
        return ""
    name, _, values = condition.partition(" ")
    value = ctx.params[str(param.name)]
    if value in (None, ()) or value is (name in param.secondary_opts):  # nothing, or the flag the other way round
        return ""
    if condition in _KINDS:
        return f"{value}, {condition}" if value.suffix in _KINDS[condition] else ""
    if values:
        return f"{name} {value}" if value in values.split("|") else ""
    return name


def option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    """``click.option``, with ``needs`` and ``excludes``; help shows a default where there is one."""
    return click.option(*names, cls=Option, **{"show_default": settings.get("default") is not None, **settings})


AS_JSON = "Print one JSON object, with seconds and bytes, in place of text."
as_json = option("--json", "as_json", is_flag=True, help=AS_JSON)


def command(name: str | None = None, cls: type[Command] = Command) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=cls)
