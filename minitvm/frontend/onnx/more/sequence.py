"""Sequences, maps and optionals, and what ONNX's evaluator does instead of a builder: with text, tensors of any rank.

Of a sequence whose values are known one by one nothing is left but the values.
"""

import numpy as np
import onnx

from minitvm.frontend.onnx.lists import joined, named, remade, stack_of
from minitvm.frontend.onnx.more.foreign import attribute_tensors
from minitvm.frontend.onnx.node import OnnxNode, dims, emit, normalize_axis, onnx_dtype, rank
from minitvm.frontend.onnx.registry import formulas, onnx_op
from minitvm.frontend.onnx.tensor import concatenated, integers, parted
from minitvm.frontend.onnx.types import type_of_proto
from minitvm.ir.dims import SymbolicDim, ceil_divide, differ, is_less, smaller
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.ops.more.sequence import OptionalNone, OptionalOf, SequenceOf, SequenceSplit
from minitvm.ir.ops.tensor import Full
from minitvm.ir.types import STRING, SequenceType, TensorType, is_named, is_numeric

TAKES_ALL = frozenset({"Constant", "Identity", "If", "Loop", "SequenceMap"}) | {
    "CategoryMapper",
    "LabelEncoder",
    "OneHotEncoder",
}
"""Operators that only pass values on, whose inputs are sequences or optionals has a builder for them; and those whose
builder sees to text."""


def is_for_python(node: OnnxNode) -> bool:
    """True if a node works on text or on tensors of any rank, which no builder does but those here."""
    if node.op_type in TAKES_ALL or node.op_type in BUILT or node.op_type in MAPS:
        return False
    if node.op_type in ("Shape", "Size") and isinstance(node[0].type, TensorType):
        return False
    makes_text = node.op_type == "Cast" and node.attr("to") == onnx.TensorProto.STRING
    tensors = attribute_tensors(node.proto)
    makes_text = makes_text or any(t.data_type == onnx.TensorProto.STRING for t in tensors)
    return makes_text or not all(is_numeric(value.type) for value in node.inputs if value is not None)


def text(values: np.ndarray) -> Expr:
    """A constant tensor of text."""
    return emit("string.text", texts=tuple(values.reshape(-1).tolist()), shape=values.shape)


def _parts(sequence: Expr) -> list[Expr] | None:
    """The values of a sequence that is made of known ones."""
    return list(sequence.args) if isinstance(sequence, Call) and isinstance(sequence.op, SequenceOf) else None


def _list(node: OnnxNode) -> Expr:
    """The list that a node takes."""
    return remade(node[0], node.control[1])


def _known(node: OnnxNode, index: int, most: int) -> tuple[list[Expr], int] | None:
    """A sequence's values and a position among them, where both are known; the last without an index."""
    parts, given = _parts(_list(node)), node.get(index)
    if parts is None or (given is not None and node.known(index) is None):
        return None
    position = len(parts) - 1 + most if given is None else int(node.constant(index, "the index").item())
    if not -len(parts) <= position < len(parts) + most:
        raise node.misfit(f"index {position} is outside of a sequence of {len(parts)}")
    return parts, position + len(parts) if position < 0 else position


def _of(node: OnnxNode, parts: list[Expr]) -> Expr:
    element = node[0].type.element if isinstance(node[0].type, SequenceType) else node[0].type
    return emit("sequence.of", *parts, dtype=getattr(element, "dtype", "float32"))


def _at(node: OnnxNode) -> Expr:
    stack, piece = stack_of(_list(node)), _piece(node)
    if piece is not None:
        return piece
    found = _known(node, 1, 0)
    if stack is not None:
        return node.as_onnx("Gather", stack, node[1], axis=0)[0]  # type: ignore[return-value]
    ragged = _ragged_piece(node) if found is None else None
    if ragged is not None:
        return ragged
    return emit("sequence.at", node[0], node[1]) if found is None else found[0][found[1]]


def _pieces(sequence: Expr) -> tuple[Expr, int, int] | None:
    """The tensor of which a list is pieces, each as long as the others but for the last one, along which axis, and how
    long they are: of an axis as long as only a run says, so that their number is not known."""
    if not isinstance(sequence, Call) or not isinstance(sequence.op, SequenceSplit) or not sequence.op.keep:
        return None
    x, length = sequence.args
    if not is_named(x.type) or not isinstance(length, Constant) or length.value.ndim:
        return None
    return x, sequence.op.axis % rank(x), int(length.value)


