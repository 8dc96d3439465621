"""FuseAttention: two products with a softmax between them become one operator, where that is predicted to be faster.

    scores = batch_matmul(query, key) * scale + mask          (or where(mask, scores, fill); several masks)
    batch_matmul(softmax(scores), value)                  ->  nn.attention(query, key, value, mask)

What lies between the products comes in any order and number, with reshapes that take heads out of the batch and back,
casts to single precision, and probabilities that are no numbers made zero; so the way down from the second product to
the first is walked, not spelled out as patterns.  What moves heads of queries, keys and values goes, or is left to be
read in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.dims import Dim, is_anonymous
from minitvm.ir.expr import Call, Expr, Function, Module, span_scope
from minitvm.ir.ops.elemwise import Add, CastTo, Divide, Multiply, Where
from minitvm.ir.ops.nn_attention import Attention
from minitvm.ir.ops.nn_dense import BatchMatmul
from minitvm.ir.ops.nn_norm import Softmax
from minitvm.ir.ops.transform import Reshape, Transpose
from minitvm.ir.pattern import call, filled, match, uniform, value
from minitvm.ir.types import leaves, shape_text
from minitvm.ir.visitor import as_function, calls, rewrite, span_of, use_counts
from minitvm.passes.bound import Bound, Of
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import Slower, in_pipeline
from minitvm.passes.scales import MODERATE

Shape: TypeAlias = tuple[Dim, ...]
_SAFE = call(Where, call("isnan", value("x")), filled(0), value("x"))


@dataclass
class _Chain:
    """What was met on the way from the second product down to the first."""

    outer: Call
    inner: Call | None = None
    between: list[Call] = field(default_factory=list)
    heads: Shape = ()
    """(batch, heads, length, places), where some tensor on the way was of that shape."""
    scale: float = 1.0
    added: list[tuple[Expr, Call]] = field(default_factory=list)
    """Masks, and who adds them."""
    asked: list[tuple[Expr, Call]] = field(default_factory=list)
    fill: float = -math.inf
    empty_rows: Literal["nan", "zero"] = "nan"
    asked_twice: Call | None = None
    """Probabilities that are asked whether they are numbers."""

    @property
    def replaced(self) -> list[Call]:
        """All calls that the operator stands for, with what moved and scaled its operands."""
        assert self.inner is not None
        asked = [a for node in self.between for a in node.args if isinstance(a, Call) and self.asked_twice in a.args]
        moves = [m for x in (*self.inner.args, self.outer.args[1]) for m in _moves(x)]
        return [self.outer, *self.between, *asked, *moves]


_BOUND = Bound(8, Of.SUMS, "all scales together are between 2^-64 and 2^64")


@in_pipeline(after="EliminateCommonSubexpr", given="slower")
@dataclass(repr=False, eq=False)
class FuseAttention(FunctionPass, opt_level=3, bound=_BOUND):
    """Two products with a scale, masks and a softmax between them become one operator, where it is faster.

    ``slower`` says where the operator would be slower than its parts; without it, it nowhere is.
    """

    slower: Slower | None = None
    needs = (Softmax,)

    def refusal(self, made: Call, scale: float) -> Declined | None:
        """The reason why the operator does not take its parts' place."""
        refusal = MODERATE.refusal(np.asarray(scale))
        return refusal if refusal or self.slower is None else self.slower(made)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        uses = use_counts(function)
        found: dict[Expr, _Chain] = {}
        for node in calls(function):
            if isinstance(node.op, BatchMatmul) and _to_softmax(node.args[0]):
                answer = _walked(node, uses)
                if isinstance(answer, Declined):
                    decide(self.info.name, node, answer)
                else:
                    found[node] = answer
        return as_function(rewrite(function, _Rewriting(self, found).visit)) if found else function


def _to_softmax(node: Expr) -> bool:
    """True if a factor is made of a softmax, as far as its shape goes."""
    while isinstance(node, Call) and not isinstance(node.op, Softmax):
        safe = match(_SAFE, node)
        if safe is None and not isinstance(node.op, (Reshape, CastTo)):
            return False
        node = node.args[0] if safe is None else safe["x"]
    return isinstance(node, Call)


