"""A build at a glance: what the model is, what the compiler did to it, its kernels with what repeats put together,
and what to look at next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

from minitvm.driver.program import call_flops
from minitvm.driver.report import BuildReport
from minitvm.ir.expr import Call, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.types import tensor_fields
from minitvm.ir.visitor import calls, held_functions
from minitvm.runtime.graph import HostStep


def overview_of(report: BuildReport, roles: Mapping[str, str]) -> dict[str, Any]:
    """``model``: facts as name and text; ``told``: sentences, each with the view that shows it; ``blocks``: the
    nodes that run (:func:`blocks_of`); ``roles``: what kernels are for."""
    assert report.module is not None and report.artifact is not None
    first = report.steps[0].before if report.steps else report.module
    nodes = report.artifact.graph.nodes
    running = [number for number, node in enumerate(nodes) if node.is_kernel or isinstance(node.step, HostStep)]
    running = [number for number in running if not nodes[number].once]
    steps = [
        _Step(n, roles.get(nodes[n].func, ""), nodes[n].spans, tuple(i for i, _ in nodes[n].inputs)) for n in running
    ]
    told = [_fused(first, report), _branches(first, report), *_changed(first, report.module), _planned(report)]
    return {
        "model": _model(first, report),
        "told": [each for each in told if each],
        "blocks": blocks_of(_hoisted(steps)),
    }


def _inside(module: Module) -> list[Call]:
    """The calls of operators, those in groups too, as often as they run; those of branches and bodies once."""
    return [call for function in [*module.functions.values(), *_held(module)] for call in _of_operators(function)]


def _of_operators(function: Function) -> list[Call]:
    found = []
    for call in calls(function.body):
        found += calls(call.op.body) if isinstance(call.op, Function) else [call]
    return [call for call in found if isinstance(call.op, Op)]


def _held(module: Module) -> list[Function]:
    """The branches and bodies that calls hold, and those in them."""
    found, pending = list[Function](), [*module.functions.values()]
    while pending:
        held = [held_functions(call) for call in calls(pending.pop().body)]
        inside = [function for each in held for name, function in each.items() if name]
        found += inside
        pending += inside
    return found


def _model(module: Module, report: BuildReport) -> list[list[str]]:
    assert report.artifact is not None
    inside, main = _inside(module), module.main
    counted = Counter(call.op.name for call in inside if isinstance(call.op, Op)).most_common()
    weights = list(report.artifact.params.values())
    flops = sum(map(call_flops, inside))
    return [
        ["inputs", ", ".join(f"{p.name}: {p.type}" for p in main.params)],
        ["result", str(main.ret_type)],
        ["weights", f"{sum(w.size for w in weights):,} numbers, {sum(w.nbytes for w in weights) / 1e6:,.1f} MB"],
        ["work", f"{flops / 1e9:,.3f} GFLOP, as its operators count them"],
        ["operators", ", ".join(f"{count} {name}" for name, count in counted)],
    ]


def _fused(module: Module, report: BuildReport) -> list[str]:
    """What became of the calls, and what their kernels keep to themselves."""
    assert report.module is not None and report.artifact is not None
    groups = [call.op for call in calls(report.module.main.body) if isinstance(call.op, Function)]
    kept = 0
    for group in groups:
        between = [call for call in calls(group.body) if call is not group.body]
        kept += sum(field.nbytes for call in between for field in tensor_fields(call.type) if field.is_static)
    runs = [node for node in report.artifact.graph.nodes if node.is_kernel]
    return [
        f"{len(_inside(module)):,} calls were imported; {len(runs):,} launches of {len({n.func for n in runs}):,}"
        f" kernels compute the model. {kept / 1e6:,.1f} MB of values between fused calls are never kept in memory.",
        "graph",
    ]


def _branches(module: Module, report: BuildReport) -> list[str]:
    """What is decided while the model runs."""
    assert report.artifact is not None
    held = _held(module)
    own = {node.func for node in report.artifact.graph.nodes if node.is_kernel}
    inside = sum(len(_of_operators(function)) for function in held)
    return [
        f"{_plural(len(held), 'function')} of branches and loops, of {_plural(inside, 'call')}, became"
        f" {_plural(len(report.groups) - len(own), 'kernel')} of their own, which run as the data decide.",
        "graph",
    ] * bool(held)


def _changed(before: Module, after: Module) -> list[list[str]]:
    """What is known by operators: those that are gone, and those that only the compiler makes."""
    old, new = (Counter(call.op.name for call in _inside(one) if isinstance(call.op, Op)) for one in (before, after))
    told = []
    if gone := old["nn.batch_norm"] - new["nn.batch_norm"]:
        left = _left_of("nn.batch_norm", before, after, ("multiply",))
        told.append(f"{gone - left} of {gone} batch normalizations became part of weights and biases.")
    if blocked := {name: count for name, count in new.items() if "NCHWc" in name}:
        quick = sum(count for name, count in blocked.items() if "winograd" in name)
        by_winograd = f", {quick} of them by Winograd's algorithm" * bool(quick)
        told.append(
            f"{_plural(sum(blocked.values()), 'convolution')} on blocks of channels, which fill vectors{by_winograd}."
            f" {_plural(new['layout_transform'], 'change')} of layout."
        )
    if made := new["nn.attention"] - old["nn.attention"]:
        told.append(f"{_plural(made, 'attention')} in one kernel each: scores are never whole in memory.")
    if packed := sum(new[name] for name in new if name.endswith("dense_pack")):
        told.append(f"{_plural(packed, 'matrix product')} by weights that lie in memory as kernels read them.")
    return [[sentence, "passes"] for sentence in told]


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def _left_of(operator: str, before: Module, after: Module, signs: Sequence[str]) -> int:
    """Calls of an operator whose nodes still have a call of one of ``signs``."""
    names = [set(c.span) for c in _inside(before) if isinstance(c.op, Op) and c.op.name == operator]
    still = {name for c in _inside(after) if isinstance(c.op, Op) and c.op.name in signs for name in c.span}
    return sum(bool(own & still) for own in names)


def _planned(report: BuildReport) -> list[str]:
    assert report.artifact is not None
    plan = report.artifact.plan
    if not plan.nbytes:
        return []
    return [
        f"Values share {plan.nbytes / 1e6:,.1f} MB of memory; each in its own place, they would need"
        f" {plan.naive / 1e6:,.1f} MB. No plan can do with less than {plan.lower_bound / 1e6:,.1f} MB.",
        "memory",
    ]


@dataclass(frozen=True)
class _Step:
    """A node that runs: its number, what it does, and the model's nodes."""

    number: int
    role: str
    spans: Sequence[str]
    inputs: Sequence[int] = ()

    @property
    def does(self) -> str:
        """Its role, whichever of several kernels of that role it is."""
        return re.sub(r" \(\d+\)$", "", self.role)

    @property
    def scope(self) -> list[str]:
        """The parts of its name but the last."""
        name = self.spans[0] if self.spans else ""
        return [part for part in name.replace(".", "/").split("/") if part][:-1]


