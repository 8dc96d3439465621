"""Control flow without Python in each trip: loops and choices over compiled bodies, as ``control.ll`` runs them.

What it runs are records, which are made here once for an instance: slots instead of values, since memory is handed out
anew in every run.  Captured values are not copied: a body reads them where they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from minitvm.ir.arrays import aligned_empty
from minitvm.ir.types import as_tensor, is_named, is_numeric, leaves
from minitvm.runtime.graph import Artifact, Host, HostStep, steps_of
from minitvm.runtime.staged import is_stage, stage_step

if TYPE_CHECKING:
    from minitvm.runtime.instance import Instance

Slot: TypeAlias = int
"""The address of a slot."""
Row: TypeAlias = tuple[int, int, int]
"""A step (function, argument, threads) or a move (slot to, slot from, bytes)."""

_IF_FAILED, _LOOP_FAILED = (8, 17), 23
_FIRST, _MOST, _MADE = 1, 2, 3
"""Places in the records of ``control.ll``."""
AT_ONCE = 1 << 16
"""Trips before Python looks whether it was interrupted."""
_ROOM = 16
"""Trips that a stack of unknown length has room for at first."""


def is_native(host: Host, target: str, inside: bool = False) -> bool:
    """True if Python computes nothing in a call of what has no kernel: control flow whose bodies compute nothing there,
    a stage, a look at a shape, a cut of what has names for its sizes.  ``inside`` of other control flow that runs
    without Python, as :func:`is_recorded`."""
    op = getattr(host.function.body, "op", None)
    if target.partition(" ")[0] != "llvm" or op is None:
        return False
    recorded = is_recorded(host, inside)
    if recorded or inside:
        return recorded
    given = [t for param in host.function.params for t in leaves(param.type)]
    if op.cuts:
        return all(map(is_named, given))
    if host.branches:
        return all(map(is_all_native, host.branches.values()))
    return op.name in ("shape_of", "control.fail")


def is_all_native(artifact: Artifact) -> bool:
    """True if Python computes nothing of an artefact, though it may decide what runs."""
    hosts = (artifact.hosts[n.name] for n in artifact.graph.nodes if isinstance(n.step, HostStep))
    return all(is_native(host, artifact.target) for host in hosts)


def is_recorded(host: Host, inside: bool) -> bool:
    """True if ``control.ll`` runs a call: control flow whose sizes are all numbers or have names, but the length of
    what a loop stacks, which must be known too ``inside`` of other control flow."""
    from minitvm.ir.ops.bodies import most_trips
    from minitvm.ir.ops.control import Fail, If, Loop

    op: Any = getattr(host.function.body, "op", None)
    if not isinstance(op, (Fail, If, Loop)):
        return False
    given = [t for param in host.function.params for t in leaves(param.type)]
    if isinstance(op, Loop) and inside and op.trips is None and most_trips():
        return False  # nobody counts
    results = list(leaves(host.function.ret_type))
    if not all(map(is_numeric, (*given, *results))):
        return False
    stacks = results[op.num_carried :] if isinstance(op, Loop) and not inside else []
    fixed = [*results[: len(results) - len(stacks)], *(as_tensor(t).with_shape(t.shape[1:]) for t in stacks)]
    known = all(map(is_named, (*given, *fixed)))
    return known and (isinstance(op, Fail) or (bool(host.branches) and all(map(_is_closed, host.branches.values()))))


def _is_closed(artifact: Artifact) -> bool:
    """True if all that an artefact does is native."""
    hosts = (artifact.hosts[n.name] for n in artifact.graph.nodes if isinstance(n.step, HostStep))
    known = all(map(is_named, artifact.graph.entry_types))
    return known and all(is_native(host, artifact.target, inside=True) for host in hosts)


class _Records:
    """Memory of the records of one call, the flag that ends it, and what may have set it; behind
    the flag, the word that :meth:`tell` sets."""

    def __init__(self) -> None:
        self.memory: list[np.ndarray] = []
        self.blame: list[tuple[np.ndarray, int, Callable[[], Any]]] = []
        """A record, the place in it that is 1 where it failed, and what raises then."""
        self.flag = self.array(0, 0)
        self.threads = 1

    def array(self, *values: int) -> np.ndarray:
        self.memory.append(np.array(values, np.int64))
        return self.memory[-1]

    def address(self, *values: int) -> int:
        return int(self.array(*values).ctypes.data)

    def rows(self, rows: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """A list: how many, and where."""
        return len(rows), self.address(*(value for row in rows for value in row))

    def spare(self, nbytes: int) -> Slot:
        """A slot with memory of its own."""
        self.memory.append(aligned_empty((nbytes,), "uint8"))
        return self.address(int(self.memory[-1].ctypes.data))

    def tell(self, stop: bool) -> None:
        self.flag[1] = stop

    def require(self) -> None:
        """Raise what made the last run stop."""
        if self.flag[0]:
            self.flag[0] = 0
            failed = [(record, place, fail) for record, place, fail in self.blame if record[place]]
            for record, place, _ in failed:
                record[place] = 0
            for _, _, fail in failed:
                fail()


@dataclass(frozen=True)
class _Body:
    """A compiled branch within the records of a call."""

    instance: Instance
    records: _Records

    def slot(self, entry: int) -> Slot:
        return self.instance.slots + 8 * entry

    @cached_property
    def inputs(self) -> list[int]:
        """The entries of its parameters."""
        instance = self.instance
        return [instance.input_entry[name] for name in instance.input_names if name not in instance.params]

    @cached_property
    def heads(self) -> list[int]:
        return [self.instance.graph.entry_id(head) for head in self.instance.graph.heads]

    def move(self, to: Slot, entry: int) -> Row:
        """A value's move into the memory of a slot."""
        return to, self.slot(entry), self.instance.types[entry].nbytes

    def block(self, captured: Mapping[int, Slot]) -> tuple[int, ...]:
        """``captured``: slots outside by the parameters that are read there."""
        instance, records = self.instance, self.records
        records.threads = max(records.threads, instance.num_threads)
        binds = [(self.slot(e), captured[owner], 0) for e, owner in enumerate(instance.owner) if owner in captured]
        checks = [self.move(0, instance.graph.entry_id(entry)) for entry, _ in instance.checks]
        return (*records.rows(binds), *records.rows(list(self._steps())), *records.rows(checks), 0)

    def _steps(self) -> Iterator[Row]:
        for step in steps_of(self.instance.graph):
            if isinstance(step, int):
                function, argument = _record(self.instance, step, self.records)
                yield function, int(argument.ctypes.data), self.records.threads
            else:
                code: Any = self.instance.code
                yield code.address(step), self.instance.slots, self.instance.num_threads


