"""Libraries that serve several shapes: kernels for all, kernels for each, weights once; saved and damaged."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from forging import Members, members_of, resealed, rewrite, zipped
from onnx import helper, numpy_helper

import minitvm
from minitvm import InferenceSession
from minitvm.cli import cli
from minitvm.errors import InputError, LibraryError
from minitvm.ir.types import shape_text
from minitvm.runtime import archive

WIDE = 192
"""The weight has 147 kB: large enough to be one array in all libraries."""


def model() -> onnx.ModelProto:
    """relu(x @ w + b), and the sum of it over axes that are an input."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((WIDE, WIDE)), "b": rng.standard_normal((WIDE,))}
    weights = [numpy_helper.from_array(a.astype("float32"), name) for name, a in arrays.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", WIDE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sums() -> onnx.ModelProto:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["a", "b"]) for name in "xy")
    axes = helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, [1])
    graph = helper.make_graph(nodes, "g", [x, axes], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, WIDE)).astype("float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """``all.mtvm`` for all shapes, ``each.mtvm`` for two, ``both.mtvm`` for all and better for one."""
    where = tmp_path_factory.mktemp("shapes")
    InferenceSession(model(), num_threads=1).save(where / "all.mtvm")
    for name, symbolic, counts in (("each", False, (1, 40)), ("both", True, (3, 40))):
        session = InferenceSession(model(), num_threads=1, symbolic=symbolic)
        if symbolic:
            session.run(None, {"x": rows(2)})
        for count in counts:
            session.prepare({"x": (count, WIDE)})
        session.save(where / f"{name}.mtvm")
    return where


@pytest.mark.parametrize(
    ("name", "shapes", "counts"),
    [
        ("all", [f"(n, {WIDE})"], (1, 5, 0)),
        ("each", [f"(1, {WIDE})", f"(40, {WIDE})"], (1, 40)),
        ("both", [f"(n, {WIDE})", f"(3, {WIDE})", f"(40, {WIDE})"], (3, 17, 40)),
    ],
)
def test_what_is_saved_serves_its_shapes(folder: pathlib.Path, name: str, shapes: list[str], counts: Any) -> None:
    library = minitvm.load(folder / f"{name}.mtvm")
    assert [shape_text(served["x"]) for served in library.shapes] == shapes
    session = InferenceSession(model(), num_threads=1)
    for count in counts:
        (got,), (want,) = library.run({"x": rows(count)}), session.run(None, {"x": rows(count)})
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    assert archive.to_bytes(library.artifact) == (folder / f"{name}.mtvm").read_bytes()


def test_kernels_for_a_shape_are_preferred(folder: pathlib.Path) -> None:
    library = minitvm.load(folder / "both.mtvm")
    assert library.for_shapes({"x": (3, WIDE)}) is library.others[0]
    other = library.for_shapes({"x": (4, WIDE)})
    assert other.code is library.code and other is library.for_shapes({"x": (4, WIDE)})


def test_weights_are_in_the_file_once(folder: pathlib.Path) -> None:
    for name in ("each", "both"):
        library = minitvm.load(folder / f"{name}.mtvm")
        arrays = [
            a for one in (library, *library.others) for a in one.artifact.params.values() if a.nbytes > WIDE * WIDE
        ]
        stored = sum({id(a): a.nbytes for a in arrays}.values())
        assert len(arrays) > 1 and stored < 2 * 4 * WIDE * WIDE
        assert (folder / f"{name}.mtvm").stat().st_size < stored + 120_000


IN_A_NEW_PROCESS = """
import sys, numpy as np
import minitvm.runtime.library as runtime
library = runtime.load(sys.argv[1])
for count in (1, 40):
    np.save(f"{sys.argv[2]}/{count}.npy", library.run({"x": np.load(f"{sys.argv[2]}/x{count}.npy")})[0])
banned = ("onnx", "minitvm.passes", "minitvm.codegen", "minitvm.driver", "minitvm.frontend", "minitvm.session")
assert not [name for name in sys.modules if name.startswith(banned)]
"""


@pytest.mark.parametrize("name", ["all", "each"])
def test_it_runs_where_there_is_neither_onnx_nor_a_compiler(
    name: str, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for count in (1, 40):
        np.save(tmp_path / f"x{count}.npy", rows(count))
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, folder / f"{name}.mtvm", tmp_path]
    subprocess.run(command, check=True, env={"PATH": "", "HOME": "/"})
    library = minitvm.load(folder / f"{name}.mtvm")
    for count in (1, 40):
        np.testing.assert_array_equal(np.load(tmp_path / f"{count}.npy"), library.run({"x": rows(count)})[0])


def test_values_that_it_was_compiled_for(tmp_path: pathlib.Path) -> None:
    session = InferenceSession(sums(), num_threads=1)
    x = rows(2)[:, :3]
    for axis in (0, 1):
        session.run(None, {"x": x, "axes": np.array([axis])})
    session.save(tmp_path / "m.mtvm")
    library = minitvm.load(tmp_path / "m.mtvm")
    for axis in (0, 1):
        found = library.run({"x": x, "axes": np.array([axis])})
        np.testing.assert_allclose(found[0], x.sum(axis=axis, keepdims=True), rtol=1e-6)
    with pytest.raises(InputError, match=r"it is for x \(2, 3\), axes = \[1\]"):
        library.run({"x": x, "axes": np.array([-1])})


# --- what it is not for -----------------------------------------------------------------------------------------


def test_shapes_that_it_is_not_for(folder: pathlib.Path) -> None:
    library = minitvm.load(folder / "each.mtvm")
    with pytest.raises(InputError) as caught:
        library.run({"x": rows(2)})
    assert str(caught.value) == (
        f"the library is not for inputs of these shapes: x (2, {WIDE})\n"
        f"  | it is for x (1, {WIDE})\n"
        f"  | it is for x (40, {WIDE})\n"
        "  = hint: compile it for them too: session.prepare({name: shape}) before session.save(path)"
    )
    for name, feeds, text in (
        ("all", {"x": rows(2)[:, 1:]}, "not for inputs of these shapes"),
        ("all", {"x": rows(2)[0]}, "not for inputs of these shapes"),
        ("all", {"z": rows(2)}, "the model has no input 'z'"),
        ("each", {}, "input not set: x"),
        ("each", {"x": rows(1).astype("float64")}, "input 'x' is float64, the model expects float32"),
    ):
        with pytest.raises(InputError, match=text):
            minitvm.load(folder / f"{name}.mtvm").run(feeds)


def test_a_library_for_all_shapes_is_bound_before_it_runs(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    library = minitvm.load(folder / "all.mtvm")
    with pytest.raises(LibraryError, match=rf"^the library is for all shapes: x \(n, {WIDE}\)\n"):
        library["default"]()
    bound = library.for_shapes({"x": (2, WIDE)})
    with pytest.raises(LibraryError, match="is not saved alone"):
        bound.save(tmp_path / "m.mtvm")


def test_nothing_to_save(tmp_path: pathlib.Path) -> None:
    with pytest.raises(LibraryError, match=r"nothing is compiled that could be saved: .* was asked for none"):
        InferenceSession(model(), symbolic=False).save(tmp_path / "m.mtvm")


# --- files that are not as they were written ----------------------------------------------------------------------


def _refusal(data: bytes) -> str:
    with pytest.raises(LibraryError) as caught:
        archive.from_bytes(data, "m.mtvm")
    return caught.value.message


def test_parts_that_are_missing_or_stray(folder: pathlib.Path) -> None:
    data = (folder / "each.mtvm").read_bytes()
    for cut in range(0, len(data), len(data) // 40):
        assert _refusal(data[:cut]).startswith("m.mtvm is ")
    members = members_of(data)
    without = {name: part for name, part in members.items() if name != "shape/1.mtvm"}
    assert _refusal(zipped(without)) == "m.mtvm is altered: shape/1.mtvm is missing from it"
    moved = {name.replace("shape/1", "shape/2"): part for name, part in members.items()}
    manifest = json.loads(moved.pop("manifest.json"))
    assert _refusal(resealed(manifest, moved)) == "m.mtvm is altered: shape/2.mtvm does not belong in it"


def _inside(data: bytes, change: Any) -> bytes:
    """The library with its second one altered, all hashes made right."""
    members = members_of(data)
    inner = members_of(members["shape/1.mtvm"])
    change(inner)
    manifest = json.loads(inner.pop("manifest.json"))
    members["shape/1.mtvm"] = resealed(manifest, inner)
    return resealed(json.loads(members.pop("manifest.json")), members)


@pytest.mark.parametrize("name", [*"abcdefg"])
def test_parameters_that_are_borrowed_of_nobody(name: str, folder: pathlib.Path) -> None:
    data = (folder / "each.mtvm").read_bytes()
    known = json.loads(members_of(members_of(data)["shape/1.mtvm"])["borrowed.json"])
    mine, (_, theirs) = next(iter(known.items()))
    forms: dict[str, Any] = {
        "a": {mine: [1, theirs]},
        "b": {mine: [0, "none"]},
        "c": {**known, "none": [0, theirs]},
        "d": [],
        "e": {mine: [0.5, theirs]},
        "f": {mine: None},
        "g": {},
    }

    def change(inner: Members) -> None:
        inner["borrowed.json"] = json.dumps(forms[name], indent=1).encode()

    message = _refusal(_inside(data, change))
    assert message.startswith("m.mtvm:shape/1.mtvm is altered: "), message


@pytest.mark.parametrize("form", [[], {"axes": 3}, {"axes": ["int64", [5], [0]]}, {"axes": ["nonsense", [1], [0]]}])
def test_values_that_are_none(form: Any, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.mtvm"
    minitvm.compile(sums(), shape_dict={"x": (2, 3)}, value_dict={"axes": np.array([0])}).save(path)
    assert minitvm.load(path).artifact.values["axes"].tolist() == [0]
    rewrite(path, lambda _, __, members: members.update({"values.json": json.dumps(form, indent=1).encode()}))
    assert _refusal(path.read_bytes()) == "m.mtvm is altered: values.json says of no inputs what their values are"


@pytest.mark.parametrize("version", [7, 9])
def test_files_of_other_versions(version: int, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.mtvm"
    path.write_bytes((folder / "both.mtvm").read_bytes())
    rewrite(path, lambda manifest, *_: manifest.update(format_version=version))
    assert _refusal(path.read_bytes()) == f"m.mtvm has format version {version}, this minitvm reads version 8"


def test_members_of_gigabytes_lie_on_their_boundary(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes beyond 32 bits stand in a field of their own, which moves what comes after it."""
    library, path = minitvm.load(folder / "each.mtvm"), tmp_path / "m.mtvm"
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", WIDE * WIDE)
    library.save(path)
    loaded = minitvm.load(path)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    at = path.read_bytes().index(next(iter(library.params.values())).tobytes()[:64])
    assert at % 64 == 0 and len(data) > (folder / "each.mtvm").stat().st_size
    np.testing.assert_array_equal(loaded.run({"x": rows(40)})[0], library.run({"x": rows(40)})[0])


# --- on the command line ------------------------------------------------------------------------------------------


def test_the_command_line_compiles_for_several_shapes_and_for_all(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(), "m.onnx")
    np.savez("x.npz", x=rows(2))

    def output(*arguments: str) -> str:
        found = CliRunner().invoke(cli, arguments)
        assert found.exit_code == 0, found.output
        return found.output

    for name, shapes, served in (
        ("some", [f"--shape=x:1x{WIDE}", f"--shape=x:2x{WIDE}"], [f"x (1, {WIDE})", f"x (2, {WIDE})"]),
        ("all", [], [f"x (n, {WIDE})"]),
    ):
        output("compile", "m.onnx", "-o", f"{name}.mtvm", *shapes)
        lines = output("info", f"{name}.mtvm").splitlines()
        assert [line.split(maxsplit=1)[1].strip() for line in lines if line.startswith("for ")] == served
        output("run", f"{name}.mtvm", "-i", "x.npz", "-o", "y.npz")
        (want,) = InferenceSession(model(), num_threads=1).run(None, {"x": rows(2)})
        np.testing.assert_allclose(np.load("y.npz")["y"], want, rtol=1e-5, atol=1e-4)
        output("bench", f"{name}.mtvm", "--rounds", "1", "--shape", f"x:1x{WIDE}")
    refused = CliRunner().invoke(cli, ["run", "some.mtvm", "--shape", f"x:9x{WIDE}"])
    assert refused.exit_code == 1
