"""Damaged ONNX models, made up from good ones by a random number generator."""

from __future__ import annotations

import functools
import pathlib
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Damage: TypeAlias = Callable[[onnx.ModelProto, random.Random], None]

# --- good models ------------------------------------------------------------------------------------------------


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[int | str]]],
    weights: dict[str, np.ndarray],
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", given, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_FLOAT, _INT, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_node = helper.make_node


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(0, 0.5, shape).astype("float32")


def _ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def convolutions() -> onnx.ModelProto:
    nodes = [
        _node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1], group=1),
        _node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"], epsilon=1e-3),
        _node("Relu", ["n"], ["r"]),
        _node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        _node("Conv", ["p", "d"], ["e"], kernel_shape=[3, 3], group=8, dilations=[1, 1]),
        _node("GlobalAveragePool", ["e"], ["a"]),
        _node("Flatten", ["a"], ["f"], axis=1),
        _node("Gemm", ["f", "g", "h"], ["y"], transB=1, alpha=0.5),
    ]
    weights = {
        "w": _random(8, 3, 3, 3), "b": _random(8), "v": np.ones(8, "float32"), "d": _random(8, 1, 3, 3),
        "g": _random(5, 8), "h": _random(5),
    }  # fmt: skip
    return _model(nodes, {"x": (_FLOAT, ["N", 3, 10, 10])}, weights)


def attention() -> onnx.ModelProto:
    nodes = [
        _node("MatMul", ["x", "w"], ["q"]),
        _node("Reshape", ["q", "split"], ["s"]),
        _node("Transpose", ["s"], ["t"], perm=[0, 2, 1, 3]),
        _node("Transpose", ["s"], ["k"], perm=[0, 2, 3, 1]),
        _node("MatMul", ["t", "k"], ["m"]),
        _node("Softmax", ["m"], ["p"], axis=-1),
        _node("MatMul", ["p", "t"], ["o"]),
        _node("Shape", ["x"], ["shape"]),
        _node("Gather", ["shape", "zero"], ["batch"], axis=0),
        _node("Concat", ["batch", "rest"], ["merged"], axis=0),
        _node("Reshape", ["o", "merged"], ["z"]),
        _node("LayerNormalization", ["z", "scale", "scale"], ["y"], axis=-1),
    ]
    weights = {"w": _random(8, 8), "split": _ints(0, 0, 2, 4), "zero": _ints(0), "rest": _ints(-1, 8),
               "scale": _random(8)}  # fmt: skip
    return _model(nodes, {"x": (_FLOAT, ["batch", 5, 8])}, weights)


def control() -> onnx.ModelProto:
    """An If and a Loop that two numbers stop, so that damage to one of them does not make it endless."""
    then = helper.make_graph([_node("Relu", ["x"], ["t"])], "then", [], [_value("t")])
    orelse = helper.make_graph([_node("MatMul", ["x", "w"], ["e"])], "else", [], [_value("e")])
    step = [_node("Add", ["acc", "x"], ["sum"]), _node("Less", ["i", "most"], ["more"]), _node("Exp", ["acc"], ["out"])]
    names = [
        helper.make_tensor_value_info("i", _INT, []),
        helper.make_tensor_value_info("going", _BOOL, []),
        _value("acc"),
    ]
    more = helper.make_tensor_value_info("more", _BOOL, [])
    body = helper.make_graph(step, "body", names, [more, _value("sum"), _value("out")])
    nodes = [
        _node("If", ["c"], ["z"], then_branch=then, else_branch=orelse),
        _node("Loop", ["n", "", "z"], ["last", "all"], body=body),
        _node("ReduceMean", ["all"], ["y"], axes=[0], keepdims=0),
    ]
    inputs = {"c": (_BOOL, []), "x": (_FLOAT, [4, 4])}
    return _model(
        nodes,
        inputs,
        {"w": _random(4, 4), "n": np.int64(3).reshape(()), "most": np.int64(4).reshape(())},
        ["y", "last"],
    )


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _FLOAT, [4, 4])


def recurrent() -> onnx.ModelProto:
    nodes = [
        _node("LSTM", ["x", "w", "r", "b"], ["s", "h"], hidden_size=4, direction="bidirectional"),
        _node("Squeeze", ["h", "axis"], ["q"]),
        _node("TopK", ["q", "k"], ["y", "i"], axis=-1),
        _node("GRU", ["x", "gw", "gr"], ["gs"], hidden_size=4),
    ]
    weights = {
        "w": _random(2, 16, 3), "r": _random(2, 16, 4), "b": _random(2, 32), "axis": _ints(1), "k": _ints(2),
        "gw": _random(1, 12, 3), "gr": _random(1, 12, 4),
    }  # fmt: skip
    return _model(nodes, {"x": (_FLOAT, [5, 1, 3])}, weights, ["y", "i", "s", "gs"])


