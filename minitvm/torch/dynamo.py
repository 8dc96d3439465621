"""``torch.compile(model, backend="minitvm")``.

TorchDynamo finds the graphs, guards them, and breaks where Python has its say.  What arrives here is exported, imported
and compiled at once, with the operators that the model has; where it writes to its inputs or gives views of them,
AOTAutograd makes functions of tensors out of it first.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.multiprocessing.reductions import StorageWeakRef

from minitvm.errors import ConfigError
from minitvm.torch.decompositions import DECOMPOSITIONS
from minitvm.torch.exported import NotAFunction, Writes
from minitvm.torch.graph import CompiledGraph, value_of

OPTIONS = ("target", "opt_level", "num_threads", "strict")


class NotCompiledWarning(UserWarning):
    """A graph runs in PyTorch, and why."""


def backend(graph: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
    """The back end, as ``torch.compile`` calls it; for inference, under ``torch.no_grad()`` or ``inference_mode``.

    ``options`` are those of :class:`minitvm.InferenceSession` named in ``OPTIONS``; threads are PyTorch's unless given.
    Parameters and buffers become constants; where their values change, they are compiled anew, and inputs in the end.
    Graphs that gradients are asked of, and those that draw random numbers, run in PyTorch: :class:`NotCompiledWarning`.

    Raises :class:`ConfigError` for options that do not exist, and what exporting and compiling raise.
    """
    given = dict(options or {})
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise ConfigError(f"the back end has no option {', '.join(unknown)}", hint=f"options: {', '.join(OPTIONS)}")
    if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in example_inputs):
        return _in_pytorch("gradients are asked for; torch.no_grad() asks for none", graph)
    weights = [i for i, value in enumerate(example_inputs) if _is_weight(value)]
    values = [int(value) if isinstance(value, torch.SymInt) else value for value in example_inputs]
    try:
        if not _has_views_of_memory(graph):
            with suppress(Writes):
                return CompiledGraph(graph, given, values, weights).call
        return _functional(graph, example_inputs, partial(_inference, given, values, weights))
    except NotAFunction as why:
        return _in_pytorch(why.message, graph)


def _is_weight(value: Any) -> bool:
    """What belongs to the model: PyTorch marks it, since it does not guard its values."""
    return isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None


def _has_views_of_memory(graph: fx.GraphModule) -> bool:
    """True if a result shares memory with an argument or another result, and is not an argument itself."""
    arguments = [node for node in graph.graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.graph.nodes if node.op == "output")
    results = [node for node in dict.fromkeys(output.args[0]) if node not in arguments]
    values = [value_of(node) for node in (*arguments, *results)]
    memory = [StorageWeakRef(v.untyped_storage()) for v in values if isinstance(v, torch.Tensor)]
    return len(set(memory)) < len(memory)


def _functional(graph: fx.GraphModule, inputs: Sequence[Any], compiler: Any) -> Any:
    """By AOTAutograd, which takes views and mutations out, and higher operators apart."""
    return aot_autograd(fw_compiler=compiler, inference_compiler=compiler, decompositions=DECOMPOSITIONS)(graph, inputs)


def _inference(
    options: dict[str, Any], values: list[Any], weights: list[int], graph: fx.GraphModule, _: Sequence[Any]
) -> Any:
    """As the graph was before, unless arguments have come or gone."""
    same = sum(node.op == "placeholder" for node in graph.graph.nodes) == len(values)
    return CompiledGraph(graph, options, values if same else None, weights if same else ())


def _in_pytorch(why: str, graph: fx.GraphModule) -> Any:
    warnings.warn(f"a graph runs in PyTorch: {why}", NotCompiledWarning, stacklevel=3)
    return graph.forward
