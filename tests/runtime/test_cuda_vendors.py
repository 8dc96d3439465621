"""cuBLAS and cuDNN on a GPU: steps of one graph with the kernels around them, and the native numbers."""

from __future__ import annotations

import gc
import os
import pathlib
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import DeviceError, TargetError
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.graph import LibraryCall
from minitvm.runtime.nvidia import libraries
from minitvm.runtime.nvidia.driver import gpu
from minitvm.testing import assert_allclose
from simulated_gpu import standin

RNG = np.random.default_rng(5)


def missing() -> str:
    """Why they cannot be called here."""
    try:
        return str(gpu(0) and libraries.load("cublas") and libraries.load("cudnn") and "")
    except TargetError as error:
        return f"{error.message}; {error.hint}"


REASON = missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]
ON_STANDIN = "STANDIN_ARCH" in os.environ
only_standin = pytest.mark.skipif(not ON_STANDIN, reason="asks the stand-in what it was asked")


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def built(function: relay.Function, libs: str = "cudnn,cublas") -> minitvm.Library:
    return minitvm.build(relay.Module(function), f"cuda -arch={gpu(0).arch} -libs={libs}")


def feeds_of(function: relay.Function) -> dict[str, np.ndarray]:
    return {p.name: normal(*p.type.static_shape, dtype=p.type.dtype) for p in function.params}  # type: ignore[union-attr]


def compared(function: relay.Function, rtol: float = 1e-4) -> minitvm.Library:
    """The function for the libraries, once two runs' results have been found to be the CPU's."""
    found, native = built(function), minitvm.build(relay.Module(function), "llvm")
    for _ in range(2):
        feeds = feeds_of(function)
        for have, want in zip(found.run(feeds), native.run(feeds), strict=True):
            assert_allclose(have, want, rtol=rtol, atol=rtol)
    return found


def steps(library: minitvm.Library) -> list[str]:
    return [f"{type(n.step).__name__} {n.name}" for n in library.graph.nodes if n.step is not None]


