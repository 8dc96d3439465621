"""A second session of a model compiles nothing, if all that decides is the same; and compiles where anything is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import minitvm
from minitvm import InferenceSession, PassContext, models
from minitvm.errors import is_own
from minitvm.frontend import onnx_op
from minitvm.frontend.files import File
from minitvm.frontend.onnx.registry import BUILDERS
from minitvm.ort import open_models, shelf
from minitvm.runtime.cache import KernelCache

WIDTH = 160
REFUSED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 4] x, int64 axis) => (float[n, 4] y) { y = CumSum(x, axis) }"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own, and nobody's operators or templates from other tests."""
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path / "cache"))
    own = {key: {since: b for since, b in known.items() if is_own(b)} for key, known in BUILDERS.items()}
    monkeypatch.setattr("minitvm.frontend.onnx.registry.BUILDERS", own)
    for name in ("minitvm.ir.op", "minitvm.codegen.problem", "minitvm.passes.manager"):
        monkeypatch.setitem(shelf._PLACES, name, lambda _: True)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is compiled from now on."""
    found: list[str] = []
    for home, name in ((models, "compile"), (open_models, "compile_symbolic")):
        monkeypatch.setattr(home, name, _noted(getattr(home, name), found))
    return found


def _noted(function: Callable[..., Any], found: list[str]) -> Callable[..., Any]:
    def noted(*given: Any, **how: Any) -> Any:
        found.append(function.__name__)
        return function(*given, **how)

    return noted


def saved(path: Path, value: float = 1.0, rows: int | str = "N", beside: bool = False) -> Path:
    weight = numpy_helper.from_array(np.full((WIDTH, WIDTH), value, "float32"), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, WIDTH]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="me")
    path.parent.mkdir(exist_ok=True, parents=True)
    path.with_name("w.data").unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=beside, location="w.data", size_threshold=0)
    return path


def ran(session: InferenceSession, rows: int = 2) -> float:
    (found,) = session.run(None, {"x": np.ones((rows, WIDTH), "float32")})
    assert found.shape == (rows, WIDTH) and (found == found[0, 0]).all()
    return float(found[0, 0])


@pytest.mark.parametrize("rows", [2, "N"])
@pytest.mark.parametrize("form", ["path", "beside", "bytes"])
def test_a_second_session_compiles_nothing(tmp_path: Path, compiled: list[str], rows: int | str, form: str) -> None:
    path = saved(tmp_path / "m.onnx", 1.0, rows, form == "beside")
    model: Any = path.read_bytes() if form == "bytes" else path
    first = InferenceSession(model)
    assert ran(first) == WIDTH and compiled
    compiled.clear()
    second = InferenceSession(model)
    assert ran(second) == WIDTH and not compiled
    assert second.get_inputs() == first.get_inputs() and second.get_outputs() == first.get_outputs()
    assert second.get_modelmeta() == first.get_modelmeta() and second.get_modelmeta().producer_name == "me"
    assert len(second.libraries) == len(first.libraries) == 1
    second.save(tmp_path / "m.mtvm")
    assert ran(InferenceSession(tmp_path / "m.mtvm")) == WIDTH and not compiled
    assert second.libraries[0].report.groups.keys() == first.libraries[0].report.groups.keys(), "compiled for it"
    assert "@main" in str(second.libraries[0].ir_mod) and len(compiled) == 1


def test_another_process_imports_nothing_that_compiles(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx")
    code = f"""
