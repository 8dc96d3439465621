"""Which loop a line of CUDA C was written for."""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.codegen.cuda.emit import body_of, helpers_of
from minitvm.codegen.listing import UNKNOWN, Listing, loop_lines, of_pairs
from minitvm.codegen.storage import spell_stored
from minitvm.ir.loop import Kernel


def listings(kernels: Sequence[Kernel]) -> tuple[Listing, ...]:
    """Bound loops, and what :func:`minitvm.codegen.cuda.emit.emit_cuda` makes of them, line by line."""
    spelled = [spell_stored(kernel) for kernel in kernels]
    loops, bodies = loop_lines(spelled, kernels), list(map(body_of, spelled))
    lines = [(line, UNKNOWN) for helper in helpers_of(bodies) for line in (*helper.splitlines(), "")]
    for body in bodies:
        lines += [*body.pairs(loops), ("", UNKNOWN)]
    return loops.listing, of_pairs("cuda", lines)
