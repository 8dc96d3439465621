"""The nine light models of the onnx package, as they are and with redrawn weights."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_build import run
from redraw import NAMES, light, redrawn

from minitvm.frontend import describe_onnx, from_onnx
from minitvm.ir.visitor import calls

IN_NUMPY = ("light_densenet121", "light_shufflenet", "light_squeezenet")
"""All are compiled in ``test_light_models.py``; these have all of their operators but LRN, and few
multiplications."""
IMAGE = (1, 3, 224, 224)


def test_there_are_nine() -> None:
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", NAMES)
def test_imports_as_it_is(name: str) -> None:
    """Its weights stay fills: importing does not write 500 MB of constants."""
    module, params = from_onnx(light(name))
    assert sum(array.nbytes for array in params.values()) < 1 << 20
    large = [c for c in calls(module.main.body) if c.op.name == "full"]
    assert large and module.main.ret_type.shape[:2] == (1, 1000)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", IN_NUMPY)
def test_redrawn_outputs_are_onnx_runtimes(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = redrawn(name, seed=3)
    (image,) = describe_onnx(model).inputs
    assert image.shape == IMAGE
    feeds = {image.name: np.random.default_rng(4).standard_normal(IMAGE, dtype=np.float32)}
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, feeds)
    (found,) = run(model, feeds)
    assert expected.std() > 1e-6, "the outputs are all the same: the weights are not random"
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_redrawing_is_repeatable_and_depends_on_the_seed() -> None:
    first, again, other = (redrawn("light_squeezenet", seed).graph.initializer[0] for seed in (1, 1, 2))
    assert first == again and first != other
