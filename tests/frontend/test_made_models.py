"""Small networks as ONNX Runtime's tools make them: outcomes are those of ``docs/made-models.md``.

Half of them, each network of half the tools; ``python -m benchmarks made`` makes all.
"""

from __future__ import annotations

import pytest

from benchmarks import made_models

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("tool", list(made_models.TOOLS))
def test_outcomes_are_those_of_the_page(tool: str) -> None:
    lines = made_models.PAGE.read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {tool} |"))
    said = dict(zip(made_models.NETWORKS, row.strip("| ").split(" | ")[1:], strict=True))
    for name in list(made_models.NETWORKS)[list(made_models.TOOLS).index(tool) % 2 :: 2]:
        assert str(made_models.outcome(name, tool)) == said[name], name
