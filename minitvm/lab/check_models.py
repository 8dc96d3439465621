"""The whole model as it is compiled: at every level, on several numbers of threads, beside an oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minitvm.driver.compile import backend_for, build_consuming
from minitvm.errors import MiniTVMError, TargetError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Function, Module
from minitvm.lab.check_kernels import with_team
from minitvm.passes.compare import Comparison, compare, first_difference
from minitvm.passes.draws import DRAWS, Draw
from minitvm.passes.pipeline import Plan
from minitvm.passes.roundings import Results, flatten
from minitvm.runtime import graph as runtime_graph
from minitvm.runtime.graph import Graph, round_up
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library
from minitvm.runtime.places import liveness, owners


@dataclass(frozen=True)
class Setting:
    """The way in which a model is compiled and run."""

    target: str = "llvm"
    level: int = 3
    threads: int = 1
    plan: Plan | None = None
    """The passes, where they are not the default ones."""

    def __str__(self) -> str:
        return f"level {self.level} on {self.threads} thread{'s' * (self.threads > 1)}"

    def library(self, module: Module) -> Library:
        backend = backend_for(self.target, self.threads)
        return build_consuming(module, {}, backend, self.level, plan=self.plan)


@dataclass
class ModelProof:
    """What a compiled model was compared on, and what is wrong with it."""

    setting: Setting
    library: Library
    found: Comparison | None = None
    error: str = ""
    inputs: list[Any] = field(default_factory=list)


def runner(instance: Instance, function: Function) -> Callable[[list[Any]], Any]:
    """A compiled model as a function of the inputs by position."""
    names = [p.name for p in function.params]

    def run(inputs: list[Any]) -> Any:
        _assign(instance, names, inputs)
        instance.run()
        instance.settle()
        return tuple(np.array(instance.value(head)) for head in instance.graph.heads)

    return run


def _assign(instance: Instance, names: Sequence[str], inputs: Sequence[Any]) -> None:
    for name, value in zip(names, inputs, strict=True):
        for leaf, array in _leaves(name, value):
            instance.assign(leaf, array)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A tuple's fields, under the names that the graph gives them."""
    if not isinstance(value, tuple):
        yield name, value
        return
    for i, part in enumerate(value):
        yield from _leaves(f"{name}_{i}", part)


def prove_model(module: Module, setting: Setting, known: dict[Draw, Results], draw: Draw | None = None) -> ModelProof:
    """The model compiled and run, beside ``known``, or what its operators' references say, which is kept there.

    ``draw``: the one that it is compared on, instead of all.
    """
    library = setting.library(module)
    proof = ModelProof(setting, library)
    try:
        run = runner(with_team(library, setting.threads), module.main)
        proof.found = compare(module.main, run, draws=[draw] if draw else DRAWS, known=known)
    except TargetError:  # the machine is not there: nobody's mistake
        raise
    except MiniTVMError as error:
        proof.error = f"it raises: {error.message}"
        return proof
    known.update(proof.found.expected)
    proof.error, proof.inputs = proof.found.difference, proof.found.inputs
    return proof


# --- memory ---------------------------------------------------------------------------------------------------


def overlaps(graph: Graph, plan: runtime_graph.Plan) -> list[str]:
    """Values, or workspaces, that live at the same time in the same bytes of the arena."""
    owner, spans = owners(graph), liveness(graph)
    placed, found = [], []
    for entry, (at, node) in enumerate(zip(plan.offsets, graph.makers, strict=True)):
        if at >= 0 and owner[entry] == entry:
            nbytes = round_up(max(1, graph.entry_types[entry].nbytes))
            placed.append((at, at + nbytes, *spans[entry], f"the result of {node.name}"))
    order = sorted(placed)
    for i, (_, end, first, until, name) in enumerate(order):
        for start, _, other_first, other_until, other in order[i + 1 :]:
            if start >= end:
                break
            if other_first <= until and first <= other_until:
                found.append(f"{name} and {other} share memory, and both are needed at step {max(first, other_first)}")
    return found


# --- kernel by kernel -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The first node of a run that is wrong: what it is, and what is wrong with it."""

    kind: str
    """``kernel`` or ``memory``."""
    node: str
    symbol: str
    message: str


def first_wrong_step(module: Module, library: Library, setting: Setting, inputs: list[Any]) -> Step | None:
    """Runs a model node by node: each kernel beside its operators' references over the values that it really gets, and
    each value beside what it was when it was stored."""
    instance = with_team(library, setting.threads)
    _assign(instance, [p.name for p in module.main.params], inputs)
    graph, kept = instance.graph, dict[int, np.ndarray]()
    groups = library.report.groups if library.report else {}
    for index, node in enumerate(graph.nodes):
        if node.is_null:
            continue
        given = [np.array(instance.value(entry)) for entry in node.inputs]
        for entry, value in zip(node.inputs, given, strict=True):
            stored = kept.get(graph.entry_id(entry))
            if stored is not None and not np.array_equal(_bytes(stored), _bytes(value)):
                made = graph.nodes[entry[0]].name
                return Step("memory", node.name, "", f"the result of {made} is overwritten before {node.name} reads it")
        instance.node_step(index)()
        for i in range(len(node.types)):
            kept[graph.entry_id((index, i))] = np.array(instance.value((index, i)))
        wrong = _wrong_kernel(
            groups, node.func, given, [kept[graph.entry_id((index, i))] for i in range(len(node.types))]
        )
        if node.is_kernel and wrong:
            return Step("kernel", node.name, node.func, wrong)
    return None


def _bytes(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value).view(np.uint8).reshape(-1) if value.size else value


def _wrong_kernel(groups: dict[str, Function], symbol: str, given: list[np.ndarray], found: list[np.ndarray]) -> str:
    group = groups.get(symbol)
    if group is None or len(group.params) != len(given):
        return ""
    return first_difference(found, flatten(evaluate(group, *given)))
