"""What a pass changed, as text: calls that went and came, without those that only have another number now."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from minitvm.driver.report import PassStep
from minitvm.passes.instrument import count_calls

AROUND = 1
"""Lines that are shown before and after a change."""
_NUMBER = re.compile(r"%\d+\b")


def difference(step: PassStep) -> str:
    """The calls that a run of a pass took away (-) and made (+), between lines that stayed; ``...`` stands for more."""
    if step.after is step.before:
        return f"{step.name} changed nothing"
    old, new = (module.astext(show_meta_data=False).splitlines() for module in (step.before, step.after))
    title = f"{step.name}: {count_calls(step.before)} -> {count_calls(step.after)} calls"
    return "\n".join([title, *_lines(old, new)])


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Lines are alike where they differ in the numbers of values only."""
    matcher = SequenceMatcher(None, [*map(_unnumbered, old)], [*map(_unnumbered, new)], autojunk=False)
    reached = 0
    for group in matcher.get_grouped_opcodes(AROUND):
        if group[0][1] > reached:
            yield "  ..."
        for kind, i, j, k, m in group:
            yield from (f"  {line}" for line in new[k:m] if kind == "equal")
            yield from (f"- {line}" for line in old[i:j] if kind in ("replace", "delete"))
            yield from (f"+ {line}" for line in new[k:m] if kind in ("replace", "insert"))
        reached = group[-1][2]
    if reached < len(old):
        yield "  ..."


def _unnumbered(line: str) -> str:
    return _NUMBER.sub("%", line)
