"""Every node case of ONNX's own backend test suite: imported and evaluated in numpy; and with extreme integers.

``test_onnx_backend.py`` runs them as kernels, and keeps the record of those that do not pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.runner import Runner

from benchmarks import coverage
from minitvm import onnx_backend
from minitvm.errors import MiniTVMError, UnknownValueError
from minitvm.frontend import from_onnx
from minitvm.frontend.onnx.registry import BUILDERS
from minitvm.ir.evaluate import evaluate
from simulated_gpu.device import simulated_target
from tests.compilers import ON_GPU, PARTS, needs_compiler
from tests.gathered import Gathered
from tests.steps import steps


def _constant_inputs(model: onnx.ModelProto, inputs: list[Any], kinds: str) -> onnx.ModelProto:
    """The model with inputs of some dtype kinds as initializers: shapes and axes are known in real models."""
    frozen = onnx.ModelProto()
    frozen.CopyFrom(model)
    for info, array in zip(model.graph.input, inputs, strict=True):
        if info.name and isinstance(array, (np.ndarray, np.generic)) and array.dtype.kind in kinds:
            frozen.graph.initializer.append(numpy_helper.from_array(np.asarray(array), info.name))
    return frozen


def _run(model: onnx.ModelProto, inputs: list[Any]) -> tuple[np.ndarray, ...]:
    """By the operators' references; inputs are constants where the importer asks for their values."""
    weights = {t.name for t in model.graph.initializer}
    tensors = {v.name for v in model.graph.input if v.type.HasField("tensor_type")}
    named = zip((v.name for v in model.graph.input), inputs, strict=True)
    feeds = {n: np.asarray(a) if isinstance(a, np.generic) else a for n, a in named if n not in weights}
    values: dict[str, Any] = {}
    while True:
        try:
            shapes = {name: feeds[name].shape for name in tensors & feeds.keys() - values.keys()}
            module, params = from_onnx(model, shapes, value_dict=values)
        except UnknownValueError as error:
            if not error.inputs:
                raise
            values |= {name: feeds[name] for name in error.inputs}
            continue
        result = evaluate(module, *(a for name, a in feeds.items() if name not in values), *params.values())
        return result if isinstance(result, tuple) else (result,)


def _compare(found: Sequence[Any], expected: list[Any], case: Any) -> None:
    half = any(getattr(theirs, "dtype", None) == np.float16 for theirs in expected)
    Runner.assert_similar_outputs(expected, found, 1e-2 if half else case.rtol, 1e-3 if half else case.atol)


def _arrays(values: Iterable[Any]) -> list[Any]:
    """Some cases hold their numbers as tensors of ONNX."""
    return [v if not isinstance(v, TensorProto) else numpy_helper.to_array(v) for v in values]


def _failure(case: Any) -> str | None:
    """Why a case does not pass; ``None`` where it does."""
    inputs, expected = case.data_sets[0]
    try:
        _compare(_run(case.model, _arrays(inputs)), _arrays(expected), case)
    except MiniTVMError as error:
        return error.message
    except AssertionError as error:
        return f"wrong: {error}"
    return None


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if not case.name.endswith("_expanded")]


def test_references_pass_where_kernels_do(cases: list[Any]) -> None:
    record = coverage.recorded()
    passing = [case for case in cases if record.get(f"Node/{case.name}") in coverage.PASSED]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failures = {case.name: _failure(case) for case in passing}
    assert len(failures) > 900
    assert {name: why for name, why in failures.items() if why is not None} == {}


EACH = 1 if ON_GPU else 400
"""The host's compiler gets some of them."""


@needs_compiler
@pytest.mark.parametrize("part", range(PARTS))
def test_cuda_c_passes_where_kernels_of_processors_do(cases: list[Any], part: int) -> None:
    """A few on the simulated GPU, all on one: ``pytest -p tests.on_gpu``."""
    record, each = coverage.recorded(), Gathered()
    chosen = [case for case in cases if record.get(f"Node/{case.name}") == "compiled"][part :: PARTS * EACH]
    for case in chosen:
        inputs, expected = case.data_sets[0]
        with simulated_target(), warnings.catch_warnings(), each.case(case.name):
            warnings.simplefilter("ignore")
            found = onnx_backend.prepare(case.model, target="simulated").run(_arrays(inputs))
            _compare(found, _arrays(expected), case)
    assert len(chosen) >= 3
    each.end()


# --- extreme integers -------------------------------------------------------------------------------------------------

EXTREMES = (-(2**63), -1, 0, 2**31, 2**40, 2**63 - 1)
INT, INTS = onnx.defs.OpSchema.AttrType.INT, onnx.defs.OpSchema.AttrType.INTS


def _edited(model: onnx.ModelProto, name: str, new: Any) -> onnx.ModelProto:
    """The model with one attribute of its node replaced."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    (node,) = found.graph.node
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, new)])
    return found


def _with_extremes(case: Any) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The case with each of its integer attributes, and each integer input, set to each extreme."""
    inputs = _arrays(case.data_sets[0][0])
    model = _constant_inputs(case.model, inputs, "iub")
    node, version = model.graph.node[0], next(o.version for o in model.opset_import if not o.domain)
    given = {a.name: a for a in node.attribute}
    for name, declared in onnx.defs.get_schema(node.op_type, version, "").attributes.items():
        count = len(given[name].ints) if name in given else 2
        for extreme in EXTREMES if declared.type in (INT, INTS) else ():
            yield f"{name}={extreme}", _edited(model, name, extreme if declared.type == INT else [extreme] * count)
    for info, array in zip(model.graph.input, inputs, strict=True):
        for extreme in EXTREMES if array.dtype == np.int64 and info.name else ():
            changed = [np.full_like(a, extreme) if a is array else a for a in inputs]
            yield f"{info.name}={extreme}", _constant_inputs(case.model, changed, "iub")


def _smallest(cases: list[Any]) -> list[Any]:
    """The smallest case of each operator that has a builder: one node, tensors in."""
    found: dict[str, tuple[int, Any]] = {}
    for case in cases:
        inputs = case.data_sets[0][0]
        plain = len(case.model.graph.node) == 1 and all(isinstance(a, (np.ndarray, np.generic)) for a in inputs)
        kind = case.model.graph.node[0].op_type
        if plain and ("", kind) in BUILDERS:
            size = sum(np.asarray(a).size for a in inputs) - len(case.model.graph.node[0].attribute)
            found[kind] = min(found.get(kind, (size, case)), (size, case), key=lambda pair: pair[0])
    return [case for _, case in found.values()]


def test_extreme_integers_are_imported_or_refused(cases: list[Any]) -> None:
    """In every integer attribute and input of every operator: no other exception, none of them slow."""
    seen = 0
    for case in _smallest(cases):
        for what, model in _with_extremes(case):
            try:
                steps(partial(from_onnx, model), most=100_000)
            except MiniTVMError:
                pass
            except Exception as error:
                raise AssertionError(f"{case.name} with {what}: {error!r}") from error
            seen += 1
    assert seen > 700
