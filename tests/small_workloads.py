"""Small variants of every testing workload: the same layers on small images, trained-looking parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

import minitvm
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Function, Module, Tuple
from minitvm.ir.ops.nn_norm import Softmax
from minitvm.ir.types import TensorType
from minitvm.passes import bind_params
from minitvm.testing import densenet, inception, init, mlp, mobilenet, resnet, squeezenet, transformer, vgg

Workload = tuple[Module, dict[str, np.ndarray]]


def lecun(name: str, type_: TensorType, rng: np.random.Generator) -> np.ndarray:
    """:func:`init.trained` with half the variance in the weights.  MobileNet v2 has as many linear as rectified layers;
    weights made for rectified ones drive its relu6 into saturation, where a change of the input's last bit grows a
    hundredfold, in any arithmetic, until it reaches the scores."""
    value = init.trained(name, type_, rng)
    return value * np.sqrt(value.dtype.type(0.5)) if name.endswith("weight") else value


_TINY: dict[str, Any] = {"image_shape": (3, 32, 32), "num_classes": 10}
SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp": (mlp, {}),
    "resnet18": (resnet, _TINY),
    "resnet18_stem": (resnet, {"image_shape": (3, 64, 64), "num_classes": 10}),
    "resnet50": (resnet, {**_TINY, "num_layers": 50}),
    "mobilenet_v1": (mobilenet, _TINY),
    "mobilenet_v2": (mobilenet, {**_TINY, "version": 2, "initializer": lecun}),
    "vgg11": (vgg, _TINY),
    "vgg11_bn": (vgg, {**_TINY, "use_batch_norm": True}),
    "squeezenet": (squeezenet, _TINY),
    "densenet121": (densenet, _TINY),
    "inception_v3": (inception, {"image_shape": (3, 75, 75), "num_classes": 10}),
    "transformer": (transformer, {"sequence_length": 12, "hidden_size": 32, "num_heads": 4}),
}


def small(name: str, seed: int = 5) -> Workload:
    """The module and its parameters."""
    net, arguments = SMALL[name]
    module, params = net.get_workload(**{"initializer": init.trained, "seed": seed, **arguments})
    return module, params


def sample(module: Module, seed: int = 6) -> np.ndarray:
    """A random ``data``."""
    type_ = module.main.params[0].tensor_type
    return np.random.default_rng(seed).standard_normal(type_.static_shape).astype(type_.dtype)


def with_scores(module: Module) -> Module:
    """A classifier that also returns what its softmax reads, whose errors the softmax would hide."""
    body = module.main.body
    if not (isinstance(body, Call) and isinstance(body.op, Softmax)):
        return module
    return Module(Function(module.main.params, Tuple([body, body.args[0]])))


def evaluated(module: Module, params: dict[str, np.ndarray], data: np.ndarray) -> list[np.ndarray]:
    """What the numpy references say."""
    found = evaluate(bind_params(module.main, params), data)
    return list(found) if isinstance(found, tuple) else [found]


def compiled(module: Module, params: dict[str, np.ndarray], data: np.ndarray, opt_level: int) -> list[np.ndarray]:
    """What the machine code says."""
    library = minitvm.build(module, "llvm", params, opt_level, num_threads=2, strict=True)
    graph = minitvm.GraphModule(library["default"](minitvm.cpu(0)))
    graph.run(data=data)
    return [graph.get_output(i).numpy() for i in range(graph.get_num_outputs())]
