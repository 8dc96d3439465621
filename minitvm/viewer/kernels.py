"""Kernels for the viewer: what each costs and why it is as it is, and its code, line by line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from minitvm.codegen.listing import Listing
from minitvm.driver.report import BuildReport, KernelReport
from minitvm.errors import MiniTVMError
from minitvm.ir.decision import Decision
from minitvm.runtime.cost import Cost
from minitvm.runtime.roofline import cost_of
from minitvm.target import Rates

_MOST_CANDIDATES = 12
_MOST_LINES = 20_000
"""Of one text; a kernel that is longer says so in its last line."""


def decision_form(decided: Decision) -> list[Any]:
    return [decided.by, decided.about, int(decided.taken), decided.reason, list(decided.spans)]


def kernels_of(report: BuildReport, rates: Rates) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What is known of every kernel, and by kernel its code.  Predictions and floors are those of a profile's rows."""
    assert report.artifact is not None
    nodes = {node.func: node for node in reversed(report.artifact.graph.nodes) if node.is_kernel}
    costs = {symbol: cost_of(report.artifact, node) for symbol, node in nodes.items()}
    with ThreadPoolExecutor(max_workers=2) as pool:  # LLVM leaves the interpreter's lock alone
        codes = pool.map(lambda symbol: _code(report.kernel(symbol), report.compiler.backend.kind), report.groups)
        facts = []
        for symbol in report.groups:
            kernel = report.kernel(symbol)
            facts.append(_kernel(kernel, report.nodes.get(symbol, ()), costs.get(symbol, kernel.cost), rates))
        return facts, dict(zip(report.groups, codes, strict=True))


def _kernel(kernel: KernelReport, nodes: tuple[str, ...], cost: Cost, rates: Rates) -> dict[str, Any]:
    candidates = [[str(c), c.cycles, c.why_not] for c in kernel.candidates[:_MOST_CANDIDATES]]
    return {
        "symbol": kernel.symbol,
        "nodes": list(nodes),
        "template": kernel.template,
        "flops": cost.flops,
        "bytes": cost.nbytes,
        "atPeak": cost.at_peak(rates),
        "predicted": cost.seconds(rates),
        "floor": cost.floor(rates),
        "bound": cost.bound(rates),
        "candidates": candidates,
        "decisions": list(map(decision_form, kernel.decisions)),
    }


def _code(kernel: KernelReport, kind: str) -> dict[str, Any]:
    """By kind of back end, its listings; or why there are none."""
    return {name: _listings(kernel, name) for name in dict.fromkeys((kind, "cuda"))}


def _listings(kernel: KernelReport, kind: str) -> Any:
    try:
        return [_form(listing) for listing in kernel.listings(kind)]
    except MiniTVMError as error:
        return str(error)


def _form(listing: Listing) -> dict[str, Any]:
    lines, origins = list(listing.lines[:_MOST_LINES]), list(listing.origins[:_MOST_LINES])
    if len(listing.lines) > _MOST_LINES:
        lines.append(
            f"... and {len(listing.lines) - _MOST_LINES:,} lines more: minitvm show --stage {listing.language}"
        )
        origins.append(-1)
    return {"language": listing.language, "lines": lines, "origins": origins}
