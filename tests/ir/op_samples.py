"""Sample rows for the operators: what ``test_ops.py`` checks.  A new operator is one class and one row here.

A row is an operator with its attributes, applied to arrays: ``row("clip", floats(3, 4), a_min=-1, a_max=1)``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.ir.op import OPS, Op


@dataclass(frozen=True, eq=False)
class Sample:
    op: Op
    args: tuple[Any, ...]

    def __str__(self) -> str:
        shapes = "-".join(_spell(a) for a in self.args)
        return f"{self.op.name}-{shapes}-{zlib.crc32(repr(self.op).encode()) & 0xFFFF:04x}"


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(_spell, value))
    return f"{value.dtype.kind}{value.dtype.itemsize * 8}[{','.join(map(str, value.shape))}]"


def row(name: str, *args: Any, **attributes: Any) -> Sample:
    return Sample(OPS[name](**attributes), args)


_rng = np.random.default_rng(20240607)


def floats(*shape: int, low: float = -3.0, high: float = 3.0, dtype: str = "float32") -> np.ndarray:
    return _rng.uniform(low, high, shape).astype(dtype)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: str = "int32") -> np.ndarray:
    """Integers from low up to and including high."""
    return _rng.integers(low, high, shape, dtype, endpoint=True)


def bools(*shape: int) -> np.ndarray:
    return _rng.integers(0, 2, shape).astype(bool)


def scalar(value: Any, dtype: str) -> np.ndarray:
    return np.asarray(value, dtype)


def _special() -> np.ndarray:
    """Floats that are not ordinary numbers, among some that are."""
    return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 1e-30, 3e38], "float32")


def _nonzero(*shape: int, dtype: str = "int32") -> np.ndarray:
    values = ints(*shape, low=1, high=7, dtype=dtype)
    return values if dtype.startswith("uint") else values * np.where(bools(*shape), 1, -1).astype(dtype)


def _unary() -> list[Sample]:
    anywhere = ("exp", "expm1", "sigmoid", "erf", "tanh", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh")
    ranges = dict.fromkeys(anywhere, (-3.0, 3.0))
    ranges |= dict.fromkeys(("log", "log2", "sqrt", "rsqrt"), (0.01, 9.0))
    ranges |= {"log1p": (-0.9, 5.0), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "acosh": (1.0, 9.0)}
    ranges["atanh"] = (-0.99, 0.99)
    rows = [
        row(name, floats(*shape, low=low, high=high))
        for name, (low, high) in ranges.items()
        for shape in ((2, 3, 4), (5,), (0, 2), ())
    ]
    rows += [row(name, floats(3, 2, low=low, high=high, dtype="float64")) for name, (low, high) in ranges.items()]
    rows += [row(name, _special()) for name in ("exp", "log", "sqrt", "tanh", "sigmoid", "sin", "erf", "log1p")]
    rows.append(row("sigmoid", np.array([-26.8831, -700.0, -718.0, 40.0, 800.0, -1e300])))
    for name in ("floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite"):
        halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, -0.51], "float32")
        rows += [
            row(name, floats(3, 4)),
            row(name, halves),
            row(name, _special()),
            row(name, floats(2, dtype="float16")),
        ]
    for name in ("negative", "abs", "sign"):
        rows += [row(name, floats(2, 3)), row(name, _special()), row(name, ints(4)), row(name, ints(3, dtype="int64"))]
        rows += [row(name, ints(5, low=0, high=200, dtype="uint8")), row(name, np.array([-128, 127], "int8"))]
    rows += [row("logical_not", bools(3, 4)), row("bitwise_not", bools(4)), row("bitwise_not", ints(3, 2))]
    rows += [
        row("bitwise_not", ints(3, low=0, high=255, dtype="uint8")),
        row("copy", floats(2, 3)),
        row("copy", bools(3)),
    ]
    rows += [row(name, value) for name in ("zeros_like", "ones_like") for value in (floats(2, 3), ints(4), bools(0, 2))]
    return rows


def _clip_and_cast() -> list[Sample]:
    rows = [
        row("clip", floats(3, 4), a_min=-1.0, a_max=0.5),
        row("clip", _special(), a_min=0.0, a_max=6.0),
        row("clip", floats(5), a_min=float("-inf"), a_max=0.0),
        row("clip", floats(5), a_min=2.0, a_max=-2.0),
        row("clip", ints(3, 3), a_min=-2, a_max=4),
        row("clip", ints(6, low=0, high=255, dtype="uint8"), a_min=-5, a_max=float("inf")),
        row("clip", floats(3, 4, dtype="float16"), a_min=-1.0, a_max=1.0),
        row("clip", ints(6, dtype="int8"), a_min=2.0**40, a_max=float("-inf")),
        row("clip", ints(6), a_min=0.5, a_max=3.5),
    ]
    values = {
        "float32": floats(3, 4, high=90, low=0), "float16": floats(3, high=90, low=0, dtype="float16"),
        "int64": ints(5, low=0, dtype="int64"), "int32": ints(5, low=0), "uint8": ints(5, low=0, dtype="uint8"),
        "bool": bools(6),
    }  # fmt: skip
    rows += [row("cast", value, dtype=dtype) for value in values.values() for dtype in values]
    rows += [
        *(row("reinterpret", _special(), dtype=d) for d in ("int32", "uint32", "float32")),
        *(row("reinterpret", ints(4), dtype=d) for d in ("float32", "uint32")),
        row("reinterpret", bools(5), dtype="uint8"),
        row("reinterpret", ints(5, low=0, high=2, dtype="uint8"), dtype="bool"),
        row("cast", np.array([-1.7, 1.7, -0.2], "float32"), dtype="int8"),
        row("cast", floats(0, 3), dtype="int32"),
    ]
    return rows


def _fills() -> list[Sample]:
    return [
        row("full_like", floats(2, 3), scalar(2.5, "float32")),
        row("full_like", ints(0), scalar(7, "int32")),
        row("full", scalar(2.5, "float32"), shape=(2, 3)),
        row("full", scalar(2.5, "float32"), shape=[4], dtype="int64"),
        row("full", scalar(3, "int32"), shape=()),
        row("zeros", shape=(2, 3)),
        row("zeros", shape=[2], dtype="bool"),
        row("ones", shape=(3,), dtype="int8"),
        row("ones", shape=(0, 3)),
        row("extent", size=5),
        row("nn.extract_tiles", floats(2, 3, 7, 9), tile=(5, 4), steps=(3, 2), before=(1, 2), counts=(3, 4)),
        row("nn.extract_tiles", floats(1, 2, 4, 0), tile=(3, 3), steps=(3, 3), before=(0, 1), counts=(2, 1), fill=-1.5),
        row(
            "nn.extract_tiles",
            floats(2, 3, 7, 9),
            tile=(6, 4),
            steps=(3, 2),
            before=(1, 2),
            counts=(3, 4),
            runs=(2, 1),
            gaps=(3, 5),
            after=(0, 1),
        ),
        row("nn.merge_tiles", floats(12, 3, 4, 5), size=(6, 13), batch=2, counts=(2, 3)),
        row("iota", size=5),
        row("iota", size=0, dtype="float32"),
        row("eye", shape=(3, 4)),
        row("eye", shape=[4, 3], k=-1, dtype="int32"),
    ]


_PAIRS = (((2, 3), (2, 3)), ((2, 1, 4), (3, 1)), ((), (5,)), ((0, 3), (1, 3)), ((1,), (1, 1)))


def _binary() -> list[Sample]:
    rows = []
    for a, b in _PAIRS:
        for name in ("add", "subtract", "multiply", "maximum", "minimum"):
            rows += [row(name, floats(*a), floats(*b)), row(name, ints(*a), ints(*b))]
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
            rows += [row(name, floats(*a), floats(*b)), row(name, ints(*a, low=0, high=2), ints(*b, low=0, high=2))]
        for name in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"):
            rows.append(row(name, bools(*a), bools(*b)))
        for name in ("divide", "floor_divide", "mod", "floor_mod"):
            rows += [row(name, floats(*a), floats(*b, low=0.5)), row(name, ints(*a, high=50, low=-50), _nonzero(*b))]
            rows.append(row(name, floats(*a), floats(*b, low=-3, high=-0.5)))
        rows += [row("power", floats(*a, low=0.1), floats(*b)), row("power", ints(*a), ints(*b, low=0, high=3))]
        rows.append(row("where", bools(*b), floats(*a), floats(*b)))
    for name in ("maximum", "minimum", "equal", "not_equal", "less", "greater_equal"):
        rows.append(row(name, _special(), _special()[::-1].copy()))
    for name in ("divide", "floor_divide", "mod", "floor_mod"):
        rows.append(row(name, ints(6, low=0, high=255, dtype="uint8"), _nonzero(6, dtype="uint8")))
        rows.append(row(name, ints(6, dtype="int64"), _nonzero(6, dtype="int64")))
    rows += [row(name, bools(4), bools(4)) for name in ("equal", "not_equal", "maximum", "minimum")]
    rows += [row("add", floats(3, dtype=d), floats(3, dtype=d)) for d in ("float16", "float64")]
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        rows += [row(name, ints(3, 4), ints(4)), row(name, ints(3, dtype="int64"), ints(1, dtype="int64"))]
    for name in ("left_shift", "right_shift"):
        rows += [
            row(name, ints(3, 4), ints(4, low=0, high=7)),
            row(name, *(ints(5, low=0, high=7, dtype="uint8"),) * 2),
        ]
    rows.append(row("where", bools(2, 1), ints(3, dtype="int64"), ints(2, 3, dtype="int64")))
    rows += [row("broadcast_to", floats(3, 1), shape=(2, 3, 4)), row("broadcast_to", floats(), shape=[2])]
    rows += [row("broadcast_to", floats(1, 3), shape=(0, 3)), row("broadcast_to", ints(2, 3), shape=(2, 3))]
    rows.append(row("broadcast_to_like", floats(3, 1), ints(2, 3, 4)))
    return rows


_REDUCED: tuple[dict[str, Any], ...] = (
    {},
    {"keepdims": True},
    {"axis": 1},
    {"axis": [-1, 0]},
    {"axis": (2,), "keepdims": True},
    {"axis": 1, "exclude": True},
    {"axis": ()},
)


def _reductions() -> list[Sample]:
    rows = []
    for attributes in _REDUCED:
        for name in ("sum", "mean", "max", "min", "prod"):
            rows += [row(name, floats(2, 3, 4), **attributes), row(name, ints(2, 3, 4), **attributes)]
        rows += [row(name, bools(2, 3, 4), **attributes) for name in ("all", "any")]
        rows.append(row("logsumexp", floats(2, 3, 4, low=-40, high=40), **attributes))
        x = floats(2, 3, 4)
        op = OPS["mean"](**{**attributes, "keepdims": True})
        rows.append(row("variance", x, op.reference(x), **attributes))
        for name in ("argmax", "argmin"):
            rows += [row(name, floats(2, 3, 4), **attributes), row(name, ints(2, 3, 4, low=0, high=2), **attributes)]
            rows.append(row(name, ints(2, 3, 4, low=0, high=2), select_last_index=True, **attributes))
    x = floats(3, 5, dtype="float16")
    rows += [row(name, x, axis=1) for name in ("sum", "mean", "max", "prod", "logsumexp")]
    rows.append(row("variance", floats(3, 5), floats(3, 1), axis=1, unbiased=True))
    rows += [row(name, floats(3, 0), axis=1) for name in ("sum", "prod", "max", "min", "mean", "logsumexp")]
    rows += [row(name, floats(0, 3), axis=1) for name in ("sum", "max", "argmax")]
    rows += [
        row(name, np.array([[1, np.nan, 2], [np.nan, 3, 1]], "float32"), axis=1) for name in ("max", "min", "argmax")
    ]
    rows.append(row("argmin", np.array([2, np.nan, 1, np.nan], "float32"), select_last_index=True))
    rows.append(row("logsumexp", np.array([[-np.inf, -np.inf], [np.inf, 1.0]], "float32"), axis=1))
    rows += [row("sum", floats()), row("argmax", floats(3)), row("sum", np.array([100, 100, 100], "int8"))]
    return rows


def _transforms() -> list[Sample]:
    rows = [
        row("reshape", floats(*shape), newshape=newshape, **options)
        for shape, newshape, options in (
            ((2, 3, 4), (4, 6), {}), ((2, 3, 4), (0, -1), {}), ((2, 3, 4), (-1,), {}), ((24,), (2, -1, 4), {}),
            ((2, 3, 4), (0, 0, 2, 2), {}), ((2, 3, 4), (-2,), {}), ((2, 3, 4), (-3, 0), {}),
            ((6, 4), (-4, 2, -1, 0), {}), ((6, 4), (-4, -1, 3, -2), {}),
            ((1, 6, 1), (6,), {}), ((6,), (1, 6, 1), {}), ((4, 6), (6, 4), {}),
            ((1,), (), {}), ((), (1, 1), {}), ((0, 3), (3, 0), {"allowzero": True}), ((0, 3), (0, -1), {}),
            ((2, 3, 5, 4), (6, 4, 5), {}), ((2, 2, 3, 1, 4), (4, 12), {}),
        )
    ]  # fmt: skip
    rows += [row("reshape_like", floats(2, 6), ints(3, 4)), row("nn.batch_flatten", floats(2, 3, 4))]
    rows += [row("nn.batch_flatten", floats(3)), row("nn.batch_flatten", floats(0, 2, 2))]
    rows += [row("transpose", floats(2, 3, 4)), row("transpose", floats(2, 3, 4), axes=[1, -1, 0])]
    rows += [row("transpose", floats(0, 3), axes=(1, 0)), row("transpose", floats()), row("transpose", ints(2, 3))]
    rows += [
        row("expand_dims", floats(2, 3), axis=a, num_newaxis=n) for a, n in ((0, 1), (1, 2), (-1, 1), (-2, 2), (2, 1))
    ]
    rows += [
        row("squeeze", floats(1, 2, 1)),
        row("squeeze", floats(1, 2, 1), axis=0),
        row("squeeze", floats(1, 1), axis=[-1]),
    ]
    rows += [row("tile", floats(2, 3), reps=r) for r in ((2, 1), (3,), (2, 1, 2), (0, 1))] + [
        row("tile", floats(1), reps=[4])
    ]
    rows += [row("repeat", floats(2, 3), repeats=3, axis=a) for a in (0, 1, -1)]
    rows += [row("reverse", floats(2, 3), axis=a) for a in (0, -1)] + [row("reverse", ints(0, 2), axis=0)]
    return rows


def _joins_and_cuts() -> list[Sample]:
    rows = [
        row("concatenate", (floats(2, 3), floats(2, 1), floats(2, 0), floats(2, 2)), axis=1),
        row("concatenate", (ints(2, 3), ints(1, 3)), axis=-2),
        row("concatenate", (floats(4),)),
        row("concatenate", (floats(2, 0), floats(2, 0)), axis=1),
        row("stack", (floats(2, 3), floats(2, 3)), axis=0),
        row("stack", (floats(2, 3), floats(2, 3), floats(2, 3)), axis=-1),
        row("stack", (ints(), ints())),
        row("split", floats(4, 6), indices_or_sections=3, axis=1),
        row("split", floats(4, 6), indices_or_sections=[1, 4], axis=-1),
        row("split", ints(5), indices_or_sections=(0, 2, 5)),
    ]
    cuts: tuple[tuple[Any, ...], ...] = (
        ((1,), (3,), None, None), ((0, 1), (5, 4), (2, 3), None), ((-1,), (-100,), (-1,), (1,)),
        ((-3,), (2**63 - 1,), None, (-1,)), ((4,), (1,), (-2,), (1,)), ((2,), (1,), None, (0,)),
        ((100,), (-100,), (-3,), (0,)), ((), (), None, ()),
    )  # fmt: skip
    rows += [row("strided_slice", floats(5, 6), begin=b, end=e, strides=s, axes=a) for b, e, s, a in cuts]
    rows.append(row("strided_slice", floats(5, 6), begin=[1, 2], end=[3, -1], slice_mode="size"))
    return rows


def _indexing() -> list[Sample]:
    data = floats(4, 5, 3)
    rows = [row("take", data, ints(2, 2, low=0, high=4), axis=a) for a in (0, 1, -1)]
    rows += [row("take", data, ints(6, low=-9, high=9, dtype="int64"), axis=1, mode=m) for m in ("clip", "wrap")]
    rows += [
        row("take", data, np.array([2**63 - 1, -(2**63), 2**40], "int64"), axis=a, mode=m)
        for a in (None, 1)
        for m in ("clip", "wrap")
    ]
    rows += [row("take", data, scalar(2, "int64"), axis=0), row("take", data, ints(3, low=0, high=59), mode="wrap")]
    rows += [
        row("take", floats(0, 3), ints(0), axis=0),
        row("take", data, ints(3, low=0, high=2, dtype="uint8"), axis=2),
    ]
    rows += [row("gather", data, ints(2, 5, 2, low=-9, high=9, dtype="int64"), axis=0), row("gather", ints(5), ints(7))]
    rows.append(row("gather", data, ints(4, 7, 1, low=0, high=4), axis=-2))
    rows += [row("gather_nd", data, ints(2, 6, low=-3, high=3)), row("gather_nd", data, ints(3, 2, 2, low=0, high=2))]
    rows += [row("gather_nd", data, ints(1, 4, 2, low=0, high=4, dtype="int64"), batch_dims=1)]
    rows += [row("gather_nd", data, ints(1, 4, 5, low=0, high=2), batch_dims=2)]
    for reduction in ("update", "add", "mul", "min", "max"):
        rows.append(row("scatter_elements", data, ints(2, 5, 3, low=-4, high=3), floats(2, 5, 3), reduction=reduction))
        rows.append(row("scatter_nd", data, ints(2, 6, low=0, high=3), floats(6, 3), mode=reduction))
    rows.append(row("scatter_elements", ints(3, 4), ints(3, 2, low=0, high=3), ints(3, 2), axis=-1))
    for clears in (False, True):
        rows.append(
            row("tensor_scatter", data, floats(4, 3, 3), ints(4, low=-1, high=5, dtype="int64"), axis=1, clears=clears)
        )
    rows.append(
        row("tensor_scatter", ints(3, 4), ints(3, 2), ints(3, low=0, high=9, dtype="int64"), axis=-1, circular=True)
    )
    on, off = scalar(5.0, "float32"), scalar(-1.0, "float32")
    rows += [row("one_hot", ints(2, 3, low=-1, high=4), on, off, depth=4, axis=a) for a in (-1, 0, 1)]
    rows.append(row("one_hot", ints(3, low=0, high=3), on, off, depth=4, dtype="int64"))
    rows += [
        row("control.out_of_range", data, ints(6, low=-4, high=3, dtype="int64"), axes=[0]),
        row("control.out_of_range", data, ints(2, 600, low=-5, high=4), axes=[1], by_row=True),
        row("control.out_of_range", data, np.stack([ints(5, low=-4, high=3), ints(5, low=-3, high=2)]), axes=[0, 2]),
        row("control.out_of_range", data, ints(5, low=0, high=3), axes=[-1], lengths=True),
        row("control.out_of_range", data, ints(0), axes=[0]),
        row("control.after", ints(2, 3), np.zeros((), "uint64")),
    ]
    rows += [row("linalg.det", floats(*shape)) for shape in ((3, 3), (2, 4, 4), (1, 1), (2, 0, 0))]
    rows.append(row("linalg.det", np.float32([[0, 2, 1], [3, 0, 0], [0, 0, 4]])))
    rows += [row("prefix", floats(3, 4), scalar(2, "int64"), axis=axis) for axis in (0, 1)]
    bounds = np.array([0, 2, 2, -1]), np.array([2, 2, 5, 9])
    rows += [row("segment_reduce", floats(6, 3), *bounds, mode=mode) for mode in ("sum", "mean")]
    rows += [row("nonzero", x) for x in (bools(3, 4), ints(5, low=0, high=1), np.zeros((2, 2), bool), _special())]
    for ordered in (True, False):
        rows += [
            row("unique", x, sorted=ordered) for x in (ints(3, 4, low=0, high=4), _special()[[0, 5, 0, 4, 3, 1, 1]])
        ]
        rows += [row("unique", ints(4, 5, 2, low=0, high=1), axis=a, sorted=ordered) for a in (0, 1, -1)]
    rows += [
        row("argwhere", bools(3, 4)),
        row("argwhere", ints(5, low=0, high=1)),
        row("argwhere", np.zeros((2, 2), bool)),
    ]
    return rows


def _whole_tensors() -> list[Sample]:
    tied = ints(3, 6, low=0, high=3)
    rows = [row("cumsum", floats(3, 4), axis=a, exclusive=e) for a in (0, -1) for e in (False, True)]
    rows += [row("cumsum", ints(5)), row("cumsum", floats(4, dtype="float16")), row("cumsum", floats(0))]
    rows += [row("cumsum", np.array([1, np.inf, 2, np.nan, 3], "float32"), exclusive=e) for e in (False, True)]
    rows += [row("cumprod", floats(3, 4), axis=a, exclusive=e) for a in (0, -1) for e in (False, True)]
    for ascend in (True, False):
        rows += [row("sort", x, axis=a, is_ascend=ascend) for x in (floats(3, 5), tied) for a in (0, -1)]
        rows += [row("argsort", x, axis=1, is_ascend=ascend, dtype="int64") for x in (floats(3, 5), tied)]
        rows += [row("topk", x, k=2, axis=a, is_ascend=ascend) for x in (floats(3, 5), tied) for a in (0, -1)]
    rows += [row("topk", tied, k=0, ret_type="indices", dtype="int64"), row("topk", tied, k=3, ret_type="values")]
    rows += [
        row("shape_of", floats(2, 3, 4)),
        row("shape_of", floats(), dtype="int64"),
        row("ndarray_size", floats(2, 3)),
    ]
    rows += [
        row("arange", *(scalar(v, "int64") for v in (2, 11, 3))),
        row("arange", *(scalar(v, "int32") for v in (5, 0, -2))),
    ]
    rows += [
        row("arange", *(scalar(v, "float32") for v in (0.5, 3.0, 0.5))),
        row("ndarray_size", ints(0, 2), dtype="int64"),
    ]
    for k in (-1, 0, 2):
        rows += [row("trilu", floats(2, 3, 4), scalar(k, "int64"), upper=u) for u in (True, False)]
    rows.append(row("reverse_sequence", floats(3, 5, 2), np.array([1, 5, 3], "int64")))
    rows.append(row("reverse_sequence", floats(4, 3), np.array([4, 0, 2], "int32"), seq_axis=0, batch_axis=-1))
    return rows


SAMPLES = [
    *_unary(), *_clip_and_cast(), *_fills(), *_binary(), *_reductions(), *_transforms(), *_joins_and_cuts(),
    *_indexing(), *_whole_tensors(),
]  # fmt: skip
