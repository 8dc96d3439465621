"""Kernels for the viewer: what each costs and why it is as it is, and its code, line by line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from minitvm.codegen.listing import Listing
from minitvm.driver.report import BuildReport, KernelReport
from minitvm.errors import MiniTVMError
from minitvm.ir.decision import Decision

_MOST_CANDIDATES = 12
_MOST_LINES = 20_000
"""Of one text; a kernel that is longer says so in its last line."""


def decision_form(decided: Decision) -> list[Any]:
    return [decided.by, decided.about, int(decided.taken), decided.reason, list(decided.spans)]


def kernels_of(report: BuildReport) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What is known of every kernel, and by kernel its code."""
    with ThreadPoolExecutor(max_workers=2) as pool:  # LLVM leaves the interpreter's lock alone
        codes = pool.map(lambda symbol: _code(report.kernel(symbol), report.compiler.backend.kind), report.groups)
        facts = [_kernel(report.kernel(symbol), report.nodes.get(symbol, ())) for symbol in report.groups]
        return facts, dict(zip(report.groups, codes, strict=True))


def _kernel(kernel: KernelReport, nodes: tuple[str, ...]) -> dict[str, Any]:
    cost, rates = kernel.cost, kernel.compiler.backend.machine.rates(kernel.compiler.backend.machine.threads)
    candidates = [[str(c), c.cycles, c.why_not] for c in kernel.candidates[:_MOST_CANDIDATES]]
    return {
        "symbol": kernel.symbol,
        "nodes": list(nodes),
        "template": kernel.template,
        "flops": cost.flops,
        "bytes": cost.nbytes,
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
