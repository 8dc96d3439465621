"""ONNX operators of training: optimisers' steps, batch normalization over its own batch."""

from collections.abc import Callable
from functools import partial

from minitvm.frontend.onnx.node import OnnxNode, cast, emit, rank, scalar, single
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Expr

optimiser = partial(onnx_op, domain="ai.onnx.preview.training")

Step = Callable[[Expr, Expr, list[Expr]], list[Expr]]
"""Learning rate, update count, and a tensor with its gradient and accumulators -> the new tensor and accumulators."""


def _each(node: OnnxNode, kinds: int, step: Step) -> list[Expr]:
    """The step of every tensor; inputs and outputs stand together by kind: tensors, gradients, accumulators."""
    count = (len(node.inputs) - 2) // kinds
    rate, age = (emit("reshape", node[i], newshape=()) for i in (0, 1))
    found = [step(rate, age, [node[2 + k * count + i] for k in range(kinds)]) for i in range(count)]
    return [one[kind] for kind in range(kinds - 1) for one in found]


def _regularized(node: OnnxNode, x: Expr, gradient: Expr) -> Expr:
    return emit("add", gradient, x * node.attr("norm_coefficient", 0.0))


def _first(age: Expr, then: float, otherwise: Expr | float, like: Expr) -> Expr:
    """Another number in the first update."""
    later = otherwise if isinstance(otherwise, Expr) else scalar(otherwise, like)
    return emit("where", emit("greater", age, 0), later, scalar(then, like))


@optimiser("Adagrad")
def adagrad(node: OnnxNode) -> list[Expr]:
    def step(rate: Expr, age: Expr, tensors: list[Expr]) -> list[Expr]:
        x, gradient, squares = tensors
        slope = _regularized(node, x, gradient)
        total = squares + slope * slope
        speed = cast(rate, x.dtype) / (cast(age, x.dtype) * node.attr("decay_factor", 0.0) + 1)
        return [x - speed * slope / (emit("sqrt", total) + node.attr("epsilon", 0.0)), total]

    return _each(node, 3, step)


@optimiser("Adam")
def adam(node: OnnxNode) -> list[Expr]:
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)

    def step(rate: Expr, age: Expr, tensors: list[Expr]) -> list[Expr]:
        x, gradient, momentum, squares = tensors
        slope, speed = _regularized(node, x, gradient), cast(rate, x.dtype)
        momentum = momentum * alpha + slope * (1 - alpha)
        squares = squares * beta + slope * slope * (1 - beta)
        powers = [emit("power", scalar(base, "float64"), cast(age, "float64")) for base in (beta, alpha)]
        ratio = emit("sqrt", 1 - powers[0]) / (1 - powers[1])
        speed = speed * _first(age, 1.0, cast(ratio, x.dtype), x)
        moved = x - speed * (momentum / (emit("sqrt", squares) + node.attr("epsilon", 0.0)))
        return [moved * (1 - node.attr("norm_coefficient_post", 0.0)), momentum, squares]

    return _each(node, 4, step)


@optimiser("Momentum")
def momentum(node: OnnxNode) -> list[Expr]:
    alpha, nesterov = node.require("alpha"), node.require("mode") == "nesterov"

    def step(rate: Expr, age: Expr, tensors: list[Expr]) -> list[Expr]:
        x, gradient, before = tensors
        slope = _regularized(node, x, gradient)
        after = before * alpha + _first(age, 1.0, node.require("beta"), x) * slope
        return [x - cast(rate, x.dtype) * (slope + after * alpha if nesterov else after), after]

    return _each(node, 3, step)


def batch_normalization(node: OnnxNode) -> list[Expr]:
    """Normalizes by the batch's own mean and variance, which also move the running ones; before opset 14 these two come
    last."""
    x, momentum = single(node[0]), node.attr("momentum")
    axes = tuple(d for d in range(rank(x)) if d != 1)
    mean = emit("mean", x, axis=axes, keepdims=True)
    variance = emit("variance", x, mean, axis=axes)
    mean = reshaped(mean, [x.shape[1]])
    scale, bias = (cast(node[i], x.dtype) for i in (1, 2))
    normed = emit("nn.batch_norm", x, scale, bias, mean, variance, axis=1, epsilon=node.attr("epsilon"))[0]
    running = [
        cast(cast(old, x.dtype) * momentum + new * (1 - momentum), old.dtype)
        for old, new in ((node[3], mean), (node[4], variance))
    ]
    return [cast(normed, node[0].dtype), *running, *(cast(v, node[0].dtype) for v in (mean, variance))]
