"""Relay's random numbers, which a key decides: Threefry-4x64-20, written in operators on uint64.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; split as
K. Claessen and M. Palka, "Splittable pseudorandom number generators using cryptographic hashing", Haskell 2013.  A key
is ten words: four of the generator's key, two of the path of splits, two of a counter, two of the place in the path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.ir.expr import Expr, Tuple, TupleGetItem
from minitvm.tvm.relay.composed import composed, made, many, refuse, shaped
from minitvm.tvm.relay.forms import const
from minitvm.tvm.relay.operators import plain, tensor

_ROTATIONS = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
_PARITY, _FIRST = 0x1BD11BDAA9FC1A22, 1 << 63
_ROUNDS = 20
_MANTISSA = {"float32": 24, "float64": 53}


def _word(value: int) -> Expr:
    return const(np.uint64(value), "uint64")


def _add(left: Expr, right: Expr) -> Expr:
    return made("add", left, right)


def _xor(left: Expr, right: Expr) -> Expr:
    return made("bitwise_xor", left, right)


def _or(left: Expr, right: Expr) -> Expr:
    return made("bitwise_or", left, right)


def _rotated(value: Expr, bits: int) -> Expr:
    left, right = made("left_shift", value, _word(bits)), made("right_shift", value, _word(64 - bits))
    return _or(left, right)


def threefry(key: Sequence[Expr], counter: Sequence[Expr]) -> list[Expr]:
    """Four words of random bits of a key's and a counter's four."""
    parity = _word(_PARITY)
    for word in key:
        parity = _xor(parity, word)
    schedule, state = [*key, parity], list(counter)

    def injected(times: int) -> list[Expr]:
        found = [_add(word, schedule[(times + j) % 5]) for j, word in enumerate(state)]
        return [*found[:3], _add(found[3], _word(times))]

    state = injected(0)
    for number in range(_ROUNDS):
        sums = [_add(state[0], state[1]), _add(state[2], state[3])]
        turned = [_rotated(state[1 + 2 * j], _ROTATIONS[number % 8][j]) for j in range(2)]
        first, second = (_xor(sums[j], turned[j]) for j in range(2))
        state = [sums[0], second, sums[1], first]
        if number % 4 == 3:
            state = injected(number // 4 + 1)
    return state


def _words(key: Any) -> list[Expr]:
    """The ten words of a key, each by itself."""
    given = tensor(key)
    if given.tensor_type.shape != (10,) or given.dtype != "uint64":
        raise refuse("random", f"a key of {given.type}, which relay.random.threefry_key makes of a number")
    cut = made("split", given, indices_or_sections=10, axis=0)
    return [TupleGetItem(cut, i) for i in range(10)]


def _key_of(words: Sequence[Expr]) -> Expr:
    return made("concatenate", Tuple([shaped(word, [1]) for word in words]), axis=0)


@composed("random.threefry_key")
def threefry_key(seed: Any) -> Expr:
    """The key of a number of up to 256 bits."""
    words = np.frombuffer(int(plain(seed)).to_bytes(32, "little"), "<u8")
    return const(np.array([*words, 0, 0, 0, 0, _FIRST, 0], "uint64"), "uint64")


@composed("random.threefry_generate")
def threefry_generate(key: Any, shape: Any) -> Expr:
    """The key behind the numbers, and random bits: as many words as the shape holds, a multiple of four."""
    sizes = many(plain(shape))
    count = math.prod(sizes)
    if count % 4:
        raise refuse("random.threefry_generate", f"{count} numbers: a multiple of 4")
    words = _words(key)
    blocks = const(np.arange(count // 4, dtype="uint64"), "uint64")
    counter = [*words[4:7], _add(words[7], blocks)]
    found = threefry(words[:4], [made("broadcast_to", one, shape=(count // 4,)) for one in counter])
    bits = shaped(made("stack", Tuple(found), axis=1), sizes)
    return Tuple([_key_of([*words[:7], _add(words[7], _word(count // 4)), *words[8:]]), bits])


@composed("random.threefry_split")
def threefry_split(key: Any) -> Expr:
    """Two keys whose numbers have nothing to do with each other's: the path goes left in one, right in the other."""
    words = _words(key)
    full = made("equal", _or(words[8], words[9]), _word(0))
    hashed = threefry(words[:4], words[4:8])

    def unless_full(kept: Expr, fresh: Expr) -> Expr:
        return made("where", full, fresh, kept)

    own = [unless_full(old, new) for old, new in zip(words[:4], hashed, strict=True)]
    path = [unless_full(one, _word(0)) for one in words[4:6]]
    high, low = (unless_full(one, _word(bit)) for one, bit in ((words[8], _FIRST), (words[9], 0)))
    carried = made("left_shift", made("bitwise_and", high, _word(1)), _word(63))
    place = [made("right_shift", high, _word(1)), _or(made("right_shift", low, _word(1)), carried)]
    none = [_word(0)] * 2
    right = [_or(path[0], high), _or(path[1], low)]
    return Tuple([_key_of([*own, *way, *none, *place]) for way in (path, right)])


