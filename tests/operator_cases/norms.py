"""Cases of normalizations, softmax and recurrent layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minitvm.ir.ops.more.qnn_recurrent import words_of
from operator_cases.accuracy import EXACT, Accuracy
from operator_cases.case import Case, case, generator
from operator_cases.draw import Draw

_EPSILONS = (1e-5, 0.1, 1e-3)


@generator("nn.softmax", "nn.log_softmax")
def softmax(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    x = draw.array(shape, dtype, *draw.choice(((-3, 3), (-90, 90), (300, 400))))
    made = case(name, x, axis=axis)
    terms = shape[axis] + 8

    def sizes() -> np.ndarray:
        """What is subtracted from what: the distance to the largest is rounded, and its exponential is off by that."""
        finite = np.where(np.isfinite(x), x, 0).astype("float64")
        spread = 1 + np.abs(finite - finite.max(axis=axis, keepdims=True, initial=-np.inf))
        (want,) = made.reference()
        sizes = spread if name == "nn.log_softmax" else spread * np.nan_to_num(np.abs(want.astype("float64")))
        return np.asarray(sizes)

    return Case(made.op, made.args, Accuracy(ulps=2, terms=terms, magnitude=sizes))


def _vectors(draw: Draw, size: int, dtype: str, count: int) -> list[np.ndarray]:
    return [draw.array((size,), dtype, special="none") for _ in range(count)]


@generator("nn.batch_norm")
def batch_norm(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    vectors = [*_vectors(draw, shape[axis], dtype, 3), draw.array((shape[axis],), dtype, 0.1, 3, "none")]
    flags: dict[str, Any] = {"center": draw.flag(), "scale": not draw.flag()}
    made = case(name, draw.array(shape, dtype), *vectors, axis=axis, epsilon=draw.choice(_EPSILONS), **flags)
    return Case(made.op, made.args, Accuracy(ulps=4, scale=8))


@generator("nn.layer_norm", "nn.instance_norm", "nn.group_norm")
def moments(name: str, draw: Draw, dtype: str) -> Case:
    least = 1 if name == "nn.layer_norm" else 2
    shape = draw.shape(least, 4)
    axis = draw.axis(len(shape)) if least == 1 else draw.integer(1, len(shape) - 1)
    flags: dict[str, Any] = {"center": not draw.flag(3), "scale": not draw.flag(3), "epsilon": draw.choice(_EPSILONS)}
    if name == "nn.group_norm":
        flags["num_groups"] = draw.choice([g for g in (1, 2, 3, 5, shape[axis]) if g and shape[axis] % g == 0])
    x = draw.array(shape, dtype, *draw.choice(((-3, 3), (0, 1))))
    made = case(name, x, *_vectors(draw, shape[axis], dtype, 2), axis=axis, **flags)
    return Case(made.op, made.args, _of_moments(made, x))


def _of_moments(made: Case, x: np.ndarray) -> Accuracy:
    """A mean's error over a small deviation: relative to 1 / sqrt(epsilon), times the gammas."""
    finite = [np.nan_to_num(v.astype("float64"), posinf=0, neginf=0) for v in made.args]
    largest = 1 + max(float(np.abs(v).max(initial=0)) for v in finite)
    epsilon = float(getattr(made.op, "epsilon", 1e-5))

    def size() -> np.ndarray:
        return np.full(x.shape, largest**2 / math.sqrt(epsilon))

    return Accuracy(ulps=2, terms=4 + math.log2(1 + x.size), magnitude=size)


