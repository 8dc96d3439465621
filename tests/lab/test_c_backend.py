"""The back end of docs/write-c.md: what it prints, and what runs of it where there is a C compiler."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_docs import blocks, registries  # noqa: F401

import minitvm
from minitvm import relay
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function, Var
from minitvm.ir.loop import Buffer, Kernel, LoopKind, Store, const, loop, select
from minitvm.ir.types import TensorType
from minitvm.testing import assert_allclose

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "write-c.md"
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")

pytestmark = pytest.mark.usefixtures("registries")


@pytest.fixture
def page(registries: None) -> dict[str, Any]:  # noqa: F811
    """What the page defines."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in list(blocks(PAGE.read_text(encoding="utf-8")))[:3]:
        exec(block.code, namespace)
    return namespace


def test_statements_become_c(page: dict[str, Any]) -> None:
    x, y = Buffer("x y", (4, 6), "float32"), Buffer("int", (4, 8), "float32")

    def element(i: Any, j: Any) -> Store:
        return Store(y, (i, j), select(j < 6, x[i, j] * x[i, j], const(float("-inf"), "float32")))

    rows = loop(4, lambda i: loop(8, lambda j: element(i, j), LoopKind.VECTORIZED, "j"), LoopKind.PARALLEL, "i")
    printed = page["Printer"](Kernel("k", (x, y), rows)).text
    want = """\
void run(float *restrict x_y_1, float *restrict int_2) {
    for (int64_t i_3 = 0; i_3 < 4; ++i_3) {
        #pragma omp simd
        for (int64_t j_4 = 0; j_4 < 8; ++j_4) {
            float t_5;
            if ((j_4 < 6)) {
                const float t_6 = x_y_1[i_3 * 6 + j_4];
                t_5 = (t_6 * t_6);
            }
            else {
                t_5 = (float)-INFINITY;
            }
            int_2[i_3 * 8 + j_4] = t_5;
        }
    }
}
"""
    assert printed.removeprefix(page["HEAD"]).strip() == want.strip()


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [(7, "int64", "7"), (-7, "int8", "(int8_t)18446744073709551609u"), (0.1, "float32", "(float)0.10000000149011612")],
)
def test_constants(value: Any, dtype: str, text: str, page: dict[str, Any]) -> None:
    assert page["constant"](value, dtype) == text


def both(*arrays: np.ndarray) -> Callable[[Callable[..., list[Expr]]], None]:
    """Expressions of inputs, compiled as C and beside what operators mean."""

    def check(make: Callable[..., list[Expr]]) -> None:
        inputs = [Var(f"x{i}", TensorType(a.shape, a.dtype.name)) for i, a in enumerate(arrays)]
        function = Function(inputs, relay.Tuple(make(*inputs)))
        executor = minitvm.GraphModule(minitvm.build(function, "c")["default"]())
        executor.run(**{v.name: a for v, a in zip(inputs, arrays, strict=True)})
        for have, want in zip(executor.outputs(), evaluate(function, *arrays), strict=True):
            assert have.dtype == want.dtype
            assert_allclose(have, want, rtol=1e-6, atol=1e-6)

    return check


@needs_cc
@pytest.mark.usefixtures("page")
def test_floats() -> None:
    rng = np.random.default_rng(0)
    image, weight = (rng.normal(size=s).astype("float32") for s in ((1, 3, 9, 9), (4, 3, 3, 3)))

    @both(image, weight)
    def convolved(x: Expr, w: Expr) -> list[Expr]:  # padding: a side of a select out of bounds
        return [relay.nn.softmax(relay.nn.max_pool2d(relay.sigmoid(relay.nn.conv2d(x, w, padding=(1, 1)))))]


@needs_cc
@pytest.mark.usefixtures("page")
def test_integers_and_conversions() -> None:
    small = np.array([-128, -7, -1, 0, 1, 7, 100, 127], "int8")
    floats = np.array([np.nan, np.inf, -np.inf, -0.5, 1e9, 300.5, -2.5, 0.0], "float32")

    @both(small, floats)
    def computed(i: Expr, x: Expr) -> list[Expr]:
        three = relay.const(np.int8(3))
        return [
            relay.add(relay.multiply(i, i), relay.floor_mod(i, relay.const(np.int8(-3)))),
            relay.power(i, three),
            relay.left_shift(i, relay.const(np.int8(9))),
            relay.cast(x, dtype="int8"),
            relay.cast(relay.cast(x, dtype="bfloat16"), dtype="float32"),
            relay.maximum(relay.cast(x, dtype="float16"), relay.const(np.float16(0.1))),
        ]
