"""What a kernel does, and the seconds that this takes at a machine's rates: the roofline model with a roof for every
level of memory.

S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009; of caches: A. Ilic, F. Pratas, L. Sousa, 2014.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    def at_peak(self, rates: Rates) -> float:
        """The seconds of all operations at the machine's peak, or of the cycles of a template that needs fewer."""
        return min(self.flops / rates.flops, self.computing(rates))

    def floor(self, rates: Rates) -> float:
        """The seconds with all operations at the machine's peak, beside memory's work; and no launch."""
        return max(self.at_peak(rates), sum(self.moving(rates).values()))

    def bound(self, rates: Rates) -> str:
        """What most of the predicted time is for: ``compute``, ``launch``, or a level of memory."""
        parts = {COMPUTE: self.computing(rates), **self.moving(rates), LAUNCH: rates.launch}
        return max(parts, key=lambda name: parts[name])