import sys, numpy as np, minitvm
session = minitvm.InferenceSession({str(path)!r}, num_threads=1)
print(session.run(None, {{"x": np.ones((3, {WIDTH}), "float32")}})[0][0, 0])
rooms = ("minitvm.codegen", "minitvm.passes", "minitvm.driver", "minitvm.frontend.onnx", "minitvm.ir.ops")
print([name for name in ("onnx", "google.protobuf", *rooms) if name in sys.modules])
"""
    how: Any = {"capture_output": True, "text": True, "check": True}
    found = [subprocess.run([sys.executable, "-c", code], **how).stdout.split("\n") for _ in range(2)]
    assert found[0][0] == found[1][0] == str(float(WIDTH))
    assert "onnx" in found[0][1] and found[1][1] == "[]"


def _options(**how: Any) -> Callable[[Path], InferenceSession]:
    return lambda path: InferenceSession(path, **how)


def _in(context: PassContext) -> Callable[[Path], InferenceSession]:
    def opened(path: Path) -> InferenceSession:
        with context:
            session = InferenceSession(path)
            ran(session)
        return session

    return opened


def _set(name: str, value: str) -> Callable[[Path], InferenceSession]:
    def opened(path: Path) -> InferenceSession:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            session = InferenceSession(path)
            ran(session)
        return session

    return opened


def _with_operator(path: Path) -> InferenceSession:
    relay: Any = minitvm.relay
    onnx_op("MatMul", since=16)(lambda node: relay.nn.relu(node.inputs[0]))
    return InferenceSession(path)


def _other_compiler(path: Path) -> InferenceSession:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "_compiler", lambda: ("another",))
        return InferenceSession(path)


def _other_weights(path: Path) -> InferenceSession:
    return InferenceSession(saved(path, 2.0))


def _in_place(path: Path) -> InferenceSession:
    """Of the same size, and at the same time as far as the file says."""
    before = path.stat()
    data = path.read_bytes()
    path.write_bytes(data.replace(np.float32(1).tobytes(), np.float32(2).tobytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns
    return InferenceSession(path)


OTHERS = {
    "weights": _other_weights,
    "in place": _in_place,
    "compiler": _other_compiler,
    "operator": _with_operator,
    "level": _options(opt_level=1),
    "threads": _options(num_threads=3),
    "strict": _options(strict=True),
    "target": _options(target="llvm -mcpu=haswell"),
    "interp": _options(target="interp"),
    "names": _options(shape_dict={"x": ("M<=64", WIDTH)}),
    "fixed": _options(shape_dict={"x": (2, WIDTH)}),
    "disabled": _in(PassContext(opt_level=3, disabled_pass=["SimplifyExpr"])),
    "config": _in(PassContext(opt_level=3, config={"relay.FuseOps.max_depth": 3})),
    "verify": _set("MINITVM_VERIFY", "1"),
    "printed": _set("MINITVM_PRINT_IR", "FuseOps"),
    "budget": _set("MINITVM_BUDGET", "nodes=1000"),
    "cpu": _set("MINITVM_CPU", "haswell"),
    "off": _set("MINITVM_CACHE_DIR", ""),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_decides_is_in_the_key(tmp_path: Path, compiled: list[str], what: str) -> None:
    path = saved(tmp_path / "m.onnx")
    assert ran(InferenceSession(path)) == WIDTH
    compiled.clear()
    other = OTHERS[what](path)
    assert ran(other) == {"weights": 2.0 * WIDTH, "in place": 2.0 * WIDTH, "operator": 1.0}.get(what, WIDTH)
    assert compiled


def test_the_files_of_weights_are_in_the_key(tmp_path: Path, compiled: list[str]) -> None:
    path = saved(tmp_path / "m.onnx", beside=True)
    assert ran(InferenceSession(path)) == WIDTH
    before = path.read_bytes()
    saved(tmp_path / "m.onnx", 2.0, beside=True)
    assert path.read_bytes() == before
    assert ran(InferenceSession(path)) == 2 * WIDTH
    saved(tmp_path / "m.onnx", beside=True)
    compiled.clear()
    assert ran(InferenceSession(path)) == WIDTH and not compiled
    (tmp_path / "w.data").unlink()
    with pytest.raises(minitvm.MiniTVMError, match="does not exist"):
        InferenceSession(path)


def test_a_file_that_only_compiling_reads_is_in_no_key(tmp_path: Path, compiled: list[str]) -> None:
    """A constant that is a node's attribute, in a file of its own."""
    tensor = numpy_helper.from_array(np.full((WIDTH, WIDTH), 1.0, "float32"), "w")
    (tmp_path / "w.data").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.data")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH]) for name in "xy")
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert ran(InferenceSession(tmp_path / "m.onnx")) == WIDTH
    (tmp_path / "w.data").write_bytes(np.full((WIDTH, WIDTH), 2.0, "float32").tobytes())
    assert ran(InferenceSession(tmp_path / "m.onnx")) == 2 * WIDTH


