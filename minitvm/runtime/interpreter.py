"""Loops as an artefact's code, run by the loop interpreter, slowly and with every check; and loops as bytes.

Indices out of bounds, reads of memory that nobody wrote, elements never stored, and iterations of a parallel loop that
store to the same element are errors.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from minitvm.ir import loop
from minitvm.ir.loop import Buffer, Kernel, LoopExpr, LoopKind, Stmt
from minitvm.ir.loop.interp import run_sequence
from minitvm.runtime.code import CODES, Code
from minitvm.runtime.devices import Memory
from minitvm.runtime.graph import Artifact, CpuTag, Segment, stop_slot

Launches: TypeAlias = tuple[tuple[Buffer, ...], tuple[Kernel, ...]]
"""A group's parameters (inputs, then results), and the kernels that run over them, one after the other."""


class Interpreter(Code):
    """Kernels of an artefact, one after the other on one thread."""

    memory = Memory()
    most_threads = 1

    def __init__(self, artifact: Artifact) -> None:
        self.graph, self.images = artifact.graph, artifact.objects

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        """Loops run everywhere."""

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        nodes = what.nodes if isinstance(what, Segment) else (what,)
        launches = [self.launch(node, slots) for node in nodes]
        stop = ctypes.c_int64.from_address(slots + 8 * stop_slot(self.graph))

        def run() -> None:
            for launch in launches:
                if not stop.value:
                    launch()

        return run

    def launch(self, index: int, slots: int) -> Callable[[], None]:
        """The kernels of a node over what the slots point to when it runs."""
        node = self.graph.nodes[index]
        params, kernels = from_bytes(self.images[node.func])

        def run() -> None:
            arrays = dict(zip(params, self.arrays(index, params, slots), strict=True))
            found = run_sequence(kernels, {b: arrays[b] for b in params[: len(node.inputs)]}, check_races=True)
            for result in params[len(node.inputs) :]:
                arrays[result][...] = found[result]

        return run

    def arrays(self, index: int, buffers: Sequence[Buffer], slots: int) -> list[np.ndarray]:
        """The operands and results of a node as they are now."""
        node, starts = self.graph.nodes[index], self.graph.entry_start
        entries = [*map(self.graph.entry_id, node.inputs), *range(starts[index], starts[index + 1])]
        pointers = (ctypes.c_void_p * self.graph.entries).from_address(slots)
        return [_array(buffer, pointers[entry]) for buffer, entry in zip(buffers, entries, strict=True)]


def _array(buffer: Buffer, address: int | None) -> np.ndarray:
    nbytes = math.prod(buffer.shape) * np.dtype(buffer.dtype).itemsize
    memory = (ctypes.c_uint8 * nbytes).from_address(address or 0)
    return np.ctypeslib.as_array(memory).view(buffer.dtype).reshape(buffer.shape)


CODES["interp"] = Interpreter


def interpreter() -> type[Interpreter]:
    """What runs loops as they are."""
    return Interpreter


# --- as bytes -----------------------------------------------------------------------------------------------------

_NODES = (Buffer, LoopExpr, Stmt, Kernel)
_Node: TypeAlias = "Buffer | LoopExpr | Stmt | Kernel"


def to_bytes(params: Sequence[Buffer], kernels: Sequence[Kernel]) -> bytes:
    """A JSON list: numbers of the parameters and of the kernels, then nodes, each after those that it is made of."""
    number: dict[_Node, int] = {}
    records: list[list[Any]] = []
    roots: list[_Node] = [*params, *kernels]
    stack = [(node, False) for node in reversed(roots)]
    while stack:
        node, is_ready = stack.pop()
        values = _fields(node)
        if is_ready:
            number[node] = len(records)
            records.append([_class_of(node).__name__, *[_plain(value, number) for value in values]])
        elif node not in number:
            stack.append((node, True))
            stack += [(inner, False) for inner in _inside(values)]
    places = [[number[b] for b in params], [number[k] for k in kernels]]
    return json.dumps([*places, *records], default=lambda value: value.item()).encode("ascii")


def from_bytes(image: bytes) -> Launches:
    """What :func:`to_bytes` wrote."""
    params, kernels, *records = json.loads(image)
    made: list[Any] = []
    for name, *values in records:
        made.append(getattr(loop, name)(*[_value(value, made) for value in values]))
    return tuple(made[i] for i in params), tuple(made[i] for i in kernels)


def _class_of(node: _Node) -> type[Any]:
    return Buffer if isinstance(node, Buffer) else type(node)


def _fields(node: _Node) -> list[Any]:
    return [getattr(node, f.name) for f in dataclasses.fields(_class_of(node)) if f.init]


def _inside(values: Iterable[Any]) -> Iterator[_Node]:
    for value in values:
        if isinstance(value, _NODES):
            yield value
        elif isinstance(value, tuple):
            yield from _inside(value)


def _plain(value: Any, number: dict[_Node, int]) -> Any:
    if isinstance(value, _NODES):
        return {"node": number[value]}
    if isinstance(value, tuple):
        return [_plain(v, number) for v in value]
    return {"kind": value.value} if isinstance(value, LoopKind) else value


def _value(form: Any, made: list[Any]) -> Any:
    if isinstance(form, list):
        return tuple(_value(v, made) for v in form)
    if not isinstance(form, dict):
        return form
    return made[form["node"]] if "node" in form else LoopKind(form["kind"])
