"""What a builder sees of an ONNX node, and ``emit``, which builds calls and folds those of constants at once."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx

from minitvm.errors import CompilerError, FrontendError, TypeInferenceError, UnknownValueError
from minitvm.frontend.files import Files
from minitvm.frontend.onnx.model import array_of
from minitvm.frontend.onnx.shape_values import measured_value, shape_value
from minitvm.frontend.onnx.types import dtype_name
from minitvm.ir.budget import COST, current, metered
from minitvm.ir.builder import call_op
from minitvm.ir.dims import SymbolicDim, are_counted_on, with_ones
from minitvm.ir.evaluate import evaluate, folded, unfoldable
from minitvm.ir.expr import Call, Constant, Expr, Function, Var
from minitvm.ir.op import OPS, Op
from minitvm.ir.ops.elemwise import Elementwise
from minitvm.ir.types import TupleType, UnknownSize, is_numeric, tensor_fields
from minitvm.ir.visitor import post_order, simplify_projection

FOLD_LIMIT = 1 << 16
"""Results with more elements stay calls, so that importing never materialises what a pass may avoid."""


def normal_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def place_of(node: onnx.NodeProto) -> str:
    """The name of a node in messages: ``ONNX node "conv1" (Conv)``; by its first output where it has no name."""
    if node.name:
        return f'ONNX node "{node.name}" ({kind_of(node)})'
    return f'ONNX node that produces "{next(filter(None, node.output), "")}" ({kind_of(node)})'


def kind_of(node: onnx.NodeProto) -> str:
    """The operator's name, with its domain where that is not ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)


def label_of(node: onnx.NodeProto) -> str:
    """The span of what a node becomes: its name, or its type and first output."""
    return node.name or f"{node.op_type}_{next(filter(None, node.output), '')}"


_LARGEST_VERSION = 2**31 - 1
"""What ``onnx.defs`` takes; the file's field is wider."""


def schema_of(node: onnx.NodeProto, opset: int) -> Any:
    """The operator's ``onnx.defs.OpSchema`` at that opset; ``None`` where ONNX does not define it."""
    return _schema(node.op_type, opset, normal_domain(node.domain))


@lru_cache(maxsize=4096)
def _schema(op_type: str, opset: int, domain: str) -> Any:
    newest = onnx.defs.onnx_opset_version()
    version = min(opset, newest if domain == "" else _LARGEST_VERSION)
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def at(parameters: Sequence[Any], index: int) -> Any:
    """What a schema says of an input or result: the last goes for all further ones; ``None`` where it says nothing."""
    return parameters[min(index, len(parameters) - 1)] if parameters else None


