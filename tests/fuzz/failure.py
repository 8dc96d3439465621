"""What is made of a failing case: one that is smaller and fails in the same way, and a test file that needs nothing but
minitvm, numpy and onnx."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import onnx
import onnx.printer

from tests.fuzz.case import Arrays, Case, Config, Value, pruned, reads, subgraphs
from tests.fuzz.judge import Judge, Verdict


def shrink(case: Case, verdict: Verdict, judge: Judge, seconds: float = 120.0) -> tuple[Case, Verdict]:
    """The smallest case found in some seconds whose failure has the signature of ``verdict``, and its verdict."""
    from minitvm.lab.minify import Search  # the laboratory uses this room, too

    def alike(smaller: Case) -> Verdict | None:
        new = judge.verdict(smaller)
        return new if new.failed and new.signature == verdict.signature else None

    search = Search(case, verdict, alike, _key, seconds)
    search.run([_feeds, _outputs, lambda c: _parts(c, judge), _configs, _attributes, _sizes, _values, _names])
    return search.best, search.found


def _key(case: Case) -> Hashable | None:
    """``None`` where a step made something that is no model."""
    try:
        model = case.model().SerializeToString()
    except (ValueError, TypeError, KeyError):
        return None
    return (model, case.config, *(a.tobytes() for feeds in case.feeds for a in feeds.values()))


def _configs(case: Case) -> Iterator[Case]:
    config, simple = case.config, Config()
    for name in ("verify", "poison", "reference", "way", "target", "threads"):
        if getattr(config, name) != getattr(simple, name):
            yield case.replace(config=_with(config, name, getattr(simple, name)))
    if config.threads > 2:
        yield case.replace(config=_with(config, "threads", 2))
    for level in range(config.level):
        yield case.replace(config=_with(config, "level", level))


def _with(config: Config, name: str, value: object) -> Config:
    return Config(**{**vars(config), name: value})


def _feeds(case: Case) -> Iterator[Case]:
    if len(case.feeds) > 1:
        for feeds in case.feeds:
            yield case.replace(feeds=[feeds], symbols={})
            yield case.replace(feeds=[feeds])
    if case.symbols:
        yield case.replace(symbols={})


def _outputs(case: Case) -> Iterator[Case]:
    half = len(case.outputs) // 2
    for part in (case.outputs[:half], case.outputs[half:]):
        if half:
            yield pruned(case.replace(outputs=part))
    smaller = pruned(case)
    if _count(smaller) < _count(case):
        yield smaller


def _count(case: Case) -> int:
    return len(case.nodes) + len(case.feeds[0]) + len(case.constants)


def _parts(case: Case, judge: Judge) -> Iterator[Case]:
    """Some of the nodes, on the operands they have in the graph: one alone, a half, all but one."""
    count = len(case.nodes)
    if count < 2 or len(case.feeds) > 1:
        return
    inside = {**judge.inside(case), **case.feeds[0]}
    every = range(count)
    ones, halves = [[i] for i in every], [every[: count // 2], every[count // 2 :]]
    for kept in (*ones, *halves, *([j for j in every if j != i] for i in every)):
        yield from _alone(case, [case.nodes[i] for i in kept], inside)


def _alone(case: Case, nodes: list[onnx.NodeProto], inside: Arrays) -> Iterator[Case]:
    """What nodes compute from values inside of the graph; nothing where one is not known."""
    made, read = {n for node in nodes for n in node.output if n}, set[str]().union(*map(reads, nodes))
    ends = (made - read) | {v.name for v in case.outputs if v.name in made}
    given = sorted(read - made - set(case.constants))
    if set(given) <= set(inside) and (known := [n for n in sorted(ends) if n in inside]):
        outputs = [Value(n, inside[n].dtype.name, inside[n].shape) for n in known]
        feeds = [{n: inside[n] for n in given} or case.feeds[0]]
        yield pruned(case.replace(nodes=nodes, feeds=feeds, outputs=outputs))


def _attributes(case: Case) -> Iterator[Case]:
    """Leaves out an attribute, or the last input."""
    for i, node in enumerate(case.nodes):
        for attribute in node.attribute:
            smaller = onnx.NodeProto()
            smaller.CopyFrom(node)
            smaller.attribute.remove(attribute)
            yield _replaced(case, i, smaller)
        if len(node.input) > 1:
            smaller = onnx.NodeProto()
            smaller.CopyFrom(node)
            del smaller.input[-1]
            yield _replaced(case, i, smaller)


def _replaced(case: Case, index: int, node: onnx.NodeProto) -> Case:
    return pruned(case.replace(nodes=[*case.nodes[:index], node, *case.nodes[index + 1 :]]))


def _sizes(case: Case) -> Iterator[Case]:
    """One size becomes a smaller one, in all arrays at once or in one axis of one input."""
    found = sorted({s for a in _arrays(case).values() for s in a.shape if s > 1}, reverse=True)
    for size in found:
        for less in dict.fromkeys((1, 2, size // 2, size - 1)):
            if less < size:
                yield _changed(case, "", partial(_smaller, size=size, less=less))
    for name, array in case.feeds[0].items():
        for axis, size in enumerate(array.shape):
            for less in dict.fromkeys((1, size // 2, size - 1)):
                if 0 < less < size:
                    yield _changed(case, name, partial(np.take, indices=range(less), axis=axis))


def _arrays(case: Case) -> Arrays:
    return {**case.constants, **case.feeds[0]}


def _changed(case: Case, only: str, change: Callable[[np.ndarray], np.ndarray]) -> Case:
    """With one array changed, in all feeds; with every array changed where none is named."""

    def changed(arrays: Arrays) -> Arrays:
        return {n: change(a) if only in ("", n) else a for n, a in arrays.items()}

    return case.replace(feeds=[changed(feeds) for feeds in case.feeds], constants=changed(case.constants))


def _smaller(array: np.ndarray, size: int, less: int) -> np.ndarray:
    """What has ``size`` places along an axis has ``less``; what holds sizes holds the smaller one."""
    cropped = array[tuple(slice(less if s == size else None) for s in array.shape)]
    holds = array.dtype == np.int64 and array.ndim == 1 and array.size <= 6
    return np.where(cropped == size, less, cropped) if holds else cropped


def _values(case: Case) -> Iterator[Case]:
    """Simpler numbers: ones, small integers, whole numbers, finite ones."""
    simpler: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
        np.ones_like,
        lambda a: (np.arange(a.size).reshape(a.shape) % 7 - 3).astype(a.dtype),
        np.round,
        lambda a: np.where(np.isfinite(a), a, a.dtype.type(1)),
    )
    for simple in simpler:
        for name, array in _arrays(case).items():
            if array.dtype.kind == "f" and not np.array_equal(simple(array), array, equal_nan=True):
                yield _changed(case, name, simple)


def _names(case: Case) -> Iterator[Case]:
    """Short names, of everything or of all but one."""
    names = [*case.feeds[0], *case.constants, *(n for node in case.nodes for n in node.output if n)]
    short = {n: chr(ord("a") + i) if i < 26 else f"v{i}" for i, n in enumerate(dict.fromkeys(names))}
    if any(subgraphs(node) for node in case.nodes) or all(n == s for n, s in short.items()):
        return
    yield _renamed(case, short)
    for kept in names:
        if kept != short[kept] and kept not in short.values() and len(kept) < 40:
            others = {**short, kept: kept}
            if sum(a != b for a, b in others.items()):
                yield _renamed(case, others)


def _renamed(case: Case, names: dict[str, str]) -> Case:
    nodes = []
    for node in case.nodes:
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[:] = [names.get(n, n) for n in node.input]
        changed.output[:] = [names.get(n, n) for n in node.output]
        nodes.append(changed)
    return case.replace(
        nodes=nodes,
        feeds=[{names[n]: a for n, a in feeds.items()} for feeds in case.feeds],
        constants={names[n]: a for n, a in case.constants.items()},
        outputs=[Value(names[v.name], v.dtype, v.shape) for v in case.outputs],
        symbols={names[n]: s for n, s in case.symbols.items()},
    )


_LITERAL = 64
"""Arrays of more elements are written as bytes."""

_TEMPLATE = '''"""Found by tests.fuzz (--replay {seed}:{number}), then shrunk.