def test_between_kernels_and_saved(tmp_path: pathlib.Path) -> None:
    x, weight = relay.var("x", shape=(9, 20)), relay.const(normal(13, 20))
    library = compared(relay.Function([x], relay.nn.relu(relay.nn.dense(relay.exp(x), weight))))
    assert steps(library) == ["Launch fused_exp", "LibraryCall cublas_nn_dense", "Launch fused_nn_relu"]
    library.save(tmp_path / "layer.mtvm")
    feeds = {"x": normal(9, 20)}
    np.testing.assert_array_equal(minitvm.load(tmp_path / "layer.mtvm").run(feeds)[0], library.run(feeds)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("swapped", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batches", [(3, 3), (3, 1), (1, 3)])
def test_products(batches: tuple[int, int], swapped: tuple[bool, bool], dtype: str) -> None:
    m, n, k = 5, 7, 6
    a = relay.var("a", shape=(batches[0], *((k, m) if swapped[0] else (m, k))), dtype=dtype)
    b = relay.var("b", shape=(batches[1], *((n, k) if swapped[1] else (k, n))), dtype=dtype)
    made = relay.nn.batch_matmul(a, b, transpose_a=swapped[0], transpose_b=swapped[1])
    assert [step.split()[0] for step in steps(compared(relay.Function([a, b], made)))] == ["LibraryCall"]


def layer(image: tuple[int, ...], filters: tuple[int, ...], dtype: str = "float32", **attrs: Any) -> relay.Function:
    """A convolution alone."""
    x, weight = (relay.var(name, shape=shape, dtype=dtype) for name, shape in (("x", image), ("weight", filters)))
    convolve = {3: relay.nn.conv1d, 4: relay.nn.conv2d, 5: relay.nn.conv3d}[len(image)]
    return relay.Function([x, weight], convolve(x, weight, **attrs))


@pytest.mark.parametrize(
    ("image", "filters", "attrs"),
    [
        ((2, 3, 9, 8), (5, 3, 3, 3), {"padding": (1, 1)}),
        ((1, 4, 9, 8), (6, 4, 1, 3), {"strides": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
        ((2, 6, 7, 7), (4, 3, 3, 3), {"groups": 2, "strides": (2, 2)}),
        ((1, 5, 8, 6), (10, 1, 3, 3), {"groups": 5, "padding": (1, 1)}),
        ((2, 3, 11), (4, 3, 3), {"padding": (1,), "strides": (2,)}),
        ((1, 2, 5, 6, 4), (3, 2, 3, 2, 2), {"padding": (1, 0, 1), "dilation": (1, 2, 1)}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_convolutions(image: tuple[int, ...], filters: tuple[int, ...], attrs: dict[str, Any], dtype: str) -> None:
    found = compared(layer(image, filters, dtype, **attrs), 2e-3 if dtype == "float16" else 1e-4)
    assert steps(found) == [f"LibraryCall cudnn_nn_conv{len(image) - 2}d"]


def network() -> relay.Function:
    """Two equal convolutions, one of another shape, and a dense layer."""
    x, same = relay.var("x", shape=(1, 4, 6, 6)), relay.const(normal(4, 4, 3, 3))
    y = relay.nn.relu(relay.nn.conv2d(x, same, padding=(1, 1)))
    y = relay.nn.conv2d(y, same, padding=(1, 1)) + x
    y = relay.nn.relu(relay.nn.conv2d(y, relay.const(normal(3, 4, 1, 1))))
    return relay.Function([x], relay.nn.dense(relay.nn.batch_flatten(y), relay.const(normal(5, 108))))


def test_a_network_by_both_and_by_one_of_them() -> None:
    found = compared(network())
    called = [node.func for node in found.graph.nodes if isinstance(node.step, LibraryCall)]
    assert called == ["cudnn_nn_conv2d", "cudnn_nn_conv2d", "cudnn_nn_conv2d_1", "cublas_nn_dense"]
    only = [s for s in steps(built(network(), "cudnn")) if s.startswith("LibraryCall")]
    assert len(only) == 3 and all("cudnn" in s for s in only)


def test_one_by_one_with_their_times() -> None:
    function = network()
    library = built(function)
    module, feeds = GraphModuleDebug(library["default"]()), feeds_of(function)
    module.run(**feeds)
    want = minitvm.build(relay.Module(function), "llvm").run(feeds)[0]
    assert_allclose(module.get_output(0), want, rtol=1e-4, atol=1e-4)
    assert all(n.name in module.table() for n in library.graph.nodes if isinstance(n.step, LibraryCall))


@pytest.mark.parametrize("allowed", [False, True])
def test_float32_is_strict_unless_tf32_is_allowed(allowed: bool) -> None:
    x, weight = relay.var("x", shape=(1, 8, 6, 6)), relay.const(normal(4, 8, 3, 3))
    flat = relay.nn.batch_flatten(relay.nn.conv2d(x, weight))
    both = relay.Function(
        [x], relay.Tuple([flat, relay.nn.dense(relay.nn.batch_flatten(x), relay.const(normal(3, 288)))])
    )
    with minitvm.transform.PassContext(config={"cuda.allow_tf32": allowed}):
        found = built(both)
    feeds, native = feeds_of(both), minitvm.build(relay.Module(both), "llvm")
    for have, want in zip(found.run(feeds), native.run(feeds), strict=True):
        error = np.abs(have - want).max() / np.abs(want).max()
        assert error < (2e-3 if allowed else 1e-5)
        assert not allowed or error > 1e-5 or not ON_STANDIN  # a library may be faster without
    text = found.report.kernel("cudnn_nn_conv2d").text("cuda")
    assert f"allow_tf32={allowed}" in text and text.startswith("// cudnn_nn_conv2d calls cudnn: Convolution(")


@only_standin
def test_algorithms_are_measured_once_for_a_shape_and_before_graphs_are_captured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path))
    library, feeds = built(network()), {"x": normal(1, 4, 6, 6)}
    libraries._fastest.clear()
    before = standin.calls("cudnnFindConvolutionForwardAlgorithmEx")
    modules = [minitvm.GraphModule(library["default"]()) for _ in range(3)]
    assert standin.calls("cudnnFindConvolutionForwardAlgorithmEx") == before + 2  # two shapes
    calls = standin.calls("cudnnConvolutionForward")
    for module in modules:
        for _ in range(4):
            module.run(**feeds)
    assert standin.calls("cudnnConvolutionForward") == calls + 3 * 3  # captured once, then launched as graphs
    assert {a.number for a in libraries._fastest[gpu(0)].values()} == {
        1
    }  # the fastest that is strict, with a workspace


@only_standin
def test_algorithms_are_kept_on_disk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By shape, GPU and version; what is damaged there is measured again."""
    library = built(network())
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path))

    def measured() -> int:
        before = standin.calls("cudnnFindConvolutionForwardAlgorithmEx")
        libraries._fastest.clear()  # as in a new process
        library["default"]()
        return standin.calls("cudnnFindConvolutionForwardAlgorithmEx") - before

    assert [measured(), measured()] == [2, 0]
    known = libraries._fastest[gpu(0)]
    damaged, other = sorted(tmp_path.glob("objects/*/*.bin"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    other.write_bytes(b"")
    assert [measured(), measured()] == [2, 0] and libraries._fastest[gpu(0)] == known
    monkeypatch.setenv("STANDIN_CUDNN", "10")
    assert [measured(), measured()] == [2, 0]
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    assert [measured(), measured()] == [2, 2]


def alive() -> list[int]:
    """Bytes, handles and descriptors."""
    gc.collect()
    gpu(0).wait()
    made = (
        "cublasCreate_v2",
        "cudnnCreate",
        *(f"cudnnCreate{x}Descriptor" for x in ("Tensor", "Filter", "Convolution")),
    )
    assert all(map(standin.calls, made))
    return [standin.bytes_used(), *(standin.calls(x) - standin.calls(x.replace("Create", "Destroy")) for x in made)]


@only_standin
def test_handles_descriptors_and_memory_are_given_back() -> None:
    library = built(network())
    library.run({"x": normal(1, 4, 6, 6)})  # whose module stays
    before = alive()
    module = minitvm.GraphModule(library["default"]())
    module.run(x=normal(1, 4, 6, 6))
    assert all(now > then for now, then in zip(alive(), before, strict=True))
    del module
    assert alive() == before


@only_standin
def test_no_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that the stand-in finds is for other windows."""
    library = built(layer((1, 2, 9, 9), (3, 2, 3, 3)))
    monkeypatch.setenv("STANDIN_ALGORITHMS", "1")
    with pytest.raises(DeviceError, match=r"^cuDNN has no algorithm on cuda\(0\)\n.*shapes=.*\n.*leave cudnn out"):
        library["default"]()


@only_standin
def test_a_call_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    library = built(network())
    monkeypatch.setenv("STANDIN_FAIL", "cudnnConvolutionForward:4:3000")  # after two shapes' first calls
    with pytest.raises(DeviceError) as error:
        library.run({"x": normal(1, 4, 6, 6)})
    assert str(error.value).startswith(
        "cuDNN fails on cuda(0): cudnnConvolutionForward returns CUDNN_STATUS_NOT_SUPPORTED (3000)\n  | Convolution("
    )
    monkeypatch.delenv("STANDIN_FAIL")
    compared(network())


@only_standin
@pytest.mark.parametrize(("name", "title"), [("cublas", "cuBLAS 11"), ("cudnn", "cuDNN 8")])
def test_a_library_that_is_too_old(name: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"STANDIN_{name.upper()}", title.split()[1])
    libraries.load.cache_clear()
    oldest = libraries.VENDORS[name].oldest
    with pytest.raises(
        TargetError, match=rf"^{title} is too old: {oldest} is needed\n.*\n  = hint: pip install -U nvi"
    ):
        built(network())["default"]()
    monkeypatch.undo()
    libraries.load.cache_clear()
