"""A quantized network in three functions: inputs to integers, integers to integers, integers to results."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from minitvm.errors import PassError, listing
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls, children, post_order, substitute, users

INPUTS, MIDDLE, OUTPUTS = "quantize_inputs", "quantized_main", "dequantize_outputs"


def partition_conversions(mod: Module, quantized_dtypes: Collection[str], ensure_fully_integral: bool) -> Module:
    """A module of ``quantize_inputs``, ``quantized_main`` and ``dequantize_outputs``, which ``main`` calls in order.

    Raises :class:`PassError` where ``ensure_fully_integral`` and something between them is not of the quantized dtypes.
    """
    main, dtypes = mod.main, {*quantized_dtypes}
    made = _first_quantized(main, dtypes)
    inputs = Function(main.params, Tuple(made))
    into = [Var(f"q{i}", node.type) for i, node in enumerate(made)]
    middle_and_end = substitute(main.body, dict(zip(made, into, strict=True)))
    last = _last_quantized(middle_and_end, dtypes)
    out_of = [Var(f"r{i}", node.type) for i, node in enumerate(last)]
    end = substitute(middle_and_end, dict(zip(last, out_of, strict=True)))
    middle, outputs = Function(into, Tuple(last)), Function(out_of, end)
    if ensure_fully_integral:
        _require_integral([*calls(middle.body)], dtypes)
    between = _fields(Call(inputs, list(main.params)), len(made))
    results = _fields(Call(middle, between), len(last))
    whole = Function(main.params, Call(outputs, results))
    return Module({INPUTS: inputs, MIDDLE: middle, OUTPUTS: outputs, "main": whole})


def _fields(joined: Expr, count: int) -> list[Expr]:
    return [TupleGetItem(joined, i) for i in range(count)]


def _is_of(node: Expr, dtypes: Collection[str]) -> bool:
    return isinstance(node.type, TensorType) and node.type.dtype in dtypes


def _first_quantized(main: Function, dtypes: Collection[str]) -> list[Expr]:
    """The first calls on every way from inputs that are of a quantized dtype, and inputs that are read elsewhere."""
    raw: set[Expr] = {p for p in main.params if not _is_of(p, dtypes)}
    found: list[Expr] = [p for p in main.params if p not in raw]
    for node in post_order(main.body):
        if isinstance(node, Var) or not children(node) or not any(child in raw for child in children(node)):
            continue
        if _is_of(node, dtypes):
            found.append(node)
        else:
            raw.add(node)
    return found


def _last_quantized(body: Expr, dtypes: Collection[str]) -> list[Expr]:
    """The last nodes of a quantized dtype on every way to a result."""
    readers: dict[Expr, list[Expr]] = users(body)
    plain: set[Expr] = set()
    order = post_order(body)
    for node in reversed(order):
        if not _is_of(node, dtypes) and (node is body or all(one in plain for one in readers.get(node, ()))):
            plain.add(node)
    ends = [n for n in order if n not in plain and (n is body or any(one in plain for one in readers.get(n, ())))]
    return [node for node in ends if children(node) or isinstance(node, Var)]


def _require_integral(between: Iterable[Call], dtypes: Collection[str]) -> None:
    wrong = [call for call in between if not _is_of(call, {*dtypes, "int64", "bool"})]
    if wrong:
        names = listing(dict.fromkeys(str(getattr(call.op, "name", "a function")) for call in wrong))
        raise PassError(
            f"{len(wrong)} calls between quantization and dequantization are not of {', '.join(sorted(dtypes))}",
            where=[names],
            hint='partition_conversions="enabled" leaves them there',
        )
