"""Attention leaves out places that no query of a block looks at, where that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_attention_kernels import SMALL_CACHE

from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.driver import backend_for, build_consuming, require_symbolic
from minitvm.ir.builder import call_op, function
from minitvm.ir.dims import assumptions, symbol
from minitvm.ir.expr import Call, Module, Var
from minitvm.ir.loop import Kernel, interp
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.sizes import bound
from minitvm.ir.types import TensorType
from minitvm.runtime.devices import cpu

LOWEST = float(np.finfo(np.float32).min)
LENGTH, PLACES = 40, 70


def open_call(fill: float) -> Call:
    m, n = map(symbol, "mn")
    shapes = [(1, m, 1, 3), (1, n, 1, 3), (1, n, 1, 5)]
    types = [*(TensorType(shape, "float32") for shape in shapes), TensorType((1, 1, m, n), "bool")]
    operands = [Var(f"p{i}", type_) for i, type_ in enumerate(types)]
    call = call_op("nn.attention", *operands, fill=fill, empty_rows="nan" if fill == LOWEST else "zero")
    assert isinstance(call, Call)
    return call


def made(call: Call, m: int, n: int) -> Kernel:
    """A kernel of open sizes, at some."""
    return simplify(bound(lower(function(call), "attention", SMALL_CACHE), {"m": m, "n": n}))


def drawn(length: int, places: int, window: int = 999) -> list[np.ndarray]:
    """Queries are the last of the places, and look at no more than a window before them."""
    rng = np.random.default_rng(places)
    arrays = [rng.normal(size=(1, n, 1, size)).astype("float32") for n, size in ((length, 3), (places, 3), (places, 5))]
    own, place = np.arange(length)[:, None] + places - length, np.arange(places)
    return [*arrays, ((place <= own) & (place > own - window))[None, None]]


def cases() -> Iterator[list[np.ndarray]]:
    """Windows; rows of queries that look at nothing; values left out, keys and scores that are no numbers; scores as
    low as those that are not looked at."""
    for window in (999, 9, 1):
        for empty in (slice(0), slice(3), slice(9, None), slice(None)):
            arrays = drawn(LENGTH, PLACES, window)
            arrays[3][..., empty, :] = False
            yield arrays
    for index, at, values in ((2, 65, (np.nan, np.inf)), (1, 65, (np.nan, np.inf)), (0, 3, (np.nan, 1e38))):
        for number in values:
            arrays = drawn(LENGTH, PLACES)
            arrays[index][0, at, 0, 2] = number
            yield arrays
    query, key, value, mask = drawn(LENGTH, PLACES)
    query[:, 5], key[:] = 1e20, -1e20
    yield [query, key, value, mask]


def check(found: np.ndarray, call: Call, arrays: list[np.ndarray], case: int = 0) -> None:
    with np.errstate(all="ignore"):
        wanted = call.op.reference(*arrays)  # type: ignore[union-attr]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=f"case {case}")


@pytest.mark.parametrize("fill", [-np.inf, LOWEST])
def test_machine_code(fill: float) -> None:
    call = open_call(fill)
    with assumptions():
        backend = backend_for("llvm", 1)
        require_symbolic(function(call), backend)
        library = build_consuming(Module(function(call)), {}, backend, strict=True)
    instance = library.bound({f"p{i}": array.shape for i, array in enumerate(drawn(LENGTH, PLACES))}).instance(cpu(), 1)
    for number, arrays in enumerate(cases()):
        for i, array in enumerate(arrays):
            instance.assign(f"p{i}", array)
        instance.run()
        check(np.asarray(instance.value(instance.graph.heads[0])), call, arrays, number)


@pytest.mark.parametrize("fill", [-np.inf, LOWEST])
def test_blocks_of_places(fill: float) -> None:
    """More than one, some of which begin within the places that are looked at; and a query that looks at none."""
    call = open_call(fill)
    kernel = made(call, 11, 37)
    for empty in (0, 1):
        arrays = drawn(11, 37, 20)
        arrays[3][..., :empty, :] = False
        check(run_kernel(kernel, *arrays, check_races=True)[0], call, arrays, empty)


def test_no_scores_are_made_of_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = made(open_call(LOWEST), 16, 48)
    stored, store = list[int](), interp.Running.store

    def counted(self: Any, stmt: Any, buffer: Any, index: Any, value: np.ndarray) -> None:
        stored.append(self.count if buffer.name == "scores" else 0)
        store(self, stmt, buffer, index, value)

    monkeypatch.setattr(interp.Running, "store", counted)
    counts = []
    for window in (4, 999):
        run_kernel(kernel, *drawn(16, 48, window))
        counts.append(sum(stored))
        stored.clear()
    assert 2 * counts[0] < counts[1]
