"""ONNX's own backend tests, all that the installed onnx has: which pass, and how: compiled, folded, or in Python."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.backend.test

from minitvm.errors import MiniTVMError
from minitvm.onnx_backend import MiniTVMBackend, PreparedModel
from minitvm.runtime.library import Library

PASSED = ("compiled", "folded", "host")
OUTCOMES = (*PASSED, "wrong", "refused")
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coverage.md"
RECORD = PAGE.with_suffix(".json")


class Watched(MiniTVMBackend):
    """The backend that is tested: what it was asked last is kept, and every model counts as compatible."""

    opt_level = 3
    model: onnx.ModelProto | None = None
    prepared: PreparedModel | None = None

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        Watched.model, Watched.prepared = model, None
        Watched.prepared = MiniTVMBackend.prepare(model, device, num_threads=1, opt_level=cls.opt_level, **kwargs)
        return Watched.prepared


def cases() -> dict[str, unittest.TestCase]:
    """Every test of the CPU by ``category/name``, by onnx's own runner."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of the tests' own data
        classes = onnx.backend.test.BackendTest(Watched, __name__).test_cases
    names = [(kind, name) for kind in classes for name in unittest.TestLoader().getTestCaseNames(classes[kind])]
    return {
        f"{kind.removeprefix('OnnxBackend').removesuffix('ModelTest')}/{name.removesuffix('_cpu')}": classes[kind](name)
        for kind, name in sorted(names)
        if name.endswith("_cpu")
    }


@dataclass(frozen=True)
class Outcome:
    """What came of a test: one of ``OUTCOMES``; ``reason`` is why it was refused, or what runs in Python."""

    kind: str
    operator: str
    reason: str = ""


def outcome(case: unittest.TestCase, opt_level: int = 3) -> Outcome:
    """Runs a test.  What is neither a wrong result nor a refusal is raised: it is a bug."""
    Watched.opt_level, Watched.model, Watched.prepared = opt_level, None, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(case, case._testMethodName)()
    except MiniTVMError as error:
        return Outcome("refused", _operator(), error.message)
    except AssertionError as error:
        return Outcome("wrong", _operator(), " ".join(str(error).split())[:120])
    return Outcome(*_how())


def _operator() -> str:
    nodes = Watched.model.graph.node if Watched.model is not None else ()
    if len(nodes) != 1:
        return "several"
    return f"{nodes[0].domain}.{nodes[0].op_type}" if nodes[0].domain else str(nodes[0].op_type)


def _how() -> tuple[str, str, str]:
    assert Watched.prepared is not None
    session = Watched.prepared.session
    calls = ", ".join(dict.fromkeys(call.op for call in session.host_calls))
    kernels = any(map(_has_kernels, session.libraries))
    return "host" if calls else "compiled" if kernels else "folded", _operator(), calls


def _has_kernels(library: Library) -> bool:
    """Its own, or in its branches."""
    return bool(library.function_metadata) or any(map(_has_kernels, library.branches.values()))


@contextmanager
def own_folder() -> Iterator[None]:
    """The runner unpacks models below ``ONNX_MODELS``."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("ONNX_MODELS")
        os.environ["ONNX_MODELS"] = folder
        try:
            yield
        finally:
            os.environ.pop("ONNX_MODELS") if before is None else os.environ.update(ONNX_MODELS=before)


def run_all(on_progress: Callable[[int, int], None]) -> dict[str, Outcome]:
    with own_folder():
        found, every = {}, cases()
        for number, (name, case) in enumerate(every.items()):
            on_progress(number, len(every))
            found[name] = outcome(case)
    return found


def worse(before: Mapping[str, str], after: Mapping[str, Outcome]) -> list[str]:
    """Tests that passed, or ran without Python, and do no longer."""
    rank = {"compiled": 3, "folded": 3, "host": 2, "wrong": 0, "refused": 1}
    return [
        f"{name}: {before[name]} before, {found.kind} now ({found.reason})"
        for name, found in after.items()
        if name in before and rank[found.kind] < rank[before[name]]
    ]


def write(found: Mapping[str, Outcome]) -> None:
    """The page, and its record: the outcome of each test, which later runs are held to."""
    RECORD.write_text(json.dumps({name: o.kind for name, o in found.items()}, indent=0) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")


def recorded() -> dict[str, str]:
    found: dict[str, str] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


HEADING = "tests | pass | compiled | folded | Python | differ | refused |\n|---|---|---|---|---|---|---|---|"
TEMPLATE = """# Which of ONNX's tests pass

All {tests:,} backend tests of onnx {version} (opset {opset}), by its own runner and comparison, at level 3 on one
thread. `python -m benchmarks coverage` makes this page; the tests hold each outcome to `coverage.json`.

**{passed:,} pass, {share:.1%}**: {compiled:,} as kernels only, {folded:,} folded while compiling, {host:,} with
operators in Python; {refused:,} are refused, {wrong:,} differ.

| category | {heading}
{categories}

## By operator

Tests of one node; `several` are those of more.

| operator | {heading}
{operators}

## What differs

{differing}

## What is refused

| tests | why |
|---|---|
{refusals}

## What runs in Python

| tests | operators |
|---|---|
{python}
"""


def page(found: Mapping[str, Outcome]) -> str:
    """The text of ``docs/coverage.md``."""
    counts = {kind: sum(o.kind == kind for o in found.values()) for kind in OUTCOMES}
    passed = sum(counts[kind] for kind in PASSED)
    in_python = Counter(o.reason for o in found.values() if o.kind == "host")
    return TEMPLATE.format(
        **counts,
        tests=len(found),
        version=onnx.__version__,
        opset=onnx.defs.onnx_opset_version(),
        passed=passed,
        share=passed / len(found),
        heading=HEADING,
        categories="\n".join(_rows({name: name.partition("/")[0] for name in found}, found)),
        operators="\n".join(_rows({name: f"`{o.operator}`" for name, o in found.items()}, found)),
        differing="\n".join(f"* `{name}`: {o.reason}" for name, o in found.items() if o.kind == "wrong"),
        refusals="\n".join(_refusals(found)),
        python="\n".join(f"| {count} | {operators} |" for operators, count in in_python.most_common()),
    )


def _rows(groups: Mapping[str, str], found: Mapping[str, Outcome]) -> Iterator[str]:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for name, group in groups.items():
        table[group][found[name].kind] += 1
    for group, counts in sorted(table.items()):
        figures = [counts.total(), sum(counts[k] for k in PASSED), *(counts[k] for k in OUTCOMES)]
        yield f"| {group} | {' | '.join(str(n) if n else '' for n in figures)} |"


def _refusals(found: Mapping[str, Outcome]) -> Iterator[str]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, o in found.items():
        if o.kind == "refused":
            reasons[_kind_of(o.reason)].append(name)
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(f"`{name.partition('/')[2]}`" for name in names[:3])
        yield f"| {len(names)} | {reason} ({shown}{', ...' if len(names) > 3 else ''}) |"


def _kind_of(reason: str) -> str:
    """A refusal without the names of the test's values."""
    for start in ("element type", "is of type"):
        if start in reason:
            return reason[reason.index(start) :].replace("|", "/")
    return reason.replace("|", "/")
