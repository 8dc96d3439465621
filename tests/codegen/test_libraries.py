"""Matrix products that a vendor's library computes: a wall for fusion, and the same numbers."""

from __future__ import annotations

import ctypes.util
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from nvrtc import needs_nvrtc

import minitvm
from minitvm import relay
from minitvm.errors import TargetError
from minitvm.runtime import cblas
from minitvm.runtime.graph import LibraryCall
from minitvm.runtime.nvidia import libraries
from minitvm.runtime.nvidia.libraries import Convolution, Product, call_of
from minitvm.testing import assert_allclose, mlp

RNG = np.random.default_rng(5)
TARGET = "llvm -libs=cblas"


@pytest.fixture
def without_openblas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that has none."""
    cblas.functions.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(cblas, "_folders", lambda: iter(()))
        yield
    cblas.functions.cache_clear()


def layer() -> relay.Function:
    x, weight = relay.var("x", shape=(33, 64)), relay.const(RNG.normal(size=(50, 64)).astype("float32"))
    bias = relay.const(RNG.normal(size=50).astype("float32"))
    return relay.Function([x], relay.nn.relu(relay.nn.bias_add(relay.nn.dense(x, weight), bias)))


def steps(library: minitvm.Library) -> list[str]:
    return [f"{type(n.step).__name__} {n.name}" for n in library.graph.nodes if n.step is not None]


def compared(function: relay.Function, target: str = TARGET, threads: int = 2) -> minitvm.Library:
    """The function for the target, once its results have been found to be the native ones."""
    found, native = (minitvm.build(relay.Module(function), t, num_threads=threads) for t in (target, "llvm"))
    feeds = {p.name: RNG.normal(size=p.type.static_shape).astype(p.type.dtype) for p in function.params}  # type: ignore[union-attr]
    for have, want in zip(found.run(feeds), native.run(feeds), strict=True):
        assert_allclose(have, want, rtol=1e-4, atol=1e-4)
    return found


def test_nothing_is_fused_with_a_call_of_a_library() -> None:
    assert steps(minitvm.build(layer())) == ["Launch fused_nn_dense_nn_bias_add_nn_relu"]
    library = compared(layer())
    assert steps(library) == ["LibraryCall cblas_nn_dense", "Launch fused_nn_bias_add_nn_relu"]
    report = library.report.kernel("cblas_nn_dense")
    assert report.template == "call of a library"
    assert "call void @cblas_sgemm(i32 101, i32 111, i32 112, i64 33, i64 50, i64 64, float 1.0" in report.text("llvm")
    said = [str(d) for step in library.report.steps for d in step.decisions if d.by == "CallLibraries"]
    assert said == ["nn.dense: CallLibraries: cblas computes it, by itself"]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("level", [0, 3])
def test_networks_have_the_native_results(level: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_VERIFY", "1")
    module, params = mlp.get_workload(batch_size=3)
    with minitvm.transform.PassContext(opt_level=level):
        found, native = (minitvm.build(module, t, params, num_threads=threads) for t in (TARGET, "llvm"))
    assert sum(isinstance(node.step, LibraryCall) for node in found.graph.nodes) == 3
    feeds = {"data": RNG.normal(size=(3, 1, 28, 28)).astype("float32")}
    assert_allclose(found.run(feeds)[0], native.run(feeds)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batches", [(), (1, 1), (5, 5), (5, 1), (1, 5)])
def test_products(batches: tuple[int, ...], transpose_a: bool, transpose_b: bool, dtype: str) -> None:
    m, n, k = (int(size) for size in RNG.integers(1, 40, size=3))
    batch_a, batch_b = (batches[:1], batches[1:])
    a = relay.var("a", shape=(*batch_a, *((k, m) if transpose_a else (m, k))), dtype=dtype)
    b = relay.var("b", shape=(*batch_b, *((n, k) if transpose_b else (k, n))), dtype=dtype)
    product = relay.nn.batch_matmul if batches else relay.nn.matmul
    made = product(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    library = compared(relay.Function([a, b], made))
    assert [step.split()[0] for step in steps(library)] == ["LibraryCall"]


def test_one_operand_twice_and_equal_calls() -> None:
    x = relay.var("x", shape=(7, 7))
    twice = relay.nn.dense(x, x)
    library = compared(relay.Function([x], relay.nn.dense(relay.exp(twice), relay.tanh(x))))
    assert list(library.report.groups).count("cblas_nn_dense") == 1


@pytest.mark.parametrize(
    ("shapes", "dtype", "why"),
    [
        (((3, 4), (5, 4)), "float16", "the library multiplies float32 or float64, not float16"),
        (((3, 0), (5, 0)), "float32", "nothing is multiplied: Tensor[(3, 0), float32] by Tensor[(5, 0), float32]"),
    ],
)
def test_what_the_library_does_not_take_is_our_own_kernel(
    shapes: tuple[tuple[int, int], ...], dtype: str, why: str
) -> None:
    a, b = (relay.var(name, shape=shape, dtype=dtype) for name, shape in zip("ab", shapes, strict=True))
    library = compared(relay.Function([a, b], relay.nn.dense(a, b)))
    assert not any(isinstance(node.step, LibraryCall) for node in library.graph.nodes)
    said = [str(d) for step in library.report.steps for d in step.decisions if d.by == "CallLibraries"]
    assert said == [f"nn.dense: CallLibraries declined: {why}"]


def test_saved_and_loaded(tmp_path: pathlib.Path) -> None:
    library = compared(layer())
    library.save(tmp_path / "layer.mtvm")
    feeds = {"x": RNG.normal(size=(33, 64)).astype("float32")}
    loaded = minitvm.load(tmp_path / "layer.mtvm")
    assert loaded.target == TARGET and steps(loaded) == steps(library)
    np.testing.assert_array_equal(loaded.run(feeds)[0], library.run(feeds)[0])


def test_a_machine_without_the_library_says_what_to_install(tmp_path: pathlib.Path, without_openblas: None) -> None:
    path = tmp_path / "layer.mtvm"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cblas, "functions", dict)
        minitvm.build(relay.Module(layer()), TARGET).save(path)
    missing = r"^there is no OpenBLAS for -libs=cblas: .*\n  = hint: pip install scipy-openblas64, or leave out -libs$"
    with pytest.raises(TargetError, match=missing):
        minitvm.build(relay.Module(layer()), TARGET)
    with pytest.raises(TargetError, match=missing):
        minitvm.load(path).run({"x": np.zeros((33, 64), "float32")})


@needs_nvrtc
def test_a_product_of_cublas_is_a_product_of_transposed_matrices(tmp_path: pathlib.Path) -> None:
    """Built and saved where there is no GPU and no cuBLAS."""
    library = minitvm.build(relay.Module(layer()), "cuda -arch=sm_90 -libs=cublas")
    assert steps(library) == ["LibraryCall cublas_nn_dense", "Launch fused_nn_bias_add_nn_relu"]
    want = Product("float32", (1, 0), (50, 33, 64), (64, 64, 50), (0, 0, 33 * 50), 1)
    assert call_of(library.artifact.objects["cublas_nn_dense"]) == want
    library.save(tmp_path / "layer.mtvm")
    assert minitvm.load(tmp_path / "layer.mtvm").artifact.objects == library.artifact.objects


def convolution(
    layouts: tuple[str, str] = ("NCHW", "OIHW"), dtype: str = "float32", batch: object = 2, **attrs: Any
) -> relay.Function:
    """With a bias and a rectifier, which are fused with our own kernels."""
    extents = {"N": batch, "C": 4, "H": 9, "W": 8, "O": 6, "I": 4 // attrs.get("groups", 1)}
    x = relay.var("x", shape=[extents[axis] for axis in layouts[0]], dtype=dtype)
    weight = RNG.normal(size=[3 if axis in "HW" else extents[axis] for axis in layouts[1]]).astype(dtype)
    made = relay.nn.conv2d(x, relay.const(weight), data_layout=layouts[0], kernel_layout=layouts[1], **attrs)
    return relay.Function([x], relay.nn.relu(made))


@needs_nvrtc
def test_a_convolution_of_cudnn(tmp_path: pathlib.Path) -> None:
    """Built and saved where there is no GPU and no cuDNN."""
    function = convolution(groups=2, strides=(2, 1), padding=(1, 0), dilation=(1, 2))
    library = minitvm.build(relay.Module(function), "cuda -arch=sm_90 -libs=cublas,cudnn")
    assert steps(library) == ["LibraryCall cudnn_nn_conv2d", "Launch fused_nn_relu"]
    shapes = ((2, 4, 9, 8), (6, 2, 3, 3), (2, 6, 5, 4))
    want = Convolution("float32", shapes, (1, 0), (2, 1), (1, 2), groups=2)
    assert call_of(library.artifact.objects["cudnn_nn_conv2d"]) == want
    library.save(tmp_path / "layer.mtvm")
    assert minitvm.load(tmp_path / "layer.mtvm").artifact.objects == library.artifact.objects


@needs_nvrtc
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (convolution(padding=(0, 0, 1, 1)), "cuDNN pads both ends alike, not by [0, 0, 1, 1]"),
        (convolution(("NHWC", "HWIO")), "cuDNN is called for NCHW, OIHW, NCHW, not NHWC, HWIO, NHWC"),
        (convolution(dtype="int32"), "the library convolves float16 or float32 or float64, not int32"),
        (convolution(batch=0), "nothing is summed: Tensor[(0, 4, 9, 8), float32] by Tensor[(6, 4, 3, 3), float32]"),
        (
            convolution(dtype="float16", out_dtype="float32"),
            "the library convolves float16 or float32 or float64, not float16, float32",
        ),
    ],
)
def test_what_cudnn_does_not_take_is_our_own_kernel(function: relay.Function, why: str) -> None:
    library = minitvm.build(relay.Module(function), "cuda -arch=sm_90 -libs=cudnn")
    assert not any(isinstance(node.step, LibraryCall) for node in library.graph.nodes)
    said = [str(d) for step in library.report.steps for d in step.decisions if d.by == "CallLibraries"]
    assert said == [f"nn.conv2d: CallLibraries declined: {why}"]


@needs_nvrtc
def test_transposed_convolutions_and_other_operators() -> None:
    x, weight = relay.var("x", shape=(1, 4, 5, 5)), relay.const(RNG.normal(size=(4, 2, 3, 3)).astype("float32"))
    function = relay.Function([x], relay.nn.conv2d_transpose(relay.nn.max_pool2d(x), weight))
    library = minitvm.build(relay.Module(function), "cuda -arch=sm_90 -libs=cudnn,cublas")
    said = [str(d) for step in library.report.steps for d in step.decisions if d.by == "CallLibraries"]
    why = "cuDNN is called for convolutions, not for transposed ones"
    assert said == [f"nn.conv2d_transpose: CallLibraries declined: {why}"]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A machine whose libraries of NVIDIA's are at a path; there are none where it is empty."""

    def found(path: str) -> None:
        def path_of(name: str) -> str:
            if not path:
                raise RuntimeError(f"Failure finding {name}\nand where it was looked for")
            return path

        monkeypatch.setattr(libraries, "path_of", path_of)
        libraries.load.cache_clear()

    yield found
    libraries.load.cache_clear()


