"""ONNX's own backend tests, all that the installed onnx has: which pass, and how: compiled, folded, or in Python."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import re
import tempfile
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
from onnx.backend.base import Backend, BackendRep
from onnx.reference import ReferenceEvaluator

from minitvm import config
from minitvm.errors import MiniTVMError
from minitvm.ir.evaluate import as_value
from minitvm.onnx_backend import MiniTVMBackend, PreparedModel
from minitvm.runtime.library import Library

PASSED = ("compiled", "folded", "host")
OUTCOMES = (*PASSED, "wrong", "refused", "excluded")
EXCLUDED = {
    r"test_bernoulli.*": "the expected values are one draw of numpy's random generator",
    r"test_dft_inverse.*": "the expected values are single precision's roundings, 2e-7, where what is meant is 0: "
    "minitvm transforms in double",
    r"test_gradient_of_add.*": "Gradient differentiates the graph around it, which no runtime for inference does",
    r"test_loop16_seq_none": "the runner asks the arrays of a sequence for their length, and these are scalars",
    r"test_resize_downsample_scales_(cubic|linear)_align_corners": "the expected values are those of an extent that is "
    "no whole number, so that the last corners are not aligned; ONNX Runtime's results are those of minitvm",
}
"""Tests that say nothing, by name, and why."""
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coverage.md"
RECORD = PAGE.with_suffix(".json")
OPENED = PAGE.with_name("coverage-open.json")
"""How many tests ended how where all dimensions of inputs were unknown; ``once``: by one library for all shapes."""


class Watched(MiniTVMBackend):
    """The backend that is tested: what it was asked last is kept, and every model counts as compatible."""

    opt_level = 3
    opened = False
    """Whether the dimensions of inputs are taken away, so that a session meets them when it runs."""
    model: onnx.ModelProto | None = None
    prepared: PreparedModel | None = None

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        model = without_dimensions(model) if cls.opened else model
        Watched.model, Watched.prepared = model, None
        Watched.prepared = MiniTVMBackend.prepare(model, device, num_threads=1, opt_level=cls.opt_level, **kwargs)
        return Watched.prepared


def without_dimensions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every dimension of its inputs and values unknown, their number known."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    weights = {tensor.name for tensor in found.graph.initializer}
    for value in (*found.graph.input, *found.graph.output, *found.graph.value_info):
        if value.name not in weights:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    return found


def excluded(name: str) -> str | None:
    """Why a test says nothing."""
    return next((why for pattern, why in EXCLUDED.items() if re.fullmatch(pattern, name.rpartition("/")[2])), None)


def cases(backend: type[Backend] = Watched) -> dict[str, unittest.TestCase]:
    """Every test of the CPU by ``category/name``, by onnx's own runner."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of the tests' own data
        classes = onnx.backend.test.BackendTest(backend, __name__).test_cases
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
    once: bool = False
    """Whether one library serves all shapes."""


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


def _how() -> tuple[str, str, str, bool]:
    assert Watched.prepared is not None
    session = Watched.prepared.session
    calls = ", ".join(dict.fromkeys(call.op for call in session.host_calls))
    kernels = any(map(_has_kernels, session.libraries))
    once = session.symbolic is not None and session.symbolic.taken
    return "host" if calls else "compiled" if kernels else "folded", _operator(), calls, once


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
            why = excluded(name)
            found[name] = Outcome("excluded", "", why) if why else outcome(case)
    return found


def _backend(made: Callable[[onnx.ModelProto], Any]) -> type[Backend]:
    """A backend of what runs a model: ``made(model).run(None, feeds)``."""

    class Peer(Backend):
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:
            runner, rep, weights = made(model), BackendRep(), {tensor.name for tensor in model.graph.initializer}
            names = [value.name for value in model.graph.input if value.name not in weights]
            rep.run = lambda inputs, **_: runner.run(None, dict(zip(names, map(as_value, inputs), strict=False)))
            return rep

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    return Peer


