"""Every template over its shapes, against numpy: in the interpreter, and as machine code with one and two threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from native_kernel import run_native

from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.lower import lower
from minitvm.codegen.problem import TEMPLATES, Problem
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.target import MachineModel

MACHINE = MachineModel(vector_bytes=32, vector_registers=16, threads=2)
INTERPRETED = 60_000  # multiply-adds; what is larger runs as machine code only


def draw(*shapes: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s).astype(dtype) for s in shapes]


def template_of(call: Call) -> Kernel | Declined:
    """What the operator's template answers for the call."""
    assert isinstance(call.op, Op)
    (template,) = TEMPLATES.find("llvm", call.op)
    return template(Problem.of(call), MACHINE).kernel()


def check(name: str, *arrays: np.ndarray, work: int = 0, **attributes: Any) -> Kernel:
    """The template takes the call; the interpreter (for little work) and the machine code give numpy's numbers."""
    params = [var(f"p{i}", shape=a.shape, dtype=a.dtype.name) for i, a in enumerate(arrays)]
    call = call_op(name, *params, **attributes)
    assert isinstance(call, Call) and isinstance(call.op, Op)
    assert isinstance(template_of(call), Kernel)
    kernel = simplify(lower(function(call, params), "kernel", MACHINE))
    verify_kernel(kernel)
    expected = call.op.reference(*arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    native = legalize(kernel, SPELLINGS)
    results = [run_native(native, *arrays, threads=threads, machine=MACHINE) for threads in (1, 2)]
    if work <= INTERPRETED:
        results.append(run_kernel(kernel, *arrays, check_races=True))
    for result in results:
        for have, want in zip(result, expected, strict=True):
            scale = float(np.abs(want).max())
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=2e-6 * scale)
    return kernel


# --- convolution ----------------------------------------------------------------------------------------------


def conv(
    blocks: tuple[int, int],
    image: tuple[int, int],
    window: tuple[int, int] = (3, 3),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    lanes: tuple[int, int] = (8, 8),
    batch: int = 1,
    **attributes: Any,
) -> Kernel:
    """Blocked: ``blocks`` of ``lanes`` input and output channels."""
    data, weight = draw((batch, blocks[0], *image, lanes[0]), (blocks[1], blocks[0], *window, *lanes))
    work = data.size * window[0] * window[1] * blocks[1] * lanes[1]
    return check(
        "nn.contrib_conv2d_NCHWc",
        data,
        weight,
        work=work,
        channels=blocks[1] * lanes[1],
        kernel_size=window,
        padding=padding,
        data_layout=f"NCHW{lanes[0]}c",
        kernel_layout=f"OIHW{lanes[0]}i{lanes[1]}o",
        out_layout=f"NCHW{lanes[1]}c",
        **attributes,
    )


@pytest.mark.parametrize(
    ("image", "window", "padding", "attributes"),
    [
        ((5, 6), (3, 3), (0, 0, 0, 0), {}),
        ((5, 7), (3, 3), (1, 1, 1, 1), {}),
        ((6, 9), (3, 3), (1, 1, 1, 1), {"strides": (2, 2)}),
        ((7, 8), (3, 3), (0, 2, 1, 0), {}),
        ((7, 7), (3, 3), (0, 0, 1, 1), {"strides": (2, 2)}),
        ((7, 9), (3, 3), (2, 2, 2, 2), {"dilation": (2, 2)}),
        ((8, 7), (2, 3), (1, 0, 0, 1), {"strides": (1, 3), "dilation": (3, 1)}),
        ((5, 5), (5, 5), (4, 4, 4, 4), {}),
        ((1, 9), (1, 3), (0, 1, 0, 1), {}),
        ((3, 3), (3, 3), (0, 0, 0, 0), {}),
        ((9, 1), (3, 1), (1, 0, 1, 0), {"strides": (2, 1)}),
    ],
    ids=str,
)
def test_conv2d(image: Any, window: Any, padding: Any, attributes: dict[str, Any]) -> None:
    conv((1, 2), image, window, padding, **attributes)


def test_conv2d_wider_than_a_tile_and_with_several_input_blocks() -> None:
    conv((2, 3), (6, 35), (3, 3), (1, 1, 1, 1))


def test_conv2d_of_a_batch() -> None:
    conv((1, 1), (4, 5), (3, 3), (1, 1, 1, 1), batch=3)


@pytest.mark.parametrize("lanes", [(4, 8), (8, 16), (3, 8), (1, 8)])
def test_conv2d_blocks_of_other_widths(lanes: tuple[int, int]) -> None:
    conv((2, 2), (5, 6), (3, 3), (1, 1, 1, 1), lanes=lanes)


@pytest.mark.parametrize("image", [(1, 1), (5, 7), (13, 17)])
def test_pointwise_conv2d(image: tuple[int, int]) -> None:
    conv((2, 3), image, (1, 1))


def test_pointwise_conv2d_with_strides_or_padding() -> None:
    conv((1, 2), (6, 7), (1, 1), strides=(2, 2))
    conv((1, 2), (4, 5), (1, 1), (1, 0, 0, 1))


