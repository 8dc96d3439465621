"""The page of all reports."""

from itertools import groupby
from pathlib import Path

from tests.known_bugs import REPORTS, graphs, numbers, quantized, windows

PAGE = Path(__file__).parents[2] / "docs" / "known-bugs-of-others.md"
_FAMILIES = {
    numbers: "Numbers at the ends of their range",
    quantized: "Quantized numbers",
    windows: "Windows and images",
    graphs: "Graphs, operands of no elements, indices, control flow",
}
_HEAD = """# Known bugs of others

Public reports of other runtimes, compilers and exporters, each rebuilt as a small model in words and code of our own.
The suite runs them all at levels 0 and 3 (`tests/test_known_bugs.py`), so each names something that is right here,
whatever became of it there: most are closed by now, and some were judged to be what ONNX leaves open.
`python -m tests.known_bugs` writes this page from the tests.
"""


def page() -> str:
    """The page's text: a table a family, a row a report."""
    parts = [_HEAD]
    for module, reports in groupby(REPORTS, lambda r: r.make.__module__):
        title = next(t for m, t in _FAMILIES.items() if m.__name__ == module)
        rows = [f"| {r.project} {r.number} | {r.says} | `{r.make.__name__}` |" for r in reports]
        parts.append(
            "\n".join([f"## {title}", "", "| report | what went wrong there | test |", "|---|---|---|", *rows, ""])
        )
    parts.append(f"{len(REPORTS)} reports.\n")
    return "\n".join(parts)
