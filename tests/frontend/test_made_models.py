"""Small networks as ONNX Runtime's tools make them: every outcome is that of ``docs/made-models.md``."""

from __future__ import annotations

import pytest

from benchmarks import made_models

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("tool", list(made_models.TOOLS))
def test_outcomes_are_those_of_the_page(tool: str) -> None:
    found = {(name, tool): made_models.outcome(name, tool) for name in made_models.NETWORKS}
    assert made_models.row(tool, found) in made_models.PAGE.read_text(encoding="utf-8").splitlines()