@pytest.mark.parametrize(("name", "title"), [("cublas", "cuBLAS"), ("cudnn", "cuDNN")])
def test_libraries_of_nvidia_that_are_not_as_they_should_be(
    name: str, title: str, at: Callable[[str], None], tmp_path: pathlib.Path
) -> None:
    at("")
    with pytest.raises(TargetError) as error:
        libraries.load(name)
    assert str(error.value) == (
        f"{title} is not installed, which the library calls\n  | Failure finding {name}\n"
        "  = hint: pip install nvidia-cublas nvidia-cudnn-cu13 cuda-pathfinder, or leave out -libs"
    )
    (tmp_path / "empty.so").write_bytes(b"")
    at(str(tmp_path / "empty.so"))
    with pytest.raises(TargetError, match=f"^{title} is not installed, which the library calls\n  [|] .*too short"):
        libraries.load(name)
    at(str(ctypes.util.find_library("m")))
    package = {"cublas": "nvidia-cublas", "cudnn": "nvidia-cudnn-cu13"}[name]
    with pytest.raises(TargetError) as error:
        libraries.load(name)
    assert str(error.value) == (
        f"{title} has no {name}GetProperty, which is called\n  | {ctypes.util.find_library('m')}\n"
        f"  = hint: pip install -U {package}, or leave {name} out of -libs"
    )


