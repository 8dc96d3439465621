"""A graph of ATen operators as a function of tensors, compiled when it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import Dim

from minitvm.errors import FrontendError
from minitvm.session import InferenceSession
from minitvm.torch.exported import to_onnx
from minitvm.torch.tensors import array_of, tensor_of

CHANGES = 2
"""How often weights may change before they are inputs for good."""


@dataclass(frozen=True)
class Compiled:
    """A graph for some shapes, and for numbers that are built in."""

    session: InferenceSession
    numbers: tuple[Any, ...]

    def takes(self, tensors: Sequence[torch.Tensor], numbers: tuple[Any, ...]) -> bool:
        """True if these fit; a name stands for one size wherever it is."""
        sizes: dict[str, int] = {}
        return numbers == self.numbers and all(
            size == (sizes.setdefault(dim, size) if isinstance(dim, str) else size if dim is None else dim)
            for tensor, given in zip(tensors, self.session.get_inputs(), strict=True)
            for size, dim in zip(tensor.shape, given.shape, strict=True)
        )

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        names = (given.name for given in self.session.get_inputs())
        feeds = dict(zip(names, map(array_of, tensors), strict=True))
        return list(map(tensor_of, self.session.run(None, feeds)))


class CompiledGraph:
    """A graph without side effects, called with the list of its arguments, which it empties, or (``call``) with them.

    Arguments are tensors, and the sizes that the graph names.  ``weights`` are those, by position, that are constants
    until somebody changes them.  It is compiled for all sizes that it names, where operators allow that, else for each
    that comes; for ``values`` at once, which raises what exporting and compiling raise.
    """

    _boxed_call = True  # the mark of a function that empties its list of arguments

    def __init__(
        self,
        graph: fx.GraphModule,
        options: Mapping[str, Any],
        values: Sequence[Any] | None = None,
        weights: Iterable[int] = (),
    ) -> None:
        self._options = {"num_threads": torch.get_num_threads(), **options}
        self._signature = Signature(graph)
        self._weights = frozenset(weights)
        self._versions: tuple[tuple[int, int], ...] = ()
        self._changes = -1  # the first call finds weights that it has not seen
        self._compiled: list[Compiled] = []
        if values is not None and self._signature.computes:
            self._look(values)
            self._for(values)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        values = list(arguments)
        arguments.clear()
        return self.call(*values)

    def call(self, *values: Any) -> list[Any]:
        self._look(values)
        computed = self._run(values) if self._signature.computes else []
        return [result.of(values, computed) for result in self._signature.results]

    def _look(self, values: Sequence[Any]) -> None:
        """Forgets what was compiled where it holds other weights than these."""
        versions = tuple(_version(values[i]) for i in self._weights)
        if versions != self._versions:
            self._compiled.clear()
            self._versions = versions
            self._changes += 1
            if self._changes > CHANGES:
                self._weights, self._versions = frozenset(), ()

    def _run(self, values: Sequence[Any]) -> list[torch.Tensor]:
        return self._for(values).run([values[i] for i in self._own()])

    def _own(self) -> list[int]:
        return [i for i in self._signature.tensors if i not in self._weights]

    def _for(self, values: Sequence[Any]) -> Compiled:
        """What is compiled for these arguments, now or before."""
        numbers = tuple(values[i] for i in self._signature.numbers)
        own = self._own()
        for compiled in self._compiled:
            if compiled.takes([values[i] for i in own], numbers):
                return compiled
        with ThreadPoolExecutor(1) as elsewhere:  # a thread of its own, without the modes that PyTorch has set here
            compiled = Compiled(elsewhere.submit(self._session, values, own).result(), numbers)
        self._compiled.append(compiled)
        return compiled

    def _session(self, values: Sequence[Any], own: Sequence[int]) -> InferenceSession:
        weights = {i: values[i] for i in self._weights}
        function = _Function(self._signature, values, own, weights).eval()
        open_ = tuple(dict.fromkeys(self._signature.open_axes(i), Dim.AUTO) for i in own)
        tensors = tuple(values[i].detach() for i in own)
        return InferenceSession(to_onnx(function, tensors, dynamic_shapes=(open_,)), **self._options)


def _version(weight: torch.Tensor) -> tuple[int, int]:
    """What changes with its values or memory; tensors made in inference mode do not count their changes."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


