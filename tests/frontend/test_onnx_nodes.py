"""Every node case of ONNX's own backend test suite: imported and evaluated in numpy, and as compiled kernels.

All of them run; what does not pass is listed here with its reason, and the lists are checked to be exact.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from minitvm.driver import build
from minitvm.errors import FrontendError, MiniTVMError, UnsupportedOperatorError
from minitvm.frontend import from_onnx
from minitvm.frontend.onnx.registry import BUILDERS
from minitvm.ir.evaluate import evaluate
from minitvm.runtime.executor import GraphModule

NOT_TENSORS = {
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceConstruct",
    "SequenceInsert",
    "SplitToSequence",
}
STRINGS = {"RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "ImageDecoder"}
OTHER_DOMAINS = {
    "ai.onnx.ml.ArrayFeatureExtractor",
    "ai.onnx.ml.Binarizer",
    "ai.onnx.ml.LabelEncoder",
    "ai.onnx.ml.TreeEnsemble",
    "ai.onnx.preview.training.Adagrad",
    "ai.onnx.preview.training.Adam",
    "ai.onnx.preview.training.Momentum",
}
WITHOUT_BUILDER = (
    NOT_TENSORS
    | STRINGS
    | OTHER_DOMAINS
    | {
        "BitCast",
        "Col2Im",
        "CumProd",
        "DFT",
        "DeformConv",
        "Det",
        "GridSample",
        "MaxUnpool",
        "MelWeightMatrix",
        "NonMaxSuppression",
        "RandomUniformLike",
        "RoiAlign",
        "Scan",  # the form of opset 8
        "STFT",
        "TensorScatter",
        "Unique",
    }
)

TRAINING = "training is not supported"
ALIGNED = "wrong: "  # ONNX divides by the size before rounding it; ONNX Runtime, followed here, by the size itself
REASONS = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad": "wrong: ",  # its expected values have four digits
    "test_batchnorm_epsilon_training_mode": f"BatchNormalization: {TRAINING}",
    "test_batchnorm_example_training_mode": f"BatchNormalization: {TRAINING}",
    "test_einsum_batch_diagonal": "Einsum: term 'Aii' of '...ii->...i' is not supported",
    "test_loop11": "Slice: starts (input 1) is computed when the model runs",
    "test_maxpool_with_argmax_2d_precomputed_pads": "MaxPool: its second output, the indices, is not supported",
    "test_maxpool_with_argmax_2d_precomputed_strides": "MaxPool: its second output, the indices, is not supported",
    "test_not_2d": "the model uses ONNX opset 1; minitvm reads 7 to ",
    "test_not_3d": "the model uses ONNX opset 1; minitvm reads 7 to ",
    "test_not_4d": "the model uses ONNX opset 1; minitvm reads 7 to ",
    "test_resize_downsample_scales_cubic_align_corners": ALIGNED,
    "test_resize_downsample_scales_linear_align_corners": ALIGNED,
    "test_training_dropout": "Dropout: training_mode is not supported",
    "test_training_dropout_default": "Dropout: training_mode is not supported",
    "test_training_dropout_default_mask": "Dropout: training_mode is not supported",
    "test_training_dropout_mask": "Dropout: training_mode is not supported",
    "test_training_dropout_zero_ratio": "Dropout: training_mode is not supported",
    "test_training_dropout_zero_ratio_mask": "Dropout: training_mode is not supported",
}


def _constant_inputs(model: onnx.ModelProto, inputs: list[Any], kinds: str) -> onnx.ModelProto:
    """The model with inputs of some dtype kinds as initializers: shapes and axes are known in real models."""
    frozen = onnx.ModelProto()
    frozen.CopyFrom(model)
    for info, array in zip(model.graph.input, inputs, strict=True):
        if info.name and isinstance(array, (np.ndarray, np.generic)) and array.dtype.kind in kinds:
            frozen.graph.initializer.append(numpy_helper.from_array(np.asarray(array), info.name))
    return frozen


def _outputs(model: onnx.ModelProto, inputs: list[Any]) -> tuple[tuple[np.ndarray, ...], ...]:
    """By the operators' references, and by kernels at a level that follows from the model's size."""
    weights = {t.name for t in model.graph.initializer}
    feeds = {v.name: a for v, a in zip(model.graph.input, inputs, strict=True) if v.name not in weights}
    shapes = {name: array.shape for name, array in feeds.items() if isinstance(array, (np.ndarray, np.generic))}
    module, params = from_onnx(model, shapes)
    result = evaluate(module, *feeds.values(), *params.values())
    library = build(module, params=params, opt_level=model.ByteSize() % 4)
    compiled = GraphModule(library["default"]())
    compiled.run(feeds)
    return result if isinstance(result, tuple) else (result,), tuple(compiled.outputs())


def _run(model: onnx.ModelProto, inputs: list[Any]) -> tuple[tuple[np.ndarray, ...], ...]:
    """With inputs of the model as they are; where one must be known, integers are, then everything is."""
    for kinds in ("", "iub", "iubf"):
        try:
            return _outputs(_constant_inputs(model, inputs, kinds), inputs)
        except FrontendError as error:
            if "needs it while importing" not in error.message or kinds == "iubf":
                raise
    raise AssertionError


def _compare(found: tuple[np.ndarray, ...], expected: list[Any]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        theirs = np.asarray(theirs)
        half = theirs.dtype == np.float16
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-2 if half else 1e-4, atol=1e-3 if half else 1e-5)


def _arrays(values: Iterable[Any]) -> list[Any]:
    """Some cases hold their numbers as tensors of ONNX."""
    return [v if not isinstance(v, TensorProto) else numpy_helper.to_array(v) for v in values]


def _failure(case: Any) -> str | None:
    """Why a case does not pass, in a few words; ``None`` where it does."""
    inputs, expected = case.data_sets[0]
    try:
        for found in _run(case.model, _arrays(inputs)):
            _compare(found, _arrays(expected))
    except UnsupportedOperatorError as error:
        return "operators: " + " ".join(re.findall(r"([\w.]+) \(\d+\)", error.message))
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


@pytest.fixture(scope="module")
def failures(cases: list[Any]) -> Iterator[dict[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {case.name: _failure(case) for case in cases}
    assert len(found) > 900
    yield {name: why for name, why in found.items() if why is not None}


def _is_other_dtype(why: str) -> bool:
    return "element type" in why or "of type sequence" in why or "of type optional" in why


def test_operators_without_a_builder_are_those_listed(failures: dict[str, str]) -> None:
    listed = {op for why in failures.values() if why.startswith("operators: ") for op in why.split()[1:]}
    assert listed - WITHOUT_BUILDER == set()
    assert WITHOUT_BUILDER - listed == set()


def test_every_other_case_passes(failures: dict[str, str]) -> None:
    rest = {n: why for n, why in failures.items() if not why.startswith("operators: ") and not _is_other_dtype(why)}
    assert {name: why for name, why in rest.items() if not why.startswith(REASONS.get(name, "-"))} == {}
    assert set(REASONS) - set(rest) == set()


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
            started = time.monotonic()
            try:
                from_onnx(model)
            except MiniTVMError:
                pass
            except Exception as error:
                raise AssertionError(f"{case.name} with {what}: {error!r}") from error
            assert time.monotonic() - started < 10, f"{case.name} with {what}"
            seen += 1
    assert seen > 700
