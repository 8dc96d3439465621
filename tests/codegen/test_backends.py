"""Back ends behind one protocol: whole models on the interpreter, a device with memory of its own, several kernels."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from small_workloads import small

import minitvm
from minitvm import relay
from minitvm.codegen.backend import BACKENDS, Launches, backend_class, backend_of, register, stages
from minitvm.codegen.interp.backend import InterpBackend, Interpreter
from minitvm.codegen.llvm.entry import needed
from minitvm.codegen.problem import TEMPLATES
from minitvm.errors import CompilerError, LibraryError
from minitvm.ir.arrays import aligned_empty
from minitvm.ir.builder import call_op
from minitvm.ir.loop import Buffer, Kernel, Store, map_stmt
from minitvm.ir.op import OPS
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.runtime import archive
from minitvm.runtime.code import CODES
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.devices import HOST, Memory
from minitvm.runtime.direct import DirectCall
from minitvm.runtime.graph import Launch, LibraryCall
from minitvm.runtime.graph_json import graph_of
from minitvm.runtime.interpreter import from_bytes, to_bytes
from minitvm.runtime.library import Library
from minitvm.target import OPTIONS, Target
from minitvm.testing import assert_close_to_scale


def model() -> relay.Module:
    """Kernels, a reshape that moves nothing, a shape that is known only when it runs, two results."""
    x = relay.var("x", shape=(4, 6))
    hidden = relay.tanh(relay.nn.dense(x, relay.const(np.arange(30, dtype="float32").reshape(5, 6) / 30)))
    places = relay.argwhere(relay.greater(relay.reshape(hidden, newshape=(20,)), relay.const(0.0)))
    return relay.Module(relay.Function([x], relay.Tuple([relay.nn.softmax(hidden), places])))


def outputs(library: Library, value: np.ndarray, threads: int | None = None) -> list[np.ndarray]:
    module = minitvm.GraphModule(library["default"](None, threads))
    module.run(x=value)
    return module.outputs()


VALUE = np.random.default_rng(5).normal(size=(4, 6)).astype("float32")


@pytest.fixture
def registered() -> Iterator[None]:
    """What a test registers is gone after it."""
    kept = [(table, dict(table)) for table in (BACKENDS, CODES, OPTIONS)]  # type: ignore[list-item]
    yield
    for table, before in kept:
        table.clear()
        table.update(before)


# --- the interpreter ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
@pytest.mark.parametrize("poison", ["0", "1"])
@pytest.mark.parametrize("level", [0, 2, 3])
def test_the_interpreter_runs_whole_models(level: int, poison: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", poison)
    native, slow = (minitvm.build(model(), target, opt_level=level) for target in ("llvm", "interp"))
    assert slow.plan == minitvm.build(model(), "interp", opt_level=level, num_threads=16).plan
    assert slow["default"](None, 16).num_threads == slow.threads == 1
    for have, want in zip(outputs(slow, VALUE, 16), outputs(native, VALUE, 1), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
def test_the_debug_executor_runs_on_the_interpreter() -> None:
    library = minitvm.build(model(), "interp")
    debug = GraphModuleDebug(library["debug_create"]("default"))
    assert [r.node.name for r in debug.run_quietly(x=VALUE)] == [n.name for n in library.graph.nodes if not n.is_null]
    np.testing.assert_array_equal(debug.get_output(0).numpy(), outputs(library, VALUE)[0])


def test_the_interpreter_says_what_a_kernel_does_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", "0")
    x = relay.var("x", shape=(4, 6))
    library = minitvm.build(relay.Function([x], relay.tanh(x)), "interp")
    ((symbol, image),) = library.artifact.objects.items()
    params, (kernel,) = from_bytes(image)

    def shifted(stmt: object) -> object:
        return Store(stmt.buffer, (stmt.index[0] + 1, *stmt.index[1:]), stmt.value) if isinstance(stmt, Store) else stmt

    wrong = dataclasses.replace(kernel, body=map_stmt(kernel.body, on_stmt=shifted))  # type: ignore[arg-type]
    broken = Library(dataclasses.replace(library.artifact, objects={symbol: to_bytes(params, (wrong,))}))
    with pytest.raises(CompilerError, match=symbol):
        outputs(broken, VALUE)


IN_A_NEW_PROCESS = """
import sys, numpy as np, minitvm
module = minitvm.GraphModule(minitvm.load(sys.argv[1])["default"]())
module.run(x=np.load(sys.argv[2]))
np.savez(sys.argv[3], *module.outputs())
assert not [m for m in sys.modules if m.startswith(("llvmlite", "minitvm.codegen", "minitvm.passes"))]
"""


@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
def test_the_interpreters_libraries_are_saved_and_run_without_a_compiler(tmp_path: pathlib.Path) -> None:
    library = minitvm.build(model(), "interp")
    library.save(tmp_path / "m.mtvm")
    assert archive.to_bytes(minitvm.load(tmp_path / "m.mtvm").artifact) == (tmp_path / "m.mtvm").read_bytes()
    np.save(tmp_path / "x.npy", VALUE)
    files = [tmp_path / name for name in ("m.mtvm", "x.npy", "y.npz")]
    subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS, *files], check=True)
    with np.load(tmp_path / "y.npz") as found:
        for have, want in zip(found.values(), outputs(library, VALUE), strict=True):
            np.testing.assert_array_equal(have, want)


def test_what_has_no_entry_cannot_be_saved(tmp_path: pathlib.Path) -> None:
    x = relay.var("x", shape=(4, 6))
    library = minitvm.build(relay.Function([x], relay.tanh(x)), "interp")
    with pytest.raises(LibraryError) as error:
        Library(dataclasses.replace(library.artifact, entry=b"")).save(tmp_path / "x.mtvm")
    assert str(error.value) == (
        "a library for target 'interp' cannot be saved: its back end makes no entry\n"
        "  = hint: build the model for target 'llvm'"
    )
    assert not list(tmp_path.iterdir())


def test_code_that_nothing_runs() -> None:
    x = relay.var("x", shape=(4, 6))
    library = minitvm.build(relay.Function([x], relay.tanh(x)), "interp")
    with pytest.raises(LibraryError, match=r"^nothing here runs code for target 'abacus -beads=10'\n.*: .*llvm"):
        Library(dataclasses.replace(library.artifact, target="abacus -beads=10"))["default"]()


# --- a device with memory of its own --------------------------------------------------------------------------------


@dataclass
class Far:
    """Memory that only its device can look into."""

    hidden: np.ndarray
    memory = HOST


class FarMemory(Memory):
    is_host = False

    def __init__(self) -> None:
        self.copies = 0

    def empty(self, shape: Sequence[int], dtype: str) -> Far:
        return Far(aligned_empty(shape, dtype))

    def hold(self, array: np.ndarray) -> Far:
        value = self.empty(array.shape, str(array.dtype))
        self.write(value, array)
        return value

    def view(self, value: Far, offset: int, type_: TensorType) -> Far:
        memory = value.hidden.reshape(-1).view("uint8")[offset : offset + type_.nbytes]
        return Far(memory.view(type_.dtype).reshape(type_.static_shape))

    def address(self, value: Far) -> int:
        return value.hidden.ctypes.data

    def write(self, value: Far, array: np.ndarray) -> None:
        self.copies += 1
        value.hidden[...] = array

    def read(self, value: Far) -> np.ndarray:
        return value.hidden.copy()


@pytest.mark.usefixtures("registered")
@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
def test_values_may_live_on_a_device() -> None:
    """Inputs, parameters and what Python computes are copied there, results and what Python reads are copied back."""

    class FarCode(Interpreter):
        memory = FarMemory()

    @register
    class FarBackend(InterpBackend):
        kind = "far"
        code = FarCode

    near, far = (minitvm.build(model(), target) for target in ("interp", "far"))
    for have, want in zip(outputs(far, VALUE), outputs(near, VALUE), strict=True):
        np.testing.assert_array_equal(have, want)
    assert FarCode.memory.copies == 1 + len(far.params)  # type: ignore[attr-defined]
    large = relay.var("x", shape=(64, 80))
    call = DirectCall(minitvm.build(relay.Function([large], relay.exp(large)), "far")["default"]())
    value = np.random.default_rng(2).normal(size=(64, 80)).astype("float32")
    np.testing.assert_allclose(call.run({"x": value})[0], np.exp(value), rtol=1e-6)
    assert FarCode.memory.copies == 2 + len(far.params)  # type: ignore[attr-defined]


# --- calls of a library ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
def test_a_group_may_be_a_call_of_a_library() -> None:
    """Dense layers that numpy computes, between kernels, and so they are in the graph's JSON."""

    class Calls(Interpreter):
        def launch(self, index: int, slots: int) -> Callable[[], None]:
            node = self.graph.nodes[index]
            if not isinstance(node.step, LibraryCall):
                return super().launch(index, slots)
            types = [self.graph.type_of(entry) for entry in (*node.inputs, (index, 0))]
            buffers = [Buffer("operand", t.static_shape, t.dtype) for t in types]
            function = self.images[node.func]

            def run() -> None:
                x, weight, result = self.arrays(index, buffers, slots)
                function(x, weight.T, out=result)

            return run

    @register
    class CallsBackend(InterpBackend):
        kind = "calls"
        code = Calls

        def library_call(self, group: relay.Function, symbol: str) -> object:
            return np.matmul if [c.op.name for c in calls(group.body)] == ["nn.dense"] else None  # type: ignore[union-attr]

    x, weight = relay.var("x", shape=(4, 6)), relay.const(np.ones((5, 6), "float32"))
    module = relay.Module(relay.Function([x], relay.tanh(relay.nn.dense(relay.exp(x), weight))))
    library = minitvm.build(module, "calls", opt_level=0)
    steps = [type(node.step) for node in library.graph.nodes if node.step is not None]
    assert steps == [Launch, LibraryCall, Launch]
    assert [str(d) for d in library.report.placement] == ["fused_nn_dense: placement: a library computes it, no kernel"]
    assert [library.report.kernel(s).template for s in library.report.groups] == [
        "default nests",
        "call of a library",
        "default nests",
    ]
    assert graph_of(json.loads(library.graph_json))[0] == library.graph
    np.testing.assert_allclose(outputs(library, VALUE)[0], np.tanh(np.exp(VALUE) @ np.ones((6, 5))), rtol=1e-6)


