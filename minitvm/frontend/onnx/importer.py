"""``from_onnx``: from an ONNX model to a module of graph IR and its parameters.

Every ONNX value is an expression.  Weights are variables with an array beside them; whatever follows from
constants alone (shapes above all) is computed on the way, so most models arrive with static types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from minitvm.errors import FrontendError, InputError, MiniTVMError, blame, is_own, stage
from minitvm.frontend.description import ModelDescription
from minitvm.frontend.held import LoadedModel, ModelSource
from minitvm.frontend.onnx.check import (
    check_against_schema,
    check_dtypes,
    check_model,
    check_names,
    check_results,
    opset_of,
    opsets_of,
    ordered_nodes,
)
from minitvm.frontend.onnx.elsewhere import (
    OLDEST_OPSET,
    built,
    foreign,
    functions_of,
    is_for_python,
    is_foreign,
    is_old,
    known_to_onnx,
    modern,
)
from minitvm.frontend.onnx.inputs import input_variable
from minitvm.frontend.onnx.model import (
    array_of,
    check_weights,
    dense_array,
    describe_model,
    describe_value,
    inner_graphs,
    load_model,
)
from minitvm.frontend.onnx.node import OnnxNode, normal_domain, place_of
from minitvm.frontend.onnx.registry import Builder, Outputs, builder_for
from minitvm.frontend.onnx.scope import Scope
from minitvm.frontend.onnx.settled import tell_settled
from minitvm.frontend.onnx.stored import with_float32
from minitvm.frontend.onnx.tensor import text
from minitvm.ir.budget import compiling
from minitvm.ir.dims import SymbolicDim, measured
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, Var, span_scope
from minitvm.ir.ops.tensor import ShapeOf
from minitvm.ir.types import TensorType, type_of
from minitvm.ir.visitor import children, post_order

CONSTANT_LIMIT = 1024
"""Integer weights up to this many elements are constants at once: shapes, axes, indices, zero points."""

_OF_MALFORMED = (ValueError, IndexError, KeyError, TypeError, ArithmeticError, AttributeError, MemoryError)
"""What a malformed node makes numpy or Python say."""

Shapes = Mapping[str, Sequence["int | str | None"]]


@stage("importing the model")
@compiling()
def from_onnx(
    model: ModelSource,
    shape_dict: Shapes | None = None,
    dtype_dict: Mapping[str, str] | None = None,
    freeze_params: bool = False,
    value_dict: Mapping[str, Any] | None = None,
) -> tuple[Module, dict[str, np.ndarray]]:
    """Imports an ONNX model.

    Parameters
    ----------
    model:
        A path, the bytes of a file, or an ``onnx.ModelProto``.
    shape_dict:
        Shapes of inputs; needed where the model leaves dimensions open.  ``None`` as a dimension keeps it open, and so
        does a name of its own where symbols are counted on (``ir.dims.assumptions``).  A weight becomes an input.
    dtype_dict:
        dtypes of inputs, where they differ from the model's.
    freeze_params:
        True puts the weights into the module as constants.
    value_dict:
        Values of inputs that are known, such as the sizes of a Resize; they are constants, and no inputs of ``main``.

    Returns
    -------
    The module, whose ``main`` takes inputs, then weights, by their ONNX names; the weights.  Several outputs: a tuple.

    Raises
    ------
    FrontendError
        for what is no ONNX model or cannot be imported; :class:`UnsupportedOperatorError` lists all unknown operators.
    InputError
        where ``shape_dict``, ``dtype_dict`` or ``value_dict`` do not fit the model.
    UnknownValueError
        where what must be known while importing (a shape, axes) is computed when the model runs; names the inputs
        that it follows from.
    """
    shapes, dtypes = _dictionary("shape_dict", shape_dict), _dictionary("dtype_dict", dtype_dict)
    values = _dictionary("value_dict", value_dict)
    return _checked(load_model(model), freeze_params).run(shapes, dtypes, values)


@stage("opening the model")
def describe_importable(model: ModelSource) -> ModelDescription:
    """Describes as :func:`describe_onnx` does, and raises what :func:`from_onnx` raises of all but shapes and values:
    operators and their sets, types, attributes, names of values, weights and the files that they are in."""
    loaded = load_model(model)
    importer = _checked(loaded)
    for graph, opsets in importer.graphs():
        ordered_nodes(graph)
        for part in (graph, *inner_graphs(graph)):
            check_weights(part, loaded.files)
            for node in part.node:
                check_against_schema(node, opset_of(node, opsets))
    return describe_model(loaded.proto)


def _checked(loaded: LoadedModel, freeze: bool = False) -> Importer:
    """What imports a model that has nothing but what minitvm has."""
    for graph in (loaded.proto.graph, *loaded.proto.functions):
        check_names(graph)
    importer = Importer(loaded, freeze)
    check_model(importer.graphs(), importer.supports)
    return importer


def _dictionary(option: str, given: Any) -> dict[str, Any]:
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    raise InputError(
        f"{option} is a {type(given).__name__}, not a dictionary", hint=f"{option}={{name of an input: ...}}"
    )


class Importer:
    """The state of one import: weights found so far, and the arrays of variables that are weights."""

    def __init__(self, model: LoadedModel, freeze: bool) -> None:
        self.proto = model.proto
        self.files = model.files
        self.freeze = freeze
        self.known: dict[Expr, np.ndarray] = {}
        self.weights: list[Var] = []
        self.inputs: list[Var] = []
        self.sizes: dict[Any, Any] = {}
        """What the names of inputs' dimensions stand for."""
        self.functions = functions_of(model.proto)

    def graphs(self) -> list[tuple[onnx.GraphProto, Mapping[str, int]]]:
        """The model's graph and its functions, each with the operator sets that it imports."""
        return [(self.proto.graph, opsets_of(self.proto)), *self.functions.graphs()]

    def supports(self, node: onnx.NodeProto, opset: int) -> bool:
        return self._builder(node, opset) is not None

    def _builder(self, node: onnx.NodeProto, opset: int) -> Builder | None:
        """A builder, else the model's own function, else ONNX's definition by other operators, else its evaluator;
        ``None`` where nobody knows it."""
        domain = normal_domain(node.domain)
        opset = opset if domain else max(opset, OLDEST_OPSET)
        known, own = builder_for(domain, node.op_type, opset), self.functions.own(node, opset)
        if own is not None and (known is None or not domain):
            return own
        found = known or self.functions.defined(node, opset, self.supports)
        return found or (foreign if is_foreign(node, domain, opset) else None)

    def run(
        self, shapes: dict[str, Sequence[int | str | None]], dtypes: dict[str, str], values: dict[str, Any]
    ) -> tuple[Module, dict[str, Any]]:
        graph = self.proto.graph
        scope = Scope(opsets=opsets_of(self.proto))
        given = {name: np.asarray(value) for name, value in values.items()}
        inputs = self._inputs(shapes, dtypes, given)
        self.inputs = [v for v in inputs if v.name not in given]
        scope.values.update({v.name: _given(v, given[v.name]) if v.name in given else v for v in inputs})
        outputs = self.import_graph(graph, scope, is_main=True)
        body = outputs[0] if len(outputs) == 1 else Tuple(outputs)
        if not dtypes:
            check_results(graph.output, outputs)
        tell_settled(graph.node, scope.values, body)
        used = set(post_order(body, *measured().values()))
        weights = [w for w in self.weights if w in used]
        params = {w.name: self.known[w] for w in weights}
        return Module(Function([*self.inputs, *weights], body)), params

    def inputs_behind(self, expr: Expr, scope: Scope) -> tuple[str, ...]:
        """The inputs on whose values an expression in ``scope`` depends, besides weights.

        None where something else decides, too: what a loop carries, the size of an open dimension; and where they are
        data of which it is computed, floats or of several dimensions, other ones in every run.
        """
        outside = scope.outside()
        stack, seen = [expr], set(self.known)
        while stack:
            node = stack.pop()
            node = outside.get(node, node)
            if node in seen:
                continue
            seen.add(node)
            if _is_open_shape(node) or (isinstance(node, Var) and node not in self.inputs):
                return ()
            stack += children(node)
        found = [v for v in self.inputs if v in seen]
        return tuple(v.name for v in found) if expr in found or all(map(_is_setting, found)) else ()

    def import_graph(self, graph: onnx.GraphProto, scope: Scope, is_main: bool = False) -> list[Expr]:
        """Imports the weights and nodes of a graph into ``scope``; its outputs in order."""
        self.import_nodes(graph, scope, is_main)
        return [self._value(output.name, scope) for output in graph.output]

    def import_nodes(self, graph: onnx.GraphProto, scope: Scope, is_main: bool = False) -> None:
        """Imports the weights and nodes of a graph into ``scope``."""
        for tensor in graph.initializer:
            if tensor.name not in scope.values:
                array = array_of(tensor, self.files)
                scope.values[tensor.name] = self._literal(tensor.name, array, is_main)
        for sparse in graph.sparse_initializer:
            array = dense_array(sparse, self.files)
            scope.values[sparse.values.name] = self._literal(sparse.values.name, array, is_main)
        for node in ordered_nodes(graph, scope.names()):
            self._import_node(node, scope, is_main)

    def inline(self, graph: onnx.GraphProto, scope: Scope) -> list[Expr]:
        """The outputs of a branch that is taken for certain."""
        return self.import_graph(graph, Scope(scope))

    def function(self, graph: onnx.GraphProto, scope: Scope, inputs: Sequence[Expr]) -> tuple[Expr, dict[Expr, Var]]:
        """The body of a branch or loop for its ``inputs``, and the variables for values from outside."""
        inner = Scope(scope, is_body=True)
        inner.values.update({value.name: given for value, given in zip(graph.input, inputs, strict=False)})
        outputs = self.import_graph(graph, inner)
        body = outputs[0] if len(outputs) == 1 else Tuple(outputs)
        return body, inner.captured

    def _value(self, name: str, scope: Scope) -> Expr:
        found = scope.lookup(name, self.known)
        if found is None:
            raise FrontendError(f"value {name!r} is an output that its operator does not produce in minitvm")
        return found

    def _literal(self, name: str, array: np.ndarray, is_main: bool) -> Expr:
        """A weight as a variable of ``main``, or a constant: scalars, small integers, and weights of branches."""
        if array.dtype == object:
            return text(array)
        small = array.ndim == 0 or (array.dtype.kind != "f" and array.size <= CONSTANT_LIMIT)
        if self.freeze or small or not is_main:
            return Constant(array, name)
        variable = Var(name, type_of(array))
        self.known[variable] = array
        self.weights.append(variable)
        return variable

    def _import_node(self, node: onnx.NodeProto, scope: Scope, is_main: bool) -> None:
        inputs = [None if not name or scope.lacks(name) else self._value(name, scope) for name in node.input]
        opset = opset_of(node, scope.opsets)
        check_against_schema(node, opset)
        view = OnnxNode(node, inputs, opset, self.known, (self, scope))
        check_dtypes(view)
        with span_scope((scope.label_of(node),)):
            outputs = self.build(view)
        if node.op_type == "Constant" and isinstance(outputs[0], Constant):
            outputs = [self._literal(node.output[0], outputs[0].value, is_main)]
        for name, value in zip(node.output, outputs, strict=False):
            if name and value is not None:
                scope.values[name] = value

    def build(self, node: OnnxNode) -> list[Expr | None]:
        """Runs the node's builder, which may be a user's; errors name the node."""
        node = modern(node) if is_old(node) else node
        builder = self._builder(node.proto, node.opset)
        assert builder is not None, node.op_type  # check_supported comes first
        if is_for_python(node) and known_to_onnx(node):
            builder = foreign
        try:
            return with_float32(node, lambda: _as_list(built(builder, node), node))
        except MiniTVMError as error:
            if not any("ONNX node" in line for line in error.where):
                error.where = (*error.where, place_of(node.proto))
            raise
        except Exception as error:
            if not is_own(builder) or not isinstance(error, _OF_MALFORMED):
                blame(error, builder, f"ONNX builder of {node.op_type}", lambda: [place_of(node.proto)])
            raise node.fail(f"malformed: {error}", "check the model with onnx.checker.check_model") from error

    def _inputs(
        self, shapes: dict[str, Sequence[int | str | None]], dtypes: dict[str, str], values: dict[str, np.ndarray]
    ) -> list[Var]:
        graph = self.proto.graph
        shapes = {**shapes, **{name: array.shape for name, array in values.items()}}
        weights = {t.name for t in graph.initializer}
        given = [v for v in graph.input if v.name not in weights or v.name in shapes]
        names = [v.name for v in given]
        for option, entries in (("value_dict", values), ("shape_dict", shapes), ("dtype_dict", dtypes)):
            for name in entries:
                if name not in names:
                    raise InputError(
                        f"{option} names {name!r}, which is no input of the model",
                        hint=f"inputs: {', '.join(names) or 'none'}",
                    )
        described = [describe_value(v) for v in given]
        found = [input_variable(value, shapes.get(value.name), dtypes.get(value.name)) for value in described]
        tensors = [(v.shape, x.tensor_type.shape) for v, x in zip(described, found, strict=True) if v.held is None]
        self.sizes = {name: size for names, sizes in tensors for name, size in zip(names, sizes, strict=False)}
        return found