def _piece(node: OnnxNode) -> Expr | None:
    """A piece."""
    found = _pieces(_list(node))
    if found is None:
        return None
    x, axis, length = found
    if length == 1:
        return node.as_onnx("Gather", x, emit("reshape", node[1], newshape=(1,)), axis=axis)[0]
    if node.known(1) is None:
        numbers = emit("iota", size=ceil_divide(x.tensor_type.extents[axis], length))
        number = node.as_onnx("Gather", numbers, emit("reshape", node[1], newshape=(1,)), axis=0)[0]
        first = node.as_onnx("Mul", number, integers([length]))[0]
        end = node.as_onnx("Add", first, integers([length]))[0]
        return node.as_onnx("Slice", x, first, end, integers([axis]))[0]
    at = int(node.constant(1, "the index").item())
    extent = x.tensor_type.extents[axis]
    start = (at if at >= 0 else ceil_divide(extent, length) + at) * length
    if is_less(start, 0) or not is_less(start, extent):
        raise node.misfit(f"index {at} is outside of pieces of {length} of dimension {axis} of {x.tensor_type}")
    return emit("strided_slice", x, begin=(start,), end=(smaller(start + length, extent),), axes=(axis,))


def _ragged(sequence: Expr) -> tuple[Expr, int, Expr] | None:
    """The tensor of which a list is pieces of any lengths, along which axis, and how long these are."""
    if not isinstance(sequence, Call) or not isinstance(sequence.op, SequenceSplit) or not sequence.op.keep:
        return None
    x, lengths = sequence.args
    return (named(x), sequence.op.axis, lengths) if is_numeric(x.type) and rank(lengths) == 1 else None


def _ragged_piece(node: OnnxNode) -> Expr | None:
    found = _ragged(_list(node))
    if found is None:
        return None
    x, axis, lengths = found
    at = emit("reshape", node[1], newshape=(1,))
    length = node.as_onnx("Gather", lengths, at, axis=0)[0]
    end = node.as_onnx("Gather", emit("cumsum", lengths, axis=0), at, axis=0)[0]
    start = node.as_onnx("Sub", end, length)[0]
    return node.as_onnx("Slice", x, start, end, integers([axis]))[0]


def _insert(node: OnnxNode) -> Expr:
    found = _known(node, 2, 1)
    if found is None:
        return emit("sequence.insert", *(value for value in node.inputs if value is not None))
    parts, at = found
    return _of(node, [*parts[:at], node[1], *parts[at:]])


def _erase(node: OnnxNode) -> Expr:
    found = _known(node, 1, 0)
    if found is None:
        return emit("sequence.erase", *(value for value in node.inputs if value is not None))
    parts, at = found
    return _of(node, [*parts[:at], *parts[at + 1 :]])


def _length(node: OnnxNode) -> Expr:
    parts, stack = _parts(_list(node)), stack_of(_list(node))
    if stack is not None:
        return emit("take", emit("shape_of", stack, dtype="int64"), integers(0), axis=0, mode="clip")
    if (found := _pieces(_list(node))) is not None:
        x, axis, length = found
        return emit("extent", size=ceil_divide(x.tensor_type.extents[axis], length))
    if (ragged := _ragged(_list(node))) is not None:
        return emit("take", emit("shape_of", ragged[2], dtype="int64"), integers(0), axis=0, mode="clip")
    return emit("sequence.length", node[0]) if parts is None else integers(len(parts))


def _concatenated(node: OnnxNode) -> Expr:
    parts, axis, stack = _parts(_list(node)), node.require("axis"), bool(node.attr("new_axis"))
    rows = stack_of(_list(node))
    if rows is not None and (stack or is_named(rows.type)):
        return joined(rows, normalize_axis(node, axis, rank(rows) - 1 + stack), stack)
    if (pieces := None if stack else _pieces(_list(node))) is not None:
        x, along, _ = pieces
        if normalize_axis(node, axis, rank(x)) == along and is_less(0, x.tensor_type.extents[along]):
            return x
    ragged = None if stack else _ragged(_list(node))
    if ragged is not None and normalize_axis(node, axis, rank(ragged[0])) == ragged[1]:
        return ragged[0]
    if not parts or not all(isinstance(part.type, TensorType) and is_numeric(part.type) for part in parts):
        return emit("sequence.concatenate", node[0], axis=axis, stack=stack)
    axis = normalize_axis(node, axis, rank(parts[0]) + stack)
    return concatenated([emit("expand_dims", p, axis=axis) for p in parts] if stack else parts, axis)