def _record(outer: Instance, index: int, records: _Records) -> tuple[int, np.ndarray]:
    """The native function of a node of control flow, and its record."""
    from minitvm.runtime.native import native_control

    call: Any = outer.artifact.hosts[outer.graph.nodes[index].name].function.body
    op = call.op
    kind = {"control.fail": _fail, "control.if": _if, "control.loop": _loop}[op.name]
    node, start = outer.graph.nodes[index], outer.graph.entry_start[index]
    given = [outer.slots + 8 * outer.graph.entry_id(entry) for entry in node.inputs]
    results = [outer.slots + 8 * entry for entry in range(start, start + len(node.types))]
    bodies = {name: _Body(instance, records) for name, instance in outer.branches_of(index).items()}
    record = kind(op, bodies, given, results, records)
    return native_control(str(op.name).replace(".", "_")), record


def _fail(op: Any, bodies: Any, given: Any, results: Any, records: _Records) -> np.ndarray:
    record = records.array(int(records.flag.ctypes.data), 0)
    records.blame.append((record, 1, op.reference))
    return record


def _if(
    op: Any, bodies: Mapping[str, _Body], given: Sequence[Slot], results: Sequence[Slot], records: _Records
) -> np.ndarray:
    parts: list[int] = []
    for name in ("then_branch", "else_branch"):
        body = bodies[name]
        block = body.block(dict(zip(body.inputs, given[1:], strict=True)))
        parts += [*block, *records.rows([body.move(to, head) for to, head in zip(results, body.heads, strict=True)])]
    record = records.array(int(records.flag.ctypes.data), given[0], *parts)
    places = zip(_IF_FAILED, ("then_branch", "else_branch"), strict=True)
    records.blame += [(record, place, bodies[name].instance.finish) for place, name in places]
    return record


