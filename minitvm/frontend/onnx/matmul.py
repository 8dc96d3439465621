"""ONNX matrix products: MatMul, Gemm, Einsum."""

import math

import numpy as np

from minitvm.frontend.onnx.nn import summed_in
from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, rank, scalar, with_shapes
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.tensor import known_product, reshaped
from minitvm.ir.dims import common_shape, with_ones
from minitvm.ir.expr import Expr
from minitvm.ir.types import shape_text


def transposed(x: Expr) -> Expr:
    return emit("transpose", x, axes=(1, 0))


@onnx_op("MatMul", since=1)
def matmul_op(node: OnnxNode) -> Expr:
    return matmul(node, node[0], node[1])


def matmul(node: OnnxNode, a: Expr, b: Expr, out_dtype: str = "") -> Expr:
    """numpy's ``@``.  A matrix on the right is a dense layer over all rows of the left; others are batched."""
    if rank(a) == 0 or rank(b) == 0:
        raise node.fail(f"takes no scalars: {a.tensor_type} and {b.tensor_type}")
    if rank(a) == 1:
        product = matmul(node, emit("expand_dims", a, axis=0), b, out_dtype)
        return emit("squeeze", product, axis=(rank(product) - (1 if rank(b) == 1 else 2),))
    if rank(b) == 1:
        product = matmul(node, a, emit("expand_dims", b, axis=1), out_dtype)
        return emit("squeeze", product, axis=(rank(product) - 1,))
    return _rows_by_matrix(a, b, out_dtype) if rank(b) == 2 else _batched(node, a, b, out_dtype)


def _rows_by_matrix(a: Expr, b: Expr, out_dtype: str) -> Expr:
    """(..., k) by (k, n): one dense over all rows."""
    k, n = dims(b)
    product = emit("nn.dense", flat_rows(a, k), transposed(b), out_dtype=out_dtype)
    return product if rank(a) == 2 else unflattened(product, (*dims(a)[:-1], n))


def flat_rows(x: Expr, depth: int | None) -> Expr:
    """(..., depth) -> (rows, depth)."""
    newshape = (known_product(dims(x)[:-1]), -1 if depth is None else depth)
    return x if rank(x) == 2 else emit("reshape", x, newshape=newshape, allowzero=True)


def unflattened(x: Expr, shape: tuple[int | None, ...]) -> Expr:
    """``x`` in ``shape``, of which one dimension may be unknown."""
    return reshaped(x, [-1 if d is None else d for d in shape], allowzero=True)


def _batched(node: OnnxNode, a: Expr, b: Expr, out_dtype: str) -> Expr:
    """(..., m, k) by (..., k, n); batches are broadcast, one that is 1 throughout is left to the operator."""
    alone = with_ones(*(x.tensor_type.shape[:-2] for x in (a, b)))
    a, b = with_shapes((a, b), [(*own, *x.tensor_type.shape[-2:]) for own, x in zip(alone, (a, b), strict=True)])
    batch = _broadcast(dims(a)[:-2], dims(b)[:-2])
    flat = [_flat_batch(node, x, batch) for x in (a, b)]
    product = emit("nn.batch_matmul", *flat, transpose_b=False, out_dtype=out_dtype)
    return unflattened(product, (*batch, dims(a)[-2], dims(b)[-1]))


