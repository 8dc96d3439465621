"""Texts of a kernel side by side: every line of one with the line of another that it was made from.

What a back end shows so (:meth:`minitvm.codegen.backend.Backend.listings`) begins with loops; the viewer draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minitvm.ir.loop import Kernel, Stmt, walk_stmts
from minitvm.ir.loop.text import print_lines

UNKNOWN = -1
"""The origin of a line that stands for nothing: braces, declarations, labels."""


@dataclass(frozen=True, repr=False)
class Listing:
    """Lines of ``language``, and for each the number (from 0) of a line of the listing before, or :data:`UNKNOWN`."""

    language: str
    lines: tuple[str, ...]
    origins: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<{len(self.lines)} lines of {self.language}>"

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def of_pairs(language: str, pairs: Iterable[tuple[str, int]]) -> Listing:
    """A listing of (line, origin)."""
    found = list(pairs)
    return Listing(language, tuple(line for line, _ in found), tuple(origin for _, origin in found))


@dataclass(frozen=True)
class LoopLines:
    """Loops as text, and where each statement of them, or of what they were rewritten to, stands in it."""

    listing: Listing
    places: dict[int, int]

    def of(self, stmt: Stmt) -> int:
        """The line of a statement; :data:`UNKNOWN` of one that was made up since."""
        return self.places.get(id(stmt), UNKNOWN)


def loop_lines(emitted: Sequence[Kernel], readable: Sequence[Kernel] = ()) -> LoopLines:
    """The text of ``readable`` kernels and the lines of the statements of those ``emitted``.

    Rewrites of expressions keep statements where they are, so the n-th of one kernel is the n-th of the other; where
    they are not alike the text is that of what is emitted.
    """
    lines: list[str] = []
    places: dict[int, int] = {}
    for number, kernel in enumerate(emitted):
        shown = readable[number] if number < len(readable) and _alike(readable[number], kernel) else kernel
        starts: dict[int, int] = {}
        for text, stmt in print_lines(shown):
            if stmt is not None:  # the last line of a statement's own: "let" lines come before it
                starts[id(stmt)] = len(lines)
            lines.append(text)
        for old, new in zip(walk_stmts(shown.body), walk_stmts(kernel.body), strict=True):
            places.setdefault(id(new), starts.get(id(old), UNKNOWN))
    return LoopLines(Listing("loops", tuple(lines)), places)


def _alike(one: Kernel, other: Kernel) -> bool:
    return [type(s) for s in walk_stmts(one.body)] == [type(s) for s in walk_stmts(other.body)]
