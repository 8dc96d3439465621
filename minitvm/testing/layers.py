"""Layers with Relay's parameter names: ``NAME_weight``, ``NAME_bias``, ``NAME_gamma``, ``NAME_moving_mean``, ..."""

from collections.abc import Callable
from typing import Any

from minitvm.ir import builder as ir
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Expr, Function, Module
from minitvm.runtime.ndarray import Parameter
from minitvm.testing.init import Initializer, create_workload


def conv2d(
    data: Expr,
    name: str,
    channels: int,
    kernel_size: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    **attributes: Any,
) -> Expr:
    """A convolution of NCHW data without bias; its weight's shape is inferred."""
    window = {"kernel_size": kernel_size, "strides": strides, "padding": padding}
    return ir.nn.conv2d(data, var(f"{name}_weight"), channels=channels, **window, **attributes)


def batch_norm(data: Expr, name: str, epsilon: float = 1e-5, **attributes: Any) -> Expr:
    """Inference batch normalization over axis 1."""
    parameters = [var(f"{name}_{p}") for p in ("gamma", "beta", "moving_mean", "moving_var")]
    return ir.nn.batch_norm(data, *parameters, epsilon=epsilon, **attributes)[0]


def relu(data: Expr) -> Expr:
    return ir.nn.relu(data)


def conv_bn_relu(data: Expr, name: str, channels: int, kernel_size: tuple[int, int], **attributes: Any) -> Expr:
    return relu(batch_norm(conv2d(data, f"{name}_conv", channels, kernel_size, **attributes), f"{name}_bn"))


def conv_bias(data: Expr, name: str, channels: int, kernel_size: tuple[int, int], **attributes: Any) -> Expr:
    return ir.nn.bias_add(conv2d(data, name, channels, kernel_size, **attributes), var(f"{name}_bias"))


def dense(data: Expr, name: str, units: int) -> Expr:
    """``data @ weight.T + bias``; data: (m, k)."""
    return ir.nn.bias_add(ir.nn.dense(data, var(f"{name}_weight"), units=units), var(f"{name}_bias"), axis=-1)


def max_pool(data: Expr, size: int, stride: int, padding: int = 0) -> Expr:
    return ir.nn.max_pool2d(data, pool_size=(size, size), strides=(stride, stride), padding=(padding, padding))


def avg_pool(data: Expr, size: int, stride: int, padding: int = 0) -> Expr:
    return ir.nn.avg_pool2d(data, pool_size=(size, size), strides=(stride, stride), padding=(padding, padding))


def classifier(data: Expr, name: str, num_classes: int) -> Expr:
    """Global average pooling, a dense layer, softmax."""
    return ir.nn.softmax(dense(ir.nn.batch_flatten(ir.nn.global_avg_pool2d(data)), name, num_classes))


def concatenate(*parts: Expr) -> Expr:
    return call_op("concatenate", list(parts), axis=1)


def image(batch_size: int, image_shape: tuple[int, int, int], dtype: str) -> Expr:
    """The input every network calls ``data``: (batch, channels, height, width)."""
    return var("data", shape=(batch_size, *image_shape), dtype=dtype)


def workload_of(get_net: Callable[..., Function]) -> Callable[..., tuple[Module, dict[str, Parameter]]]:
    """``get_workload`` of a network: ``get_net``'s arguments, ``initializer`` and ``seed`` -> (module, parameters)."""

    def get_workload(
        *arguments: Any, initializer: Initializer | None = None, seed: int = 0, **named: Any
    ) -> tuple[Module, dict[str, Parameter]]:
        return create_workload(get_net(*arguments, **named), initializer, seed)

    return get_workload
