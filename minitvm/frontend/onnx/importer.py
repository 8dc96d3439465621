"""``from_onnx``: from an ONNX model to a module of graph IR and its parameters.

Every ONNX value is an expression.  Weights are variables with an array beside them; whatever follows from
constants alone (shapes above all) is computed on the way, so most models arrive with static types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from minitvm.errors import FrontendError, InputError, MiniTVMError, UnknownValueError, blame, is_own
from minitvm.frontend.onnx.check import (
    check_against_schema,
    check_dtypes,
    check_model,
    check_names,
    check_results,
    check_supported,
    opsets_of,
    ordered_nodes,
)
from minitvm.frontend.onnx.foreign import foreign, is_foreign
from minitvm.frontend.onnx.functions import definition_of, has_definition
from minitvm.frontend.onnx.inputs import input_variable
from minitvm.frontend.onnx.model import (
    LoadedModel,
    ModelDescription,
    ModelSource,
    array_of,
    check_weights,
    dense_array,
    describe_model,
    describe_value,
    inner_graphs,
    load_model,
)
from minitvm.frontend.onnx.node import OnnxNode, label_of, normal_domain, place_of
from minitvm.frontend.onnx.registry import Builder, Outputs, builder_for
from minitvm.frontend.onnx.sequence import is_for_python
from minitvm.frontend.onnx.settled import tell_settled
from minitvm.frontend.onnx.stored import with_float32
from minitvm.frontend.onnx.tensor import text
from minitvm.ir.dims import SymbolicDim
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, Var, span_scope
from minitvm.ir.ops.tensor import ShapeOf
from minitvm.ir.types import type_of
from minitvm.ir.visitor import children, post_order

CONSTANT_LIMIT = 1024
"""Integer weights up to this many elements are constants at once: shapes, axes, indices, zero points."""

_OF_MALFORMED = (ValueError, IndexError, KeyError, TypeError, ArithmeticError, AttributeError, MemoryError)
"""What a malformed node makes numpy or Python say."""

Shapes = Mapping[str, Sequence["int | str | None"]]


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
        does a name of its own where symbols are counted on (``ir.dims.assumptions``).
        Naming a weight turns it into an input.
    dtype_dict:
        dtypes of inputs, where they differ from the model's.
    freeze_params:
        True puts the weights into the module as constants.
    value_dict:
        Values of inputs that are known, such as the sizes of a Resize; they are constants, and no inputs of ``main``.

    Returns
    -------
    The module, whose ``main`` takes the inputs and then the weights, both under their ONNX names, and the weights
    by name.  Several outputs are a tuple.

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


def describe_importable(model: ModelSource) -> ModelDescription:
    """As :func:`describe_onnx`; raises, too, what :func:`from_onnx` raises of all but shapes and values: operators and
    their sets, types, attributes, names of values, weights and the files that they are in."""
    loaded = load_model(model)
    importer = _checked(loaded)
    graph = loaded.proto.graph
    ordered_nodes(graph)
    for part in (graph, *inner_graphs(graph)):
        check_weights(part, loaded.files)
        for node in part.node:
            check_against_schema(node, importer.opset_of(node))
    return describe_model(loaded.proto)


def _checked(loaded: LoadedModel, freeze: bool = False) -> Importer:
    """What imports a model that has nothing but what minitvm has."""
    check_names(loaded.proto.graph)
    importer = Importer(loaded, opsets_of(loaded.proto), freeze)
    check_model(loaded.proto, importer.opsets, importer.supports)
    return importer


def _dictionary(option: str, given: Any) -> dict[str, Any]:
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    raise InputError(
        f"{option} is a {type(given).__name__}, not a dictionary", hint=f"{option}={{name of an input: ...}}"
    )


class Scope:
    """The values of one graph by name.  In the body of a function (a branch, a loop), values from outside
    become its parameters: ``captured`` maps each to its variable."""

    def __init__(self, parent: Scope | None = None, is_function: bool = False) -> None:
        self.values: dict[str, Expr] = {}
        self.parent = parent
        self.is_function = is_function
        self.captured: dict[Expr, Var] = {}

    def lookup(self, name: str, known: dict[Expr, np.ndarray]) -> Expr | None:
        if name in self.values or self.parent is None:
            return self.values.get(name)
        outer = self.parent.lookup(name, known)
        if outer is None or isinstance(outer, Constant) or not self.is_function:
            return outer
        if outer not in self.captured:
            inner = self.captured[outer] = Var(name, outer.type)
            if outer in known:
                known[inner] = known[outer]
        return self.captured[outer]

    def outside(self) -> dict[Expr, Expr]:
        """What the variables of this body and of those around it stand for."""
        around = self.parent.outside() if self.parent else {}
        return around | {inner: outer for outer, inner in self.captured.items()}

    def names(self) -> set[str]:
        return set(self.values) | (self.parent.names() if self.parent else set())


class Importer:
    """The state of one import: weights found so far, and the arrays of variables that are weights."""

    def __init__(self, model: LoadedModel, opsets: dict[str, int], freeze: bool) -> None:
        self.proto = model.proto
        self.files = model.files
        self.written_for = model.written_for
        self.opsets = opsets
        self.freeze = freeze
        self.known: dict[Expr, np.ndarray] = {}
        self.weights: list[Var] = []
        self.inputs: list[Var] = []

    def supports(self, node: onnx.NodeProto, opset: int | None = None) -> bool:
        version = self.opset_of(node) if opset is None else opset
        return self._builder(node, version) is not None

    def _builder(self, node: onnx.NodeProto, opset: int) -> Builder | None:
        """A builder, else ONNX's definition by other operators, else its evaluator; ``None`` where nobody knows it."""
        domain = normal_domain(node.domain)
        known = builder_for(domain, node.op_type, opset)
        if known is not None:
            return known
        if has_definition(node, opset, self.supports):
            return self._by_definition
        return foreign if is_foreign(node, domain, opset) else None

    def opset_of(self, node: onnx.NodeProto) -> int:
        domain = normal_domain(node.domain)
        return self.opsets.get(domain, 1 if domain else onnx.defs.onnx_opset_version())

    def run(
        self, shapes: dict[str, Sequence[int | str | None]], dtypes: dict[str, str], values: dict[str, Any]
    ) -> tuple[Module, dict[str, Any]]:
        graph = self.proto.graph
        scope = Scope()
        given = {name: np.asarray(value) for name, value in values.items()}
        inputs = self._inputs(shapes, dtypes, given)
        self.inputs = [v for v in inputs if v.name not in given]
        scope.values.update({v.name: _given(v, given[v.name]) if v.name in given else v for v in inputs})
        outputs = self.import_graph(graph, scope, is_main=True)
        body = outputs[0] if len(outputs) == 1 else Tuple(outputs)
        if not dtypes:
            check_results(graph.output, outputs)
        tell_settled(graph.node, scope.values, body)
        used = set(post_order(body))
        weights = [w for w in self.weights if w in used]
        params = {w.name: self.known[w] for w in weights}
        return Module(Function([*self.inputs, *weights], body)), params

    def inputs_behind(self, expr: Expr, scope: Scope) -> tuple[str, ...]:
        """The inputs on whose values an expression in ``scope`` depends, besides weights.

        None where something else decides, too: what a loop carries, the size of an open dimension.
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
        return tuple(v.name for v in self.inputs if v in seen)

    def import_graph(self, graph: onnx.GraphProto, scope: Scope, is_main: bool = False) -> list[Expr]:
        """Imports the weights and nodes of a graph into ``scope``; its outputs in order."""
        for tensor in graph.initializer:
            if tensor.name not in scope.values:
                array = array_of(tensor, self.files)
                scope.values[tensor.name] = self._literal(tensor.name, array, is_main)
        for sparse in graph.sparse_initializer:
            array = dense_array(sparse, self.files)
            scope.values[sparse.values.name] = self._literal(sparse.values.name, array, is_main)
        for node in ordered_nodes(graph, scope.names()):
            self._import_node(node, scope, is_main)
        return [self._value(output.name, scope) for output in graph.output]

    def inline(self, graph: onnx.GraphProto, scope: Scope) -> list[Expr]:
        """The outputs of a branch that is taken for certain."""
        return self.import_graph(graph, Scope(scope))

    def function(self, graph: onnx.GraphProto, scope: Scope, inputs: Sequence[Expr]) -> tuple[Expr, dict[Expr, Var]]:
        """The body of a branch or loop for its ``inputs``, and the variables for values from outside."""
        inner = Scope(scope, is_function=True)
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

    def _import_node(self, node: onnx.NodeProto, scope: Scope, is_main: bool, label: str | None = None) -> None:
        inputs = [self._value(name, scope) if name else None for name in node.input]
        opset = self.opset_of(node)
        check_against_schema(node, opset)
        view = OnnxNode(node, inputs, opset, self.known, (self, scope))
        check_dtypes(view)
        with span_scope((label or label_of(node),)):
            outputs = self.build(view)
        if node.op_type == "Constant" and isinstance(outputs[0], Constant):
            outputs = [self._literal(node.output[0], outputs[0].value, is_main)]
        for name, value in zip(node.output, outputs, strict=False):
            if name and value is not None:
                scope.values[name] = value

    def build(self, node: OnnxNode) -> list[Expr | None]:
        """Runs the node's builder, which may be a user's; errors name the node."""
        builder = self._builder(node.proto, node.opset)
        assert builder is not None, node.op_type  # check_supported comes first
        if is_for_python(node) and _known_to_onnx(node):
            builder = foreign
        try:
            return with_float32(node, lambda: _as_list(_made(builder, node), node))
        except MiniTVMError as error:
            if not any("ONNX node" in line for line in error.where):
                error.where = (*error.where, place_of(node.proto))
            raise
        except Exception as error:
            if not is_own(builder) or not isinstance(error, _OF_MALFORMED):
                blame(error, builder, f"ONNX builder of {node.op_type}", lambda: [place_of(node.proto)])
            raise node.fail(f"malformed: {error}", "check the model with onnx.checker.check_model") from error

    def _by_definition(self, node: OnnxNode) -> list[Expr | None]:
        """The operator as ONNX defines it by others: the definition's nodes, imported in a scope of their own."""
        body = definition_of(node)
        scope = Scope()
        scope.values.update({n: v for n, v in zip(body.input, node.inputs, strict=False) if v is not None})
        imports = {normal_domain(o.domain): int(o.version) for o in body.opset_import}
        outer, self.opsets = self.opsets, {**self.opsets, **imports}
        absent = set(body.input) - set(scope.values)
        try:
            check_supported(body, self.supports)
            for inner in body.node:
                inner.input[:] = ["" if name in absent else name for name in inner.input]
                self._import_node(inner, scope, is_main=False, label=label_of(node.proto))
        finally:
            self.opsets = outer
        return [scope.values.get(name) for name in body.output]

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
        return [input_variable(describe_value(v), shapes.get(v.name), dtypes.get(v.name)) for v in given]


def _made(builder: Builder, node: OnnxNode) -> Outputs:
    try:
        return builder(node)
    except UnknownValueError as error:
        if error.inputs or not _known_to_onnx(node):
            raise
        return foreign(node)  # what decides its shape comes up inside the model


def _known_to_onnx(node: OnnxNode) -> bool:
    """Asked only where it matters: onnx's evaluator is hundreds of modules."""
    return is_foreign(node.proto, normal_domain(node.proto.domain), node.opset)


def _given(variable: Var, array: np.ndarray) -> Constant:
    """The constant that stands for an input whose value is given."""
    if str(array.dtype) != variable.dtype:
        raise InputError(
            f"value_dict gives input {variable.name!r} an array of {array.dtype}; the model takes {variable.dtype}"
        )
    return Constant(array, variable.name)


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
