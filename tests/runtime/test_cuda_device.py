"""Whole models on a GPU: what the runtime does there, beside the same model on the CPU.

Without a GPU these tests are skipped, with the reason; ``test_cuda_standin.py`` runs all of them on the stand-in.
"""

from __future__ import annotations

import gc
import pathlib
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import parser
from small_model import Model, expected, sample, small_module
from small_workloads import small

import minitvm
from minitvm import relay
from minitvm.cli import cli
from minitvm.errors import InputError, MiniTVMError, TargetError
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from minitvm.runtime.nvidia.driver import gpu
from minitvm.runtime.nvidia.image import unpack
from minitvm.testing import assert_close_to_scale


def missing() -> str:
    """Why there is no GPU here."""
    try:
        return str(gpu(0) and "")
    except TargetError as error:
        return f"{error.message}; {error.hint}"


REASON = missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]
CUDA = minitvm.cuda(0)


def target() -> str:
    return f"cuda -arch={gpu(0).arch}"


@pytest.fixture(scope="module")
def built() -> Model:
    module, params = small_module()
    return module, params, minitvm.build(module, target(), params)


def agrees(module: GraphModule, model: Model, seed: int) -> None:
    for have, want in zip(module.outputs(), expected(model[1], sample(seed)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_runs_again_and_again(built: Model) -> None:
    module = GraphModule(built[2]["default"](CUDA))
    for seed in range(4):
        module.run(x=sample(seed))
        agrees(module, built, seed)
    assert module.instance.device == CUDA and module.get_output(0).device == CUDA


def test_parts_of_a_product_are_added_by_the_launch_that_makes_them() -> None:
    """Instances count arrivals in memory of their own, and every run finds zeros there."""
    x, w = relay.var("x", shape=(4, 2048)), relay.var("w", shape=(64, 2048))
    library = minitvm.build(minitvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w))), target())
    (launch,) = [launch for image in library.artifact.objects.values() for launch in unpack(image)[0]]
    assert launch.counters > 0 or gpu(0).capability >= (9, 0)
    modules, rng = [GraphModule(library["default"](CUDA)) for _ in range(2)], np.random.default_rng(0)
    for module in modules * 2:
        a, b = (rng.normal(size=shape).astype("float32") for shape in ((4, 2048), (64, 2048)))
        module.run(x=a, w=b)
        assert_close_to_scale(module.get_output(0), a @ b.T)


def test_results_are_kept(built: Model) -> None:
    module = GraphModule(built[2]["default"]())
    module.run(x=sample(1))
    first = module.get_output(0)
    module.run(x=sample(2))
    np.testing.assert_allclose(first.numpy(), expected(built[1], sample(1))[0], rtol=1e-5, atol=1e-6)
    filled = minitvm.nd.empty((2, 5), "float32", CUDA)
    assert module.get_output(0, filled) is filled
    np.testing.assert_array_equal(filled.numpy(), module.outputs()[0])
    on_host = np.empty((2, 5), "float32")
    module.get_output(0, on_host)
    np.testing.assert_array_equal(filled.numpy(), on_host)


def test_modules_share_weights_and_run_at_the_same_time(built: Model) -> None:
    modules = [GraphModule(built[2]["default"](CUDA)) for _ in range(3)]
    addresses = {m.instance.address(m.instance.input_entry["p0"]) for m in modules}
    assert len(addresses) == 1
    for seed, module in enumerate(modules):  # nobody waits between them
        module.set_input("x", sample(seed))
    for module in modules:
        module.run()
    for seed, module in enumerate(modules):
        agrees(module, built, seed)


def test_threads(built: Model) -> None:
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            module = GraphModule(built[2]["default"](CUDA))
            for n in range(5):
                module.run(x=sample(seed + n))
                agrees(module, built, seed + n)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_weights_can_be_set_for_one_module(built: Model) -> None:
    one, other = (GraphModule(built[2]["default"](CUDA)) for _ in range(2))
    weight = one.get_input("p0").numpy()
    one.set_input("p0", 2 * weight)
    np.testing.assert_array_equal(one.get_input("p0").numpy(), 2 * weight)
    np.testing.assert_array_equal(other.get_input("p0").numpy(), weight)
    other.run(x=sample(3))
    agrees(other, built, 3)


# --- memory of the user's -------------------------------------------------------------------------------------------


