"""Generators of operators that move elements or choose among them; and of numbers that must be of some size."""

import math
from typing import Any

import numpy as np

from tests.fuzz.case import Value, tensor
from tests.fuzz.draw import Draw, Reject, generates, uniform


@generates("Concat")
def concat(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    shape, axis = d.known(x), d.axis(x.rank)
    parts = [x]
    for _ in range(d.choice((0, 1, 1, 2, 2, 7))):
        size = d.choice((shape[axis], d.size(20), 1))
        parts.append(d.like(_with(shape, axis, size), x.dtype))
    d.rng.shuffle(parts)
    return d.node(parts, axis=axis)


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    changed = list(shape)
    changed[axis] = size
    return tuple(changed)


@generates("Split")
def split(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis, shape = d.axis(x.rank), d.known(x)
    size = shape[axis]
    count = d.between(1, min(size, 4)) if size else 1
    if d.chance(0.3):
        return _equal_split(d, x, axis, count, size)
    cuts = sorted(d.between(0, size) for _ in range(count - 1))
    parts = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    if d.opset < 13:
        return d.node([x], count, axis=axis, split=parts)
    return d.node([x, d.ints(parts)], count, axis=axis)


def _equal_split(d: Draw, x: Value, axis: int, count: int, size: int) -> list[Value]:
    if d.opset < 18 and size % count:
        raise Reject("unequal parts")
    return d.node([x], count, axis=axis, num_outputs=count if d.opset >= 18 else None)


@generates("Transpose")
def transpose(d: Draw) -> list[Value]:
    x = d.operand()
    order, way = list(range(x.rank)), d.choice(("any", "rotated", "exchanged"))
    if way == "any":
        d.rng.shuffle(order)
    elif way == "rotated" and order:
        first = d.axis(x.rank)
        order = order[first:] + order[:first]
    elif x.rank > 1:
        a, b = d.rng.sample(order, 2)
        order[a], order[b] = b, a
    return d.node([x], perm=d.maybe(order, 0.85))


@generates("Reshape")
def reshape(d: Draw) -> list[Value]:
    x = d.operand()
    left, shape = math.prod(d.known(x)), []
    for _ in range(d.between(0, 4)):
        size = d.choice([s for s in range(1, min(left, 64) + 1) if left % s == 0] or [0])
        shape.append(size)
        left //= max(size, 1)
    if left != 1:
        shape.append(left)
    d.rng.shuffle(shape)
    if shape and 0 not in shape and d.chance(0.4):
        shape[d.axis(len(shape))] = -1
    zeros = d.opset >= 14 and 0 in shape
    return d.node([x, d.ints(shape)], allowzero=1 if zeros and -1 not in shape else None)


@generates("Squeeze")
def squeeze(d: Draw) -> list[Value]:
    shape = list(d.shape(0, 3))
    for _ in range(d.between(0, 2)):
        shape.insert(d.between(0, len(shape)), 1)
    there = [v for v in d.values.values() if v.shape and 1 in v.shape]
    x = d.choice(there) if there and d.chance(0.5) else d.new(shape, d.dtype())
    ones = d.some([a for a, s in enumerate(d.known(x)) if s == 1], 1)
    return _with_axes(d, x, d.maybe(ones, 0.8))


@generates("Unsqueeze")
def unsqueeze(d: Draw) -> list[Value]:
    x = d.operand(most=4)
    extra = d.between(1, 2)
    axes = d.rng.sample(range(x.rank + extra), extra)
    if d.opset >= 11 and d.chance(0.3):
        axes = [a - x.rank - extra for a in axes]
    return _with_axes(d, x, axes)


def _with_axes(d: Draw, x: Value, axes: list[int] | None) -> list[Value]:
    """Axes are an attribute before opset 13, an input from then on."""
    if d.opset < 13:
        return d.node([x], axes=axes)
    return d.node([x, None if axes is None else d.ints(axes)])


@generates("Expand")
def expand(d: Draw) -> list[Value]:
    x = d.operand(most=4)
    target = [d.size(8) if size == 1 and d.chance(0.7) else d.choice((size, size, 1)) for size in d.known(x)]
    target = [*(d.size(4) for _ in range(d.choice((0, 0, 1)))), *target]
    return d.node([x, d.ints(target[d.choice((0, 0, 0, len(target) // 2)) :])])


@generates("Tile")
def tile(d: Draw) -> list[Value]:
    x = d.operand(budget=1000)
    return d.node([x, d.ints([d.choice((1, 1, 2, 3, 0 if d.chance(0.1) else 2)) for _ in range(x.rank)])])


_ENDS = {True: (2**31 - 1, 2**63 - 1), False: (-(2**31), -(2**63))}
"""To the end, forwards and backwards; ONNX Runtime takes the largest integer to mean the end in either direction."""


@generates("Slice")
def slice_(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axes = d.axes(x.rank, 1)
    sizes = [d.known(x)[a] for a in axes]
    starts = [d.between(-s - 3, s + 3) for s in sizes]
    steps = [d.choice((1, 1, 1, 2, 3, -1, -1, -2, 100, -100)) if d.opset >= 10 else 1 for _ in sizes]
    ends = [d.choice((d.between(-s - 3, s + 3), *_ENDS[t > 0])) for s, t in zip(sizes, steps, strict=True)]
    if d.opset < 10:
        return d.node([x], axes=axes, starts=starts, ends=[min(e, 2**62) for e in ends])
    whole = sorted(a % x.rank for a in axes) == axes == list(range(len(axes)))
    dtype = d.choice(("int64", "int64", "int32"))
    ends = ends if dtype == "int64" else [max(min(e, 2**31 - 1), -(2**31)) for e in ends]
    plain = all(t == 1 for t in steps) and d.chance(0.5)
    given = [starts, ends, None if whole and d.chance(0.5) else axes, None if plain else steps]
    return d.node([x, *(None if g is None else d.ints(g, dtype, 0.0) for g in given)])


@generates("Pad")
def pad(d: Draw) -> list[Value]:
    x = d.operand(budget=2000)
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if d.opset >= 19 else [])]
    mode = d.choice(modes)
    bound = [max(0, s - 1) if mode == "reflect" else 3 if s or mode == "constant" else 0 for s in d.known(x)]
    low = -1 if d.chance(0.15) else 0
    pads = [d.between(low, min(3, b)) if d.chance(0.6) else 0 for b in (*bound, *bound)]
    if d.opset < 11:
        return d.node([x], mode=d.maybe(mode) or "constant", pads=pads, value=d.maybe(d.real()))
    value = d.maybe(d.new((), x.dtype, 0.9)) if mode == "constant" else None
    if d.opset >= 18 and x.rank and d.chance(0.4):
        axes = d.axes(x.rank, 1)
        chosen = [pads[a % x.rank] for a in axes] + [pads[a % x.rank + x.rank] for a in axes]
        return d.node([x, d.ints(chosen), value, d.ints(axes)], mode=mode)
    return d.node([x, d.ints(pads), value], mode=d.maybe(mode) if mode == "constant" else mode)


@generates("Gather")
def gather(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis = d.axis(x.rank)
    return d.node([x, _indices(d, d.shape(0, 3, 200), d.known(x)[axis])], axis=axis)


def _indices(d: Draw, shape: tuple[int, ...], size: int, signed: bool = True) -> Value:
    if size == 0 and 0 not in shape:
        raise Reject("nothing to index")
    low = -size if signed and d.opset >= 11 and d.chance(0.5) else 0
    return d.within(shape, d.choice(("int64", "int64", "int32")), low, size - 1)


@generates("GatherElements")
def gather_elements(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis, shape = d.axis(x.rank), d.known(x)
    inner = tuple(d.between(min(s, 1), s) for s in shape)
    return d.node([x, _indices(d, _with(inner, axis, d.size(20)), shape[axis])], axis=axis)


@generates("GatherND")
def gather_nd(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    shape = d.known(x)
    batch = d.between(0, x.rank - 1) if d.opset >= 12 and d.chance(0.3) else 0
    depth = d.between(1, x.rank - batch)
    outer = (*shape[:batch], *d.shape(0, 2, 60))
    return d.node([x, _tuples(d, outer, shape[batch : batch + depth])], batch_dims=batch if d.opset >= 12 else None)


def _tuples(d: Draw, outer: tuple[int, ...], sizes: tuple[int, ...], unique: bool = False) -> Value:
    """Indices of elements or slices: shape ``(*outer, len(sizes))``."""
    count, most = math.prod(outer), math.prod(sizes)
    if most == 0 or (unique and count > most):
        raise Reject("nothing to index")
    draw = np.random.default_rng(d.rng.getrandbits(64))
    flat = draw.permutation(most)[:count] if unique else draw.integers(0, most, count)
    found = np.stack(np.unravel_index(flat, sizes), -1).reshape(*outer, len(sizes))
    if d.chance(0.3):
        found = np.where(draw.random(found.shape) < 0.5, found, found - np.array(sizes))
    return d.constant(found.astype("int64"), 0.5)


@generates("Scatter", "ScatterElements")
def scatter_elements(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis, shape = d.axis(x.rank), d.known(x)
    inner = tuple(d.between(min(s, 1), s) for s in shape)
    reduction = d.choice((None, "none", "add", "mul", *(("max", "min") if d.opset >= 18 else ())))
    reduction = reduction if d.opset >= 16 else None
    indices = _distinct(d, inner, axis, shape[axis]) if reduction in (None, "none") else None
    indices = indices or _indices(d, inner, shape[axis])
    return d.node([x, indices, d.like(inner, x.dtype)], axis=axis, reduction=reduction)


def _distinct(d: Draw, inner: tuple[int, ...], axis: int, size: int) -> Value:
    """Indices without duplicates along the axis: what a duplicate stores last is open."""
    draw = np.random.default_rng(d.rng.getrandbits(64))
    order = np.argsort(draw.random(_with(inner, axis, size)), axis)
    return d.constant(np.take(order, range(inner[axis]), axis).astype("int64"), 0.5)


@generates("ScatterND")
def scatter_nd(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    shape = d.known(x)
    depth = d.between(1, x.rank)
    options = (None, "none", "add", "mul", *(("max", "min") if d.opset >= 18 else ()))
    reduction = d.choice(options) if d.opset >= 16 else None
    count = d.between(1, min(20, max(1, math.prod(shape[:depth]))))
    indices = _tuples(d, (count,), shape[:depth], unique=reduction in (None, "none"))
    return d.node([x, indices, d.like((count, *shape[depth:]), x.dtype)], reduction=reduction)


@generates("ConstantOfShape")
def constant_of_shape(d: Draw) -> list[Value]:
    shape = d.shape()
    value = d.new((1,), d.choice(("float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool")), 1.0)
    array = d.literals[value.name]
    return d.node([d.ints(shape)], value=d.maybe(tensor(array, ""), 0.8))


@generates("Constant")
def constant(d: Draw) -> list[Value]:
    if d.opset >= 12 and d.chance(0.4):
        numbers = [d.between(-9, 9) for _ in range(d.size(7))]
        ways: dict[str, Any] = {
            "value_int": numbers[0],
            "value_ints": numbers,
            "value_float": d.real(),
            "value_floats": [d.real()],
        }
        name = d.choice(list(ways))
        return d.node([], **{name: ways[name]})
    array = d.literals[d.new(d.shape(), d.choice(("float32", "float32", "int64", "bool", "float16")), 1.0).name]
    return d.node([], value=tensor(array, ""))


@generates("OneHot")
def one_hot(d: Draw) -> list[Value]:
    depth, shape = d.size(17), d.shape(0, 3, 500)
    whole = uniform(d.rng, shape, "int32", -depth - 1, depth)
    indices = d.constant(whole.astype(d.choice(("int64", "int64", "int32", "float32"))), 0.5)
    dtype = d.choice(("float32", "float32", "int64", "int32", "float16", "bool", "uint8"))
    depth_value = d.constant(np.array(depth if d.chance(0.5) else [depth], d.choice(("int64", "int64", "float32"))))
    axis = d.between(-len(shape) - 1, len(shape))
    return d.node([indices, depth_value, d.new((2,), dtype, 0.7)], axis=d.maybe(axis, 0.7))


@generates("Compress")
def compress(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis = d.maybe(d.axis(x.rank), 0.7)
    size = math.prod(d.known(x)) if axis is None else d.known(x)[axis]
    return d.node([x, d.new((d.between(min(1, size), size),), "bool", 0.6)], axis=axis)


@generates("TopK")
def top_k(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis = d.axis(x.rank)
    k = d.between(0 if d.chance(0.1) else 1, d.known(x)[axis])
    if d.opset < 10:
        return d.node([x], 2, axis=axis, k=max(k, 1))
    largest = d.choice((None, 1, 0)) if d.opset >= 11 else None  # without ``sorted`` the order is open
    return d.node([x, d.ints([k])], 2, axis=axis, largest=largest)


# --- numbers ---------------------------------------------------------------------------------------------------


@generates("Clip")
def clip(d: Draw) -> list[Value]:
    x = d.operand()
    signed = not x.dtype.startswith("u")
    low, high = sorted((d.between(-3 * signed, 5), d.between(-3 * signed, 5)))
    if np.dtype(x.dtype).kind in "iu" and d.chance(0.2):
        low, high = int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)
    if d.opset < 11:
        return d.node([x], min=d.maybe(float(low)), max=d.maybe(float(high)))
    bounds = [d.maybe(d.constant(np.array(v, x.dtype), 0.2), 0.7) for v in (low, high)]
    return d.node([x, *bounds])
