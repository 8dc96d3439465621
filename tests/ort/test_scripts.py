"""Scripts written for ONNX Runtime print the same with minitvm, the import line exchanged."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

pytest.importorskip("onnxruntime")

_spec = importlib.util.spec_from_file_location("compare", pathlib.Path(__file__).with_name("compare.py"))
assert _spec is not None and _spec.loader is not None
compare = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compare)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", compare.names())
def test_prints_the_same(name: str) -> None:
    ours, theirs = compare.printed(name, "minitvm"), compare.printed(name, "onnxruntime")
    assert compare.agree(ours, theirs), compare.difference(ours, theirs)


def test_there_are_twenty() -> None:
    assert len(compare.names()) == 20


def test_differences_are_seen() -> None:
    assert compare.agree("a 0.1234 b", "a 0.1235 b")
    assert not compare.agree("a 0.1234 b", "a 0.1434 b") and not compare.agree("a 1 b", "a 2 b")
    assert not compare.agree("", "failed: x") and "+b" in compare.difference("b", "a")