class OnnxNode:
    """One ONNX node while it is imported: its inputs as expressions, its attributes with ONNX's defaults.

    ``node[i]`` is input ``i`` and must be there; ``node.get(i)`` is ``None`` where it is left out.
    """

    def __init__(
        self,
        proto: onnx.NodeProto,
        inputs: Sequence[Expr | None],
        opset: int,
        known: dict[Expr, np.ndarray],
        control: Any = None,
    ) -> None:
        self.proto = proto
        self.inputs = list(inputs)
        self.opset = opset
        self.control = control
        """The importer and the node's scope: for operators with sub-graphs, and to say where a value comes from."""
        self.known_values = known
        """The arrays of weights."""
        self._attributes = {a.name: a for a in proto.attribute}

    @property
    def op_type(self) -> str:
        return str(self.proto.op_type)

    @property
    def schema(self) -> Any:
        """What ONNX says of the operator; ``None`` where it does not define it."""
        return schema_of(self.proto, self.opset)

    def __getitem__(self, index: int) -> Expr:
        found = self.get(index)
        if found is None:
            raise self.fail(f"input {index} is missing")
        return found

    def get(self, index: int) -> Expr | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def operands(self) -> list[Expr]:
        """All inputs, none of which may be left out."""
        return [self[i] for i in range(len(self.inputs))]

    def wants(self, index: int) -> bool:
        """True where output ``index`` is named, so that somebody may read it."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value, or the operator's default, or ``default``."""
        proto = self.attribute_proto(name)
        return default if proto is None else attribute_value(proto, self.control[0].files if self.control else None)

    def attribute_proto(self, name: str) -> Any:
        """The attribute as given, or its default; ``None`` where there is neither."""
        return self._attributes.get(name) or self._default(name)

    def has(self, name: str) -> bool:
        return name in self._attributes

    def _default(self, name: str) -> Any:
        declared = self.schema.attributes.get(name) if self.schema is not None else None
        if declared is None or declared.default_value.type == onnx.AttributeProto.UNDEFINED:
            return None
        return declared.default_value

    def require(self, name: str) -> Any:
        """An attribute that must be given."""
        value = self.attr(name)
        if value is None:
            raise self.fail(f"attribute {name!r} is missing")
        return value

    def known(self, index: int) -> np.ndarray | None:
        """The value of an input that is a constant or a weight; ``None`` where it is known only at run time."""
        expr = self.get(index)
        return None if expr is None else self.value(expr)

    def value(self, expr: Expr) -> np.ndarray | None:
        return expr.value if isinstance(expr, Constant) else self.known_values.get(expr)

    def constant(self, index: int, what: str) -> np.ndarray:
        """The value of an input that must be known while importing, such as the shape of a Reshape."""
        found = self.known(index)
        if found is None:
            found = evaluate_known(self[index], self.known_values)
        if found is None:
            raise self._unknown_value(index, what)
        return found

    def _unknown_value(self, index: int, what: str) -> UnknownValueError:
        importer, scope = self.control
        inputs: tuple[str, ...] = importer.inputs_behind(self[index], scope)
        values = ", ".join(f"{name!r}: array" for name in inputs)
        hint = (
            f"give the value that it follows from: from_onnx(model, value_dict={{{values}}})"
            if inputs
            else "give every input a concrete shape: from_onnx(model, shape_dict={...})"
        )
        message = f"{self.op_type}: {what} (input {index}) is computed when the model runs"
        message += "; minitvm needs it while importing"
        error = UnknownValueError(message, where=[place_of(self.proto)], hint=hint)
        error.inputs = inputs
        return error

    def as_onnx(
        self,
        op_type: str,
        *inputs: Expr | None,
        opset: int = 0,
        outputs: Sequence[str] | None = None,
        **attributes: Any,
    ) -> list[Expr | None]:
        """What ONNX's operator of that name makes of ``inputs``: by the node's attributes, and others in their place.

        ``opset`` is by default the newest; ``outputs`` are names where its outputs are not the node's.
        """
        names = ["" if value is None else f"input{i}" for i, value in enumerate(inputs)]
        layer = onnx.helper.make_node(op_type, names, outputs or self.proto.output, self.proto.name)
        given = {name: proto for name, proto in self._attributes.items() if name not in attributes}
        layer.attribute.extend(given.values())
        layer.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
        importer, _ = self.control
        opset = opset or onnx.defs.onnx_opset_version()
        found: list[Expr | None] = importer.build(OnnxNode(layer, inputs, opset, self.known_values, self.control))
        return found

    def sizes(self, index: int, what: str, signed: bool = False) -> list[Any]:
        """A :meth:`constant` in a row; or dimensions made of those of the inputs, where symbols are counted on;
        of ``signed`` numbers those that a run measures may be less than 0."""
        if are_counted_on() and self.known(index) is None:
            found = shape_value(self[index], self.known_values)
            if found is None:
                found = measured_value(self[index], self.known_values, signed)
            if found is not None:
                return list(found.reshape(-1).tolist())
        return list(self.constant(index, what).reshape(-1).tolist())

    def numbers(self, index: int, name: str, signed: bool = False) -> list[Any] | None:
        """A list that older opsets give as attribute ``name`` and newer ones as input ``index``: see :meth:`sizes`."""
        if self.get(index) is not None:
            return self.sizes(index, name, signed)
        found = self._attributes.get(name)
        return None if found is None else list(np.ravel(attribute_value(found)).tolist())

    def fail(self, message: str, hint: str | None = None) -> FrontendError:
        """The error to raise: the operator's name before the message, the node's place below it."""
        return FrontendError(f"{self.op_type}: {message}", where=[place_of(self.proto)], hint=hint)

    def afford(self, nbytes: float, what: str) -> None:
        """Asked before a constant of a builder's own is made; the error where compiling has no budget for it."""
        if nbytes > COST:
            try:
                current().require("bytes", nbytes, what)
            except CompilerError as error:
                raise self.fail(error.message, error.hint) from None

    def unknown(self, message: str) -> UnknownSize:
        """The error where a size is needed that nobody knows yet: one that comes up inside the model is waited for."""
        return UnknownSize(f"{self.op_type}: {message}", where=[place_of(self.proto)], hint="give shape_dict")

    def misfit(self, message: str) -> TypeInferenceError:
        """The error where ranks or shapes do not fit the operator: the model's inputs may be to blame."""
        return TypeInferenceError(f"{self.op_type}: {message}", where=[place_of(self.proto)])

    def refuse(self, name: str, hint: str | None = None) -> FrontendError:
        """The error for an attribute whose value is not supported."""
        return self.fail(f"attribute {name}={self.attr(name)!r} is not supported", hint)


