"""What streams of a GPU do to memory: who waits for whom, what is freed when, what a capture must not meet.

The stand-in keeps the driver's rules of captures and of pinned memory: ``test_cuda_standin.py`` runs these tests there.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable

import numpy as np
import pytest
from onnx import parser
from small_model import Model, expected, sample, small_module

import minitvm
from minitvm.errors import InputError
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.nvidia import code
from minitvm.runtime.nvidia.driver import gpu
from minitvm.runtime.nvidia.memory import DeviceArray
from simulated_gpu.standin import bytes_used, calls

pytestmark = pytest.mark.skipif(
    "STANDIN_ARCH" not in os.environ, reason="needs the stand-in for a driver: tests/runtime/test_cuda_standin.py"
)
CUDA = minitvm.cuda(0)


@pytest.fixture(scope="module")
def built() -> Model:
    module, params = small_module()
    return module, params, minitvm.build(module, "cuda -arch=sm_80", params)


def agrees(module: GraphModule, model: Model, seed: int) -> None:
    for have, want in zip(module.outputs(), expected(model[1], sample(seed)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def bytes_left() -> int:
    """Of the stand-in's memory, once what could be freed has been: the second wait is for frees in a stream's order."""
    gc.collect()
    CUDA.sync()
    CUDA.sync()
    return bytes_used()


class OfInterface:
    """An array that describes itself only."""

    def __init__(self, **says: object) -> None:
        self.__cuda_array_interface__ = says


# --- where inputs begin ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [4, 8, 12, 16])
def test_an_array_off_a_boundary_is_copied_or_refused(off: int, built: Model) -> None:
    """``x[1:]`` of another library's: kernels load 16 bytes at once, and a fault takes the whole context with it."""
    room = minitvm.nd.array(np.zeros(64, "float32"), CUDA)
    place = DeviceArray(room._data.memory, room._data.owner, room._data.address + off, (2, 6), "float32")
    place.memory.write(place, sample(3))
    foreign = OfInterface(**place.__cuda_array_interface__)
    module = GraphModule(built[2]["default"]())
    if off % 16:
        text = (
            r"^input 'x' cannot be read where the array is: it begins off a boundary of 16 bytes, .*\n  = hint: give a"
        )
        with pytest.raises(InputError, match=text):
            module.set_input_zero_copy("x", foreign)
        with pytest.raises(InputError, match=r"^output 0 cannot be written where the array is: it begins off"):
            module.set_output_zero_copy(0, OfInterface(**{**foreign.__cuda_array_interface__, "shape": (2, 5)}))
    else:
        module.set_input_zero_copy("x", foreign)
        module.run()
        agrees(module, built, 3)
    module.run(x=foreign)
    agrees(module, built, 3)


def test_a_session_copies_what_is_off_a_boundary() -> None:
    text = '<ir_version: 9, opset_import: ["" : 17]> agraph (float[5, 4] x) => (float[5, 4] y) { y = Exp (x) }'
    session = minitvm.InferenceSession(parser.parse_model(text), target="cuda -arch=sm_80")
    room = minitvm.nd.array(np.zeros(32, "float32"), CUDA)._data
    place, value = DeviceArray(room.memory, room.owner, room.address + 4, (5, 4), "float32"), np.eye(5, 4, dtype="f")
    room.memory.write(place, value)
    foreign = minitvm.nd.NDArray(place)
    np.testing.assert_allclose(session.run(None, {"x": foreign})[0], np.exp(value), rtol=1e-6)


# --- checks ---------------------------------------------------------------------------------------------------------


