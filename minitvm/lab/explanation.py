"""Why a kernel, a node of the model or a pass's result is as it is: a build's decisions, sorted and put into words.

    print(library.report.explain(kernel="fused_nn_dense_add"))
    print(library.report.explain(node="conv_1"))
    print(library.report.explain(pass_name="FoldConstant#2"))

Nothing is found out anew: passes, templates and schedules have said what they did and declined while they worked
(``ir/decision.py``); the templates' search spaces are asked again.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from minitvm.codegen.problem import Choice
from minitvm.driver.report import BuildReport, KernelReport, PassStep
from minitvm.errors import ConfigError, did_you_mean, listing
from minitvm.ir.decision import Decision, name_of
from minitvm.ir.visitor import calls
from minitvm.lab.tables import aligned
from minitvm.passes.instrument import count_calls
from minitvm.runtime.library import Library
from minitvm.shown import Shown

MOST_LINES = 12
"""Of one section; what is left out is counted, and is among the ``decisions``."""
MOST_WAYS = 8
WIDTH = 120

FUSION, LAYOUT, FOLDED, LOOPS, PLACE, OTHER = "Fusion", "Layout", "Folded", "Loops", "Where it runs", "Rewritten"
MEMORY = "Memory"
_FOLDING = ("from_onnx", "FoldConstant", "BackwardFoldScaleAxis", "ForwardFoldScaleAxis", "SimplifyInference")
_TOPICS = {"FuseOps": FUSION, "ShareRows": LOOPS, "ShareMemory": MEMORY, **dict.fromkeys(_FOLDING, FOLDED)}
_TOPICS |= dict.fromkeys(("AlterOpLayout", "ConvertLayout"), LAYOUT)
_TOPICS |= dict.fromkeys(("CallLibraries", "placement"), PLACE)
"""What the decisions of a pass are about; those of others rewrite."""
_ORDER = (PLACE, FUSION, MEMORY, LOOPS, LAYOUT, FOLDED, OTHER)


@dataclass(frozen=True)
class Section:
    """One side of it: sentences, then rows of cells under headings where figures stand side by side."""

    title: str
    lines: tuple[str, ...]
    table: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        wrapped = [line for text in self.lines for line in textwrap.wrap(text, WIDTH - 4, subsequent_indent="  ")]
        rows = aligned(self.table, left=(0, len(self.table[0]) - 1)) if self.table else []
        return "\n".join([self.title, *(f"  {line}" for line in wrapped), *(f"    {row}" for row in rows)])


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """An explanation of one thing, in ``sections``; of several, as a wildcard finds them, in ``parts``."""

    title: str
    summary: str
    sections: tuple[Section, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """All that it was made of, each once, in order."""
    kernels: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    parts: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        own = ["\n".join([self.title, *textwrap.wrap(self.summary, WIDTH)]), *map(str, self.sections)]
        return "\n\n".join([*own, *map(str, self.parts)])

    def __repr__(self) -> str:
        return f"<explanation of {self.title}: {self.summary}>"

    def section(self, title: str) -> Section | None:
        """The section of that title, where there is one."""
        return next((found for found in self.sections if found.title == title), None)


def explain(
    what: BuildReport | Library, *, kernel: str | None = None, node: str | None = None, pass_name: str | None = None
) -> Explanation:
    """Explains why a kernel, a node of the model or a pass's result is as it is; one of the three, ``*`` stands for
    anything.

    ``FoldConstant#2`` is a pass's second run.  :class:`ConfigError` where there is nothing of that name.
    """
    report = _report(what)
    asked = {"kernel": kernel, "node": node, "pass": pass_name}
    given = [(kind, name) for kind, name in asked.items() if name is not None]
    if len(given) != 1:
        raise ConfigError(
            f"{len(given)} of kernel, node and pass are given, not one of them", hint="explain(kernel='fused_*')"
        )
    [(kind, name)] = given
    makers: dict[str, tuple[Sequence[str], Callable[[BuildReport, str], Explanation]]] = {
        "kernel": (list(report.groups), _of_kernel),
        "node": (_nodes(report), _of_node),
        "pass": (list(dict.fromkeys(step.name for step in report.steps)), _of_pass),
    }
    known, explained = makers[kind]
    found = [explained(report, one) for one in _named(kind, name, known)]
    if len(found) == 1:
        return found[0]
    return Explanation(f"{kind} {name}", f"{len(found)} of {len(known)} have such a name.", parts=tuple(found))


def _report(what: Any) -> BuildReport:
    found = what.report if isinstance(what, Library) else what
    if not isinstance(found, BuildReport):
        raise ConfigError(
            f"there is no report in a {type(what).__name__}",
            hint="a library that was loaded keeps its code, not the way to it: compile the model",
        )
    return found


def _named(kind: str, name: str, known: Sequence[str]) -> list[str]:
    """The names that are meant: exactly, or by a pattern; a pass with the number of its run."""
    own = name.partition("#")[0] if kind == "pass" else name
    found = [name] if own in known else [one for one in known if fnmatchcase(one, name)]
    if not found:
        hint = did_you_mean(own, known, most=3) or f"there are {listing(known)}"
        raise ConfigError(f"there is no {kind} {name!r}", hint=hint)
    return found


def _nodes(report: BuildReport) -> list[str]:
    """The model's nodes that a kernel computes, then those that passes or the import have done away with."""
    decided = (d.spans for step in report.steps for d in step.decisions)
    spans = (*report.nodes.values(), *decided, *(d.spans for d in (*report.placement, *report.imported)))
    return list(dict.fromkeys(name for span in spans for name in span))