@onnx_op("SplitToSequence", since=11)
def _split(node: OnnxNode) -> Expr:
    """Pieces of given lengths, or of one element each, whose axis may be dropped: also where all lengths are said to be
    1 by a number, which PyTorch's exporter writes for ``unbind`` and ONNX Runtime reads so."""
    x, lengths = node[0], node.get(1) or integers(1)
    of_one = isinstance(lengths, Constant) and lengths.value.ndim == 0 and lengths.value == 1
    keep = bool(node.attr("keepdims") or not of_one)
    split = emit("sequence.split", x, lengths, axis=node.attr("axis"), keep=keep)
    if not is_numeric(x.type):
        return split
    axis = normalize_axis(node, node.attr("axis"), rank(x))
    extent, known = dims(x)[axis], node.value(lengths)
    if known is None and _are_ones(lengths) and not differ(x.tensor_type.extents[axis], lengths.tensor_type.shape[0]):
        return emit("sequence.split", x, integers(1), axis=axis, keep=True)
    if isinstance(extent, SymbolicDim) and not keep:  # rows: see stack_of
        rows = emit("transpose", x, axes=(axis, *(d for d in range(rank(x)) if d != axis)))
        return emit("sequence.split", rows, lengths, axis=0, keep=False)
    if is_named(x.type) and rank(lengths) == 1 and isinstance(lengths.tensor_type.shape[0], int):
        sizes = node.sizes(1, "the lengths")
        if differ(x.tensor_type.extents[axis], sum(sizes)):
            raise node.misfit(f"lengths {sizes} do not divide dimension {axis} of {x.tensor_type}")
    elif known is None or not isinstance(extent, int):
        return split
    else:
        sizes = [end - start for start, end in SequenceSplit(axis, keep).pieces(extent, known)]
    if not sizes:  # whose elements would have no type
        return split
    pieces = parted(x, sizes, axis)
    return _of(node, pieces if keep else [emit("squeeze", piece, axis=(axis,)) for piece in pieces])


def _are_ones(lengths: Expr) -> bool:
    """True if they are as many as a run says, each 1."""
    value = lengths.args[0] if isinstance(lengths, Call) and isinstance(lengths.op, Full) else None
    return rank(lengths) == 1 and isinstance(value, Constant) and bool(value.value == 1)


def _is_optional(value: Expr) -> bool:
    return isinstance(value.type, SequenceType) and value.type.optional


def _optional(node: OnnxNode) -> Expr:
    if node.get(0) is not None:
        return emit("optional.of", node[0])
    type_ = type_of_proto(node.require("type"), lambda message, hint: node.fail(message, hint))
    return emit("optional.none", element=str(type_))


def _get(node: OnnxNode) -> Expr:
    if isinstance(node[0], Call) and isinstance(node[0].op, OptionalOf):
        return node[0].args[0]
    return emit("optional.get", node[0]) if _is_optional(node[0]) else node[0]


def _has(node: OnnxNode) -> Expr:
    value = node.get(0)
    if value is None or not _is_optional(value):
        return Constant(np.asarray(value is not None))
    if isinstance(value, Call) and isinstance(value.op, (OptionalOf, OptionalNone)):
        return Constant(np.asarray(isinstance(value.op, OptionalOf)))
    return emit("optional.has", value)


def _zipped(node: OnnxNode) -> Expr:
    """A vector is one row."""
    x, keys = node[0], node.attr("classlabels_int64s") or node.require("classlabels_strings")
    return emit("map.zip", emit("expand_dims", x, axis=0) if rank(x) == 1 else x, keys=tuple(keys))


def _vectorized(node: OnnxNode) -> Expr:
    """As in ONNX Runtime one row; onnx's reference has a vector."""
    keys = node.attr("int64_vocabulary") or node.require("string_vocabulary")
    dtype = getattr(node[0].type, "dtype", "float32")
    return emit("map.vector", node[0], keys=tuple(keys), dtype=dtype)


_CASTS = {"TO_FLOAT": "float32", "TO_INT64": "int64", "TO_STRING": STRING}


def _cast_map(node: OnnxNode) -> Expr:
    """Sparse: a map's numbered values at their places in a row; dense: those that there are."""
    if node.attr("cast_to") not in _CASTS:
        raise node.refuse("cast_to", ", ".join(_CASTS))
    keys = tuple(range(node.attr("max_map"))) if node.attr("map_form") == "SPARSE" else None
    return emit("map.vector", node[0], keys=keys, dtype=_CASTS[node.attr("cast_to")])


MAPS = {"CastMap": _cast_map, "DictVectorizer": _vectorized, "ZipMap": _zipped}
formulas(MAPS, domain="ai.onnx.ml")

BUILT = {
    "ConcatFromSequence": _concatenated,
    "Optional": _optional,
    "OptionalGetElement": _get,
    "OptionalHasElement": _has,
    "SequenceAt": _at,
    "SequenceConstruct": lambda n: emit("sequence.of", *n.operands()),
    "SequenceEmpty": lambda n: emit("sequence.of", dtype=onnx_dtype(n, n.attr("dtype", onnx.TensorProto.FLOAT))),
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
formulas({f"{name}-11": builder for name, builder in BUILT.items() if name != "SplitToSequence"})
