"""All that the viewer shows of a build, as one JSON document (``docs/viewer.md`` has its form)."""

from __future__ import annotations

import inspect
import math
from typing import Any

from minitvm import config, passes
from minitvm.driver.report import BuildReport, PassStep
from minitvm.errors import ConfigError
from minitvm.lab.profiling import Profile
from minitvm.passes.instrument import count_calls
from minitvm.passes.manager import PASSES
from minitvm.runtime.graph import Artifact, HostStep, Node
from minitvm.runtime.places import liveness, owners
from minitvm.target import Rates
from minitvm.viewer.kernels import decision_form, kernels_of
from minitvm.viewer.modules import Modules
from minitvm.viewer.overview import overview_of
from minitvm.viewer.roles import roles_of

FORMAT = 1
SITE = "https://minitvm.github.io/minitvm/"
"""Where the pages of the documentation are."""


def document_of(report: BuildReport, title: str, profile: Profile | None = None) -> dict[str, Any]:
    """The document; :class:`ConfigError` where the build kept no modules.  ``code`` is the large part, by kernel."""
    if report.module is None or report.artifact is None:
        raise ConfigError("the build kept no modules to look at", hint="minitvm.compile(model, trace=True)")
    seconds = report.seconds  # what follows lowers kernels once more
    backend = report.compiler.backend
    rates = backend.machine.rates(backend.machine.threads) if profile is None else profile.rates
    kernels, code = kernels_of(report, rates)
    roles = roles_of(report.groups)
    return {
        "format": FORMAT,
        "title": title,
        "version": config.version(),
        "pages": SITE,
        "target": str(backend.target),
        "threads": backend.machine.threads,
        "machine": backend.machine.name,
        "seconds": seconds,
        "cache": [report.cache_hits, report.cache_misses],
        **passes_of(report),
        "placement": list(map(decision_form, report.placement)),
        "kernels": [{**kernel, "role": roles[kernel["symbol"]]} for kernel in kernels],
        "overview": overview_of(report, roles),
        "rates": _rates(rates),
        "graph": [_node(node) for node in report.artifact.graph.nodes],
        "memory": _memory(report.artifact),
        "run": None if profile is None else _run(profile),
        "code": code,
    }


def passes_of(report: BuildReport) -> dict[str, Any]:
    """The part of the document about passes and what they made."""
    assert report.module is not None
    modules = Modules({id(group): symbol.rstrip("'") for symbol, group in report.groups.items()})
    found = [pass_form(step, modules) for step in report.steps]
    return {"passes": found, "last": modules.add(report.module), **modules.form}


def pass_form(step: PassStep, modules: Modules) -> dict[str, Any]:
    """A run of a pass whose modules were kept."""
    before, after = step.before, step.after
    return {
        "name": step.name,
        "about": _about(step.name),
        "depth": step.depth,
        "seconds": step.seconds,
        "calls": [count_calls(before), count_calls(after)],
        "modules": [modules.add(before), modules.add(after)],
        "decisions": list(map(decision_form, step.decisions)),
    }


def _about(name: str) -> str:
    """What a pass says of itself; nothing where it is known by no name."""
    return inspect.cleandoc(getattr(PASSES.get(name) or getattr(passes, name, None), "__doc__", "") or "")


def _run(profile: Profile) -> dict[str, Any]:
    """Seconds of a run, of its kernels by node, and when each thread was in which; ``seconds`` are those to reckon
    with: measured, or predicted where that is unreliable."""
    return {
        "seconds": profile.run.best(profile.predicted),
        "measured": profile.run.form,
        "doubts": profile.doubts,
        "threads": len(profile.idle),
        "idle": list(profile.idle),
        "notes": profile.notes,
        "kernels": [[r.index, r.measured.form, r.predicted, r.floor, r.bound, r.idle, r.seconds] for r in profile.rows],
        "slices": [[s.thread, s.node, s.start, s.end] for s in profile.timeline],
    }


def _rates(rates: Rates) -> dict[str, Any]:
    levels = [[level.name, None if math.isinf(level.nbytes) else level.nbytes, level.rate] for level in rates.levels]
    return {"flops": rates.flops, "launch": rates.launch, "threads": rates.threads, "levels": levels}


def _node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "kind": "input" if node.is_null else "python" if isinstance(node.step, HostStep) else "kernel",
        "func": node.func,
        "inputs": [n for n, _ in node.inputs],
        "types": [str(t) for t in node.types],
        "spans": list(node.spans),
        "once": node.once,
    }


def _memory(artifact: Artifact) -> dict[str, Any]:
    """The place where every value lies in the arena (bytes), from which step to which."""
    graph, plan = artifact.graph, artifact.plan
    owner, types, spans = owners(graph), graph.entry_types, liveness(graph)
    values = [
        [node.name, *spans[entry], plan.offsets[entry], types[entry].nbytes, 0]
        for entry, node in enumerate(graph.makers)
        if owner[entry] == entry and plan.offsets[entry] >= 0
    ]
    for step, offset in plan.workspaces.items():
        facts = artifact.metadata[graph.nodes[step].func]
        nbytes = facts["workspace"] + artifact.threads * facts["workspace_per_thread"]
        values.append([f"workspace of {graph.nodes[step].name}", step, step, offset, nbytes, 1])
    weights = sum(array.nbytes for array in artifact.params.values())
    sizes = {"nbytes": plan.nbytes, "lower": plan.lower_bound, "naive": plan.naive, "weights": weights}
    return {**sizes, "steps": len(graph.nodes), "values": values}
