"""Tuning records as rows of numbers and words, for a table (``pandas.DataFrame(features("resnet18.jsonl"))``) or for a
cost model of one's own."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from minitvm.codegen.records import Record, read
from minitvm.errors import MiniTVMError
from minitvm.ir.expr import Call
from minitvm.ir.op import Op
from minitvm.ir.parser import parse_module

_TENSOR = re.compile(r"(\w+)\[([^\]]*)\]")
_PROBLEM = re.compile(r"(?P<op>[\w.]+)\((?P<attributes>.*)\) (?P<inputs>\w+\[.*) -> (?P<outputs>\w+\[.*)$")
_NUMBERS = {
    "thread_rows": r"(\d+) x \d+ a thread",
    "thread_columns": r"\d+ x (\d+) a thread",
    "stages": r"(\d+) stages",
    "parts": r"in (\d+) parts",
}


def features(records: str | os.PathLike[str] | Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each record of a file that ``minitvm tune`` wrote, or of those that are given.

    ``machine``, ``template``, ``operator``; of the problem ``flops``, ``bytes`` read and written, ``extents`` of the
    result; of the choice ``scheme``, ``rows``, ``blocks``, ``depth`` of its tiles, ``thread_rows``, ``thread_columns``,
    ``stages``, ``parts`` of a GPU's; ``cycles`` as predicted, ``seconds`` as measured, ``refused`` with the reason, and
    whether it ``spills``.  What a choice has none of is ``None``.  :class:`ConfigError` for a file of something else.
    """
    given = read(Path(records)) if isinstance(records, (str, os.PathLike)) else records
    return [_row(record) for record in given]


def _row(record: Record) -> dict[str, Any]:
    own = {"machine": record.machine, "options": record.options, "template": record.template}
    judged = {"cycles": record.cycles, "seconds": record.seconds, "refused": record.why_not or None}
    return {
        **own,
        **_of_problem(record.problem),
        **_of_choice(record.choice),
        **judged,
        "spills": "spill" in record.why_not,
    }


def _of_choice(text: str) -> dict[str, Any]:
    scheme, _, rest = text.partition(", tiles of ")
    tile = [int(n) for n in re.findall(r"\d+", rest.partition(",")[0])]
    found = {name: re.search(pattern, rest) for name, pattern in _NUMBERS.items()}
    sizes = dict(zip(("rows", "blocks", "depth"), [*tile, None, None, None], strict=False))
    return {"scheme": scheme, **sizes, **{name: int(m[1]) if m else None for name, m in found.items()}}


@functools.lru_cache(1 << 10)
def _of_problem(text: str) -> dict[str, Any]:
    found = _PROBLEM.match(text)
    if found is None:
        return {"operator": text.partition("(")[0], "flops": None, "bytes": None, "extents": None}
    inputs, outputs = (_TENSOR.findall(found[part]) for part in ("inputs", "outputs"))
    shapes = [[int(n) for n in dims.split(",") if n.strip()] for _, dims in outputs]
    nbytes = sum(_bytes(*tensor) for tensor in (*inputs, *outputs))
    return {"operator": found["op"], "flops": _flops(found, inputs), "bytes": nbytes, "extents": tuple(shapes[0])}


def _bytes(dtype: str, dims: str) -> int:
    return math.prod(int(n) for n in dims.split(",") if n.strip()) * np.dtype(dtype).itemsize


def _flops(found: re.Match[str], inputs: list[tuple[str, str]]) -> int | None:
    """What the operator counts; ``None`` where its attributes cannot be read from the text."""
    params = ", ".join(
        f"%p{n}: Tensor[({dims}{',' if dims else ''}), {dtype}]" for n, (dtype, dims) in enumerate(inputs)
    )
    arguments = ", ".join([*(f"%p{n}" for n in range(len(inputs))), *filter(None, [found["attributes"]])])
    try:
        call = parse_module(f"def @main({params}) {{ {found['op']}({arguments}) }}").main.body
    except MiniTVMError:
        return None
    if not isinstance(call, Call) or not isinstance(call.op, Op):
        return None
    return int(call.op.flops([arg.tensor_type for arg in call.args], [call.tensor_type]))