def _hoisted(steps: Sequence[_Step]) -> list[_Step]:
    """What is done once stands where its operands are there, not between the parts of what repeats."""
    times = Counter(step.does for step in steps)
    places: dict[int, float] = {}
    for at, step in enumerate(steps):
        ready = max((places.get(number, -1.0) for number in step.inputs), default=-1.0)
        places[step.number] = at if times[step.does] > 1 else ready + 1e-6
    return sorted(steps, key=lambda step: places[step.number])


def blocks_of(steps: Sequence[_Step], whole: Sequence[_Step] | None = None) -> list[Any]:
    """Steps with what repeats put together: an item is a number, or ``[times, name, items, numbers]``, whose items are
    those of the first time and whose numbers are all.  ``whole``: all steps that there are."""
    whole = steps if whole is None else whole
    start, period, times = _longest_repeat([step.does for step in steps])
    if times < 2:
        return [step.number for step in steps]
    start, times = _aligned(start, period, times, steps)
    before, inside, after = steps[:start], steps[start : start + period * times], steps[start + period * times :]
    once = inside[:period]
    block = [times, _title(inside, once, whole), blocks_of(once, whole), [step.number for step in inside]]
    return [*blocks_of(before, whole), block, *blocks_of(after, whole)]


def _title(inside: Sequence[_Step], once: Sequence[_Step], whole: Sequence[_Step]) -> str:
    """A scope that is about the block's, or what it does."""
    scope = _common(inside)
    if scope and sum(step.scope[: len(scope)] == scope for step in whole) <= 2 * len(inside):
        return "/".join(scope[-2:])
    kinds = [re.split(r" *[\d,+]", step.role)[0] for step in once]
    return "transformer layer" if {"attention", "dense"} <= {*kinds} else ", ".join(dict.fromkeys(kinds))


def _longest_repeat(names: Sequence[str]) -> tuple[int, int, int]:
    """Start, period and times of the repetition that puts most away; of those the one of the shortest period."""
    best, most = (0, 0, 1), 0
    for period in range(1, len(names) // 2 + 1):
        ends = [i for i in range(len(names) - period) if names[i] != names[i + period]]
        for last, end in pairwise([-1, *ends, len(names) - period]):
            times = (end - last - 1) // period + 1
            if (times - 1) * period > most:
                best, most = (last + 1, period, times), (times - 1) * period
    return best


def _aligned(start: int, period: int, times: int, steps: Sequence[_Step]) -> tuple[int, int]:
    """The start and times for which each time has most of its scope in common: repetitions may begin anywhere."""
    end = start + period * times
    while end < len(steps) and steps[end].does == steps[end - period].does:
        end += 1

    def shared(first: int) -> tuple[int, int]:
        parts = [steps[i : i + period] for i in range(first, end - period + 1, period)]
        return len(parts), sum(len(_common(part)) for part in parts)

    best = max(range(start, end - 2 * period + 1), key=shared)
    return best, (end - best) // period


def _common(steps: Sequence[_Step]) -> list[str]:
    """The parts of names that all have."""
    paths = [step.scope for step in steps if step.spans]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return [first for first, *_ in shared]
