"""Values between the grader and the student's code, which are two processes: data alone, whoever wrote the bytes.

Graphs travel as flat rows, from which constructors make new nodes; functions stay where they are, and a handle of them
travels; of anything else that is no plain data, its text.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from minitvm.ir.decision import Exactness
from minitvm.ir.expr import Expr, Function, Tuple
from minitvm.ir.loop import LoopExpr
from minitvm.ir.pickled import packed, unpacked
from minitvm.ir.visitor import post_order, substitute
from minitvm.passes.rule import Rule

_DATA = ("minitvm.ir.loop", "minitvm.ir.types", "minitvm.ir.dims", "minitvm.ir.node", "minitvm.ir.pattern")
_MORE = {
    "builtins": {"set", "frozenset", "complex", "range", "slice", "bytearray"},
    "minitvm.ir.decision": {"Declined", "Exactness"},
    "minitvm.passes.bound": {"Bound", "Of"},
    "numpy": {"ndarray", "dtype"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    __name__: {"made", "Other"},
}
"""What a message may name: classes of the first, these of the others."""


class Other:
    """Something that is no data, as it describes itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def made(kind: type[Any], fields: tuple[Any, ...]) -> Any:
    """A scalar expression of a kernel: its constructor keeps more than its fields."""
    if not issubclass(kind, LoopExpr):
        raise pickle.UnpicklingError(f"{kind} is no expression")
    return kind(*fields)


def nodes_of(value: Any) -> list[Expr]:
    """All nodes of the graphs in a value, in an order that both sides find."""
    roots = list(_roots(value))
    return post_order(*roots) if roots else []


def _roots(value: Any) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _roots(part)
    elif isinstance(value, dict):
        yield from _roots(list(value.values()))


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, handle: Callable[[Callable[..., Any]], int]) -> None:
        super().__init__(file, protocol=4)
        self.handle, self.roots = handle, list[Expr]()

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Expr):
            self.roots.append(value)
            return "node", len(self.roots) - 1
        if isinstance(value, Rule):
            claims = (value.name, value.pattern, value.exactness.value, value.bound)
            return "rule", (*claims, self.handle(value.apply))
        if isinstance(value, type) or not callable(value) or _may(value.__module__, getattr(value, "__qualname__", "")):
            return None
        return "function", self.handle(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, LoopExpr):
            assert dataclasses.is_dataclass(value)
            return made, (type(value), tuple(getattr(value, f.name) for f in dataclasses.fields(value) if f.init))
        kind = value if isinstance(value, type) or callable(value) else type(value)
        of_numpy = isinstance(kind, type) and issubclass(kind, (np.ndarray, np.generic, np.dtype))
        plain = of_numpy or _may(kind.__module__, kind.__qualname__)
        return NotImplemented if plain else (Other, (repr(value),))


def _may(module: str, name: str) -> bool:
    of_data = any(module == one or module.startswith(f"{one}.") for one in _DATA)
    return of_data or name in _MORE.get(module, ())


class _Reader(pickle.Unpickler):
    """Makes nothing but data."""

    def __init__(self, data: bytes, nodes: Sequence[Expr], function: Callable[[int], Callable[..., Any]]) -> None:
        super().__init__(io.BytesIO(data))
        self.nodes, self.function = nodes, function

    def find_class(self, module: str, name: str) -> Any:
        if "." in name or not _may(module, name):
            raise pickle.UnpicklingError(f"{module}.{name} is no data")
        found = getattr(importlib.import_module(module), name)
        if not isinstance(found, type) and name not in _MORE.get(module, ()) and module != "minitvm.ir.dims":
            raise pickle.UnpicklingError(f"{module}.{name} is no class")
        return found

    def persistent_load(self, given: Any) -> Any:
        kind, what = given
        if kind == "node":
            return self.nodes[what]
        if kind == "function":
            return self.function(what)
        name, pattern, exactness, bound, handle = what
        return Rule(name, pattern, self.function(handle), Exactness(exactness), bound)


def written(value: Any, known: Sequence[Expr], handle: Callable[[Callable[..., Any]], int]) -> bytes:
    """A message; ``known`` nodes are the other side's own, and arrive as those."""
    file = io.BytesIO()
    writer = _Writer(file, handle)
    writer.dump(value)
    number = {node: i for i, node in enumerate(known)}
    theirs = [node for node in (post_order(*writer.roots) if writer.roots else ()) if node in number]
    rows = io.BytesIO()
    _Writer(rows, handle).dump((len(writer.roots), packed([*writer.roots, *theirs]), [number[n] for n in theirs]))
    return pickle.dumps((file.getvalue(), rows.getvalue()))


def read(data: bytes, known: Sequence[Expr], function: Callable[[int], Callable[..., Any]]) -> Any:
    """The value of a message; ``pickle.UnpicklingError`` where it holds anything but data."""
    body, rows = _Reader(data, (), function).load()
    count, graph, theirs = _Reader(rows, (), function).load()
    nodes = unpacked(graph)
    own: dict[Expr, Expr] = {copy: known[i] for copy, i in zip(nodes[count:], theirs, strict=True)}
    return _Reader(body, _with(nodes[:count], own), function).load()


def _with(roots: list[Expr], own: dict[Expr, Expr]) -> list[Expr]:
    """The roots with nodes of this side in place of their copies; what they share stays so."""
    others = [root for root in roots if not isinstance(root, Function)]
    theirs = substitute(Tuple(others), own)
    assert isinstance(theirs, Tuple)
    found = dict(zip(others, theirs.fields, strict=True))
    return [own.get(root) or (substitute(root, own) if isinstance(root, Function) else found[root]) for root in roots]
