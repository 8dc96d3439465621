"""Random parameters for a network: Relay's ``create_workload`` and its initializers."""

from collections.abc import Callable

import numpy as np

from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import free_vars
from minitvm.passes import InferType
from minitvm.runtime.ndarray import Parameter

Initializer = Callable[[str, TensorType, np.random.Generator], np.ndarray]


def xavier(name: str, type_: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Relay's default, chosen by the name's suffix: weights uniform (Xavier, average fan, magnitude 3), scales and
    variances one, biases and means zero."""
    if name.endswith("weight"):
        bound = np.sqrt(3.0 / (sum(_fans(type_.static_shape)) / 2))
        return rng.uniform(-bound, bound, type_.static_shape).astype(type_.dtype)
    fill = 1 if name.endswith(("gamma", "var")) else 0
    return np.full(type_.static_shape, fill, type_.dtype)


def trained(name: str, type_: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Like a trained network: He-normal weights, and scales, biases, means and variances that differ by channel."""
    shape = type_.static_shape
    if name.endswith("weight"):
        value = rng.normal(0, np.sqrt(2.0 / _fans(shape)[1]), shape)
    elif name.endswith(("gamma", "var")):
        value = rng.uniform(0.5, 1.5, shape)
    else:
        value = rng.normal(0, 0.1, shape)
    return value.astype(type_.dtype)


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan out, fan in) of a weight: (out, in, *kernel)."""
    window = int(np.prod(shape[2:])) if len(shape) > 2 else 1
    inputs = shape[1] if len(shape) > 1 else shape[0]
    return shape[0] * window, inputs * window


def create_workload(
    net: Expr, initializer: Initializer | None = None, seed: int = 0
) -> tuple[Module, dict[str, Parameter]]:
    """The network as a typed module, and an array (with TVM's ``numpy()``, too) for every parameter but ``data``.

    ``initializer(name, type, rng)`` makes one parameter: :func:`xavier` by default, :func:`trained` for numbers that
    hide no mistake.
    """
    function = net if isinstance(net, Function) else Function(free_vars(net), net)
    module = InferType()(Module(function))
    rng = np.random.default_rng(seed)
    make = initializer or xavier
    named = [p for p in module.main.params if p.name != "data"]
    return module, {p.name: Parameter.of(make(p.name, p.tensor_type, rng)) for p in named}
