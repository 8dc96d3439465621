"""What sessions do with options, values and bindings, beside ONNX Runtime and by themselves."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from onnx import parser

import minitvm
import minitvm as ort
from minitvm import config
from minitvm.ort.errors import BindingError, Fail, ProviderError

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "from-onnxruntime.md").read_text(encoding="utf-8")
TEXT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 64, 64] x) => (float[N, 64, 64] y, float[N, 64, 64] z) { y = Add (x, x)  z = Neg (x) }"""
FIXED = TEXT.replace("[N,", "[2,")


def session(text: str = FIXED, options: Any = None, **how: Any) -> ort.InferenceSession:
    return ort.InferenceSession(parser.parse_model(text).SerializeToString(), options, **{"num_threads": 1, **how})


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 64, 64)).astype(np.float32)


# --- names ----------------------------------------------------------------------------------------------------


def test_options_are_those_of_onnx_runtime() -> None:
    theirs = pytest.importorskip("onnxruntime")
    for name in ("SessionOptions", "RunOptions"):
        their, our = getattr(theirs, name)(), getattr(ort, name)()
        fields = [n for n in dir(their) if n[0] != "_" and not callable(getattr(their, n))]
        for field in fields:
            assert str(getattr(our, field)) == str(getattr(their, field)), field
        assert sorted(our._FIELDS) == fields
    for name in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        members = getattr(theirs, name).__members__
        assert {n: int(v.value) for n, v in members.items()} == {m.name: m.value for m in getattr(ort, name)}


def test_the_page_names_what_onnx_runtime_has() -> None:
    """Every option, method and public name of it: what it does here, or that it is not offered."""
    theirs = pytest.importorskip("onnxruntime")
    named = set(re.findall(r"\w+", PAGE))
    for name in ("SessionOptions", "RunOptions", "InferenceSession", "OrtValue", "IOBinding"):
        assert not {n for n in dir(getattr(theirs, name)) if n[0] != "_"} - named, name
    public = {name for name in vars(theirs) if name[0] != "_" and not isinstance(vars(theirs)[name], type(sys))}
    assert not public - named


def test_what_is_not_offered_says_so() -> None:
    for name in minitvm._NOT_OFFERED:
        assert f"`{name}`" in PAGE
        with pytest.raises(AttributeError, match=f"minitvm has no attribute '{name}': \\w+"):
            getattr(ort, name)


# --- options --------------------------------------------------------------------------------------------------


def test_levels_and_threads() -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 3
    made = ort.InferenceSession(parser.parse_model(FIXED), options)
    assert made.libraries[0].threads == 3 and len(made.libraries[0].function_metadata) == 2
    options.intra_op_num_threads = 1
    assert made.get_session_options().intra_op_num_threads == 3
    assert "intra_op_num_threads=1" in repr(options)


