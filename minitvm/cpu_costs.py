"""What things cost on a CPU, as far as a target string does not say it: the one table of such figures.

Templates and schedules predict cycles with them, to choose among candidates; builds are therefore the same everywhere.
The tests of chosen candidates hold them; ``minitvm tune`` measures what they get wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuCosts:
    """Figures of a family of CPUs that the cost model adds up.  Cycles are those of one core at full clock."""

    measured_on: str

    # A core's units, from the manuals.
    fma_per_cycle: int  # vectors multiplied and added
    loads_per_cycle: int  # aligned vectors loaded from the first-level cache
    fma_latency: int  # cycles
    line_bytes: int  # of a cache line
    way_bytes: int  # of a way of the first-level cache, a page: lines so far apart share a place of it

    # Rates of whole machines, for floors.
    clock: float  # cycles a second
    own_caches: tuple[float, float]  # share of the load units' rate that reading L1 and L2 reaches
    l3_bytes_per_cycle: float  # of one core, whatever its vectors
    memory_rate: float  # bytes a second of one core; of all no more than twice that
    launch: float  # seconds of calling a kernel
    meeting: float  # seconds that threads wait for each other at the end of one

    # Cycles of single steps.
    step: float  # a reduction step's loop counters and addresses
    l2_vector: float  # reading a vector from the second-level cache
    copy_vector: float  # putting a vector into a panel or window along which it was stored
    pack_element: float  # putting an element into a panel across which it was stored
    window_element: float  # putting an element of a window into its column
    store_sums: float  # a vector of sums that goes through memory
    relayout_element: float  # moving an element from one layout to another
    written_line: float  # reading a cache line that another core, far away, has written
    barrier: float  # one barrier inside of a kernel
    winograd_place: float  # a place of a Winograd tile, of both transforms on average

    # Ratios.
    unaligned_loads: int  # aligned loads that one of a vector is worth which begins anywhere
    broadcast: float  # cycles more a step for each broadcast pixel of a register tile
    weight_load: float  # and for each vector of weights
    loads_hidden: float  # share of these that a tile of few registers hides behind its multiply-adds
    far_weights: int  # loads that a vector of weights beyond L1 is worth where single pixels wait for it
    pixels_from_l2: float  # slowdown where single pixels come from the second-level cache
    rows_evicted: float  # slowdown where a matrix's rows push each other out of the first-level cache
    rows_from_l2: float  # slowdown where they come from the second level, some begun off a cache line
    dots_from_l2: float  # slowdown of dot products whose operands leave the first level from tile to tile
    wait_exposed: float  # share of the shorter of multiplying and waiting for memory that is not hidden
    near_caches: int  # multiples of the second-level cache that are read about as fast

    # Limits of what is shared or held.
    items_per_thread: int  # parallel iterations for every thread, so that threads end at about the same time
    stack_bytes: int  # of a local buffer; larger ones live in the workspace


CPU = CpuCosts(
    measured_on="AMD Zen 4 and Zen 5, AVX2 and AVX-512, 2026",
    fma_per_cycle=2,
    loads_per_cycle=2,
    fma_latency=4,
    line_bytes=64,
    way_bytes=4096,
    clock=3e9,
    own_caches=(0.8, 0.4),
    l3_bytes_per_cycle=16,
    memory_rate=24e9,
    launch=0.2e-6,
    meeting=1e-6,
    step=0.5,
    l2_vector=1.25,
    copy_vector=4,
    pack_element=0.4,
    window_element=2,
    store_sums=2,
    relayout_element=0.5,
    written_line=30,
    barrier=1500,
    winograd_place=6.0,
    unaligned_loads=3,
    broadcast=0.08,
    weight_load=0.15,
    loads_hidden=0.75,
    far_weights=4,
    pixels_from_l2=1.8,
    rows_evicted=1.4,
    rows_from_l2=1.05,
    dots_from_l2=1.5,
    wait_exposed=0.3,
    near_caches=4,
    items_per_thread=4,
    stack_bytes=16 * 1024,
)
"""The figures that builds go by, on x86-64 and AArch64."""
