"""The page of ONNX's operators says what the importer does; what is not offered is refused by name."""

from __future__ import annotations

import re

import onnx
import pytest
from onnx import helper

import minitvm
from benchmarks.onnx_operators import PAGE, page
from minitvm.errors import UnsupportedOperatorError, is_own
from minitvm.frontend.onnx.registry import BUILDERS


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert {name for (_, name), builders in BUILDERS.items() if all(map(is_own, builders.values()))} <= named
    if f"onnx {onnx.__version__} " in text:  # of another onnx, the schemas and definitions are others
        assert text == page(), "python -m benchmarks.onnx_operators"


@pytest.mark.parametrize(("name", "domain"), [("Gradient", "ai.onnx.preview.training")])
def test_what_is_not_offered_is_refused_by_name(name: str, domain: str) -> None:
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(name, ["x"], ["y"], domain=domain)], "g", values[:1], values[1:])
    sets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    with pytest.raises(UnsupportedOperatorError, match=name):
        minitvm.from_onnx(helper.make_model(graph, opset_imports=sets))
