"""Every operator of opsets 1 to 6 that ONNX lists, in each of its versions, beside what it is in opset 7."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_build import build, error_of, one_node, run, value
from onnx_oracle import check_same, onnx_runtime

import minitvm
from minitvm.errors import FrontendError, TypeInferenceError

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X, Y, IMAGE = floats(2, 3, 4, 5), floats(2, 3, 4, 5), floats(1, 4, 6, 5)
POSITIVE, FLAGS = np.abs(X) + np.float32(0.5), X > 0
ROIS = np.array([[0, 0, 0, 3, 3], [0, 1, 1, 4, 5]], np.float32)


@dataclass
class Case:
    """What a node takes, and what it is in opset 7: other inputs, other attributes; ``result`` where numpy says it."""

    inputs: tuple[np.ndarray, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    versions: tuple[int, ...] = ()
    """Those that it is a case of; all where none is named."""
    outputs: int = 1
    new_inputs: tuple[np.ndarray, ...] | None = None
    new_attributes: dict[str, Any] | None = None
    result: Callable[..., Any] | None = None
    constants: tuple[int, ...] = ()
    """Positions of inputs that are initializers."""


def broadcasting(function: Callable[..., np.ndarray], x: np.ndarray, y: np.ndarray) -> list[Case]:
    """The forms that a second operand may have."""
    forms = [
        (y, {}, y),
        (y[0, 0, 0, 0], {"broadcast": 1}, y[0, 0, 0, 0]),
        (y[:1, :1, 0, 0], {"broadcast": 1, "axis": 0}, y[0, 0, 0, 0]),
        (y[0, 0, 0], {"broadcast": 1}, y[0, 0, 0]),
        (y[0, 0], {"broadcast": 1}, y[0, 0]),
        (y[0, :, 0, 0], {"broadcast": 1, "axis": 1}, y[0, :, 0, 0].reshape(3, 1, 1)),
        (y[0, :, :, 0], {"broadcast": 1, "axis": 1}, y[0, :, :, 0].reshape(3, 4, 1)),
        (y[:, :, 0, 0], {"broadcast": 1, "axis": 0}, y[:, :, 0, 0].reshape(2, 3, 1, 1)),
        (y[0, 0, 0], {"broadcast": 1, "axis": -1}, y[0, 0, 0]),
    ]
    return [
        Case((x, np.asarray(operand)), how, result=lambda as_new=as_new: function(x, as_new))
        for operand, how, as_new in forms
    ]


def layer(kind: str) -> list[Case]:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    x, h = floats(4, 2, 3), 5
    weights = floats(1, gates * h, 3), floats(1, gates * h, h), floats(1, 2 * gates * h)
    directions = {"direction": "forward"} if kind == "GRU" else {}
    return [
        Case((x, *weights), {"hidden_size": h}, outputs=2, new_attributes={"hidden_size": h, **directions}),
        Case((x, *weights), {"hidden_size": h, "direction": "reverse", "output_sequence": 1},
             outputs=2, new_attributes={"hidden_size": h, "direction": "reverse"}),
    ]  # fmt: skip


def norm(version: int) -> list[Case]:
    statistics = tuple(np.abs(floats(4)) + 0.5 for _ in range(4))
    consumed = {"consumed_inputs": [0, 0, 0, 1, 1]} if version == 1 else {}
    plain = Case((IMAGE, *statistics), {"epsilon": 0.01, "is_test": 1, **consumed}, (version,),
                 new_attributes={"epsilon": 0.01})  # fmt: skip
    return [plain, Case(plain.inputs, {"epsilon": 0.01, **consumed}, (version,), new_attributes={"epsilon": 0.01})]


UNARY = "Abs Ceil Elu Exp Floor HardSigmoid LeakyRelu Neg Relu Sigmoid Tanh Softplus Softsign Identity Shape Size"
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
REDUCED = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
BODY = helper.make_graph([helper.make_node("Neg", ["x0"], ["z"])], "b", [], [onnx.ValueInfoProto(name="z")])
OTHER = helper.make_graph([helper.make_node("Abs", ["x0"], ["z"])], "b", [], [onnx.ValueInfoProto(name="z")])
STEP = helper.make_graph(
    [helper.make_node("Add", ["v", "v"], ["w"]), helper.make_node("Identity", ["c"], ["d"])],
    "step",
    [value("i", (), "int64"), value("c", (), "bool"), value("v", (3,))],
    [value("d", (), "bool"), value("w", (3,))],
)

CASES: dict[str, list[Case]] = {
    **{op: [Case((X,))] for op in UNARY.split()},
    **{op: [Case((POSITIVE,))] for op in ("Log", "Sqrt", "Reciprocal")},
    **{op: broadcasting(f, POSITIVE, Y) for op, f in BINARY.items()},
    **{op: broadcasting(f, FLAGS, Y > 0.2)
       for op, f in {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}.items()},
    "Equal": broadcasting(np.equal, (X * 2).astype(np.int32), (Y * 2).astype(np.int32)),
    "Greater": broadcasting(np.greater, X, Y),
    "Less": broadcasting(np.less, X, Y),
    "Not": [Case((FLAGS,))],
    "Selu": [
        Case((X,), versions=(1,), new_attributes={"alpha": 1.6732, "gamma": 1.0507}),
        Case((X,), versions=(6,)),
        Case((X,), {"alpha": 2.0, "gamma": 0.5}),
    ],
    **{op: [Case((X,), {"axis": 2}), Case((X,), {"keepdims": 0})] for op in ("ArgMax", "ArgMin")},
    **{op: [Case((X,), {"axis": 1}), Case((X,))] for op in ("Softmax", "LogSoftmax", "Hardmax", "Flatten")},
    **{f"Reduce{op}": [Case((POSITIVE,), {"axes": [1, 2], "keepdims": 0}), Case((POSITIVE,))]
       for op in REDUCED.split()},
    **{op: [Case((IMAGE,), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
            Case((IMAGE,), {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"})] for op in ("AveragePool", "MaxPool")},
    **{op: [Case((IMAGE,))] for op in ("GlobalAveragePool", "GlobalMaxPool")},
    "GlobalLpPool": [Case((IMAGE,)), Case((IMAGE,), {"p": 1.0}, (1,), new_attributes={"p": 1}),
                     Case((IMAGE,), {"p": 3}, (2,))],
    "LpPool": [Case((IMAGE,), {"kernel_shape": [2, 2]}),
               Case((IMAGE,), {"kernel_shape": [2, 2], "p": 1.0}, (1,),
                    new_attributes={"kernel_shape": [2, 2], "p": 1}),
               Case((IMAGE,), {"kernel_shape": [2, 2], "p": 3}, (2,))],
    "MaxRoiPool": [Case((IMAGE, ROIS), {"pooled_shape": [2, 2]})],
    "Conv": [Case((IMAGE, floats(5, 4, 3, 3), floats(5)), {"pads": [1, 0, 1, 2], "strides": [2, 1]})],
    "ConvTranspose": [Case((IMAGE, floats(4, 3, 3, 3), floats(3)), {"strides": [2, 2]})],
    "BatchNormalization": [*norm(1), *norm(6)],
    "InstanceNormalization": [Case((IMAGE, floats(4), floats(4)), {"epsilon": 0.01})],
    "LRN": [Case((IMAGE,), {"size": 3, "alpha": 0.1})],
    "LpNormalization": [Case((X,), {"axis": 1}), Case((X,), {"p": 1})],
    "Cast": [
        Case((X,), {"to": "INT32"}, (1,), new_attributes={"to": onnx.TensorProto.INT32}),
        Case((X,), {"to": "double"}, (1,), new_attributes={"to": onnx.TensorProto.DOUBLE}),
        Case((X,), {"to": onnx.TensorProto.INT64}, (6,)),
    ],
    "Clip": [Case((X,)), Case((X,), {"min": -0.5, "max": 0.25}), Case((X,), {"max": 0.25})],
    "Concat": [Case((X, Y), versions=(1,), new_attributes={"axis": 1}), Case((X, Y), {"axis": 2})],
    "Constant": [Case((), {"value": onnx.numpy_helper.from_array(X)})],
    "DepthToSpace": [Case((IMAGE,), {"blocksize": 2})],
    "SpaceToDepth": [Case((floats(1, 2, 4, 6),), {"blocksize": 2})],
    "Dropout": [Case((X,), {"is_test": 1}, new_attributes={}), Case((X,), {"ratio": 0.3})],
    "GRU": layer("GRU"),
    "LSTM": layer("LSTM"),
    "RNN": layer("RNN"),
    "Gather": [Case((X, np.array([[1, 0], [1, 1]])), {"axis": 1})],
    "Gemm": [
        Case((floats(2, 3), floats(4, 3), floats(2, 4)), {"transB": 1, "alpha": 0.5}),
        Case((floats(2, 3), floats(3, 4), floats(4)), {"broadcast": 1, "beta": 2.0}, new_attributes={"beta": 2.0}),
        Case((floats(3, 2), floats(3, 4), floats(2, 1)), {"broadcast": 1, "transA": 1}, new_attributes={"transA": 1}),
    ],
    "If": [Case((X, np.bool_(True)), {"then_branch": BODY, "else_branch": OTHER}, result=lambda: -X)],
    "Loop": [Case((np.int64(3), np.bool_(True), floats(3)), {"body": STEP})],
    "MatMul": [Case((X, floats(5, 3)))],
    **{op: [Case((X, Y, X + Y)), Case((X,))] for op in ("Max", "Mean", "Min", "Sum")},
    "PRelu": [
        Case((X, Y)),
        Case((X, floats(1))),
        Case((X, Y[0, :, 0, 0]), new_inputs=(X, Y[0, :, :1, :1])),
        Case((X[:, :, 0, 0], Y[0, :, 0, 0])),
    ],
    "Pad": [
        Case((X,), {"paddings": [0, 0, 2, 1, 1, 0, 0, 3], "value": 1.5}, (1,),
             new_attributes={"pads": [0, 0, 2, 1, 1, 0, 0, 3], "value": 1.5}),
        Case((X,), {"pads": [0, 0, 1, 1, 0, 0, 1, 0], "mode": "reflect"}, (2,)),
    ],
    **{f"Random{op}": [] for op in ("Normal", "NormalLike", "Uniform", "UniformLike")},
    "Reshape": [
        Case((X,), {"shape": [0, -1, 5]}, (1,), new_inputs=(X, np.array([0, -1, 5])), new_attributes={}),
        Case((X, np.array([4, 0, -1])), versions=(5,), constants=(1,)),
    ],
    "Slice": [Case((X,), {"starts": [0, 1], "ends": [2, 100], "axes": [0, 2]}),
              Case((X,), {"starts": [1], "ends": [-1]})],
    "Split": [
        Case((X,), {"axis": 2}, outputs=2),
        Case((X,), {"axis": 3, "split": [1, 4]}, outputs=2),
        Case((X, np.float32([1, 2])), {"axis": 1}, (1,), 2, (X,), {"axis": 1, "split": [1, 2]}, constants=(1,)),
    ],
    "Squeeze": [Case((X[:1],), {"axes": [0]}), Case((X[:1, :, :1],))],
    "Tile": [
        Case((X, np.float32(3), np.float32(1)), versions=(1,), new_inputs=(X, np.array([1, 3, 1, 1])),
             constants=(1, 2)),
        Case((X, np.array([2, 1, 1, 3])), versions=(6,), constants=(1,)),
    ],
    "TopK": [Case((X,), {"k": 2}, outputs=2), Case((X,), {"k": 2, "axis": 1}, outputs=2)],
    "Transpose": [Case((X,)), Case((X,), {"perm": [1, 3, 0, 2]})],
    "Unsqueeze": [Case((X,), {"axes": [0, 3]})],
    "Upsample": [
        Case((IMAGE,), {"height_scale": 2.0, "width_scale": 3.0}, new_attributes={"scales": [1.0, 1.0, 2.0, 3.0]}),
        Case((IMAGE,), {"height_scale": 2.0, "width_scale": 2.0, "mode": "bilinear"},
             new_attributes={"scales": [1.0, 1.0, 2.0, 2.0], "mode": "linear"}),
    ],
}  # fmt: skip


def old_schemas() -> list[Any]:
    found = (s for s in onnx.defs.get_all_schemas_with_history() if s.domain == "" and s.since_version < 7)
    return sorted(found, key=lambda s: (s.name, s.since_version))


def cases() -> Iterator[Any]:
    for schema in old_schemas():
        for i, case in enumerate(CASES[schema.name]):
            if not case.versions or schema.since_version in case.versions:
                yield pytest.param(schema, case, id=f"{schema.name}-{schema.since_version}-{i}")


def test_every_operator_that_onnx_lists_has_a_case() -> None:
    assert {schema.name for schema in old_schemas()} == CASES.keys()
    ids = [one.id.rsplit("-", 1)[0] for one in cases()]
    random = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
    assert {f"{s.name}-{s.since_version}" for s in old_schemas() if s.name not in random} == set(ids)


def model_of(op: str, case: Case, opset: int, inputs: tuple[np.ndarray, ...], attributes: dict[str, Any]) -> Any:
    constants = {f"x{i}" for i in case.constants} | ({"x1"} if op in ("Reshape", "Tile") else set())
    named = {f"x{i}": array for i, array in enumerate(inputs)}
    takes = ["x1"] if op == "If" else list(named)
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(op, takes, outputs, **attributes)
    feeds = {name: np.asarray(array) for name, array in named.items() if name not in constants}
    weights = {name: array for name, array in named.items() if name in constants}
    return build([node], [value(n, a) for n, a in feeds.items()], outputs, weights, opset), feeds


@pytest.mark.parametrize(("schema", "case"), list(cases()))
def test_as_in_opset_7(schema: Any, case: Case) -> None:
    attributes = dict(case.attributes)
    if "consumed_inputs" in schema.attributes:
        attributes.setdefault("consumed_inputs", [0])
    found = run(*model_of(schema.name, case, schema.since_version, case.inputs, attributes))
    if case.result is not None:
        check_same(found, [case.result()])
        return
    inputs = case.inputs if case.new_inputs is None else case.new_inputs
    attributes = case.attributes if case.new_attributes is None else case.new_attributes
    check_same(found, onnx_runtime(*model_of(schema.name, case, 7, inputs, attributes)))


@pytest.mark.parametrize("op", ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"])
def test_random_numbers(op: str) -> None:
    inputs, how = ((X,), {}) if op.endswith("Like") else ((), {"shape": X.shape})
    model, feeds = model_of(op, Case(inputs), 1, inputs, {"seed": 3.0, **how})
    (found,), (again,) = run(model, feeds), run(model, feeds)
    assert (found.shape, found.dtype) == (X.shape, X.dtype) and len(np.unique(found)) > 100
    np.testing.assert_array_equal(found, again)


def test_operands_with_open_dimensions_inside_a_branch_of_a_function() -> None:
    """Where onnx's own conversion of versions does not go."""
    inner = [helper.make_node("Add", ["a", "b"], ["s"], broadcast=1, axis=1)]
    branches = [helper.make_graph(inner[:n], "b", [], [onnx.ValueInfoProto(name="s" if n else "a")]) for n in (1, 0)]
    body = [helper.make_node("If", ["go"], ["y"], then_branch=branches[0], else_branch=branches[1])]
    function = helper.make_function("old", "Biased", ["a", "b", "go"], ["y"], body, [helper.make_opsetid("", 6)])
    call = helper.make_node("Biased", ["x", "b", "go"], ["y"], domain="old")
    inputs = [value("x", ("n", 3, None, 2)), value("b", ("c",)), value("go", (), "bool")]
    session = minitvm.InferenceSession(build([call], inputs, ["y"], functions=[function]))
    for rows, height in ((2, 4), (1, 1), (0, 3)):
        x, b = floats(rows, 3, height, 2), floats(3)
        for go in (True, False):
            (found,) = session.run(None, {"x": x, "b": b, "go": np.array(go)})
            np.testing.assert_array_equal(found, x + b.reshape(3, 1, 1) if go else x)


def test_operands_that_do_not_fit() -> None:
    model = one_node("Add", X, Y[0], opset=6, broadcast=1, axis=2)
    assert error_of(TypeInferenceError, model) == (
        "Add: Tensor[(3, 4, 5), float32] is broadcast from axis 2 of Tensor[(2, 3, 4, 5), float32], "
        'which it is longer than\n  | ONNX node "the_node" (Add)'
    )
    assert error_of(FrontendError, one_node("Cast", X, opset=1, to="REAL")).startswith(
        "Cast: attribute to='REAL' is not supported"
    )