def peers() -> dict[str, int]:
    """How many of all tests ONNX Runtime and onnx's reference evaluator pass."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    others = {
        f"ONNX Runtime {ort.__version__}": lambda m: ort.InferenceSession(m.SerializeToString()),
        f"onnx.reference {onnx.__version__}": ReferenceEvaluator,
    }
    with own_folder():
        return {name: sum(map(_passes, cases(_backend(made)).values())) for name, made in others.items()}


def _passes(case: unittest.TestCase) -> bool:
    """Whether a test passes; one that the other does not take is skipped, and does not."""
    result = unittest.TestResult()
    with warnings.catch_warnings(), np.errstate(all="ignore"), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        case.run(result)
    return result.wasSuccessful() and not result.skipped


def worse(before: Mapping[str, str], after: Mapping[str, Outcome]) -> list[str]:
    """Tests that passed, or ran without Python, and do no longer."""
    rank = {"compiled": 3, "folded": 3, "host": 2, "wrong": 0, "refused": 1, "excluded": 1}
    return [
        f"{name}: {before[name]} before, {found.kind} now ({found.reason})"
        for name, found in after.items()
        if name in before and rank[found.kind] < rank[before[name]]
    ]


def write(found: Mapping[str, Outcome], peers: Mapping[str, int]) -> None:
    """The page, and its record: the outcome of each test, which later runs are held to."""
    RECORD.write_text(json.dumps({name: o.kind for name, o in found.items()}, indent=0) + "\n", encoding="utf-8")
    PAGE.write_text(page(found, peers), encoding="utf-8")


def write_opened(found: Mapping[str, Outcome]) -> dict[str, int]:
    counts = {kind: sum(o.kind == kind for o in found.values()) for kind in OUTCOMES}
    counts["once"] = sum(o.once for o in found.values())
    OPENED.write_text(json.dumps(counts) + "\n", encoding="utf-8")
    return counts


def _opened() -> str:
    counts = json.loads(OPENED.read_text(encoding="utf-8"))
    passed, tests = sum(counts[kind] for kind in PASSED), sum(counts[kind] for kind in OUTCOMES)
    return OPEN.format(passed=passed, share=passed / tests, **counts)


def recorded() -> dict[str, str]:
    found: dict[str, str] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


HEADING = (
    "tests | pass | compiled | folded | Python | differ | refused | excluded |\n|---|---|---|---|---|---|---|---|---|"
)
OPEN = """With the dimensions of all inputs taken away (`python -m benchmarks coverage --open`),
**{passed:,} pass, {share:.1%}**: {compiled:,} as kernels only, {folded:,} folded, {host:,} with
operators in Python; {once:,} of them by one library for all shapes, the others by one for each shape that is met."""
TEMPLATE = """# Which of ONNX's tests pass

All {tests:,} backend tests of onnx {version} (opset {opset}), by its own runner and comparison, at level 3 on one
thread. `python -m benchmarks coverage` makes this page; the tests hold each outcome to `coverage.json`.

**{passed:,} pass, {share:.1%}**: {compiled:,} as kernels only, {folded:,} folded while compiling, {host:,} with
operators in Python; {refused:,} are refused, {wrong:,} differ, {excluded:,} are excluded.

{opened}

Of the same tests, by the same comparison (ONNX Runtime takes no arrays of bfloat16, float8 and the like from Python):

| | pass |
|---|---|
| minitvm {minitvm} | {passed:,} |
{peers}

| category | {heading}
{categories}

## By operator

Tests of one node; `several` are those of more.

| operator | {heading}
{operators}

## What differs

{differing}

## What is excluded

| tests | why |
|---|---|
{exclusions}

## What is refused

| tests | why |
|---|---|
{refusals}

## What runs in Python

| tests | operators |
|---|---|
{python}
"""


def page(found: Mapping[str, Outcome], peers: Mapping[str, int]) -> str:
    """The text of ``docs/coverage.md``; ``peers`` are how many tests others pass, by name and version."""
    counts = {kind: sum(o.kind == kind for o in found.values()) for kind in OUTCOMES}
    passed = sum(counts[kind] for kind in PASSED)
    in_python = Counter(o.reason for o in found.values() if o.kind == "host")
    return TEMPLATE.format(
        **counts,
        opened=_opened(),
        tests=len(found),
        minitvm=config.version(),
        peers="\n".join(f"| {name} | {count:,} |" for name, count in peers.items()),
        version=onnx.__version__,
        opset=onnx.defs.onnx_opset_version(),
        passed=passed,
        share=passed / len(found),
        heading=HEADING,
        categories="\n".join(_rows({name: name.partition("/")[0] for name in found}, found)),
        operators="\n".join(_rows({name: f"`{o.operator}`" for name, o in found.items()}, found)),
        differing="\n".join(f"* `{name}`: {o.reason}" for name, o in found.items() if o.kind == "wrong"),
        exclusions="\n".join(_by_reason(found, "excluded")),
        refusals="\n".join(_by_reason(found, "refused")),
        python="\n".join(f"| {count} | {operators} |" for operators, count in in_python.most_common()),
    )


def _rows(groups: Mapping[str, str], found: Mapping[str, Outcome]) -> Iterator[str]:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for name, group in groups.items():
        table[group][found[name].kind] += 1
    for group, counts in sorted(table.items()):
        figures = [counts.total(), sum(counts[k] for k in PASSED), *(counts[k] for k in OUTCOMES)]
        yield f"| {group} | {' | '.join(str(n) if n else '' for n in figures)} |"


def _by_reason(found: Mapping[str, Outcome], kind: str) -> Iterator[str]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, o in found.items():
        if o.kind == kind:
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