def test_arrays_go_there_and_back() -> None:
    value = np.arange(6, dtype="float32").reshape(2, 3)
    there = minitvm.nd.array(value, CUDA)
    assert there.device == CUDA and there.shape == (2, 3) and there.dtype == "float32" and len(there) == 2
    np.testing.assert_array_equal(there.numpy(), value)
    np.testing.assert_array_equal(np.asarray(there[1]), value[1])
    there.copyfrom(2 * value)
    back = there.copyto(minitvm.cpu(0))
    assert back.device == minitvm.cpu(0)
    np.testing.assert_array_equal(back.numpy(), 2 * value)
    np.testing.assert_array_equal(
        back.copyto(CUDA).copyto(minitvm.nd.empty((2, 3), "float32", CUDA)).numpy(), 2 * value
    )
    assert minitvm.nd.empty((0, 3), "int64", CUDA).numpy().shape == (0, 3)


def test_inputs_that_are_there_already(built: Model) -> None:
    module = GraphModule(built[2]["default"](CUDA))
    there = [minitvm.nd.array(sample(seed), CUDA) for seed in range(3)]
    module.run(x=there[0])
    agrees(module, built, 0)
    for seed in (1, 2, 1, 0):
        module.set_input_zero_copy("x", there[seed])
        assert module.instance.address(module.instance.input_entry["x"]) == there[seed]._data.address
        module.run()
        agrees(module, built, seed)
    there[0].copyfrom(sample(5))
    module.set_input_zero_copy("x", there[0])
    module.run()
    agrees(module, built, 5)
    module.run(x=sample(6))  # memory of its own again
    agrees(module, built, 6)
    np.testing.assert_array_equal(there[0].numpy(), sample(5))


def test_results_that_are_written_where_the_caller_wants_them(built: Model) -> None:
    module = GraphModule(built[2]["default"](CUDA))
    places = [minitvm.nd.empty((2, 5), "float32", CUDA) for _ in range(2)]
    for seed in (1, 2, 3):
        place = places[seed % 2]
        module.set_output_zero_copy(0, place)
        module.run(x=sample(seed))
        agrees(module, built, seed)
        np.testing.assert_array_equal(place.numpy(), module.outputs()[0])
    with pytest.raises(InputError, match=r"^output 0 cannot be written where the array is\n"):
        module.set_output_zero_copy(0, np.empty((2, 5), "float32"))
    with pytest.raises(InputError, match=r"^output 0 is float32 of shape \(2, 5\), the array to fill is .* \(2, 4\)\n"):
        module.set_output_zero_copy(0, minitvm.nd.empty((2, 4), "float32", CUDA))


