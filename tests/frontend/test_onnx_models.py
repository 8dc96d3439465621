"""Real pretrained models: imported, evaluated in numpy, held against ONNX Runtime's recorded outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_build import SHARED, run

from minitvm.frontend import describe_onnx, from_onnx
from minitvm.ir.types import tensor_fields
from minitvm.ir.visitor import calls

MODELS = SHARED / "models"
NAMES = sorted(path.stem for path in MODELS.glob("*.onnx"))
OWN_ERROR = {  # how far ONNX Runtime is from itself without optimisations, relative to the largest output
    "ppocrv4_det": 6e-3,
    "silero_vad": 1e-5,
}

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(not NAMES, reason="pretrained models lie in ../shared/models, which is absent"),
]


def _case(name: str, feed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    arrays = np.load(MODELS / f"{name}.npz")
    prefixes = f"in{feed}.", f"out{feed}."
    inputs, outputs = ({k[len(p) :]: arrays[k] for k in arrays.files if k.startswith(p)} for p in prefixes)
    return inputs, outputs


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_onnx_runtimes(name: str) -> None:
    feeds, expected = _case(name)
    found = run(MODELS / f"{name}.onnx", feeds)
    names = [v.name for v in describe_onnx(MODELS / f"{name}.onnx").outputs]
    assert len(found) == len(names)
    for output, mine in zip(names, found, strict=True):
        theirs = expected[output]
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if name.endswith("int8_qdq"):
            assert np.argmax(mine) == np.argmax(theirs)
            continue
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(mine, theirs, rtol=max(1e-4, OWN_ERROR.get(name, 0)), atol=1e-5 * max(scale, 1))


@pytest.mark.parametrize("name", NAMES)
def test_types_are_static_once_the_inputs_are(name: str) -> None:
    feeds, _ = _case(name)
    module, params = from_onnx(MODELS / f"{name}.onnx", {n: a.shape for n, a in feeds.items()})
    found = [call for call in calls(module.main.body) if not all(t.is_static for t in tensor_fields(call.type))]
    dynamic = {"g2p_en_gru_loop": ["control.loop", "squeeze"]}
    assert [call.op.name for call in found] == dynamic.get(name, [])
    assert [p.name for p in module.main.params[len(feeds) :]] == list(params)


@pytest.mark.parametrize("name", NAMES)
def test_every_call_names_a_node_of_the_model(name: str) -> None:
    feeds, _ = _case(name)
    module, _ = from_onnx(MODELS / f"{name}.onnx", {n: a.shape for n, a in feeds.items()})
    nodes = {node.name for node in onnx.load(MODELS / f"{name}.onnx").graph.node}
    unnamed = [call for call in calls(module.main.body) if not call.span]
    assert unnamed == []
    if "" not in nodes:
        assert {label for call in calls(module.main.body) for label in call.span} <= nodes


def test_another_size_of_input(request: Any) -> None:
    """What is folded for one shape is folded anew for the next."""
    for feed in (0, 1):
        feeds, expected = _case("all_minilm_l6_v2_int8w", feed)
        (found,) = run(MODELS / "all_minilm_l6_v2_int8w.onnx", feeds)
        np.testing.assert_allclose(found, expected["last_hidden_state"], rtol=1e-4, atol=1e-4)