# --- the way down -----------------------------------------------------------------------------------------------


def _walked(outer: Call, uses: Mapping[Expr, int]) -> _Chain | Declined:
    chain, node = _Chain(outer), outer.args[0]
    while chain.inner is None:
        if not isinstance(node, Call):
            return Declined("its probabilities are made of no product")
        if _is_open(node) or _is_open(outer):
            return Declined(f"sizes of {name_of(node)} are known only when the model runs")
        if uses[node] > (2 if node is chain.asked_twice else 1):
            return Declined(f"{name_of(node)} between its products is used elsewhere too")
        chain.between.append(node)
        below = _below(chain, node)
        if isinstance(below, Declined):
            return below
        node = below
    return _checked(chain)


def _is_open(node: Call) -> bool:
    """True if sizes come up inside the model, which no kernel is made for."""
    return any(is_anonymous(d) for x in (node, *node.args) for type_ in leaves(x.type) for d in type_.shape)


def _below(chain: _Chain, node: Call) -> Expr | Declined:
    """The operand that leads down to the first product, the product itself where it is there."""
    safe = match(_SAFE, node)
    if safe is not None and isinstance(safe["x"], Call):
        chain.empty_rows, chain.asked_twice = "zero", safe["x"]
        return chain.asked_twice
    if isinstance(node.op, (Reshape, CastTo)):
        return _reshaped(chain, node)
    return _normalized(node, node.op) if isinstance(node.op, Softmax) else _score(chain, node)


def _normalized(node: Call, op: Softmax) -> Expr | Declined:
    rank = node.tensor_type.rank
    return node.args[0] if op.axis % rank == rank - 1 else Declined("its softmax is not over the places")


def _reshaped(chain: _Chain, node: Call) -> Expr | Declined:
    """Heads may leave the batch or return to it."""
    below = node.args[0]
    if isinstance(node.op, CastTo):
        return below if below.tensor_type.is_float and node.tensor_type.is_float else Declined("it casts scores")
    for shape in (node.shape, below.shape):
        if len(shape) == 4:
            if chain.heads not in ((), tuple(shape)):
                return Declined(f"its scores are {shape_text(chain.heads)} and {shape_text(shape)}")
            chain.heads = tuple(shape)
    if tuple(node.shape[-2:]) != tuple(below.shape[-2:]) or {len(node.shape), len(below.shape)} - {3, 4}:
        return Declined(f"its scores are reshaped from {below.tensor_type} to {node.tensor_type}")
    return below


def _score(chain: _Chain, node: Call) -> Expr | Declined:
    """A scale, a mask, or the product itself."""
    if isinstance(node.op, BatchMatmul):
        chain.inner = node
        return node
    if isinstance(node.op, (Multiply, Divide)):
        scaled = _scaled(node)
        if scaled is None:
            return Declined(f"{name_of(node)} is no scale of the product")
        chain.scale *= scaled[1]
        return scaled[0]
    return _mask(chain, node)


def _mask(chain: _Chain, node: Call) -> Expr | Declined:
    """What is below a mask, which is added or chooses."""
    scores = next((a for a in node.args if _is_scores(a, node)), None)
    if scores is None or chain.asked or (chain.added and isinstance(node.op, Where)):
        return Declined(f"{name_of(node)} stands between its products")
    if chain.scale != 1:
        return Declined("what is scaled is masked already")
    if isinstance(node.op, Add):
        chain.added.append((node.args[1] if scores is node.args[0] else node.args[0], node))
        return scores
    if not isinstance(node.op, Where) or scores is not node.args[1] or uniform(node.args[2]) is None:
        return Declined(f"{name_of(node)} stands between its products")
    chain.asked.append((node.args[0], node))
    chain.fill = float(uniform(node.args[2]))
    return scores


