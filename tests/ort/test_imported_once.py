"""A model is imported to see whether it is consistent as it is opened, and again only where sizes would change it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from minitvm import InferenceSession, models
from minitvm.frontend import from_onnx
from minitvm.ort import open_models

RNG = np.random.default_rng(3)


def model(nodes: list[onnx.NodeProto], *inputs: list[str | int]) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(f"x{i}", 1, shape) for i, shape in enumerate(inputs)]
    graph = helper.make_graph(nodes, "g", given, [helper.make_tensor_value_info("y", 1, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one with every import."""
    found: list[object] = []

    def counted(*args: object, **how: object) -> object:
        found.append(args)
        return from_onnx(*args, **how)  # type: ignore[arg-type]

    for home in (models, open_models):
        monkeypatch.setattr(home, "from_onnx", counted)
    return found


def check_sum(session: InferenceSession, rows: int, columns: int) -> None:
    a, b = (RNG.standard_normal((n, 3)).astype("float32") for n in (rows, columns))
    np.testing.assert_array_equal(session.run(None, {"x0": a, "x1": b})[0], a + b)


def test_what_no_size_changes_is_imported_once(imports: list[object]) -> None:
    nodes = [helper.make_node("Shape", ["x0"], ["s"]), helper.make_node("Reshape", ["x0", "s"], ["r"])]
    session = InferenceSession(model([*nodes, helper.make_node("Exp", ["r"], ["y"])], ["n", 4]))
    for rows in (3, 1, 70):
        x = RNG.standard_normal((rows, 4)).astype("float32")
        np.testing.assert_allclose(session.run(None, {"x0": x})[0], np.exp(x), rtol=1e-6)
    assert session.symbolic and len(imports) == 1


@pytest.mark.parametrize("first", [(5, 1), (1, 5), (5, 5)])
def test_what_sizes_decide_is_imported_as_the_run_has_them(imports: list[object], first: tuple[int, int]) -> None:
    session = InferenceSession(model([helper.make_node("Add", ["x0", "x1"], ["y"])], ["n", 3], ["m", 3]))
    for rows, columns in (first, (5, 1), (1, 5), (7, 7)):
        check_sum(session, rows, columns)
    assert len(imports) > 1


def test_what_was_imported_goes_with_the_first_library(imports: list[object]) -> None:
    again = helper.make_node("Neg", ["x0"], ["y"])
    session = InferenceSession(model([again], ["n", 2]))
    sizes = [np.ones((rows, 2), "float32") for rows in (4, 9)]
    assert [session.run(None, {"x0": x})[0].sum() for x in sizes] == [-8, -18]
    found = open_models.require_consistent(model([again], ["n", 2]))
    assert len(found) == 1 and open_models.require_consistent(model([again], [4, 2])) != []
    assert len(imports) == 3