def _loop(
    op: Any, bodies: Mapping[str, _Body], given: Sequence[Slot], results: Sequence[Slot], records: _Records
) -> np.ndarray:
    body, count = bodies["body"], op.num_carried
    (number, before, *params), (after, *heads) = body.inputs, body.heads
    trips, going, *outer = given
    carried = params[:count]
    start = [(body.slot(p), slot, body.instance.types[p].nbytes) for p, slot in zip(carried, outer, strict=False)]
    end = [body.move(to, p) for to, p in zip(results, carried, strict=False)]
    stacks = [body.move(to, head) for to, head in zip(results[count:], heads[count:], strict=True)]
    block = body.block(dict(zip(params[count:], outer[count:], strict=True)))
    lists = [records.rows(rows) for rows in (start, _carried(body, carried, heads[:count]), end, stacks)]
    slots = (trips, going, body.slot(number), body.slot(before), body.slot(after))
    most = np.iinfo(np.int64).max
    record = records.array(int(records.flag.ctypes.data), 0, most, 0, *slots, *itertools.chain(*lists), *block)
    records.blame.append((record, _LOOP_FAILED, body.instance.finish))
    return record


def _carried(body: _Body, params: Sequence[int], heads: Sequence[int]) -> list[Row]:
    """What a trip leaves to the next, in an order that overwrites nothing that is still to be moved."""
    owners = [body.instance.owner[head] for head in heads]
    first, then = [], []
    for param, head, owner in zip(params, heads, owners, strict=True):
        if owner == param:
            continue
        row = body.move(body.slot(param), head)
        if owner in params:
            spare = body.records.spare(row[2])
            first.append((spare, *row[1:]))
            row = (row[0], spare, row[2])
        then.append(row)
    return first + then


def control_step(outer: Instance, index: int) -> Callable[[], None] | None:
    """The step of a node of control flow; ``None`` where it runs in Python."""
    name = outer.graph.nodes[index].name
    host = outer.artifact.hosts[name]
    call: Any = host.function.body
    if is_stage(host):
        return partial(stage_step(call.op, outer.branches_of(index)["body"]), outer, index)
    if not is_native(host, outer.artifact.target):
        return None
    if call.op.cuts:
        return partial(_cut, outer, index, call.op)
    fixed = outer.graph.nodes[index].types[: getattr(call.op, "num_carried", None)]
    if not is_recorded(host, False) or not all(type_.is_static for type_ in fixed):  # which bodies may be at some sizes
        return None
    records = _Records()
    outer.hold_inside(records)
    function, record = _record(outer, index, records)
    code: Any = outer.code
    once = code.call(function, int(record.ctypes.data), records.threads)

    def run() -> None:
        once()
        records.require()

    return _Trips(outer, index, record, run).run if len(record) > _LOOP_FAILED else run


def _cut(outer: Instance, index: int, op: Any) -> None:
    """What a kernel has found, without the room behind it, out of memory that is used again."""
    found = op.reference(*map(outer.value, outer.graph.nodes[index].inputs))
    outer.values[outer.graph.entry_start[index]] = found.copy()


class _Trips:
    """A loop's trips, some at a time: Python looks between them whether it was interrupted, and makes room in stacks
    whose length is not known.  The memory of a stack is its value's; the next run makes another one."""

    def __init__(self, outer: Instance, index: int, record: np.ndarray, some: Callable[[], None]) -> None:
        self.outer, self.record, self.some = outer, record, some
        node, start = outer.graph.nodes[index], outer.graph.entry_start[index]
        self.stacks = {start + i: as_tensor(t) for i, t in enumerate(node.types) if not t.is_static}
        self.rows: dict[int, np.ndarray] = {}
        self.room = _ROOM

    def run(self) -> None:
        from minitvm.ir.ops.bodies import most_trips
        from minitvm.ir.ops.control import too_many_trips

        record, made, most, limit = self.record, 0, 0, most_trips()
        self._make_room(0)
        while made == most:
            if self.stacks and made == self.room:
                self.room *= 2
                self._make_room(made)
            most = min(made + AT_ONCE, self.room) if self.stacks else made + AT_ONCE
            most = min(most, limit + 1) if limit else most
            record[_FIRST], record[_MOST] = made, most
            self.some()
            made = int(record[_MADE])
            if limit and made > limit:
                raise too_many_trips(limit)
        for entry, rows in self.rows.items():
            self.outer.values[entry] = rows[:made]
        self.rows = {}

    def _make_room(self, made: int) -> None:
        """For as many rows as there is to be room for, of which ``made`` are there."""
        for entry, type_ in self.stacks.items():
            rows = aligned_empty((self.room, *as_tensor(type_.with_shape(type_.shape[1:])).static_shape), type_.dtype)
            if made:
                rows[:made] = self.rows[entry]
            self.rows[entry] = rows
            self.outer.point(entry, rows.ctypes.data)
