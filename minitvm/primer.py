"""A deep-learning compiler in one file, to be read from top to bottom in an hour.

An ONNX model goes in at the top.  Machine code comes out at the bottom.  In between stand the stages of the real
compiler, in the same order.  Each one is as small as it can be and still do its work:

     1  the graph             nodes, shapes, text
     2  operators             what one element of a result is
     3  the importer          nodes of ONNX become calls of operators
     4  passes                graphs become better graphs
     5  fusion                operators become kernels
     6  loops                 kernels become loops, and an interpreter says what loops mean
     7  schedules             loops become better loops
     8  LLVM IR               loops become machine code
     9  the memory plan       values share memory
    10  the executor          kernels run one after the other
    11  the command           everything once, with each stage printed

This file imports nothing from the rest of minitvm.  Each section ends with the files where the idea lives "with all its
cases": open sizes, other data types, control flow, GPUs, and the many ways in which a rewrite can be wrong.

Run it on a model and a photograph:

    python -m minitvm.primer minitvm/demo_data/efficientnet_lite0.onnx minitvm/demo_data/chelsea.png
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from math import inf, prod
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
import onnx

llvm: Any = llvmlite.binding  # has no types
Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


class PrimerError(ValueError):
    """The model needs something that this file leaves out, or a step of a schedule would change the results."""


# ----------------------------------------------------------------------------------------------------------------------
# 1. The graph
#
# A compiler cannot rewrite a picture of a network.  It needs a data structure that answers two questions about every
# value: what is it computed from, and what shape does it have?
#
# There are three kinds of nodes.  A `Var` is an input.  A `Constant` is an array that is known now, such as a weight.
# A `Call` applies an operator to other nodes.  The shape of a call is inferred when it is built, so a mistake is found
# where it is made.  Every element is a float32 here, so the shape is the whole type.
#
# Nodes never change.  A pass that wants a different graph builds new nodes.  Two nodes are equal only if they are the
# same object: if two calls read one node, that node is computed once.


class Node:
    """A value in a graph."""

    shape: Shape
    args: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Var(Node):
    """An input.  Its elements are known when the model runs."""

    name: str
    shape: Shape
    args = ()


@dataclass(frozen=True, eq=False)
class Constant(Node):
    """An array that is known at compile time: ``constant(array)`` builds it."""

    value: Array
    shape: Shape
    args = ()


def constant(value: Any) -> Constant:
    """An array or a number as a node.  Floats become float32; integers, which are shapes and axes, stay integers."""
    array = np.asarray(value)
    array = np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else array.dtype).reshape(array.shape)
    return Constant(array, array.shape)


@dataclass(frozen=True, eq=False)
class Call(Node):
    """An operator applied to nodes.  ``op(*args)`` builds it."""

    op: Op
    args: tuple[Node, ...]
    shape: Shape


@dataclass(frozen=True, eq=False)
class Function:
    """A graph from inputs to outputs.  ``print(function)`` shows it in the style of TVM's Relay."""

    params: tuple[Var, ...]
    outputs: tuple[Node, ...]

    @property
    def calls(self) -> list[Call]:
        """All calls, operands before their users."""
        return [node for node in post_order(self.outputs) if isinstance(node, Call)]

    def users(self) -> dict[Node, list[Call]]:
        """The calls that read a node, once for each operand that it is."""
        found: dict[Node, list[Call]] = {node: [] for node in (*self.params, *post_order(self.outputs))}
        for call in self.calls:
            for arg in call.args:
                found[arg].append(call)
        return found

    def __str__(self) -> str:
        names = {node: f"const{list(node.shape)}" for node in post_order(self.outputs)}
        names |= {param: f"%{param.name}" for param in self.params}
        names |= {call: f"%{k}" for k, call in enumerate(self.calls)}
        inputs = ", ".join(f"{names[param]}: Tensor[{param.shape}, float32]" for param in self.params)
        lines = [f"def @main({inputs}) {{"]
        for call in self.calls:
            inside = ", ".join([*(names[arg] for arg in call.args), *call.op.attributes()])
            lines.append(f"  {names[call]} = {call.op.name}({inside});  // Tensor[{call.shape}, float32]")
        return "\n".join([*lines, f"  ({', '.join(names[node] for node in self.outputs)})", "}"])


# Every pass walks the graph.  The walk visits a shared node once, because the number of *paths* through a graph can
# grow exponentially with its depth.  The walk does not recurse, because networks are deeper than Python's stack.


def post_order(roots: Sequence[Node]) -> list[Node]:
    """All nodes that the roots depend on, each once, operands before their users."""
    order: dict[Node, None] = {}
    stack = list(roots)[::-1]
    while stack:
        waiting = [arg for arg in stack[-1].args if arg not in order]
        if waiting:
            stack += waiting[::-1]
        else:
            order[stack.pop()] = None
    return list(order)


# In the real compiler: minitvm/ir/node.py (nodes), minitvm/ir/types.py (shapes with open sizes, and data types),
# minitvm/ir/text.py and minitvm/ir/parser.py (text that can be read back), minitvm/ir/visitor.py (walks).


# ----------------------------------------------------------------------------------------------------------------------
# 2. Operators
#
# An operator says three things about itself, and the compiler knows nothing else:
#
#   reference   its meaning on whole arrays, in numpy; it folds constants, and it is the judge in tests
#   compute     the shape of its result, and one element of it as an expression; kernels are made of this
#   kind        how it fuses with its neighbours (section 5)
#
# `reference` and `compute` share no code, so each one checks the other.
#
# A compute rule says *what* an element is.  In *which order* the elements are computed is decided later, by a schedule.
# This separation is Halide's idea, and TVM brought it to tensors.  It needs a small language of scalar expressions.  In
# a rule, `x[i, j]` is not a number but a `Load`, and `a + b` is a tree.

Scalar = Any
"""An operand of an expression: an :class:`Expr`, or a Python number that becomes a :class:`Num`."""


@dataclass(frozen=True)
class Expr:
    """A scalar: an index (an integer), an element (a float) or a condition."""

    def __add__(self, other: Scalar) -> Expr:
        return apply("+", self, other)

    def __sub__(self, other: Scalar) -> Expr:
        return apply("-", self, other)

    def __mul__(self, other: Scalar) -> Expr:
        return apply("*", self, other)

    def __floordiv__(self, other: Scalar) -> Expr:
        return apply("//", self, other)

    def __mod__(self, other: Scalar) -> Expr:
        return apply("%", self, other)

    def __str__(self) -> str:
        match self:
            case Num(value) | Index(value):
                return f"{value:g}f" if isinstance(value, float) else str(value)
            case Load(buffer, index):
                return f"{buffer.name}[{', '.join(map(str, index))}]"
            case Apply(fn, (a, b)) if not fn.isalpha():
                inner = [f"({x})" if fn != "+" and isinstance(x, Apply) and x.fn in "+-" else str(x) for x in (a, b)]
                return f" {fn} ".join(inner)
            case Apply(fn, args):
                return f"{fn}({', '.join(map(str, args))})"
        return repr(self)


@dataclass(frozen=True)
class Num(Expr):
    """A literal.  An ``int`` is an index, a ``float`` is an element."""

    value: float


@dataclass(frozen=True)
class Index(Expr):
    """The variable of a loop."""

    name: str


@dataclass(frozen=True)
class Buffer:
    """Memory for a tensor, row by row."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Load(Expr):
    """The element of a buffer at an index."""

    buffer: Buffer
    index: tuple[Expr, ...]


@dataclass(frozen=True)
class Apply(Expr):
    """A scalar function of scalars: a key of :data:`SCALAR`."""

    fn: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Reduction(Expr):
    """A value combined over all turns of some loops, by ``+`` or by ``max``."""

    fn: str
    axes: tuple[tuple[Index, int], ...]
    value: Expr


SCALAR: dict[str, tuple[Callable[..., Any], str, str]] = {
    "+": (lambda a, b: a + b, "add", "fadd contract"),
    "-": (lambda a, b: a - b, "sub", "fsub contract"),
    "*": (lambda a, b: a * b, "mul", "fmul contract"),
    "/": (lambda a, b: a / b, "", "fdiv"),
    "//": (lambda a, b: a // b, "sdiv", ""),
    "%": (lambda a, b: a % b, "srem", ""),
    "<": (lambda a, b: a < b, "icmp slt", "fcmp olt"),
    "and": (lambda a, b: a and b, "and", ""),
    "max": (max, "", ""),
    "min": (min, "", ""),
    "exp": (np.exp, "", ""),
    "sqrt": (np.sqrt, "", ""),
    "select": (lambda condition, a, b: a if condition else b, "select", "select"),
}
"""What each scalar function means, and LLVM's instruction for it on integers and on floats, which section 8 needs."""


def apply(fn: str, *args: Scalar) -> Expr:
    """A scalar function of scalars.  Arithmetic with 0 and 1 and between literals is done at once."""
    operands = tuple(arg if isinstance(arg, Expr) else Num(arg) for arg in args)
    match fn, operands:
        case _ if all(isinstance(arg, Num) for arg in operands):
            return Num(SCALAR[fn][0](*(arg.value for arg in operands if isinstance(arg, Num))))
        case ("+", (a, Num(int(0)))) | ("+", (Num(int(0)), a)) | ("-", (a, Num(int(0)))):
            return a
        case ("*" | "//", (a, Num(int(1)))):
            return a
        case ("*", (Num(int(0)), _)) | ("%", (_, Num(int(1)))):
            return Num(0)
    return Apply(fn, operands)