def _uniform(key: Any, count: int, dtype: Any, name: str) -> tuple[Expr, Expr]:
    """The key behind them, and numbers in [0, 1)."""
    wanted = np.dtype(plain(dtype)).name
    if wanted not in _MANTISSA:
        raise refuse(name, f"dtype {wanted}: float32 or float64")
    drawn, digits = threefry_generate(key, [-(-count // 4) * 4]), _MANTISSA[wanted]
    bits = made("strided_slice", TupleGetItem(drawn, 1), begin=[0], end=[count], axes=[0])
    steps = made("cast", made("right_shift", bits, _word(64 - digits)), dtype=wanted)
    return TupleGetItem(drawn, 0), made("multiply", steps, const(2.0**-digits, wanted))


def _scaled(values: Expr, factor: Any, shift: Any) -> Expr:
    """``values * factor + shift``, of numbers or expressions."""
    factor, shift = (one if isinstance(one, Expr) else const(one, values.dtype) for one in (factor, shift))
    return made("add", made("multiply", values, factor), shift)


@composed("random.uniform")
def uniform(key: Any, shape: Any, dtype: Any, low: Any, high: Any) -> Expr:
    """The key behind them, and numbers from ``low`` up to ``high``, all alike."""
    sizes = many(plain(shape))
    left, values = _uniform(key, math.prod(sizes), dtype, "random.uniform")
    width = made("subtract", high, low) if isinstance(high, Expr) or isinstance(low, Expr) else high - low
    return Tuple([left, shaped(_scaled(values, width, low), sizes)])


@composed("random.normal")
def normal(key: Any, shape: Any, dtype: Any, mean: Any, scale: Any) -> Expr:
    """The key behind them, and numbers of a normal distribution (G. E. P. Box, M. E. Muller, 1958)."""
    sizes = many(plain(shape))
    count = math.prod(sizes)
    left, values = _uniform(key, 2 * count, dtype, "random.normal")
    halves = made("split", values, indices_or_sections=2, axis=0)
    one, angle = TupleGetItem(halves, 0), TupleGetItem(halves, 1)
    above = made("subtract", const(1.0, one.dtype), one)  # in (0, 1]
    radius = made("sqrt", made("multiply", made("log", above), const(-2.0, one.dtype)))
    turned = made("cos", made("multiply", angle, const(2 * math.pi, one.dtype)))
    return Tuple([left, shaped(_scaled(made("multiply", radius, turned), scale, mean), sizes)])


@composed("random.multinomial")
def multinomial(key: Any, probs: Any, num_samples: Any) -> Expr:
    """The key behind them, and ``num_samples`` classes, int32, drawn from each row of probabilities, or of weights."""
    given, samples = tensor(probs), int(plain(num_samples))
    rows = given.tensor_type.static_shape[:-1]
    left, values = _uniform(key, math.prod(rows) * samples, "float32", "random.multinomial")
    sums = made("cumsum", made("cast", given, dtype="float32"), axis=-1)
    whole = made("strided_slice", sums, begin=[-1], end=[given.tensor_type.static_shape[-1]], axes=[len(rows)])
    drawn = made("multiply", shaped(values, [*rows, samples]), whole)
    below = made("less_equal", made("expand_dims", sums, axis=-2), made("expand_dims", drawn, axis=-1))
    return Tuple([left, made("sum", made("cast", below, dtype="int32"), axis=(-1,))])
