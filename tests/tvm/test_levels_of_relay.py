"""Behaviours of v0.14's tests of operators, levels 1 and 2, as read there and written anew; ``LEFT_OUT`` says what
is not the same, and why."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay as names
from minitvm.errors import MiniTVMError
from minitvm.tvm.relay.text import astext

relay: Any = names
te: Any = importlib.import_module("minitvm.te")
RNG = np.random.default_rng(14)
DTYPES = ("float16", "float32")
UNARY: dict[str, tuple[Any, Any]] = {
    "log": (relay.log, np.log),
    "exp": (relay.exp, np.exp),
    "erf": (relay.erf, np.vectorize(math.erf)),
    "sqrt": (relay.sqrt, np.sqrt),
    "rsqrt": (relay.rsqrt, lambda x: 1 / np.sqrt(x)),
    "sigmoid": (relay.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (relay.tanh, np.tanh),
    "relu": (relay.nn.relu, lambda x: np.maximum(x, 0)),
    "cos": (relay.cos, np.cos),
    "sin": (relay.sin, np.sin),
    "tan": (relay.tan, np.tan),
    "atan": (relay.atan, np.arctan),
}


def run(expr: Any, inputs: dict[Any, np.ndarray], kind: str = "graph") -> np.ndarray:
    function = relay.Function([*inputs], expr)
    found: np.ndarray = np.asarray(relay.create_executor(kind).evaluate(function)(*inputs.values()))
    return found


def typed(expr: Any) -> Any:
    return relay.testing.run_infer_type(expr)


def unary(name: str, dtype: str) -> None:
    make, meaning = UNARY[name]
    x = relay.var("x", relay.TensorType((10, 4)), dtype=dtype)
    data = RNG.uniform(0.05, 0.95, (10, 4)).astype(dtype)
    assert f"{make(x).op.name}(%x)" in make(x).astext() and typed(make(x)).checked_type.shape == (10, 4)
    np.testing.assert_allclose(run(make(x), {x: data}), meaning(data.astype("float64")), rtol=0.01)


def binary(name: str, dtype: str) -> None:
    make, n = getattr(relay, name), te.var("n")
    x, y = (relay.var(v, relay.TensorType(s, dtype)) for v, s in (("x", (5, n, 5)), ("y", (n, 1))))
    assert f"{name}(%x, %y)" in make(x, y).astext() and typed(make(x, y)).checked_type == x.checked_type
    x, y = (relay.var(v, relay.TensorType((5, 10, 5)), dtype=dtype) for v in "xy")
    a, b = (RNG.uniform(0.1, 1, (5, 10, 5)).astype(dtype) for _ in range(2))
    meaning = {"floor_mod": np.fmod}.get(name) or getattr(np, name)
    np.testing.assert_allclose(run(make(x, y), {x: a, y: b}), meaning(a, b), rtol=0.01, atol=1e-3)


def expand_dims(dtype: str) -> None:
    for axis, count, shape in ((2, 2, (3, 10, 1, 1)), (-3, 1, (1, 3, 10))):
        x, data = relay.Var("x", relay.TensorType((3, 10), dtype)), RNG.uniform(size=(3, 10)).astype(dtype)
        np.testing.assert_array_equal(run(relay.expand_dims(x, axis, count), {x: data}), data.reshape(shape))
    n, t = te.size_var("n"), te.size_var("t")
    y = relay.expand_dims(relay.var("x", shape=(n, t, 100), dtype=dtype), axis=2)
    assert "axis=2" in y.astext() and typed(y).checked_type == relay.TensorType((n, t, 1, 100), dtype)


def bias_add(dtype: str) -> None:
    x, bias = relay.var("x", shape=(10, 2, 3, 4), dtype=dtype), relay.var("bias", dtype=dtype)
    z = typed(relay.nn.bias_add(x, bias))
    assert "axis=" not in z.astext() and z.args[1].checked_type == relay.TensorType((2,), dtype)
    a, b = (RNG.uniform(size=s).astype(dtype) for s in ((10, 2, 3, 4), (2,)))
    found = run(relay.nn.bias_add(x, bias), {x: a, bias: b})
    np.testing.assert_allclose(found, a + b.reshape(2, 1, 1), rtol=1e-2 if dtype == "float16" else 1e-5)


def bias_add_of_scalars() -> None:
    for axis in (0, -1, -3, 1):
        with pytest.raises(MiniTVMError, match="axis"):
            typed(relay.nn.bias_add(relay.const(1), relay.const(2), axis=axis))


def softmax(make: Any, meaning: Callable[[np.ndarray], np.ndarray]) -> None:
    x, data = relay.var("x", shape=(10, 4)), RNG.uniform(size=(10, 4)).astype("float32")
    y = make(x, axis=1)
    assert y.op.name in y.astext() and typed(y).checked_type == relay.TensorType((10, 4), "float32")
    np.testing.assert_allclose(run(y, {x: data}), meaning(data), rtol=1e-5)


def _softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


def concatenate(dtype: str) -> None:
    n, t = te.size_var("n"), te.size_var("t")
    x, y = (relay.var(v, shape=(n, t, 100)) for v in "xy")
    for axis, shape in ((-1, (n, t, 200)), (2, (n, t, 200)), (1, (n, t + t, 100))):
        z = relay.concatenate((x, y), axis=axis)
        assert "axis=" in z.astext() and typed(z).checked_type == relay.TensorType(shape)
    with pytest.raises(minitvm.tvm.TVMError):
        relay.concatenate([relay.var("p1", shape=(2, 5)), relay.var("p2", shape=(2, 3))], axis=0)
    x, y, s = (relay.var(v, shape=shape, dtype=dtype) for v, shape in (("x", (10, 5)), ("y", (10, 5)), ("z", ())))
    a, b, c = (RNG.uniform(size=shape).astype(dtype) for shape in ((10, 5), (10, 5), ()))
    for kind in ("graph", "debug"):
        found = run(relay.add(relay.concatenate((x, y), axis=1), s), {x: a, y: b, s: np.asarray(c)}, kind)
        np.testing.assert_allclose(found, np.concatenate((a, b), axis=1) + c, rtol=0.01)


def dropout(dtype: str) -> None:
    n, t, d = (te.size_var(v) for v in "ntd")
    x = relay.var("x", relay.TensorType((n, t, d), dtype))
    y = relay.nn.dropout(x, rate=0.75)
    assert "rate=" in y.astext() and typed(y).checked_type == x.checked_type
    data = RNG.uniform(size=(4, 5, 6)).astype("float32")
    for kind in ("debug", "graph"):
        np.testing.assert_array_equal(run(relay.nn.dropout(relay.const(data), rate=0.5), {}, kind), data)


def batch_norm(dtype: str) -> None:
    for axis, size in ((1, 2), (0, 3), (-1, 1)):
        data = relay.var("data", relay.TensorType((3, 2, 1), dtype))
        vectors = [relay.var(v, relay.TensorType((size,), dtype)) for v in ("gamma", "beta", "mean", "var")]
        y = typed(relay.nn.batch_norm(data, *vectors, axis=axis, center=False, scale=False).astuple())
        assert "center=" in y.astext()
        vector = relay.TensorType((size,), dtype)
        assert y.checked_type == relay.TupleType([data.checked_type, vector, vector])


def conv2d_types() -> None:
    n = te.var("n")
    x, w = relay.var("x", relay.TensorType((n, 10, 224, 224), "float32")), relay.var("w")
    y = typed(relay.nn.conv2d(x, w, kernel_size=(3, 3), padding=(1, 1), channels=2))
    assert y.checked_type == relay.TensorType((n, 2, 224, 224), "float32")
    assert y.args[1].checked_type == relay.TensorType((2, 10, 3, 3), "float32")
    for dtype in ("int8", "uint8"):
        x = relay.var("x", relay.TensorType((n, 10, 224, 224), dtype))
        w = relay.var("w", relay.TensorType((2, 10, 3, 3), "int8"))
        y = relay.nn.conv2d(x, w, out_dtype="int32")
        assert 'out_dtype="int32"' in y.astext()
        assert typed(y).checked_type == relay.TensorType((n, 2, 222, 222), "int32")
    x = relay.var("x", relay.TensorType((4, 224, 224, 32), "int8"))
    y = relay.nn.conv2d(
        x, relay.var("w"), kernel_size=(3, 3), padding=(1, 1), channels=16, data_layout="NHWC", out_dtype="int32"
    )
    assert typed(y).checked_type == relay.TensorType((4, 224, 224, 16), "int32")


def conv2d_transpose_types() -> None:
    n = te.var("n")
    x = relay.var("x", relay.TensorType((n, 10, 10, 12), "float32"))
    y = relay.nn.conv2d_transpose(x, relay.var("w"), kernel_size=(3, 3), padding=(1, 1), channels=15)
    assert "channels=15" in y.astext()
    assert typed(y).checked_type == relay.TensorType((n, 15, 10, 12), "float32")
    assert typed(y).args[1].checked_type == relay.TensorType((10, 15, 3, 3), "float32")


def pooling() -> None:
    for make, meaning in ((relay.nn.max_pool2d, np.max), (relay.nn.avg_pool2d, np.mean)):
        n = te.var("n")
        y = make(relay.var("x", relay.TensorType((n, 10, 224, 224), "float32")), pool_size=(1, 1))
        assert "pool_size=" in astext(y) and typed(y).checked_type == relay.TensorType((n, 10, 224, 224), "float32")
        x, data = relay.var("x", shape=(1, 3, 28, 28)), RNG.uniform(size=(1, 3, 28, 28)).astype("float32")
        found = run(make(x, pool_size=(2, 2), strides=(2, 2), padding=(0, 0)), {x: data})
        np.testing.assert_allclose(found, meaning(data.reshape(1, 3, 14, 2, 14, 2), axis=(3, 5)), rtol=1e-5)


def global_pooling() -> None:
    for make, meaning in ((relay.nn.global_max_pool2d, np.max), (relay.nn.global_avg_pool2d, np.mean)):
        n, c, h, w = (te.var(v) for v in "nchw")
        y = make(relay.var("x", relay.TensorType((n, 224, 224, c), "float32")), layout="NHWC")
        assert typed(y).checked_type == relay.TensorType((n, 1, 1, c), "float32")
        y = make(relay.var("x", relay.TensorType((n, c, h, w), "float32")))
        assert typed(y).checked_type == relay.TensorType((n, c, 1, 1), "float32")
        x, data = relay.var("x", shape=(1, 64, 7, 7)), RNG.uniform(size=(1, 64, 7, 7)).astype("float32")
        np.testing.assert_allclose(run(make(x), {x: data}), meaning(data, axis=(2, 3), keepdims=True), rtol=1e-5)


def flatten() -> None:
    d1, d3 = te.var("d1"), te.var("d3")
    x = relay.var("x", relay.TensorType((d1, 2, d3, 3), "float32"))
    assert typed(relay.nn.batch_flatten(x)).checked_type == relay.TensorType((d1, 2 * d3 * 3), "float32")
    x, data = relay.var("x", shape=(1, 5, 10, 10)), RNG.uniform(-1, 1, (1, 5, 10, 10)).astype("float32")
    for kind in ("graph", "debug"):
        np.testing.assert_array_equal(run(relay.nn.batch_flatten(x), {x: data}, kind), data.reshape(1, 500))


def upsampling() -> None:
    n, c, h, w = (te.var(v) for v in "nchw")
    x = relay.var("x", relay.TensorType((n, c, h, w), "float32"))
    y = relay.nn.upsampling(x, scale_h=2, scale_w=2, layout="NCHW", method="bilinear")
    assert 'method="bilinear"' in y.astext()
    assert typed(y).checked_type == relay.TensorType((n, c, h * 2, w * 2), "float32")


BINARY = ("add", "subtract", "multiply", "divide", "floor_divide", "floor_mod")
AS_THEY_ARE: dict[str, Callable[[], None]] = {
    **{f"unary {n} {d}": partial(unary, n, d) for n in UNARY for d in DTYPES},
    **{f"binary {n} {d}": partial(binary, n, d) for n in BINARY for d in DTYPES},
    **{
        f"{f.__name__} {d}": partial(f, d)
        for f in (expand_dims, bias_add, concatenate, dropout, batch_norm)
        for d in DTYPES
    },
    "bias_add of scalars": bias_add_of_scalars,
    "softmax": lambda: softmax(relay.nn.softmax, _softmax),
    "log_softmax": lambda: softmax(relay.nn.log_softmax, lambda x: np.log(_softmax(x))),
    "conv2d_infer_type": conv2d_types,
    "conv2d_transpose_infer_type": conv2d_transpose_types,
    "pool2d": pooling,
    "global pool2d": global_pooling,
    "flatten_infer_type": flatten,
    "upsampling_infer_type": upsampling,
}
LEFT_OUT = {
    "pool2d of int32, its mean": "nn.avg_pool2d takes floats: cast, or divide sums",
    "conv2d_transpose_infer_type by IncompleteType": "a variable without a type is relay.var(name)",
    "dyn_expand_dims": "an axis that only a run knows",
}


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_as_they_are(name: str) -> None:
    AS_THEY_ARE[name]()
