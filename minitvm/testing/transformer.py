"""A transformer encoder as in BERT (Vaswani et al. 2017, arXiv:1706.03762; Devlin et al. 2018, arXiv:1810.04805)."""

from minitvm.errors import MiniTVMError
from minitvm.ir.builder import call_op, const, function, var
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import dense, workload_of


def _heads(x: Expr, batch: int, length: int, heads: int, size: int, axes: tuple[int, ...]) -> Expr:
    """(batch * length, heads * size) -> (batch * heads, length, size), or as ``axes`` say."""
    split = call_op("reshape", x, newshape=(batch, length, heads, size))
    moved = call_op("transpose", split, axes=axes)
    shape = tuple((batch, length, heads, size)[a] for a in axes)
    return call_op("reshape", moved, newshape=(batch * heads, *shape[2:]))


def _attention(x: Expr, name: str, batch: int, length: int, hidden: int, heads: int) -> Expr:
    size, rows = hidden // heads, batch * length
    q, k, v = (dense(x, f"{name}_{part}", hidden) for part in ("query", "key", "value"))
    q = _heads(q, batch, length, heads, size, (0, 2, 1, 3))
    k = _heads(k, batch, length, heads, size, (0, 2, 1, 3))
    v = _heads(v, batch, length, heads, size, (0, 2, 3, 1))
    scores = call_op("nn.batch_matmul", q, k) * const(1.0 / size**0.5)
    mixed = call_op("nn.batch_matmul", call_op("nn.softmax", scores, axis=-1), v)
    mixed = call_op("reshape", mixed, newshape=(batch, heads, length, size))
    mixed = call_op("reshape", call_op("transpose", mixed, axes=(0, 2, 1, 3)), newshape=(rows, hidden))
    return dense(mixed, f"{name}_output", hidden)


def _gelu(x: Expr) -> Expr:
    """0.5 x (1 + erf(x / sqrt 2))."""
    return x * const(0.5) * (call_op("erf", x * const(0.5**0.5)) + const(1.0))


def _norm(x: Expr, name: str) -> Expr:
    return call_op("nn.layer_norm", x, var(f"{name}_gamma"), var(f"{name}_beta"), axis=-1, epsilon=1e-12)


def get_net(
    batch_size: int = 1,
    sequence_length: int = 128,
    num_layers: int = 2,
    hidden_size: int = 768,
    num_heads: int = 12,
    dtype: str = "float32",
) -> Function:
    """``main`` from ``data``: (batch, length, hidden) to the same shape, after ``num_layers`` encoder layers."""
    if hidden_size % num_heads:
        raise MiniTVMError(f"{hidden_size} hidden units cannot be divided among {num_heads} heads")
    rows = batch_size * sequence_length
    data = var("data", shape=(batch_size, sequence_length, hidden_size), dtype=dtype)
    x: Expr = call_op("reshape", data, newshape=(rows, hidden_size))
    for i in range(num_layers):
        mixed = _attention(x, f"layer{i}_attention", batch_size, sequence_length, hidden_size, num_heads)
        x = _norm(x + mixed, f"layer{i}_norm1")
        inner = _gelu(dense(x, f"layer{i}_inner", 4 * hidden_size))
        x = _norm(x + dense(inner, f"layer{i}_outer", hidden_size), f"layer{i}_norm2")
    return function(call_op("reshape", x, newshape=(batch_size, sequence_length, hidden_size)))


get_workload = workload_of(get_net)
