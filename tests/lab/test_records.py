"""Tuning records as rows: those that ship, of every template, and one in all its parts."""

from __future__ import annotations

import pathlib

import pytest

import minitvm
from minitvm.codegen.records import Record, read
from minitvm.errors import ConfigError
from minitvm.lab import features

SHIPPED = sorted((pathlib.Path(minitvm.__file__).parent / "codegen").rglob("*.jsonl"))


def test_a_row_has_all_parts() -> None:
    problem = 'nn.dense(out_dtype="float32") float32[4, 128], float32[64, 128] -> float32[4, 64]'
    choice = "depth in parts, tiles of 16 x 64 x 8, 2 x 4 a thread, 3 stages copied, depth in 20 parts"
    refused = Record("sm_80", "", "dense.GpuMatmul", problem, choice, 5.0, None, "12 bytes spill stores")
    (row,) = features([refused])
    assert row == {
        "machine": "sm_80",
        "options": "",
        "template": "dense.GpuMatmul",
        "operator": "nn.dense",
        "flops": 2 * 4 * 64 * 128,
        "bytes": 4 * (4 * 128 + 64 * 128 + 4 * 64),
        "extents": (4, 64),
        "scheme": "depth in parts",
        "rows": 16,
        "blocks": 64,
        "depth": 8,
        "thread_rows": 2,
        "thread_columns": 4,
        "stages": 3,
        "parts": 20,
        "cycles": 5.0,
        "seconds": None,
        "refused": "12 bytes spill stores",
        "spills": True,
    }


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_record_that_ships_has_its_numbers(path: pathlib.Path) -> None:
    rows = features(path)
    assert len(rows) == len(read(path)) > 0
    for row in rows:
        assert row["rows"] and row["bytes"] > 0 and row["scheme"] and row["extents"], row
    assert sum(row["flops"] is not None for row in rows) > 0.95 * len(rows)


def test_what_is_no_record_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "other.jsonl").write_text("[1]\n")
    with pytest.raises(ConfigError, match="is no tuning record"):
        features(tmp_path / "other.jsonl")