LOOKUPS = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (float[4, 3] x, int64[2] i0, int64[2] i1, int64[2] i2) => (float[2, 3] y0, float[2, 3] y1, float[2, 3] y2) {
    t = Tanh (x)
    y0 = Gather (x, i0)
    y1 = Gather (t, i1)
    u = Tanh (t)
    y2 = Gather (u, i2)
}
"""


def test_checks_are_looked_at_when_a_result_is_read() -> None:
    """Three lookups: a run copies nothing to the host, and all that was found comes by one copy."""
    library = minitvm.compile(parser.parse_model(LOOKUPS), "cuda -arch=sm_80")
    module = GraphModule(library["default"]())
    assert len(module.instance.checks) == 3
    value = np.arange(12, dtype="float32").reshape(4, 3)
    feeds = {f"i{n}": np.array([n, 3]) for n in range(3)}
    before = [calls(name) for name in ("cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuEventSynchronize")]
    module.run(x=value, **feeds)
    assert [calls(n) for n in ("cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuEventSynchronize")] == before
    first = module.get_output(0)
    assert calls("cuMemcpyDtoHAsync") == before[0] + 1
    np.testing.assert_array_equal(first.numpy(), value[[0, 3]])
    module.run(i1=np.array([0, 4]))
    with pytest.raises(InputError, match="4"):
        module.outputs()
    with pytest.raises(InputError, match="output 0 has no value"):
        module.get_output(0)
    module.run(i1=np.array([1, 2]))
    np.testing.assert_array_equal(module.outputs()[1], np.tanh(value)[[1, 2]])


# --- captures and what is freed meanwhile -----------------------------------------------------------------------------


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("pools", [True, False])
def test_what_is_collected_during_a_capture(pools: bool, built: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of the captured stream and of others, a module, another library's array: by this thread's collector, and
    by another thread."""
    owner = gpu(0)
    monkeypatch.setattr(owner, "pool", owner.pool if pools else None)
    module, plain = GraphModule(built[2]["default"]()), code.Prepared.run
    GraphModule(built[2]["default"]()).run(x=sample(0))
    used, captured = bytes_left(), list[int]()

    def garbage() -> None:
        doomed: list[object] = [module.instance.memory.empty((8,), "float32"), minitvm.nd.empty((8,), "float32", CUDA)]
        doomed += [minitvm.nd.from_dlpack(minitvm.nd.empty((8,), "float32", CUDA)), GraphModule(built[2]["default"]())]
        doomed.append(doomed)

    kept: list[object] = []

    def run(self: code.Prepared, memory: object) -> None:
        gc.collect()
        in_thread(kept.clear)
        captured.append(1)
        plain(self, memory)  # type: ignore[arg-type]

    for seed in range(3):
        place = minitvm.nd.array(sample(seed), CUDA)
        module.set_input_zero_copy("x", place)
        garbage()
        kept += [module.instance.memory.empty((8,), "float32"), minitvm.nd.empty((8,), "float32", CUDA)]
        monkeypatch.setattr(code.Prepared, "run", run)
        module.run()
        monkeypatch.setattr(code.Prepared, "run", plain)
        agrees(module, built, seed)
    assert captured
    module.set_input("x", sample(0))
    del place
    assert bytes_left() <= used + 4096


def test_captures_of_others_go_on(built: Model) -> None:
    """While another library captures a stream of its own, nothing here waits for the whole context."""
    owner = gpu(0)
    theirs = owner.stream()
    owner.streams.discard(int(theirs))
    with owner:
        owner.call("cuStreamBeginCapture", theirs, owner.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    for seed in range(2):
        module = GraphModule(built[2]["default"]())
        module.set_input_zero_copy("x", minitvm.nd.array(sample(seed), CUDA))
        module.run()
        agrees(module, built, seed)
        CUDA.sync()
        del module
        gc.collect()
    with owner:
        owner.call("cuGraphDestroy", owner.call("cuStreamEndCapture", theirs))


def test_memory_that_a_captured_stream_reads_is_kept() -> None:
    """The consumer's stream is being captured: an event of it would be part of its graph."""
    owner, value = gpu(0), minitvm.nd.array(sample(1), CUDA)
    theirs = owner.stream()
    capsule, before = value.__dlpack__(stream=int(theirs)), bytes_left()
    with owner:
        owner.call("cuStreamBeginCapture", theirs, owner.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    del value, capsule
    owner.sweep()
    assert bytes_used() == before
    with owner:
        owner.call("cuGraphDestroy", owner.call("cuStreamEndCapture", theirs))
    assert bytes_left() == before - sample(1).nbytes


@pytest.mark.parametrize("function", ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing"])
def test_memory_in_use_is_not_freed_where_waiting_fails(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a wait has failed, nobody knows whether another stream still reads it: it is freed when a wait succeeds."""
    owner, value = gpu(0), minitvm.nd.array(sample(1), CUDA)
    theirs = owner.stream()
    capsule, before = value.__dlpack__(stream=int(theirs)), bytes_left()
    monkeypatch.setenv("STANDIN_FAIL", f"{function}:1:1")
    del capsule, value
    monkeypatch.delenv("STANDIN_FAIL")
    with owner:
        owner.call("cuStreamSynchronize", theirs)
    assert bytes_used() == before
    assert bytes_left() == before - sample(1).nbytes


def test_what_another_stream_was_given_happens_before_memory_is_freed() -> None:
    owner, value = gpu(0), minitvm.nd.array(sample(2), CUDA)
    theirs, target = owner.stream(), np.zeros((2, 6), "float32")
    place = minitvm.nd.empty((2, 6), "float32", CUDA)
    capsule = value.__dlpack__(stream=int(theirs))
    with owner:
        owner.call("cuMemcpyDtoDAsync", place._data.address, value._data.address, target.nbytes, theirs)
    memory = value._data.memory
    del capsule, value
    memory.wait()  # it is freed in this stream's order
    np.testing.assert_array_equal(place.numpy(), sample(2))


# --- pinned memory --------------------------------------------------------------------------------------------------


def test_a_pinned_array_may_be_changed_when_it_was_given() -> None:
    owner, value = gpu(0), sample(1)
    with owner:
        address = owner.call("cuMemHostAlloc", value.nbytes, 0)
    pinned = np.frombuffer((ctypes.c_uint8 * value.nbytes).from_address(int(address)), "float32").reshape(value.shape)
    pinned[...] = value
    there = minitvm.nd.array(pinned, CUDA)
    pinned[...] = -1
    np.testing.assert_array_equal(there.numpy(), value)
    with owner:
        owner.call("cuMemFreeHost", int(address))
