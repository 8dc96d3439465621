"""What a notebook shows of minitvm's objects: HTML in the notebook's own colours, light or dark, of text and tables.

``Shown`` objects come here; what a class shows is one function below.  All names are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from html import escape
from typing import Any

from minitvm.doors import door
from minitvm.driver.report import BuildReport, KernelReport, PassStep
from minitvm.ir.decision import Decision, Decisions
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.loop import Kernel
from minitvm.lab.explanation import Explanation, Section
from minitvm.lab.profiling import Profile
from minitvm.passes.instrument import count_calls
from minitvm.runtime.library import Library

MOST_LINES = 400
"""Of a text in a cell."""
MOST_ROWS = 200

_STYLE = """<style>
.minitvm { font-size: 0.9em; color: inherit; }
.minitvm pre, .minitvm table { margin: 0.4em 0; background: transparent; color: inherit; }
.minitvm pre { font-family: var(--jp-code-font-family, monospace); white-space: pre; }
.minitvm pre { max-height: 32em; overflow: auto; border: 1px solid rgba(128, 128, 128, 0.4); padding: 0.5em; }
.minitvm summary { display: list-item; cursor: pointer; }
.minitvm table { border-collapse: collapse; }
.minitvm.minitvm th, .minitvm.minitvm td { text-align: left; padding: 0.1em 0.8em 0.1em 0; vertical-align: top; }
.minitvm td:first-child { white-space: nowrap; }
.minitvm th { border-bottom: 1px solid rgba(128, 128, 128, 0.6); }
</style>"""

Cells = Sequence[str]


def html_of(shown: Any) -> str:
    """HTML of an object; of what nothing is said here, its ``repr``."""
    return f'{_STYLE}<div class="minitvm">{parts_of(shown)}</div>'


@singledispatch
def parts_of(shown: Any) -> str:
    """What is inside of the box."""
    return _title(repr(shown))


def _title(text: str) -> str:
    return f"<b>{escape(text)}</b>"


def _lines(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>" if texts else ""


def _pre(text: str) -> str:
    lines = text.splitlines()
    left = len(lines) - MOST_LINES
    more = f"\n... and {left} more lines; print() shows all" if left > 0 else ""
    return f"<pre>{escape(chr(10).join(lines[:MOST_LINES]) + more)}</pre>"


def _table(rows: Sequence[Cells]) -> str:
    """The first row are headings."""
    if not rows:
        return ""
    heading, *others = rows
    left = len(others) - MOST_ROWS
    body = [_row("td", row) for row in others[:MOST_ROWS]]
    more = f"<p>... and {left} more rows</p>" if left > 0 else ""
    return f"<table>{_row('th', heading)}{''.join(body)}</table>{more}"


def _row(tag: str, cells: Cells) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


# --- graphs and loops -------------------------------------------------------------------------------------------------


@door
def drawing_of(shown: Module | Function | PassStep) -> str:
    """What the viewer draws of it; nothing where there is no viewer."""
    return ""


@parts_of.register(Expr)
@parts_of.register(Kernel)
def _text(shown: Expr | Kernel) -> str:
    return _title(repr(shown)) + _pre(str(shown))


@parts_of.register(Module)
@parts_of.register(Function)
def _graph(shown: Module | Function) -> str:
    return _title(repr(shown)) + drawing_of(shown) + _pre(str(shown))


# --- what a build did -------------------------------------------------------------------------------------------------


@parts_of.register
def _decision(shown: Decision) -> str:
    return _decided([shown])


@parts_of.register
def _decisions(shown: Decisions) -> str:
    return _title(repr(shown)) + _decided(shown)


def _decided(shown: Sequence[Decision]) -> str:
    rows = [(d.about, ", ".join(d.spans), d.by, "done" if d.taken else "declined", d.reason) for d in shown]
    return _table([("operator", "nodes", "by", "", "what, or why not"), *rows])


@parts_of.register
def _step(shown: PassStep) -> str:
    effect = "" if shown.modules is None else f", operator calls {_effect(shown)}"
    return _title(f"{repr(shown)[1:-1]}{effect}") + drawing_of(shown) + _decided(shown.decisions)


@parts_of.register
def _kernel(shown: KernelReport) -> str:
    facts = f"{shown.template}; {shown.cost}; predicted {shown.seconds * 1e6:.1f} us on one thread"
    ways = [(str(way), f"{way.cycles:,.0f}", way.why_not) for way in shown.candidates[:MOST_ROWS]]
    table = _folded("ways to write it", _table([("way", "cycles", "declined, since"), *ways])) if ways else ""
    said = _folded("decisions", _decided(tuple(dict.fromkeys(shown.decisions))))
    loops = _folded("loops", _pre(shown.text("loops"))) if "library" not in shown.template else ""
    return _title(repr(shown)) + _lines([facts]) + table + said + loops + _folded("group", _pre(str(shown.group)))


@parts_of.register
def _report(shown: BuildReport) -> str:
    seconds = [(stage, f"{found * 1e3:.1f}") for stage, found in shown.seconds.items()]
    passes = [(step.name, _effect(step), str(len(step.decisions))) for step in shown.steps]
    kernels = [(symbol, ", ".join(nodes)) for symbol, nodes in shown.nodes.items()]
    parts = (
        _table([("stage", "ms"), *seconds]),
        _folded(f"{len(passes)} runs of passes", _table([("pass", "operator calls", "decisions"), *passes])),
        _folded(f"{len(kernels)} kernels", _table([("kernel", "nodes of the model"), *kernels])),
        _lines([str(d) for d in shown.placement if not d.taken]),
    )
    return _title(repr(shown)) + "".join(parts)


def _effect(step: PassStep) -> str:
    if step.modules is None:
        return ""
    return (
        f"{count_calls(step.before)} -> {count_calls(step.after)}" if step.before is not step.after else "(unchanged)"
    )


@parts_of.register
def _library(shown: Library) -> str:
    graph, plan = shown.graph, "" if shown.artifact.is_open else str(shown.plan)
    rows = [
        *(("input", f"{name}: {type_}") for name, type_ in shown.artifact.inputs.items()),
        *(("output", str(graph.type_of(head))) for head in graph.heads),
        ("target", f"{shown.target}, {shown.threads} threads"),
        ("kernels", str(len(shown.function_metadata))),
        ("parameters", f"{sum(array.size for array in shown.params.values()):,}"),
        ("predicted", f"{shown.artifact.work_seconds * 1e3:.3f} ms on one thread"),
        *((("memory", plan),) if plan else ()),
        *(("in Python", str(call)) for call in shown.host_calls),
    ]
    return _title(repr(shown)) + _table([("", ""), *rows])


# --- of the laboratory ------------------------------------------------------------------------------------------------


@parts_of.register
def _profile(shown: Profile) -> str:
    return _title(shown.summary) + _lines(shown.notes) + _table(shown.table())


@parts_of.register
def _explanation(shown: Explanation) -> str:
    sections = "".join(map(_section, shown.sections))
    parts = "".join(_folded(part.title, _explanation(part)) for part in shown.parts)
    return f"{_title(shown.title)}<p>{escape(shown.summary)}</p>{sections}{parts}"


def _section(found: Section) -> str:
    return f"<p><b>{escape(found.title)}</b></p>{_lines(found.lines)}{_table(found.table)}"
