"""What the tests of fusion, scale folding and layouts share, on top of ``minitvm.testing.checks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minitvm.ir.decision import Decision
from minitvm.ir.expr import Call, Constant, Expr, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import Op
from minitvm.ir.visitor import post_order
from minitvm.passes.manager import Pass
from minitvm.testing.checks import as_module, assert_same_numbers, check_rewrite, check_unchanged

__all__ = ["assert_same_numbers", "check_rewrite", "check_unchanged", "outline", "random_array", "run", "stayed"]


def random_array(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Normal numbers, float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def run(step: Pass, text: str, constants: Mapping[str, np.ndarray] | None = None) -> Module:
    """The module after the pass, which computes the same numbers and has not touched its input."""
    before = as_module(text, constants)
    printed = before.astext()
    after = step(before)
    assert before.astext() == printed, "the pass changed its input"
    assert after.main.checked_type == before.main.checked_type
    assert_same_numbers(before, after)
    return after


def stayed(log: Sequence[Decision]) -> list[str]:
    """What was declined, and why."""
    return [f"{d.about}: {d.reason}" for d in log if not d.taken]


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