def test_the_same_bytes_are_the_same_model_wherever_they_lie(tmp_path: Path, compiled: list[str]) -> None:
    ran(InferenceSession(saved(tmp_path / "a" / "m.onnx")))
    compiled.clear()
    assert ran(InferenceSession(saved(tmp_path / "b" / "m.onnx"))) == WIDTH and not compiled


def test_a_settled_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written to just now may be written to again without a sign; what was not is known by its times."""
    path, cache = saved(tmp_path / "m.onnx"), KernelCache(tmp_path / "cache")
    digest = shelf.digest_of(File(path), cache)
    assert digest == shelf.digest_of(File(path), cache)
    assert cache.hits == 0
    monkeypatch.setattr(shelf, "_SETTLED_NS", -(1 << 62))
    assert shelf.digest_of(File(path), cache) == digest == shelf.digest_of(File(path), cache)
    assert cache.hits == 1
    os.utime(path, ns=(0, 0))
    assert shelf.digest_of(File(path), cache) == digest and cache.hits == 1
    path.write_bytes(path.read_bytes() + b"\0")
    assert shelf.digest_of(File(path), cache) != digest


def test_a_large_file_is_named_by_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by some of its bytes, from the first time on; but what a hash of it named once is found by its hash."""
    monkeypatch.setattr(shelf, "SAMPLED", 0)
    old, new = tmp_path / "old.onnx", tmp_path / "new.onnx"
    for path in (old, new):
        saved(path)
    cache = KernelCache(tmp_path / "cache")
    just_written = shelf.digest_of(File(new), cache)
    assert just_written == shelf.digest_of(File(old), cache)  # of equal bytes
    other = KernelCache(tmp_path / "other")
    monkeypatch.setattr(shelf, "_SETTLED_NS", -(1 << 62))
    assert shelf.digest_of(File(new), cache) == just_written
    named = shelf.digest_of(File(old), other)
    assert named == shelf.digest_of(File(old), other) not in (just_written, shelf.digest_of(File(new), other))
    os.utime(old, ns=(0, 0))
    touched = shelf.digest_of(File(old), other)
    data = bytearray(old.read_bytes())
    data[-1] ^= 1
    old.write_bytes(data)
    assert len({named, touched, shelf.digest_of(File(old), other)}) == 3


def test_libraries_for_what_sizes_decide_are_found_by_what_they_serve(tmp_path: Path, compiled: list[str]) -> None:
    """Two libraries, as one of the names may be 1; a session begins with either."""
    text = "g (float[A, 1] x, float[B, C] z) => (float[D, C] y) { y = Add(x, z) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}').SerializeToString()

    def run(session: InferenceSession, rows: int) -> None:
        x, z = np.arange(rows, dtype="f").reshape(rows, 1), np.arange(6, dtype="f").reshape(3, 2)
        np.testing.assert_array_equal(session.run(None, {"x": x, "z": z})[0], x + z)

    first = InferenceSession(model)
    for rows in (1, 3):
        run(first, rows)
    assert first.symbolic is not None and first.symbolic.taken and len(first.libraries) == 2
    compiled.clear()
    for order in ((3, 1), (1, 3), (3,)):
        session = InferenceSession(model)
        for rows in order:
            run(session, rows)
        assert not compiled and len(session.libraries) == len(order)