@generator("nn.l2_normalize")
def l2_normalize(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    made = case(name, draw.array(shape, dtype), axis=draw.axes(len(shape)), eps=draw.choice((1e-12, 1e-3, 60.0)))
    return Case(made.op, made.args, Accuracy(ulps=4 + math.prod(shape)))


@generator("nn.lrn")
def lrn(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    numbers: dict[str, Any] = {"alpha": draw.choice((1e-5, 0.5, 2.0)), "beta": draw.choice((0.75, 0.5, 1.0, 2.0))}
    made = case(
        name, draw.array(shape, dtype), size=draw.integer(1, 9), axis=draw.axis(len(shape)), bias=1.0, **numbers
    )
    return Case(made.op, made.args, Accuracy(ulps=24))


@generator("nn.dropout")
def dropout(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, draw.array(draw.shape(), dtype, special="all"), accuracy=EXACT)


# --- recurrent layers -----------------------------------------------------------------------------------------


def _recurrent(draw: Draw, dtype: str, gates: int) -> tuple[list[np.ndarray], int, int]:
    """The projected input and the recurrent weight; batch and hidden units."""
    steps, batch, hidden = draw.integer(1, 5), draw.size(9, least=0), draw.size(33)
    if draw.flag(24):
        steps = 0
    scale = 1 / math.sqrt(hidden)
    weight = draw.array((gates * hidden, hidden), dtype, -scale, scale, "none")
    return [draw.array((steps, batch, gates * hidden), dtype), weight], batch, hidden


def _steps(made: Case, hidden: int) -> Case:
    """Outputs are at most 1; a step's error grows by less than 2 with each later one."""
    steps = made.args[0].shape[0]
    return Case(made.op, made.args, Accuracy(scale=4 + steps * (8 + math.sqrt(hidden))))


@generator("nn.lstm")
def lstm(name: str, draw: Draw, dtype: str) -> Case:
    args, batch, hidden = _recurrent(draw, dtype, 4)
    args += [draw.array((batch, hidden), dtype, -1, 1, "none") for _ in range(2)]
    args += [draw.array((3 * hidden,), dtype, -1, 1, "none")] if draw.flag() else []
    return _steps(case(name, *args, reverse=draw.flag()), hidden)


@generator("qnn.lstm")
def quantized_lstm(name: str, draw: Draw, dtype: str) -> Case:
    """One step at most: the next one's levels are those of rounded states, which may be one off."""
    batch, hidden, zeros = draw.size(9, least=0), draw.size(33), draw.flag()
    xw = draw.array((draw.integer(0, 1), batch, 4 * hidden), "float32")
    weight, *others = quantized_recurrence(hidden, zeros, draw.integer(0, 1000))
    args = [xw, weight, *others, *(draw.array((batch, hidden), "float32", -1, 1, "none") for _ in range(2))]
    args += [draw.array((3 * hidden,), "float32", -1, 1, "none")] if draw.flag() else []
    return _steps(case(name, *args, reverse=draw.flag()), hidden)


def quantized_recurrence(hidden: int, zeros: bool, seed: int) -> list[np.ndarray]:
    """What ``qnn.lstm`` takes of a weight of bytes, with zero points or without: words, corrections, scales."""
    rng, columns = np.random.default_rng(seed), 4 * hidden
    weight = rng.integers(-128, 128, (hidden, columns)).astype("int8")
    points = rng.integers(-20, 20, columns).astype("int32") if zeros else np.zeros(columns, "int32")
    sums = (weight - points).sum(0).astype("int32")
    ones = np.ones((hidden, int(zeros)), "int8")
    scale = (rng.random(columns) / 127 / math.sqrt(hidden)).astype("float32")
    return [words_of(np.concatenate([weight, ones], axis=1)), np.stack([sums, points][: 1 + zeros]), scale]


@generator("nn.gru")
def gru(name: str, draw: Draw, dtype: str) -> Case:
    args, batch, hidden = _recurrent(draw, dtype, 3)
    args += [draw.array(shape, dtype, -1, 1, "none") for shape in ((3 * hidden,), (batch, hidden))]
    return _steps(case(name, *args, reverse=draw.flag(), linear_before_reset=draw.flag()), hidden)


@generator("nn.rnn")
def rnn(name: str, draw: Draw, dtype: str) -> Case:
    args, batch, hidden = _recurrent(draw, dtype, 1)
    return _steps(case(name, *args, draw.array((batch, hidden), dtype, -1, 1, "none"), reverse=draw.flag()), hidden)
