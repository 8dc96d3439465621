"""What kernels should take, and what bounds them: the roofline model with a roof for every level of memory.

S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009; of caches: A. Ilic, F. Pratas, L. Sousa, 2014.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from minitvm.runtime.graph import Artifact, Node
from minitvm.target import Rates

COMPUTE, LAUNCH = "compute", "launch"


@dataclass(frozen=True)
class Cost:
    """What a kernel does: ``flops`` operations, in ``cycles`` of a core that only computes; ``nbytes`` of operands and
    results, each once.

    What it writes and what the kernel before it wrote is in the nearest level of memory that holds all its bytes.
    ``weights`` of them are read once a run: they come from the level that holds the ``footprint``, all bytes of a run.
    """

    flops: float
    nbytes: int
    cycles: float
    weights: int = 0
    footprint: int = 0

    def __str__(self) -> str:
        return f"{self.flops / 1e6:.3f} MFLOP, {self.nbytes / 1e3:.1f} kB"

    def moving(self, rates: Rates) -> dict[str, float]:
        """Seconds by level of memory."""
        found: dict[str, float] = {}
        for nbytes, held in ((self.nbytes - self.weights, self.nbytes), (self.weights, self.footprint)):
            level = rates.level(held)
            found[level.name] = found.get(level.name, 0.0) + nbytes / level.rate
        return found

    def computing(self, rates: Rates) -> float:
        return self.cycles / rates.clock / rates.threads

    def seconds(self, rates: Rates) -> float:
        """The predicted seconds: operations beside memory's work, after a launch."""
        return max(self.computing(rates), sum(self.moving(rates).values())) + rates.launch

    def floor(self, rates: Rates) -> float:
        """The seconds with all operations at the machine's peak, or in the cycles of a template that needs fewer; and
        no launch."""
        return max(min(self.flops / rates.flops, self.computing(rates)), sum(self.moving(rates).values()))

    def bound(self, rates: Rates) -> str:
        """What most of the predicted time is for: ``compute``, ``launch``, or a level of memory."""
        parts = {COMPUTE: self.computing(rates), **self.moving(rates), LAUNCH: rates.launch}
        return max(parts, key=lambda name: parts[name])


# --- of a compiled model ----------------------------------------------------------------------------------------------


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