# --- templates ------------------------------------------------------------------------------------------------------


def test_a_back_end_says_whose_templates_it_takes() -> None:
    """Of another kind's, only those of operators that have no compute rule."""
    lstm, dense = OPS["nn.lstm"], OPS["nn.dense"]
    assert not lstm.has_compute() and dense.has_compute()  # type: ignore[misc]
    assert TEMPLATES.find(("own", "llvm"), lstm) == TEMPLATES.find("llvm", lstm) != []  # type: ignore[arg-type]
    assert TEMPLATES.find("own", lstm) == TEMPLATES.find(("own", "llvm"), dense) == []  # type: ignore[arg-type]
    assert backend_class("cuda").templates == ("cuda", "llvm")
    assert backend_class("llvm").templates == backend_class("interp").templates == ("llvm",)


@pytest.mark.usefixtures("registered")
def test_an_operator_that_only_another_kind_has_a_template_for() -> None:
    class OwnBackend(InterpBackend):
        kind = "own"
        schedules = "own"
        templates = ("own",)

    class BothBackend(InterpBackend):
        kind = "both"
        schedules = "own"
        templates = ("own", "llvm")

    for backend in (OwnBackend, BothBackend):
        register(backend)
    x, w, state = (relay.var(n, shape=s) for n, s in (("x", (3, 2, 16)), ("w", (16, 4)), ("h", (2, 4))))
    layer = relay.Function([x, w, state], relay.TupleGetItem(call_op("nn.lstm", x, w, state, state), 0))
    assert minitvm.build(layer, "both", opt_level=0).report.kernel("fused_nn_lstm").template.endswith("recurrent.Lstm")
    with pytest.warns(minitvm.HostCallWarning, match=r"nn.lstm has no compute rule and no template for own"):
        minitvm.build(layer, "own", opt_level=0)


