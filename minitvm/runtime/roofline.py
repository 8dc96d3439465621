"""The roofline of a compiled model: what its kernels took beside what they should take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from minitvm.runtime.cost import LAUNCH, Cost
from minitvm.runtime.graph import Artifact, Node
from minitvm.target import Rates


@dataclass(frozen=True)
class Row:
    """A kernel of a run: the model's nodes that it computes, what it does, and seconds."""

    nodes: tuple[str, ...]
    kernel: str
    flops: float
    nbytes: int
    floor: float
    predicted: float
    measured: float
    bound: str


@dataclass(frozen=True)
class Roofline:
    """Kernels, the longest first; ``run``: seconds of a whole run, which has no clock between kernels."""

    rates: Rates
    rows: tuple[Row, ...]
    run: float

    @property
    def total(self) -> Row:
        """The sums; bound by what most of the kernels' time is bound by."""
        by_bound = {row.bound: 0.0 for row in self.rows}
        for row in self.rows:
            by_bound[row.bound] += row.measured
        sums = {name: sum(getattr(row, name) for row in self.rows) for name in _SUMMED}
        return Row((), "", bound=max(by_bound, key=lambda b: by_bound[b], default=LAUNCH), **sums)

    def share(self, row: Row) -> float:
        """The share of the machine's peak."""
        return row.flops / row.measured / self.rates.flops if row.measured > 0 else 0.0

    @property
    def form(self) -> dict[str, Any]:
        """The roofline for JSON."""
        levels = [{"name": v.name, "bytes": v.nbytes, "bytes_per_second": v.rate} for v in self.rates.levels[:-1]]
        memory = {"name": self.rates.levels[-1].name, "bytes_per_second": self.rates.levels[-1].rate}
        machine = {**asdict(self.rates), "levels": [*levels, memory]}
        rows = [{**asdict(row), "share_of_peak": self.share(row)} for row in (*self.rows, self.total)]
        return {"machine": machine, "kernels": rows[:-1], "total": rows[-1], "run": self.run}


_SUMMED = ("flops", "nbytes", "floor", "predicted", "measured")


def cost_of(artifact: Artifact, node: Node) -> Cost:
    """What a kernel node does in a run."""
    facts, nodes = artifact.metadata[node.func], artifact.graph.nodes
    weights = sum(nodes[n].types[i].nbytes for n, i in set(node.inputs) if nodes[n].name in artifact.params)
    footprint = artifact.plan.nbytes + sum(array.nbytes for array in artifact.params.values())
    return Cost(facts["flops"], facts["bytes"], facts["cycles"], weights, footprint)


def roofline(artifact: Artifact, measured: Iterable[tuple[Node, float]], run: float, rates: Rates) -> Roofline:
    """The kernels of a run of ``run`` seconds, each with the seconds of a call of it alone, beside the machine's rates.

    What such calls take longer together than the run is not the kernels': each gives up the same.
    """
    found = list(measured)
    alone = [seconds for _, seconds in found]
    calls = min([*alone, max(0.0, sum(alone) - run) / max(1, len(alone))])
    rows = [_row(cost_of(artifact, node), node, rates, seconds - calls) for node, seconds in found]
    return Roofline(rates, tuple(sorted(rows, key=lambda row: -row.measured)), run)


def _row(cost: Cost, node: Node, rates: Rates, measured: float) -> Row:
    figures = cost.floor(rates), cost.seconds(rates), measured, cost.bound(rates)
    return Row(node.spans or (node.name,), node.func, cost.flops, cost.nbytes, *figures)
