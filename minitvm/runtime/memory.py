"""The memory plan: where each value of a graph lies in one arena.

Values whose lifetimes do not overlap share memory.  Largest first, each value goes into the tightest gap between
the values alive at the same time (best fit), which on real graphs comes within a few percent of the lower bound.

Where several threads share a kernel's rows, memory that holds images of one size and then of another is written by
one core after the other, and a line of another core costs many times as much.  There each size has its own memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.dims import number
from minitvm.ir.types import MOST_BYTES, Leaf, TensorType
from minitvm.runtime.graph import CpuTag, Graph, Plan, round_up
from minitvm.runtime.places import Place, liveness, places

_SMALLER = "compile the model for smaller inputs"


@dataclass(frozen=True)
class Request:
    """``nbytes`` needed from step ``first`` to step ``last``, both included."""

    nbytes: int
    first: int
    last: int


def _best_gap(offsets: np.ndarray, ends: np.ndarray, nbytes: int) -> int:
    """The start of the tightest gap of at least ``nbytes`` between blocks, or the end of them all."""
    order = np.argsort(offsets, kind="stable")
    starts, tops = offsets[order], np.maximum.accumulate(ends[order])
    lows = np.concatenate([[0], tops[:-1]])
    room = starts - lows
    fits = np.flatnonzero(room >= nbytes)
    if len(fits):
        return int(lows[fits[np.argmin(room[fits])]])
    return int(tops[-1])


def pack(requests: Sequence[Request]) -> list[int]:
    """An offset for every request, so that those alive together do not overlap."""
    order = sorted(range(len(requests)), key=lambda i: (-requests[i].nbytes, requests[i].first))
    placed = np.zeros((len(requests), 4), np.int64)  # first, last, offset, end
    offsets = [0] * len(requests)
    count = 0
    for index in order:
        want = requests[index]
        if want.nbytes == 0:
            continue
        live = placed[:count]
        live = live[(live[:, 0] <= want.last) & (live[:, 1] >= want.first)]
        offsets[index] = _best_gap(live[:, 2], live[:, 3], want.nbytes) if len(live) else 0
        placed[count] = (want.first, want.last, offsets[index], offsets[index] + want.nbytes)
        count += 1
    return offsets


def pack_apart(requests: Sequence[Request], kinds: Sequence[int]) -> list[int]:
    """The same, with memory for each kind of requests above that of the kinds before."""
    alike = defaultdict[int, list[int]](list)
    for index, kind in enumerate(kinds):
        alike[kind].append(index)
    offsets, base = [0] * len(requests), 0
    for some in alike.values():
        chosen = [requests[index] for index in some]
        placed = pack(chosen)
        for index, at in zip(some, placed, strict=True):
            offsets[index] = base + at
        base += _top(chosen, placed)
    return offsets


def _rows(type_: Leaf) -> int:
    """Bytes of all rows of an image's channel, which threads share; 0 for other values."""
    if not isinstance(type_, TensorType) or len(type_.shape) < 4 or type_.shape[0] != 1:
        return 0
    return type_.nbytes // max(1, number(type_.shape[1], {}))


def spread_limit(cpu: CpuTag, threads: int) -> int:
    """Bytes that values may take so that images of each size lie apart: beyond, they leave a core's caches before they
    are written again."""
    return cpu.caches[2] // 2 if threads > 1 and cpu.caches else 0


def lower_bound(requests: Sequence[Request]) -> int:
    """The most bytes alive at one step."""
    change = [0] * (max((r.last for r in requests), default=0) + 2)
    for want in requests:
        change[want.first] += want.nbytes
        change[want.last + 1] -= want.nbytes
    return max(accumulate(change), default=0)


def require_addressable(graph: Graph) -> None:
    """:class:`CompilerError` for a value that no machine could hold."""
    for node in graph.nodes:
        for type_ in node.types:
            if type_.is_static and type_.nbytes > MOST_BYTES:
                raise CompilerError(
                    f"a value of this graph takes {type_.nbytes:,} bytes, more than can be addressed",
                    where=[f"%{node.name}: {type_}"],
                    hint=_SMALLER,
                )


def unplanned(graph: Graph) -> Plan:
    """The plan of a graph whose values have sizes that a run gives them."""
    return Plan((-1,) * graph.entries, tuple(range(graph.entries)), {}, 0, 0, 0)


def plan_memory(graph: Graph, workspaces: Mapping[int, int] | None = None, room: int = 0) -> Plan:
    """Place every value and every kernel's workspace (bytes by node) in one arena.

    Images of each size lie apart where that takes ``room`` bytes or fewer.

    Inputs and parameters keep memory of their own.  What is part of another value lies in that one's.  A kernel's
    results never share memory with its inputs.  Results of the graph live to its end.
    """
    scratch = {node: nbytes for node, nbytes in (workspaces or {}).items() if nbytes}
    return Planner(graph, scratch, room).plan(graph, scratch)