def indexing() -> onnx.ModelProto:
    nodes = [
        _node("Slice", ["x", "starts", "ends", "axes", "steps"], ["s"]),
        _node("Pad", ["s", "pads"], ["p"]),
        _node("Concat", ["p", "p"], ["c"], axis=1),
        _node("Split", ["c"], ["a", "b"], axis=1),
        _node("Expand", ["a", "to"], ["e"]),
        _node("Tile", ["b", "times"], ["t"]),
        _node("GatherElements", ["x", "where"], ["g"], axis=0),
        _node("ScatterND", ["x", "at", "row"], ["u"]),
        _node("NonZero", ["u"], ["z"]),
        _node("Range", ["r0", "r1", "r2"], ["range"]),
        _node("ConstantOfShape", ["to"], ["zeros"]),
        _node("OneHot", ["where", "depth", "onoff"], ["hot"]),
        _node("Resize", ["image", "", "scales"], ["big"], mode="linear"),
    ]
    weights = {
        "starts": _ints(0, 1), "ends": _ints(4, 3), "axes": _ints(0, 1), "steps": _ints(1, 1),
        "pads": _ints(1, 0, 0, 1), "to": _ints(2, 5, 3), "times": _ints(2, 1), "where": np.zeros((2, 4), "int64"),
        "at": _ints(1).reshape(1, 1), "row": _random(1, 4), "r0": np.int64(0).reshape(()),
        "r1": np.int64(9).reshape(()), "r2": np.int64(2).reshape(()), "depth": np.int64(3).reshape(()),
        "onoff": np.array([0, 1], "float32"), "scales": np.array([1, 1, 2, 1.5], "float32"),
    }  # fmt: skip
    inputs = {"x": (_FLOAT, [4, 4]), "image": (_FLOAT, [1, 2, 4, 4])}
    return _model(nodes, inputs, weights, ["e", "t", "g", "z", "range", "zeros", "hot", "big"])


def quantized() -> onnx.ModelProto:
    nodes = [
        _node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        _node("QLinearConv", ["q", "s", "z", "w", "s", "wz", "s", "z"], ["c"], kernel_shape=[3, 3]),
        _node("DequantizeLinear", ["c", "s", "z"], ["y"]),
        _node("DynamicQuantizeLinear", ["x"], ["d", "ds", "dz"]),
        _node("MatMulInteger", ["d", "m", "dz"], ["i"]),
        _node("Cast", ["i"], ["f"], to=_FLOAT),
    ]
    weights = {
        "s": np.float32(0.1).reshape(()), "z": np.uint8(128).reshape(()), "wz": np.int8(0).reshape(()),
        "w": np.ones((2, 1, 3, 3), "int8"), "m": np.ones((6, 3), "uint8"),
    }  # fmt: skip
    return _model(nodes, {"x": (_FLOAT, [1, 1, 6, 6])}, weights, ["y", "f"])


def functions() -> onnx.ModelProto:
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "Twice", ["a"], ["b"], [_node("Add", ["a", "a"], ["b"])], sets)
    twice = [_node("Twice", ["a"], ["t"], domain="own"), _node("Twice", ["t"], ["b"], domain="own")]
    outer = helper.make_function("own", "Four", ["a"], ["b"], twice, sets)
    model = _model([_node("Four", ["x"], ["y"], domain="own")], {"x": (_FLOAT, [3])}, {})
    model.opset_import.append(sets[1])
    model.functions.extend([inner, outer])
    return model


def beside() -> onnx.ModelProto:
    """Weights in a file beside the model, ``weights.bin``."""
    model = _model([_node("MatMul", ["x", "w"], ["m"]), _node("Add", ["m", "b"], ["y"])], {"x": (_FLOAT, [2, 8])},
                   {"w": _random(8, 4), "b": _random(4)})  # fmt: skip
    offset = 0
    for tensor in model.graph.initializer:
        nbytes = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(nbytes))):
            tensor.external_data.add(key=key, value=value)
        offset += nbytes
    return model


WEIGHTS = "weights.bin"
_OWN = (convolutions, attention, control, recurrent, indexing, quantized, functions, beside)


def own_models() -> list[bytes]:
    """The models above."""
    return [make().SerializeToString() for make in _OWN]


def package_models() -> list[bytes]:
    """Those of the ONNX package's own tests of single operators; takes seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, on the extreme values of the cases
        cases = [case for case in collect_testcases() if case.model is not None]
    models = [data for case in cases for data in {case.model.SerializeToString(), _with_constants(case)}]
    return sorted(data for data in models if len(data) < 20_000)


def _with_constants(case: Any) -> bytes:
    """The case's model with its inputs of integers as weights: what they say of shapes, axes, indices is then known."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    for position, value in enumerate(case.data_sets[0][0] if case.data_sets else []):
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and position < len(model.graph.input):
            name = model.graph.input[position].name
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return bytes(model.SerializeToString())


