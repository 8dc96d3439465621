"""The library: what it holds, the file's round trip in a new process, and files that cannot be used."""

from __future__ import annotations

import io
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from small_model import Model, expected, sample

import minitvm
from minitvm import config, relay
from minitvm.codegen.llvm.compile import host
from minitvm.errors import LibraryError
from minitvm.runtime import archive, native
from minitvm.runtime.graph import CpuTag
from minitvm.runtime.native import let_go_of_llvm, this_machine


def outputs(library: minitvm.Library, x: np.ndarray) -> list[np.ndarray]:
    module = minitvm.GraphModule(library["default"](minitvm.cpu(0)))
    module.run(x=x)
    return module.outputs()


@pytest.fixture
def saved(model: Model, tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "m.mtvm"
    model[2].save(path)
    return path


def test_what_the_library_holds(model: Model) -> None:
    module, _, library = model
    graph_json, lib, params = library
    assert graph_json == library.graph_json and lib is library and params is library.params
    assert library.ir_mod is module and library.executor == "graph" and library.libmod_name == "default"
    assert library["get_graph_json"]() == graph_json and library["get_graph_params"]() is params
    assert library.host_calls == []
    kernels = {n["attrs"]["func_name"] for n in json.loads(graph_json)["nodes"] if n["op"] == "tvm_op"} - {"__nop"}
    assert set(library.function_metadata) == kernels
    dense = next(m for m in library.function_metadata.values() if any("dense" in o or "matmul" in o for o in m["ops"]))
    assert dense["flops"] >= 2 * 2 * 6 * 5 and dense["dtype"] == "float32"
    with pytest.raises(
        LibraryError, match=r"^the library has no entry 'main'\n  = hint: it has: default, debug_create"
    ):
        library["main"]


def test_graph_json_has_tvms_fields(model: Model) -> None:
    graph = json.loads(model[2].graph_json)
    assert {"nodes", "arg_nodes", "heads", "attrs", "node_row_ptr"} == set(graph)
    rows, nodes = graph["node_row_ptr"], graph["nodes"]
    assert len(rows) == len(nodes) + 1
    for kind, name in (("list_str", "dltype"), ("list_int", "storage_id"), ("list_shape", "shape")):
        assert graph["attrs"][name][0] == kind and len(graph["attrs"][name][1]) == rows[-1]
    assert [nodes[i]["op"] for i in graph["arg_nodes"]] == ["null"] * len(graph["arg_nodes"])
    assert nodes[0] == {"op": "null", "name": "x", "inputs": []}
    for node in nodes:
        if node["op"] == "tvm_op":
            assert set(node["attrs"]) >= {"func_name", "num_inputs", "num_outputs", "flatten_data"}
            assert all(isinstance(value, str) for value in node["attrs"].values())


def test_round_trip(model: Model, saved: pathlib.Path) -> None:
    loaded = minitvm.load(saved)
    for before, after in zip(outputs(model[2], sample(1)), outputs(loaded, sample(1)), strict=True):
        np.testing.assert_array_equal(before, after)
    assert loaded.graph_json == model[2].graph_json and loaded.function_metadata == model[2].function_metadata
    assert str(loaded.plan) == str(model[2].plan)
    again = saved.with_name(f"again{saved.suffix}")
    loaded.export_library(again)
    assert again.read_bytes() == saved.read_bytes()


IN_A_NEW_PROCESS = """
import sys, numpy as np, minitvm
module = minitvm.graph_executor.GraphModule(minitvm.load_module(sys.argv[1])["default"](minitvm.cpu(0)))
module.run(x=np.load(sys.argv[2]))
np.save(sys.argv[3], module.get_output(0).numpy())
banned = [name for name in sys.modules if name.split(".")[0] == "onnx" or name.startswith("minitvm.passes")]
assert not banned, banned
"""


def test_round_trip_in_a_new_process_without_compilers_on_the_path(model: Model, saved: pathlib.Path) -> None:
    x, y = saved.with_name("x.npy"), saved.with_name("y.npy")
    np.save(x, sample(2))
    subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS, saved, x, y], check=True, env={"PATH": "", "HOME": "/"})
    np.testing.assert_array_equal(np.load(y), outputs(model[2], sample(2))[0])