def _scaled(node: Call) -> tuple[Expr, float] | None:
    """What a call multiplies by one number, and the number."""
    a, b = node.args
    if isinstance(node.op, Divide):
        return None if not uniform(b) or a.shape != node.shape else (a, 1 / float(uniform(b)))
    for x, factor in ((a, b), (b, a)):
        if isinstance(node.op, Multiply) and uniform(factor) is not None and x.shape == node.shape:
            return x, float(uniform(factor))
    return None


def _is_scores(node: Expr, like: Call) -> bool:
    """True if a product is below, through what may stand before a mask."""
    if not isinstance(node, Call) or tuple(node.shape) != tuple(like.shape):
        return False
    while isinstance(node, Call) and isinstance(node.op, (Reshape, CastTo, Multiply, Divide, Add, Where)):
        below = [a for a in node.args if isinstance(a, Call) and a.tensor_type.is_float]
        found = [a for a in below if a.tensor_type.rank >= 3 and a.shape[-2:] == node.shape[-2:]]
        if not found:
            return False
        node = found[0]
    return isinstance(node, Call) and isinstance(node.op, BatchMatmul)


def _checked(chain: _Chain) -> _Chain | Declined:
    """With its heads known."""
    inner, outer = chain.inner, chain.outer
    assert inner is not None
    if inner.args[0].shape[0] != inner.args[1].shape[0] or outer.args[0].shape[0] != outer.args[1].shape[0]:
        return Declined("its heads share keys or values")
    if any(op.transpose_a or op.out_dtype not in ("", outer.dtype, "float32") for op in _products(chain)):
        return Declined("its products are turned, or sums of other types")
    if len({arg.dtype for arg in (*inner.args, outer.args[1])}) > 1 or not outer.tensor_type.is_float:
        return Declined("its queries, keys and values are of several dtypes, or no floats")
    batch, length, places = inner.shape
    heads = chain.heads or (*_apart(inner.args[0]), length, places)
    if heads[2:] != (length, places) or heads[0] * heads[1] != batch:
        return Declined(f"its heads are {shape_text(heads)} where its scores are {inner.tensor_type}")
    chain.heads = heads
    return chain


def _products(chain: _Chain) -> list[BatchMatmul]:
    return [c.op for c in (chain.inner, chain.outer) if c is not None and isinstance(c.op, BatchMatmul)]


def _apart(x: Expr) -> Shape:
    """Batch and heads of queries, where they have just been put together; else each is a head of its own batch."""
    node = x
    while isinstance(node, Call) and isinstance(node.op, (Multiply, Divide)):
        node = node.args[0]
    below = node.args[0].shape if isinstance(node, Call) and isinstance(node.op, Reshape) else ()
    return below[:2] if len(below) == 4 and below[2:] == node.shape[1:] else (x.shape[0], 1)


# --- the operator -----------------------------------------------------------------------------------------------


class _Rewriting:
    def __init__(self, owner: FuseAttention, found: dict[Expr, _Chain]) -> None:
        self.owner, self.found = owner, found
        self.done: dict[Expr, Expr] = {}
        self.made: set[Expr] = set()

    def visit(self, node: Expr, new: Expr) -> Expr:
        self.done[node] = new
        chain = self.found.get(node)
        self.done[node] = self._tidied(new) if chain is None else self._attention(chain, new)
        return self.done[node]

    def _attention(self, chain: _Chain, new: Expr) -> Expr:
        """The operator, its heads put where the second product's are; ``new`` where it would be slower."""
        inner, outer = chain.inner, chain.outer
        assert inner is not None
        inner_op, outer_op = _products(chain)
        with span_scope(span_of(*chain.replaced)):
            (query, first), (key, second) = (_unscaled(self.done[a]) for a in inner.args)
            operands = [
                _by_rows(query, chain.heads[:2], False),
                _by_rows(key, chain.heads[:2], not inner_op.transpose_b),
                _by_rows(self.done[outer.args[1]], chain.heads[:2], outer_op.transpose_b),
                *self._mask(chain),
            ]
            op = Attention(chain.scale * first * second, chain.fill, chain.empty_rows)
            made = Call(op, operands)
            refusal = self.owner.refusal(made, op.scale)
            decide(self.owner.info.name, outer, refusal or f"is one operator with {name_of(inner)}")
            if refusal is not None:
                return new
            transposed = ir.transpose(made, axes=(0, 2, 1, 3))
            result = ir.reshape(transposed, newshape=outer.shape, allowzero=True)
        self.made |= {transposed, result}
        return result

    def _mask(self, chain: _Chain) -> list[Expr]:
        """None, or all that is added as one."""
        found = [_with_heads(self.done[mask], by, chain.heads) for mask, by in chain.asked or chain.added]
        return [functools.reduce(ir.add, found)] if found else []

    def _tidied(self, node: Expr) -> Expr:
        """What undoes the moves of a result goes."""
        below = node.args[0] if isinstance(node, Call) and node.args and node.args[0] in self.made else None
        if not isinstance(node, Call) or not isinstance(below, Call):
            return node
        if isinstance(node.op, Reshape) and isinstance(below.op, Reshape) and node.shape == below.args[0].shape:
            return below.args[0]
        if isinstance(node.op, Transpose) and isinstance(below.op, Transpose):
            return _transposed(below, node.op.order(4))
        return node


