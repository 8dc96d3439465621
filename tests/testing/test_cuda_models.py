"""Whole models on the simulated GPU: the kernels that a GPU would be given, in every order of threads.

``python -m benchmarks cuda-sim`` runs all models of the benchmarks and of shared/models so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import model_zoo
import numpy as np
import pytest
from small_workloads import compiled, sample, small, with_scores

import minitvm
from benchmarks import cuda_sim
from benchmarks.made_models import NETWORKS, made
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.templates import dense
from minitvm.driver import HostCallWarning
from minitvm.errors import TargetError
from minitvm.passes import PassContext
from simulated_gpu.device import simulated_target
from tests.compilers import needs_compiler

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def _target() -> Iterator[None]:
    with simulated_target():
        yield


@pytest.mark.parametrize(
    ("name", "order"),
    [("resnet18_stem", "reverse"), ("mobilenet_v2", "random"), ("squeezenet", "forward"), ("transformer", "reverse")],
)
def test_a_network_gives_what_the_cpu_gives(name: str, order: str) -> None:
    module, params = small(name)
    module, data = with_scores(module), sample(module)
    library = minitvm.build(module, f"simulated -order={order} -seed=4", params, 3, strict=True)
    graph = minitvm.GraphModule(library["default"](minitvm.cpu(0)))
    graph.run(data=data)
    assert not library.host_calls
    for i, want in enumerate(compiled(module, params, data, 3)):
        assert model_zoo.error(graph.get_output(i).numpy(), want) <= 1e-5


PRECISIONS = [
    ("transformer", "float16", "mma float16", 3, 1e-2),
    ("mlp", "tf32", "mma sums", 1, 5e-4),
    ("transformer", "split", "mma sums", 3, 1e-5),
]


@pytest.mark.parametrize(("name", "precision", "word", "least", "allowed"), PRECISIONS)
def test_a_network_on_tensor_cores(
    name: str, precision: str, word: str, least: int, allowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones are where it would not be worth it."""
    monkeypatch.setattr(GpuModel, "pays_to_round", lambda *cycles: True)
    monkeypatch.setattr(dense, "worth_rounding", lambda exact, rounded, gpu: rounded)
    module, params = small(name)
    data = sample(module)
    with PassContext(opt_level=3, config=cuda_sim.PRECISIONS[precision]):
        library = minitvm.build(module, "simulated -order=random", params, 3, strict=True)
    texts = [library.report.kernel(symbol).text("loops") for symbol in library.report.groups]
    assert sum(word in text for text in texts) >= least
    graph = minitvm.GraphModule(library["default"](minitvm.cpu(0)))
    graph.run(data=data)
    for i, want in enumerate(compiled(module, params, data, 3)):
        assert model_zoo.error(graph.get_output(i).numpy(), want) <= allowed


MADE = [("recurrent", None, 1e-5), ("convolutions", "QDQ per channel", 1e-5), ("transformer", "dynamic", 1e-5)]
MADE += [("perceptron", "4 bits", 1e-5), ("depthwise", "float16", 2e-3)]


@pytest.mark.parametrize(("name", "tool", "allowed"), MADE)
def test_recurrent_quantized_and_half_networks(name: str, tool: str | None, allowed: float) -> None:
    model, feeds = made(name, tool) if tool else NETWORKS[name]()
    found = minitvm.InferenceSession(model, target="simulated -order=random").run(None, feeds)
    for have, want in zip(found, minitvm.InferenceSession(model).run(None, feeds), strict=True):
        assert model_zoo.error(have, want) <= allowed


@pytest.mark.models
@pytest.mark.skipif(not model_zoo.NAMES, reason=model_zoo.ABSENT)
@pytest.mark.parametrize(
    "name", [pytest.param("all_minilm_l6_v2_int8w", marks=pytest.mark.more), "mtcnn_pnet", "silero_vad"]
)
def test_outputs_are_onnx_runtimes(name: str) -> None:
    given, expected = next(iter(model_zoo.feeds(name)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        session = minitvm.InferenceSession(model_zoo.FOLDER / f"{name}.onnx", target="simulated -order=reverse")
        found = dict(zip((o.name for o in session.get_outputs()), session.run(None, given), strict=True))
    assert max(model_zoo.excess(name, found[output], want) for output, want in expected.items()) <= 1


STORED = ["mtcnn_rnet", "mtcnn_pnet", pytest.param("mtcnn_onet", marks=pytest.mark.more), "silero_vad"]
"""Those that are quick; `cuda-sim --precision` has all."""
ALLOWED = {"tf32": 5e-4, "float16": 1e-2}


@pytest.mark.models
@pytest.mark.skipif(not model_zoo.NAMES, reason=model_zoo.ABSENT)
@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize("name", STORED)
def test_fewer_bits_stay_within_their_bounds(name: str, precision: str) -> None:
    assert cuda_sim.outcome(name, "random", precision=precision).error <= ALLOWED[precision]


@pytest.mark.models
@pytest.mark.skipif(not model_zoo.NAMES, reason=model_zoo.ABSENT)
@pytest.mark.parametrize("name", STORED)
def test_tf32_costs_no_more_than_float16_everywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its factors have as many bits; sums and all that is not multiplied keep theirs."""
    monkeypatch.setattr(GpuModel, "pays_to_round", lambda *cycles: True)
    rounded, short = (cuda_sim.outcome(name, "random", precision=p).error for p in ("tf32", "float16"))
    assert rounded <= short


def test_an_order_that_does_not_exist() -> None:
    module, params = small("mlp")
    with pytest.raises(TargetError, match=r"^unknown order 'sideways'\n  = hint: one of forward, reverse, random"):
        minitvm.build(module, "simulated -order=sideways", params)


def test_the_target_is_there_inside_only() -> None:
    from minitvm.target import OPTIONS

    assert "simulated" in OPTIONS
    with pytest.raises(ZeroDivisionError), simulated_target():
        np.int64(1 // 0)
    assert "simulated" not in OPTIONS