# --- of a kernel, a node, a pass --------------------------------------------------------------------------------------


def _of_kernel(report: BuildReport, symbol: str) -> Explanation:
    kernel, nodes = report.kernel(symbol), report.nodes.get(symbol, ())
    staged = [*_decided(report, set(nodes), {symbol}), *((LOOPS, d) for d in kernel.decisions)]
    sections = _sections(staged, {LOOPS: _ways(kernel)}, {FUSION: [_members(kernel)]})
    return Explanation(f"kernel {symbol}", _facts(kernel, nodes), sections, _once(staged), (symbol,), nodes)


def _of_node(report: BuildReport, node: str) -> Explanation:
    symbols = tuple(symbol for symbol, nodes in report.nodes.items() if node in nodes)
    kernels = [report.kernel(symbol) for symbol in symbols]
    staged = _decided(report, {node}, set())
    staged += [(LOOPS, d) for kernel in kernels for d in kernel.decisions]
    tables = {LOOPS: _ways(kernels[0])} if len(kernels) == 1 else {}
    others = tuple(dict.fromkeys(n for s in symbols for n in report.nodes[s] if n != node))
    summary = _where(staged, symbols, others)
    return Explanation(f"node {node}", summary, _sections(staged, tables, {}), _once(staged), symbols, (node,))


def _where(staged: Sequence[tuple[str, Decision]], symbols: Sequence[str], others: Sequence[str]) -> str:
    """Which kernels compute a node; why none does."""
    if symbols:
        beside = f", with {listing(others, 6)}" if others else ", alone"
        return f"It is computed by {' and '.join(symbols)}{beside}."
    hosted = [d for topic, d in staged if topic == PLACE and not d.taken]
    if hosted:
        return f"No kernel computes it: it runs in Python, {hosted[0].reason}."
    if any(topic == MEMORY and d.taken for topic, d in staged):
        return "No kernel computes it: its values are in place already, as is said below."
    if all(d.by == "from_onnx" for _, d in staged):
        return "No kernel computes it: it was settled while the model was read, as is said below."
    return "No kernel computes it any more: passes have folded it away, as is said below."


def _of_pass(report: BuildReport, name: str) -> Explanation:
    wanted = name.partition("#")[0]
    numbers = {id(step): n for n, step in enumerate(report.runs(wanted), 1)}
    steps = report.runs(name)
    sections = tuple(_run_of(step, f"{wanted}#{numbers[id(step)]}") for step in steps)
    changed = sum(_did_something(step) for step in steps)
    times = "once" if len(numbers) == 1 else f"{len(numbers)} times"
    summary = f"It ran {times}, and did something in {changed} of {len(steps)} runs."
    return Explanation(f"pass {name}", summary, sections, tuple(d for step in steps for d in step.decisions))


def _did_something(step: PassStep) -> bool:
    """As its modules say; without them, its own decisions."""
    return any(d.taken for d in step.decisions) if step.modules is None else step.after is not step.before


def _run_of(step: PassStep, title: str) -> Section:
    effect = []
    if step.modules is not None:
        before, after = map(count_calls, step.modules)
        effect = ["The module is as it was." if step.after is step.before else f"{before} calls became {after}."]
    said = _sentences(step.decisions, step.name)
    none = [] if effect and not _did_something(step) else ["It decided nothing by itself."]
    return Section(title, (*effect, *(said or none)))


# --- in words ---------------------------------------------------------------------------------------------------------


def _facts(kernel: KernelReport, nodes: Sequence[str]) -> str:
    rates = kernel.compiler.backend.machine.rates(1)
    return (
        f"It computes {listing(nodes) if nodes else 'no node of the model by itself'}: {kernel.cost}; predicted"
        f" {kernel.seconds * 1e6:.1f} us on one thread, bound by {kernel.cost.bound(rates)}. Loops: {kernel.template}."
    )


def _members(kernel: KernelReport) -> str:
    inside = [name_of(call) for call in calls(kernel.group.body)] or ["It"]
    return f"One kernel: {' -> '.join(inside)}." if len(inside) > 1 else f"{inside[0]} stands alone."


