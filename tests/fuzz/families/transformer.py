"""Transformers as exporters write them: odd heads, grouped queries, rotary positions, masks, caches."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.fuzz.case import Value
from tests.fuzz.families.net import Dim, Net, family
from tests.fuzz.families.parts import GELUS, normalization, relu

HEADS = (1, 2, 2, 3, 4, 5, 6, 7)
HEAD_SIZES = (1, 2, 4, 5, 6, 8, 10, 12, 16, 18, 20, 22, 32)


@dataclass(frozen=True)
class Form:
    """Of one transformer: the same in all of its layers."""

    heads: int
    groups: int
    """Heads of keys and values."""
    size: int
    past: int
    """Rows of the cache; 0 where there is none."""
    mask: str
    rotary: str

    @property
    def width(self) -> int:
        return self.heads * self.size


@dataclass(frozen=True)
class Context:
    """What layers share."""

    form: Form
    length: int
    total: int
    mask: Value | None
    tables: tuple[Value, Value] | None
    """Cosines and sines of the positions, (S, D)."""


def _linear(n: Net, x: Value, units: int, bias: bool | None = None) -> Value:
    y = n.at("MatMul", x, n.weights(n.known(x)[-1], units))
    return n.at("Add", *n.choice(((y, n.bias(units)), (n.bias(units), y)))) if n.chance(0.5) else y


def _heads(n: Net, x: Value, heads: int, size: int) -> Value:
    """(B, S, H * D) -> (B, H, S, D)."""
    return n.permuted(n.reshaped(x, 0, 0, heads, size), 0, 2, 1, 3)


def _merged(n: Net, x: Value, width: int) -> Value:
    return n.reshaped(n.permuted(x, 0, 2, 1, 3), 0, 0, width)


def _half_turned(n: Net, x: Value, size: int) -> Value:
    """(-second half, first half) of the last axis."""
    first = n.at("Slice", x, n.numbers(0), n.numbers(size // 2), n.numbers(-1))
    second = n.at("Slice", x, n.numbers(size // 2), n.numbers(np.iinfo(np.int64).max), n.numbers(-1))
    return n.at("Concat", n.at("Neg", second), first, axis=-1)


def _rotated(n: Net, x: Value, c: Context) -> Value:
    """(B, H, S, D) with rotary positions."""
    if c.tables is None:
        return x
    cos, sin = c.tables
    if c.form.rotary == "operator":
        half = [n.at("Slice", t, n.numbers(0), n.numbers(c.form.size // 2), n.numbers(-1)) for t in (cos, sin)]
        cached = [n.at("Unsqueeze", t, n.numbers(0)) for t in half]
        batch = n.known(x)[0]
        cached = [n.at("Expand", t, n.numbers(batch, 1, 1)) for t in cached]
        return n.at("RotaryEmbedding", x, *cached, interleaved=n.choice((0, 1)))
    turned = _half_turned(n, x, c.form.size)
    return n.at("Add", n.at("Mul", x, cos), n.at("Mul", turned, sin))


def _cached(n: Net, x: Value, c: Context) -> Value:
    """With rows of the past before it; the present is a result."""
    if not c.form.past:
        return x
    past = n.input(["N", c.form.groups, "P", c.form.size])
    whole = n.at("Concat", past, x, axis=2)
    n.result(whole)
    return whole


def _repeated(n: Net, x: Value, c: Context) -> Value:
    """A head of keys for each of queries: ``repeat_kv``."""
    times = c.form.heads // c.form.groups
    if times == 1:
        return x
    shape = n.known(x)
    spread = n.at("Unsqueeze", x, n.numbers(2))
    if n.is_open:
        one = n.at("Concat", *[spread] * times, axis=2)
    else:
        one = n.at("Expand", spread, n.numbers(shape[0], c.form.groups, times, *shape[2:]))
    return n.reshaped(one, 0, c.form.heads, -1, c.form.size)


def _by_parts(n: Net, q: Value, k: Value, v: Value, c: Context) -> Value:
    """softmax(q @ k.T / sqrt(d) + mask) @ v, the scale wherever exporters put it."""
    scale, how = c.form.size**-0.5, n.choice(("after", "after", "query", "both", "div"))
    k, v = _repeated(n, k, c), _repeated(n, v, c)
    keys = n.permuted(k, 0, 1, 3, 2)
    if how == "both":
        q, keys = n.at("Mul", q, n.scalar(scale**0.5)), n.at("Mul", keys, n.scalar(scale**0.5))
    elif how == "query":
        q = n.at("Mul", q, n.scalar(scale))
    scores = n.at("MatMul", q, keys)
    if how == "after":
        scores = n.at("Mul", scores, n.scalar(scale))
    elif how == "div":
        scores = n.at("Div", scores, n.scalar(1 / scale))
    return n.at("MatMul", _softmax(n, _masked(n, scores, c)), v)


def _masked(n: Net, scores: Value, c: Context) -> Value:
    if c.mask is None:
        return scores
    if c.mask.dtype == "bool":
        least = n.scalar(n.choice((-1e4, float("-inf"), -3e4)))
        return n.at("Where", c.mask, scores, least)
    return n.at("Add", scores, c.mask)


def _softmax(n: Net, scores: Value) -> Value:
    """As torch exports it: float16 often in float32; rows that are all masked often 0."""
    wide = n.at("Cast", scores, to=1) if scores.dtype in ("float16", "bfloat16") and n.chance(0.6) else scores
    found = n.at("Softmax", wide, axis=-1)
    if n.chance(0.15):
        found = n.at("Where", n.at("IsNaN", found), n.scalar(0.0, found.dtype), found)
    return found if wide is scores else n.at("Cast", found, to={"float16": 10, "bfloat16": 16}[scores.dtype])


def _by_operator(n: Net, q: Value, k: Value, v: Value, c: Context) -> Value:
    """Attention of opset 23."""
    causal = 1 if c.form.mask == "none" and n.chance(0.5) else 0
    given = {"is_causal": causal, "softcap": n.choice((0.0, 0.0, 5.0)), "scale": n.maybe(n.choice((0.3, 1.0)), 0.3)}
    return n.at("Attention", q, k, v, c.mask, **given)


def _by_multi_head(n: Net, q: Value, k: Value, v: Value, c: Context) -> Value:
    """com.microsoft.MultiHeadAttention; queries (B, S, H * D), keys (B, H, T, D)."""
    flat, form = _merged(n, q, c.form.width), c.form
    k, v = _repeated(n, k, c), _repeated(n, v, c)
    bias = c.mask if c.mask is not None and c.mask.dtype != "bool" and len(n.known(c.mask)) == 4 else None
    inputs = [flat, k, v, None, None, bias]
    given = {"num_heads": form.heads, "scale": n.maybe(0.4, 0.3)}
    return n.same("com.microsoft.MultiHeadAttention", *inputs, **given)


def _attention(n: Net, x: Value, c: Context) -> Value:
    form = c.form
    q = _heads(n, _linear(n, x, form.width), form.heads, form.size)
    k = _heads(n, _linear(n, x, form.groups * form.size), form.groups, form.size)
    v = _heads(n, _linear(n, x, form.groups * form.size), form.groups, form.size)
    q, k = _rotated(n, q, c), _rotated(n, k, c)
    k, v = _cached(n, k, c), _cached(n, v, c)
    microsoft = n.kind in ("float32", "float16") and n.chance(0.15) and (c.mask is None or c.mask.dtype != "bool")
    if microsoft and not n.is_open:
        return _linear(n, _by_multi_head(n, q, k, v, c), n.known(x)[-1])
    attend = _by_operator if n.opset >= 23 and n.chance(0.4) else _by_parts
    return _linear(n, _merged(n, attend(n, q, k, v, c), form.width), n.known(x)[-1])


def _gated(n: Net, x: Value) -> Value:
    """SwiGLU and its like: (activation(x @ a) * (x @ b)) @ c."""
    inner = n.choice((3, 8, 17, 24))
    gate = n.choice(GELUS)(n, _linear(n, x, inner))
    return _linear(n, n.at("Mul", gate, _linear(n, x, inner)), n.known(x)[-1])


def _feed_forward(n: Net, x: Value) -> Value:
    y = _linear(n, x, n.choice((3, 8, 16, 33)))
    if n.kind in ("float32", "float16") and n.chance(0.2):
        y = n.same(n.choice(("com.microsoft.Gelu", "com.microsoft.FastGelu", "com.microsoft.QuickGelu")), y)
    else:
        y = n.choice([*GELUS, relu])(n, y)
    return _linear(n, y, n.known(x)[-1])


def _layer(n: Net, x: Value, c: Context) -> Value:
    inner: list[Callable[[Value], Value]] = [lambda y: _attention(n, y, c)]
    inner.append(lambda y: n.choice((_gated, _feed_forward, _feed_forward))(n, y))
    first = n.chance(0.6)
    for part in inner:
        y = part(normalization(n, x) if first else x)
        x = n.at("Add", *n.choice(((x, y), (y, x))))
        x = x if first else normalization(n, x)
    return x


def _mask(n: Net, form: Form, length: int, total: int) -> Value | None:
    """Of (S, T): additive or boolean, causal or of padding."""
    least = n.choice((-1e4, float("-inf"), float(np.finfo("float16").min)))
    if form.mask == "none":
        return None
    if form.mask == "causal" and not n.is_open:
        allowed = np.tril(np.ones((length, total), bool), total - length)
        kept = allowed if n.chance(0.3) else np.where(allowed, 0.0, least)
        return n.array(kept.reshape(n.choice(((length, total), (1, 1, length, total)))))
    dims: list[Dim] = ["N", 1, "S", "T"] if not n.is_open or n.chance(0.5) else ["S", "T"]
    if form.mask == "boolean":
        return n.input(dims, "bool", lambda draw, shape: draw.random(shape) < 0.8)
    return n.input(dims, "", lambda draw, shape: np.where(draw.random(shape) < 0.8, 0.0, least).astype(n.kind))


def _tables(n: Net, form: Form, length: int) -> tuple[Value, Value] | None:
    """Of positions that are known, or computed from an input of positions."""
    if form.rotary == "none" or form.size % 2:
        return None
    rates = 1e4 ** -(np.arange(0, form.size, 2) / form.size)
    if n.is_open or n.chance(0.4):
        places = n.input(["S"], "int64", lambda draw, shape: draw.integers(0, 50, shape))
        wide = n.at("Unsqueeze", n.at("Cast", places, to=1), n.numbers(1))
        angles = n.at("Mul", wide, n.array(rates, "float32"))
        whole = n.at("Concat", angles, angles, axis=-1)
        return tuple(_own(n, n.at(op, whole)) for op in ("Cos", "Sin"))  # type: ignore[return-value]
    angles_of = np.outer(np.arange(length), np.tile(rates, 2))
    return n.array(np.cos(angles_of)), n.array(np.sin(angles_of))


def _own(n: Net, x: Value) -> Value:
    codes = {"float16": 10, "bfloat16": 16, "float64": 11}
    return n.at("Cast", x, to=codes[n.kind]) if n.kind in codes else x


def _form(n: Net) -> Form:
    heads = n.choice(HEADS)
    groups = n.choice([g for g in range(1, heads + 1) if heads % g == 0]) if n.chance(0.4) else heads
    mask = n.choice(("none", "none", "additive", "boolean", "causal"))
    rotary = n.choice(("none", "none", "parts", "parts", "operator" if n.opset >= 23 and not n.is_open else "parts"))
    return Form(heads, groups, n.choice(HEAD_SIZES), n.choice((0, 0, 1, 3, 8)), mask, rotary)


def _embedded(n: Net, width: int) -> Value:
    if n.chance(0.5):
        return n.input(["N", "S", width])
    words = n.choice((2, 11, 30))
    ids = n.input(["N", "S"], "int64", lambda draw, shape: draw.integers(0, words, shape))
    return n.at("Gather", n.weights(words, width), ids)


@family("transformer", "float32")
def transformer(n: Net) -> None:
    form = _form(n)
    n.sizes |= {"S": n.choice((1, 2, 5, 7, 16, 17)), "P": form.past}
    length = n.sizes["S"]
    n.sizes["T"] = total = length + form.past
    x = _embedded(n, n.choice((form.width, form.width, 4, 9, 16)))
    context = Context(form, length, total, _mask(n, form, length, total), _tables(n, form, length))
    for _ in range(n.choice((1, 1, 2))):
        x = _layer(n, x, context)
    n.result(_linear(n, normalization(n, x), n.choice((1, 3, 17))) if n.chance(0.6) else x)
