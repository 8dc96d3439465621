"""Models of PyTorch: imported by ``torch.export``, and compiled by ``torch.compile``; six networks, beside PyTorch."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch", reason="pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="pip install torch onnxscript")

from torch import nn  # noqa: E402

import minitvm  # noqa: E402
from benchmarks.torch_networks import NETWORKS  # noqa: E402
from minitvm.errors import FrontendError, InputError, MiniTVMError  # noqa: E402
from minitvm.torch import backend, from_torch, to_onnx  # noqa: E402
from minitvm.torch.dynamo import NotCompiledWarning  # noqa: E402
from minitvm.torch.tensors import array_of, tensor_of  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


def assert_same(found: object, wanted: object) -> None:
    leaves = torch.utils._pytree.tree_leaves
    for have, want in zip(leaves(found), leaves(wanted), strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_imported(name: str) -> None:
    network, draw = NETWORKS[name](False)
    x = draw(2)
    module, params = from_torch(network, (x,))
    executor = minitvm.GraphModule(minitvm.build(module, params=params, num_threads=2)["default"](minitvm.cpu()))
    executor.run(**{module.main.params[0].name: x.numpy()})
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(network(x))
    assert_same([torch.from_numpy(executor.get_output(i).numpy()) for i in range(len(wanted))], wanted)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_compiled_for_every_batch(name: str) -> None:
    network, draw = NETWORKS[name](False)
    fast = torch.compile(network, backend=backend)
    with torch.no_grad():
        for batch in (2, 3, 5, 1):
            x = draw(batch)
            assert_same(fast(x), network(x))
    left_to_pytorch = name == "recurrent"  # by TorchDynamo, which has its own reasons
    assert (torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0) == left_to_pytorch


@pytest.mark.parametrize("norm_first", [False, True])
def test_pytorchs_fused_encoder_with_masks(norm_first: bool) -> None:
    """Its "fast path" is one operator; without it, layers are what they are made of."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    fast, x = torch.compile(layer, backend=backend), torch.randn(3, 6, 32)
    hidden = torch.arange(6)[None] >= torch.tensor([[6], [3], [1]])
    with torch.no_grad():
        assert_same(fast(x), layer(x))
        wanted = layer(x, src_key_padding_mask=hidden)
        assert_same(fast(x, src_key_padding_mask=hidden)[~hidden], wanted[~hidden])
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        assert_same(fast(x, src_mask=later), layer(x, src_mask=later))


def test_pytorchs_fused_attention() -> None:
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    fast, x = torch.compile(attention, backend=backend), torch.randn(2, 5, 16)
    with torch.no_grad():
        for average in (True, False):
            assert_same(fast(x, x, x, average_attn_weights=average), attention(x, x, x, average_attn_weights=average))


def test_the_back_end_has_a_name() -> None:
    if "minitvm" not in torch._dynamo.list_backends(exclude_tags=()):
        pytest.skip("installed before the back end had a name: pip install again")
    network = nn.Linear(4, 3).eval()
    x = torch.randn(2, 4)
    with torch.inference_mode():
        assert_same(torch.compile(network, backend="minitvm")(x), network(x))


def test_weights_that_change_are_seen() -> None:
    network = nn.Linear(4, 3).eval()
    fast, x = torch.compile(network, backend=backend), torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(5):
            assert_same(fast(x), network(x))
            network.weight.mul_(2)
            network.bias.add_(1)
        network.load_state_dict(nn.Linear(4, 3).state_dict())
        assert_same(fast(x), network(x))


def test_results_are_not_written_over_by_the_next_run() -> None:
    network = nn.Linear(64, 128).eval()
    fast = torch.compile(network, backend=backend)
    with torch.no_grad():
        a, b = torch.randn(64, 64), torch.randn(64, 64)
        first = fast(a)
        fast(b)
        assert_same(first, network(a))


def test_gradients_are_pytorchs_with_a_warning() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
    other = copy.deepcopy(network)
    x = torch.randn(8, 4)
    with pytest.warns(NotCompiledWarning, match="gradients are asked for"):
        torch.compile(network, backend=backend)(x).sum().backward()
    other(x).sum().backward()
    assert_same(network[0].weight.grad, other[0].weight.grad)


def test_batch_norm_in_training_mode_takes_the_batchs_mean_and_writes_its_own() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    other = copy.deepcopy(network)
    fast = torch.compile(network, backend=backend)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(4, 3, 16, 16)
            assert_same(fast(x), other(x))
    assert_same(network[1].running_var, other[1].running_var)


