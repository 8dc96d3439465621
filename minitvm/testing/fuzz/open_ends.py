"""What is no defect: refusals for a stated reason, and inputs for which ONNX leaves the result open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minitvm.testing.fuzz.case import Arrays, Case, all_nodes, attributes

REFUSALS = (
    r"minitvm needs it while importing",
    r"^the model has operators that minitvm cannot import",
    r"is not supported",
    r"are not supported",
)
"""Messages that name a known limit."""

Operands = list[np.ndarray | None]
Rule = Callable[[Operands, Mapping[str, Any]], "str | None"]


def _division(x: Operands, _: Mapping[str, Any]) -> str | None:
    if x[1] is None or x[1].dtype.kind not in "iu":
        return None
    return "integer division by zero, or of the least integer by -1" if np.isin(x[1], (0, -1)).any() else None


def _cast(x: Operands, _: Mapping[str, Any]) -> str | None:
    if x[0] is None or x[0].dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        fits = np.abs(x[0].astype(np.float64)) < 2**31
    return None if fits.all() else "a cast of what does not fit"


def _nan(x: Operands, _: Mapping[str, Any]) -> str | None:
    found = any(a is not None and a.dtype.kind == "f" and np.isnan(a).any() for a in x)
    return "NaN has no order" if found else None


def _shift(x: Operands, _: Mapping[str, Any]) -> str | None:
    if x[1] is None:
        return None
    return "a shift by as many bits as there are, or more" if (x[1] >= 8 * x[1].dtype.itemsize).any() else None


RULES: dict[str, Rule] = {
    "ArgMax": _nan,
    "ArgMin": _nan,
    "BitShift": _shift,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _nan,
    "Div": _division,
    "Hardmax": _nan,
    "Max": _nan,
    "MaxPool": _nan,
    "GlobalMaxPool": _nan,
    "Min": _nan,
    "Mod": _division,
    "QuantizeLinear": _cast,
    "ReduceMax": _nan,
    "ReduceMin": _nan,
    "Relu": _nan,
    "Sign": _nan,
    "TopK": _nan,
}


def reason(case: Case, inside: Arrays) -> str:
    """Why ONNX does not say what the case's results are; empty where it does.  ``inside`` are the graph's values."""
    known = {**case.constants, **inside}
    for node in all_nodes(case.nodes):
        rule = RULES.get(node.op_type)
        found = rule([known.get(name) for name in node.input] + [None] * 3, attributes(node)) if rule else None
        if found:
            return f"{node.op_type}: {found}"
    return ""
