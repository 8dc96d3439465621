"""What a user can get wrong with a model or its shapes: each message word for word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_build import build, error_of, one_node, run, value

from minitvm import InferenceSession
from minitvm.errors import (
    FrontendError,
    InputError,
    MiniTVMError,
    TypeInferenceError,
    UnknownValueError,
    UnsupportedOperatorError,
)
from minitvm.frontend import describe_onnx, from_onnx
from minitvm.ir.dtypes import DTYPES

NEWEST = onnx.defs.onnx_opset_version()
X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


def node(op_type: str, inputs: list[str], outputs: list[str], name: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, name=name, **attributes)


# --- graphs ---------------------------------------------------------------------------------------------------


def test_dangling_value() -> None:
    model = build([node("Add", ["x", "nowhere"], ["y"], "sum")], [value("x", X)], ["y"])
    assert error_of(FrontendError, model) == (
        "value 'nowhere' is read but never produced\n"
        '  | ONNX node "sum" (Add)\n'
        "  = hint: it is no input, no initializer and no node's output; check the model with onnx.checker"
    )


def test_cycle() -> None:
    nodes = [node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second")]
    assert error_of(FrontendError, build(nodes, [value("x", X)], ["b"])) == (
        "the graph has a cycle of 2 nodes\n"
        '  | ONNX node "first" (Add)\n'
        '  | ONNX node "second" (Relu)\n'
        "  = hint: an ONNX graph has no cycles; recurrence is written with Loop or Scan"
    )


def test_value_produced_twice() -> None:
    nodes = [node("Relu", ["x"], ["y"], "one"), node("Neg", ["x"], ["y"], "two")]
    assert error_of(FrontendError, build(nodes, [value("x", X)], ["y"])) == (
        "value 'y' is produced twice\n  | ONNX node \"two\" (Neg)"
    )


def test_output_never_produced() -> None:
    assert error_of(FrontendError, build([node("Relu", ["x"], ["y"])], [value("x", X)], ["z"])) == (
        "output 'z' is never produced"
    )


def test_all_unsupported_operators_at_once() -> None:
    inner = helper.make_graph([node("NoSuchOp", ["x"], ["b"], "deep")], "then", [], [value("b", None)])
    other = helper.make_graph([node("Relu", ["x"], ["c"])], "else", [], [value("c", None)])
    nodes = [
        helper.make_node("Fancy", ["x"], ["f"], name="f1", domain="my.company"),
        helper.make_node("Fancy", ["f"], ["g"], domain="my.company"),
        node("If", ["flag"], ["y"], "choice", then_branch=inner, else_branch=other),
        node("Add", ["y", "g"], ["z"]),
    ]
    model = build(nodes, [value("x", X), value("flag", np.zeros((), bool))], ["z"])
    assert error_of(UnsupportedOperatorError, model) == (
        "the model has operators that minitvm cannot import: NoSuchOp (1), my.company.Fancy (2)\n"
        "  | NoSuchOp: deep\n"
        "  | my.company.Fancy: f1, g\n"
        "  = hint: write a builder for them: @minitvm.frontend.onnx_op(name, since=..., domain=...)"
    )


def test_a_node_without_a_name_is_named_by_its_output() -> None:
    model = build([node("Softmax", ["x"], ["y"], axis=5)], [value("x", X)], ["y"])
    assert error_of(FrontendError, model) == (
        'Softmax: axis 5 is outside a tensor of rank 2\n  | ONNX node that produces "y" (Softmax)'
    )


def test_shapes_that_do_not_fit_name_the_node() -> None:
    model = build([node("Add", ["x", "w"], ["y"], "sum")], [value("x", X)], ["y"], {"w": np.ones((4,), np.float32)})
    with pytest.raises(MiniTVMError) as caught:
        from_onnx(model)
    assert str(caught.value) == (
        "add: shapes do not broadcast: Tensor[(2, 3), float32] and Tensor[(4,), float32]\n"
        '  | add(%x, %w)      from ONNX node "sum"\n'
        "  |   %x: Tensor[(2, 3), float32]\n"
        "  |   %w: Tensor[(4,), float32]\n"
        "  = hint: dimension -1 is 3 and 4; they must agree or be 1"
    )


def test_unsupported_attribute() -> None:
    sequence = np.zeros((2, 1, 3), np.float32)
    weights = {1: np.ones((1, 16, 3), np.float32), 2: np.ones((1, 16, 4), np.float32)}
    model = one_node("LSTM", sequence, constants=weights, hidden_size=4, activations=["Sigmoid", "Tanh"])
    assert error_of(FrontendError, model) == (
        "LSTM: attribute activations=['Sigmoid', 'Tanh'] is not supported\n"
        '  | ONNX node "the_node" (LSTM)\n'
        "  = hint: 3 of Affine, Elu, HardSigmoid, LeakyRelu, Relu, ScaledTanh, "
        "Sigmoid, Softplus, Softsign, Tanh, ThresholdedRelu"
    )


def test_a_shape_known_only_at_run_time() -> None:
    model = one_node("Reshape", X, np.array([3, 2]))
    assert error_of(UnknownValueError, model) == (
        "Reshape: the shape (input 1) is computed when the model runs; minitvm needs it while importing\n"
        '  | ONNX node "the_node" (Reshape)\n'
        "  = hint: give the value that it follows from: from_onnx(model, value_dict={'x1': array})"
    )


def test_malformed_node() -> None:
    model = build([node("Add", ["x"], ["y"], "lonely")], [value("x", X)], ["y"])
    assert error_of(FrontendError, model) == 'Add: takes 2 inputs, 1 given\n  | ONNX node "lonely" (Add)'
    model = build([node("Clip", ["x"] * 4, ["y"], "many")], [value("x", X)], ["y"])
    assert error_of(FrontendError, model) == 'Clip: takes 1 to 3 inputs, 4 given\n  | ONNX node "many" (Clip)'
    model = build([node("Relu", ["x"], ["y", "z"], "two")], [value("x", X)], ["y"])
    assert error_of(FrontendError, model) == 'Relu: has 1 outputs, 2 are named\n  | ONNX node "two" (Relu)'
    model = build([node("Add", ["x", ""], ["y"], "half")], [value("x", X)], ["y"])
    assert error_of(FrontendError, model) == 'Add: input 1 is missing\n  | ONNX node "half" (Add)'
    model = build([node("Concat", ["x"], ["y"], "joined")], [value("x", X)], ["y"])
    assert error_of(FrontendError, model) == "Concat: attribute 'axis' is missing\n  | ONNX node \"joined\" (Concat)"
    model = build([node("Flatten", ["x"], ["y"], "flat", axes=1)], [value("x", X)], ["y"])
    assert error_of(FrontendError, model) == (
        "Flatten: opset 21 has no attribute 'axes'\n  | ONNX node \"flat\" (Flatten)\n  = hint: its attributes: axis"
    )
    model = build([node("BitShift", ["n", "n"], ["y"], "shift", direction="UP")], [value("n", np.uint8([1]))], ["y"])
    assert error_of(FrontendError, model) == (
        "BitShift: malformed: 'UP'\n"
        '  | ONNX node "shift" (BitShift)\n'
        "  = hint: check the model with onnx.checker.check_model"
    )


def test_sizes_that_are_mistakes() -> None:
    limits = {i: np.float32(v) for i, v in enumerate((0, 1e12, 1))}
    model = build([node("Range", ["a", "b", "c"], ["y"], "r")], [], ["y"], {n: limits[i] for i, n in enumerate("abc")})
    assert error_of(TypeInferenceError, model) == (
        'Range: from 0.0 to 999999995904.0 in steps of 1.0 are more than 16,777,216 numbers\n  | ONNX node "r" (Range)'
    )
    model = one_node("Resize", X, constants={1: np.float32([]), 2: np.float32([]), 3: np.array([2, 2**40])})
    assert error_of(TypeInferenceError, model) == (
        "Resize: axis 1 of Tensor[(2, 3), float32] cannot be resized to 1099511627776\n"
        '  | ONNX node "the_node" (Resize)'
    )


def test_names_that_are_not_text() -> None:
    data = one_node("Relu", X).SerializeToString().replace(b"the_node", b"the\xff\xfeode")
    assert error_of(FrontendError, data) == "a name in the model is not text\n  = hint: the file is damaged"


def test_weights_listed_twice() -> None:
    model = one_node("Add", X, constants={1: X})
    model.graph.initializer.append(model.graph.initializer[0])
    assert error_of(FrontendError, model) == "initializer 'x1' is listed twice"


@pytest.mark.parametrize("indices", [np.array([1, 5]), np.array([[0, 1], [1, 2]])], ids=["in a row", "by axis"])
def test_sparse_weights(indices: np.ndarray) -> None:
    values = numpy_helper.from_array(np.float32([2, -3]), "s")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices, "i"), [2, 3])
    model = one_node("Add", X, constants={1: X})
    del model.graph.initializer[:]
    model.graph.node[0].input[1] = "s"
    model.graph.sparse_initializer.append(sparse)
    np.testing.assert_array_equal(run(model, {"x0": X})[0] - X, np.float32([[0, 2, 0], [0, 0, -3]]))
    constant = build([node("Constant", [], ["y"], sparse_value=sparse)], [], ["y"])
    np.testing.assert_array_equal(run(constant, {})[0], np.float32([[0, 2, 0], [0, 0, -3]]))
    model.graph.sparse_initializer[0].dims[0] = 1
    assert error_of(FrontendError, model).startswith("a sparse tensor of shape (1, 3) cannot be read: ")


def test_all_that_cannot_be_imported_at_once() -> None:
    model = build([node("Fancy", ["x"], ["y"], "f"), node("Relu", ["c"], ["z"])], [value("x", X)], ["y", "z"])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.COMPLEX64, ["n"]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.complex128), "w"))
    model.opset_import[0].version = 99
    for raises in (from_onnx, InferenceSession):
        with pytest.raises(UnsupportedOperatorError) as caught:
            raises(model)
        text = str(caught.value)
        assert text.startswith("4 things in the model cannot be imported\n  | the model uses ONNX opset 99; ")
        for line in (
            "the model has operators that minitvm cannot import: Fancy (1)",
            "Fancy: f",
            "value 'c': element type 'complex64' is not supported",
            "element type 'complex128' is not supported",
            'ONNX tensor "w"',
        ):
            assert f"\n  | {line}\n" in text


@pytest.mark.parametrize("seed", range(4))
def test_damaged_models_never_raise_anything_else(seed: int) -> None:
    """Bytes changed, bits flipped, bytes lost: the importer says what is wrong, or imports what is left."""
    rng = np.random.default_rng(seed)
    weights = {1: np.ones((4, 3, 3, 3), np.float32), 2: np.ones(4, np.float32)}
    whole = one_node("Conv", np.zeros((1, 3, 8, 8), np.float32), constants=weights, pads=[1, 1, 1, 1])
    data, reported = whole.SerializeToString(), 0
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(damaged)))
            how = rng.integers(3)
            if how == 0:
                damaged[at] = int(rng.integers(256))
            elif how == 1:
                damaged[at] ^= 1 << int(rng.integers(8))
            else:
                del damaged[at : at + 2]
        try:
            from_onnx(bytes(damaged))
        except MiniTVMError as error:
            reported += bool(str(error))
    assert reported > 20


def test_values_that_are_neither_tensors_nor_sequences() -> None:
    value = onnx.ValueInfoProto(name="x")
    value.type.opaque_type.name = "Model"
    assert error_of(FrontendError, build([node("Identity", ["x"], ["y"])], [value], ["y"])) == (
        "value 'x': its type is opaque; minitvm has tensors, sequences, maps and optionals"
    )


# --- shapes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def open_model() -> onnx.ModelProto:
    return build([node("Relu", ["x"], ["y"])], [value("x", ["batch", 3, None])], ["y"])


def test_open_dimensions(open_model: onnx.ModelProto) -> None:
    assert error_of(FrontendError, open_model) == (
        "input 'x' has dimensions without a size: batch, ?, in (batch, 3, ?)\n"
        "  = hint: give them: shape_dict={'x': (1, 3, 1)}"
    )


def test_no_shape_at_all() -> None:
    model = build([node("Relu", ["x"], ["y"])], [value("x", None)], ["y"])
    assert error_of(FrontendError, model) == (
        "input 'x' has no shape in the model\n  = hint: give it: shape_dict={'x': (...)}"
    )
    module, _ = from_onnx(model, {"x": (2, 5)})
    assert module.main.params[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3), "shape_dict gives input 'x' 2 dimensions; it has 3: (batch, 3, ?)"),
        (
            (2, 4, 5),
            "shape_dict gives dimension 1 of input 'x' as 4; the model fixes it at 3\n"
            "  = hint: the input's shape is (batch, 3, ?)",
        ),
        (
            (-1, 3, 5),
            "shape_dict gives dimension 0 of input 'x' as -1\n  = hint: a dimension is a whole number, 0 or more",
        ),
        (
            (float("nan"), 3, 5),
            "shape_dict gives dimension 0 of input 'x' as nan\n  = hint: a dimension is a whole number, 0 or more",
        ),
        (
            (1, 3, 2.5),
            "shape_dict gives dimension 2 of input 'x' as 2.5\n  = hint: a dimension is a whole number, 0 or more",
        ),
        (
            (1, "c", 5),
            "shape_dict gives dimension 1 of input 'x' as 'c'\n  = hint: a dimension is a whole number, 0 or more",
        ),
        (7, "shape_dict gives input 'x' 7, which is no shape"),
    ],
)
def test_shapes_that_are_none(open_model: onnx.ModelProto, shape: Any, message: str) -> None:
    assert error_of(InputError, open_model, shape_dict={"x": shape}) == message


def test_unknown_names_and_dtypes(open_model: onnx.ModelProto) -> None:
    assert error_of(InputError, open_model, shape_dict={"X": (1, 3, 1)}) == (
        "shape_dict names 'X', which is no input of the model\n  = hint: inputs: x"
    )
    assert error_of(InputError, open_model, dtype_dict={"z": "float16"}) == (
        "dtype_dict names 'z', which is no input of the model\n  = hint: inputs: x"
    )
    assert error_of(InputError, open_model, shape_dict={"x": (1, 3, 1)}, dtype_dict={"x": "float31"}) == (
        f"dtype_dict gives input 'x' the dtype 'float31'\n  = hint: dtypes: {', '.join(DTYPES)}"
    )


def test_describing_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(FrontendError) as caught:
        describe_onnx(tmp_path / "no.onnx")
    assert str(caught.value) == f"there is no file {tmp_path}/no.onnx"


def test_the_importer_stays_usable_after_an_error(open_model: onnx.ModelProto) -> None:
    error_of(FrontendError, open_model)
    module, params = from_onnx(open_model, {"x": (2, 3, 4)})
    assert module.main.params[0].shape == (2, 3, 4) and params == {}


def test_zero_size_tensors() -> None:
    model = build([node("Add", ["x", "w"], ["y"])], [value("x", [0, 3])], ["y"], {"w": np.ones((0, 3), np.float32)})
    assert numpy_helper.to_array(model.graph.initializer[0]).shape == (0, 3)
    module, _ = from_onnx(model)
    assert module.main.ret_type.shape == (0, 3)  # type: ignore[union-attr]