def _decided(report: BuildReport, nodes: set[str], symbols: set[str]) -> list[tuple[str, Decision]]:
    """What passes and placement decided about nodes or kernels, each with its topic."""
    stages: Iterator[tuple[str, Iterable[Decision]]] = ((step.name, step.decisions) for step in report.steps)
    everything = [("from_onnx", report.imported), *stages, ("placement", report.placement)]
    decided = ((stage, d) for stage, found in everything for d in found)
    return [(_TOPICS.get(stage, OTHER), d) for stage, d in decided if nodes & set(d.spans) or d.about in symbols]


def _sections(
    staged: Sequence[tuple[str, Decision]], tables: dict[str, tuple[tuple[str, ...], ...]], first: dict[str, list[str]]
) -> tuple[Section, ...]:
    made = []
    for topic in _ORDER:
        table = tables.get(topic, ())
        said = [d for of, d in staged if of == topic and not _is_row_of(d, table)]
        lines = (*first.get(topic, ()), *_sentences(said, topic))
        if lines or table:
            made.append(Section(topic, lines, table))
    return tuple(made)


def _is_row_of(found: Decision, table: Sequence[Sequence[str]]) -> bool:
    """True if a table says already why a way was declined."""
    scheme, _, why = found.reason.partition(": ")
    return not found.taken and any(row[0].startswith(scheme) and row[-1].endswith(why) for row in table[1:])


def _once(staged: Sequence[tuple[str, Decision]]) -> tuple[Decision, ...]:
    return tuple(dict.fromkeys(d for _, d in staged))


def _sentences(found: Iterable[Decision], stage: str) -> list[str]:
    """What was done, then what was declined; what was decided alike of several is one sentence."""
    alike: dict[tuple[bool, str, str], list[Decision]] = {}
    for one in dict.fromkeys(found):
        alike.setdefault((not one.taken, one.by, one.reason), []).append(one)
    lines = [_sentence(some, stage) for _, some in sorted(alike.items(), key=lambda item: item[0][0])]
    left = len(lines) - MOST_LINES
    return lines if left <= 0 else [*lines[:MOST_LINES], f"... and {left} more; decisions has them all."]


def _sentence(some: Sequence[Decision], stage: str) -> str:
    one, who = some[0], _who(some)
    if one.by == "FuseOps":
        goes = "goes" if len(some) == 1 else "go"
        into = " " if one.reason.startswith("into ") else ": "
        return f"{who} {goes} {one.reason}." if one.taken else f"{who}: not fused{into}{one.reason}."
    by = "" if one.by == stage else f"{one.by}: " if one.taken else f"{one.by} "
    return f"{who}: {by}{one.reason}." if one.taken else f"{who}: {by}declined: {one.reason}."


def _who(some: Sequence[Decision]) -> str:
    """Operators, with the nodes that they come from; operators of the same nodes together."""
    nodes: dict[str, list[str]] = {}
    for found in some:
        nodes.setdefault(found.about, []).extend(found.spans)
    together: dict[tuple[str, ...], list[str]] = {}
    for about, spans in nodes.items():
        together.setdefault(tuple(dict.fromkeys(spans)), []).append(about)
    parts = (", ".join(abouts) + (f" ({listing(spans, 4)})" if spans else "") for spans, abouts in together.items())
    return " and ".join(parts)


def _ways(kernel: KernelReport) -> tuple[tuple[str, ...], ...]:
    """The template's ways side by side: what was taken, what is predicted to be faster and why it was not, the best of
    every other scheme, the next ones."""
    found = kernel.candidates
    if len(found) < 2:
        return ()
    taken, others = found[0], sorted(found[1:], key=lambda way: way.cycles)
    faster = [way for way in others if way.cycles < taken.cycles]
    best_of = {way.scheme: way for way in reversed(others)}
    rest = [way for way in others if not way.why_not]
    shown = list(dict.fromkeys([*_first_of_each(faster), *best_of.values(), *rest]))[: MOST_WAYS - 1]
    rows = [_way(taken, taken, "taken"), *(_way(w, taken, _verdict(w, taken)) for w in sorted(shown, key=_cycles))]
    left = len(found) - len(rows)
    more = [("and " + str(left) + " more", "", "", "")] if left else []
    return (("way", "cycles of a core", "x", ""), *rows, *more)


def _first_of_each(ways: Iterable[Choice]) -> list[Choice]:
    """The fastest of what is declined for each reason."""
    return list({(way.scheme, way.why_not): way for way in reversed(list(ways))}.values())


def _cycles(way: Choice) -> float:
    return way.cycles


def _way(way: Choice, taken: Choice, verdict: str) -> tuple[str, ...]:
    ratio = f"{way.cycles / taken.cycles:.2f}" if taken.cycles else "-"
    return (str(way), f"{way.cycles:,.0f}", ratio, verdict)


def _verdict(way: Choice, taken: Choice) -> str:
    if way.why_not:
        return f"declined: {way.why_not}"
    if way.cycles == taken.cycles:
        is_wider = taken.tile.blocks > way.tile.blocks
        return "as fast: wider tiles go first" if is_wider else "as fast: the template lists it later"
    return "slower" if way.cycles > taken.cycles else "slower, as records have it"
