"""What a user meets where a GPU is not as it should be, or fails: what is said, and that the process goes on.

Only a stand-in fails when it is asked to: ``test_cuda_standin.py`` runs these tests there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from small_model import Model, expected, sample, small_module

import minitvm
from minitvm.errors import DeviceError, LibraryError, MiniTVMError, TargetError
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from minitvm.runtime.nvidia import driver, image, memory
from simulated_gpu import host_image
from tests.compilers import needs_compiler

pytestmark = pytest.mark.skipif(
    "STANDIN_ARCH" not in os.environ, reason="needs the stand-in for a driver: tests/runtime/test_cuda_standin.py"
)
CUDA = minitvm.cuda(0)
Say = Callable[..., None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Iterator[Say]:
    """Lets the stand-in say something else of itself, to a runtime that knows nothing of it yet."""

    def forget() -> None:
        for known in driver._gpus.values():  # what is freed later must not meet the context of its successor
            known.lost = known.lost or DeviceError("the stand-in is another GPU now")
            known.driver.cuDevicePrimaryCtxReset(known.handle)
        driver.bindings.cache_clear()
        driver._gpus.clear()
        memory._common.clear()

    def change(**says: object) -> None:
        for name, value in says.items():
            monkeypatch.setenv(f"STANDIN_{name.upper()}", str(value))
        forget()

    yield change
    monkeypatch.undo()
    forget()


@pytest.fixture(scope="module")
def built() -> Model:
    module, params = small_module()
    return module, params, minitvm.build(module, "cuda -arch=sm_80", params)


def message(run: Callable[[], object], kind: type[MiniTVMError]) -> str:
    with pytest.raises(kind) as error:
        run()
    return str(error.value)


def there() -> object:
    return minitvm.nd.array(sample(0), CUDA)


def works(built: Model) -> None:
    module = GraphModule(built[2]["default"]())
    module.run(x=sample(3))
    for have, want in zip(module.outputs(), expected(built[1], sample(3)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_no_bindings(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    say()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    assert message(there, TargetError) == (
        "cuda-bindings is not installed, so no GPU can be used\n  = hint: pip install cuda-bindings nvidia-cuda-nvrtc"
    )
    assert not CUDA.exist


def test_a_driver_that_is_too_old(say: Say) -> None:
    say(driver=11_080)
    assert message(there, TargetError) == (
        "NVIDIA's driver is too old: it is for CUDA 11.8, CUDA 12.0 is needed\n"
        "  = hint: update NVIDIA's driver, https://www.nvidia.com/drivers"
    )
    say(driver=12_000)
    there()


def test_no_gpu(say: Say) -> None:
    say(gpus=0)
    assert message(there, TargetError) == (
        "NVIDIA's driver finds no GPU that it can use: an error (CUDA_ERROR_100)\n  = hint: nvidia-smi lists the GPUs"
    )


def test_a_gpu_that_is_not_there(built: Model) -> None:
    assert message(lambda: built[2]["default"](minitvm.cuda(3)), TargetError) == (
        "there is no device cuda(3): this machine has 1 GPU\n  = hint: use minitvm.cuda(0), or minitvm.cpu(0)"
    )
    assert CUDA.exist and not minitvm.cuda(3).exist


def test_a_gpu_that_is_not_supported(say: Say) -> None:
    say(arch=61)
    assert message(there, TargetError) == (
        "GPU 0 (Stand-in) is not supported: its compute capability is 6.1, 7.5 is needed\n"
        "  = hint: compile the model for the CPU: target='llvm'"
    )


def test_a_library_for_another_architecture(built: Model, say: Say) -> None:
    say(arch=90)
    assert message(built[2]["default"], LibraryError) == (
        "the library was compiled for sm_80, GPU 0 (Stand-in) is sm_90\n"
        "  = hint: compile the model for it: target='cuda -arch=sm_90'"
    )
    say(arch=86)
    works(built)
    only = built[2].artifact.cpu._replace(name="sm_90a")
    say(arch=100)
    assert "was compiled for sm_90a, " in message(_with(built[2], cpu=only)["default"], LibraryError)
    say(arch=90)
    works((*built[:2], _with(built[2], cpu=only)))


def _with(library: Library, **changed: object) -> Library:
    return Library(dataclasses.replace(library.artifact, **changed))  # type: ignore[arg-type]


def test_the_architecture_is_that_of_the_gpu(say: Say) -> None:
    x = minitvm.relay.var("x", shape=(3,))
    for arch in (75, 120):
        say(arch=arch)
        assert (
            minitvm.build(minitvm.relay.Function([x], minitvm.relay.exp(x)), "cuda").artifact.cpu.name == f"sm_{arch}"
        )


def test_code_that_the_driver_cannot_load(built: Model) -> None:
    elf = b"\x7fELF\2\1\1" + bytes(11) + (190).to_bytes(2, "little") + bytes(100)
    objects = {s: image.pack(image.unpack(o)[0], elf) for s, o in built[2].artifact.objects.items()}
    text = message(_with(built[2], objects=objects)["default"], LibraryError)
    assert text.startswith("the driver of GPU 0 (Stand-in) cannot load the library's code: an error (CUDA_ERROR_209)\n")
    assert "  | kernel fused_nn_dense" in text and "update NVIDIA's driver" in text
    works(built)


def test_out_of_memory(built: Model, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    say(megabytes=1)
    text = message(lambda: minitvm.nd.empty((1 << 20,), "float32", CUDA), DeviceError)
    first, left, hint = text.splitlines()
    assert first == "cuda(0) is out of memory: 4,194,304 bytes are asked for"
    assert re.fullmatch(r"  \| 1,04\d,\d+ of 1,048,576 bytes are free", left)
    assert hint == "  = hint: use a smaller batch, let go of modules and arrays, or end other processes on the GPU"
    works(built)
    monkeypatch.setenv("STANDIN_FAIL", "cuMemAllocFromPoolAsync:2:2")
    assert "cuda(0) is out of memory" in message(lambda: GraphModule(built[2]["default"]()), DeviceError)
    works(built)
    monkeypatch.setenv("STANDIN_FAIL", "cuGraphInstantiateWithFlags:1:2")
    module = GraphModule(built[2]["default"]())
    assert "a graph of kernels is made" in message(lambda: module.run(x=sample(0)), DeviceError)
    module.run(x=sample(0))
    works(built)


def test_a_gpu_without_pools(built: Model, say: Say) -> None:
    say(pools=0)
    works(built)


@pytest.mark.parametrize("function", ["cuGraphLaunch", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize"])
def test_a_kernel_that_faults(function: str, built: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is told of it: this run and this module are lost, what comes after them is not."""
    module, other = (GraphModule(built[2]["default"]()) for _ in range(2))
    module.run(x=sample(0))
    kept = module.get_output(0)
    monkeypatch.setenv("STANDIN_FAIL", f"{function}:1:700")

    def again() -> None:
        module.run(x=sample(1))
        module.outputs()

    assert message(again, DeviceError) == (
        "a kernel failed on cuda(0): an illegal memory access was encountered (CUDA_ERROR_700)\n"
        "  = hint: GraphModuleDebug runs kernel by kernel and names it; a new module works, on a new context"
    )
    runs: list[Callable[[], object]] = [again, partial(other.run, x=sample(0)), kept.numpy]
    for run in runs:
        assert message(run, DeviceError) == (
            "the memory of this module on cuda(0) is gone, since a kernel failed there\n"
            "  | a kernel failed on cuda(0): an illegal memory access was encountered (CUDA_ERROR_700)\n"
            '  = hint: make a new one: library["default"](device)'
        )
    del kept, runs
    gc.collect()
    works(built)
    works(built)