def test_three_files(model: Model, tmp_path: pathlib.Path) -> None:
    """T2: graph, code and parameters saved apart, and put together again."""
    module, params, _ = model
    library = minitvm.build(module)
    (tmp_path / "m.json").write_text(library.graph_json)
    library.export_library(tmp_path / "m.tar")
    (tmp_path / "m.params").write_bytes(relay.save_param_dict(params))
    graph, lib = (tmp_path / "m.json").read_text(), minitvm.load_module(tmp_path / "m.tar")
    running = minitvm.graph_executor.create(graph, lib, minitvm.cpu(0))
    running.load_params((tmp_path / "m.params").read_bytes())
    running.run(x=sample(4))
    np.testing.assert_allclose(running.get_output(0).numpy(), expected(params, sample(4))[0], rtol=1e-5, atol=1e-6)


# --- files that cannot be used ----------------------------------------------------------------------------------


def rewritten(path: pathlib.Path, change: Callable[[dict[str, bytes]], None]) -> pathlib.Path:
    """The archive with its members changed, its checksums made right again by the zip format."""
    with zipfile.ZipFile(path) as archive_:
        members = {name: archive_.read(name) for name in archive_.namelist()}
    change(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive_:
        for name, data in members.items():
            archive_.writestr(name, data)
    path.write_bytes(out.getvalue())
    return path


def in_manifest(**changes: object) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members["manifest.json"] = json.dumps({**json.loads(members["manifest.json"]), **changes}).encode()

    return change


def message(path: pathlib.Path) -> str:
    with pytest.raises(LibraryError) as error:
        minitvm.load(path)
    return str(error.value).replace(str(path), "PATH")


WRITTEN_BY = "\n  = hint: libraries are written by lib.save(path) or `minitvm compile`"
COPY_AGAIN = "\n  = hint: copy the file again, or compile the model again"


def test_not_a_library(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    assert message(path) == (
        "the library PATH cannot be read: No such file or directory\n"
        "  = hint: give the path that save() was called with"
    )
    path.write_text("hello")
    assert message(path) == "PATH is not a minitvm library" + WRITTEN_BY
    path.write_bytes(b"")
    assert message(path) == "PATH is empty, not a minitvm library" + WRITTEN_BY
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("a.txt", "hello")
    assert message(path) == "PATH is an archive but not a minitvm library: it has no manifest.json"
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("manifest.json", "[1]")
    assert message(path) == "PATH is not a minitvm library: its manifest cannot be read"
    assert message(tmp_path).startswith("the library PATH cannot be read: ")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
def test_truncated(saved: pathlib.Path, share: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * share)])
    found = message(saved)
    assert found.startswith("PATH is truncated or altered: ") and found.endswith(COPY_AGAIN)


def test_every_altered_byte_is_noticed(saved: pathlib.Path) -> None:
    """Flips single bytes all over the file; where a flip is harmless to the format, loading gives the same."""
    data = saved.read_bytes()
    good = archive.from_bytes(data, "x")
    rng = np.random.default_rng(5)
    refused = 0
    for at in rng.choice(len(data), 300, replace=False):
        damaged = data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
        try:
            found = archive.from_bytes(damaged, "x")
        except LibraryError:
            refused += 1
            continue
        assert found.objects == good.objects and found.graph == good.graph
    assert refused > 200


def test_a_member_altered_added_or_removed(saved: pathlib.Path) -> None:
    original = saved.read_bytes()

    def graph(members: dict[str, bytes]) -> None:
        members["graph.json"] = members["graph.json"].replace(b"null", b"nuII")

    assert message(rewritten(saved, graph)) == (
        "PATH is altered: the contents of graph.json do not match their hash" + COPY_AGAIN
    )
    saved.write_bytes(original)
    assert message(rewritten(saved, lambda m: m.update({"params.bin": b"abc"}))).startswith(
        "PATH is altered: params.bin has 3 bytes, not "
    )
    saved.write_bytes(original)
    assert message(rewritten(saved, lambda m: m.update({"more.py": b"import os"}))) == (
        "PATH is altered: more.py does not belong in it" + COPY_AGAIN
    )
    saved.write_bytes(original)
    assert message(rewritten(saved, lambda m: m.__delitem__("graph.json"))) == (
        "PATH is altered: graph.json is missing from it" + COPY_AGAIN
    )