{message}
"""

from __future__ import annotations

import base64

import numpy as np
import onnx
from numpy import inf, nan  # noqa: F401

import minitvm
from minitvm.runtime.executor import GraphModule  # noqa: F401


def unpacked(text: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


MODEL = {model!r}
FEEDS = {feeds}
EXPECTED = {expected}


def model() -> onnx.ModelProto:
    return onnx.load_from_string(base64.b64decode(MODEL))


def test_fuzz_{seed}_{name}(tmp_path) -> None:
{run}
    for feeds, expected in zip(FEEDS, EXPECTED, strict=True):
        for found, want in zip(run(feeds), expected or [], strict=False):
            assert (found.dtype, found.shape) == (want.dtype, want.shape)
            half = want.dtype == np.float16
            np.testing.assert_allclose(found, want, rtol=4e-3 if half else 1e-4, atol=1e-3 if half else 1e-5)
'''


def write(
    case: Case,
    expected: Sequence[Sequence[np.ndarray] | None],
    seed: int,
    number: str,
    message: str,
    folder: pathlib.Path,
) -> pathlib.Path:
    """Writes ``test_fuzz_SEED_INDEX.py`` and the model beside it; returns the test's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"test_fuzz_{seed}_{number.replace(':', '_')}.py"
    shown = case.replace(constants={n: a for n, a in case.constants.items() if a.size <= _LITERAL})
    text = _TEMPLATE.format(
        seed=seed,
        number=number,
        name=number.replace(":", "_"),
        message=_quoted(f"{message}\n\n{onnx.printer.to_text(shown.model())}"),
        model=base64.b64encode(case.model().SerializeToString()).decode(),
        feeds="[" + ", ".join(_dictionary(feeds) for feeds in case.feeds) + "]",
        expected="[" + ", ".join("None" if e is None else _list(map(_array, e)) for e in expected) + "]",
        run=_run(case),
    )
    path.write_text(text, encoding="utf-8")
    onnx.save(case.model(), str(path.with_suffix(".onnx")))
    return path


