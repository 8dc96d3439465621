"""What things cost on a CPU, as far as a target string does not say it: the one table of such figures.

Templates and schedules predict cycles with them, to choose among candidates; builds are therefore the same everywhere.
The tests of chosen candidates hold them; ``minitvm tune`` measures what they get wrong.  ``python -m benchmarks costs``
shows them beside a CPU's own, as far as a loop by itself shows it, and writes them here with its name and the date.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuCosts:
    """Figures of a family of CPUs that the cost model adds up.  Cycles are those of one core at full clock."""

    measured_on: str = "AMD Zen 4 and Zen 5, AVX2 and AVX-512, 2026"

    # A core's units, from the manuals.
    fma_per_cycle: int = 2  # vectors multiplied and added
    loads_per_cycle: int = 2  # aligned vectors loaded from the first-level cache
    fma_latency: int = 4  # cycles
    line_bytes: int = 64  # of a cache line
    way_bytes: int = 4096  # of a way of the first-level cache, a page: lines so far apart share a place of it

    # Rates of whole machines, for floors.
    clock: float = 3e9  # cycles a second
    own_caches: tuple[float, float] = (0.8, 0.4)  # share of the load units' rate that reading L1 and L2 reaches
    l3_bytes_per_cycle: float = 16  # of one core, whatever its vectors
    memory_rate: float = 24e9  # bytes a second of one core; of all no more than twice that
    launch: float = 0.2e-6  # seconds of calling a kernel
    meeting: float = 1e-6  # seconds that threads wait for each other at the end of one

    # Cycles of single steps.
    step: float = 0.5  # a reduction step's loop counters and addresses
    l2_vector: float = 1.25  # reading a vector from the second-level cache
    copy_vector: float = 4  # putting a vector into a panel or window along which it was stored
    pack_element: float = 0.4  # putting an element into a panel across which it was stored
    window_element: float = 2  # putting an element of a window into its column
    store_sums: float = 2  # a vector of sums that goes through memory
    relayout_element: float = 0.5  # moving an element from one layout to another
    written_line: float = 30  # reading a cache line that another core, far away, has written
    barrier: float = 1500  # one barrier inside of a kernel
    winograd_place: float = 6.0  # a place of a Winograd tile, of both transforms on average

    # Ratios.
    unaligned_loads: int = 3  # aligned loads that one of a vector is worth which begins anywhere
    broadcast: float = 0.08  # cycles more a step for each broadcast pixel of a register tile
    weight_load: float = 0.15  # and for each vector of weights
    loads_hidden: float = 0.75  # share of these that a tile of few registers hides behind its multiply-adds
    far_weights: int = 4  # loads that a vector of weights beyond L1 is worth where single pixels wait for it
    pixels_from_l2: float = 1.8  # slowdown where single pixels come from the second-level cache
    rows_evicted: float = 1.4  # slowdown where a matrix's rows push each other out of the first-level cache
    rows_from_l2: float = 1.05  # slowdown where they come from the second level, some begun off a cache line
    dots_from_l2: float = 1.5  # slowdown of dot products whose operands leave the first level from tile to tile
    wait_exposed: float = 0.3  # share of the shorter of multiplying and waiting for memory that is not hidden
    near_caches: int = 4  # multiples of the second-level cache that are read about as fast

    # Limits of what is shared or held.
    items_per_thread: int = 4  # parallel iterations for every thread, so that threads end at about the same time
    stack_bytes: int = 16 * 1024  # of a local buffer; larger ones live in the workspace


CPU = CpuCosts()
"""The figures that builds go by, on x86-64 and AArch64."""