BAD = """\
extern "C" __global__ void __launch_bounds__(1) FUNCTION(float *__restrict__ x)
{
    x[1 << 28] = 1.0f;
}
"""


@needs_compiler
def test_the_debug_executor_names_the_kernel_that_faults(built: Model) -> None:
    """One that stores far outside of its result."""
    symbol, data = list(built[2].artifact.objects.items())[-1]
    launches, _ = image.unpack(data)
    bad = [dataclasses.replace(launches[0], grid=(1, 1, 1), block=(1, 1, 1), params=launches[0].params[-1:])]
    broken = image.pack(bad, host_image(BAD.replace("FUNCTION", bad[0].function)))
    library = _with(built[2], objects={**built[2].artifact.objects, symbol: broken})
    module = GraphModule(library["default"]())
    module.run(x=sample(0))  # it only begins
    assert "  | kernel" not in message(module.outputs, DeviceError)
    debug = GraphModuleDebug(library["default"]())
    assert f"\n  | kernel {symbol}\n" in message(lambda: debug.run_quietly(x=sample(0)), DeviceError)
    works(built)


CALLED = """cuStreamCreate cuMemAllocFromPoolAsync cuModuleLoadData cuModuleGetFunction cuStreamBeginCapture
cuLaunchKernel cuStreamEndCapture cuGraphInstantiateWithFlags cuGraphLaunch cuMemcpyHtoDAsync cuMemcpyDtoHAsync
cuStreamSynchronize cuEventCreate cuEventRecord cuStreamWaitEvent cuGraphDestroy cuEventElapsedTime cuMemFreeAsync
cuEventSynchronize cuStreamDestroy cuGraphExecDestroy cuCtxPushCurrent"""


@pytest.mark.parametrize("code", [1, 999])
def test_whatever_fails_is_an_error_of_ours_and_later_runs_work(
    code: int, built: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any function, once; what fails while memory is freed, the next run is told of.  999: the driver does not know
    what happened, and nothing works any more in the context that was there."""

    def everything() -> None:
        works(built)
        GraphModuleDebug(built[2]["default"]()).run_quietly(x=sample(1))
        module = GraphModule(built[2]["default"]())
        module.set_input_zero_copy("x", there())
        module.run()
        module.outputs()

    for function in CALLED.split():
        monkeypatch.setenv("STANDIN_FAIL", f"{function}:1:{code}")
        for _ in range(2):
            with contextlib.suppress(DeviceError):
                everything()
            gc.collect()
        monkeypatch.delenv("STANDIN_FAIL")
        everything()