def _list(items: Iterable[str]) -> str:
    return "[" + ", ".join(items) + "]"


def _dictionary(arrays: Arrays) -> str:
    return "{" + ", ".join(f"{name!r}: {_array(a)}" for name, a in arrays.items()) + "}"


def _array(array: np.ndarray) -> str:
    if array.size <= _LITERAL:
        return f"np.array({array.tolist()!r}, {array.dtype.name!r}).reshape({array.shape!r})"
    text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return f"unpacked({text!r}, {array.dtype.name!r}, {array.shape!r})"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _run(case: Case) -> str:
    """The lines that make ``run``, feeds to results, as the case's configuration says."""
    config = case.config
    if config.way == "session":
        options = f"target={config.target!r}, num_threads={config.threads}, opt_level={config.level}"
        lines = [
            f"session = minitvm.InferenceSession(model(), {options})",
            "",
            "def run(feeds):",
            "    return session.run(None, feeds)",
        ]
    else:
        saved = ['library.save(tmp_path / "case.mtvm")', 'library = minitvm.load(tmp_path / "case.mtvm")']
        lines = [
            f"library = minitvm.compile(model(), {config.target!r}, {config.level}, num_threads={config.threads})",
            *(saved if config.way == "saved" else []),
            f'module = GraphModule(library["default"](None, {config.threads}))',
            "",
            "def run(feeds):",
            *("    for name, array in feeds.items():", "        module.set_input(name, array)"),
            *("    module.run()", "    return module.outputs()"),
        ]
    return "\n".join(f"    {line}" if line else "" for line in [*lines, ""])