# --- damage -----------------------------------------------------------------------------------------------------

_INTEGERS = (0, 1, -1, 2, 3, 7, 255, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))


def _integer(rng: random.Random, bits: int = 64) -> int:
    """One that is special, or one of any size: sizes of tensors that just fit are as bad as those that never do."""
    value = rng.choice((*_INTEGERS, *(1 << rng.randrange(40) for _ in _INTEGERS)))
    value = rng.choice((value, value, value + 1, value - 1, -value))
    return min(max(value, -(1 << (bits - 1))), (1 << (bits - 1)) - 1)


_FLOATS = (0.0, -1.0, 0.5, 1e30, float("inf"), float("nan"), -0.0)
_TEXTS = ("", "x", "y", "NOTSET", "SAME_UPPER", "../x", "\0", "é" * 50, "linear", "ai.onnx", "reverse")


def messages(message: Any) -> Iterator[Any]:
    """A protobuf message and all that are inside of it."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from messages(inner)


def _pick(model: onnx.ModelProto, rng: random.Random, *kinds: type) -> Any:
    found = [m for m in messages(model) if isinstance(m, kinds)]
    return rng.choice(found) if found else None


def edit_field(model: onnx.ModelProto, rng: random.Random) -> None:
    """Any field of any message: another value, removed, doubled."""
    message = rng.choice(list(messages(model)))
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.is_repeated:
        _edit_list(getattr(message, field.name), field, rng)
    elif field.type == field.TYPE_MESSAGE:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _value_for(field, rng))


def _edit_list(values: Any, field: Any, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if not values or kind == 0:
        values.add() if field.type == field.TYPE_MESSAGE else values.append(_value_for(field, rng))
        return
    at = rng.randrange(len(values))
    if kind == 1:
        del values[at]
    elif kind == 2:
        values.append(values[at])
    elif field.type != field.TYPE_MESSAGE:
        values[at] = _value_for(field, rng)


def _value_for(field: Any, rng: random.Random) -> Any:
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return rng.choice(_FLOATS)
    if field.type == field.TYPE_BYTES:
        return rng.choice((b"", b"x", bytes(64), rng.randbytes(rng.randrange(40))))
    if field.cpp_type == field.CPPTYPE_STRING:
        return rng.choice(_TEXTS)
    if field.cpp_type == field.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    bits = 64 if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 32
    value = _integer(rng, bits)
    return abs(value) if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else value


def rewire(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node's input or output: another value's name, its own (a cycle), none, one more, one less."""
    node = _pick(model, rng, onnx.NodeProto)
    if node is None:
        return
    known = [name for n in messages(model) if isinstance(n, onnx.NodeProto) for name in (*n.input, *n.output)]
    names = node.input if rng.random() < 0.7 else node.output
    name = rng.choice((*known, "", "nobody"))
    kind = rng.randrange(4)
    if not names or kind == 0:
        names.append(name)
    elif kind == 1:
        del names[rng.randrange(len(names))]
    else:
        names[rng.randrange(len(names))] = name


def change_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    """Nodes removed, doubled, in another order, or of another operator."""
    graph = _pick(model, rng, onnx.GraphProto)
    if graph is None or not graph.node:
        return
    at, kind = rng.randrange(len(graph.node)), rng.randrange(4)
    if kind == 0:
        del graph.node[at]
    elif kind == 1:
        graph.node.append(graph.node[at])
    elif kind == 2:
        order = list(graph.node)
        rng.shuffle(order)
        del graph.node[:]
        graph.node.extend(order)
    else:
        graph.node[at].op_type = rng.choice(_operators())


@functools.cache
def _operators() -> list[str]:
    return sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})


def change_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = _pick(model, rng, onnx.AttributeProto)
    if attribute is None:
        return
    kind = rng.randrange(5)
    if kind == 0:
        attribute.type = rng.choice(list(onnx.AttributeProto.AttributeType.values()))
    elif kind == 1:
        attribute.name = rng.choice(("axis", "axes", "perm", "pads", "to", "body", "keepdims", "x"))
    elif attribute.ints:
        _edit_list(attribute.ints, attribute.DESCRIPTOR.fields_by_name["ints"], rng)
    elif attribute.s:
        attribute.s = rng.choice(_TEXTS).encode() if kind < 4 else b"\xff\xfe"
    elif attribute.type == attribute.FLOAT:
        attribute.f = rng.choice(_FLOATS)
    else:
        attribute.i = _integer(rng)


