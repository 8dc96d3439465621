"""The command line: what it prints and writes, its help, its errors word for word, its exit status."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from cli_runs import invoke, lines, output, refusal, small_model
from onnx import parser
from PIL import Image

import minitvm
from minitvm.cli import COMMANDS, building, imported
from minitvm.cli.common import read_npz, write_npz
from minitvm.cli.demo import as_seen
from minitvm.errors import InputError

SHAPE = ["--shape", "x:1x3x8x8"]
KERNEL = "fused_nn_global_avg_pool2d"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """``m.onnx``, ``m.mtvm`` made of it, ``x.npz`` with its input and ``bad.npz``, a text."""
    where = tmp_path_factory.mktemp("cli")
    onnx.save(small_model(), where / "m.onnx")
    onnx.save(small_model("H"), where / "open.onnx")
    minitvm.compile(where / "m.onnx", shape_dict={"x": (1, 3, 8, 8)}).save(where / "m.mtvm")
    np.savez(where / "x.npz", x=_input())
    (where / "bad.npz").write_text("not a zip file")
    return where


@pytest.fixture(autouse=True)
def in_folder(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def _input() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(1, 3, 8, 8)).astype("float32")


# --- compile, run ---


def test_compile_writes_beside_the_model(folder: pathlib.Path) -> None:
    text = output("compile", "m.onnx", *SHAPE)
    assert re.fullmatch(r"m\.mtvm: 3 kernels, \d+ kB, \d+\.\d s\n", text)
    assert (folder / "m.mtvm").stat().st_size > 1000


def test_what_compile_writes_runs(tmp_path: pathlib.Path) -> None:
    path, written = tmp_path / "other.mtvm", tmp_path / "out.npz"
    output("compile", "m.onnx", "-o", str(path), *SHAPE)
    output("run", str(path), "-i", "x.npz", "-o", str(written))
    [expected] = minitvm.InferenceSession("m.onnx").run(None, {"x": _input()})
    with np.load(written) as results:
        assert list(results) == ["y"]
        np.testing.assert_allclose(results["y"], expected, rtol=1e-5)


def test_models_run_on_the_interpreter(tmp_path: pathlib.Path) -> None:
    written = tmp_path / "out.npz"
    output("run", "m.onnx", "--target", "interp", "-i", "x.npz", "-o", str(written))
    [expected] = minitvm.InferenceSession("m.onnx").run(None, {"x": _input()})
    [slow] = minitvm.InferenceSession("m.onnx", target="interp").run(None, {"x": _input()})
    with np.load(written) as results:
        np.testing.assert_array_equal(results["y"], slow)
    np.testing.assert_allclose(slow, expected, rtol=1e-5)
    output("compile", "m.onnx", "--target", "interp", *SHAPE, "-o", str(tmp_path / "slow.mtvm"))
    output("run", str(tmp_path / "slow.mtvm"), "-i", "x.npz", "-o", str(written))
    with np.load(written) as results:
        np.testing.assert_array_equal(results["y"], slow)


def test_run_describes_the_results() -> None:
    [expected] = minitvm.InferenceSession("m.onnx").run(None, {"x": _input()})
    found = lines(output("run", "m.mtvm", "-i", "x.npz", "--top", "2"))
    assert found[0].split() == ["result", "shape", "dtype", "smallest", "mean", "largest"]
    figures = [f"{f(expected):.6g}" for f in (np.min, np.mean, np.max)]
    assert found[1].split() == ["y", "(1,", "4)", "float32", *figures]
    best = int(expected.argmax())
    assert found[2] == f"  y[0, {best}] = {expected[0, best]:.6g}"
    assert re.fullmatch(r"first run: \d+\.\d\d ms", found[4])


def test_run_takes_open_dimensions_from_the_arrays(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "two.npz", x=np.concatenate([_input(), 2 * _input()]))
    assert "(2, 4)" in output("run", "m.onnx", "-i", str(tmp_path / "two.npz"))


def test_random_inputs_follow_the_seed() -> None:
    first, again, other = (lines(output("run", "m.mtvm", "--seed", seed))[1] for seed in ("1", "1", "2"))
    assert first == again != other


def test_profile_and_trace(tmp_path: pathlib.Path) -> None:
    text = output("run", "m.mtvm", "--profile", "--trace", str(tmp_path / "trace"))
    assert KERNEL in text and "Time(us)" in text
    assert any(path.suffix == ".json" for path in (tmp_path / "trace").iterdir())


# --- bench ---


def test_bench_prints_a_row() -> None:
    found = lines(output("bench", "m.mtvm", "--rounds", "3", "--threads", "1"))
    assert re.fullmatch(r"m\.mtvm: loaded in \d+\.\d\d s", found[0])
    row = next(line for line in found if line.startswith("minitvm"))
    assert re.fullmatch(rf"minitvm( +(~?\d+\.\d{{3}}|-)){{2}} +\d+%{DOUBT}", row)


def test_bench_against_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    found = lines(output("bench", "m.onnx", "-n", "3", "-t", "1", "--against", "onnxruntime", *SHAPE))
    row = next(line for line in found if line.startswith("onnxruntime"))
    faster = r" +minitvm is \d+\.\d\d x as fast"
    assert re.fullmatch(rf"onnxruntime( +(~?\d+\.\d{{3}}|-)){{2}} +\d+%({faster}|{DOUBT})", row)


def test_bench_roofline_has_a_row_for_each_kernel() -> None:
    found = lines(output("bench", "m.onnx", "-n", "2", "-t", "1", "--roofline", *SHAPE))
    assert re.fullmatch(
        r"m\.onnx: the machine at 1 thread: \d+ GFLOP/s; GB/s of L1 \d+, L2 \d+, .*memory \d+", found[0]
    )
    head = next(n for n, line in enumerate(found) if line.startswith("nodes"))
    assert re.split("  +", found[head]) == ROOFLINE
    kernels, total, run = found[head + 1 : -2], found[-2], found[-1]
    assert len(kernels) == 3
    for row in (*kernels, total):
        assert re.fullmatch(
            r".*\S( +\d+\.\d\d){2}( +\d+\.\d){2} +~?\d+\.\d +\d+%  (compute|launch|memory|L[123]) *", row
        )
    assert total.startswith("all kernels") and re.fullmatch(r"a run +~?\d+\.\d *", run)


DOUBT = r" *(reliable|below its floor|spread too widely|not measured)? *"
ROOFLINE = ["nodes", "MFLOP", "MB", "floor us", "predicted us", "measured us", "of peak", "bound by"]


def asked(*arguments: str, status: int = 0) -> dict[str, Any]:
    """What ``--json`` prints, in the shape that all commands share; strict JSON."""
    done = invoke(*arguments, "--json")
    assert done.exit_code == status, done.output
    found = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert list(found) == ["minitvm", "command", "subject", "ok", "result"] and found["minitvm"] == minitvm.__version__
    assert " ".join(arguments).startswith(found["command"]) and found["ok"] is (status == 0)
    result: dict[str, Any] = found["result"]
    return result


def test_bench_prints_json() -> None:
    found = asked("bench", "m.mtvm", "-n", "2", "-t", "1", "--roofline")
    assert set(found) == {"machine", "kernels", "total", "run"} and len(found["kernels"]) == 3
    assert sum(row["flops"] for row in found["kernels"]) == found["total"]["flops"] > 0
    assert all(row["nodes"] and row["share_of_peak"] >= 0 for row in found["kernels"])
    times = asked("bench", "m.mtvm", "-n", "2", "-t", "1")["runtimes"]
    assert set(times) == {"minitvm"} and set(times["minitvm"]) == {"seconds", "spread", "runs", "verdict", "best"}


def test_other_commands_print_json(tmp_path: pathlib.Path) -> None:
    """The same shape; what JSON has no number for is null."""
    np.savez(tmp_path / "nan.npz", x=np.full((1, 3, 8, 8), np.nan, np.float32))
    ran = asked("run", "m.mtvm", "--top", "2", "-i", str(tmp_path / "nan.npz"))["results"]["y"]
    assert ran["shape"] == [1, 4] and ran["largest"] is None and len(ran["top"]) == 2
    assert asked("info")["threads"] >= 1
    assert asked("info", "m.onnx")["nodes"]["Conv"] == 1
    assert asked("info", "m.mtvm")["inputs"] == [{"name": "x", "type": "Tensor[(1, 3, 8, 8), float32]"}]
    trials = asked("lab", "levels", "m.onnx", "--rounds", "0", *SHAPE)["trials"]
    assert [trial["seconds"] for trial in trials] == [None] * 4 and all(trial["bytes"] > 0 for trial in trials)
    parts = asked("check", "m.onnx", "--levels", "--reduction", "0", *SHAPE)["compared"]
    assert {row["outcome"] for row in parts} == {"agrees"}
    rules = asked("lab", "verify", "merge_casts", "--tries", "1", status=1)["rules"]
    assert rules["merge_casts"]["state"] == "not verified" and rules["merge_casts"]["tried"] == 1


def test_arrays_that_fit_no_input_are_named_before_anything_is_compiled(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "compile", lambda *_, **__: pytest.fail("compiled"))
    for arrays, said in (
        (
            {"X": 1.0, "foo": 2.0},
            r"a\.npz has X, foo, and m\.\w+ no such input\n.*its inputs are: x; did you mean 'x'\?",
        ),
        ({}, r"a\.npz has none, and m\.\w+ no such input\n.*its inputs are: x"),
    ):
        write_npz(tmp_path / "a.npz", {name: np.asarray(value) for name, value in arrays.items()})
        for command, model in (("run", "m.onnx"), ("run", "m.mtvm"), ("profile", "m.onnx"), ("view", "m.onnx")):
            assert re.match(said, refusal(command, model, "-i", str(tmp_path / "a.npz")))


def test_quiet_leaves_results_and_errors() -> None:
    loud, quiet = (run_program("run", "m.onnx", "--top", "1", *more) for more in ((), ("-q",)))
    assert "a batch of 1" in loud.stderr and quiet.stderr == ""
    assert quiet.stdout.splitlines()[:-1] == loud.stdout.splitlines()[:-1]
    assert run_program("run", "-q", "nothing.onnx").stderr == "error: there is no file nothing.onnx\n"


def test_help_says_what_concerns_the_command() -> None:
    """A word about libraries only where one can be given; of a second ``--shape`` only where it makes a library."""
    for name in ("tune", "check", "explain", "show", "view", "lab orders", "lab levels"):
        text = " ".join(invoke(*name.split(), "--help").stdout.split())
        assert "Not beside a library" not in text and "a library for several shapes" not in text, name
        assert invoke(*name.split(), "m.mtvm", *(["--passes", "A"] if name == "lab orders" else [])).exit_code == 1
    assert "a library for several shapes" in " ".join(invoke("compile", "--help").stdout.split())
    assert "draws" in invoke("run", "--help").stdout and "draws" not in invoke("bench", "--help").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """As docs/cli.md says; commands and options are completed."""
    if shell == "bash" and not shutil.which("bash"):
        pytest.skip("there is no bash")
    assert "minitvm" in run_program(_MINITVM_COMPLETE=f"{shell}_source").stdout
    given = {"COMP_WORDS": "minitvm pro", "COMP_CWORD": "pro" if shell == "fish" else "1"}
    assert "profile" in run_program(_MINITVM_COMPLETE=f"{shell}_complete", **given).stdout


# --- show, info ---


def test_show_prints_the_graph_after_all_passes() -> None:
    text = output("show", "m.onnx", *SHAPE)
    assert text.startswith("def @main(%x: Tensor[(1, 3, 8, 8), float32]) -> Tensor[(1, 4), float32] {\n")
    assert "primitive=True" in text


def test_show_around_a_pass() -> None:
    names = [line.partition("  ")[0] for line in lines(output("show", "m.onnx", "--after", "list", *SHAPE))]
    assert names[0] == "InferType" and names[-1] == "default_pipeline"
    assert "nn.bias_add" in output("show", "m.onnx", "--before", "CanonicalizeOps", *SHAPE)
    after = output("show", "m.onnx", "--after", "CanonicalizeOps", *SHAPE)
    assert "nn.bias_add" not in after and "primitive" not in after


def test_show_names_large_constants() -> None:
    assert 'meta["w", ' not in output("show", "m.onnx", *SHAPE)
    assert 'meta["w", ' in output("show", "m.onnx", "--constants", *SHAPE)


def test_show_names_the_kernels_and_their_nodes() -> None:
    found = lines(output("show", "m.onnx", "--kernel", "list", *SHAPE))
    assert any(line.startswith(f"{KERNEL}  pool  (") for line in found)
    assert any(
        re.search(r"_nn_relu  conv1, relu1  \(template \w+\.\w+\), \S+ MFLOP, \S+ kB, \S+ us predicted$", line)
        for line in found
    )


@pytest.mark.parametrize(
    ("stage", "start"),
    [
        ("graph", "fn (%p0: Tensor[(1, "),
        ("plain", f"kernel {KERNEL}(p0: float32["),
        ("loops", f"kernel {KERNEL}(p0: float32["),
        ("llvm", f'define void @"{KERNEL}"('),
        ("asm", f"{KERNEL}:"),
        ("cuda", 'extern "C" __global__ void'),
    ],
)
def test_show_prints_a_kernel_at_every_stage(stage: str, start: str) -> None:
    text = output("show", "m.onnx", "--stage", stage, "--kernel", KERNEL, *SHAPE)
    assert start in text
    assert max(map(len, text.splitlines())) > 80 or stage in ("plain", "loops", "asm", "cuda")  # nothing is wrapped


def test_show_says_why() -> None:
    found = lines(output("show", "m.onnx", "--why", "relu1", *SHAPE))
    fused = found[found.index("FuseOps") + 1]
    assert fused.startswith("  nn.relu [relu1]: FuseOps declined: into ")
    assert any(re.match(r"  nn.\w+ \[conv1\]: template \w+\.\w+: writes the loops", line) for line in found)


def test_show_prints_the_steps_of_a_schedule(tmp_path: pathlib.Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    cache (float[2, 4, 9, 16] past, float[2, 4, 1, 16] new, int64[2] at) => (float[2, 4, 9, 16] present) {
        present = TensorScatter <axis = 2> (past, new, at)
    }"""
    onnx.save(parser.parse_model(text), tmp_path / "cache.onnx")
    found = lines(output("show", str(tmp_path / "cache.onnx"), "--schedule", "fused_tensor_scatter"))
    assert found == ["i_j = parallel(i, j)", "vectorize(l)", "vectorize(l_1)"]
    assert refusal("show", "m.onnx", "--schedule", KERNEL, *SHAPE) == (
        f"the loops of {KERNEL} are no list of steps: default nests\n"
        "  = hint: 'loops' is the stage that has what was written; docs/write-a-schedule.md: one of your own"
    )


