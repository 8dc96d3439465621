"""A schedule as a list of steps: recorded while it is made, printed a line each, replayed on the plain loops.

    s = Steps(plain)
    (outer, inner), _ = s.do(split, "j", 8, tail="exact")
    s.do(vectorize, inner)
    print(s)                       # j_outer, j_inner = split(j, 8, tail='exact') ...
    replay(plain, s.steps[:1])     # any prefix is a schedule

What a step returns are handles, the variables of loops and the buffers that it made; they stay what they are as long as
the loop is there (cursors: Ikarashi et al., "Exo 2", 2025).  No two loops of a recorded kernel have one name, nor two
buffers, so that a name in a line is a handle as well.
"""

import ast
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias

from minitvm.codegen import schedule_loops, schedule_memory, schedule_parts, schedule_stage
from minitvm.codegen.loops import fresh_vars, redirect
from minitvm.errors import ScheduleError
from minitvm.ir.loop import Alloc, Buffer, Kernel, LoopKind, LoopVar, Stmt, allocated, map_stmt, summary
from minitvm.ir.loop.text import fresh

P = ParamSpec("P")

STEPS: dict[str, Callable[..., Kernel]] = {
    step.__name__: step
    for step in (
        *(schedule_loops.split, schedule_loops.fuse, schedule_loops.reorder, schedule_loops.unroll),
        *(schedule_loops.vectorize, schedule_loops.jam, schedule_loops.rfactor, schedule_loops.parallel),
        *(schedule_loops.bind, schedule_parts.partition, schedule_parts.fission, schedule_parts.distribute),
        *(schedule_parts.predicate, schedule_parts.tile, schedule_memory.cache_read, schedule_memory.cache_write),
        *(schedule_stage.stage, schedule_stage.prefetch, schedule_memory.compute_at),
    )
}
"""All steps by name."""


@lru_cache(maxsize=64)
def _signature(step: Callable[..., Kernel]) -> inspect.Signature:
    return inspect.signature(step)


class Handle(str):
    """The name of a loop or a buffer in a line."""

    def __repr__(self) -> str:
        return str(self)


class Made(NamedTuple):
    """What a step made: the variables of new loops, in program order, and new buffers."""

    loops: tuple[LoopVar, ...]
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class Step:
    """One line: ``i_outer, i_inner = split(i, 4, tail='exact')``."""

    name: str
    args: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()
    made: tuple[str, ...] | None = None
    """The names of the handles that it returns; ``None`` where they are left to it."""

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.keywords)]
        return f"{', '.join(self.made or ())} = " * bool(self.made) + f"{self.name}({', '.join(given)})"

    @staticmethod
    def parse(line: str) -> "Step":
        """The step that a line says; :class:`ScheduleError` where it says none."""
        try:
            (found,) = ast.parse(line.strip()).body
            if not isinstance(found, (ast.Assign, ast.Expr)) or not isinstance(found.value, ast.Call):
                raise ValueError("it is no call")
            call, made = found.value, None
            if isinstance(found, ast.Assign):
                (target,) = found.targets
                made = tuple(_name(e) for e in (target.elts if isinstance(target, ast.Tuple) else [target]))
            keywords = tuple((str(k.arg), _value(k.value)) for k in call.keywords)
            return Step(_name(call.func), tuple(map(_value, call.args)), keywords, made)
        except (SyntaxError, ValueError, AttributeError) as error:
            hint = "as in: j_outer, j_inner = split(j, 8, tail='exact')"
            raise ScheduleError(f"no step of a schedule: {line.strip()!r}", hint=hint) from error


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise ValueError(node)
    return node.id


