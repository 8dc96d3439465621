"""Shape arithmetic against numpy on random shapes, index arithmetic of reshapes, and Relay's operator patterns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compute_reference import Elements
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import TypeInferenceError
from minitvm.ir.loop import Binary, Buffer, Stage, walk_exprs
from minitvm.ir.op import OPS, Fusion
from minitvm.ir.types import TensorType

SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(SHAPES, SHAPES)
@settings(max_examples=200, deadline=None)
def test_broadcasting_is_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(TypeInferenceError, match="shapes do not broadcast"):
            OPS["add"]().infer(TensorType(a), TensorType(b))
    else:
        assert OPS["add"]().infer(TensorType(a), TensorType(b)).shape == expected


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-4, 4).filter(bool), st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_slices_are_pythons(begin: int, end: int, stride: int, extent: int) -> None:
    op = OPS["strided_slice"](begin=[begin], end=[end], strides=[stride])
    values = np.arange(extent)
    assert op.infer(TensorType((extent,))).shape == (len(range(extent)[begin:end:stride]),)
    np.testing.assert_array_equal(op.reference(values), values[begin:end:stride])


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of one size: the same prime factors grouped in two ways."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), max_size=5))

    def grouped() -> tuple[int, ...]:
        cuts = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=4)))
        return tuple(math.prod(factors[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True))

    return grouped(), grouped()


@given(reshapes())
@settings(max_examples=200, deadline=None)
def test_reshaped_indices_are_row_major(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    source, target = shapes
    values = np.arange(math.prod(source)).reshape(source)
    x = Buffer("x", source, "int64")
    stage = OPS["reshape"](newshape=target).compute(x)
    np.testing.assert_array_equal(Elements({x: values}).stage(stage), values.reshape(target))


def _divisions(stage: Stage) -> int:
    return sum(isinstance(e, Binary) and e.op in ("floordiv", "floormod") for e in walk_exprs(stage.value))


@pytest.mark.parametrize(
    ("source", "target", "divisions"),
    [
        ((2, 3, 4), (1, 2, 3, 1, 4), 0),  # only extents of 1 come and go: the same variables
        ((2, 1, 3, 4, 1), (2, 3, 4), 0),
        ((24,), (2, 3, 4), 0),  # one dimension split: a sum of products
        ((2, 12, 5), (2, 3, 4, 5), 0),
        ((2, 3, 4), (6, 4), 2),  # two merged: one quotient and one remainder
        ((6, 4, 5, 2), (6, 20, 2), 2),
        ((4, 6), (6, 4), 2),
    ],
)
def test_reshapes_divide_only_where_dimensions_merge(
    source: tuple[int, ...], target: tuple[int, ...], divisions: int
) -> None:
    stage = OPS["reshape"](newshape=target).compute(Buffer("x", source, "float32"))
    assert _divisions(stage) == divisions


RELAY_PATTERNS = {
    Fusion.ELEMWISE: "exp log sqrt rsqrt tanh sigmoid erf negative abs sign floor ceil round clip cast copy "
    "logical_not zeros_like ones_like full_like full zeros ones",
    Fusion.BROADCAST: "add subtract multiply divide power maximum minimum equal less greater logical_and left_shift "
    "where broadcast_to expand_dims repeat tile",
    Fusion.INJECTIVE: "reshape transpose squeeze concatenate stack split strided_slice take gather gather_nd reverse "
    "reverse_sequence nn.batch_flatten reshape_like",
    Fusion.COMM_REDUCE: "sum mean max min prod all any variance argmax argmin",
    Fusion.OUT_ELEMWISE_FUSABLE: "one_hot",
    Fusion.OPAQUE: "argsort sort topk cumsum scatter_elements scatter_nd tensor_scatter shape_of ndarray_size argwhere",
}


@pytest.mark.parametrize("fusion", RELAY_PATTERNS, ids=lambda f: f.name)
def test_patterns_are_relays(fusion: Fusion) -> None:
    names = RELAY_PATTERNS[fusion].split()
    assert {name: OPS[name].fusion for name in names} == dict.fromkeys(names, fusion)
