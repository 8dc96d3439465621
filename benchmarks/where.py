"""Where the time of a model goes, in one line: ``minitvm bench --roofline``, its kernels by kind."""

from __future__ import annotations

import re
from collections.abc import Sequence

import minitvm
from benchmarks.runtimes import Feeds
from minitvm.driver import backend_for
from minitvm.driver.roofline import roofline_of
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.roofline import Roofline, Row

ROUNDS = 9
KINDS = 3
"""How many kinds of kernels a line names."""


def where_time_goes(path: str, feeds: Feeds, target: str) -> str:
    """Of a model on one thread."""
    session = minitvm.InferenceSession(path, target=target, num_threads=1)
    session.run(None, feeds)
    values = {name: feeds[name] for name in session.inputs_by_value}
    shapes = {name: array.shape for name, array in feeds.items() if name not in values}
    library = minitvm.compile(path, target, shape_dict=shapes, value_dict=values, num_threads=1)  # no open sizes
    module = GraphModuleDebug(library["default"](None, 1))
    taken = {name: array for name, array in feeds.items() if name in module.input_types()}
    module.set_input(taken)
    whole = GraphModule(library["default"](None, 1))

    def runs() -> Sequence[float]:
        return whole.benchmark(None, ROUNDS, 1, feeds=taken).results

    return line(roofline_of(module, runs, backend_for(library.target, 1), ROUNDS))


def line(found: Roofline) -> str:
    """Kinds of kernels, the longest first: share of the time, of the machine's peak, and what bounds most of it."""
    kinds: dict[str, list[Row]] = {}
    for row in found.rows:
        kinds.setdefault(kind_of(row.kernel), []).append(row)
    longest = sorted(kinds.items(), key=lambda item: -_seconds(item[1]))[:KINDS]
    return "; ".join(_part(found, kind, rows) for kind, rows in longest)


def kind_of(kernel: str) -> str:
    """``fused_nn_conv2d_add_nn_relu_12`` -> ``nn_conv2d_add_nn_relu``."""
    return re.sub(r"(_\d+)+$", "", kernel.removeprefix("fused_"))


def _seconds(rows: Sequence[Row]) -> float:
    return sum(row.seconds for row in rows)


def _part(found: Roofline, kind: str, rows: Sequence[Row]) -> str:
    seconds = _seconds(rows)
    share = seconds / (_seconds(found.rows) or 1)
    peak = sum(row.flops for row in rows) / max(seconds, 1e-9) / found.rates.flops
    floor = sum(row.floor for row in rows) / max(seconds, 1e-9)
    bound = max(rows, key=lambda row: row.seconds).bound
    return f"{share:.0%} {kind} x {len(rows)} ({peak:.0%} of peak, {floor:.0%} of what {bound} allows)"
