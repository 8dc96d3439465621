"""Instruction interleaving: independent iterations that are written out, an instruction of each in turn.

A processor looks a few hundred instructions ahead.  Where each iteration is a long chain (an exponential and what is
made of it), it would see one or two of them and wait for their latencies.
"""

import itertools
import re
from collections.abc import Sequence

from minitvm.codegen.llvm.writer import Lines

_TOGETHER = 8  # chains; of more, registers hold too little

_REGISTER = re.compile(r"%v\d+")


def in_turns(pieces: Sequence[Lines]) -> Lines:
    """The text of iterations, a few at a time; as it is where one has blocks of its own."""
    whole: Lines = [line for piece in pieces for line in piece]
    if not all(isinstance(line, str) and line.startswith("  ") and " br " not in line for line in whole):
        return whole
    stores = max(sum(line.startswith("  store ") for line in map(str, piece)) for piece in pieces)
    size = max(1, _TOGETHER // max(1, stores))
    count = -(-len(pieces) // size)
    ends = [len(pieces) * i // count for i in range(count + 1)]
    groups = [pieces[a:b] for a, b in itertools.pairwise(ends)]
    return [line for group in groups for line in _merged([list(map(str, piece)) for piece in group])]


def _merged(pieces: list[list[str]]) -> Lines:
    """An instruction of each in turn, once what it uses is there: a later piece may use registers of an earlier one."""
    missing = {line.split()[0] for piece in pieces for line in piece if " = " in line}
    found: Lines = []
    while any(pieces):
        for piece in pieces:
            if piece and missing.isdisjoint(_REGISTER.findall(piece[0].partition(" = ")[2] or piece[0])):
                line = piece.pop(0)
                missing.discard(line.split()[0])
                found.append(line)
    return found
