"""What passes a build runs: the default pipeline, with a user's passes in it, or in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minitvm.errors import PassError
from minitvm.ir.expr import Call, Module
from minitvm.ir.visitor import calls
from minitvm.passes.fuse_ops import FuseOps, is_lowerable
from minitvm.passes.manager import Pass, PassContext, as_pass
from minitvm.passes.sequential import Sequential, get_pass


@dataclass(frozen=True)
class Plan:
    """``first`` runs before all others; ``instead``, where given, in place of the default pipeline."""

    first: tuple[Pass, ...] = ()
    instead: Sequential | tuple[Any, ...] | None = None

    @staticmethod
    def of(passes: Sequence[Any] = (), pipeline: Sequence[Any] | Sequential | None = None) -> Plan:
        """:class:`PassError` where one of them is no list."""
        first = tuple(map(as_pass, _listed("passes", passes)))
        if pipeline is None or isinstance(pipeline, Sequential):
            return Plan(first, pipeline)
        return Plan(first, tuple(_listed("pipeline", pipeline)))

    def steps(self, default: Sequential, context: PassContext) -> Sequential:
        """All passes in order; :class:`PassError` for a name that is none, and where nothing makes kernels."""
        pipeline = default
        if isinstance(self.instead, Sequential):
            pipeline = self.instead
        elif self.instead is not None:
            pipeline = Sequential([_named(step, default) for step in self.instead], name="pipeline")
        pipeline = pipeline.placed(context.placements, context)
        if self.first:
            pipeline = Sequential((*self.first, *pipeline.passes), name=pipeline.info.name)
        return pipeline


def _listed(argument: str, given: Any) -> Iterable[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise PassError(f"{argument} is {given!r}, not a list of passes", hint=f"{argument}=[my_pass]")
    return given


def _named(given: Any, default: Sequential) -> Pass:
    """A pass by its name: one of the default pipeline, which is made for the target, or any other."""
    if not isinstance(given, str):
        return as_pass(given)
    if given.partition("#")[0] in default.names:
        return default.find(given)[0].step
    return get_pass(given)


def with_kernels(module: Module) -> Module:
    """The module itself; :class:`PassError` where a call that could be in a kernel is in none."""
    for call in calls(module.main.body):
        if isinstance(call, Call) and is_lowerable(call):
            name = FuseOps.info.name
            raise PassError(
                f"after all passes {getattr(call.op, 'name', call.op)} is in no kernel",
                where=[str(call.checked_type)],
                hint=f"{name} makes kernels, and passes that make new calls belong before it",
            )
    return module
