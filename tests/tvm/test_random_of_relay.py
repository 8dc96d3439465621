"""Random numbers that a key decides: the published answers of Threefry, splits, and distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.errors import MiniTVMError
from minitvm.ir.evaluate import evaluate
from minitvm.tvm.relay.composed_random import threefry
from minitvm.tvm.relay.operators import function

RANDOM: Any = function("random")
ALL = (1 << 64) - 1
ANSWERS = {
    (0, 0): (0x09218EBDE6C85537, 0x55941F5266D86105, 0x4BD25E16282434DC, 0xEE29EC846BD2E40B),
    (ALL, ALL): (0x29C24097942BBA1B, 0x0371BBFB0F6F4E11, 0x3C231FFA33F83A1C, 0xCD29113FDE32D168),
}
"""By words of the key and of the counter, those of Random123's table for Threefry-4x64-20."""


def run(expr: Any) -> Any:
    """An expression's value; a tuple of arrays for a tuple."""
    return evaluate(relay.Function([], expr))


@pytest.mark.parametrize("words", ANSWERS)
def test_published_answers(words: tuple[int, int]) -> None:
    key, counter = ([relay.const(np.uint64(word), "uint64")] * 4 for word in words)
    assert tuple(int(value) for value in run(relay.Tuple(threefry(key, counter)))) == ANSWERS[words]


def test_keys_go_on_and_repeat() -> None:
    first, bits = run(RANDOM.threefry_generate(RANDOM.threefry_key(7), (4, 4)))
    again, whole = run(RANDOM.threefry_generate(RANDOM.threefry_key(7), (32,)))
    _, rest = run(RANDOM.threefry_generate(relay.const(first, "uint64"), (16,)))
    assert np.concatenate([bits.reshape(-1), rest]).tolist() == whole.tolist()
    assert len({*whole.tolist()}) == 32 and first.tolist() != again.tolist()
    assert run(RANDOM.threefry_key(1 << 200))[3] == 1 << 8


def test_splits_have_nothing_in_common() -> None:
    key, found = RANDOM.threefry_key(3), []
    for _ in range(130):  # beyond the end of the path, where the key changes
        left, right = run(RANDOM.threefry_split(key))
        found += [left, right]
        key = relay.const(right, "uint64")
    leaves = [*found[-12::2], found[-1]]  # what was split is used up
    drawn = {tuple(run(RANDOM.threefry_generate(relay.const(k, "uint64"), (4,)))[1].tolist()) for k in leaves}
    assert len({tuple(k.tolist()) for k in found}) == 260 and len(drawn) == 7


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distributions(dtype: str) -> None:
    key = RANDOM.threefry_key(11)
    _, even = run(RANDOM.uniform(key, (30, 1001), dtype, 2.0, 5.0))
    assert even.dtype == dtype and even.shape == (30, 1001) and 2 <= even.min() < 2.01 and 4.99 < even.max() < 5
    assert abs(even.mean() - 3.5) < 0.02 and abs(even.var() - 0.75) < 0.02
    _, bell = run(RANDOM.normal(key, (30_001,), dtype, 1.0, 2.0))
    assert bell.dtype == dtype and abs(bell.mean() - 1) < 0.04 and abs(bell.std() - 2) < 0.04
    assert abs(((bell - 1) ** 4).mean() / 16 - 3) < 0.2 and np.isfinite(bell).all()


def test_classes_by_their_weights() -> None:
    weights = np.array([[0.1, 0.0, 0.9], [2.0, 1.0, 1.0]], "float32")
    _, drawn = run(RANDOM.multinomial(RANDOM.threefry_key(5), relay.const(weights), 20_000))
    assert drawn.shape == (2, 20_000) and drawn.dtype == "int32"
    shares = np.stack([np.bincount(row, minlength=3) for row in drawn]) / 20_000
    np.testing.assert_allclose(shares, weights / weights.sum(1, keepdims=True), atol=0.015)
    assert shares[0, 1] == 0


def test_compiled_with_a_key_that_is_an_input() -> None:
    key = relay.var("key", shape=(10,), dtype="uint64")
    module = relay.IRModule.from_expr(relay.Function([key], RANDOM.uniform(key, (64,))))
    given = run(RANDOM.threefry_key(1))
    found = relay.build(module, "llvm").run({"key": given})
    expected = run(RANDOM.uniform(RANDOM.threefry_key(1), (64,)))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: RANDOM.threefry_generate(RANDOM.threefry_key(0), (5,)), "5 numbers: a multiple of 4"),
        (lambda: RANDOM.uniform(relay.const(np.zeros(4)), (4,)), "which relay.random.threefry_key makes"),
        (lambda: RANDOM.normal(RANDOM.threefry_key(0), (4,), "int32"), "dtype int32: float32 or float64"),
        (lambda: RANDOM.threefry_key(-1), "its arguments do not fit"),
    ],
)
def test_what_is_refused(call: Any, said: str) -> None:
    with pytest.raises(MiniTVMError, match=said):
        call()
