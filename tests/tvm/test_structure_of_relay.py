"""Passes by Relay's names make Relay's structures: before and after, as TVM's tests compare them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import IRError, ParseError
from minitvm.ir.evaluate import evaluate
from minitvm.relay import transform
from minitvm.relay.testing.temp_op_attr import TempOpAttr
from minitvm.tvm.relay import equality
from minitvm.tvm.relay.spelled import SimplifyExpr

R: Any = relay
IR: Any = minitvm.ir
P: Any = transform
NN = R.nn
RNG = np.random.default_rng(3)


def var(name: str, *shape: int) -> Any:
    return relay.var(name, shape=shape)


def positive(*shape: int) -> Any:
    return relay.const(RNG.uniform(0.5, 1, shape).astype("float32"))


def function(body: Any) -> Any:
    return relay.Function(relay.analysis.free_vars(body), body)


def becomes(steps: Any, before: Any, after: Any, same_numbers: bool = True) -> None:
    """A graph after passes is another one, parameters matched by name; and both compute the same."""
    given = minitvm.IRModule.from_expr(function(before))
    with minitvm.transform.PassContext(opt_level=3):
        found = transform.Sequential(steps)(given).main
    names = {param.name: param for param in found.params}
    wanted = relay.Function([names[param.name] for param in found.params], R.bind(after, {}))
    wanted = relay.Function(found.params, _over(after, names))
    equality.assert_structural_equal(found, transform.InferType()(minitvm.IRModule.from_expr(wanted)).main)
    if same_numbers:
        feeds = [RNG.uniform(0.5, 1, p.tensor_type.static_shape).astype(p.dtype) for p in found.params]
        whole = transform.InferType()(given).main
        np.testing.assert_allclose(evaluate(found, *feeds), evaluate(whole, *feeds), rtol=1e-4, atol=1e-5)


def _over(body: Any, names: dict[str, Any]) -> Any:
    return R.bind(body, {v: names[v.name] for v in relay.analysis.free_vars(body) if v is not names[v.name]})


# --- scales -----------------------------------------------------------------------------------------------------

X, W, B = var("x", 2, 4, 5, 5), var("w", 6, 4, 3, 3), var("b", 4, 1, 1)
S, T = positive(4, 1, 1), positive(6, 1, 1)
SAME: dict[str, Any] = {"padding": (1, 1)}


QS, QT = R.squeeze(S, axis=[1, 2]), R.squeeze(T, axis=[1, 2])
DB6 = var("b6", 6)


def spread(scale: Any, axes: int) -> Any:
    """A scale of channels for a tensor with so many axes behind them."""
    return R.expand_dims(scale, axis=1, num_newaxis=axes)


def conv(x: Any, w: Any, **more: Any) -> Any:
    return NN.conv2d(x, w, **SAME, **more)


BLOCKS: dict[str, Any] = {"data_layout": "NCHW2c", "kernel_layout": "OIHW2i3o"}
XB, WB, SB = var("x", 2, 2, 5, 5, 2), var("w", 2, 2, 3, 3, 2, 3), positive(1, 2, 1, 1, 2)
DX, DW, DS, DB = var("x", 2, 4), var("w", 3, 4), positive(3), var("b", 3)
SCALES: dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]] = {
    "through a rectifier and an addition": (
        "Forward",
        lambda: conv(NN.relu(X * S) + B, W),
        lambda: conv(NN.relu(X) + R.divide(B, spread(QS, 2)), W * spread(QS, 2)),
    ),
    "in blocks": (
        "Forward",
        lambda: conv(XB * SB, WB, **BLOCKS),
        lambda: conv(XB, WB * R.reshape(R.squeeze(SB, axis=[0, 2, 3]), (1, 2, 1, 1, 2, 1)), **BLOCKS),
    ),
    "a scale that others read": ("Forward", lambda: read_twice(X * S), lambda: read_twice(X * S)),
    "behind a rectifier": (
        "Backward",
        lambda: NN.relu(conv(X, W) + R.reshape(DB6, (6, 1, 1))) * T,
        lambda: NN.relu(conv(X, W * spread(QT, 3)) + R.reshape(DB6, (6, 1, 1)) * spread(QT, 2)),
    ),
    "behind a bias": (
        "Backward",
        lambda: NN.bias_add(conv(X, W), DB6) * T,
        lambda: NN.bias_add(conv(X, W * spread(QT, 3)), DB6 * QT),
    ),
    "behind a product": (
        "Backward",
        lambda: (NN.dense(DX, DW) + DB) * DS,
        lambda: NN.dense(DX, DW * R.expand_dims(DS, axis=1)) + DB * DS,
    ),
    "an input that may be negative, behind a rectifier": (
        "Backward",
        lambda: NN.relu(conv(X, W)) * var("t", 6, 1, 1),
        lambda: NN.relu(conv(X, W)) * var("t", 6, 1, 1),
    ),
}


def read_twice(data: Any) -> Any:
    return conv(data, W) + R.sum(data)


@pytest.mark.parametrize("name", SCALES)
def test_scales_of_weights_that_are_inputs(name: str) -> None:
    way, before, after = SCALES[name]
    becomes([getattr(transform, f"{way}FoldScaleAxis")()], before(), after())


# --- layouts ----------------------------------------------------------------------------------------------------

IMAGE, KERNEL, BIAS = var("x", 1, 6, 6, 4), var("w", 3, 3, 4, 8), var("b", 8)
LAST: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": (1, 1)}


def moved(value: Any, old: str, new: str) -> Any:
    return R.layout_transform(value, old, new)


def first(**more: Any) -> Any:
    """The convolution with channels first."""
    return NN.conv2d(moved(IMAGE, "NHWC", "NCHW"), moved(KERNEL, "HWIO", "OIHW"), padding=(1, 1), **more)


def back(value: Any, old: str = "NCHW", new: str = "NHWC") -> Any:
    return moved(value, old, new)


def bias() -> Any:
    return moved(R.expand_dims(BIAS, axis=0, num_newaxis=3), "NHWC", "NCHW")


LAYOUTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "rectifier": (NN.relu, lambda y: back(NN.relu(y))),
    "bias": (lambda y: NN.relu(NN.bias_add(y, BIAS, axis=3)), lambda y: back(NN.relu(y + bias()))),
    "one pixel": (lambda y: NN.global_avg_pool2d(y, layout="NHWC"), lambda y: back(NN.global_avg_pool2d(y))),
    "mean": (lambda y: R.mean(y, axis=[1, 2], keepdims=True), lambda y: back(R.mean(y, axis=[2, 3], keepdims=True))),
    "sum": (lambda y: R.sum(y, axis=(1, 2)), lambda y: R.sum(y, axis=(2, 3))),
    "flat": (NN.batch_flatten, lambda y: NN.batch_flatten(back(y))),
    "put together": (lambda y: R.concatenate([y, y], axis=3), lambda y: back(R.concatenate([y, y], axis=1))),
    "squeezed": (
        lambda y: R.squeeze(NN.global_avg_pool2d(y, layout="NHWC"), axis=[1]),
        lambda y: back(R.squeeze(NN.global_avg_pool2d(y), axis=[2]), "NCW", "NWC"),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_are_asked_for(name: str) -> None:
    before, after = LAYOUTS[name]
    step = transform.ConvertLayout({"nn.conv2d": ["NCHW", "default"]})
    becomes([step], before(NN.conv2d(IMAGE, KERNEL, **LAST)), after(first()))


def test_a_layout_that_a_script_registers() -> None:
    def in_blocks(attrs: Any, inputs: Any, *_: Any) -> Any:
        return NN.conv2d(*inputs, **{**attrs, "data_layout": "NCHW2c"})

    w = var("w", 4, 4, 3, 3)
    made = NN.conv2d(moved(X, "NCHW", "NCHW2c"), w, padding=(1, 1), data_layout="NCHW2c")
    channels = moved(R.expand_dims(R.expand_dims(var("c", 4), axis=1, num_newaxis=2), axis=0), "NCHW", "NCHW2c")
    with TempOpAttr("nn.conv2d", "FTVMAlterOpLayout", in_blocks):
        steps = [transform.CanonicalizeOps(), P.AlterOpLayout()]
        becomes(steps, NN.bias_add(conv(X, w), var("c", 4)), moved(made + channels, "NCHW2c", "NCHW"), False)


# --- branches, identities, fast formulas ------------------------------------------------------------------------


def sized(data: Any, axis: int, begin: int, size: int) -> Any:
    starts, sizes = [0] * axis + [begin], [-1] * axis + [size]
    return R.strided_slice(data, begin=starts, end=sizes, strides=[1] * (axis + 1), slice_mode="size")


def test_branches_of_convolutions() -> None:
    a, b = var("a", 2, 4, 1, 1), var("w", 3, 4, 1, 1)
    wide = NN.conv2d(X, R.concatenate((a, b), axis=0), channels=5)
    after = R.concatenate((NN.relu(sized(wide, 1, 0, 2)), R.tanh(sized(wide, 1, 2, 3))), axis=1)
    before = R.concatenate((NN.relu(NN.conv2d(X, a)), R.tanh(NN.conv2d(X, b))), axis=1)
    becomes([transform.CombineParallelConv2D(min_num_branches=2)], before, after)


def test_branches_of_products() -> None:
    weights = [var(f"w{i}", 5, 4) for i in range(3)]
    both = NN.batch_matmul(R.stack([DX] * 3, axis=0), R.stack(weights, axis=0))
    after = R.concatenate([R.squeeze(part, [0]) for part in R.split(both, 3, axis=0)], axis=1)
    before = R.concatenate([NN.dense(DX, w) for w in weights], axis=1)
    becomes([transform.CombineParallelDense(min_num_branches=2)], before, after)


def test_scripts_simplify_as_fast_as_relay() -> None:
    two = relay.const(2.0)
    becomes([SimplifyExpr()], two / R.sqrt(DX), two * R.rsqrt(DX))
    becomes([SimplifyExpr()], NN.relu(DX + R.zeros((2, 4), "float32")), NN.relu(DX))


def test_scripts_have_types_first_and_fast_math_where_they_require_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import tvm\nfrom tvm import relay\n"
        "x, w = relay.var('x', shape=(1, 4)), relay.var('w')\n"
        "module = tvm.IRModule.from_expr(relay.Function([x, w], relay.tanh(relay.nn.dense(x, w, units=3))))\n"
        "assert relay.transform.CanonicalizeOps()(module)['main'].checked_type is not None\n"
        "with tvm.transform.PassContext(opt_level=3, required_pass=['FastMath']):\n"
        "    assert ' tanh(' not in str(relay.optimize(module, 'llvm')[0])\n"
        "assert ' tanh(' in str(relay.optimize(module, 'llvm')[0])\n"
        "one = relay.const(1.0)\n"
        "assert 'rsqrt' in str(relay.transform.SimplifyExpr()(tvm.IRModule.from_expr(one / relay.sqrt(x))))\n"
    )
    subprocess.run([sys.executable, "-m", "minitvm.tvm", str(script)], check=True)


def test_passes_and_visitors_of_scripts() -> None:
    def kept(module: Any, context: Any) -> Any:
        return module

    made = P.module_pass(kept, opt_level=3, name="mine", required=["InferType"])
    assert (made.info.name, made.info.opt_level, made.info.required) == ("mine", 3, ("InferType",))
    assert P.function_pass(2)(lambda f, m, c: f).info.opt_level == 2
    failing = P.module_pass(lambda module, context: 1 / 0, opt_level=0, name="failing")
    with pytest.raises(ZeroDivisionError):
        failing(minitvm.IRModule.from_expr(function(DX)))
    minitvm.transform.PassContext.current().override_instruments(None)
    name = relay.GlobalVar("f")
    assert relay.ExprMutator().visit(name) is name  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="has no visit_tuple"):
        relay.ExprFunctor().visit(relay.Tuple([]))


# --- comparison -------------------------------------------------------------------------------------------------


def both_ways(a: Any, b: Any, map_free_vars: bool = False) -> bool:
    found = equality.structural_equal(a, b, map_free_vars)
    hashes = [equality.structural_hash(one, map_free_vars) for one in (a, b)]
    assert equality.structural_equal(b, a, map_free_vars) == found == (hashes[0] == hashes[1])
    return found


UNTYPED, OTHER = relay.var("v"), relay.var("v")


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (UNTYPED, UNTYPED, True),
        (UNTYPED, OTHER, False),
        (relay.TupleGetItem(UNTYPED, 1), relay.TupleGetItem(OTHER, 1), False),
        (relay.op.get("add"), relay.op.get("add"), True),
        (relay.op.get("add"), relay.op.get("take"), False),
        (relay.GlobalVar("f"), relay.GlobalVar("g"), False),
        ([relay.const(1), 2], [relay.const(1), 2], True),
        ([relay.const(1)], [relay.const(2)], False),
        ({"a": (1, 2)}, {"a": (1, 2)}, True),
        (relay.Tuple([relay.Tuple([]), relay.Tuple([])]), relay.Tuple([relay.Tuple([])] * 2), True),
        (relay.TensorType((1, 2)), relay.TensorType((1, 2)), True),
    ],
)
def test_all_that_is_compared(a: Any, b: Any, equal: bool) -> None:
    assert both_ways(a, b) == equal


def test_differences_are_errors_of_values_too() -> None:
    with pytest.raises(ValueError, match=r"\[1\]: the graphs differ"):
        IR.assert_structural_equal([1, relay.const(1)], [1, relay.const(2)])
    with pytest.raises(IRError, match="1 values != 2 values"):
        IR.assert_structural_equal([1], [1, 2])


@pytest.mark.parametrize(
    "node", [relay.TensorType((2, 3), "int8"), minitvm.IRModule.from_expr(function(NN.relu(DX))), function(DX + DX)]
)
def test_json(node: Any) -> None:
    assert equality.structural_equal(IR.load_json(IR.save_json(node)), node)


def test_what_is_no_json() -> None:
    for text in ("{", "[]", '{"kind": "graph", "text": ""}'):
        with pytest.raises(ParseError, match="no graph in JSON"):
            IR.load_json(text)
