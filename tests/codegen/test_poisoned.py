"""One NaN, infinity or large number changes no results but those that it has a part in: the references say which.

What multiplies by zero in place of choosing, fills up lanes or channels, or shares sums, spreads it.  Every operator's
kernel in the interpreter here; layouts and fusion in small networks, as machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from operator_cases import GENERATORS, Case, RandomDraw, random_case
from test_lower import as_function
from test_ops import WITHOUT_COMPUTE, WITHOUT_SAMPLE

import minitvm
from minitvm.codegen.lower import lower
from minitvm.codegen.problem import TEMPLATES
from minitvm.codegen.simplify import simplify
from minitvm.driver.compile import build
from minitvm.errors import MiniTVMError
from minitvm.ir.builder import call_op, const, function, var
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.op import OPS
from minitvm.target import MachineModel

VALUES = (np.nan, np.inf, -np.inf, 1e30)
MACHINE = MachineModel(32, 16, threads=2)
INTERPRETED = 1 << 13
"""Multiplications of a call."""


OWN_TESTS = {"nn.contrib_conv2d_winograd_NCHWc": "its reference transforms, too: test_winograd_guard.py"}
DATA_ALONE = {"nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"}
"""Whose weights meet zeros beyond the image, as any convolution's meet its padding; the references leave these out."""


def calls_of(name: str) -> Iterator[Case]:
    """A few calls with floats in them, small enough for the interpreter."""
    for seed in range(20):
        call = random_case(name, RandomDraw(seed))
        _, arrays = as_function(call)
        floats = [a for a in arrays if a.dtype in ("float32", "float64") and a.size]
        work = call.accuracy.terms * sum(r.size for r in call.reference()) + 8 * sum(a.size for a in arrays)
        if floats and not call.exempt and work <= INTERPRETED:
            yield call


def has_loops(name: str) -> bool:
    found = TEMPLATES.find("llvm", OPS[name])  # type: ignore[arg-type]
    return name not in WITHOUT_SAMPLE and (name not in WITHOUT_COMPUTE or bool(found))


def poisoned(
    arrays: list[np.ndarray], rng: np.random.Generator, value: float, most: int | None = None
) -> list[np.ndarray]:
    """With the value at one place of one array of floats, of the first so many."""
    able = [k for k, a in enumerate(arrays[:most]) if a.dtype in ("float32", "float64") and a.size]
    found, chosen = [a.copy() for a in arrays], able[int(rng.integers(len(able)))]
    found[chosen].reshape(-1)[int(rng.integers(found[chosen].size))] = value
    return found