def _broadcast(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> tuple[int | None, ...]:
    if None not in (*a, *b):
        return common_shape(a, b)  # type: ignore[arg-type]
    length = max(len(a), len(b))
    padded = ((1,) * (length - len(x)) + x for x in (a, b))
    return tuple(q if p == 1 else p if q == 1 or p == q or q is None else q for p, q in zip(*padded, strict=True))


def _flat_batch(node: OnnxNode, x: Expr, batch: tuple[int | None, ...]) -> Expr:
    """``x`` with one batch dimension.  One that is 1 throughout stays so: the operator repeats it."""
    own, matrix = dims(x)[:-2], dims(x)[-2:]
    if all(d == 1 for d in own):
        return unflattened(x, (1, *matrix))
    if own != batch:
        if None in (*batch, *matrix):
            raise node.unknown(f"{x.tensor_type}, not known as a whole, cannot be repeated to {shape_text(batch)}")
        x = emit("broadcast_to", x, shape=(*batch, *matrix))
    count = known_product(batch)
    return unflattened(x, (None if count == -1 else count, *matrix)) if len(batch) > 1 else x


@onnx_op("Gemm", since=7)
def gemm(node: OnnxNode) -> Expr:
    """alpha * A' B' + beta * C, with A' and B' transposed on demand."""
    a = transposed(node[0]) if node.attr("transA") else node[0]
    weight = node[1] if node.attr("transB") else transposed(node[1])
    alpha, beta, bias = node.attr("alpha"), node.attr("beta"), node.get(2)
    is_float = a.tensor_type.is_float
    wide = (summed_in(a, bias) if is_float else "") or wide_enough(a, alpha, beta)
    result = scaled(cast(emit("nn.dense", a, weight, out_dtype=wide if is_float else ""), wide), alpha)
    if bias is not None and beta != 0:
        result = with_bias(result, scaled(cast(bias, wide), beta))
    return cast(result, a.dtype)


def wide_enough(x: Expr, *factors: float) -> str:
    """The dtype in which products of ``x`` are scaled: integers keep theirs only where the factors are integers of
    it, and float16 does not hold every product whose multiple it holds."""
    if x.tensor_type.is_float:
        return "float32" if x.dtype == "float16" and any(f != 1 for f in factors) else x.dtype
    info = np.iinfo(x.dtype)
    whole = all(float(f).is_integer() and info.min <= f <= info.max for f in factors)
    return x.dtype if whole else "float64"


def scaled(x: Expr, factor: float) -> Expr:
    return x if factor == 1 else emit("multiply", x, scalar(factor, x))


def with_bias(x: Expr, bias: Expr) -> Expr:
    """x: (m, n) plus a bias that broadcasts to it; one value per column is ``nn.bias_add``."""
    columns = dims(x)[1]
    if columns is not None and dims(bias) in ((columns,), (1, columns)):
        return emit("nn.bias_add", x, reshaped(bias, [columns]), axis=1)
    return emit("add", x, bias)


@onnx_op("Einsum", since=12)
def einsum(node: OnnxNode) -> Expr:
    """Pair by pair as batched matrix products, of diagonals where a letter is repeated within one operand."""
    terms, result = _einsum_terms(node)
    diagonals = [_diagonal(node[i], term) for i, term in enumerate(terms)]
    values, terms = [value for value, _ in diagonals], [term for _, term in diagonals]
    value, letters = values[0], terms[0]
    for position in range(1, len(values)):
        later = set(result).union(*terms[position + 1 :])
        value, letters = _contract(value, letters, values[position], terms[position], later)
    return _arranged(value, letters, result)


def _diagonal(x: Expr, letters: str) -> tuple[Expr, str]:
    """Elements whose indices agree wherever a letter is repeated: each ``n + 1``-th of ``n * n``."""
    for c in letters:
        if letters.count(c) > 1:
            p, q = letters.index(c), letters.rindex(c)
            kept = [d for d in range(len(letters)) if d not in (p, q)]
            last = emit("transpose", x, axes=(*kept, p, q))
            n, rest = x.shape[p], [x.shape[d] for d in kept]
            flat, axes = reshaped(last, [*rest, n * n]), (len(rest),)
            flat = emit("strided_slice", flat, begin=(0,), end=(n * n,), strides=(n + 1,), axes=axes)
            return _diagonal(flat, "".join(letters[d] for d in kept) + c)
    return x, letters


def _einsum_terms(node: OnnxNode) -> tuple[list[str], str]:
    """Letters of each operand and of the result; dots stand for letters that nobody uses."""
    equation = node.require("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(node.inputs):
        raise node.fail(f"equation {equation!r} has {len(terms)} terms for {len(node.inputs)} inputs")
    used = set(equation)
    spare = [chr(c) for c in range(ord("A"), ord("Z") + 1) if chr(c) not in used]
    counts = [rank(node[i]) - len(t.replace("...", "")) if "..." in t else 0 for i, t in enumerate(terms)]
    dots = "".join(spare[: max(counts)])
    terms = [t.replace("...", dots[len(dots) - n :]) for t, n in zip(terms, counts, strict=True)]
    if not arrow:
        letters = "".join(terms)
        right = dots + "".join(sorted({c for c in letters if letters.count(c) == 1 and c not in dots}))
    for i, term in enumerate(terms):
        if len(term) != rank(node[i]):
            raise node.fail(f"term {term!r} of {equation!r} does not fit {node[i].tensor_type}")
    return terms, right.replace("...", dots)


def _contract(a: Expr, left: str, b: Expr, right: str, later: set[str]) -> tuple[Expr, str]:
    """The product of two operands, summed over letters that only they have."""
    a, left = _summed(a, left, later | set(right))
    b, right = _summed(b, right, later | set(left))
    batch = [c for c in left if c in right and c in later]
    inner = [c for c in left if c in right and c not in later]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    extent = {**dict(zip(left, a.shape, strict=True)), **_without_ones(right, b.shape, left, a.shape)}
    sizes = [math.prod(extent[c] for c in group) for group in (batch, rows, inner, columns)]
    lhs = reshaped(_arranged(a, left, [*batch, *rows, *inner]), [sizes[0], sizes[1], sizes[2]], allowzero=True)
    rhs = reshaped(_arranged(b, right, [*batch, *inner, *columns]), [sizes[0], sizes[2], sizes[3]], allowzero=True)
    product = emit("nn.batch_matmul", lhs, rhs, transpose_b=False)
    letters = [*batch, *rows, *columns]
    return reshaped(product, [extent[c] for c in letters], allowzero=True), "".join(letters)


def _without_ones(right: str, shape: tuple[int, ...], left: str, other: tuple[int, ...]) -> dict[str, int]:
    known = dict(zip(left, other, strict=True))
    return {c: n if n != 1 else known.get(c, 1) for c, n in zip(right, shape, strict=True)}


def _summed(x: Expr, letters: str, kept: set[str]) -> tuple[Expr, str]:
    axes = tuple(i for i, c in enumerate(letters) if c not in kept)
    return (emit("sum", x, axis=axes) if axes else x), "".join(c for c in letters if c in kept)


def _arranged(x: Expr, letters: str, wanted: str | list[str]) -> Expr:
    x, letters = _summed(x, letters, set(wanted))
    order = tuple(letters.index(c) for c in wanted)
    return x if order == tuple(range(len(order))) else emit("transpose", x, axes=order)