def test_branches_and_their_weights_are_kept(tmp_path: Path, compiled: list[str]) -> None:
    text = """g (float[4] x, bool c) => (float[4] y) <float[4] w = {1, 2, 3, 4}> {
      y = If(c) <then_branch = t () => (float[4] a) { a = Mul(x, w) },
                 else_branch = e () => (float[4] b) <float[4] v = {5, 6, 7, 8}> { b = Add(x, v) }> }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}').SerializeToString()
    x = np.arange(4, dtype="f")
    for count in range(2):
        session = InferenceSession(model)
        for condition, wanted in ((True, x * [1, 2, 3, 4]), (False, x + [5, 6, 7, 8])):
            np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(condition)})[0], wanted)
        assert not compiled if count else compiled
        compiled.clear()


def test_stages_behind_what_data_decide_are_kept_with_the_weights_of_both(compiled: list[str]) -> None:
    text = """g (float[n, 2] x) => (float[k, 2] y)
      <float[2] s = {2, 4}, float[2, 2] w = {1, 2, 3, 5}, int64[1] axis = {1}, float zero = {0}> {
      scaled = Mul(x, s)  sums = ReduceSum <keepdims = 0>(scaled, axis)  found = Greater(sums, zero)
      rows = Compress <axis = 0>(scaled, found)  y = MatMul(rows, w) }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}').SerializeToString()
    x = np.array([[1, 1], [-1, 0], [2, 1]], "float32")
    scaled = (x * [2, 4])[[0, 2]]
    for count in range(2):
        session = InferenceSession(model)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], scaled @ [[1, 2], [3, 5]])
        assert session.libraries[0].is_staged
        assert not compiled if count else compiled
        compiled.clear()


def test_refusals_and_values_that_are_asked_for_are_kept(tmp_path: Path, compiled: list[str]) -> None:
    model = parser.parse_model(REFUSED).SerializeToString()
    feeds = {"x": np.arange(8, dtype="float32").reshape(2, 4), "axis": np.array(0)}

    def run(session: InferenceSession) -> tuple[Any, ...]:
        np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"].cumsum(0))
        return session.inputs_by_value, str(session.symbolic), len(session.libraries)

    wanted = run(InferenceSession(model))
    compiled.clear()
    assert run(InferenceSession(model)) == wanted and not compiled
    session = InferenceSession(model)
    run(session)
    session.run(None, {**feeds, "axis": np.array(1)})
    assert compiled, "another value"


def test_calls_in_python_are_warned_of_again(tmp_path: Path, compiled: list[str]) -> None:
    text = "g (string[2] a, string[2] b) => (string[2] y) { y = StringConcat(a, b) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}').SerializeToString()
    found = []
    for _ in range(2):
        with pytest.warns(minitvm.HostCallWarning) as caught:
            session = InferenceSession(model)
        (y,) = session.run(None, {"a": np.array(["a", "b"]), "b": np.array(["c", "d"])})
        found.append(([str(w.message) for w in caught], list(map(str, session.host_calls)), list(y)))
        times = len(compiled)
    assert found[0] == found[1] and times == len(compiled)


def test_a_damaged_folder_is_mended(tmp_path: Path, compiled: list[str]) -> None:
    path = saved(tmp_path / "m.onnx")
    ran(InferenceSession(path))
    files = [p for p in (tmp_path / "cache").rglob("*.*") if p.is_file()]
    assert any(p.suffix == ".lib" for p in files)
    for file in files:
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
    compiled.clear()
    assert ran(InferenceSession(path)) == WIDTH and compiled
    compiled.clear()
    assert ran(InferenceSession(path)) == WIDTH and not compiled


def test_the_cost_of_compiling_is_remembered(tmp_path: Path) -> None:
    """It says when shapes are worth kernels of their own: at once, if it were nothing."""
    path = saved(tmp_path / "m.onnx")
    ran(InferenceSession(path))
    second = InferenceSession(path)
    ran(second)
    assert second._engine._cost > 0  # type: ignore[union-attr]


def test_records_say_nothing_but_what_json_says(tmp_path: Path) -> None:
    """An entry is read, not run."""
    path = saved(tmp_path / "m.onnx")
    ran(InferenceSession(path))
    texts = [p.read_bytes()[32:] for p in (tmp_path / "cache" / "objects").rglob("*.bin")]
    assert any(isinstance(json.loads(t), dict) for t in texts if t[:1] == b"{")