def test_descriptors_that_the_real_cudnn_takes() -> None:
    """Where it is installed; descriptors need no GPU and no driver."""
    try:
        real = libraries.load("cudnn")
    except TargetError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    handle = libraries.Dnn.__new__(libraries.Dnn)
    handle.library, handle._descriptors, handle.value = real, {}, ctypes.c_void_p()
    for what in (
        Convolution("float32", ((2, 4, 9, 8), (6, 2, 3, 3), (2, 6, 5, 4)), (1, 0), (2, 1), (1, 2), 2),
        Convolution("float16", ((1, 2, 5, 6, 4), (3, 2, 3, 2, 2), (1, 3, 5, 3, 5)), (1, 0, 1), (1, 1, 1), (1, 3, 1), 1),
        Convolution("float64", ((2, 3, 1, 11), (4, 3, 1, 3), (2, 4, 1, 6)), (0, 1), (1, 2), (1, 1), 1),
    ):
        x, w, convolution, _ = handle._describe(what)
        result = (ctypes.c_int * len(what.shapes[2]))()
        assert real.cudnnGetConvolutionNdForwardOutputDim(convolution, x, w, len(result), result) == 0
        assert tuple(result) == what.shapes[2]
    handle.free()


def test_libraries_that_a_target_does_not_call() -> None:
    with pytest.raises(TargetError, match=r"^target 'llvm' calls no library 'mkl'\n  = hint: .*it calls cblas$"):
        minitvm.build(relay.Module(layer()), "llvm -libs=cblas,mkl")
    with pytest.raises(TargetError, match=r"^target 'cuda' calls no library 'cblas'\n.*it calls cudnn, cublas$"):
        minitvm.build(relay.Module(layer()), "cuda -libs=cublas,cblas")
    with pytest.raises(TargetError) as error:
        minitvm.build(relay.Module(layer()), "rocm -libs=miopen,rocblas")
    assert str(error.value) == (
        "unknown target 'rocm -libs=miopen,rocblas'\n  = hint: known targets: llvm, interp, cuda; "
        "vendor libraries are called by llvm (cblas) and cuda (cudnn, cublas)"
    )