def test_conv2d_of_a_plain_rgb_image() -> None:
    data, weight = draw((1, 3, 19, 17), (2, 1, 7, 7, 3, 8))
    attributes = {"strides": (2, 2), "padding": (3, 3, 3, 3), "kernel_size": (7, 7), "channels": 16}
    layouts = {"data_layout": "NCHW", "kernel_layout": "OIHW3i8o", "out_layout": "NCHW8c"}
    check("nn.contrib_conv2d_NCHWc", data, weight, work=10**6, **attributes, **layouts)


def test_conv2d_with_a_window_too_wide_to_write_out() -> None:
    kernel = conv((1, 1), (2, 21), (1, 19), (0, 9, 0, 9))
    assert "padded" in str(kernel)


def depthwise(image: tuple[int, int], window: tuple[int, int] = (3, 3), blocks: int = 2, **attributes: Any) -> Kernel:
    data, weight = draw((2, blocks, *image, 8), (blocks, 1, *window, 1, 8), seed=1)
    layouts = {"data_layout": "NCHW8c", "kernel_layout": "OIHW1i8o", "out_layout": "NCHW8c"}
    channels = {"channels": 8 * blocks, "groups": 8 * blocks, "kernel_size": window}
    return check("nn.contrib_depthwise_conv2d_NCHWc", data, weight, **channels, **layouts, **attributes)


@pytest.mark.parametrize(
    ("image", "window", "attributes"),
    [
        ((5, 6), (3, 3), {}),
        ((5, 17), (3, 3), {"padding": (1, 1, 1, 1)}),
        ((9, 8), (3, 3), {"padding": (0, 0, 1, 1), "strides": (2, 2)}),
        ((9, 11), (5, 5), {"padding": (2, 2, 2, 2), "strides": (2, 2)}),
        ((8, 9), (3, 3), {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
        ((3, 25), (1, 19), {"padding": (0, 9, 0, 9)}),
    ],
    ids=str,
)
def test_depthwise_conv2d(image: Any, window: Any, attributes: dict[str, Any]) -> None:
    depthwise(image, window, **attributes)


# --- products -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 9, 16), (5, 12, 8), (13, 7, 24), (3, 64, 40)])
@pytest.mark.parametrize("width", [8, 16])
def test_dense_pack(rows: int, depth: int, columns: int, width: int) -> None:
    blocks = -(-columns // width)
    check("nn.contrib_dense_pack", *draw((rows, depth), (blocks, depth, width)), weight_layout=f"NC{width}n")


SIZES = [(4, 8, 8), (5, 3, 9), (7, 20, 23), (17, 13, 31), (6, 1, 8), (33, 4, 8)]


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_dense(m: int, k: int, n: int) -> None:
    check("nn.dense", *draw((m, k), (n, k)), work=m * k * n * 10)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul(transpose_a: bool, transpose_b: bool) -> None:
    a, b = draw((11, 6), (6, 19))
    left, right = a.T.copy() if transpose_a else a, b.T.copy() if transpose_b else b
    check("nn.matmul", left, right, transpose_a=transpose_a, transpose_b=transpose_b)


@pytest.mark.parametrize("batches", [(2, 2), (1, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_batch_matmul(batches: tuple[int, int], transpose_b: bool) -> None:
    right = (batches[1], 21, 5) if transpose_b else (batches[1], 5, 21)
    check("nn.batch_matmul", *draw((batches[0], 6, 5), right), transpose_b=transpose_b)


def test_matmul_of_doubles() -> None:
    check("nn.matmul", *draw((9, 6), (6, 13), dtype="float64"))


def test_integer_products_are_left_to_the_compute_rule() -> None:
    ints = call_op("nn.matmul", var("a", shape=(8, 8), dtype="int32"), var("b", shape=(8, 16), dtype="int32"))
    assert template_of(ints) == Declined("registers hold sums of floats; here int32")


# --- recurrent layers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [3, 8, 21])
@pytest.mark.parametrize("reverse", [False, True])
def test_lstm(hidden: int, reverse: bool) -> None:
    steps, batch = 3, 2
    arrays = draw((steps, batch, 4 * hidden), (4 * hidden, hidden), (batch, hidden), (batch, hidden))
    check("nn.lstm", *arrays, reverse=reverse)


@pytest.mark.parametrize("hidden", [3, 8, 21])
@pytest.mark.parametrize("linear_before_reset", [False, True])
def test_gru(hidden: int, linear_before_reset: bool) -> None:
    steps, batch = 3, 2
    arrays = draw((steps, batch, 3 * hidden), (3 * hidden, hidden), (3 * hidden,), (batch, hidden))
    check("nn.gru", *arrays, linear_before_reset=linear_before_reset, reverse=hidden == 8)


@pytest.mark.parametrize("hidden", [3, 8, 21])
def test_rnn(hidden: int) -> None:
    check("nn.rnn", *draw((4, 3, hidden), (hidden, hidden), (3, hidden)), reverse=hidden == 8)
