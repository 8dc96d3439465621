"""Every operator: ``infer``, ``reference`` and ``compute`` check each other on the rows of ``op_samples.py``."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from compute_reference import Elements
from op_samples import SAMPLES, Sample

from minitvm.errors import MiniTVMError
from minitvm.ir.evaluate import fits
from minitvm.ir.loop import Buffer
from minitvm.ir.op import OPS, compute_of
from minitvm.ir.types import TensorType, TupleType, Type, type_of

if importlib.util.find_spec("op_samples_nn") is not None:
    from op_samples_nn import SAMPLES as NN_SAMPLES

    SAMPLES = [*SAMPLES, *NN_SAMPLES]

CONTROL = "its attributes are functions: tests/ir/test_evaluate.py"
FOREIGN = "another library computes it: tests/frontend/test_onnx_foreign.py"
OBJECTS = "Python holds its values: tests/frontend/test_onnx_objects.py"
EXTERNAL = dict.fromkeys(
    ("annotation.compiler_begin", "annotation.compiler_end", "external"), "tests/passes/test_external_functions.py"
)
WITHOUT_SAMPLE = {
    "control.if": CONTROL,
    "control.loop": CONTROL,
    "control.fail": "it raises: tests/frontend/test_onnx_control.py",
    "control.stage": "its body is a function: tests/ort/test_data_decided_sizes.py",
    "control.sized": "its dimensions are symbols: tests/ort/test_open_control.py",
    "foreign": FOREIGN,
    "foreign_random": FOREIGN,
    "annotation.stop_fusion": "FuseOps removes it: tests/passes",
    **EXTERNAL,
    **{name: OBJECTS for name in OPS if name.startswith(("sequence.", "optional.", "string.", "map."))},
}

SORTING = "sorting has no element by element rule of linear size"
SCATTER = "writes at positions known only at run time"
RECURRENCE = "every step needs the one before: lowered by templates"
WITHOUT_COMPUTE = {
    **EXTERNAL,
    "control.fail": "it raises",
    "foreign": FOREIGN,
    "foreign_random": FOREIGN,
    "argwhere": (length := "how long it is depends on the values"),
    "prefix": length,
    "linalg.det": "every step of the elimination needs the one before",
    "nonzero": length,
    "segment_reduce": "how many rows are added up depends on the values",
    "unique": length,
    "vision.non_max_suppression": length,
    "arange": length,
    "sort": SORTING,
    "argsort": SORTING,
    "topk": SORTING,
    "scatter_elements": SCATTER,
    "scatter_nd": SCATTER,
    "vision.roi_pool": "how many pixels a cell has depends on the values",
    "vision.roi_align": "how many samples a cell has depends on the values",
    "nn.lstm": RECURRENCE,
    "qnn.lstm": RECURRENCE,
    "qnn.dense_blocks": "sums of blocks are integers, and their sum is of floats",
    "nn.gru": RECURRENCE,
    "nn.rnn": RECURRENCE,
    "ml.tree_leaves": "every comparison says which is next",
    "ml.pairwise_coupling": "every step needs the one before",
}
DATA_DEPENDENT = {"argwhere", "arange", "prefix"}


def _types(args: tuple[Any, ...]) -> list[Type]:
    return [TupleType(tuple(_types(a))) if isinstance(a, tuple) else type_of(a) for a in args]


def _reference(sample: Sample) -> Any:
    with np.errstate(all="ignore"):
        return sample.op.reference(*sample.args)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_infer_says_what_reference_gives(sample: Sample) -> None:
    inferred = sample.op.infer(*_types(sample.args))
    result = _reference(sample)
    found = TupleType(tuple(map(type_of, result))) if isinstance(result, tuple) else type_of(result)
    if sample.op.name in DATA_DEPENDENT:
        assert fits(result, inferred), f"{inferred} does not fit {found}"
    else:
        assert inferred == found
    assert hash(sample.op) == hash(sample.op.with_attributes()), "attributes must be hashable"


def _buffer(value: Any, name: str, inputs: dict[Buffer, np.ndarray]) -> Any:
    if isinstance(value, tuple):
        return tuple(_buffer(v, f"{name}_{n}", inputs) for n, v in enumerate(value))
    buffer = Buffer(name, value.shape, value.dtype.name)
    inputs[buffer] = value
    return buffer


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.op.name not in WITHOUT_COMPUTE], ids=str)
def test_compute_gives_what_reference_gives(sample: Sample) -> None:
    inputs: dict[Buffer, np.ndarray] = {}
    buffers = [_buffer(a, f"p{n}", inputs) for n, a in enumerate(sample.args)]
    expected = _reference(sample)
    stages = compute_of(sample.op, *buffers)
    elements = Elements(inputs)
    for want, stage in zip(expected if isinstance(expected, tuple) else (expected,), stages, strict=True):
        with np.errstate(all="ignore"):
            have = elements.stage(stage)
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        _assert_close(have, want)


def _assert_close(have: np.ndarray, want: np.ndarray) -> None:
    """Integers exactly; floats to the rounding of their dtype, small sums relative to the largest."""
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(have, want)
        return
    rtol = 2e-3 if want.dtype == "float16" else 1e-5
    finite = np.abs(want[np.isfinite(want)]).astype("float64")
    np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol / 10 * float(finite.max(initial=0.0)))


def test_every_operator_has_a_sample_row() -> None:
    assert set(OPS) - {s.op.name for s in SAMPLES} == set(WITHOUT_SAMPLE)


def test_every_operator_has_rules_or_a_reason() -> None:
    without = {name for name, op in OPS.items() if not op.has_compute()}
    assert without == set(WITHOUT_COMPUTE) | set(WITHOUT_SAMPLE)
    assert [name for name, op in OPS.items() if not op.has_reference()] == []


def _unknown(types: list[Type]) -> list[list[Type]]:
    """The types with one dimension, and with all dimensions, unknown."""
    cases: list[list[Type]] = []
    for n, type_ in enumerate(types):
        if not isinstance(type_, TensorType):
            continue
        shapes = [(*type_.shape[:d], None, *type_.shape[d + 1 :]) for d in range(type_.rank)]
        for shape in (*shapes, (None,) * type_.rank):
            cases.append([*types[:n], TensorType(shape, type_.dtype), *types[n + 1 :]])
    return cases


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_unknown_dimensions_are_typed_or_refused(sample: Sample) -> None:
    result = _reference(sample)
    for types in _unknown(_types(sample.args)):
        try:
            inferred = sample.op.infer(*types)
        except MiniTVMError:
            assert sample.op.name in MAY_REFUSE_UNKNOWN or sample.op.name.startswith(("nn.", "image.", "qnn."))
            continue
        assert fits(result, inferred), f"{sample.op} of {list(map(str, types))} is inferred as {inferred}"


MAY_REFUSE_UNKNOWN = {"squeeze", "gather_nd", "scatter_nd", "layout_transform"}