def test_show_of_a_stage_prints_all_kernels() -> None:
    text = output("show", "m.onnx", "--stage", "loops", *SHAPE)
    assert len(re.findall(r"^kernel \w+\(", text, re.MULTILINE)) == 3


def test_info_of_a_model() -> None:
    assert lines(output("info", "m.onnx")) == [
        "input       x: tensor(float) ['N', 3, 8, 8]",
        "output      y: tensor(float) ['N', 4]",
        "shapes      compiled once for all",
        "opset       17",
        "parameters  516",
        "nodes       Conv 1, Relu 1, GlobalAveragePool 1, Flatten 1, Gemm 1",
    ]


def test_info_counts_what_is_in_sub_graphs(tmp_path: pathlib.Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) <float[2] w = {1, 2}> { a = Add (x, w) },
                    else_branch = e () => (float[2] b) { d = Relu (x)  b = Add (d, d) }> }"""
    onnx.save(parser.parse_model(text), tmp_path / "if.onnx")
    found = dict(line.split(maxsplit=1) for line in lines(output("info", str(tmp_path / "if.onnx"))))
    assert (found["nodes"], found["in"], found["parameters"]) == ("If 1", "sub-graphs  Add 2, Relu 1", "2")


def test_info_of_a_library_names_its_results(tmp_path: pathlib.Path) -> None:
    minitvm.InferenceSession("m.onnx").save(tmp_path / "m.mtvm")
    found = lines(output("info", str(tmp_path / "m.mtvm")))
    assert [line.split()[1] for line in found if line.startswith("output")] == ["y:"]


def test_info_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_NUM_THREADS", "3")
    found = dict(line.split(maxsplit=1) for line in lines(output("info")))
    assert found["minitvm"] == minitvm.__version__
    assert found["threads"] == "3"
    assert found["MINITVM_NUM_THREADS"] == "3: threads a model runs on; 0 is one per physical core"


# --- demo ---


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_as_their_camera_says(orientation: int, tmp_path: pathlib.Path) -> None:
    pixels = np.random.default_rng(orientation).integers(0, 255, (5, 8, 3), np.uint8)
    turns = {1: 0, 3: 2, 6: -1, 8: 1, 2: 0, 4: 2, 5: 1, 7: -1}
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "p.png", exif=exif)
    with Image.open(tmp_path / "p.png") as image:
        found = np.asarray(as_seen(image))
    mirrored = pixels[:, ::-1] if orientation in (2, 4, 5, 7) else pixels
    np.testing.assert_array_equal(found, np.rot90(mirrored, turns[orientation]))


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_16_bits_are_scaled(channels: int, tmp_path: pathlib.Path) -> None:
    """Pillow alone cuts one channel of 16 bits off at 255: all white."""
    values = np.linspace(0, 65535, 8 * 6 * channels).astype(np.uint16).reshape(8, 6, channels)
    (tmp_path / "p.png").write_bytes(png_of_16_bits(values))
    with Image.open(tmp_path / "p.png") as image:
        found = np.asarray(as_seen(image)).astype(float)
    assert found.shape == (8, 6, 3) and np.abs(found - values / 257).max() <= 1


def png_of_16_bits(values: np.ndarray) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 3: 2}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_demo_classifies_a_photograph(tmp_path: pathlib.Path) -> None:
    included = pathlib.Path(minitvm.__file__).parent / "demo_data"
    with Image.open(included / "chelsea.png") as picture:
        picture.convert("L").save(tmp_path / "grey.png")
    found = lines(output("demo", str(included / "chelsea.png"), str(tmp_path / "grey.png")))
    assert re.fullmatch(r"chelsea\.png  \d+\.\d ms", found[0])
    assert [line.split("%  ")[1] for line in found[1:3]] == ["tiger cat", "Egyptian cat"]
    assert found[6].startswith("grey.png") and "cat" in found[7]
    text = "\n".join(found)
    assert re.search(r"^\d+ kernels \(\d+ from the cache\); best run \d+\.\d ms$", text, re.MULTILINE)
    assert re.search(r"^SimplifyInference +\d+\.\d  \d+ -> \d+$", text, re.MULTILINE)
    assert re.search(r"^nothing to do for: InferType, ", text, re.MULTILINE)


# --- help ---


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_every_option_and_an_example(name: str) -> None:
    text = output(name, "--help")
    options = [p for p in imported(COMMANDS[name][0]).params if p.param_type_name == "option"]
    missing = [opt for p in options for opt in p.opts if not re.search(rf"(?<![\w-]){re.escape(opt)}\b", text)]
    assert missing == []
    assert all(getattr(p, "help", None) for p in options)
    assert "Examples:" in text and f"  minitvm {name}" in text
    assert output(name, "-h") == text


def test_help_of_the_program_names_the_commands() -> None:
    text = output("--help")
    assert all(re.search(rf"^  {name}  ", text, re.MULTILINE) for name in COMMANDS)
    assert "First steps:" in text
    assert output("--version") == f"minitvm, version {minitvm.__version__}\n"


# --- errors ---

ERRORS: dict[str, tuple[Sequence[str], str]] = {
    "no such model": (("run", "nothing.onnx"), "there is no file nothing.onnx"),
    "open dimensions": (
        ("run", "open.onnx"),
        "open.onnx leaves dimensions of input 'x' open: ['N', 3, 'H', 8]\n"
        "  = hint: give them, for example --shape x:1x3x64x8",
    ),
    "several shapes": (
        ("run", "m.onnx", *SHAPE, *SHAPE),
        "--shape is given several times for one input\n  = hint: only 'compile' takes several shapes",
    ),
    "shapes of no input": (
        ("compile", "m.onnx", *SHAPE, *SHAPE, *SHAPE, "--shape", "y:1", "--shape", "y:2"),
        "--shape gives 2 shapes for 'y', and 3 for another input\n"
        "  = hint: give every input one shape, or as many as the others",
    ),
    "no such arrays": (
        ("run", "m.mtvm", "-i", "no.npz"),
        "there is no file no.npz\n  = hint: write one with numpy.savez('inputs.npz', NAME=array, ...)",
    ),
    "bad arrays": (
        ("run", "m.mtvm", "-i", "bad.npz"),
        "bad.npz is not an .npz of arrays\n  = hint: write one with numpy.savez('inputs.npz', NAME=array, ...)",
    ),
    "unknown target": (
        ("compile", "m.onnx", "--target", "llm", *SHAPE),
        "unknown target 'llm'\n  = hint: did you mean 'llvm'? known targets: llvm, interp, cuda",
    ),
    "unknown pass": (
        ("show", "m.onnx", "--after", "FuseOp", *SHAPE),
        "no pass 'FuseOp' ran\n  = hint: did you mean 'FuseOps'?",
    ),
    "show of a library": (
        ("show", "m.mtvm"),
        "a library keeps its code, not the way to it\n  = hint: give the .onnx file it was made from",
    ),
    "another shape than a library's": (
        ("run", "m.mtvm", "--shape", "x:2x3x8x8"),
        "the library is not for inputs of these shapes: x (2, 3, 8, 8)\n  | it is for x (1, 3, 8, 8)\n"
        "  = hint: compile it for them too: session.prepare({name: shape}) before session.save(path)",
    ),
    "a value that a library does not have": (
        ("run", "m.mtvm", "--value", "x:1"),
        "--value names 'x', and m.mtvm was not compiled for a value of it\n"
        "  = hint: values of inputs are arrays of --inputs",
    ),
    "not a photograph": (
        ("demo", "nowhere.jpg"),
        "nowhere.jpg does not exist\n  = hint: give the path of a photograph (PNG, JPEG, ...)",
    ),
}


@pytest.mark.parametrize(("arguments", "text"), ERRORS.values(), ids=list(ERRORS))
def test_an_error_says_what_and_what_next(arguments: Sequence[str], text: str) -> None:
    assert refusal(*arguments) == text


def test_an_unknown_kernel_lists_the_known() -> None:
    text = refusal("show", "m.onnx", "--stage", "loops", "--kernel", "k", *SHAPE)
    assert text.startswith("there is no kernel 'k'\n  = hint: kernels: fused_") and KERNEL in text


@pytest.mark.parametrize(
    ("option", "text"),
    [("--after", "no pass '' ran"), ("--diff", "no pass '' ran"), ("--kernel", "there is no kernel ''")],
)
def test_no_name_is_none(option: str, text: str) -> None:
    assert refusal("show", "m.onnx", option, "", *SHAPE).startswith(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("run", "m.onnx", "--shape", "x3"), "'x3' is not NAME:DIMS; write for example data:1x3x224x224"),
        (("run", "m.onnx", "--shape", "x:1xA"), "'x:1xA' is not NAME:DIMS; write for example data:1x3x224x224"),
        (("run",), "Missing argument 'MODEL'."),
        (("run", "m.onnx", "-O", "4"), "4 is not in the range 0<=x<=3."),
        (("run", "m.onnx", "--seed", "-1"), "-1 is not in the range x>=0."),
        (("run", "m.mtvm", "-t", "99999"), "99999 is not in the range 0<=x<=1024."),
        (("runn", "m.onnx"), "There is no command 'runn'; did you mean 'minitvm run'?"),
        (("lab", "verfy", "x"), "There is no command 'verfy'; did you mean 'minitvm lab verify'?"),
        (("zzz",), "There is no command 'zzz'."),
        (("m.onnx",), "There is no command 'm.onnx'; a command stands before a model: minitvm run m.onnx"),
        (
            ("show", "m.onnx", "--stage", "wasm"),
            "'wasm' is not one of 'graph', 'plain', 'loops', 'llvm', 'asm', 'cuda'.",
        ),
    ],
)
def test_wrong_usage(arguments: Sequence[str], text: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stdout == ""


def test_damaged_arrays(tmp_path: pathlib.Path) -> None:
    """Whatever zipfile, zlib and numpy say of them."""
    np.savez_compressed(tmp_path / "good.npz", x=_input())
    good = (tmp_path / "good.npz").read_bytes()
    for seed in range(300):
        rng, data = random.Random(seed), bytearray(good)
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "bad.npz").write_bytes(data)
        with contextlib.suppress(InputError):
            read_npz(tmp_path / "bad.npz")


def test_a_library_is_described_signed_and_trusted(tmp_path: pathlib.Path) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    key, path = ed25519.Ed25519PrivateKey.generate(), str(tmp_path / "m.mtvm")
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "public.pem").write_bytes(key.public_key().public_bytes(pem, public))
    trusting = ("--trusted-key", str(tmp_path / "public.pem"))
    output("compile", "m.mtvm", "-o", path)
    assert "m.mtvm, unsigned" in output("info", path)
    assert "is not signed" in refusal("run", path, *trusting)
    output("compile", "m.mtvm", "-o", path, "--sign", str(tmp_path / "key.pem"))
    described = output("info", path)
    assert key.public_key().public_bytes_raw().hex() in described
    for row in (
        "input       x: Tensor[(1, 3, 8, 8), float32]",
        "output      y: Tensor[(1, 4), float32]",
        "kernels     3",
    ):
        assert row in lines(described)
    output("run", path, *trusting)
    output("bench", path, "-n", "1", *trusting)


def run_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minitvm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_the_program_prints_an_error_without_a_traceback() -> None:
    done = run_program("run", "nothing.onnx")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: there is no file nothing.onnx\n")


def test_a_long_error_is_not_broken_into_lines() -> None:
    done = run_program("show", "m.onnx", "--kernel", "k", "--stage", "loops", *SHAPE, COLUMNS="40")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2


def test_the_program_is_silent_on_stderr() -> None:
    done = run_program("compile", "m.onnx", *SHAPE)
    assert (done.returncode, done.stderr) == (0, "")


def test_warnings_are_printed_as_such(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["minitvm", "--version"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit):
        minitvm.cli.main()
    warnings.showwarning("something [odd]", UserWarning, "file.py", 1)
    assert capsys.readouterr().err == "warning: something [odd]\n"