def test_arrays_that_nobody_holds_any_more(built: Model) -> None:
    """What a run in the stream still reads is not given away before it has."""
    module = GraphModule(built[2]["default"](CUDA))
    for seed in range(3):
        module.set_input_zero_copy("x", minitvm.nd.array(sample(seed), CUDA))
        module.run()
        results = module.get_output(0)
        module.set_input("x", minitvm.nd.array(sample(9), CUDA))
        others = [minitvm.nd.array(np.full((2, 6), np.nan, "float32"), CUDA) for _ in range(3)]
        np.testing.assert_allclose(results.numpy(), expected(built[1], sample(seed))[0], rtol=1e-5, atol=1e-6)
        del others
    loose = GraphModule(built[2]["default"](CUDA))
    loose.run(x=sample(4))
    kept = loose.get_output(0)
    del loose
    gc.collect()
    np.testing.assert_allclose(kept.numpy(), expected(built[1], sample(4))[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_there_and_back(versioned: bool) -> None:
    for value in (sample(0), np.arange(7), np.array(3.5), np.array([True, False]), np.arange(3, dtype="uint8")):
        there = minitvm.nd.array(value, CUDA)
        again = minitvm.nd.from_dlpack(Foreign(there, versioned))
        address = there._data.address
        del there
        gc.collect()
        assert again._data.address == address and again.dtype == value.dtype.name
        np.testing.assert_array_equal(again.numpy(), value)


class Foreign:
    """An array of another library's; of one from before DLPack 1.0, unless it is versioned."""

    def __init__(self, array: minitvm.nd.NDArray, versioned: bool = True, index: int = 0) -> None:
        self.array, self.versioned, self.index, self.streams = array, versioned, index, list[int]()

    def __dlpack__(self, *, stream: int, **options: object) -> object:
        if options and not self.versioned:
            raise TypeError("unexpected max_version")
        self.streams.append(stream)
        capsule = self.array.__dlpack__(stream=stream, **options)
        assert ('"dltensor_versioned"' in repr(capsule)) == self.versioned
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.index


class OfInterface:
    """One that describes itself only."""

    def __init__(self, **says: object) -> None:
        self.__cuda_array_interface__ = says


def test_arrays_of_other_libraries_are_inputs(built: Model) -> None:
    module = GraphModule(built[2]["default"](CUDA))
    source = minitvm.nd.array(sample(4), CUDA)
    foreign = Foreign(source)
    module.set_input_zero_copy("x", foreign)
    assert foreign.streams == [int(module.instance.memory.stream)]
    module.run()
    agrees(module, built, 4)
    module.set_input("x", OfInterface(**source.__cuda_array_interface__))
    module.run()
    agrees(module, built, 4)


def test_dlpack_says_where_it_is() -> None:
    there = minitvm.nd.array(sample(0), CUDA)
    with pytest.raises(BufferError, match=r"^the array is on cuda\(0\): copy it to the host with numpy\(\)$"):
        there.__dlpack__(dl_device=(1, 0))
    assert there.__dlpack_device__() == (2, 0)
    assert '"dltensor"' in repr(there.__dlpack__()) and '"dltensor_versioned"' in repr(
        there.__dlpack__(stream=2, max_version=(1, 1), copy=True)
    )
    says = there.__cuda_array_interface__
    assert says["version"] == 3 and says["stream"] not in (0, None) and says["typestr"] == "<f4"
    assert not hasattr(minitvm.nd.array(sample(0)), "__cuda_array_interface__")


def test_what_is_refused(built: Model, model: Model) -> None:
    module, on_cpu = GraphModule(built[2]["default"](CUDA)), GraphModule(model[2]["default"]())
    there = minitvm.nd.array(sample(0), CUDA)
    with pytest.raises(InputError, match=r"^input 'x' is on cuda\(0\), the model runs on cpu\(0\)\n  = hint: copy it"):
        on_cpu.run(x=there)
    with pytest.raises(InputError, match=r"^input 'x' is on cuda\(7\), the model runs on cuda\(0\)\n"):
        module.run(x=Foreign(there, index=7))
    with pytest.raises(InputError, match=r"^an array of shape \(2, 6\) has strides \(4, 8\), kernels read row-major"):
        module.run(x=OfInterface(**{**there.__cuda_array_interface__, "strides": (4, 8)}))
    with pytest.raises(InputError, match=r"^input 'x' has shape \(6, 2\), the model expects \(2, 6\)\n"):
        module.run(x=minitvm.nd.empty((6, 2), "float32", CUDA))
    with pytest.raises(InputError, match=r"^input 'x' is float64, the model expects float32\n"):
        module.run(x=minitvm.nd.empty((2, 6), "float64", CUDA))
    with pytest.raises(
        TargetError, match=r"^the library was compiled for 'cuda -arch=sm_\d+', it cannot run on cpu\(0\)"
    ):
        built[2]["default"](minitvm.cpu(0))
    module.run(x=sample(1))
    agrees(module, built, 1)


# --- other ways in --------------------------------------------------------------------------------------------------


def test_the_debug_executor(built: Model, capsys: pytest.CaptureFixture[str]) -> None:
    debug = GraphModuleDebug(built[2]["debug_create"]("default", CUDA))
    debug.run(x=sample(2), number=3)
    agrees(debug, built, 2)
    assert all(len(r.seconds) == 3 and min(r.seconds) >= 0 for r in debug.records)
    assert "Time(us)" in capsys.readouterr().out
    result = debug.benchmark(CUDA, repeat=2, number=2)
    assert result.min > 0


@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
def test_host_calls_between_kernels() -> None:
    """A shape that is known only when it runs, and a kernel before and after."""
    x = relay.var("x", shape=(4, 6))
    hidden = relay.tanh(x)
    places = relay.argwhere(relay.greater(relay.reshape(hidden, newshape=(24,)), relay.const(0.0)))
    module = relay.Module(relay.Function([x], relay.Tuple([relay.exp(hidden), places])))
    value = np.random.default_rng(5).normal(size=(4, 6)).astype("float32")
    found = []
    for where in (target(), "llvm"):
        executor = GraphModule(minitvm.build(module, where)["default"]())
        executor.run(x=value)
        found.append(executor.outputs())
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_checks_of_indices() -> None:
    x, index = relay.var("x", shape=(4, 3)), relay.var("i", shape=(2,), dtype="int64")
    library = minitvm.build(relay.Function([x, index], relay.take(x, index, axis=0)), target())
    module = GraphModule(library["default"]())
    value = np.arange(12, dtype="float32").reshape(4, 3)
    module.run(x=value, i=np.array([3, 0]))
    np.testing.assert_array_equal(module.outputs()[0], value[[3, 0]])


def test_a_saved_library_runs(built: Model, tmp_path: pathlib.Path) -> None:
    built[2].save(tmp_path / "m.mtvm")
    module = GraphModule(minitvm.load(tmp_path / "m.mtvm")["default"]())
    module.run(x=sample(1))
    agrees(module, built, 1)


STATIC, OPEN = (
    f"""
    <ir_version: 9, opset_import: ["" : 17]>
    agraph (float[{rows}, 6] x) => (float[{rows}, 6] y) {{ z = Exp (x)  y = Softmax (z) }}
    """
    for rows in ("4", "N")
)


@pytest.mark.parametrize("text", [STATIC, OPEN])
def test_sessions(text: str) -> None:
    model = parser.parse_model(text)
    session, beside = (minitvm.InferenceSession(model, target=where) for where in (target(), "llvm"))
    assert session.get_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    for seed in range(3):
        value = np.random.default_rng(seed).standard_normal((4, 6)).astype("float32")
        (want,) = beside.run(None, {"x": value})
        for given in (value, minitvm.nd.array(value, CUDA), value):
            np.testing.assert_allclose(session.run(None, {"x": given})[0], want, rtol=1e-6)
    with pytest.raises(InputError, match=r"^input 'x' is on cuda\(0\), the model runs on cpu\(0\)\n"):
        beside.run(None, {"x": minitvm.nd.array(value, CUDA)})


def test_the_command_line(built: Model, tmp_path: pathlib.Path) -> None:
    built[2].save(tmp_path / "m.mtvm")
    np.savez(tmp_path / "x.npz", x=sample(2))
    files = (str(tmp_path / name) for name in ("m.mtvm", "x.npz", "y.npz"))
    done = CliRunner().invoke(cli, ["run", next(files), "-i", next(files), "-o", next(files), "--device", "0"])
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_allclose(found["output0"], expected(built[1], sample(2))[0], rtol=1e-5, atol=1e-6)
    profile = CliRunner().invoke(cli, ["run", str(tmp_path / "m.mtvm"), "--profile"])
    assert profile.exit_code == 0 and "fused_nn_dense" in profile.output
    assert CliRunner().invoke(cli, ["run", str(tmp_path / "m.mtvm"), "--device", "7"]).exit_code != 0


def both(library: Library, other: Library, seed: int = 0, rtol: float = 1e-5) -> None:
    """Run two libraries of one model; results agree."""
    modules = [GraphModule(found["default"]()) for found in (library, other)]
    types = modules[0].input_types()
    rng = np.random.default_rng(seed)
    feeds = {name: rng.standard_normal(t.static_shape).astype(t.dtype) for name, t in types.items()}
    for module in modules:
        module.run(feeds)
    for have, want in zip(*(module.outputs() for module in modules), strict=True):
        assert_close_to_scale(have, want, rtol)


@pytest.mark.parametrize("name", ["mlp", "resnet18", "transformer"])
def test_whole_models(name: str) -> None:
    module, params = small(name)
    libraries = [minitvm.build(module, where, dict(params), opt_level=3) for where in (target(), "llvm")]
    both(*libraries)


def test_memory_is_given_back(built: Model) -> None:
    """What modules, arrays and graphs held is there again when they are gone."""
    free = gpu(0).call

    def left() -> int:
        gc.collect()
        gpu(0).wait()
        with gpu(0):
            return int(free("cuMemGetInfo")[0])

    module = GraphModule(built[2]["default"]())
    module.run(x=sample(0))
    before = left()
    for seed in range(20):
        other = GraphModule(built[2]["default"]())
        other.set_input_zero_copy("x", minitvm.nd.array(sample(seed), CUDA))
        other.run()
        other.get_output(0)
    del other
    assert left() >= before - (64 << 20)  # what the pool keeps
    module.run(x=sample(1))
    agrees(module, built, 1)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(MiniTVMError, match=r"^cuda\(0\) is out of memory: 4,[\d,]+ bytes are asked for\n") as error:
        minitvm.nd.empty((1 << 40,), "float32", CUDA)
    assert "bytes are free" in str(error.value) and "smaller batch" in str(error.value)
    np.testing.assert_array_equal(minitvm.nd.array(sample(0), CUDA).numpy(), sample(0))