def test_sessions_have_no_more_threads_than_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are scheduled for those that do."""
    monkeypatch.setattr(config, "usable_cpus", lambda: 2)
    for asked in (1, 2, 64):
        made = ort.InferenceSession(parser.parse_model(FIXED), num_threads=asked)
        assert made.libraries[0].threads == min(asked, 2)


def test_options_that_do_nothing_are_warned_of() -> None:
    options = ort.SessionOptions()
    with pytest.warns(ort.OptionWarning, match="'session.set_denormal_as_zero' has no effect"):
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    with pytest.raises(minitvm.MiniTVMError, match="ORT's own format"):
        options.add_session_config_entry("session.load_model_format", "ORT")
    options.add_free_dimension_override_by_name("M", 3)
    with pytest.warns(UserWarning, match="no dimension of the model is called 'M'"):
        session(TEXT, options)


def test_initializers_must_fit() -> None:
    text = (
        TEXT.replace("g (", "g (")
        .replace("y = Add (x, x)", "y = Add (x, w)")
        .replace("float[N, 64, 64] z)", "float[N, 64, 64] z) <float[1] w = {1}>")
    )
    for name, value, message in (
        ("v", np.ones(1, np.float32), "the model has no weight 'v'"),
        ("w", np.ones(2, np.float32), r"weight 'w' is float32 \(1,\), the array given is float32 \(2,\)"),
    ):
        options = ort.SessionOptions()
        options.add_initializer(name, ort.OrtValue.ortvalue_from_numpy(value))
        with pytest.raises(minitvm.MiniTVMError, match=message):
            session(text, options)


def test_deterministic_sessions_compile_nothing_beside() -> None:
    options = ort.SessionOptions()
    options.use_deterministic_compute = True
    assert session(TEXT, options)._engine._options.specialise_after == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("given", ["CPUExecutionProvider", [3], [("CPUExecutionProvider", 3)], {"CPU": 1}])
def test_providers_that_are_none(given: Any) -> None:
    with pytest.raises(ProviderError):
        session(providers=given)


def test_providers_that_are_not_there_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="'TensorrtExecutionProvider' is not in available provider names"):
        made = session(providers=["TensorrtExecutionProvider", ("CPUExecutionProvider", {"a": 1})])
    assert made.get_provider_options()["CPUExecutionProvider"] == {"a": "1"}


# --- values and bindings ----------------------------------------------------------------------------------------


def test_results_are_written_where_they_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernels: nothing is copied; but where an input lies in the same memory, the old values are read."""
    from minitvm.runtime import direct

    made, x = session(), numbers()
    monkeypatch.setenv("MINITVM_POISON", "0")
    copies: list[str] = []
    copied = direct.copied_into
    monkeypatch.setattr(direct, "copied_into", lambda *given: copies.append(given[2]) or copied(*given))
    for value, expected in (
        (ort.OrtValue.ortvalue_from_shape_and_type([2, 64, 64], np.float32), []),
        (ort.OrtValue.ortvalue_from_numpy(np.empty(2 * 64 * 64 + 1, np.float32)[1:].reshape(x.shape)), ["y"]),
        (ort.OrtValue.ortvalue_from_numpy(x), ["y"]),
    ):
        want, binding = x + x, made.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_ortvalue_output("y", value)
        binding.bind_output("z")
        copies.clear()
        made.run_with_iobinding(binding)
        np.testing.assert_array_equal(value.numpy(), want)
        assert copies == expected and binding.get_outputs()[0] is value


def test_results_are_let_go_when_an_output_is_bound_anew() -> None:
    """So that the next run may have their memory."""
    made = session()
    binding = made.io_binding()
    for _ in range(2):
        binding.bind_cpu_input("x", numbers())
        binding.bind_output("y")
        assert not binding.get_outputs()
        made.run_with_iobinding(binding)
        assert len(binding.get_outputs()) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 64), np.float32), r"output 'y' is Tensor\[\(2, 64, 64\), float32\], it cannot be written to"),
        (np.zeros((2, 64, 64), np.float64), "it cannot be written to an array of Tensor.*float64"),
    ],
)
def test_memory_that_does_not_fit(value: np.ndarray, message: str) -> None:
    for made in (session(), session(TEXT)):
        binding = made.io_binding()
        binding.bind_cpu_input("x", numbers())
        binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(value))
        with pytest.raises(BindingError, match=message):
            made.run_with_iobinding(binding)


def test_values_share_memory() -> None:
    made, x = session(), numbers()
    value = ort.OrtValue.ortvalue_from_numpy(x)
    assert value.data_ptr() == x.ctypes.data and np.shares_memory(value.numpy(), x)
    y, z = made.run_with_ort_values(None, {"x": value})
    np.testing.assert_array_equal(y.numpy(), x + x)
    np.testing.assert_array_equal(np.from_dlpack(z), -x)
    value.update_inplace(y)
    np.testing.assert_array_equal(x, y.numpy())
    with pytest.raises(BindingError, match="cannot be overwritten"):
        value.update_inplace(np.zeros(3, np.float32))
    assert repr(y) == "<OrtValue tensor(float) [2, 64, 64] on cpu(0)>"