def attribute_value(proto: onnx.AttributeProto, files: Files | None = None) -> Any:
    """An attribute in Python: int, float, str, list of them, array (which may be in one of ``files``), or graph."""
    if proto.type == onnx.AttributeProto.TENSOR:
        return array_of(proto.t, files or Files())
    value = onnx.helper.get_attribute_value(proto)
    if proto.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRINGS):
        return [_text(v) for v in value]
    return _text(value)


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def emit(name: str, *args: Any, **attributes: Any) -> Expr:
    """A call of operator ``name``; a constant where all its arguments are constants and the result is small.

    Numbers among the arguments are of the dtype of the last tensor: ``emit("where", is_zero, 1.0, x)``.
    """
    tensors = _tensors(args)
    if len(tensors) > 1 and issubclass(OPS.get(name, Op), Elementwise):
        tensors = with_shapes(tensors, with_ones(*(x.tensor_type.shape for x in tensors)))
    return fold(call_op(name, *tensors, **attributes))


def with_shapes(tensors: Sequence[Expr], shapes: Sequence[tuple[Any, ...]]) -> list[Expr]:
    """The tensors in these shapes, of as many elements."""
    pairs = zip(tensors, shapes, strict=True)
    return [x if x.tensor_type.shape == shape else call_op("reshape", x, newshape=shape) for x, shape in pairs]


def _tensors(args: Sequence[Any]) -> list[Any]:
    tensors = [a for a in args if isinstance(a, Expr)]
    return [_tensor(a, tensors[-1]) if isinstance(a, (int, float, SymbolicDim)) else a for a in args]


def _tensor(number: float | SymbolicDim, like: Expr) -> Expr:
    if isinstance(number, SymbolicDim):
        return call_op("extent", size=number, dtype=like.dtype)
    return scalar(number, like)


def emit_many(name: str, *args: Any, **attributes: Any) -> list[Expr]:
    """The results of an operator that returns a tuple."""
    result = emit(name, *args, **attributes)
    assert isinstance(result.type, TupleType)
    return [simplify_projection(result[i]) for i in range(len(result.type.fields))]


def fold(call: Call) -> Expr:
    """``call`` evaluated by its ``reference`` where that is possible and cheap; else ``call`` itself."""
    return call if not _is_small(call) or unfoldable(call) else folded(call)


def _is_small(call: Call) -> bool:
    return not is_numeric(call.type) or all(not t.is_static or t.size <= FOLD_LIMIT for t in tensor_fields(call.type))


def evaluate_known(expr: Expr, known: dict[Expr, np.ndarray]) -> np.ndarray | None:
    """The value of an expression over constants and weights alone; ``None`` where it depends on an input."""
    leaves = [node for node in post_order(expr) if isinstance(node, Var)]
    if any(leaf not in known for leaf in leaves):
        return None
    with metered():
        return np.asarray(evaluate(Function(leaves, expr), *(known[leaf] for leaf in leaves)))


def scalar(value: float, like: Expr | str) -> Constant:
    """A rank-0 constant of the dtype of ``like``."""
    return Constant(np.asarray(value, like if isinstance(like, str) else like.dtype))


def dims(expr: Expr) -> tuple[int | None, ...]:
    """The shape with ``None`` for what is known only at run time; with symbols where these are counted on."""
    return expr.tensor_type.extents if are_counted_on() else expr.tensor_type.sizes


def rank(expr: Expr) -> int:
    return expr.tensor_type.rank


def normalize_axis(node: OnnxNode, axis: int, of_rank: int) -> int:
    """A non-negative axis; :class:`FrontendError` where it is outside the rank."""
    if not -of_rank <= axis < max(of_rank, 1):
        raise node.fail(f"axis {axis} is outside a tensor of rank {of_rank}")
    return axis % max(of_rank, 1)


def single(x: Expr) -> Expr:
    """float16 in float32: it holds neither 300 squared nor a sum of which it holds the root or the logarithm."""
    return cast(x, "float32") if x.dtype == "float16" else x


def wide(dtype: str) -> str:
    """The dtype to compute in, float32 at least."""
    return "float64" if dtype == "float64" else "float32"


def cast(expr: Expr, dtype: str) -> Expr:
    return expr if expr.dtype == dtype else emit("cast", expr, dtype=dtype)


def onnx_dtype(node: OnnxNode, code: int) -> str:
    """The dtype of an ONNX type code (``to``, ``dtype``); :class:`FrontendError` naming the node."""
    return dtype_name(code, lambda message, hint: node.fail(message, hint))