def transform(e: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The expression with every part of it, operands first, replaced by what ``change`` returns."""
    match e:
        case Load(buffer, index):
            e = Load(buffer, tuple(transform(i, change) for i in index))
        case Apply(fn, args):
            e = apply(fn, *(transform(arg, change) for arg in args))
        case Reduction(fn, axes, value):
            e = Reduction(fn, axes, transform(value, change))
    return change(e)


def parts(e: Expr) -> list[Expr]:
    """The expression and all expressions inside it."""
    found: list[Expr] = []
    transform(e, lambda part: found.append(part) or part)  # type: ignore[func-returns-value]
    return found


# A `Tensor` is a shape and a function from an index to the element there.  It is what a compute rule takes and what it
# returns, so rules compose: the operand of one may be the result of another.  That is all that fusion will need.


@dataclass(frozen=True)
class Tensor:
    """A shape, and a function from an index to the expression of the element there."""

    shape: Shape
    element: Callable[..., Expr]

    def __getitem__(self, index: tuple[Scalar, ...]) -> Expr:
        return self.element(*(i if isinstance(i, Expr) else Num(i) for i in index))


def total(names: str, extents: Shape, term: Callable[..., Expr], fn: str = "+") -> Reduction:
    """A reduction of a term over indices, each with a letter for a name."""
    axes = tuple((Index(name), extent) for name, extent in zip(names, extents, strict=True))
    return Reduction(fn, axes, term(*(index for index, _ in axes)))


class Kind(IntEnum):
    """The way in which an operator fuses.  The lower, the easier."""

    BROADCAST = 1
    """An element depends on elements at the same place."""
    INJECTIVE = 2
    """An element is one element of the operand, from a different place."""
    OUT_FUSABLE = 3
    """An element is a sum over many.  What follows element by element can join the kernel."""


class Op:
    """An operator.  Its attributes are the fields of its class.  Calling it builds a :class:`Call`."""

    name: str
    kind: Kind
    reference: Callable[..., Array]
    compute: Callable[..., Tensor]

    def __init_subclass__(cls, **header: Any) -> None:
        for key, value in header.items():
            setattr(cls, key, value)

    def __call__(self, *args: Node) -> Call:
        return Call(self, args, self.infer(*(arg.shape for arg in args)))

    def infer(self, *shapes: Shape) -> Shape:
        """The shape of the result.  Raises :class:`ValueError` if the operator does not take such operands."""
        return self.compute(*(Tensor(shape, Load) for shape in shapes)).shape

    def attributes(self) -> list[str]:
        """The attributes that differ from their defaults, as text: ``["strides=(2, 2)"]``."""
        known = {key: value for key, value in vars(self).items() if key not in ("name", "function")}
        return [f"{key}={value}" for key, value in known.items() if value != getattr(type(self), key, None)]


# The first family works element by element.

ELEMENTWISE: dict[str, tuple[Callable[..., Array], Callable[..., Expr]]] = {
    "add": (np.add, lambda a, b: a + b),
    "subtract": (np.subtract, lambda a, b: a - b),
    "multiply": (np.multiply, lambda a, b: a * b),
    "divide": (np.divide, lambda a, b: apply("/", a, b)),
    "exp": (np.exp, lambda a: apply("exp", a)),
    "sqrt": (np.sqrt, lambda a: apply("sqrt", a)),
    "nn.relu": (lambda a: np.maximum(a, 0), lambda a: apply("max", a, 0.0)),
    "clip": (np.clip, lambda a, low, high: apply("min", apply("max", a, low), high)),
}
"""Each one's meaning on arrays, and its meaning on scalars."""


@dataclass(frozen=True)
class Elementwise(Op, kind=Kind.BROADCAST):
    """One of :data:`ELEMENTWISE`.  Operands broadcast as in numpy.  Only a clip has ``bounds``."""

    name: str
    bounds: tuple[float, ...] = ()

    def reference(self, *arrays: Array) -> Array:
        return ELEMENTWISE[self.name][0](*arrays, *map(np.float32, self.bounds))

    def compute(self, *tensors: Tensor) -> Tensor:
        scalar, shape = ELEMENTWISE[self.name][1], np.broadcast_shapes(*(tensor.shape for tensor in tensors))
        return Tensor(shape, lambda *index: scalar(*(broadcast(t, index) for t in tensors), *self.bounds))


def broadcast(tensor: Tensor, index: tuple[Expr, ...]) -> Expr:
    """The element of a tensor that broadcasting brings to an index."""
    own = index[len(index) - len(tensor.shape) :]
    return tensor[tuple(0 if size == 1 else i for size, i in zip(tensor.shape, own, strict=True))]


add, subtract, multiply, divide, exp, sqrt, relu, _ = map(Elementwise, ELEMENTWISE)


# Convolutions and pools move a window over height and width, which are axes 2 and 3.  They have no padding here,
# because the importer puts an `nn.pad` in front of them.  So every window lies inside its image, and the inner loops
# have no conditions.  The price is a copy.  (The real compiler pays less: it leaves the padding to the convolution, and
# cuts its loops where the condition changes, in minitvm/codegen/walks.py.)


@dataclass(frozen=True)
class Window(Op):
    """What all operators have in common that move a window.  Its elements are ``dilations`` apart."""

    strides: Shape = (1, 1)
    dilations: Shape = (1, 1)

    def sizes(self, image: Shape, window: Shape) -> Shape:
        """The numbers of windows that fit, downwards and across."""
        return tuple((image[2 + k] - (window[k] - 1) * self.dilations[k] - 1) // self.strides[k] + 1 for k in (0, 1))

    def at(self, i: Expr, j: Expr, p: Expr, q: Expr) -> tuple[Expr, Expr]:
        """The row and the column of element (p, q) of window (i, j)."""
        return i * self.strides[0] + p * self.dilations[0], j * self.strides[1] + q * self.dilations[1]

    def views(self, x: Array, window: Shape) -> Array:
        """All windows, as two more axes at the end of an array.  Nothing is copied."""
        (s, t), (d, e), (height, width) = self.strides, self.dilations, window
        reach = ((height - 1) * d + 1, (width - 1) * e + 1)
        views: Array = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
        return views[:, :, ::s, ::t][..., ::d, ::e]


@dataclass(frozen=True)
class Conv2d(Window, name="nn.conv2d", kind=Kind.OUT_FUSABLE):
    """x: (N, I, H, W), weight: (O, I / groups, P, Q) -> (N, O, H', W')."""

    groups: int = 1

    def reference(self, x: Array, weight: Array) -> Array:
        groups = zip(np.split(x, self.groups, 1), np.split(weight, self.groups), strict=True)
        views = [(self.views(image, weight.shape[2:]), filters) for image, filters in groups]
        return np.concatenate([np.einsum("nchwpq,fcpq->nfhw", *pair, optimize=True) for pair in views], 1)

    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        channels, (o, inputs, *window) = x.shape[1], weight.shape
        if channels != inputs * self.groups or o % self.groups:
            raise PrimerError(f"{self.name}: {channels} channels in {self.groups} groups do not fit {weight.shape}")

        def element(n: Expr, f: Expr, i: Expr, j: Expr) -> Expr:
            first = f // (o // self.groups) * inputs if self.groups > 1 else Num(0)

            def term(c: Expr, p: Expr, q: Expr) -> Expr:
                row, col = self.at(i, j, p, q)
                return x[n, first + c, row, col] * weight[f, c, p, q]

            return total("cpq", weight.shape[1:], term)

        return Tensor((x.shape[0], o, *self.sizes(x.shape, tuple(window))), element)


@dataclass(frozen=True)
class Pool(Window, name="nn.pool2d", kind=Kind.OUT_FUSABLE):
    """The sum (``+``) or the maximum (``max``) of each window."""

    fn: str = "max"
    window: Shape = (1, 1)

    def reference(self, x: Array) -> Array:
        return np.asarray((np.sum if self.fn == "+" else np.max)(self.views(x, self.window), (-2, -1)))

    def compute(self, x: Tensor) -> Tensor:
        def element(n: Expr, c: Expr, i: Expr, j: Expr, *b: Expr) -> Expr:
            return total("pq", self.window, lambda p, q: x[(n, c) + self.at(i, j, p, q) + b], self.fn)

        return Tensor((*x.shape[:2], *self.sizes(x.shape, self.window), *x.shape[4:]), element)


@dataclass(frozen=True)
class Pad(Op, name="nn.pad", kind=Kind.INJECTIVE):
    """A border around height and width.  ``pads``: rows above, columns left, rows below, columns right."""

    pads: Shape
    value: float = 0.0

    def reference(self, x: Array) -> Array:
        top, left, bottom, right = self.pads
        around = [(0, 0), (0, 0), (top, bottom), (left, right), *[(0, 0)] * (x.ndim - 4)]
        return np.pad(x, around, constant_values=self.value)

    def compute(self, x: Tensor) -> Tensor:
        (n, c, h, w, *b), (top, left, bottom, right) = x.shape, self.pads

        def element(n: Expr, c: Expr, i: Expr, j: Expr, *b: Expr) -> Expr:
            (row, in_rows), (col, in_cols) = inside(i - top, h), inside(j - left, w)
            return apply("select", apply("and", in_rows, in_cols), x[(n, c, row, col) + b], self.value)

        return Tensor((n, c, h + top + bottom, w + left + right, *b), element)


def inside(i: Expr, size: int) -> tuple[Expr, Expr]:
    """An index that is safe to load from, and whether it is the one that was asked for."""
    return apply("min", apply("max", i, 0), size - 1), apply("and", apply("<", -1, i), apply("<", i, size))


@dataclass(frozen=True)
class Reshape(Op, name="reshape", kind=Kind.INJECTIVE):
    """The same elements in the same order, in a different shape."""

    shape: Shape

    def reference(self, x: Array) -> Array:
        return x.reshape(self.shape)

    def compute(self, x: Tensor) -> Tensor:
        def element(*index: Expr) -> Expr:
            place = position(self.shape, index)
            return x[tuple(place // prod(x.shape[k + 1 :]) % size for k, size in enumerate(x.shape))]

        return Tensor(self.shape, element)


def position(shape: Shape, index: Sequence[Expr]) -> Expr:
    """The number of an element in memory, counted row by row."""
    found: Expr = Num(0)
    for size, i in zip(shape, index, strict=True):
        found = found * size + i
    return found


@dataclass(frozen=True)
class BatchNorm(Op, name="nn.batch_norm"):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, with statistics for each channel.

    It has no compute rule, because `simplify_inference` replaces it.
    """

    epsilon: float = 1e-5

    def reference(self, x: Array, *statistics: Array) -> Array:
        gamma, beta, mean, variance = (s.reshape(-1, *[1] * (x.ndim - 2)) for s in statistics)
        result: Array = (x - mean) / np.sqrt(variance + np.float32(self.epsilon)) * gamma + beta
        return result

    def infer(self, *shapes: Shape) -> Shape:
        return shapes[0]


# Three operators are about *layout*.  A blocked tensor keeps its channels in blocks of b: the element (n, c, y, x) lies
# at (n, c // b, y, x, c % b).  The channels of a block are neighbours in memory, so one vector instruction computes
# with all of them.  The field calls this layout NCHWc, or NCHW8c where b is 8.  `alter_op_layout` introduces it.


@dataclass(frozen=True)
class Block(Op, name="layout.block", kind=Kind.INJECTIVE):
    """(N, C, H, W) -> (N, C / b, H, W, b)."""

    b: int

    def reference(self, x: Array) -> Array:
        n, c, h, w = x.shape
        return np.ascontiguousarray(x.reshape(n, c // self.b, self.b, h, w).transpose(0, 1, 3, 4, 2))

    def compute(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return Tensor((n, c // self.b, h, w, self.b), lambda n, c, i, j, b: x[n, c * self.b + b, i, j])


@dataclass(frozen=True)
class Unblock(Op, name="layout.unblock", kind=Kind.INJECTIVE):
    """(N, C / b, H, W, b) -> (N, C, H, W)."""

    def reference(self, x: Array) -> Array:
        n, _, h, w, _ = x.shape
        return np.ascontiguousarray(x.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w))

    def compute(self, x: Tensor) -> Tensor:
        n, c, h, w, b = x.shape
        return Tensor((n, c * b, h, w), lambda n, c, i, j: x[n, c // b, i, j, c % b])


@dataclass(frozen=True)
class BlockedConv2d(Window, name="nn.conv2d_blocked", kind=Kind.OUT_FUSABLE):
    """x: (N, I / b, H, W, b), weight: (O / l, I / groups / b, P, Q, b, l) -> (N, O / l, H', W', l).

    A depthwise one has as many groups as channels, and as many filters: lanes stay lanes.
    """

    groups: int = 1

    def reference(self, x: Array, weight: Array) -> Array:
        o, i, p, q, b, lanes = weight.shape
        plain = Conv2d(self.strides, self.dilations, self.groups)
        filters = weight.transpose(0, 5, 1, 4, 2, 3).reshape(o * lanes, i * b, p, q)
        return Block(lanes).reference(plain.reference(Unblock().reference(x), filters))

    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        o, inputs, height, width, b, lanes = weight.shape
        depthwise = self.groups == x.shape[1] * x.shape[4] == o * lanes

        def element(n: Expr, f: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
            first = f // (o // self.groups) * inputs if self.groups > 1 and not depthwise else Num(0)

            def term(c: Expr, k: Expr, p: Expr, q: Expr) -> Expr:
                block, channel = (f, lane) if depthwise else (first + c, k)
                row, col = self.at(i, j, p, q)
                return x[n, block, row, col, channel] * weight[f, c, p, q, k, lane]

            return total("ckpq", (inputs, b, height, width), term)

        return Tensor((x.shape[0], o, *self.sizes(x.shape, (height, width)), lanes), element)


# The references together are an evaluator.  It is slow, and it is the judge of everything below.


def evaluate(function: Function, *arrays: Array) -> list[Array]:
    """What a graph means: the outputs for arrays as inputs."""
    values: dict[Node, Array] = dict(zip(function.params, arrays, strict=True))
    for node in post_order(function.outputs):
        if isinstance(node, Constant):
            values[node] = node.value
        elif isinstance(node, Call):
            values[node] = node.op.reference(*(values[arg] for arg in node.args))
    return [values[node] for node in function.outputs]


# In the real compiler: minitvm/ir/op.py (what an operator is), minitvm/ir/ops (the operators, one family in a file:
# begin with minitvm/ir/ops/nn_conv.py), minitvm/ir/loop/expr.py (expressions), minitvm/ir/layout.py (layouts by name),
# minitvm/ir/evaluate.py.


# ----------------------------------------------------------------------------------------------------------------------
# 3. The importer
#
# An ONNX file is a list of nodes, operands before users, and a dictionary of weights.  The importer reads the list
# once.  A table says what each kind of node becomes.  What ONNX can say in many ways is said in one way from here on: a
# matrix product becomes a convolution, an average becomes a sum and a product.


to_array = onnx.numpy_helper.to_array


def from_onnx(model: onnx.ModelProto) -> Function:
    """The graph of a model.  Open sizes, such as the size of a batch, become 1."""
    values: dict[str, Node] = {tensor.name: constant(to_array(tensor)) for tensor in model.graph.initializer}
    params: list[Var] = []
    for value in model.graph.input:
        if value.name not in values:
            params.append(Var(value.name, tuple(dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim)))
            values[value.name] = params[-1]
    for node in model.graph.node:
        if node.op_type not in IMPORTERS:
            raise PrimerError(f"{node.op_type} {node.name!r}: the primer imports {', '.join(IMPORTERS)} only")
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        operands = [values[name] if name else None for name in node.input]
        try:
            values[node.output[0]] = IMPORTERS[node.op_type](*operands, **attributes)
        except (TypeError, ValueError) as error:
            raise PrimerError(f"{node.op_type} {node.name!r}: {error}") from error
    return Function(tuple(params), tuple(values[value.name] for value in model.graph.output))


def integers(node: Node) -> list[int]:
    """The operand of a node that is a shape or a list of axes."""
    if not isinstance(node, Constant):
        raise PrimerError("the model computes a shape, and the primer has only shapes that are stored")
    return [int(value) for value in node.value.reshape(-1)]


def column(vector: Node) -> Node:
    """A value for each channel, in a shape that broadcasts over images (N, C, H, W)."""
    return Reshape((1, prod(vector.shape), 1, 1))(vector)


def padded(x: Node, value: float = 0.0, pads: Sequence[int] = (0, 0, 0, 0), **other: Any) -> Node:
    """The operand of a convolution or a pool, with its border."""
    for name, meaning in other.items():
        if name != "kernel_shape" and meaning not in (0, [1, 1], b"NOTSET", b"VALID"):
            raise PrimerError(f"the primer has no windows with {name}={meaning}")
    return Pad(tuple(pads), value)(x) if any(pads) else x


def conv(x: Node, weight: Node, bias: Node | None = None, group: int = 1, **window: Any) -> Node:
    strides, dilations = (tuple(window.pop(name, (1, 1))) for name in ("strides", "dilations"))
    result = Conv2d(strides, dilations, group)(padded(x, **window), weight)
    return add(result, column(bias)) if bias else result


def max_pool(x: Node, kernel_shape: Shape, strides: Shape = (1, 1), **border: Any) -> Node:
    return Pool(tuple(strides), fn="max", window=tuple(kernel_shape))(padded(x, -inf, **border))


def mean_pool(x: Node, kernel_shape: Shape, strides: Shape = (1, 1), count_include_pad: int = 0, **border: Any) -> Node:
    """The sum of a window over the number of elements that count.  That number is the sum of a window of ones."""
    pool = Pool(tuple(strides), fn="+", window=tuple(kernel_shape))
    ones = constant(np.ones((1, 1, *x.shape[2:])))
    counted = pool(padded(ones, float(count_include_pad), **border))
    return multiply(pool(padded(x, **border)), divide(constant(1.0), counted))


def gemm(x: Node, y: Node, bias: Node | None = None, **scales: float) -> Node:
    """A matrix product is a convolution: a row of x is an image of one pixel, a column of y is a filter."""
    if scales.get("transA") or not isinstance(y, Constant):
        raise PrimerError("the primer has only products whose right operand is stored in the model")
    filters = (y.value if scales.get("transB") else y.value.T)[:, :, np.newaxis, np.newaxis]
    result = Conv2d()(Reshape((*x.shape, 1, 1))(x), multiply(constant(filters), constant(scales.get("alpha", 1.0))))
    if bias:
        result = add(result, multiply(column(bias), constant(scales.get("beta", 1.0))))
    return Reshape(result.shape[:2])(result)


def softmax(x: Node, axis: int = -1) -> Node:
    """exp(x) over its sum.  The maximum is subtracted before, so that nothing overflows."""
    if axis % len(x.shape) != len(x.shape) - 1:
        raise PrimerError("the primer has softmax along the last axis only")
    rows = Reshape((1, 1, prod(x.shape[:-1]), x.shape[-1]))(x)
    most, whole = (Pool(fn=fn, window=(1, x.shape[-1])) for fn in ("max", "+"))
    powers = exp(subtract(rows, most(rows)))
    return Reshape(x.shape)(divide(powers, whole(powers)))


def clip(x: Node, low: Node | None = None, high: Node | None = None, min: float = -inf, max: float = inf) -> Node:
    """Old models have the bounds as attributes, new ones as operands."""
    bounds = [float(new.value.item()) if isinstance(new, Constant) else old for new, old in ((low, min), (high, max))]
    return Elementwise("clip", tuple(bounds))(x)


def reshape(x: Node, shape: Node) -> Node:
    """A size of 0 stays what it is.  A size of -1 is what is left."""
    sizes = [x.shape[k] if size == 0 else size for k, size in enumerate(integers(shape))]
    left = prod(x.shape) // prod(size for size in sizes if size != -1)
    return Reshape(tuple(left if size == -1 else size for size in sizes))(x)


def squeeze(x: Node, new: Node | None = None, axes: Sequence[int] = ()) -> Node:
    gone = {axis % len(x.shape) for axis in (integers(new) if new else axes)}
    return Reshape(tuple(size for k, size in enumerate(x.shape) if (k not in gone if gone else size > 1)))(x)


IMPORTERS: dict[str, Callable[..., Node]] = {
    "Add": add,
    "AveragePool": mean_pool,
    "BatchNormalization": lambda *operands, epsilon=1e-5, **_: BatchNorm(epsilon)(*operands),
    "Clip": clip,
    "Constant": lambda value: constant(to_array(value)),
    "Conv": conv,
    "Dropout": lambda x, *_, **__: x,
    "Flatten": lambda x, axis=1: Reshape((prod(x.shape[:axis]), prod(x.shape[axis:])))(x),
    "Gemm": gemm,
    "GlobalAveragePool": lambda x: mean_pool(x, x.shape[2:]),
    "Identity": lambda x: x,
    "MatMul": gemm,
    "MaxPool": max_pool,
    "Mul": multiply,
    "Relu": relu,
    "Reshape": reshape,
    "Softmax": softmax,
    "Squeeze": squeeze,
}
"""From the operands and attributes of a node to the node of the graph that it becomes."""


# In the real compiler: minitvm/frontend/onnx/importer.py (the loop), minitvm/frontend/onnx/registry.py (the table, and
# how it follows ONNX's versions), minitvm/frontend/onnx/nn.py and minitvm/frontend/onnx/matmul.py (what layers become).


# ----------------------------------------------------------------------------------------------------------------------
# 4. Passes
#
# A pass is a function from a graph to a graph that means the same.  Most passes are a *rule*: a function that looks at
# one call and returns what should stand in its place, or None.  `rewrite` shows every call to the rule, operands before
# users, so the rule sees what has become of the operands.

Rule = Callable[[Call, Mapping[Node, int]], "Node | None"]
"""From a call, and from how often each node is used, to what replaces the call."""


def rewrite(rule: Rule, function: Function) -> Function:
    """The graph after a rule has seen every call."""
    uses = {node: len(users) + function.outputs.count(node) for node, users in function.users().items()}
    done: dict[Node, Node] = {}
    for node in post_order(function.outputs):
        done[node] = node
        if isinstance(node, Call):
            args = tuple(done[arg] for arg in node.args)
            call = node if args == node.args else node.op(*args)
            done[node] = rule(call, uses) or call
            uses[done[node]] = uses[node]
    return Function(function.params, tuple(done[node] for node in function.outputs))


# *SimplifyInference* expands what only training needs as a whole.  At inference the statistics of a batch norm are
# constants, so it is one product and one sum for each channel.


def simplify_inference(call: Call, uses: Mapping[Node, int]) -> Node | None:
    match call:
        case Call(BatchNorm(epsilon), (x, gamma, beta, mean, variance)):
            scale = divide(gamma, sqrt(add(variance, constant(epsilon))))
            shift = subtract(beta, multiply(mean, scale))
            return add(multiply(x, column(scale)), column(shift))
    return None


# *FoldConstant* computes at compile time what does not depend on an input.


def fold_constant(call: Call, uses: Mapping[Node, int]) -> Node | None:
    known = [arg.value for arg in call.args if isinstance(arg, Constant)]
    return constant(call.op.reference(*known)) if len(known) == len(call.args) else None


# *FoldScaleAxis* scales the weights of a convolution in place of its result:
#
#     conv(x, w) * s        =  conv(x, w * s)
#     (conv(x, w) + b) * s  =  conv(x, w * s) + b * s
#
# Weights and scale are constants, so FoldConstant computes their product.  Of the batch norm only a bias remains.  The
# rule must not fire if anybody else reads the convolution, because that reader wants the result without the scale.


def fold_scale_axis(call: Call, uses: Mapping[Node, int]) -> Node | None:
    match call:
        case Call(Elementwise("multiply"), (x, Constant() as scale)) if scale.shape == (1, *call.shape[1:2], 1, 1):
            return scaled(x, scale, uses)
    return None


def scaled(x: Node, scale: Constant, uses: Mapping[Node, int]) -> Node | None:
    """``x * scale``, computed inside x.  None if there is no convolution to take the scale."""
    if uses.get(x) != 1:
        return None
    match x:
        case Call(Conv2d() as op, (image, Constant() as weight)):
            return op(image, multiply(weight, Reshape((prod(scale.shape), 1, 1, 1))(scale)))
        case Call(Elementwise("add"), (inner, Constant() as bias)) if result := scaled(inner, scale, uses):
            return add(result, multiply(bias, scale))
    return None


# *AlterOpLayout* decides where elements lie in memory.  Each convolution asks for blocked operands and gives a blocked
# result:
#
#     conv(x, w)  =  unblock(conv_blocked(block(x), pack(w)))
#
# Alone this would be slow, as it copies before and after each convolution.  Two more rules remove the copies.  An
# operator that works in any layout, such as a rectifier, moves in front of the `unblock` of its operand.  So the
# `unblock` sinks until it meets the `block` of the next convolution, and the two cancel.  Copies are left at the input,
# at the output, and around operators that do care, such as a reshape.
#
# A block has as many channels as a vector has lanes, or the largest power of two that divides the channels.  The real
# compiler asks what each layout is predicted to cost.


def alter_op_layout(call: Call, lanes: int) -> Node | None:
    match call:
        case Call(Conv2d() as op, (x, Constant() as weight)):
            return blocked_conv(op, x, weight.value, lanes)
        case Call(Elementwise() | Pad() | Pool() as op, args) if {len(arg.shape) for arg in args} <= {0, 4}:
            sizes = [arg.args[0].shape[4] for arg in args if isinstance(arg, Call) and isinstance(arg.op, Unblock)]
            return Unblock()(op(*(blocked(arg, max(sizes)) for arg in args))) if sizes else None
    return None


def blocked_conv(op: Conv2d, x: Node, weight: Array, lanes: int) -> Node:
    (o, i, p, q), depthwise = weight.shape, op.groups == x.shape[1] == weight.shape[0]
    b, c = block_size(i, lanes), block_size(o if depthwise else o // op.groups, lanes)
    packed = weight.reshape(o // c, c, i // b, b, p, q).transpose(0, 2, 4, 5, 3, 1)
    fast = BlockedConv2d(op.strides, op.dilations, op.groups)
    return Unblock()(fast(blocked(x, c if depthwise else b), constant(packed)))


def blocked(x: Node, size: int) -> Node:
    """A value in blocks.  If it has just been unblocked, that is undone.  A scalar stays a scalar."""
    if isinstance(x, Call) and isinstance(x.op, Unblock) and x.args[0].shape[4] == size:
        return x.args[0]
    return Block(1 if x.shape[1] == 1 else size)(x) if x.shape else x


def block_size(extent: int, lanes: int) -> int:
    """The largest power of two, at most ``lanes``, that divides an extent."""
    return min(lanes, extent & -extent)


# In the real compiler: minitvm/passes/pipeline.py (the order), minitvm/passes/rule.py and minitvm/ir/pattern.py (rules
# that say why they decline), minitvm/passes/canonicalize.py, minitvm/passes/fold_scale_axis.py,
# minitvm/passes/alter_op_layout.py.


# ----------------------------------------------------------------------------------------------------------------------
# 5. Fusion
#
# A kernel reads its operands from memory and writes its result to memory.  A rectifier does next to nothing in between.
# It should run inside the kernel that computes its operand, while the element is in a register.  *FuseOps* puts calls
# into groups, and each group becomes one kernel.
#
# When can a convolution take in what follows it?  A kernel has one result, so nobody outside may read the values
# inside.  Take a residual block:
#
#          conv          Every path from `conv` to the output goes through `add`: `add` *post-dominates* `conv`, and it
#         /    \         is the nearest node that does, the *immediate post-dominator*.  Either `conv`, `add` and all
#      clip     |        that lies on the paths between them become one group, or `conv` stays alone.
#         \    /
#          add
#
# Immediate post-dominators form a tree.  The parent of a node is the lowest common ancestor of its users, so one walk
# from the outputs upwards finds the tree.  Then every node tries to merge with its parent, and `may_fuse` decides.  The
# algorithm is Relay's (Roesch et al. 2018, and TVM's FuseOps).


def post_dominators(function: Function) -> dict[Node, Node | None]:
    """The immediate post-dominator of each node; None if its paths only meet at the end."""
    users, parent = function.users(), dict[Node, "Node | None"]()
    depth: dict[Node | None, int] = {None: 0}
    for node in reversed(post_order(function.outputs)):
        meeting: list[Node | None] = [None] if node in function.outputs else [*users[node]]
        nearest = meeting[0]
        for other in meeting[1:]:
            while nearest is not other:  # the deeper of the two climbs
                if depth[nearest] < depth[other]:
                    nearest, other = other, nearest
                nearest = parent[nearest] if nearest else None
        parent[node], depth[node] = nearest, depth[nearest] + 1
    return parent


def fuse_ops(function: Function) -> Function:
    """The graph with each group of calls as one call of :class:`Fused`."""
    parent, calls = post_dominators(function), function.calls
    group = {call: call for call in calls}
    kind = {call: call.op.kind for call in calls}
    for phase in (0, 1):
        for call in calls:
            sink = parent[call]
            if isinstance(sink, Call) and group[call] is not group[sink]:
                path = between(call, sink, calls)
                if may_fuse(call, path, {step: kind[group[step]] for step in (call, *path)}, phase):
                    merged = {group[step] for step in (call, *path)}
                    kind[group[sink]] = max(kind[one] for one in merged)
                    group |= {other: group[sink] for other in calls if group[other] in merged}
    return cut(group, function)


def between(node: Call, sink: Call, calls: list[Call]) -> list[Call]:
    """All calls on the paths from a node to its post-dominator, which comes last."""
    path = [node]
    for call in calls[calls.index(node) + 1 : calls.index(sink) + 1]:
        if any(arg in path for arg in call.args):
            path.append(call)
    return path[1:]


def may_fuse(node: Call, path: list[Call], kind: Mapping[Call, Kind], phase: int) -> bool:
    """True if a node and the calls on the paths to its post-dominator can be one kernel.  ``kind``: of their groups."""
    kinds = [kind[call] for call in path]
    match kind[node]:
        case Kind.OUT_FUSABLE:  # what follows must take each sum where it is computed
            return set(kinds) == {Kind.BROADCAST} and {call.shape for call in path} == {node.shape}
        case Kind.BROADCAST:  # cheap enough to be computed wherever it is read
            return max(kinds[:-1], default=Kind.BROADCAST) <= Kind.INJECTIVE
        case Kind.INJECTIVE:  # waits until all others have chosen
            return phase == 1 and max(kinds) <= Kind.INJECTIVE


@dataclass(frozen=True)
class Fused(Op, kind=Kind.OUT_FUSABLE):
    """A group of calls as one operator.  The parameters of its function are the values that it reads from outside."""

    name: str
    function: Function

    def reference(self, *arrays: Array) -> Array:
        return evaluate(self.function, *arrays)[0]

    def compute(self, *tensors: Tensor) -> Tensor:
        values: dict[Node, Tensor] = dict(zip(self.function.params, tensors, strict=True))
        for call in self.function.calls:
            values[call] = call.op.compute(*(values[arg] for arg in call.args))
        return values[self.function.outputs[0]]


def cut(group: Mapping[Call, Call], function: Function) -> Function:
    """The graph with each group as one call.  ``group`` gives for each call the last call of its group."""
    done: dict[Node, Node] = {node: node for node in post_order(function.outputs) if not isinstance(node, Call)}
    for last in function.calls:
        calls = [call for call in function.calls if group[call] is last]
        operands = dict.fromkeys(arg for call in calls for arg in call.args if arg not in calls)
        params = {arg: Var(f"p{k}", arg.shape) for k, arg in enumerate(operands)}
        local: dict[Node, Node] = {**params}
        for call in calls:
            local[call] = call.op(*(local[arg] for arg in call.args))
        if calls:
            name = "_".join(["fused", *(call.op.name.rpartition(".")[2] for call in calls)])
            fused = Fused(name, Function(tuple(params.values()), (local[last],)))
            done[last] = fused(*(done[arg] for arg in operands))
    return Function(function.params, tuple(done[node] for node in function.outputs))


# In the real compiler: minitvm/passes/fuse_ops.py, with tuples, with limits, with values that are cheaper to compute
# twice than to store, and with the reason why a node was not fused.


# ----------------------------------------------------------------------------------------------------------------------
# 6. Loops
#
# A kernel is loops around stores.  There are three statements.  A `For` runs its body for each value of an index.  A
# `Store` writes one element.  An `Alloc` gives its body a local buffer.  The *kind* of a loop says how it runs: one
# turn after the other (`for`), as the lanes of vectors (`vectorized`), written out (`unrolled`), or on threads
# (`parallel`).


@dataclass(frozen=True)
class For:
    """Runs its body for each value of an index."""

    index: Index
    extent: int
    body: Body
    kind: str = "for"


@dataclass(frozen=True)
class Store:
    """Writes an element.  ``place`` is its buffer and its index."""

    place: Load
    value: Expr


@dataclass(frozen=True)
class Alloc:
    """Gives its body a local buffer, which becomes registers if all goes well."""

    buffer: Buffer
    body: Body


Stmt = For | Store | Alloc
Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class Kernel:
    """Loops that read inputs and write one output.  ``print(kernel)`` shows them."""

    name: str
    inputs: tuple[Buffer, ...]
    output: Buffer
    body: Body

    def __str__(self) -> str:
        inputs = ", ".join(f"{buffer.name}: {list(buffer.shape)}" for buffer in self.inputs)
        return "\n".join([f"kernel {self.name}({inputs}) -> {list(self.output.shape)}", *text_lines(self.body, "  ")])


def text_lines(body: Body, indent: str) -> Iterator[str]:
    """Statements as text."""
    for s in body:
        match s:
            case Store(place, value):
                yield f"{indent}{place} = {value}"
            case For(index, extent, _, kind):
                yield f"{indent}{kind} {index} in {extent}:"
            case Alloc(buffer):
                yield f"{indent}alloc {buffer.name}{list(buffer.shape)}:"
        yield from [] if isinstance(s, Store) else text_lines(s.body, indent + "  ")


# Lowering asks a compute rule for the element at (n, o, y, x).  For a group, the rules of its calls have been composed,
# so fused operators arrive as one expression.  It has one reduction at most, because no group has two.  The reduction
# becomes loops that add to an accumulator.  Axes of one element need no loop.
#
# A pointwise convolution of 8 channels by 8 filters over a row of 28 pixels:
#
#     kernel nn.conv2d_blocked(p0: [1, 1, 1, 28, 8], p1: [1, 1, 1, 1, 8, 8]) -> [1, 1, 1, 28, 8]
#       for x in 28:
#         for b in 8:
#           alloc acc[]:
#             acc[] = 0f
#             for k in 8:
#               acc[] = acc[] + p0[0, 0, 0, x, k] * p1[0, 0, 0, 0, k, b]
#             out[0, 0, 0, x, b] = acc[]


def lower(op: Op, shapes: Sequence[Shape]) -> Kernel:
    """The loops that a compute rule asks for, in no clever order."""
    inputs = tuple(Buffer(f"p{k}", shape) for k, shape in enumerate(shapes))
    result = op.compute(*(Tensor(b.shape, lambda *index, b=b: Load(b, index)) for b in inputs))
    axes = [(Index("noyxb"[k] if k < 5 else f"i{k}"), extent) for k, extent in enumerate(result.shape)]
    place = Load(Buffer("out", result.shape), tuple(axis if extent > 1 else Num(0) for axis, extent in axes))
    return Kernel(op.name, inputs, place.buffer, nest(axes, accumulated(place, result[place.index])))


def nest(axes: Sequence[tuple[Index, int]], body: Body) -> Body:
    """Loops around a body, the first axis outermost."""
    for index, extent in reversed(axes):
        body = (For(index, extent, body),) if extent > 1 else substitute(body, {index: Num(0)})
    return body


def accumulated(place: Load, value: Expr) -> Body:
    """The statements that store a value, its reduction first."""
    reduction = next((part for part in parts(value) if isinstance(part, Reduction)), None)
    if reduction is None:
        return (Store(place, value),)
    acc = Load(Buffer("acc", ()), ())
    start = Store(acc, Num(0.0 if reduction.fn == "+" else -inf))
    step = Store(acc, apply(reduction.fn, acc, reduction.value))
    end = Store(place, transform(value, lambda part: acc if part == reduction else part))
    return (Alloc(acc.buffer, (start, *nest(reduction.axes, (step,)), end)),)


def replaced(body: Body, change: Callable[[Stmt], Body | None]) -> Body:
    """Statements with what ``change`` makes of each.  If that is None, it is asked about the statements inside."""
    done: Body = ()
    for s in body:
        new = change(s)
        if new is None:
            new = (s if isinstance(s, Store) else replace(s, body=replaced(s.body, change)),)
        done += new
    return done


def rewritten(body: Body, change: Callable[[Expr], Expr]) -> Body:
    """Statements with all their expressions transformed, the places of stores included."""

    def store(s: Stmt) -> Body | None:
        return (Store(*(transform(e, change) for e in (s.place, s.value))),) if isinstance(s, Store) else None  # type: ignore

    return replaced(body, store)


def substitute(body: Body, table: Mapping[Expr, Expr]) -> Body:
    """Statements with some expressions replaced by others."""
    return rewritten(body, lambda e: table.get(e, e))


def statements(body: Body) -> Iterator[Stmt]:
    """All statements, outer ones before inner ones."""
    for s in body:
        yield s
        yield from () if isinstance(s, Store) else statements(s.body)


# What do loops mean?  The interpreter says it in Python.  It is far too slow for a network, but on small shapes it
# proves a schedule.  Memory starts as NaN, so an element that is read too early shows.  The turns of a parallel loop
# run backwards, because a kernel for which that matters is not parallel.


def interpret(kernel: Kernel, *arrays: Array) -> Array:
    """The output of a kernel for arrays as inputs."""
    memory: dict[Buffer, Array] = dict(zip(kernel.inputs, arrays, strict=True))
    memory[kernel.output] = np.full(kernel.output.shape, np.nan, np.float32)
    at: dict[Expr, int] = {}

    def value(e: Expr) -> Any:
        match e:
            case Num(literal):
                return literal
            case Load(buffer, index):
                return memory[buffer][tuple(map(value, index))]
            case Apply(fn, args):
                return SCALAR[fn][0](*map(value, args))
        return at[e]

    def run(body: Body) -> None:
        for s in body:
            match s:
                case Store(place, result):
                    memory[place.buffer][tuple(map(value, place.index))] = value(result)
                case For(index, extent, inner, kind):
                    for at[index] in range(extent)[:: -1 if kind == "parallel" else 1]:
                        run(inner)
                case Alloc(buffer, inner):
                    memory[buffer] = np.full(buffer.shape, np.nan, np.float32)
                    run(inner)

    run(kernel.body)
    return memory[kernel.output]


# In the real compiler: minitvm/ir/loop/stmt.py and minitvm/ir/loop/text.py (statements and their text),
# minitvm/ir/loop/verify.py (what makes a kernel well-formed), minitvm/codegen/lower.py (from a group to loops),
# minitvm/ir/loop/interp.py (the interpreter, which also finds races).


# ----------------------------------------------------------------------------------------------------------------------
# 7. Schedules
#
# The loops that come out of lowering are right, and slow.  A schedule makes them fast in *steps*.  A step is a function
# from a kernel to a kernel that computes the same, or an error that says why it would not.
#
#   split       one loop becomes two: over blocks, and inside a block
#   reorder     nested loops trade places
#   jam         a loop moves into the loops inside it and is written out there ("unroll and jam")
#   vectorize   a loop moves inwards in the same way, and its turns become the lanes of vectors
#   parallel    the turns of the outermost loop are shared by threads
#
# `jam` and `vectorize` move a loop inwards until it is around single stores.  Now each turn needs its own accumulator,
# so the accumulator gets an axis.  For a convolution this is the whole trick.  Here is the one of section 6 after
# split(x, 14), jam(x_inner), vectorize(b) and parallel(x_outer):
#
#     kernel nn.conv2d_blocked(p0: [1, 1, 1, 28, 8], p1: [1, 1, 1, 1, 8, 8]) -> [1, 1, 1, 28, 8]
#       parallel x_outer in 2:
#         alloc acc[14, 8]:
#           unrolled x_inner in 14:
#             vectorized b in 8:
#               acc[x_inner, b] = 0f
#           for k in 8:
#             unrolled x_inner in 14:
#               vectorized b in 8:
#                 acc[x_inner, b] = acc[x_inner, b] + p0[0, 0, 0, x_outer * 14 + x_inner, k] * p1[0, 0, 0, 0, k, b]
#           unrolled x_inner in 14:
#             vectorized b in 8:
#               out[0, 0, 0, x_outer * 14 + x_inner, b] = acc[x_inner, b]
#
# Fourteen pixels times one vector of channels are fourteen accumulators, a *register tile*.  In each turn of k, one
# vector of weights is loaded, and used fourteen times.


def loops(body: Body) -> list[For]:
    """All loops, outer ones before inner ones."""
    return [s for s in statements(body) if isinstance(s, For)]


def directly_nested(body: Body) -> list[For]:
    """The loops from the outermost one inwards, as long as each is all that the one before has in it."""
    found = []
    while len(body) == 1 and isinstance(body[0], For):
        found.append(body[0])
        body = body[0].body
    return found


def edit(kernel: Kernel, name: str, change: Callable[[For], Body]) -> Kernel:
    """The kernel with what ``change`` makes of the loop of a name."""
    if name not in {loop.index.name for loop in loops(kernel.body)}:
        raise PrimerError(f"{kernel.name} has no loop {name}")

    def at_loop(s: Stmt) -> Body | None:
        return change(s) if isinstance(s, For) and s.index.name == name else None

    return replace(kernel, body=replaced(kernel.body, at_loop))


def split(kernel: Kernel, name: str, factor: int) -> Kernel:
    """``i`` becomes ``i_outer * factor + i_inner``."""

    def change(loop: For) -> Body:
        if loop.extent % factor:
            raise PrimerError(f"{name} has {loop.extent} turns, which is not a multiple of {factor}")
        outer, inner = Index(f"{name}_outer"), Index(f"{name}_inner")
        body = substitute(loop.body, {loop.index: outer * factor + inner})
        return (For(outer, loop.extent // factor, (For(inner, factor, body),)),)

    return edit(kernel, name, change)


def reorder(kernel: Kernel, *names: str) -> Kernel:
    """Loops that are nested directly, in a different order."""

    def change(loop: For) -> Body:
        chain = directly_nested((loop,))[: len(names)]
        known = {loop.index.name: loop for loop in chain}
        if set(known) != set(names):
            raise PrimerError(f"the loops {', '.join(names)} are not nested directly in each other")
        body = chain[-1].body
        for name in reversed(names):
            body = (replace(known[name], body=body),)
        return body

    outermost = next((loop.index.name for loop in loops(kernel.body) if loop.index.name in names), names[0])
    return edit(kernel, outermost, change)


def jam(kernel: Kernel, name: str) -> Kernel:
    """The loop around each store inside it, written out."""
    return edit(kernel, name, lambda loop: sink(independent(loop), loop, "unrolled"))


def vectorize(kernel: Kernel, name: str) -> Kernel:
    """The loop around each store inside it, as the lanes of vectors."""
    return edit(kernel, name, lambda loop: sink(independent(loop), loop, "vectorized"))


def parallel(kernel: Kernel, name: str) -> Kernel:
    """The outermost loop, shared by threads."""
    if name not in [loop.index.name for loop in directly_nested(kernel.body)[:1]]:
        raise PrimerError(f"{name} is not the outermost loop")
    return edit(kernel, name, lambda loop: (replace(loop, body=independent(loop), kind="parallel"),))


def sink(body: Body, loop: For, kind: str) -> Body:
    """A body with a loop around each store.  Local buffers get an axis, so each turn has its own."""

    def around(s: Stmt) -> Body | None:
        match s:
            case Store():
                return (For(loop.index, loop.extent, (s,), kind),)
            case Alloc(old, inner):
                new = replace(old, shape=(*old.shape, loop.extent))

                def own(e: Expr) -> Expr:
                    return Load(new, (*e.index, loop.index)) if isinstance(e, Load) and e.buffer == old else e

                return (Alloc(new, sink(rewritten(inner, own), loop, kind)),)
        return None

    return replaced(body, around)


def independent(loop: For) -> Body:
    """The body of a loop, if its turns store to different places."""
    inside = list(statements(loop.body))
    own = [s.buffer for s in inside if isinstance(s, Alloc)]
    for s in inside:
        if isinstance(s, Store) and s.place.buffer not in own and loop.index not in parts(s.place):
            raise PrimerError(f"all turns of {loop.index} store to {s.place}, so they depend on each other")
    return loop.body


# One schedule serves every kernel in this file.  The last axis of the result becomes lanes.  In a sum, the axis before
# it becomes the register tile, and the channels of a block become the innermost loop, as they are in memory.
#
# Why fourteen?  AVX2 has sixteen vector registers, and a weight and a pixel need one each.  With fewer than eight
# accumulators the multipliers would idle: a multiply-add takes four cycles, and two can start in each cycle.  A row of
# 17 pixels has no such divisor, and is slow here.  The real compiler cuts it into pieces that differ by one.

TILE = 14


def schedule(kernel: Kernel, lanes: int) -> list[tuple[str, Kernel]]:
    """The steps that make a kernel fast, each with the kernel after it.  The first is the kernel as it was lowered."""
    steps = [("lower", kernel)]

    def do(step: Callable[..., Kernel], *args: Any) -> None:
        steps.append((f"{step.__name__}({', '.join(map(str, args))})", step(steps[-1][1], *args)))

    def inner(loop: For, size: int) -> str:
        """The name of a loop over so many of a loop's turns."""
        if size == loop.extent:
            return loop.index.name
        do(split, loop.index.name, size)
        return f"{loop.index.name}_inner"

    axes = directly_nested(kernel.body)
    names = [loop.index.name for loop in loops(kernel.body)[len(axes) :]]
    if not axes:
        return steps
    # The lanes.
    width = block_size(axes[-1].extent, lanes)
    lane = inner(axes[-1], width)
    # The register tile.
    if names and len(axes := directly_nested(steps[-1][1].body)) > 1:
        tile = max(size for size in range(1, TILE + 1) if axes[-2].extent % size == 0)
        if tile > 1:
            do(jam, inner(axes[-2], tile))
    # The order of the sum.
    if names != (wanted := sorted(names, key="cpqk".index)):
        do(reorder, *wanted)
    if width > 1:
        do(vectorize, lane)
    if (outermost := directly_nested(steps[-1][1].body)[:1]) and outermost[0].kind == "for":
        do(parallel, outermost[0].index.name)
    return steps


# In the real compiler: minitvm/codegen/schedule.py (the steps), minitvm/codegen/default_schedule.py, and
# minitvm/codegen/templates (for each kind of kernel a space of tiles, and a prediction of what each one costs).


# ----------------------------------------------------------------------------------------------------------------------
# 8. LLVM IR
#
# LLVM compiles a language close to the machine: typed registers that are assigned once, and blocks of instructions that
# end in a jump.  The emitter prints that language as text.  LLVM selects instructions and allocates registers.
#
# Each kind of loop is printed in its own way.  A plain loop is a block that jumps back to itself.  Its index is a
# *phi*, a register whose value depends on where the jump came from.  An unrolled loop is its body several times, with a
# number for the index.  A vectorized loop is its store once, with vectors in the registers.
#
# What is `x[n, c, y, b]` where b is the lane?  That depends on how far apart two lanes lie in memory.  If they are
# neighbours, it is one load of a vector.  If they are the same element, it is one scalar in all lanes.  Otherwise it is
# loaded lane by lane.  To find out, the emitter writes the position as a *linear form*, a sum of indices times numbers.
# The number in front of the lane is the answer.
#
# A rectifier over four rows of 8 elements.  Each row is one vector, and the loop over rows is parallel:
#
#     entry:
#       br label %loop.n.1
#     loop.n.1:
#       %n.1 = phi i64 [ %begin, %entry ], [ %r11, %loop.n.1 ]
#       %r2 = mul i64 %n.1, 8
#       %r3 = getelementptr inbounds float, ptr %p0, i64 %r2
#       %r4 = load <8 x float>, ptr %r3, align 4
#       %r5 = insertelement <8 x float> poison, float 0x0000000000000000, i64 0
#       %r6 = shufflevector <8 x float> %r5, <8 x float> poison, <8 x i32> zeroinitializer
#       %r7 = fcmp olt <8 x float> %r4, %r6
#       %r8 = select <8 x i1> %r7, <8 x float> %r6, <8 x float> %r4
#       %r9 = mul i64 %n.1, 8
#       %r10 = getelementptr inbounds float, ptr %out, i64 %r9
#       store <8 x float> %r8, ptr %r10, align 4
#       %r11 = add nuw nsw i64 %n.1, 1
#       %r12 = icmp slt i64 %r11, %end
#       br i1 %r12, label %loop.n.1, label %loop.n.1.end

Linear = tuple[dict[Expr, int], int]
"""The number in front of each index, and a number that is added."""
Value = tuple[str, str]
"""A register or a literal, and its type."""

# Two details of the table of scalar functions matter here.  `contract` lets LLVM make one instruction of a product and
# a sum.  `sdiv` rounds towards zero and `//` down, which is the same as no index that is divided here is negative.


def linear(e: Expr) -> Linear:
    """An integer as a linear form.  What is neither a sum nor a multiple, such as ``c // 8``, counts as an index."""
    match e:
        case Num(int(literal)):
            return {}, literal
        case Apply("+" | "-" as fn, (a, b)):
            (terms, offset), (more, other), sign = linear(a), linear(b), 1 if fn == "+" else -1
            merged = {term: terms.get(term, 0) + sign * more.get(term, 0) for term in {**terms, **more}}
            return {term: factor for term, factor in merged.items() if factor}, offset + sign * other
        case Apply("*", (a, Num(int(factor)))):
            terms, offset = linear(a)
            return {term: own * factor for term, own in terms.items()}, offset * factor
    return {e: 1}, 0


class Emitter:
    """The LLVM function of a kernel: ``str(Emitter(kernel))``.

    Its arguments are pointers to the inputs and to the output, and the first and the last turn of the parallel loop.
    """

    def __init__(self, kernel: Kernel) -> None:
        pointers = "".join(f"ptr noalias %{b.name}, " for b in (*kernel.inputs, kernel.output))
        self.head = [f"define void @NAME({pointers}i64 %begin, i64 %end) #0 {{", "entry:"]
        self.lines: list[str] = []
        self.registers = 0
        self.block = "entry"
        self.at: dict[Expr, int | str] = {}
        """The value of an index: a register, or a number in an unrolled loop."""
        self.lane: For | None = None
        """The vectorized loop around what is being printed."""
        self.print_body(kernel.body)

    def __str__(self) -> str:
        return "\n".join([*self.head, *self.lines, "  ret void", "}", ""])

    def new(self, instruction: str) -> str:
        """The register with the result of an instruction."""
        self.registers += 1
        self.lines.append(f"  %r{self.registers} = {instruction}")
        return f"%r{self.registers}"

    def print_body(self, body: Body) -> None:
        """Statements, each kind of loop in its own way."""
        for s in body:
            match s:
                case Store():
                    self.print_store(s)
                case Alloc(buffer, inner):
                    self.head.append(f"  %{buffer.name} = alloca [{prod(buffer.shape)} x float], align 64")
                    self.print_body(inner)
                case For(_, _, inner, "vectorized") if self.lane is None:
                    self.lane = s
                    self.print_body(inner)
                    self.lane = None
                case For(index, extent, inner, "unrolled" | "vectorized"):
                    for self.at[index] in range(extent):
                        self.print_body(inner)
                case For():
                    self.print_loop(s)

    def print_loop(self, loop: For) -> None:
        """A block that jumps back to itself until all turns are done."""
        begin, end = ("%begin", "%end") if loop.kind == "parallel" else ("0", str(loop.extent))
        self.registers += 1
        index, head = f"%{loop.index}.{self.registers}", f"loop.{loop.index}.{self.registers}"
        before, phi = self.block, len(self.lines) + 2
        self.lines += [f"  br label %{head}", f"{head}:", "the phi, which needs the end of the loop"]
        self.block, self.at[loop.index] = head, index
        self.print_body(loop.body)
        following = self.new(f"add nuw nsw i64 {index}, 1")
        self.lines[phi] = f"  {index} = phi i64 [ {begin}, %{before} ], [ {following}, %{self.block} ]"
        again = self.new(f"icmp slt i64 {following}, {end}")
        self.block = f"{head}.end"
        self.lines += [f"  br i1 {again}, label %{head}, label %{self.block}", f"{self.block}:"]

    def print_store(self, s: Store) -> None:
        """One store of a vector if lanes are neighbours in memory, else one for each lane."""
        terms, offset = self.position(s.place)
        if self.lane and terms.pop(self.lane.index, 0) != 1:
            self.lane_by_lane(lambda: self.print_store(s))
            return
        value, kind = self.spread(*self.value(s.value))
        self.lines.append(f"  store {kind} {value}, ptr {self.pointer(s.place, terms, offset)}, align 4")

    # Expressions.

    def value(self, e: Expr) -> Value:
        """An expression: a vector if it depends on the lane, else a scalar."""
        match e:
            case Num(float(literal)):
                return f"0x{np.float64(np.float32(literal)).view(np.uint64):016X}", "float"
            case Num(literal):
                return str(literal), "i64"
            case Load():
                return self.load(e)
            case Apply("exp" | "sqrt" | "select", (first, *_)) if self.lane and self.lane.index in parts(first):
                return self.gather(e)
            case Apply(fn, args):
                return self.apply(fn, *map(self.value, args))
        return str(self.at[e]), "i64"

    def apply(self, fn: str, *values: Value) -> Value:
        """A scalar function.  If one of its operands is a vector, the other floats become vectors too."""
        if any(kind.startswith("<") for _, kind in values):
            values = tuple(self.spread(*value) for value in values)
        (first, _), (last, kind) = values[0], values[-1]
        if fn in ("max", "min"):
            less, condition = self.apply("<", *values)
            return self.apply("select", (less, condition), *(values[::-1] if fn == "max" else values))
        if fn == "select":
            return self.new("select " + ", ".join(f"{kind} {value}" for value, kind in values)), kind
        if fn in ("exp", "sqrt"):
            return self.new(f"call float @llvm.{fn}.f32(float {first})"), kind
        result = self.new(f"{SCALAR[fn][1 + ('float' in kind)]} {kind} {first}, {last}")
        return result, kind.replace("float", "i1").replace("i64", "i1") if fn == "<" else kind

    def spread(self, value: str, kind: str) -> Value:
        """A float in all lanes.  Conditions, and floats outside of vectorized loops, stay scalars."""
        if not self.lane or kind != "float":
            return value, kind
        vector, count = f"<{self.lane.extent} x float>", self.lane.extent
        one = self.new(f"insertelement {vector} poison, float {value}, i64 0")
        return self.new(f"shufflevector {vector} {one}, {vector} poison, <{count} x i32> zeroinitializer"), vector

    def load(self, e: Load) -> Value:
        """An element, a vector of neighbours, or a vector of elements from anywhere."""
        (terms, offset), kind = self.position(e), "float"
        if self.lane:
            apart = terms.pop(self.lane.index, 0)
            if apart not in (0, 1) or any(self.lane.index in parts(term) for term in terms):
                return self.gather(e)
            kind = f"<{self.lane.extent} x float>" if apart else "float"
        return self.new(f"load {kind}, ptr {self.pointer(e, terms, offset)}, align 4"), kind

    def gather(self, e: Expr) -> Value:
        """A vector, lane by lane."""
        scalars = self.lane_by_lane(lambda: self.value(e)[0])
        vector, found = f"<{len(scalars)} x float>", "poison"
        for k, scalar in enumerate(scalars):
            found = self.new(f"insertelement {vector} {found}, float {scalar}, i64 {k}")
        return found, vector

    def lane_by_lane(self, emit: Callable[[], Any]) -> list[Any]:
        """The vectorized loop as an unrolled one."""
        loop, self.lane, found = self.lane, None, []
        assert loop is not None
        for k in range(loop.extent):
            self.at[loop.index] = k
            found.append(emit())
        self.lane = loop
        del self.at[loop.index]
        return found

    # Addresses.  Pixels of a register tile differ in the offset alone.  LLVM sees that the rest of their sums is equal.

    def position(self, place: Load) -> Linear:
        """The position of an element in its buffer, with numbers for the indices of unrolled loops."""
        numbers = {index: Num(at) for index, at in self.at.items() if isinstance(at, int)}
        return linear(transform(position(place.buffer.shape, place.index), lambda part: numbers.get(part, part)))

    def pointer(self, place: Load, terms: dict[Expr, int], offset: int) -> str:
        """The register with the address of an element."""
        pointer, found = f"%{place.buffer.name}", ""
        for term, factor in terms.items():
            scaled = self.apply("*", self.value(term), (str(factor), "i64"))
            found = self.apply("+", (found, "i64"), scaled)[0] if found else scaled[0]
        for distance in (found, str(offset)):
            if distance not in ("", "0"):
                pointer = self.new(f"getelementptr inbounds float, ptr {pointer}, i64 {distance}")
        return pointer


def llvm_module(kernels: Sequence[Kernel], lanes: int) -> tuple[str, list[str]]:
    """One LLVM module for kernels, and the name of the function of each.  Equal kernels share a function."""
    names: dict[str, str] = {}
    found = [names.setdefault(str(Emitter(kernel)), f"{kernel.name}_{len(names)}") for kernel in kernels]
    head = [f"declare float @llvm.{fn}.f32(float)" for fn in ("exp", "sqrt")]
    head.append(f'attributes #0 = {{ nounwind "prefer-vector-width"="{32 * lanes}" }}')
    return "\n".join([*head, *(text.replace("@NAME", f"@{name}", 1) for text, name in names.items())]), found


def host_lanes() -> int:
    """Floats in a vector: 16 with AVX-512, else 8.  LLVM cuts vectors in two where registers are shorter."""
    return 16 if llvm.get_host_cpu_features().get("avx512f") else 8


def machine_code(text: str) -> Any:
    """LLVM IR as machine code for this processor, in memory.  ``get_function_address(name)`` finds a function."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(llvm.get_host_cpu_name(), features, opt=3)
    module = llvm.parse_assembly(text)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


# In the real compiler: minitvm/codegen/llvm/emit.py (statements), minitvm/codegen/llvm/express.py (expressions),
# minitvm/codegen/llvm/memory.py (loads and stores of vectors), minitvm/codegen/llvm/compile.py (processors and object
# code), minitvm/codegen/legalize.py (exp as a polynomial that vectorizes), minitvm/codegen/cuda (the same for GPUs).


# ----------------------------------------------------------------------------------------------------------------------
# 9. The memory plan
#
# A value needs memory from the step that computes it to the last step that reads it.  This span is its *liveness*.  Two
# values whose spans do not overlap can have the same place.  All values lie in one piece of memory, the *arena*.  The
# plan takes the largest value first, and gives each the lowest place that is free during its span.

Span = tuple[int, int]
"""The first and the last step at which a value is needed.  Step k is the k-th call."""


def live_spans(function: Function) -> dict[Node, Span]:
    """The liveness of all nodes.  Constants are needed from the start, and constants and outputs to the end."""
    first: dict[Node, int] = {call: step for step, call in enumerate(function.calls)}
    spans = {}
    for node, users in function.users().items():
        stays = isinstance(node, Constant) or node in function.outputs
        start = first.get(node, 0)
        spans[node] = (start, len(first) if stays else max([start, *(first[user] for user in users)]))
    return spans


def plan_memory(spans: Mapping[Node, Span]) -> tuple[dict[Node, int], int]:
    """The offset of each node in bytes, and the size of the arena."""
    offsets: dict[Node, int] = {}
    for node in sorted(spans, key=bytes_of, reverse=True):
        place, (first, last) = 0, spans[node]
        for other in sorted(offsets, key=lambda other: offsets[other]):
            overlaps = spans[other][0] <= last and first <= spans[other][1]
            if overlaps and place + bytes_of(node) > offsets[other]:
                place = max(place, offsets[other] + bytes_of(other))
        offsets[node] = place
    return offsets, max(place + bytes_of(node) for node, place in offsets.items())


def bytes_of(node: Node) -> int:
    """The size of a value, in whole cache lines of 64 bytes."""
    return -(-4 * prod(node.shape) // 64) * 64


# In the real compiler: minitvm/runtime/memory.py (the plan), minitvm/passes/share_memory.py (results that lie where an
# operand lay), minitvm/driver/program.py (from a graph to a list of steps).


# ----------------------------------------------------------------------------------------------------------------------
# 10. The executor
#
# A compiled model is a list of launches: a function, and the addresses of its operands and its result.  A run copies
# the inputs into the arena, calls one function after the other, and copies the outputs out.


def optimize(function: Function, lanes: int) -> Iterator[tuple[str, Function]]:
    """The passes in order: the name of each, and the graph after it."""
    rules: dict[str, Rule] = {
        "SimplifyInference": simplify_inference,
        "FoldConstant": fold_constant,
        "FoldScaleAxis": fold_scale_axis,
        "AlterOpLayout": lambda call, uses: alter_op_layout(call, lanes),
    }
    for name in ("SimplifyInference", "FoldConstant", "FoldScaleAxis", "FoldConstant", "AlterOpLayout", "FoldConstant"):
        function = rewrite(rules[name], function)
        yield name, function
    yield "FuseOps", fuse_ops(function)


class Executable:
    """A compiled graph.  Calling it with arrays for its inputs, in order, returns a list of its outputs.

    ``stages`` has the graph after each pass, ``schedules`` the steps of each kernel, ``llvm`` the LLVM IR.
    """

    def __init__(self, function: Function, lanes: int | None = None, threads: int = 1) -> None:
        lanes, self.threads = lanes or host_lanes(), threads
        self.stages = [("import", function), *optimize(function, lanes)]
        self.function = self.stages[-1][1]
        calls = self.function.calls
        self.schedules = [schedule(lower(call.op, [arg.shape for arg in call.args]), lanes) for call in calls]
        kernels = [steps[-1][1] for steps in self.schedules]
        self.llvm, names = llvm_module(kernels, lanes)
        self.engine = machine_code(self.llvm)
        self.offsets, size = plan_memory(live_spans(self.function))
        memory = np.zeros(size + 64, np.uint8)
        self.arena = memory[-memory.ctypes.data % 64 :][:size]
        for node in self.offsets:
            if isinstance(node, Constant):
                self.array(node)[...] = node.value
        self.launches = [self.launch(*each) for each in zip(calls, kernels, names, strict=True)]

    def array(self, node: Node) -> Array:
        """A value where it lies in the arena."""
        view: Array = np.ndarray(node.shape, np.float32, self.arena, self.offsets[node])
        return view

    def launch(self, call: Call, kernel: Kernel, name: str) -> Callable[[Executor], None]:
        """A function that runs a kernel, its parallel loop in as many shares as there are threads."""
        pointers = [self.array(node).ctypes.data for node in (*call.args, call)]
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers), ctypes.c_int64, ctypes.c_int64)
        native = signature(self.engine.get_function_address(name))
        turns = next((loop.extent for loop in loops(kernel.body) if loop.kind == "parallel"), 1)
        cuts = sorted({turns * k // self.threads for k in range(self.threads + 1)})

        def run(pool: Executor) -> None:
            if len(cuts) == 2:
                native(*pointers, 0, turns)
            else:
                list(pool.map(lambda share: native(*pointers, *share), pairwise(cuts)))

        return run

    def __call__(self, *arrays: Array) -> list[Array]:
        for param, array in zip(self.function.params, arrays, strict=True):
            if np.shape(array) != param.shape:
                raise PrimerError(f"{param.name} has the shape {param.shape}, not {np.shape(array)}")
            self.array(param)[...] = array
        with ThreadPoolExecutor(self.threads) as pool:
            for launch in self.launches:
                launch(pool)
        return [self.array(node).copy() for node in self.function.outputs]


# In the real compiler: minitvm/driver/compile.py (all stages in one function), minitvm/runtime/library.py (a compiled
# model, which can be saved), minitvm/runtime/instance.py (its memory and threads), minitvm/runtime/executor.py.


# ----------------------------------------------------------------------------------------------------------------------
# 11. The command
#
# It compiles a model, prints each stage, and says what is on a photograph.


def photograph(path: str | Path) -> Array:
    """An image as EfficientNet-Lite0 wants it: its middle, 224 x 224, (1, 3, 224, 224), about -1 to 1."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
    return np.ascontiguousarray(((pixels - 127) / 128).transpose(2, 0, 1)[np.newaxis])


def classes(logits: Array, most: int = 5) -> list[tuple[str, float]]:
    """The likeliest classes of ImageNet, with their probabilities."""
    labels = (Path(__file__).parent / "demo_data" / "imagenet_labels.txt").read_text(encoding="utf-8").splitlines()
    powers = np.exp(logits.reshape(-1) - logits.max())
    return [(labels[k], float(powers[k] / powers.sum())) for k in np.argsort(-powers)[:most]]


def excerpt(text: str, most: int = 12) -> str:
    """The first lines of a text."""
    lines = text.splitlines()
    return "\n".join([*lines[:most], f"  ... {len(lines) - most} lines more"] if len(lines) > most + 1 else lines)


def show(model: Executable) -> None:
    """All stages: each graph by its first lines, and the kernel with the most steps."""
    for name, graph in model.stages:
        print(f"\n--- {name}: {len(graph.calls)} calls\n{excerpt(str(graph))}")
    steps = max(model.schedules, key=len)
    for name, kernel in steps:
        print(f"\n--- {name}\n{kernel}")
    print(f"\n--- LLVM IR of this kernel\n{excerpt(str(Emitter(steps[-1][1])), 40)}")
    megabytes = sum(map(bytes_of, model.offsets)) / 2**20
    print(f"\n--- memory: {len(model.offsets)} values, {megabytes:.1f} MB, lie in {model.arena.nbytes / 2**20:.1f} MB")


def main(path: str, *images: str) -> None:
    start = time.perf_counter()
    model = Executable(from_onnx(onnx.load(path)))
    seconds = time.perf_counter() - start
    show(model)
    print(f"\n--- compiled in {seconds:.1f} s: {len(model.launches)} kernels")
    for image in images:
        pixels = photograph(image)
        model(pixels)  # the first run touches its memory for the first time
        start = time.perf_counter()
        logits = model(pixels)[0]
        print(f"\n--- {image}: {1e3 * (time.perf_counter() - start):.1f} ms")
        print("\n".join(f"  {chance:6.1%}  {label}" for label, chance in classes(logits)))


# In the real compiler: minitvm/cli/demo.py (photographs), minitvm/cli/show.py (any stage of any model).

if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit("usage: python -m minitvm.primer model.onnx [image ...]")