class Planner:
    """Plans for one graph, whatever sizes its values have: how long each is alive is found once.

    Where values of other sizes lie, the last plan that was packed says: what lies above what, among those that are
    alive together, stays so, each as low as that allows.  Where this wastes memory, values are packed anew.
    """

    WASTE = 1.25
    """Bytes of a plan over the lower bound, against those of the packed one, from which on it is packed anew."""

    def __init__(
        self, graph: Graph, workspaces: Iterable[int], room: int = 0, apart: Collection[int] = frozenset()
    ) -> None:
        """The owners ``apart`` have memory of their own, which no run takes from them."""
        self._room = room
        self._places = places(graph)
        spans, makers, types = liveness(graph), graph.makers, graph.entry_types
        roots = [e for e, place in enumerate(self._places) if place.entry == e and types[e].is_static]
        self._entries = [entry for entry in roots if not makers[entry].is_null and entry not in apart]
        self._nodes = list(workspaces)
        self._spans = [*(spans[entry] for entry in self._entries), *((node, node) for node in self._nodes)]
        self._packed: Packed | None = None

    def plan(self, graph: Graph, workspaces: Mapping[int, int]) -> Plan:
        """Plans the graph with other sizes of its values (none may be open), and bytes of workspaces by node."""
        types = graph.entry_types
        sizes = {t: round_up(max(1, t.nbytes)) for t in {types[entry] for entry in self._entries}}
        nbytes = [sizes[types[entry]] for entry in self._entries]
        nbytes += [round_up(workspaces[node]) for node in self._nodes]
        requests = [Request(size, *span) for size, span in zip(nbytes, self._spans, strict=True)]
        naive, least = sum(nbytes), lower_bound(requests)
        if naive > MOST_BYTES:
            raise CompilerError(
                f"the values of this graph take {naive:,} bytes, more than can be addressed", hint=_SMALLER
            )
        placed = self._placed(requests, least)
        if self._room and any(kinds := [*(_rows(types[entry]) for entry in self._entries), *(0 for _ in self._nodes)]):
            plans = (pack_apart(requests, some) for some in (kinds, [kind > 0 for kind in kinds]))
            placed = next((plan for plan in plans if _top(requests, plan) <= self._room), placed)
        where = dict(zip(self._entries, placed, strict=False))
        offsets = tuple(where[owner] + start if owner in where else -1 for owner, start in self._places)
        return Plan(
            offsets=offsets,
            storage_ids=_storage_ids(self._places, offsets),
            workspaces=dict(zip(self._nodes, placed[len(self._entries) :], strict=True)),
            nbytes=_top(requests, placed),
            lower_bound=least,
            naive=naive,
        )

    def _placed(self, requests: Sequence[Request], least: int) -> list[int]:
        if self._packed is not None:
            placed = self._packed.stack.placed(requests)
            if _top(requests, placed) <= self._packed.most * least:
                return placed
        placed = pack(requests)
        self._packed = Packed(requests, placed, self.WASTE * _top(requests, placed) / max(1, least))
        return placed


@dataclass(frozen=True)
class Packed:
    """A plan to follow, as long as others waste no more than ``most`` bytes over the lower bound."""

    requests: Sequence[Request]
    offsets: Sequence[int]
    most: float

    @cached_property
    def stack(self) -> Stack:
        return Stack.of(self.requests, self.offsets)


@dataclass(frozen=True)
class Stack:
    """What lies directly below each of some requests, among those alive with it; lowest first."""

    below: tuple[tuple[int, tuple[int, ...]], ...]

    @staticmethod
    def of(requests: Sequence[Request], placed: Sequence[int]) -> Stack:
        found: list[tuple[int, tuple[int, ...]]] = []
        under: dict[int, int] = {}
        """All that has to lie below a request, as bits."""
        alive, begun = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        """Where in ``found`` the requests stand that are alive at a step, and those that begin there."""
        for index in sorted(range(len(requests)), key=lambda i: (placed[i], requests[i].nbytes, i)):
            first, steps = requests[index].first, range(requests[index].first, requests[index].last + 1)
            mask, direct = 0, []
            for place in sorted(chain(alive[first], *(begun[step] for step in steps[1:])), reverse=True):
                other, _ = found[place]
                if not mask >> other & 1:
                    direct.append(other)
                    mask |= under[other] | 1 << other
            begun[first].append(len(found))
            for step in steps:
                alive[step].append(len(found))
            found.append((index, tuple(direct)))
            under[index] = mask
        return Stack(tuple(found))

    def placed(self, requests: Sequence[Request]) -> list[int]:
        offsets, tops = [0] * len(requests), [0] * len(requests)
        for index, below in self.below:
            offsets[index] = max([tops[other] for other in below], default=0)
            tops[index] = offsets[index] + requests[index].nbytes
        return offsets


def _top(requests: Sequence[Request], placed: Sequence[int]) -> int:
    return max((at + r.nbytes for at, r in zip(placed, requests, strict=True)), default=0)


def _storage_ids(places: Sequence[Place], offsets: Sequence[int]) -> tuple[int, ...]:
    """TVM's storage ids: one per place in memory, numbered as they appear."""
    known: dict[tuple[str, int], int] = {}
    found = [("arena", at) if at >= 0 else ("own", place.entry) for place, at in zip(places, offsets, strict=True)]
    return tuple(known.setdefault(place, len(known)) for place in found)