def test_random_numbers_are_pytorchs_with_a_warning() -> None:
    fast = torch.compile(lambda x: nn.functional.dropout(x, 0.5) + 1, backend=backend)
    with torch.no_grad(), pytest.warns(NotCompiledWarning, match="draws random numbers"):
        found = fast(torch.ones(64, 64))
    assert 0.3 < float((found == 1).float().mean()) < 0.7


def test_graph_breaks_and_python_between_graphs() -> None:
    def function(x: torch.Tensor, flag: str) -> torch.Tensor:
        y = torch.relu(x) * 2
        torch._dynamo.graph_break()
        return y + 1 if flag == "add" else y - 1

    fast = torch.compile(function, backend=backend)
    with torch.no_grad():
        for flag in ("add", "sub"):
            x = torch.randn(5)
            assert_same(fast(x, flag), function(x, flag))


def test_views_mutations_strides_and_results_that_are_arguments() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        return x, x.t(), (x.t() * 2)[1:], y, torch.zeros(0, 3) + y[:, :3].sum(0)

    fast = torch.compile(function, backend=backend)
    x, y = torch.randn(4, 6)[:, ::2], torch.randn(5, 4)
    with torch.no_grad():
        have, want = y.clone(), y.clone()
        assert_same(fast(x, have), function(x, want))
        assert_same(have, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5).mul(50).abs().to(dtype)
    fast = torch.compile(lambda v: torch.where(v > 1, v, torch.zeros_like(v)), backend=backend)
    with torch.no_grad():
        found = fast(x)
    assert found.dtype == dtype and torch.equal(found, torch.where(x > 1, x, torch.zeros_like(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_tensors_and_arrays_share_memory(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 4, dtype=dtype)
    array = array_of(tensor)
    assert array.shape == (3, 4) and array.ctypes.data == tensor.data_ptr()
    assert tensor_of(array).data_ptr() == tensor.data_ptr() and tensor_of(array).dtype == dtype


def test_open_dimensions_stay_open() -> None:
    network = nn.Linear(4, 3).eval()
    model = to_onnx(network, (torch.randn(2, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    session = minitvm.InferenceSession(model)
    name = session.get_inputs()[0].name
    for batch in (1, 2, 7):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            assert_same(torch.from_numpy(session.run(None, {name: x.numpy()})[0]), network(x))


def test_keyword_arguments_and_exported_programs() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scaled": x * scale, "sum": x.sum()}

    x, scale = torch.randn(3), torch.randn(3)
    module, _ = from_torch(Scaled().eval(), (x,), example_kwargs={"scale": scale})
    assert [p.name for p in module.main.params] == ["x", "scale"]
    program = torch.export.export(Scaled().eval(), (x,), {"scale": scale})
    assert [p.name for p in from_torch(program)[0].main.params] == ["x", "scale"]
    with pytest.raises(InputError, match="has its inputs"):
        from_torch(program, (x,))


class Breaks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if float(x.sum()) > 0 else x - 1


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return x * self.seen


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def test_buffers_that_a_model_writes_to() -> None:
    network, other = Counts().eval(), Counts().eval()
    fast, x = torch.compile(network, backend=backend), torch.randn(3)
    with torch.no_grad():
        for _ in range(5):
            assert_same(fast(x), other(x))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: from_torch(nn.Linear(2, 2).eval()), InputError, "example inputs are missing"),
        (lambda: from_torch(nn.Linear(2, 2), (torch.ones(1, 2),)), InputError, "in training mode"),
        (lambda: from_torch(len, ()), InputError, "neither a torch.nn.Module nor"),
        (lambda: from_torch(Counts().eval(), (torch.ones(2),)), FrontendError, "writes to seen"),
        (lambda: from_torch(Noise().eval(), (torch.ones(2),)), FrontendError, "draws random numbers"),
        (lambda: from_torch(Breaks().eval(), (torch.ones(2),)), FrontendError, "PyTorch could not export"),
        (lambda: from_torch(nn.Linear(2, 2).eval(), (torch.ones(3, 3),)), FrontendError, "PyTorch could not export"),
        (lambda: array_of(torch.empty(2, device="meta")), InputError, "a tensor is on meta"),
    ],
)
def test_errors_say_what_to_do(call: Callable[[], object], error: type[MiniTVMError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_options_that_do_not_exist_are_refused() -> None:
    fast = torch.compile(nn.Linear(2, 2), backend=backend, options={"levle": 3})
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no option levle"):
        fast(torch.ones(1, 2))
    with torch.no_grad():
        torch.compile(nn.Linear(2, 2), backend=backend, options={"opt_level": 1, "num_threads": 1})(torch.ones(1, 2))


def test_without_torch_the_door_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
import minitvm
try:
    minitvm.from_torch(None)
except minitvm.MiniTVMError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "torch is not installed" in found and "pip install torch onnxscript" in found