def _value(node: ast.expr) -> Any:
    return Handle(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


class Steps:
    """A kernel and the steps that made it of ``plain``."""

    def __init__(self, plain: Kernel) -> None:
        self.plain = plain
        body = plain.body
        if len(_names(plain)) < len(_things(plain)):
            body = _own_memory(fresh_vars(body), {*allocated(body)})
        self.kernel, _ = _named(replace(plain, body=body), {*plain.params}, None)
        self.steps: list[Step] = []

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    def do(self, step: Callable[Concatenate[Kernel, P], Kernel], *args: P.args, **keywords: P.kwargs) -> Made:
        """Take a step, by handles or by names; the handles that it made."""
        given = _signature(step).bind(self.kernel, *args, **keywords).args[1:] if keywords else args
        return self._take(step, given, Step(step.__name__, tuple(map(self._said, given))))

    def replay(self, steps: Iterable[Step | str]) -> "Steps":
        """Take steps as they were recorded, or as lines say them, whose names new handles get; itself."""
        for line in steps:
            step = line if isinstance(line, Step) else Step.parse(line)
            if step.name not in STEPS:
                raise ScheduleError(f"there is no step {step.name}", hint=f"there are: {', '.join(sorted(STEPS))}")
            function = STEPS[step.name]
            try:
                bound = _signature(function).bind(self.kernel, *step.args, **dict(step.keywords))
            except TypeError as error:
                raise ScheduleError(f"{step}: {error}", hint=f"{step.name}{_signature(function)}") from None
            self._take(function, bound.args[1:], step)
        return self

    def _take(self, function: Callable[..., Kernel], args: Sequence[Any], line: Step) -> Made:
        self.kernel, new = _named(function(self.kernel, *args), {*_things(self.kernel)}, line.made)
        self.steps.append(Step(line.name, line.args, line.keywords, tuple([x.name for x in new])))
        variables = tuple(x for x in new if isinstance(x, LoopVar))
        return Made(variables, tuple(x for x in new if isinstance(x, Buffer)))

    def _said(self, value: Any) -> Any:
        """An argument as its line has it."""
        if isinstance(value, (LoopVar, Buffer)):
            return Handle(value.name)
        if isinstance(value, LoopKind):
            return value.value
        known = isinstance(value, str) and value in _names(self.kernel)
        return Handle(value) if known else value


def replay(plain: Kernel, steps: Iterable[Step | str]) -> Steps:
    """The plain loops after steps, given as they were recorded or as lines."""
    return Steps(plain).replay(steps)


def _names(kernel: Kernel) -> set[str]:
    return {x.name for x in _things(kernel)}


# --- one name, one loop ---------------------------------------------------------------------------------------

Thing: TypeAlias = LoopVar | Buffer


def _things(kernel: Kernel) -> tuple[Thing, ...]:
    """The variables of all loops, then all buffers."""
    known = summary(kernel.body)
    return (*known.loops, *kernel.params, *known.memory)


def _own_memory(body: Stmt, seen: set[Buffer]) -> Stmt:
    """Memory that has been ``seen``, or is a copy of other memory below, becomes a buffer of its own."""

    def own(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc) and stmt.buffer in seen:
            copy = replace(stmt.buffer)
            return Alloc(copy, redirect(stmt.body, {stmt.buffer: copy}))
        seen.update([stmt.buffer] if isinstance(stmt, Alloc) else [])
        return stmt

    return map_stmt(body, on_stmt=own)


def _named(kernel: Kernel, old: set[Thing], names: Sequence[str] | None) -> tuple[Kernel, list[Thing]]:
    """A kernel whose new loops and buffers have names of their own, or those that are asked for; and what is new."""
    found = summary(kernel.body)
    if len({*found.loops}) < len(found.loops):  # loops that are copies of others get variables of their own
        kernel = replace(kernel, body=fresh_vars(kernel.body))
    if len({*found.memory}) < len(found.memory):
        kernel = replace(kernel, body=_own_memory(kernel.body, set()))
    known = _things(kernel)
    new, taken = [x for x in known if x not in old], {x.name for x in known if x in old}
    if names is not None and len(names) != len(new):
        made = ", ".join(x.name for x in new) or "nothing"
        raise ScheduleError(f"{kernel.name}: the step makes {made}, and has {len(names)} names for it")
    for thing, name in zip(new, names or [x.name for x in new], strict=True):
        if names is not None and name in taken:
            raise ScheduleError(f"{kernel.name} has a loop or a buffer {name} already")
        object.__setattr__(thing, "name", fresh(name, taken, "_"))  # the step made it: nobody else has it
        taken.add(thing.name)
    return kernel, new