# --- libraries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TEXT, FIXED])
def test_a_library_is_opened_as_a_model_is(text: str, tmp_path: pathlib.Path) -> None:
    made, x = session(text), numbers()
    expected = made.run(None, {"x": x})
    made.save(tmp_path / "m.mtvm")
    (tmp_path / "m.onnx").write_bytes((tmp_path / "m.mtvm").read_bytes())
    for source in (tmp_path / "m.mtvm", str(tmp_path / "m.onnx"), (tmp_path / "m.mtvm").read_bytes()):
        again = ort.InferenceSession(source)
        assert again.get_inputs() == made.get_inputs() and again.get_outputs() == made.get_outputs()
        assert again.get_modelmeta() == made.get_modelmeta() and again.get_modelmeta().graph_name == "g"
        np.testing.assert_array_equal(again.run(["z"], {"x": x})[0], expected[1])
    assert minitvm.load(tmp_path / "m.mtvm").output_names == ["y", "z"]
    with pytest.raises(ValueError, match="input missing: x"):
        again.run(None, {})
    with pytest.raises(minitvm.MiniTVMError, match="shape_dict says how to compile"):
        ort.InferenceSession(tmp_path / "m.mtvm", shape_dict={"x": (2, 64, 64)})


def test_graphs_have_no_names_of_results(tmp_path: pathlib.Path) -> None:
    x = minitvm.relay.var("x", shape=(2, 3))
    minitvm.build(minitvm.relay.Function([x], minitvm.relay.nn.relu(x))).save(tmp_path / "m.mtvm")
    made = ort.InferenceSession(tmp_path / "m.mtvm")
    assert made.get_outputs() == [ort.NodeArg("output0", "tensor(float)", [2, 3])]
    assert made.get_inputs() == [ort.NodeArg("x", "tensor(float)", [2, 3])]


# --- running ------------------------------------------------------------------------------------------------------


def test_a_profile_has_the_nodes_of_every_run(tmp_path: pathlib.Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "p")
    made, x = session(TEXT, options), numbers()
    np.testing.assert_array_equal(made.run(["z"], {"x": x})[0], -x)
    events = json.loads(pathlib.Path(made.end_profiling()).read_text(encoding="utf-8"))
    assert {"session_initialization", "model_run"} <= {e["name"] for e in events}
    [node, *_] = [e for e in events if e["cat"] == "Node"]
    assert node["args"]["input_type_shape"][:1] == [{"float32": [2, 64, 64]}] and node["dur"] >= 0


def test_runs_that_shall_end() -> None:
    run_options = ort.RunOptions()
    run_options.terminate = True
    with pytest.raises(Fail):
        session().run(None, {"x": numbers()}, run_options)


def test_a_run_that_is_told_to_end_meanwhile_gives_nothing() -> None:
    class Meanwhile(ort.RunOptions):
        """Another thread's: set between the run's beginning and its end."""

        asked = 0

        def __getattribute__(self, name: str) -> object:
            if name == "terminate":
                Meanwhile.asked += 1
                return Meanwhile.asked > 1
            return super().__getattribute__(name)

    made, into = session(), ort.OrtValue.ortvalue_from_numpy(numbers())
    with pytest.raises(Fail, match="that it shall end"):
        made.run(None, {"x": numbers()}, Meanwhile())
    Meanwhile.asked, bound = 0, made.io_binding()
    bound.bind_ortvalue_input("x", into)
    bound.bind_output("y")
    with pytest.raises(Fail):
        made.run_with_iobinding(bound, Meanwhile())
    assert not bound.get_outputs()


def test_a_seed_decides_what_is_drawn() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g () => (float[4] y) { y = RandomNormal <shape = [4]> () }'
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = session(text)
    drawn = []
    for seed in (1, 1, 2):
        ort.set_seed(seed)
        drawn.append([made.run(None, {})[0] for _ in range(2)])
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    assert not np.array_equal(*drawn[0])


def test_what_sessions_say() -> None:
    said: list[tuple[Any, ...]] = []
    ort.set_default_logger_callback(lambda *message: said.append(message), 1)
    try:
        session()
    finally:
        ort.set_default_logger_callback(None)
        ort.set_default_logger_severity(2)
    session()
    assert len(said) == 1 and said[0][0] == 1 and "ready" in said[0][4]


def test_a_process_that_ends_while_kernels_are_compiled_says_nothing() -> None:
    code = """
import numpy as np, minitvm
from helper import small_classifier
session = minitvm.InferenceSession(small_classifier(), num_threads=2, specialise_after=1)
session.run(None, {"image": np.zeros((1, 3, 32, 32), np.float32)})
"""
    here = pathlib.Path(__file__).parent
    path = os.pathsep.join([str(here / "scripts"), str(here.parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "MINITVM_CACHE_DIR": ""}  # without a cache, it takes a while
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stderr == ""
