"""Chains in which each value is used twice: ``x = f(x) + g(x)``, f and g operators out of ONNX's own examples.

Whatever follows values instead of nodes (a walk that forgets where it was, a fused value computed anew by each of its
users) doubles its work a link.  ``python -m tests.doubled`` tries every operator with a few partners and says which
pairs grow more than linearly: in steps of Python until there is machine code, and in expressions of the kernels.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import FrameType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from minitvm.codegen.backend import backend_of
from minitvm.driver.compile import optimize_for
from minitvm.driver.kernels import KernelCompiler, NotLowered, Timings
from minitvm.driver.program import read_program
from minitvm.errors import MiniTVMError
from minitvm.frontend import from_onnx
from minitvm.ir.dims import assumptions
from minitvm.ir.loop import walk_exprs
from minitvm.passes.manager import PassContext
from minitvm.runtime.cache import KernelCache
from minitvm.target import Target
from tests.steps import steps

FLOATS, MOST_ELEMENTS = ("float32", "float64", "float16"), 2048
OLDEST = 14
"""The opset from which on all that stands between links takes all dtypes."""
DEPTHS = (10, 20)
MOST_GROWTH = 2.5
"""Of the second depth, twice the first; exactly linear is 2."""


@dataclass(frozen=True)
class Link:
    """An operator as one of ONNX's examples has it, whose first argument a chain's value takes the place of."""

    name: str
    node: onnx.NodeProto
    shape: tuple[int, ...]
    dtype: str
    constants: dict[str, np.ndarray]
    result: tuple[tuple[int, ...], str]
    opset: int


@cache
def links() -> dict[str, Link]:
    """One for each operator that takes numbers and makes some, by name."""
    from onnx.backend.test.case.node import collect_testcases

    found: dict[str, Link] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in sorted(collect_testcases(None), key=lambda c: c.name):
            link = _link(case.model, case.data_sets)
            if link is not None:
                found.setdefault(link.name, link)
    return found


def _link(model: Any, data_sets: Any) -> Link | None:
    graph = model.graph
    if len(graph.node) != 1 or not data_sets or graph.node[0].domain or model.functions:
        return None
    (inputs, outputs), (node,) = data_sets[0], graph.node
    names = [value.name for value in graph.input]
    if len(inputs) != len(names) or not names or node.input[0] != names[0]:
        return None
    given, made = [*inputs, outputs[0]], outputs[0]
    if not all(isinstance(a, (np.ndarray, np.generic)) and np.asarray(a).dtype.kind in "fiub" for a in given):
        return None
    first = np.asarray(inputs[0])
    if not 1 < first.size <= MOST_ELEMENTS or not 0 < np.asarray(made).size <= MOST_ELEMENTS:
        return None
    if any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
        return None
    if not node.output[0]:
        return None
    constants = {n: np.asarray(a) for n, a in zip(names[1:], inputs[1:], strict=True)}
    result = np.asarray(made)
    opset = max(entry.version for entry in model.opset_import if not entry.domain)
    return Link(node.op_type, node, first.shape, first.dtype.name, constants, (result.shape, result.dtype.name), opset)


class _Chain:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, array: Any) -> str:
        given = np.asarray(array)
        name = f"k{len(self.constants)}"
        self.constants[name] = given
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def as_type(self, value: str, have: tuple[tuple[int, ...], str], want: tuple[tuple[int, ...], str]) -> str:
        """The first elements, or all of them again and again."""
        if have[1] != want[1]:
            value = self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(want[1])))
        if have[0] == want[0]:
            return value
        count, room = int(np.prod(have[0])), int(np.prod(want[0]))
        if count != room:
            value = self.op("Reshape", value, self.constant(np.array([-1])))
        if count < room:
            value = self.op("Tile", value, self.constant(np.array([-(-room // count)])))
        if count != room and room % count:
            value = self.op("Slice", value, self.constant([0]), self.constant([room]), self.constant([0]))
        return self.op("Reshape", value, self.constant(np.array(want[0], np.int64)))

    def apply(self, link: Link, value: str) -> str:
        node = onnx.NodeProto()
        node.CopyFrom(link.node)
        del node.input[:], node.output[:]
        name = f"v{len(self.nodes)}"
        node.name = name
        given = {link.node.input[0]: value, **{n: self.constant(a) for n, a in link.constants.items()}}
        node.input.extend(given.get(n, "") for n in link.node.input)
        node.output.extend(f"{name}_{i}" if i and n else name if n else "" for i, n in enumerate(link.node.output))
        self.nodes.append(node)
        return name


def chain(first: Link, second: Link, depth: int, symbolic: bool = False) -> onnx.ModelProto:
    """``x = f(x) + g(x)``, ``depth`` times, of the type that f takes; exclusive or, of conditions."""
    made, own, value = _Chain(), (first.shape, first.dtype), "x"
    for _ in range(depth):
        sides = []
        for link in (first, second):
            given = made.as_type(value, own, (link.shape, link.dtype))
            sides.append(made.as_type(made.apply(link, given), link.result, own))
        value = made.op("Xor" if own[1] == "bool" else "Add", *sides)
    shape = [f"n{i}" for i in range(len(own[0]))] if symbolic else own[0]
    given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(own[1])), shape)
    weights = [numpy_helper.from_array(array, name) for name, array in made.constants.items()]
    graph = helper.make_graph(made.nodes, "doubled", [given], [onnx.ValueInfoProto(name=value)], weights)
    opset = max(first.opset, second.opset, OLDEST)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def expressions(model: onnx.ModelProto, level: int = 2, target: str = "llvm") -> int:
    """Distinct expressions of all kernels, and one for each kernel's launch, with all that is done to get there."""
    backend = backend_of(Target.parse(target), 2)
    open_shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input
    }
    with PassContext(opt_level=level), assumptions():
        module, params = from_onnx(model, shape_dict=open_shapes)
        program = read_program(optimize_for(backend, module, params).main)
        compiler = KernelCompiler(backend, KernelCache(None), Timings())
        total = sum(node.is_kernel for node in program.graph.nodes)
        for symbol, group in program.groups.items():
            try:
                kernel = compiler.kernel(symbol, group)
            except NotLowered:
                continue
            total += sum(1 for _ in walk_exprs(kernel.body))
            backend.source(backend.bind(kernel))
    return total


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """TimeoutError after so much time of the processor."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def growth(make: Callable[[int], onnx.ModelProto], work: Callable[[onnx.ModelProto], int]) -> float:
    """How many times as much the second depth takes as the first."""
    few, many = (work(make(depth)) for depth in DEPTHS)
    return many / max(few, 1)


def counted(model: onnx.ModelProto, level: int = 2, target: str = "llvm") -> int:
    return steps(lambda: expressions(model, level, target))


def pairs(seed: int, partners: int) -> Iterator[tuple[Link, Link]]:
    """Every operator with itself and some others."""
    known, draw = links(), random.Random(seed)
    for name, link in known.items():
        for other in (name, *draw.sample(sorted(known), partners)):
            yield link, known[other]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--partners", type=int, default=2, help="others that each operator is paired with")
    parser.add_argument("--only", default="", help="pairs with an operator of this name")
    parser.add_argument("--seconds", type=int, default=20, help="of the processor for one chain")
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--symbolic", action="store_true")
    parser.add_argument("--steps", action="store_true", help="count steps of Python, too; ten times as slow")
    parser.add_argument("--share", default="0/1", help="of the pairs: 1/4 is the second fourth")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    part, parts = map(int, given.share.split("/"))
    work = partial(counted if given.steps else expressions, level=given.level, target=given.target)
    tried = refused = 0
    wrong = []
    for number, (first, second) in enumerate(pairs(given.seed, given.partners)):
        if number % parts != part or given.only not in (first.name, second.name, ""):
            continue
        what, start = f"{first.name} and {second.name}", time.process_time()
        try:
            with limit(given.seconds):
                found = growth(partial(chain, first, second, symbolic=given.symbolic), work)
        except TimeoutError as error:
            found, what = float("inf"), f"{what}: {error}"
        except MiniTVMError as error:
            refused += 1
            print(f"{what}: refused: {error.message[:100]}", file=sys.stderr)
            continue
        tried += 1
        if found > MOST_GROWTH:
            wrong.append(what)
            print(f"{what}: {found:.2f} times, {time.process_time() - start:.1f} s", flush=True)
    print(f"{tried} pairs, {refused} refused, {len(wrong)} more than linear")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