def as_before(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return np.asarray((old == new) | ((old != old) & (new != new)))


def results_of(found: object) -> tuple[np.ndarray, ...]:
    return found if isinstance(found, tuple) else (found,)  # type: ignore[return-value]


def referred(group: Function, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        return results_of(evaluate(group, *arrays))


def interpreted(kernel: Kernel, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    return run_kernel(kernel, *(a.reshape(b.shape) for a, b in zip(arrays, kernel.inputs, strict=True)))


@pytest.mark.parametrize("name", [n for n in GENERATORS if has_loops(n) and n not in OWN_TESTS])
def test_operators_keep_it_where_it_belongs(name: str) -> None:
    rng = np.random.default_rng(0)
    for call, _ in zip(calls_of(name), range(2), strict=False):
        group, arrays = as_function(call)
        kernel = simplify(lower(group, "kernel", MACHINE))

        clean, before = interpreted(kernel, arrays), referred(group, arrays)
        for value in VALUES:
            image = poisoned(arrays, rng, value, 1 if name in DATA_ALONE else None)
            try:
                after = referred(group, image)
            except MiniTVMError:  # a reference that refuses it
                continue
            for k, (have, was) in enumerate(zip(interpreted(kernel, image), clean, strict=True)):
                same = as_before(before[k], after[k]).reshape(have.shape)
                wrong = call.accuracy.differences(have, was) & same
                assert not wrong.any(), f"{call} with {value}: {int(wrong.sum())} of {wrong.size} of result {k} changed"


# --- networks ---------------------------------------------------------------------------------------------------------

_RNG = np.random.default_rng(7)


def weights(*shape: int) -> Expr:
    return const((_RNG.normal(size=shape) / max(1, np.prod(shape[1:])) ** 0.5).astype("float32"))


def conv(x: Expr, outputs: int, inputs: int, taps: int = 3, **attributes: object) -> Expr:
    padding = {"padding": (taps // 2, taps // 2), **attributes}
    return call_op("nn.conv2d", x, weights(outputs, inputs, taps, taps), **padding)


def normalized(x: Expr, channels: int) -> Expr:
    stats = [const(_RNG.uniform(0.5, 2, channels).astype("float32")) for _ in range(4)]
    return call_op("nn.batch_norm", x, *stats)[0]  # type: ignore[index]


def squeezed(x: Expr) -> Expr:
    y = call_op("nn.relu", normalized(conv(x, 16, 16), 16))
    share = call_op("sigmoid", conv(call_op("mean", y, axis=(2, 3), keepdims=True), 16, 16, 1))
    return conv(y * share, 24, 16)


def side_by_side(x: Expr) -> Expr:
    parts = [call_op("nn.dense", x, weights(n, 24)) for n in (8, 13, 5)]
    return call_op("concatenate", minitvm.relay.Tuple(parts), axis=1)


def masked(q: Expr, k: Expr, v: Expr, mask: Expr) -> Expr:
    scores = call_op("nn.batch_matmul", q, k, transpose_b=True) * const(0.25) + mask
    return call_op("nn.batch_matmul", call_op("nn.softmax", scores), v, transpose_b=False)


NETWORKS: dict[str, tuple[Callable[..., Expr], list[tuple[int, ...]]]] = {
    "convolutions": (lambda x: conv(call_op("nn.relu", normalized(conv(x, 24, 3), 24)), 10, 24), [(2, 3, 13, 11)]),
    "strides": (lambda x: conv(conv(x, 16, 8, strides=(2, 2)), 12, 16, 1), [(1, 8, 12, 14)]),
    "channels that fill no block": (lambda x: conv(call_op("nn.relu", conv(x, 7, 5)), 9, 7), [(1, 5, 9, 10)]),
    "groups": (lambda x: conv(conv(x, 16, 1, groups=16), 16, 4, groups=4), [(1, 16, 10, 9)]),
    "a scale of each channel": (squeezed, [(3, 16, 8, 8)]),
    "pools": (
        lambda x: call_op("nn.avg_pool2d", conv(x, 16, 8), pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
        [(1, 8, 11, 11)],
    ),
    "up again": (
        lambda x: call_op("nn.conv2d_transpose", conv(x, 8, 8), weights(8, 6, 3, 3), strides=(2, 2), padding=(1, 1)),
        [(1, 8, 7, 6)],
    ),
    "dense layers side by side": (side_by_side, [(9, 24)]),
    "attention with a mask": (masked, [(4, 10, 16), (4, 10, 16), (4, 10, 16), (4, 10, 10)]),
    "rows": (lambda x: call_op("nn.dense", call_op("nn.softmax", x), weights(12, 20)), [(17, 20)]),
    "running sums": (lambda x: call_op("cumsum", x * const(2.0), axis=1), [(5, 40)]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_it_where_it_belongs(name: str) -> None:
    """At level 3, as machine code; results that change no more than by what is usual."""
    make, shapes = NETWORKS[name]
    params = [var(f"p{i}", shape=s) for i, s in enumerate(shapes)]
    graph = function(make(*params), params)
    executor = minitvm.GraphModule(build(Module(graph), "llvm", opt_level=3)["default"]())

    def run(given: list[np.ndarray]) -> np.ndarray:
        executor.run(**{f"p{i}": a for i, a in enumerate(given)})
        return executor.get_output(0).numpy()

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype("float32") for s in shapes]
    (before,), clean = referred(graph, arrays), run(arrays)
    near = 1e-5 * max(1.0, float(np.abs(before).max()))
    np.testing.assert_allclose(clean, before, rtol=0, atol=near)
    for value in VALUES:
        for _ in range(4):
            image = poisoned(arrays, rng, value)
            (after,) = referred(graph, image)
            same = as_before(before, after)
            np.testing.assert_allclose(run(image)[same], clean[same], rtol=0, atol=near, err_msg=str(value))