def change_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    """A tensor's shape, dtype, or data; often the integers that say what other nodes do."""
    tensor = _pick(model, rng, onnx.TensorProto)
    if tensor is None:
        return
    kind = rng.randrange(5)
    if kind == 0:
        _edit_list(tensor.dims, tensor.DESCRIPTOR.fields_by_name["dims"], rng)
    elif kind == 1:
        tensor.data_type = rng.choice(list(onnx.TensorProto.DataType.values()))
    elif kind == 2 or tensor.data_type != TensorProto.INT64 or tensor.data_location == TensorProto.EXTERNAL:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)] + bytes(rng.choice((0, 1, 8)))
    else:
        data = tensor.raw_data or np.array(tensor.int64_data, "<i8").tobytes()
        values = np.frombuffer(data[: len(data) // 8 * 8], "<i8").copy()
        if len(values):
            values[rng.randrange(len(values))] = _integer(rng)
        tensor.ClearField("int64_data")
        tensor.raw_data = values.astype("<i8").tobytes()


def change_types(model: onnx.ModelProto, rng: random.Random) -> None:
    """Shapes and dtypes that values are declared with."""
    value = _pick(model, rng, onnx.ValueInfoProto)
    if value is None:
        return
    tensor = value.type.tensor_type
    if rng.random() < 0.3 or not tensor.shape.dim:
        tensor.elem_type = rng.choice(list(onnx.TensorProto.DataType.values()))
        return
    dim = rng.choice(tensor.shape.dim)
    if rng.random() < 0.3:
        dim.dim_param = rng.choice(_TEXTS)
    else:
        dim.dim_value = _integer(rng)


def change_versions(model: onnx.ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.3 or not model.opset_import:
        model.ir_version = rng.choice((0, 1, 3, 8, 99, (1 << 63) - 1))
    else:
        chosen = rng.choice(model.opset_import)
        chosen.version = rng.choice((0, 1, 6, 7, 9, 11, 13, 18, 21, 25, 99, -1, (1 << 63) - 1))


def move_weights(model: onnx.ModelProto, rng: random.Random) -> None:
    """Where a tensor beside the model lies: outside of the folder, past the file's end, nowhere."""
    tensor = _pick(model, rng, onnx.TensorProto)
    if tensor is None:
        return
    if tensor.data_location != TensorProto.EXTERNAL:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=WEIGHTS)
    entry = rng.choice(tensor.external_data) if tensor.external_data else tensor.external_data.add(key="location")
    numbers = ("0", "-1", "1", "4096", str(1 << 40), str(1 << 70), "1e3", "x", "", "0x10", " 8")
    entry.value = rng.choice(PLACES) if entry.key == "location" else rng.choice(numbers)


PLACES = (
    *("../outside.bin", "/etc/passwd", "", ".", "..", "link.bin", "folder", "./weights.bin", "no.bin", "a\0b"),
    *("/dev/zero", "x" * 5000, "../inside/weights.bin", "pipe", "\\weights.bin", "loop.bin"),
)

_EDITS: tuple[Damage, ...] = (
    *(edit_field, edit_field, rewire, rewire, change_nodes, change_attribute, change_attribute, change_tensor),
    *(change_tensor, change_types, change_versions, move_weights),
)


def _flip(data: bytes, rng: random.Random) -> bytes:
    altered = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        altered[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(altered)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _splice(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.sample(range(len(data) + 1), 2))
    return data[:end] + data[start:]


@dataclass(frozen=True)
class DamagedModel:
    damage: str
    data: bytes


def damaged(models: Sequence[bytes], rng: random.Random) -> DamagedModel:
    data = rng.choice(models)
    if rng.random() < 0.15:
        act = rng.choice((_flip, _flip, _cut, _splice))
        return DamagedModel(act.__name__, act(data, rng))
    model = onnx.ModelProto.FromString(data)
    edits = rng.choices(_EDITS, k=rng.choice((1, 1, 1, 2, 3)))
    for edit in edits:
        edit(model, rng)
    return DamagedModel("+".join(edit.__name__ for edit in edits), model.SerializeToString())


def leaves_the_folder(model: onnx.ModelProto, folder: pathlib.Path) -> bool:
    """Whether a tensor's data would lie outside of the model's folder."""
    for tensor in messages(model):
        if isinstance(tensor, onnx.TensorProto) and tensor.data_location == TensorProto.EXTERNAL:
            places = [entry.value for entry in tensor.external_data if entry.key == "location"]
            if any("\0" not in place and not _inside(folder, place) for place in places[-1:]):
                return True
    return False


def _inside(folder: pathlib.Path, place: str) -> bool:
    return (folder / place).resolve().is_relative_to(folder.resolve())