def _given(variable: Var, array: np.ndarray) -> Constant:
    """The constant that stands for an input whose value is given."""
    if str(array.dtype) != variable.dtype:
        raise InputError(
            f"value_dict gives input {variable.name!r} an array of {array.dtype}; the model takes {variable.dtype}"
        )
    return Constant(array, variable.name)


def _is_setting(variable: Var) -> bool:
    """True if an input is as shapes, axes and sizes are, rather than data."""
    type_ = variable.type
    return isinstance(type_, TensorType) and type_.rank < 2 and not type_.is_float


def _is_open_shape(node: Expr) -> bool:
    """The shape of what has dimensions that only the shapes of inputs decide."""
    if not isinstance(node, Call) or not isinstance(node.op, ShapeOf):
        return False
    return any(isinstance(d, SymbolicDim) and not d.is_anonymous for d in node.args[0].tensor_type.shape)


def _as_list(outputs: Outputs, node: OnnxNode) -> list[Expr | None]:
    if isinstance(outputs, Expr):
        return [outputs]
    if not isinstance(outputs, Sequence) or not all(v is None or isinstance(v, Expr) for v in outputs):
        hint = "return an expression, or a list with one for each output (None: not there)"
        raise node.fail(f"its builder returned {'None' if outputs is None else f'a {type(outputs).__name__}'}", hint)
    return list(outputs)
