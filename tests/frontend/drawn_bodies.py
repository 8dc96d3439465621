"""Models drawn at random of functions, branches, loops and old operator sets, and what numpy makes of them.

A program is a list of steps over values, which have numbers; :func:`results` runs it, :class:`Writer` writes it as ONNX
of any opset.  All tensors are float32 of (2, 3), but for conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = (2, 3)
DECLARED: Sequence[Sequence[int | str | None] | None] = (SHAPE, SHAPE, ("rows", 3), (2, None), ("a", "b"), None)
"""What a model may say of such a shape."""
OPSETS = (1, 3, 5, 6, 6, 7, 9, 11, 13, 17, 21)
Env = dict[int, Any]

UNARY: dict[str, Any] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Identity": lambda x: x,
    "LeakyRelu": lambda x, alpha: np.where(x < 0, x * np.float32(alpha), x),
    "Elu": lambda x, alpha: np.where(x < 0, np.float32(alpha) * np.expm1(x), x),
    "HardSigmoid": lambda x, alpha: np.clip(np.float32(alpha) * x + np.float32(0.5), 0, 1),
}
DEFAULTS = {"LeakyRelu": 0.01, "Elu": 1.0, "HardSigmoid": 0.2}
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


@dataclass
class Body:
    """A graph inside: values that it is given, its own constants, what it gives."""

    inputs: list[int]
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    constants: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass
class Step:
    """``alpha``: a number, the name of the function's attribute, or left out."""

    kind: str
    inputs: list[int | None]
    outputs: list[int | None]
    alpha: float | str | None = None
    vector: np.ndarray | None = None
    axis: int = 0
    bodies: list[Body] = field(default_factory=list)
    function: Function | None = None
    given: dict[str, float | str] = field(default_factory=dict)
    trips: int | None = None


@dataclass
class Function:
    """``attributes``: with their defaults, or without."""

    name: str
    overload: str
    body: Body
    attributes: dict[str, float | None]
    opset: int


@dataclass
class Drawn:
    main: Body
    functions: list[Function]
    opset: int
    defaults: dict[int, np.ndarray]
    """Inputs that are initializers as well."""


# --- what numpy makes of it -------------------------------------------------------------------------------------------


def results(body: Body, env: Env, attributes: dict[str, float | None] | None = None) -> list[Any]:
    env = {**env, **body.constants}
    for step in body.steps:
        found = _step(step, env, attributes or {})
        env |= {name: value for name, value in zip(step.outputs, found, strict=False) if name is not None}
    return [env.get(name) for name in body.outputs]


def _step(step: Step, env: Env, attributes: dict[str, float | None]) -> list[Any]:
    given = [None if name is None else env.get(name) for name in step.inputs]
    if step.kind in DEFAULTS:
        alpha = attributes.get(step.alpha) if isinstance(step.alpha, str) else step.alpha
        return [UNARY[step.kind](given[0], DEFAULTS[step.kind] if alpha is None else alpha).astype("float32")]
    if step.kind in UNARY:
        return [UNARY[step.kind](given[0])]
    if step.kind in BINARY:
        other = given[1] if step.vector is None else step.vector.reshape(-1, *[1] * (1 - step.axis))
        return [BINARY[step.kind](given[0], other)]
    if step.kind == "Positive":
        return [given[0].max() > np.float32(0.1234)]
    if step.kind == "If":
        return results(step.bodies[0 if given[0] else 1], env, attributes)
    if step.kind == "Call":
        assert step.function is not None
        known = {n: attributes.get(v) if isinstance(v, str) else v for n, v in step.given.items()}
        inside = {n: v for n, v in known.items() if v is not None}
        names = zip(step.function.body.inputs, [*given, *[None] * len(step.function.body.inputs)], strict=False)
        own = {name: value for name, value in names if value is not None}
        return results(step.function.body, own, {**step.function.attributes, **inside})
    if step.kind == "Offset":
        return [given[0] if given[1] is None else given[0] + given[1]]
    return _loop(step, given, env, attributes)


