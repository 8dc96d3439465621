"""Texts of a kernel whose lines know where they came from."""

from __future__ import annotations

import itertools

import pytest

import minitvm
from minitvm.driver import BuildReport
from minitvm.testing import mlp

_DIRECTIVES = (".file", ".cfi", ".section", ".loc")


@pytest.fixture(scope="module")
def report() -> BuildReport:
    module, params = mlp.get_workload(1)
    found = minitvm.build(module, params=params, num_threads=2).report
    assert found is not None
    return found


def code(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith(_DIRECTIVES)]


def test_texts_are_those_of_the_build(report: BuildReport) -> None:
    for symbol in report.groups:
        kernel = report.kernel(symbol)
        loops, ir, assembly = kernel.listings()
        assert str(loops) == kernel.text("loops")
        assert str(ir).rstrip() == kernel.text("llvm").rstrip()
        assert code(str(assembly)) == code(kernel.text("asm"))


def test_lines_come_from_lines_of_the_text_before(report: BuildReport) -> None:
    for symbol in report.groups:
        for kind in ("llvm", "cuda"):
            listings = report.kernel(symbol).listings(kind)
            for before, after in itertools.pairwise(listings):
                assert len(after.origins) == len(after.lines)
                assert all(-1 <= origin < len(before.lines) for origin in after.origins)
                assert sum(origin >= 0 for origin in after.origins) > len(after.lines) // 4


def test_a_store_is_of_the_line_that_assigns(report: BuildReport) -> None:
    for symbol in report.groups:
        loops, ir, _ = report.kernel(symbol).listings()
        stores = [
            o for line, o in zip(ir.lines, ir.origins, strict=True) if " store <" in line or " store float" in line
        ]
        assert stores and all(" = " in loops.lines[origin] for origin in stores)
