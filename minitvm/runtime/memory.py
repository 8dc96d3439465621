"""The memory plan: where each value of a graph lies in one arena.

Values whose lifetimes do not overlap share memory.  Largest first, each value goes into the tightest gap between
the values alive at the same time (best fit), which on real graphs comes within a few percent of the lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.types import MOST_BYTES
from minitvm.runtime.graph import Graph, Plan, last_uses, owners, round_up

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


def lower_bound(requests: Sequence[Request]) -> int:
    """The most bytes alive at one step."""
    steps = max((r.last for r in requests), default=0) + 2
    change = np.zeros(steps, np.int64)
    for want in requests:
        change[want.first] += want.nbytes
        change[want.last + 1] -= want.nbytes
    return int(np.cumsum(change).max(initial=0))


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
    """Of a graph whose values have sizes that a run gives them."""
    return Plan((-1,) * graph.entries, tuple(range(graph.entries)), {}, 0, 0, 0)


def plan_memory(graph: Graph, workspaces: Mapping[int, int] | None = None) -> Plan:
    """Place every value and every kernel's workspace (bytes by node) in one arena.

    Inputs and parameters keep memory of their own.  A reshape shares its input's.  A kernel's results never share
    memory with its inputs.  Results of the graph live to its end.
    """
    owner = owners(graph)
    last = last_uses(graph, owner)
    types = graph.entry_types
    requests: list[Request] = []
    placing: list[int] = []
    for step, node in enumerate(graph.nodes):
        for i in range(len(node.types)):
            entry = graph.entry_id((step, i))
            if not node.is_null and owner[entry] == entry and types[entry].is_static:
                placing.append(entry)
                requests.append(Request(round_up(max(1, types[entry].nbytes)), step, last[entry]))
    scratch = {node: nbytes for node, nbytes in (workspaces or {}).items() if nbytes}
    requests += [Request(round_up(nbytes), node, node) for node, nbytes in scratch.items()]
    naive = sum(r.nbytes for r in requests)
    if naive > MOST_BYTES:
        raise CompilerError(f"the values of this graph take {naive:,} bytes, more than can be addressed", hint=_SMALLER)
    placed = pack(requests)
    where = dict(zip(placing, placed, strict=False))
    offsets = tuple(where.get(owner[entry], -1) for entry in range(graph.entries))
    return Plan(
        offsets=offsets,
        storage_ids=_storage_ids(owner, offsets),
        workspaces=dict(zip(scratch, placed[len(placing) :], strict=True)),
        nbytes=max((at + r.nbytes for at, r in zip(placed, requests, strict=True)), default=0),
        lower_bound=lower_bound(requests),
        naive=naive,
    )


def _storage_ids(owner: Sequence[int], offsets: Sequence[int]) -> tuple[int, ...]:
    """TVM's storage ids: one per place in memory, numbered as they appear."""
    known: dict[tuple[str, int], int] = {}
    places = [("own", owner[e]) if at < 0 else ("arena", at) for e, at in enumerate(offsets)]
    return tuple(known.setdefault(place, len(known)) for place in places)