def _loop(step: Step, given: list[Any], env: Env, attributes: dict[str, float | None]) -> list[Any]:
    (body,), rows = step.bodies, []
    is_scan = step.kind == "Scan"
    states, going, at = given[: -1 if is_scan else None], True, 0
    while going and at < (len(given[-1]) if is_scan else step.trips):
        more = [np.tile(given[-1][at], (2, 1))] if is_scan else [np.array(at), np.array(True)]
        inside = dict(zip(body.inputs, [*states, *more] if is_scan else [*more, *states], strict=True))
        found = results(body, {**env, **inside}, attributes)
        going, found = (True, found) if is_scan else (bool(found[0]), found[1:])
        states, at = found[: len(states)], at + 1
        rows.append(found[len(states) :])
    return [*states, *(np.stack(column).sum(0) for column in zip(*rows, strict=True))]


# --- drawing ----------------------------------------------------------------------------------------------------------


class Drawer:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.last = 0
        self.functions: list[Function] = []
        self.maybe: list[int] = []
        """Inputs of the function that is drawn which a call may leave out."""
        self.opset = 0

    def fresh(self) -> int:
        self.last += 1
        return self.last

    def one(self, found: Sequence[Any]) -> Any:
        return found[int(self.rng.integers(len(found)))]

    def chance(self, of: float) -> bool:
        return bool(self.rng.random() < of)

    def model(self) -> Drawn:
        for i in range(int(self.rng.integers(0, 4))):
            self.functions.append(self.function(i))
        opset = self.opset = int(self.one(OPSETS))
        inputs = [self.fresh() for _ in range(int(self.rng.integers(1, 4)))]
        main = self.body(inputs, [], 2, {})
        main.outputs += [self.one(main.outputs)] if self.chance(0.3) else []
        main.outputs += [self.one(inputs)] if self.chance(0.2) else []
        main.outputs += [self.one(list(main.constants))] if main.constants and self.chance(0.2) else []
        fed = {name: self.array() for name in inputs[1:] if self.chance(0.3)}
        return Drawn(main, self.functions, opset, fed)

    def array(self) -> np.ndarray:
        return self.rng.standard_normal(SHAPE).astype("float32")

    def function(self, number: int) -> Function:
        attributes = {f"alpha{i}": self.one([None, 0.25, 0.5]) for i in range(int(self.rng.integers(0, 3)))}
        inputs = [self.fresh() for _ in range(int(self.rng.integers(1, 4)))]
        self.opset, self.maybe = int(self.one(OPSETS)), inputs[1:]
        body = self.body(inputs[:1], [], 2, attributes)
        body.inputs, self.maybe = inputs, []
        is_overload = number > 0 and self.chance(0.3)
        name = self.functions[-1].name if is_overload else self.one(["F", "Relu", "G", "Identity"]) + str(number)
        return Function(name, f"o{number}" if is_overload else "", body, attributes, self.opset)

    def body(self, inputs: list[int], outer: list[int], depth: int, attributes: dict[str, Any]) -> Body:
        body, known = Body(list(inputs)), [*outer, *inputs]
        if self.chance(0.4):
            body.constants[self.fresh()] = self.array()
        known += body.constants
        for _ in range(int(self.rng.integers(1, 5))):
            step = self.step(known, depth, attributes)
            body.steps += step
            known += [name for name in step[-1].outputs if name is not None]
        fresh = [name for name in known if name not in outer] or known
        body.outputs = [self.one(fresh) for _ in range(int(self.rng.integers(1, 4)))]
        return body

    def step(self, known: list[int], depth: int, attributes: dict[str, Any]) -> list[Step]:
        kinds = ["unary", "alpha", "binary", "vector"]
        kinds += ["If", "Loop", *["Scan"] * (self.opset >= 9)] * bool(depth)
        kinds += ["Call"] * 3 * bool(self.functions) + ["Offset"] * 2 * bool(self.maybe)
        kind, x = self.one(kinds), self.one(known)
        if kind == "unary":
            return [Step(self.one([n for n in UNARY if n not in DEFAULTS]), [x], [self.fresh()])]
        if kind == "Offset":
            return [Step("Offset", [x, self.one(self.maybe)], [self.fresh()])]
        if kind == "alpha":
            alpha = self.one([None, 0.125, *attributes])
            return [Step(self.one(list(DEFAULTS)), [x], [self.fresh()], alpha)]
        if kind == "binary":
            return self.bounded(Step(self.one(list(BINARY)), [x, self.one(known)], [self.fresh()]))
        if kind == "vector":
            axis = int(self.rng.integers(2))
            vector = self.rng.standard_normal(SHAPE[axis]).astype("float32")
            return self.bounded(Step(self.one(list(BINARY)), [x], [self.fresh()], vector=vector, axis=axis))
        return {"If": self.branch, "Loop": self.loop, "Scan": self.scan, "Call": self.call}[kind](
            known, depth, attributes
        )

    def bounded(self, step: Step) -> list[Step]:
        return [step, Step("Tanh", list(step.outputs), [self.fresh()])] if self.chance(0.7) else [step]

    def branch(self, known: list[int], depth: int, attributes: dict[str, Any]) -> list[Step]:
        condition, bodies = self.fresh(), [self.body([], known, depth - 1, attributes) for _ in range(2)]
        count = min(len(body.outputs) for body in bodies)
        for body in bodies:
            del body.outputs[count:]
        test = Step("Positive", [self.one(known)], [condition])
        return [test, Step("If", [condition], [self.fresh() for _ in range(count)], bodies=bodies)]

    def loop(self, known: list[int], depth: int, attributes: dict[str, Any]) -> list[Step]:
        states = [self.one(known) for _ in range(int(self.rng.integers(1, 3)))]
        head, carried = [self.fresh(), self.fresh()], [self.fresh() for _ in states]
        body = self.body(carried, known, depth - 1, attributes)
        body.inputs = [*head, *carried]
        rest = [self.one(body.outputs) for _ in range(int(self.rng.integers(0, 3)))]
        going = head[1]
        if self.chance(0.3):
            going = self.fresh()
            body.steps.append(Step("Positive", [self.one(carried)], [going]))
        body.outputs = [going, *(self.one(body.outputs) for _ in states), *rest]
        return [Step("Loop", list(states), [self.fresh() for _ in (*states, *rest)], bodies=[body],
                     trips=int(self.rng.integers(1, 4)))]  # fmt: skip

    def scan(self, known: list[int], depth: int, attributes: dict[str, Any]) -> list[Step]:
        state, element = self.fresh(), self.fresh()
        body = self.body([state], known, depth - 1, attributes)
        body.inputs = [state, element]
        total = self.fresh()
        body.steps.append(Step("Add", [body.outputs[0], element], [total]))
        body.outputs = [total, *(self.one([total, *body.outputs]) for _ in range(int(self.rng.integers(0, 3))))]
        return [Step("Scan", [self.one(known), self.one(known)], [self.fresh() for _ in body.outputs], bodies=[body])]

    def call(self, known: list[int], depth: int, attributes: dict[str, Any]) -> list[Step]:
        function = self.one(self.functions)
        names: list[int | None] = [self.one(known)]
        sparing = function.opset >= 11 and self.chance(0.5)
        more = [*known, *self.maybe] if function.opset >= 11 else known
        names += [None if sparing and self.chance(0.5) else self.one(more) for _ in function.body.inputs[1:]]
        while names[-1] is None and self.chance(0.5):
            names.pop()
        given = {name: self.one([0.375, *attributes]) for name in function.attributes if self.chance(0.5)}
        outputs = [self.fresh() if i == 0 or self.chance(0.7) else None for i in range(len(function.body.outputs))]
        while outputs[-1] is None:
            outputs.pop()
        return [Step("Call", names, outputs, function=function, given=given)]


