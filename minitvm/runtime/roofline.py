"""The roofline of a compiled model: what its kernels took beside what they should take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minitvm.runtime.cost import LAUNCH, Cost
from minitvm.runtime.graph import Artifact, Node
from minitvm.runtime.measured import RELIABLE, Measured, doubts
from minitvm.target import Rates


@dataclass(frozen=True)
class Row:
    """A kernel of a run: the model's nodes that it computes, what it does, and seconds: those of its operations at the
    machine's peak, those of its floor, those predicted, and what was measured."""

    nodes: tuple[str, ...]
    kernel: str
    flops: float
    nbytes: int
    at_peak: float
    floor: float
    predicted: float
    measured: Measured
    bound: str

    @property
    def seconds(self) -> float:
        """The measured ones; those predicted where these are unreliable."""
        return self.measured.best(self.predicted)


@dataclass(frozen=True)
class Roofline:
    """Kernels, the longest first; ``run``: seconds of a whole run, which has no clock between kernels."""

    rates: Rates
    rows: tuple[Row, ...]
    run: Measured

    @property
    def unreliable(self) -> int:
        """The number of measurements that cannot be believed."""
        return sum(not one.is_reliable for one in (self.run, *(row.measured for row in self.rows)))

    @property
    def notes(self) -> list[str]:
        """What there is to say of the measurements; nothing where all are reliable."""
        return doubts([row.measured for row in self.rows]) + doubts([self.run], "run")

    @property
    def total(self) -> Row:
        """The sums; bound by what most of the kernels' time is bound by."""
        by_bound = {row.bound: 0.0 for row in self.rows}
        for row in self.rows:
            by_bound[row.bound] += row.seconds
        sums = {name: sum(getattr(row, name) for row in self.rows) for name in _SUMMED}
        verdicts = {row.measured.verdict for row in self.rows if not row.measured.is_reliable}
        runs = min((row.measured.runs for row in self.rows), default=0)
        measured = Measured(sum(row.seconds for row in self.rows), 0.0, runs, min(verdicts, default=RELIABLE))
        most = max(by_bound, key=lambda b: by_bound[b], default=LAUNCH)
        return Row((), "", bound=most, measured=measured, **sums)

    def share(self, row: Row) -> float:
        """The share of the machine's peak; an algorithm of fewer operations (Winograd's) counts as many as it does."""
        return row.at_peak / row.seconds if row.seconds > 0 else 0.0

    @property
    def form(self) -> dict[str, Any]:
        """The roofline for JSON."""
        levels = [{"name": v.name, "bytes": v.nbytes, "bytes_per_second": v.rate} for v in self.rates.levels[:-1]]
        memory = {"name": self.rates.levels[-1].name, "bytes_per_second": self.rates.levels[-1].rate}
        machine = {**asdict(self.rates), "levels": [*levels, memory]}
        rows = [{**asdict(row), "share_of_peak": self.share(row)} for row in (*self.rows, self.total)]
        return {"machine": machine, "kernels": rows[:-1], "total": rows[-1], "run": self.run.form}


_SUMMED = ("flops", "nbytes", "at_peak", "floor", "predicted")


def cost_of(artifact: Artifact, node: Node) -> Cost:
    """What a kernel node does in a run: the same for all nodes of a kernel, whose weights are those of every one."""
    facts, nodes = artifact.metadata[node.func], artifact.graph.nodes
    own = (one.inputs for one in nodes if one.func == node.func)
    weights = min(sum(nodes[n].types[i].nbytes for n, i in set(p) if nodes[n].name in artifact.params) for p in own)
    footprint = artifact.plan.nbytes + sum(array.nbytes for array in artifact.params.values())
    return Cost(facts["flops"], facts["bytes"], facts["cycles"], weights, footprint)


def roofline(
    artifact: Artifact, measured: Iterable[tuple[Node, Sequence[float]]], run: Measured, rates: Rates
) -> Roofline:
    """The kernels of a run, each with the seconds of some calls of it alone, beside the machine's rates.

    What such calls take longer together than the run is not the kernels': each gives up the same.
    """
    found = [(node, Measured.of(seconds)) for node, seconds in measured]
    alone = [one.seconds for _, one in found]
    calls = min([*alone, max(0.0, sum(alone) - run.seconds) / max(1, len(alone))])
    rows = [_row(cost_of(artifact, node), node, rates, one, calls) for node, one in found]
    ordered = tuple(sorted(rows, key=lambda row: -row.seconds))
    return Roofline(rates, ordered, run.judged(sum(row.floor for row in rows)))


def _row(cost: Cost, node: Node, rates: Rates, alone: Measured, calls: float) -> Row:
    floor = cost.floor(rates)
    figures = cost.at_peak(rates), floor, cost.seconds(rates), alone.less(calls, floor), cost.bound(rates)
    return Row(node.spans or (node.name,), node.func, cost.flops, cost.nbytes, *figures)
