"""A model that is wrong on the GPU, node by node: every kernel over what it really got, beside its references.

Files of the first kernel that differs: what it got, made and should have made (``.npz``), and its CUDA C.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.cuda_sim import error
from minitvm import Library
from minitvm.errors import MiniTVMError
from minitvm.ir.evaluate import evaluate
from minitvm.runtime.instance import Instance

MOST_BYTES = 12 << 20
"""Of the arrays in a file; of larger ones the beginning is kept."""
SECONDS = 60.0
"""References may take long: kernels that come later are not compared."""


def walked(instance: Instance, library: Library, allowed: float, to: pathlib.Path) -> Iterator[dict[str, Any]]:
    """``rows`` of all kernels so far, and ``first``, the one that differs by more than is allowed, or fails.

    The inputs are set. ``to`` is the beginning of the files' names.
    """
    rows, first, start = list[dict[str, Any]](), "", time.monotonic()
    for index, node in enumerate(instance.graph.nodes):
        if node.is_null:
            continue
        given = [_kept(instance.value(entry)) for entry in node.inputs] if node.is_kernel else []
        row: dict[str, Any] = {"node": node.name, "kernel": node.func}
        try:
            instance.node_step(index)()
            found = [_kept(instance.value((index, i))) for i in range(len(node.types))]
        except MiniTVMError as problem:  # the context is gone
            _write(to, library, node.func, {**_named("given", given)})
            yield {"rows": [*rows, {**row, "failed": str(problem)}], "first": first or node.name}
            return
        if not node.is_kernel or time.monotonic() - start > SECONDS:
            continue
        expected = _expected(library, node.func, given)
        if expected is None:
            continue
        row["error"] = max(error(have, want) for have, want in zip(found, expected, strict=True))
        row["differs"] = not row["error"] <= allowed
        if row["differs"] and not first:
            first = node.name
            arrays = _named("given", given) | _named("found", found) | _named("expected", expected)
            _write(to, library, node.func, arrays)
        rows.append(row)
        yield {"rows": rows, "first": first}


def _kept(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def _expected(library: Library, symbol: str, given: Sequence[Any]) -> list[np.ndarray] | None:
    """``None`` of what is no kernel of ours, or has no reference."""
    group = library.report.groups.get(symbol)
    if group is None or len(group.params) != len(given):
        return None
    with np.errstate(all="ignore"):
        found = evaluate(group, *given)
    return [*found] if isinstance(found, tuple) else [found]


def _named(what: str, arrays: Sequence[Any]) -> dict[str, np.ndarray]:
    return {f"{what}{n}": array for n, array in enumerate(arrays) if isinstance(array, np.ndarray)}


def _write(to: pathlib.Path, library: Library, symbol: str, arrays: Mapping[str, np.ndarray]) -> None:
    most = MOST_BYTES // max(1, len(arrays))
    small = {key: a if a.nbytes <= most else a.reshape(-1)[: most // a.itemsize] for key, a in arrays.items()}
    shapes = {f"{key}_shape": np.array(a.shape) for key, a in arrays.items()}
    np.savez_compressed(to.with_suffix(".npz"), **small, **shapes)
    if symbol in library.report.groups:
        to.with_suffix(".cu").write_text(library.report.kernel(symbol).text("cuda"), encoding="utf-8")
