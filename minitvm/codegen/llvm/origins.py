"""Which loop an instruction was written for: LLVM IR and assembly, line by line.

The emitter puts a comment with a line's number behind every instruction.  For the assembly each instruction gets a
debug location, the number of its line in the LLVM IR, which LLVM carries along; nothing of this is in a build's code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from minitvm.codegen.listing import UNKNOWN, Listing, loop_lines, of_pairs
from minitvm.codegen.llvm.compile import Cpu, assembly
from minitvm.codegen.llvm.emit import emit_spelled, spelled_for
from minitvm.ir.loop import Kernel
from minitvm.target import MachineModel

_NOTE = re.compile(r" ;(-?\d+)$")
_PLACE = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")
_LOCATION = re.compile(r"\s*\.loc\b|\.L(tmp|func_begin)\d+:")
_DEBUG = re.compile(r"\s*\.section\s+(\.debug_|__DWARF)")
_FIRST = 1000
"""The number of the first metadata node that is a location."""


def listings(readable: Kernel, legal: Kernel, machine: MachineModel, cpu: Cpu) -> tuple[Listing, ...]:
    """Loops, LLVM IR and assembly of a kernel; ``readable`` is the one before legalization."""
    spelled = spelled_for(legal, machine)
    loops = loop_lines([spelled], [readable])
    noted = emit_spelled(spelled, machine, lambda stmt: f" ;{loops.of(stmt)}")
    ir = of_pairs("llvm", map(_origin, noted.splitlines()))
    return loops.listing, ir, of_pairs("asm", _with_lines(assembly(_located(ir), cpu)))


def _origin(line: str) -> tuple[str, int]:
    found = _NOTE.search(line)
    return (line, UNKNOWN) if found is None else (line[: found.start()], int(found[1]))


def _located(ir: Listing) -> str:
    """The module with the numbers of its own lines as debug locations."""
    lines: list[str] = []
    for number, line in enumerate(ir.lines):
        if line.startswith("define "):
            line = line.removesuffix("{") + "!dbg !4 {"
        elif line.startswith("  "):
            line += f", !dbg !{_FIRST + number}"
        lines.append(line)
    places = (f"!{_FIRST + n} = !DILocation(line: {n + 1}, scope: !4)" for n in range(len(ir.lines)))
    return "\n".join([*lines, _METADATA, *places]) + "\n"


_METADATA = """
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!1, !2}
!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !3, emissionKind: LineTablesOnly)
!1 = !{i32 2, !"Debug Info Version", i32 3}
!2 = !{i32 7, !"Dwarf Version", i32 4}
!3 = !DIFile(filename: "kernel.ll", directory: "")
!4 = distinct !DISubprogram(name: "kernel", file: !3, line: 1, unit: !0, spFlags: DISPFlagDefinition)
"""


def _with_lines(text: str) -> Iterator[tuple[str, int]]:
    """The assembly without what is there for debuggers, each instruction with its line."""
    place, lines = UNKNOWN, text.splitlines()
    end = next((n for n, line in enumerate(lines) if _DEBUG.match(line)), len(lines))
    for line in lines[:end]:
        found = _PLACE.match(line)
        if found is not None:
            place = int(found[1]) - 1
        elif not _LOCATION.match(line):
            is_code = line.startswith(("\t", " ")) and not line.lstrip().startswith((".", "#"))
            yield line, place if is_code else UNKNOWN
