"""What the tests of graph passes share: text in, text out, the same numbers, and the input left alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import Op
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import assert_structural_equal
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import post_order

Transform = Callable[[Module], Module]
Constants = Mapping[str, np.ndarray]


def random_array(shape: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Normal numbers; integers from 0 to 3."""
    rng = np.random.default_rng([seed, *shape])
    values = rng.standard_normal(shape) if dtype.startswith("float") else rng.integers(0, 4, shape)
    return values.astype(dtype)


def inputs_of(function: Function) -> list[np.ndarray]:
    found = []
    for position, param in enumerate(function.params):
        assert isinstance(param.type, TensorType)
        found.append(random_array(param.type.static_shape, position + 1, param.type.dtype))
    return found


def assert_same_numbers(before: Module, after: Module) -> None:
    """Both modules on the same random inputs.  Folding reorders float operations: 1e-5 of the largest value."""
    arrays = inputs_of(before.main)
    pairs = zip(_flat(evaluate(before, *arrays)), _flat(evaluate(after, *arrays)), strict=True)
    for expected, found in pairs:
        assert expected.dtype == found.dtype
        scale = max(1.0, float(np.abs(expected).max())) if expected.size else 1.0
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale)


def _flat(value: object) -> list[np.ndarray]:
    return [leaf for v in value for leaf in _flat(v)] if isinstance(value, tuple) else [np.asarray(value)]


def run(transform: Transform, text: str, constants: Constants | None = None) -> Module:
    """The module after the pass, which computes the same numbers and has not touched its input."""
    before = parse_module(text, constants)
    printed = before.astext()
    after = transform(before)
    assert before.astext() == printed, "the pass changed its input"
    assert after.main.checked_type == before.main.checked_type
    assert_same_numbers(before, after)
    return after


def check(transform: Transform, before: str, after: str, constants: Constants | None = None) -> None:
    """The pass makes ``after`` of ``before``, up to the names of variables."""
    assert_structural_equal(run(transform, before, constants), parse_module(after, constants))


def check_unchanged(transform: Transform, text: str, constants: Constants | None = None) -> None:
    """The pass has nothing to do, and gives the same module back."""
    module = parse_module(text, constants)
    assert transform(module) is module


def outline(module: Module) -> str:
    """The calls of ``main``, one a line: ``0 = fused_add_nn_relu(x, 1.0)``; then what it returns."""
    names: dict[Expr, str] = {}
    lines = []
    for node in post_order(module.main.body):
        if isinstance(node, Call):
            names[node] = str(len(lines))
            what = node.op.name if isinstance(node.op, Op) else node.op.attrs["name"]
            lines.append(f"{names[node]} = {what}({', '.join(names[a] for a in node.args)})")
        else:
            names[node] = _leaf(node, names)
    return "\n".join([*lines, names[module.main.body]])


def _leaf(node: Expr, names: Mapping[Expr, str]) -> str:
    if isinstance(node, Var):
        return node.name
    if isinstance(node, Constant):
        return node.name or ("const" if node.value.ndim else str(node.value))
    if isinstance(node, TupleGetItem):
        return f"{names[node.tuple]}.{node.index}"
    assert isinstance(node, Tuple)
    return f"({', '.join(names[f] for f in node.fields)})"
