"""Problems for templates and schedules of GPUs whose axes run over sizes, the others being drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from minitvm.ir.builder import call_op, function, var
from minitvm.ir.dtypes import SHORT, STORED
from minitvm.ir.expr import Call, Function
from minitvm.ir.op import Op

SIZES = range(1, 161)
OTHERS = (1, 2, 3, 4, 5, 7, 8, 11, 12, 16, 17, 20, 24, 33)
"""What axes are that do not run."""
CONFIG = {"tf32": {"cuda.allow_tf32": True}, "three": {"cuda.split_tf32": True}}
"""Modes that are options; any other mode is a dtype."""
LIMIT = {"float32": 1e-5, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1e-5, "tf32": 4e-3, "three": 1e-5}
"""Of the largest element, or of 1; what is misplaced or left out is far beyond."""

HANDING_ON = ("nn.rnn", "nn.gru", "nn.lstm")
"""Recurrences: over many steps a rounding of the first may grow, as in any order of the sums."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Problem:
    """One operator's call: its arrays as the mode has them, attributes, what is computed before and after it."""

    op: str
    arrays: list[np.ndarray]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "float32"
    tail: bool = False
    """Whether a ReLU follows."""

    def __str__(self) -> str:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.arrays)
        return f"{self.op}({shapes}) {dict(self.attributes)} {self.mode}{', then ReLU' * self.tail}"

    @property
    def limit(self) -> float:
        """Probabilities are rounded as the factors of two bytes are."""
        rounded = self.op == "nn.attention" and self.mode in SHORT
        return LIMIT["tf32" if rounded else self.mode] if self.mode in LIMIT else LIMIT["float32"]

    @cached_property
    def group(self) -> Function:
        """What is stored only is cast first."""
        params = [var(f"p{i}", shape=a.shape, dtype=a.dtype.name) for i, a in enumerate(self.arrays)]
        wide = [call_op("cast", p, dtype=STORED[a.dtype.name]) if a.dtype.name in STORED else p
                for p, a in zip(params, self.arrays, strict=True)]  # fmt: skip
        call = call_op(self.op, *wide, **self.attributes)
        return function(call_op("nn.relu", call) if self.tail else call, params)

    @cached_property
    def expected(self) -> tuple[np.ndarray, ...]:
        """The reference's, of floats in double precision."""
        return self._reference("float64")

    @cached_property
    def moved(self) -> float:
        """By how much steps that hand their roundings on move the reference's results in single precision."""
        if self.op not in HANDING_ON or self.mode != "float32":
            return 0.0
        both = zip(self._reference("float32"), self.expected, strict=True)
        return max(float(np.abs(one - other).max(initial=0.0)) for one, other in both)

    def _reference(self, dtype: str) -> tuple[np.ndarray, ...]:
        call = self.group.body.args[0] if self.tail else self.group.body  # type: ignore[attr-defined]
        assert isinstance(call, Call) and isinstance(call.op, Op)
        floats = (a.astype(dtype) if a.dtype.kind == "f" or a.dtype.name in STORED else a for a in self.arrays)
        with np.errstate(all="ignore"):
            found = call.op.reference(*floats)
        results = found if isinstance(found, tuple) else (found,)
        return tuple(np.maximum(r, 0) for r in results) if self.tail else results


Build = Callable[[Sizes, str, np.random.Generator], Problem]