# --- as ONNX ----------------------------------------------------------------------------------------------------------


def read(body: Body) -> set[int]:
    """The values that a graph takes from outside."""
    taken = {n for step in body.steps for n in step.inputs if n is not None} | set(body.outputs)
    made = {*body.inputs, *body.constants, *(n for step in body.steps for n in step.outputs if n is not None)}
    return (taken | {n for step in body.steps for inner in step.bodies for n in read(inner)}) - made


class Writer:
    """One model's graph, or one function's; names are its own, and within graphs inside some hide others."""

    def __init__(self, opset: int, seed: int) -> None:
        self.opset, self.rng, self.count = opset, np.random.default_rng(seed), 0
        self.names: dict[int, str] = {}

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def name(self, value: int | None) -> str:
        if value is None:
            return ""
        if value not in self.names:
            self.names[value] = self.fresh()
        return self.names[value]

    def info(self, value: int, shape: Sequence[int] | None = SHAPE, kind: int = TensorProto.FLOAT) -> Any:
        if shape is None or self.rng.random() < 0.5:
            return onnx.ValueInfoProto(name=self.name(value))
        return helper.make_tensor_value_info(self.name(value), kind, shape)

    def constant(self, array: Any) -> tuple[str, onnx.NodeProto]:
        name = self.fresh()
        return name, helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array)))

    def graph(self, body: Body, scalars: Sequence[int] = ()) -> onnx.GraphProto:
        """A graph inside, some of whose inputs have the names of values outside that it does not read."""
        before, hidden = dict(self.names), [n for n in self.names if n not in read(body)]
        for value in body.inputs:
            if hidden and self.rng.random() < 0.3:
                self.names[value] = before[hidden.pop(int(self.rng.integers(len(hidden))))]
        inputs = [self.info(v, (), kind) for v, kind in zip(body.inputs, scalars, strict=False)]
        inputs += [self.info(v) for v in body.inputs[len(scalars) :]]
        weights = [numpy_helper.from_array(array, self.name(v)) for v, array in body.constants.items()]
        nodes = [node for step in body.steps for node in self.nodes(step)]
        found = helper.make_graph(nodes, "inside", inputs, [self.info(v, None) for v in body.outputs], weights)
        self.names = before
        return found

    def nodes(self, step: Step) -> list[onnx.NodeProto]:
        inputs, outputs = [self.name(v) for v in step.inputs], [self.name(v) for v in step.outputs]
        if step.kind in UNARY:
            node = helper.make_node(step.kind, inputs, outputs)
            if isinstance(step.alpha, str):
                node.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name=step.alpha)
            elif step.alpha is not None:
                node.attribute.append(helper.make_attribute("alpha", step.alpha))
            return [node]
        return list(getattr(self, f"_{step.kind.lower()}", self._binary)(step, inputs, outputs))

    def _binary(self, step: Step, inputs: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
        if step.vector is None:
            return [helper.make_node(step.kind, inputs, outputs)]
        is_old = self.opset < 7
        name, made = self.constant(step.vector if is_old else step.vector.reshape(-1, *[1] * (1 - step.axis)))
        how: dict[str, Any] = {"broadcast": 1} if is_old else {}
        how |= {"axis": step.axis} if is_old and (step.axis == 0 or self.rng.random() < 0.5) else {}
        return [made, helper.make_node(step.kind, [*inputs, name], outputs, **how)]

    def _offset(self, step: Step, inputs: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
        if self.opset < 11:
            return [helper.make_node("Add", inputs, outputs)]
        name, made = self.constant(np.eye(3, dtype="float32"))
        return [made, helper.make_node("Gemm", [inputs[0], name, inputs[1]], outputs)]

    def _positive(self, step: Step, inputs: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
        (name, made), most = self.constant(np.float32(0.1234)), self.fresh()
        reduce = helper.make_node("ReduceMax", inputs, [most], keepdims=0)
        return [made, reduce, helper.make_node("Greater", [most, name], outputs)]

    def _if(self, step: Step, inputs: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
        then, other = map(self.graph, step.bodies)
        return [helper.make_node("If", inputs, outputs, then_branch=then, else_branch=other)]

    def _loop(self, step: Step, inputs: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
        (body,), (trips, made) = step.bodies, self.constant(np.int64(step.trips))
        rows = [self.fresh() for _ in outputs[len(inputs) :]]
        graph = self.graph(body, (TensorProto.INT64, TensorProto.BOOL))
        node = helper.make_node("Loop", [trips, "", *inputs], [*outputs[: len(inputs)], *rows], body=graph)
        return [made, node, *self._summed(rows, outputs[len(inputs) :])]

    def _scan(self, step: Step, inputs: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
        rows, body = [self.fresh() for _ in outputs[1:]], step.bodies[0]
        graph = self.graph(body)
        for value in graph.input[1:]:
            value.ClearField("type")
        node = helper.make_node("Scan", inputs, [outputs[0], *rows], body=graph, num_scan_inputs=1)
        return [node, *self._summed(rows, outputs[1:])]

    def _summed(self, rows: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
        nodes = []
        for row, output in zip(rows, outputs, strict=True):
            if self.opset < 13:
                nodes.append(helper.make_node("ReduceSum", [row], [output], axes=[0], keepdims=0))
            else:
                axes, made = self.constant(np.array([0]))
                nodes += [made, helper.make_node("ReduceSum", [row, axes], [output], keepdims=0)]
        return nodes

    def _call(self, step: Step, inputs: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
        assert step.function is not None
        node = helper.make_node(step.function.name, inputs, outputs, domain="f", overload=step.function.overload)
        for name, value in step.given.items():
            if isinstance(value, str):
                node.attribute.add(name=name, type=onnx.AttributeProto.FLOAT, ref_attr_name=value)
            else:
                node.attribute.append(helper.make_attribute(name, value))
        return [node]


def model_of(drawn: Drawn, seed: int) -> onnx.ModelProto:
    """The model; its inputs ``v1``, ``v2``, ..., as they are among those of ``drawn.main``."""
    writer, main = Writer(drawn.opset, seed), drawn.main
    shapes = [DECLARED[int(writer.rng.integers(len(DECLARED)))] for _ in main.inputs]
    known = zip(main.inputs, shapes, strict=True)
    inputs = [helper.make_tensor_value_info(writer.name(v), TensorProto.FLOAT, shape) for v, shape in known]
    weights = [numpy_helper.from_array(a, writer.name(v)) for v, a in {**main.constants, **drawn.defaults}.items()]
    nodes = [node for step in main.steps for node in writer.nodes(step)]
    graph = helper.make_graph(nodes, "g", inputs, [writer.info(v, None) for v in main.outputs], weights)
    imports = [helper.make_opsetid("", drawn.opset), helper.make_opsetid("f", 1)]
    functions = [_written(function, seed) for function in drawn.functions]
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


def _written(function: Function, seed: int) -> onnx.FunctionProto:
    writer, body = Writer(function.opset, seed), function.body
    inputs = [writer.name(v) for v in body.inputs]
    constants = [helper.make_node("Constant", [], [writer.name(v)], value=numpy_helper.from_array(array))
                 for v, array in body.constants.items()]  # fmt: skip
    nodes = [*constants, *(node for step in body.steps for node in writer.nodes(step))]
    imports = [helper.make_opsetid("", function.opset), helper.make_opsetid("f", 1)]
    return helper.make_function(
        "f", function.name, inputs, [writer.name(v) for v in body.outputs], nodes, imports,
        attributes=[name for name, default in function.attributes.items() if default is None],
        attribute_protos=[helper.make_attribute(n, v) for n, v in function.attributes.items() if v is not None],
        overload=function.overload,
    )  # fmt: skip
