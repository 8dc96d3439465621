"""From a seed to a case of a family: the graph, feeds that are awkward for it, and a configuration."""

import random
from collections.abc import Sequence

import numpy as np

from minitvm.ir.dtypes import register
from tests.fuzz.case import Arrays, Case, Config, all_nodes, is_float, tiny_of
from tests.fuzz.draw import Reject
from tests.fuzz.families.net import EXTENTS, FAMILIES, NEWEST, Net

register()  # bfloat16
OPSETS = (*range(13, NEWEST + 1), 17, 17, 18, 20, 21, 23, 24)
VARIANTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool]] = {
    **{name: ((name,), dtypes, False) for name, (_, dtypes) in FAMILIES.items()},
    "half": (("cnn", "transformer"), ("float16", "float16", "bfloat16"), False),
    "double": (("cnn", "transformer"), ("float64",), False),
    "open": (("cnn", "transformer", "transformer", "quantized", "flow"), ("float32", "float32", "float16"), True),
}
"""The families of the command: what builds them, their floats, and whether all dimensions are open."""
TARGETS = ("llvm",) * 8 + ("llvm -mcpu=haswell", "llvm -mcpu=x86-64") * 2 + ("interp", "simulated")
THREADS = (1, 1, 2, 3, 4, 5, 6, 7)
BY_STEPS = 20_000
"""Of numbers in a graph: more would take the interpreter of loops too long."""


def family_case(name: str, seed: int, index: int, levels: Sequence[int]) -> Case:
    """Case ``index`` of a family and a seed; the same one each time."""
    rng = random.Random(f"{name}:{seed}:{index}")
    builders, dtypes, is_open = VARIANTS[name]
    while True:
        dtype, builder = rng.choice(dtypes), rng.choice(builders)
        opset = rng.choice([o for o in OPSETS if o >= 22] if dtype == "bfloat16" else OPSETS)
        if builder in ("quantized", "flow") and dtype not in FAMILIES[builder][1]:
            continue
        net = Net(rng, opset, dtype, is_open)
        try:
            FAMILIES[builder][0](net)
        except Reject:
            continue
        if case := _finished(net, levels):
            return case


def _finished(net: Net, levels: Sequence[int]) -> Case | None:
    """``None`` where no result is computed."""
    made = {name for node in net.nodes if node.op_type != "Constant" for name in node.output}
    outputs = [v for v in dict.fromkeys(net.results) if v.name in made]
    if not outputs or not net.inputs:
        return None
    rng = net.rng
    feeds = [net.inputs, *(_others(net) if net.is_open else [])]
    feeds += [awkward(rng, net.feed(rng), net.constants) for _ in range(rng.choice((0, 1, 1)) + (not net.is_open))]
    return Case(net.nodes, feeds, net.constants, outputs, net.opset, _config(net, levels), net.symbols())


def _others(net: Net) -> list[Arrays]:
    """Feeds of other sizes, to one session in turns: none, one, and the first ones again."""
    found = []
    for _ in range(net.rng.choice((2, 3))):
        sizes = {name: net.rng.choice(EXTENTS) for name in net.sizes}
        if "T" in sizes:
            sizes["T"] = sizes["S"] + sizes.get("P", 0)
        if net.rng.random() < 0.5 and "H" in sizes:
            sizes |= {name: net.sizes[name] + net.rng.choice((-1, 1, 3)) for name in "HWD" if name in sizes}
        found.append(net.feed(net.rng, sizes))
    return [*found, net.feed(net.rng)]


def _config(net: Net, levels: Sequence[int]) -> Config:
    rng = net.rng
    target = rng.choice(TARGETS)
    numbers = sum(a.size for a in (*net.inputs.values(), *net.constants.values()))
    if target in ("interp", "simulated") and (numbers > BY_STEPS or len(all_nodes(net.nodes)) > 40):
        target = "llvm"
    return Config(
        level=max(rng.choice(levels), rng.choice(levels)),
        threads=rng.choice(THREADS) if target != "interp" else 1,
        target=target,
        way="session" if net.is_open else rng.choice(("session", "session", "module", "saved")),
        poison=rng.random() < 0.3,
        verify=rng.random() < 0.03,
        reference=rng.random() < 0.1,
    )


def awkward(rng: random.Random, feed: Arrays, constants: Arrays) -> Arrays:
    """With floats near those of the graph's constants, of both signs; or one element of each input that is no number,
    infinite or far out of scale; or all near an end of the dtype, or zeros of both signs."""
    how = rng.choice(("near", "near", "near", "spike", "spike", "large", "small", "zeros", "zeros"))
    draw = np.random.default_rng(rng.getrandbits(64))
    with np.errstate(all="ignore"):
        return {name: _awkward(how, draw, a, constants) if is_float(a) else a for name, a in feed.items()}


def _awkward(how: str, draw: np.random.Generator, a: np.ndarray, constants: Arrays) -> np.ndarray:
    wide, most = a.astype(np.float64), float(register().finfo(a.dtype).max)
    if a.size == 0:
        return a
    if how == "near":
        wide = _near(draw, wide, constants, float(register().finfo(a.dtype).eps))
    elif how == "spike":
        wide.reshape(-1)[draw.integers(a.size)] = draw.choice((np.nan, np.inf, -np.inf, min(1e8, most / 2), most))
    elif how == "large":
        wide = wide * most ** draw.choice((0.4, 0.7, 0.99))
    elif how == "small":
        wide = wide * tiny_of(a.dtype) ** draw.choice((0.4, 0.7, 1.0))
    else:
        wide = draw.choice((0.0, -0.0, 1.0), a.shape)
    return np.clip(wide, -most, most).astype(a.dtype) if how == "near" else wide.astype(a.dtype)


def _near(draw: np.random.Generator, wide: np.ndarray, constants: Arrays, eps: float) -> np.ndarray:
    """Half of the elements: minus or plus a constant, a few roundings or an everyday number away."""
    pool = [float(v) for a in constants.values() if is_float(a) for v in a.astype(np.float64).reshape(-1)[:8]]
    pool = [v for v in pool if np.isfinite(v)] or [1.0]
    base = draw.choice(pool, wide.shape) * draw.choice((1.0, -1.0), wide.shape)
    off = np.where(draw.random(wide.shape) < 0.5, base * eps * draw.integers(-4, 5, wide.shape), wide)
    return np.asarray(np.where(draw.random(wide.shape) < 0.5, base + off, wide))