def _with_heads(mask: Expr, by: Call, heads: Shape) -> Expr:
    """A mask of scores whose heads lie in the batch, apart again."""
    if by.tensor_type.rank == 4 or mask.tensor_type.rank < 3 or mask.shape[0] == 1:
        return mask
    return ir.reshape(mask, newshape=(*heads[:2], *mask.shape[1:]), allowzero=True)


def _unscaled(x: Expr) -> tuple[Expr, float]:
    """``x`` without the number it is multiplied by, and that number."""
    if not isinstance(x, Call):
        return x, 1.0
    scaled = _scaled(x) if isinstance(x.op, (Multiply, Divide)) else None
    if scaled is not None:
        inner, factor = _unscaled(scaled[0])
        return inner, factor * scaled[1]
    if isinstance(x.op, (Reshape, Transpose)):
        inner, factor = _unscaled(x.args[0])
        return (x if factor == 1 else Call(x.op, (inner,))), factor
    return x, 1.0


def _moves(x: Expr) -> Iterator[Call]:
    """The calls that scale ``x`` and move its elements."""
    while isinstance(x, Call) and isinstance(x.op, (Reshape, Transpose, Multiply, Divide)):
        yield x
        x = x.args[0]


def _by_rows(x: Expr, heads: Shape, swapped: bool) -> Expr:
    """(batch * heads, length, size), or with the last two ``swapped``, as (batch, length, heads, size)."""
    return _transposed(_split(x, heads), (0, 3, 1, 2) if swapped else (0, 2, 1, 3))


def _split(x: Expr, heads: Shape) -> Expr:
    """(batch * heads, ...) as (batch, heads, ...), looking below what put them together or turned them."""
    if isinstance(x, Call) and isinstance(x.op, Reshape) and x.args[0].shape == (*heads, *x.shape[1:]):
        return x.args[0]
    if isinstance(x, Call) and isinstance(x.op, Transpose) and x.op.order(3) == (0, 2, 1):
        return _transposed(_split(x.args[0], heads), (0, 1, 3, 2))
    return ir.reshape(x, newshape=(*heads, *x.shape[1:]), allowzero=True)


def _transposed(x: Expr, axes: Sequence[int]) -> Expr:
    """The transpose, together with those that it meets."""
    if isinstance(x, Call) and isinstance(x.op, Transpose):
        first = x.op.order(x.tensor_type.rank)
        return _transposed(x.args[0], [first[a] for a in axes])
    below = x.args[0] if isinstance(x, Call) and isinstance(x.op, Reshape) else None
    if isinstance(below, Call) and isinstance(below.op, (Reshape, Transpose)) and below.shape[1:] == x.shape[2:]:
        apart = _split(below, x.shape[:2])
        if not (isinstance(apart, Call) and below in apart.args):
            return _transposed(apart, axes)
    return x if tuple(axes) == tuple(range(len(axes))) else ir.transpose(x, axes=tuple(axes))