@dataclass(frozen=True)
class Subject:
    """Axes, modes, and how a problem is made of sizes and a mode."""

    name: str
    axes: tuple[str, ...]
    modes: tuple[str, ...]
    build: Build
    at_once: int = 1
    """Modes of each size, in turn."""
    most: int = 1 << 30
    """Of the axes that do not run."""

    def problems(self, every: int, seed: int) -> Iterator[tuple[str, Problem]]:
        """Of each axis every n-th size, beginning at the seed."""
        for number, axis in enumerate(self.axes):
            rng = np.random.default_rng([seed, number, *self.name.encode()])
            for size in SIZES[seed % every :: every]:
                turn = (size // every) * self.at_once + number
                for mode in (self.modes[(turn + n) % len(self.modes)] for n in range(self.at_once)):
                    sizes = {a: int(rng.choice([n for n in OTHERS if n <= self.most])) for a in self.axes}
                    yield axis, self.build({**sizes, axis: size}, mode, rng)


def normal(rng: np.random.Generator, mode: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    dtype = "float32" if mode in CONFIG else mode
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


# --- products ---------------------------------------------------------------------------------------------------------


def product(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """However the operands lie."""
    m, n, k, batch = s["rows"], s["columns"], s["depth"], s["batch"]
    kind, turned = int(rng.integers(4)), [bool(f) for f in rng.integers(2, size=2)]
    a, b = ((k, m) if turned[0] else (m, k)), ((n, k) if turned[1] else (k, n))
    flags = {"transpose_a": turned[0], "transpose_b": turned[1]}
    made = partial(Problem, mode=mode, tail=bool(rng.integers(3) == 0))
    if kind == 0 and batch == 1:
        return made("nn.dense", normal(rng, mode, (m, k), (n, k)))
    if kind == 1 and batch == 1:
        return made("nn.matmul", normal(rng, mode, a, b), flags)
    shared = 1 if kind == 2 else batch
    arrays = normal(rng, mode, (batch, *a), (shared, *b))
    return made("nn.batch_matmul", arrays, flags)


def attention(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """Without a mask; masked places, those of each query, causal; of floats that are added."""
    batch, heads, queries, places = s["batch"], s["heads"], s["queries"], s["places"]
    shapes = [(batch, queries, heads, s["size"]), (batch, places, heads, s["size"]), (batch, places, heads, s["width"])]
    masks = [
        [],
        [rng.random((places,)) < 0.7],
        [rng.random((batch, 1, queries, places)) < 0.7],
        [np.tril(np.ones((queries, places), bool), max(0, places - queries))],
        normal(rng, "float32" if mode == "bfloat16" else mode, (heads, queries, places)),
    ]
    kind = int(rng.integers(len(masks)))
    attributes = {"scale": 0.5, "empty_rows": ("nan", "zero")[int(rng.integers(2))]} if kind else {"scale": 0.3}
    return Problem("nn.attention", [*normal(rng, mode, *shapes), *masks[kind]], attributes, mode)


# --- convolutions -----------------------------------------------------------------------------------------------------

LAYOUTS = (("NCHW", "OIHW"), ("NHWC", "HWIO"), ("NHWC", "OHWI"), ("NCHW", "OIHW"), ("NCHW4c", "OIHW"))


def placed(layout: str, **sizes: int) -> tuple[int, ...]:
    return tuple(sizes[axis] for axis in layout)


def convolution(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """Padded so that there are results; ``taps`` along the width, 1 or 3 along the height."""
    data, kernel = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    blocks = data.endswith("4c")
    high, groups = int(rng.choice([1, 3])), 1 if blocks else s["groups"]
    inputs, outputs = s["channels"] * (4 if blocks else 1), s["filters"] * groups
    reach = (s["taps"] - 1) * s["dilation"] + 1
    before = int(rng.integers(0, 2)) + max(0, reach - s["width"])
    attributes: dict[str, Any] = {
        "strides": (1 + s["stride"] % 2, s["stride"]), "dilation": (1, s["dilation"]), "groups": groups,
        "padding": (high // 2, before, high // 2, 0), "data_layout": data, "kernel_layout": kernel,
    }  # fmt: skip
    shape = placed(data[:4], N=s["batch"], C=s["channels"] * groups, H=s["height"], W=s["width"])
    weight = placed(kernel, O=outputs, I=inputs, H=high, W=s["taps"])
    if blocks:
        attributes["out_layout"] = "NCHW"
    arrays = normal(rng, mode, (*shape, 4) if blocks else shape, weight)
    return Problem("nn.conv2d", arrays, attributes, mode, bool(rng.integers(2)))


def transposed(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    data, kernel = (("NCW", "IOW"), ("NWC", "WOI"))[int(rng.integers(2))]
    shape = placed(data, N=s["batch"], C=s["channels"], W=s["width"])
    weight = placed(kernel, I=s["channels"], O=s["filters"], W=s["taps"])
    attributes = {"strides": (s["stride"],), "data_layout": data, "kernel_layout": kernel}
    return Problem("nn.conv1d_transpose", normal(rng, mode, shape, weight), attributes, mode)


def depthwise(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    data, kernel = (("NCHW", "OIHW"), ("NHWC", "HWOI"))[int(rng.integers(2))]
    groups = s["groups"] + (s["groups"] == 1)
    before = max(0, (s["taps"] - 1) * s["dilation"] + 1 - s["width"]) + int(rng.integers(0, 2))
    attributes = {
        "strides": (1, s["stride"]), "dilation": (1, s["dilation"]), "groups": groups, "padding": (1, before, 1, 0),
        "data_layout": data, "kernel_layout": kernel,
    }  # fmt: skip
    shape = placed(data, N=s["batch"], C=groups, H=s["height"], W=s["width"])
    return Problem(
        "nn.conv2d", normal(rng, mode, shape, placed(kernel, O=groups, I=1, H=3, W=s["taps"])), attributes, mode
    )


# --- what schedules write ---------------------------------------------------------------------------------------------

GATES = {"nn.lstm": 4, "nn.gru": 3, "nn.rnn": 1}


def recurrent(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """``mode``: an operator."""
    wide, state = GATES[mode] * s["hidden"], (s["batch"], s["hidden"])
    shapes: list[tuple[int, ...]] = [(s["steps"], s["batch"], wide), (wide, s["hidden"])]
    shapes += [(wide,)] if mode == "nn.gru" else []
    arrays = [
        a / np.sqrt(s["hidden"], dtype="float32")
        for a in normal(rng, "float32", *shapes, *[state] * (1 + (mode == "nn.lstm")))
    ]
    return Problem(mode, arrays)


def by_rows(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """An operator along the last axis or the one before it; ``mode``: the operator, perhaps of another dtype."""
    name, _, dtype = mode.partition(" ")
    along = 2 - int(rng.integers(2))
    shape = (s["outer"], s["length"], s["inner"]) if along == 1 else (s["outer"], s["inner"], s["length"])
    (data,) = normal(rng, dtype or "float32", shape)
    attributes: dict[str, Any] = {"axis": along}
    match name:
        case "sum" | "max" | "mean" | "argmax" | "logsumexp":
            attributes = {"axis": (along,)}
        case "topk":
            attributes |= {"k": int(rng.integers(1, s["length"] + 1))}
        case "prod":
            attributes, data = {"axis": (along,)}, np.sign(data)
        case "cumsum":
            attributes |= {"exclusive": bool(rng.integers(2))}
    return Problem(name, [data], attributes, dtype or "float32")


def long_rows(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """Some hundred times as long."""
    return by_rows({**s, "length": s["length"] * 97 + 5}, mode, rng)


def windows(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """``mode``: what is found in each; some reach into the padding."""
    before = max(0, s["taps"] - s["width"])
    (data,) = normal(rng, "float32", (s["outer"], s["height"], s["width"]))
    attributes = {"pool_size": (1, s["taps"]), "strides": (1, s["stride"]), "padding": (0, before, 0, 0)}
    return Problem(mode, [data[None]], attributes)


def selected(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """``mode``: how positions or values are found."""
    few = rng.integers(0, 3, (s["outer"], s["length"])).astype("float32")
    return Problem(mode, [few], {"axis": 1} if mode == "unique" else {})


def normalized(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    data, gamma, beta = normal(rng, mode, (s["outer"], s["length"]), (s["length"],), (s["length"],))
    return Problem("nn.layer_norm", [data, gamma, beta], {}, mode)


def indexed(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    """``mode``: what reads or writes at indices along the middle axis."""
    outer, length, inner = s["outer"], s["length"], s["inner"]
    data, updates = normal(rng, "float32", (outer, length, inner), (outer, s["count"], inner))
    match mode:
        case "take":
            return Problem(mode, [data, rng.integers(0, length, s["count"])], {"axis": 1, "mode": "clip"})
        case "gather":
            return Problem(mode, [data, rng.integers(0, length, updates.shape)], {"axis": 1})
        case "scatter_elements":
            how = ("add", "max", "update")[int(rng.integers(3))]
            where = rng.integers(0, length, updates.shape)
            return Problem(mode, [data, where, updates], {"axis": 1, "reduction": how})
    where = rng.integers(0, [[outer], [length]], (2, s["count"]))
    return Problem("scatter_nd", [data, where, updates[0]], {"mode": ("add", "update")[int(rng.integers(2))]})


def moved(s: Sizes, mode: str, rng: np.random.Generator) -> Problem:
    (data,) = normal(rng, mode, (s["outer"], s["length"], s["inner"]))
    axes = [(0, 2, 1), (2, 1, 0), (1, 0, 2), (2, 0, 1)][int(rng.integers(4))]
    return Problem("transpose", [data], {"axes": axes}, mode, tail=bool(rng.integers(2)))


_FLOATS = ("float32", "three", "tf32", "float16", "bfloat16", "float64")
_SCORES = ("float32", "tf32", "float16", "bfloat16")
_CONV = ("channels", "filters", "width", "height", "taps", "stride", "dilation", "groups", "batch")
_TRANSPOSED = ("channels", "filters", "width", "taps", "stride", "batch")
_DEPTHWISE = ("groups", "width", "height", "taps", "stride", "dilation", "batch")
_ROWS = ("outer", "length", "inner")
_REDUCED = ("sum", "max", "mean float16", "argmax", "logsumexp", "sum float64", "prod")
_REDUCED += ("nn.softmax", "nn.softmax float16")
_WINDOWS = ("outer", "height", "width", "taps", "stride")
_ORDERED = ("cumsum", "sort", "argsort", "topk", "cumsum float64", "cumprod")


def _with(build: Build, **fixed: int) -> Build:
    return lambda sizes, mode, rng: build({**fixed, **sizes}, mode, rng)


_LAYER = _with(convolution, height=4, taps=3, stride=1, dilation=1, groups=1, batch=1)
_HEADS = _with(attention, queries=5, places=9, size=7, width=12)

SUBJECTS = [
    Subject("product", ("rows", "columns", "depth"), _FLOATS, _with(product, batch=1), 3),
    Subject("products of a batch", ("rows", "columns", "depth", "batch"), _FLOATS, product, most=17),
    Subject("attention", ("queries", "places", "size", "width"), _SCORES, _with(attention, batch=1, heads=2), 2),
    Subject("attention of heads", ("heads", "batch"), _SCORES, _HEADS, most=3),
    Subject("convolution", _CONV, _FLOATS, convolution, most=5),
    Subject("convolution, channels", ("channels", "filters", "width"), _FLOATS, _LAYER, 2),
    Subject("transposed convolution", _TRANSPOSED, _FLOATS, transposed, most=5),
    Subject("depthwise", _DEPTHWISE, ("float32", "float16", "float64"), depthwise, most=5),
    Subject("recurrent", ("hidden", "steps", "batch"), (*GATES,), recurrent, most=8),
    Subject("reductions", _ROWS, _REDUCED, by_rows, 2, most=12),
    Subject("scans and sorting", _ROWS, _ORDERED, by_rows, most=12),
    Subject("long reductions", ("length",), (*_REDUCED, *_ORDERED), _with(long_rows, outer=2, inner=3)),
    Subject("windows", _WINDOWS, ("nn.max_pool2d", "nn.avg_pool2d"), windows, most=12),
    Subject("selection", ("outer", "length"), ("nonzero", "unique"), selected, most=12),
    Subject("layer norm", ("outer", "length"), ("float32", "float16"), normalized),
    Subject("indexed", (*_ROWS, "count"), ("take", "gather", "scatter_elements", "scatter_nd"), indexed, most=12),
    Subject("transpose", _ROWS, ("float32", "float16", "float64"), moved, most=17),
]