@dataclass(frozen=True)
class Result:
    """An argument as it is, one of the tensors that are computed, or nothing."""

    argument: int | None = None
    computed: int | None = None

    def of(self, arguments: Sequence[Any], computed: Sequence[torch.Tensor]) -> Any:
        if self.argument is not None:
            return arguments[self.argument]
        return None if self.computed is None else computed[self.computed]


class Signature:
    """What a graph takes and gives, and the same graph that gives only what it computes, each tensor once."""

    def __init__(self, graph: fx.GraphModule) -> None:
        arguments = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._values = [value_of(node) for node in arguments]
        self.tensors = [i for i, value in enumerate(self._values) if isinstance(value, torch.Tensor)]
        self.sizes = {i: place for i in range(len(arguments)) if i not in self.tensors and (place := self._size(i))}
        """Arguments that are sizes of others: of which one, along which axis."""
        self.numbers = [i for i in range(len(arguments)) if i not in self.tensors and i not in self.sizes]
        places = {node: i for i, node in enumerate(arguments)}
        found: dict[fx.Node, int] = {}
        given = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        self.results = [_result(node, places, found) for node in given]
        self.computes = bool(found)
        self.function = _giving(graph, tuple(found))

    def open_axes(self, tensor: int) -> list[int]:
        """Axes of an argument that the graph has no number for."""
        return [axis for axis, size in enumerate(self._values[tensor].shape) if not isinstance(size, int)]

    def _size(self, argument: int) -> tuple[int, int] | None:
        name = str(self._values[argument])
        places = ((i, axis) for i in self.tensors for axis in self.open_axes(i))
        return next((p for p in places if str(self._values[p[0]].shape[p[1]]) == name), None)


def value_of(node: fx.Node) -> Any:
    """What a node stands for: a tensor without data, or a number; as AOTAutograd or as TorchDynamo notes it."""
    return node.meta.get("val", node.meta.get("example_value"))


def _result(node: Any, places: Mapping[fx.Node, int], found: dict[fx.Node, int]) -> Result:
    if node is None:
        return Result()
    if node in places:
        return Result(argument=places[node])
    if not isinstance(value_of(node), torch.Tensor):
        raise FrontendError(
            f"the graph gives {node.name}, which is a number that it computes, not a tensor",
            hint="TorchDynamo can run such graphs itself: torch._dynamo.config.suppress_errors = True",
        )
    return Result(computed=found.setdefault(node, len(found)))


def _giving(graph: fx.GraphModule, results: tuple[fx.Node, ...]) -> fx.GraphModule:
    copied: dict[fx.Node, fx.Node] = {}
    new = fx.Graph()
    new.graph_copy(graph.graph, copied)
    new.output(tuple(copied[node] for node in results))
    for node in new.nodes:
        node.meta.clear()  # values of another trace
    return fx.GraphModule(graph, new)


class _Function(torch.nn.Module):
    """The graph as a function of the tensors that are no weights; sizes are theirs."""

    def __init__(
        self, signature: Signature, values: Sequence[Any], own: Sequence[int], weights: Mapping[int, torch.Tensor]
    ) -> None:
        super().__init__()
        self.function = signature.function
        self._sizes, self._own = signature.sizes, list(own)
        self._numbers = {i: values[i] for i in signature.numbers}
        self._count = len(values)
        for i, weight in weights.items():
            self.register_buffer(f"weight_{i}", weight.detach())

    def forward(self, *tensors: torch.Tensor) -> Any:
        given: dict[int, Any] = dict(zip(self._own, tensors, strict=True))
        weight = {i: buffer for i in range(self._count) if (buffer := getattr(self, f"weight_{i}", None)) is not None}
        known = {**given, **weight, **self._numbers}
        sizes = {i: known[tensor].shape[axis] for i, (tensor, axis) in self._sizes.items()}
        return self.function(*({**known, **sizes}[i] for i in range(self._count)))
