"""What operators reject, word for word."""

from __future__ import annotations

from typing import Any

import pytest

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import TypeInferenceError
from minitvm.ir import builder as b
from minitvm.ir.op import OPS
from minitvm.ir.types import DTYPES, TensorType, TupleType


def f32(*shape: int | None) -> TensorType:
    return TensorType(shape, "float32")


def i64(*shape: int | None) -> TensorType:
    return TensorType(shape, "int64")


X = f32(2, 3, 4)

REJECTED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    (
        "add",
        (f32(2, 3), f32(2, 4)),
        {},
        "add: shapes do not broadcast: Tensor[(2, 3), float32] and Tensor[(2, 4), float32]\n"
        "  = hint: dimension -1 is 3 and 4; they must agree or be 1",
    ),
    (
        "add",
        (f32(2), i64(2)),
        {},
        "add: dtypes differ: Tensor[(2,), float32] and Tensor[(2,), int64]\n  = hint: cast one side",
    ),
    ("logical_and", (X, X), {}, "logical_and: lhs is Tensor[(2, 3, 4), float32]; expected bool"),
    (
        "bitwise_or",
        (f32(2), f32(2)),
        {},
        "bitwise_or: lhs is Tensor[(2,), float32]; expected bool or signed integer or unsigned integer",
    ),
    ("exp", (i64(3),), {}, "exp: the argument is Tensor[(3,), int64]; expected float"),
    ("where", (f32(2), f32(2), f32(2)), {}, "where: condition is Tensor[(2,), float32]; expected bool"),
    (
        "broadcast_to",
        (f32(3),),
        {"shape": (2, 4)},
        "broadcast_to: Tensor[(3,), float32] cannot be broadcast to shape [2, 4]",
    ),
    (
        "broadcast_to_like",
        (f32(3, 1), f32(2)),
        {},
        "broadcast_to_like: Tensor[(3, 1), float32] cannot be broadcast to the shape of Tensor[(2,), float32]",
    ),
    ("full_like", (X, f32(1)), {}, "full_like: fill_value is Tensor[(1,), float32]; expected a scalar of float32"),
    ("full", (f32(2),), {"shape": (2,)}, "full: fill_value is Tensor[(2,), float32]; expected a scalar"),
    (
        "cast",
        (f32(2),),
        {"dtype": "float8"},
        f"cast: attribute 'dtype' is 'float8', expected one of {', '.join(map(repr, DTYPES))}",
    ),
    (
        "zeros",
        (),
        {"shape": (2, -1)},
        "shape (2, -1) has a negative dimension\n  = hint: (None, 3) leaves a dimension open",
    ),
    ("sum", (X,), {"axis": 3}, "sum: axis 3 is out of range for rank 3"),
    ("sum", (X,), {"axis": (0, -3)}, "sum: an axis is repeated in [0, -3]"),
    ("all", (X,), {}, "all: the argument is Tensor[(2, 3, 4), float32]; expected bool"),
    ("argmax", (f32(2, 0),), {"axis": 1}, "argmax: there is no element to choose in Tensor[(2, 0), float32]"),
    (
        "variance",
        (f32(2, 3), f32(2)),
        {"axis": 1},
        "variance: shapes do not broadcast: Tensor[(2, 3), float32] and Tensor[(2,), float32]\n"
        "  = hint: dimension -1 is 3 and 2; they must agree or be 1",
    ),
    (
        "variance",
        (f32(1, 3), f32(2, 1)),
        {"axis": 1},
        "variance: mean Tensor[(2, 1), float32] does not broadcast to Tensor[(1, 3), float32]\n"
        "  = hint: compute the mean with keepdims=True",
    ),
    (
        "reshape",
        (f32(2, 3),),
        {"newshape": (4,)},
        "reshape: Tensor[(2, 3), float32] cannot have shape [4]: the numbers of elements differ",
    ),
    (
        "reshape",
        (f32(2, 3),),
        {"newshape": (4, -1)},
        "reshape: Tensor[(2, 3), float32] cannot have shape [4, -1]: the numbers of elements differ",
    ),
    (
        "reshape",
        (f32(2, 3),),
        {"newshape": (-1, -1)},
        "reshape: newshape [-1, -1] does not fit Tensor[(2, 3), float32]: more than one -1",
    ),
    (
        "reshape",
        (f32(2, 3),),
        {"newshape": (0, 0, 0)},
        "reshape: newshape [0, 0, 0] does not fit Tensor[(2, 3), float32]: it refers to dimension 2",
    ),
    (
        "reshape",
        (f32(2, 3),),
        {"newshape": (-9,)},
        "reshape: newshape [-9] does not fit Tensor[(2, 3), float32]: -9 means nothing",
    ),
    (
        "reshape",
        (f32(6),),
        {"newshape": (-4, 2)},
        "reshape: newshape [-4, 2] does not fit Tensor[(6,), float32]: -4 takes the two numbers that follow it",
    ),
    (
        "reshape_like",
        (f32(2, 3), f32(4)),
        {},
        "reshape_like: Tensor[(2, 3), float32] has 6 elements, Tensor[(4,), float32] has 4",
    ),
    ("nn.batch_flatten", (f32(),), {}, "nn.batch_flatten: expected at least one dimension, not Tensor[(), float32]"),
    ("transpose", (X,), {"axes": (0, 1)}, "transpose: 2 axes given for rank 3: [0, 1]"),
    ("transpose", (X,), {"axes": (0, 1, 1)}, "transpose: an axis is repeated in [0, 1, 1]"),
    ("expand_dims", (X,), {"axis": 4}, "expand_dims: axis 4 is out of range for rank 4"),
    ("squeeze", (X,), {"axis": 1}, "squeeze: dimension 1 of Tensor[(2, 3, 4), float32] is 3, not 1"),
    ("squeeze", (f32(1, None),), {}, "squeeze: axis is needed where a dimension is unknown: Tensor[(1, ?), float32]"),
    (
        "concatenate",
        (TupleType((f32(2, 3), f32(3, 3))),),
        {"axis": 1},
        "concatenate: dimension 0 differs: Tensor[(2, 3), float32] and Tensor[(3, 3), float32]",
    ),
    (
        "concatenate",
        (TupleType((f32(2, 3), f32(3))),),
        {},
        "concatenate: ranks differ: Tensor[(2, 3), float32] and Tensor[(3,), float32]",
    ),
    ("concatenate", (TupleType(()),), {}, "concatenate: takes at least one tensor, the tuple is empty"),
    (
        "concatenate",
        (X,),
        {},
        "concatenate: takes one tuple of tensors, not Tensor[(2, 3, 4), float32]\n  = hint: write a "
        "Python list or a Tuple",
    ),
    (
        "stack",
        (TupleType((f32(2), f32(3))),),
        {},
        "stack: dimension 0 differs: Tensor[(2,), float32] and Tensor[(3,), float32]",
    ),
    ("split", (X,), {"indices_or_sections": 3, "axis": 2}, "split: an extent of 4 cannot be cut into 3 equal sections"),
    ("split", (X,), {"indices_or_sections": (3, 1), "axis": 2}, "split: positions must not decrease: [3, 1]"),
    (
        "strided_slice",
        (X,),
        {"begin": [0], "end": [1, 2]},
        "strided_slice: begin, end, strides and axes differ in length",
    ),
    ("strided_slice", (X,), {"begin": [0], "end": [1], "strides": [0]}, "strided_slice: a stride is 0: [0]"),
    (
        "strided_slice",
        (X,),
        {"begin": [0], "end": [1], "slice_mode": "until"},
        "strided_slice: attribute 'slice_mode' is 'until', expected one of 'end', 'size'",
    ),
    ("tile", (X,), {"reps": (-1,)}, "tile: reps must not be negative: [-1]"),
    ("repeat", (X,), {"repeats": 0}, "repeat: repeats must be positive, not 0"),
    ("reverse", (X,), {"axis": -4}, "reverse: axis -4 is out of range for rank 3"),
    ("take", (X, i64(2)), {"mode": "fast"}, "take: attribute 'mode' is 'fast', expected one of 'clip', 'wrap'"),
    ("take", (X, f32(2)), {}, "take: indices is Tensor[(2,), float32]; expected signed integer or unsigned integer"),
    ("take", (f32(0, 3), i64(2)), {"axis": 0}, "take: there is no element to take from Tensor[(0, 3), float32]"),
    (
        "gather",
        (X, i64(2, 3)),
        {},
        "gather: ranks differ: data Tensor[(2, 3, 4), float32] and indices Tensor[(2, 3), int64]",
    ),
    (
        "gather",
        (X, i64(2, 5, 4)),
        {},
        "gather: dimension 1 of indices Tensor[(2, 5, 4), int64] is larger than that of data "
        "Tensor[(2, 3, 4), float32]",
    ),
    (
        "gather_nd",
        (X, i64(4, 2)),
        {},
        "gather_nd: 4 positions and 0 batch dimensions do not fit data Tensor[(2, 3, 4), float32]",
    ),
    (
        "gather_nd",
        (X, i64(None, 2)),
        {},
        "gather_nd: the first dimension of indices must be known, found Tensor[(?, 2), int64]",
    ),
    (
        "gather_nd",
        (X, i64(1, 3)),
        {"batch_dims": 1},
        "gather_nd: batch dimension 0 differs: data Tensor[(2, 3, 4), float32] and indices Tensor[(1, 3), int64]",
    ),
    (
        "scatter_elements",
        (f32(3), i64(2), f32(3)),
        {},
        "scatter_elements: updates are Tensor[(3,), float32]; expected Tensor[(2,), float32]",
    ),
    (
        "scatter_elements",
        (f32(3), i64(2), f32(2)),
        {"reduction": "sum"},
        "scatter_elements: attribute 'reduction' is 'sum', expected one of 'update', 'add', 'mul', 'min', 'max'",
    ),
    (
        "scatter_nd",
        (X, i64(1, 5), f32(5, 3)),
        {},
        "scatter_nd: updates are Tensor[(5, 3), float32]; expected Tensor[(5, 3, 4), float32]",
    ),
    ("one_hot", (i64(2), f32(1), f32()), {"depth": 3}, "one_hot: on_value is Tensor[(1,), float32]; expected a scalar"),
    ("topk", (X,), {"k": 5}, "topk: k is 5, but dimension 2 of Tensor[(2, 3, 4), float32] is 4"),
    (
        "topk",
        (X,),
        {"ret_type": "all"},
        "topk: attribute 'ret_type' is 'all', expected one of 'both', 'values', 'indices'",
    ),
    ("arange", (f32(), f32(1), f32()), {}, "arange: stop is Tensor[(1,), float32]; expected a scalar"),
    (
        "trilu",
        (f32(3), i64()),
        {},
        "trilu: expected matrices and a scalar, found Tensor[(3,), float32] and Tensor[(), int64]",
    ),
    ("eye", (), {"shape": (3,)}, "eye: shape [3] is not (rows, columns)"),
    (
        "reverse_sequence",
        (X, i64(3)),
        {},
        "reverse_sequence: Tensor[(3,), int64] does not match dimension 0 of Tensor[(2, 3, 4), float32]",
    ),
    (
        "reverse_sequence",
        (X, i64(2)),
        {"seq_axis": 0},
        "reverse_sequence: expected two different axes and one length per batch, found Tensor[(2,), int64]",
    ),
]


@pytest.mark.parametrize(("name", "types", "attributes", "message"), REJECTED)
def test_rejected(name: str, types: tuple[Any, ...], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeInferenceError) as error:
        OPS[name](**attributes).infer(*types)
    assert str(error.value) == message


def test_a_rejected_call_names_its_arguments_and_its_origin() -> None:
    x, y = b.var("x", f32(2, 3)), b.var("y", f32(4))
    with pytest.raises(TypeInferenceError) as error:
        b.call_op("add", x, y, span=("Add_17",))
    assert str(error.value) == (
        "add: shapes do not broadcast: Tensor[(2, 3), float32] and Tensor[(4,), float32]\n"
        '  | add(%x, %y)      from ONNX node "Add_17"\n'
        "  |   %x: Tensor[(2, 3), float32]\n"
        "  |   %y: Tensor[(4,), float32]\n"
        "  = hint: dimension -1 is 3 and 4; they must agree or be 1"
    )