# --- several kernels, stages ----------------------------------------------------------------------------------------


def test_a_group_may_become_several_kernels() -> None:
    """A grid has no barrier between packing and multiplying."""
    x, y = relay.var("x", shape=(40, 20)), relay.var("y", shape=(27, 20))
    library = minitvm.build(relay.Function([x, y], relay.nn.matmul(x, y, transpose_b=True)), num_threads=2)
    (symbol,) = library.report.groups
    backend = backend_of(Target.parse("cuda"), 2)
    launches = backend.bind(backend.legalize(library.report.kernel(symbol).loops))
    assert len(launches.kernels) == 2
    assert backend.source(launches).count("__global__") == 2


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_whole_models_run_bound_to_a_grid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA would launch, on the interpreter."""

    @register
    class GridBackend(InterpBackend):
        kind = "grid"

        def bind(self, kernel: Kernel) -> Launches:
            return backend_of(Target.parse("cuda"), 1).bind(kernel)

    monkeypatch.setenv("MINITVM_POISON", "0")
    module, params = small(name)
    libraries = [minitvm.build(module, target, dict(params), opt_level=3) for target in ("grid", "llvm")]
    assert sum(len(from_bytes(image)[1]) for image in libraries[0].artifact.objects.values()) >= 4
    modules = [minitvm.GraphModule(library["default"](None, 1)) for library in libraries]
    shapes, dtypes = modules[0].get_input_info()
    feeds = {n: np.random.default_rng(1).normal(size=shape).astype(dtypes[n]) for n, shape in shapes.items()}
    for executor in modules:
        executor.run(feeds)
    for have, want in zip(*(executor.outputs() for executor in modules), strict=True):
        assert_close_to_scale(have, want, 1e-5)


def test_every_stage_has_the_back_end_that_shows_it() -> None:
    assert stages() == {"llvm": "llvm", "asm": "llvm", "cuda": "cuda"}


def test_an_entry_holds_what_is_called_only() -> None:
    """By itself, by a kernel, or by what is."""
    calls = {"take": ["pause"], "pause": [], "stay": ["pause"], "from": []}
    bodies = {
        name: f"define void @minitvm.{name}() {{\n{''.join(f'  call void @minitvm.{c}()' for c in called)}\n}}\n"
        for name, called in calls.items()
    }
    own = "define void @segment_0() {\n  call void @minitvm.from()\n}\n"
    text = "".join(bodies.values()) + own
    assert needed(text, [b"\0minitvm.take\0"]) == bodies["take"] + bodies["pause"] + bodies["from"] + own
    assert needed(text, []) == bodies["from"] + own