def test_another_format_version(saved: pathlib.Path) -> None:
    here = config.version()
    assert message(rewritten(saved, in_manifest(format_version=99, minitvm="9.9"))) == (
        "PATH has format version 99, this minitvm reads version 8\n"
        f"  | written by minitvm 9.9, read by minitvm {here}\n"
        "  = hint: compile the model again with this version of minitvm"
    )


def test_another_cpu(saved: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_for = CpuTag(host().triple, host().name, host().instruction_sets)
    hint = "\n  = hint: compile the model again on this machine, or for it: minitvm compile --target 'llvm -mcpu=...'"
    monkeypatch.setattr(native, "this_machine", lambda: CpuTag(made_for.triple, "plain", ()))
    lacking = [f for f in made_for.features if f not in native._NOT_CODE]
    if lacking:
        listed = ", ".join(lacking[:6]) + (f" and {len(lacking) - 6} more" if len(lacking) > 6 else "")
        assert message(saved) == (
            f"PATH was compiled for {made_for.name}; this machine's CPU, plain, lacks {listed}" + hint
        )
    monkeypatch.setattr(native, "this_machine", lambda: CpuTag("sparc-unknown-linux", "plain", ()))
    assert message(saved) == (f"PATH was compiled for {made_for.triple}, this machine is sparc-unknown-linux" + hint)


def test_code_for_a_wider_cpu_is_refused(model: Model, tmp_path: pathlib.Path) -> None:
    here = this_machine()
    if not here.triple.startswith("x86_64") or "avx512f" in here.features:
        pytest.skip("needs an x86 CPU without AVX-512")
    path = tmp_path / "m.mtvm"
    library = minitvm.build(model[0], "llvm -mcpu=skylake-avx512", model[1])
    text = f"was compiled for skylake-avx512; this machine's CPU, {here.name}, lacks avx512f"
    with pytest.raises(LibraryError, match=f"^the library {text}\n"):
        library["default"](minitvm.cpu(0))
    library.save(path)
    assert message(path).startswith(f"PATH {text}\n")


@pytest.mark.parametrize("name", ["x" * 300, "folder", "pipe"])
def test_names_that_no_library_can_have(name: str, model: Model, tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LibraryError, match=r"^the library cannot be written to "):
        model[2].save(tmp_path / name)
    with pytest.raises(LibraryError, match=r"^the library .* cannot be read: "):
        minitvm.load(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


def test_a_folder_that_cannot_be_written(model: Model, tmp_path: pathlib.Path) -> None:
    with pytest.raises(LibraryError) as error:
        model[2].save(tmp_path / "none" / "m.mtvm")
    assert str(error.value) == (
        f"the library cannot be written to {tmp_path}/none/m.mtvm: No such file or directory\n"
        "  = hint: choose a folder that can be written"
    )


# --- what is left in memory -------------------------------------------------------------------------------------------


def _resident_of_llvm() -> int:
    """KiB of LLVM's file that this process has in memory."""
    areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", pathlib.Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)[1:]
    own = [area for area in areas if "libllvmlite" in area.splitlines()[0]]
    return sum(int(size) for area in own for size in re.findall(r"^Rss: +(\d+) kB", area, re.MULTILINE))


@pytest.mark.skipif(not pathlib.Path("/proc/self/smaps").exists(), reason="the system does not say what is in memory")
def test_a_model_that_runs_has_no_compiler_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    monkeypatch.setattr(native, "let_go_of_llvm", let_go_of_llvm)
    assert sum(nbytes for _, nbytes in native._llvm_pages()) > 10 << 20
    for factor in (2.0, 3.0):  # and compiling goes on afterwards
        x = relay.var("x", shape=(4, 100))
        library = minitvm.build(relay.Function([x], relay.exp(x) * relay.const(factor)))
        module = minitvm.GraphModule(library["default"]())
        module.run(x=np.ones((4, 100), "float32"))
        np.testing.assert_allclose(module.outputs()[0], factor * np.e, rtol=1e-6)
        assert _resident_of_llvm() < 8_000


def test_where_the_system_does_not_say_what_is_mapped_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(pathlib.Path, "read_text", refuses)
    native._llvm_pages.cache_clear()
    try:
        assert native._llvm_pages() == ()
        let_go_of_llvm()
    finally:
        native._llvm_pages.cache_clear()
