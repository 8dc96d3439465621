"""The command line where something goes wrong around it, and what its options come to."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

from minitvm import config
from minitvm.cli import cli
from minitvm.errors import ConfigError, PassError
from minitvm.passes import PassContext
from minitvm.passes.instrument import PrintIR
from minitvm.runtime.library import Library


def _save(path: pathlib.Path, *shapes: Sequence[int | str | None]) -> pathlib.Path:
    inputs = [helper.make_tensor_value_info(f"in_{i}", 1, shape) for i, shape in enumerate(shapes)]
    nodes = [helper.make_node("Relu", [x.name], [f"out_{i}"]) for i, x in enumerate(inputs)]
    outputs = [helper.make_tensor_value_info(f"out_{i}", 1, shape) for i, shape in enumerate(shapes)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)), str(path))
    return path


def _run(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minitvm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("place", ["no/such/folder/m.mtvm", "/dev/full"])
def test_what_cannot_be_written_is_one_line(tmp_path: pathlib.Path, place: str) -> None:
    if place.startswith("/") and not pathlib.Path(place).exists():
        pytest.skip("there is no /dev/full here")
    model = _save(tmp_path / "m.onnx", [2])
    found = _run("profile", str(model), "-n", "1", "--trace", place, cwd=tmp_path)
    assert found.returncode == 1 and "Traceback" not in found.stderr and found.stderr.startswith("error: ")


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with pathlib.Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "minitvm", "info"]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 1 and "Traceback" not in found.stderr and "No space left" in found.stderr


_INTERRUPTED_IN = {
    "import": (
        "del sys.modules['minitvm.cli']; sys.meta_path.insert(0, type('Finder', (), {'find_spec': interrupted}))",
        -signal.SIGINT,
    ),
    "command": ("minitvm.cli.imported = interrupted", 130),
    "destructor": (
        "Lost = type('Lost', (), {'__del__': interrupted}); minitvm.cli.imported = lambda _: Lost() and 0",
        -signal.SIGINT,
    ),
}


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("place", _INTERRUPTED_IN)
def test_an_interrupt_ends_without_a_word(place: str) -> None:
    prepare, status = _INTERRUPTED_IN[place]
    program = f"""
import signal, sys
import minitvm.cli
from minitvm.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
def interrupted(*_):
    signal.raise_signal(signal.SIGINT)
{prepare}
sys.argv = ["minitvm", "demo"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_a_missing_home_turns_the_cache_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: pathlib.Path) -> pathlib.Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MINITVM_CACHE_DIR", raising=False)
    monkeypatch.setattr(pathlib.Path, "expanduser", nobody)
    assert config.cache_dir() is None


def test_all_open_inputs_are_named_at_once_and_near_names_suggested(tmp_path: pathlib.Path) -> None:
    model = str(_save(tmp_path / "m.onnx", ["n", 2], [3], ["m", 4]))
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(cli, ["show", model], catch_exceptions=False)
    assert "input 'in_0' open: ['n', 2] and input 'in_2' open: ['m', 4]" in caught.value.message
    assert caught.value.hint == "give them, for example --shape in_0:1x2 --shape in_2:1x4"
    with pytest.raises(ConfigError, match="--shape names 'in0', which is no input") as wrong:
        CliRunner().invoke(cli, ["show", model, "--shape", "in0:1x2"], catch_exceptions=False)
    assert "'in_0'" in str(wrong.value.hint)


@pytest.mark.parametrize(
    ("shapes", "given", "found"),
    [
        (([None, 2], [3], [None, 4]), [], "(1, 2) (3,) (1, 4)"),
        ((["n", 2], ["n"]), [], "(1, 2) (1,)"),
        ((["n", 2], ["n"]), ["--shape", "in_1:5"], "(5, 2) (5,)"),
        ((["n", "s"], ["s", "n"]), ["--shape", "in_0:3x4"], "(3, 4) (4, 3)"),
        ((["n", "s"], ["b", "s"]), ["--shape", "in_0:3x4"], "(3, 4) (1, 4)"),
        ((["n"], ["n"]), [], None),
        ((["n", "s"],), [], None),
        (([2, "s"],), [], None),
    ],
)
def test_shapes_are_asked_for_where_more_than_the_batch_is_open(
    tmp_path: pathlib.Path, shapes: tuple[list[int | str | None], ...], given: list[str], found: str | None
) -> None:
    done = CliRunner().invoke(cli, ["run", str(_save(tmp_path / "m.onnx", *shapes)), *given])
    if found is None:
        assert isinstance(done.exception, ConfigError) and "leaves dimensions of input" in done.exception.message
    else:
        assert " ".join(re.findall(r"^out_\d +(\(.*?\))", done.stdout, re.MULTILINE)) == found
        assert ("a batch of 1: --shape in_" in done.stderr) == ("(1, " in found)


@pytest.mark.parametrize(("shapes", "found"), [((["n", 2], ["n"]), "(1, 2) (1,)"), ((["n", "s"],), None)])
def test_an_open_library_is_taken_as_its_model_is(
    tmp_path: pathlib.Path, shapes: tuple[list[int | str], ...], found: str | None
) -> None:
    model, library = _save(tmp_path / "m.onnx", *shapes), tmp_path / "m.mtvm"
    CliRunner().invoke(cli, ["compile", str(model), "-o", str(library)], catch_exceptions=False)
    for command in ("run", "bench", "profile"):
        done = CliRunner().invoke(cli, [command, str(library), *["-n", "1"] * (command != "run")])
        if found is None:
            assert isinstance(done.exception, ConfigError) and done.exception.hint
            assert "m.mtvm leaves dimensions of input 'in_0' open: ['n', 's']" in done.exception.message
            assert "--shape in_0:1x1" in done.exception.hint
        else:
            assert done.exception is None and "a batch of 1: --shape in_0:1x2 --shape in_1:1" in done.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("compile m.onnx", "-o"),
        ("tune m.onnx", "-o"),
        ("run m.onnx", "-o"),
        ("view m.onnx --no-run", "-o"),
        ("profile m.onnx", "--trace"),
        ("lab levels m.onnx", "--csv"),
        ("lab orders m.onnx --passes FuseOps", "--plot"),
    ],
)
def test_what_is_read_is_never_written_over(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = _save(tmp_path / "m.onnx", [2]).read_bytes()
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    for place, message in (
        ("./m.onnx", "is what is read"),
        ("link.onnx", "is what is read"),
        (".", "is a folder"),
        ("no/m.x", "there is no folder no"),
    ):
        with pytest.raises(ConfigError, match=message):
            CliRunner().invoke(cli, [*command.split(), option, place], catch_exceptions=False)
    assert (tmp_path / "m.onnx").read_bytes() == before


def test_a_library_is_not_compiled_onto_itself(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _save(tmp_path / "m.onnx", [2])
    assert CliRunner().invoke(cli, ["compile", "m.onnx"]).exit_code == 0
    with pytest.raises(ConfigError, match=r"m\.mtvm is what is read"):
        CliRunner().invoke(cli, ["compile", "m.mtvm"], catch_exceptions=False)
    assert CliRunner().invoke(cli, ["run", "m.mtvm", "-o", "y.npz"]).exit_code == 0
    with np.load("y.npz") as found:
        assert found.files == ["out_0"]


def test_values_need_no_shapes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a value is not open, and what is open beside it is a batch; the library is for the value."""
    monkeypatch.chdir(tmp_path)
    x, axes = helper.make_tensor_value_info("x", 1, ["n", 3]), helper.make_tensor_value_info("axes", 7, ["k"])
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    graph = helper.make_graph(nodes, "g", [x, axes], [helper.make_tensor_value_info("y", 1, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    for value, shape in (("axes:1", "(1,)"), ("axes:0,1", "()")):
        assert CliRunner().invoke(cli, ["compile", "m.onnx", "--value", value]).exit_code == 0
        for given in ([], ["--value", value], ["--shape", "x:1x3"]):
            assert f" {shape} " in CliRunner().invoke(cli, ["run", "m.mtvm", *given]).stdout
        wrong = CliRunner().invoke(cli, ["run", "m.mtvm", "--value", "axes:0"])
        assert wrong.exit_code == 1 and "the library is not for" in str(wrong.exception)

    shapes = ["--shape", "x:1x3", "--shape", "x:2x3"]
    assert CliRunner().invoke(cli, ["compile", "m.onnx", *shapes, "--value", "axes:1"]).exit_code == 0
    assert " (2,) " in CliRunner().invoke(cli, ["run", "m.mtvm", "--shape", "x:2x3"]).stdout


def test_a_value_that_no_shape_depends_on(tmp_path: pathlib.Path) -> None:
    """Is no input of a library for one shape, and refused of one for several."""
    x, n = helper.make_tensor_value_info("x", 1, ["b", 3]), helper.make_tensor_value_info("n", 1, [])
    nodes = [helper.make_node("Mul", ["x", "n"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x, n], [helper.make_tensor_value_info("y", 1, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    command = ["compile", str(tmp_path / "m.onnx"), "--value", "n:2", "--shape", "x:1x3"]
    assert CliRunner().invoke(cli, command).exit_code == 0
    told = CliRunner().invoke(cli, ["info", str(tmp_path / "m.mtvm")]).stdout
    assert re.findall(r"^input +(\w+)", told, re.MULTILINE) == ["x"]
    wrong = CliRunner().invoke(cli, [*command, "--shape", "x:2x3"])
    assert isinstance(wrong.exception, ConfigError) and wrong.exception.message.startswith("--value n: no shape")


def test_shapes_without_numbers_are_traced(tmp_path: pathlib.Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [4])], [helper.make_tensor_value_info("y", 7, None)]
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "m.onnx"), "--profile", "--trace", str(tmp_path / "t")])
    assert done.exit_code == 0 and (tmp_path / "t" / "trace.json").read_text().startswith("{")


@pytest.mark.parametrize("value", ["axes:{},1", "axes:99999999999999999999", "axes:1,2,3.5,'a'"])
def test_values_of_another_kind_are_a_line(tmp_path: pathlib.Path, value: str) -> None:
    axes = helper.make_tensor_value_info("axes", 7, [2])
    nodes = [helper.make_node("Identity", ["axes"], ["y"])]
    graph = helper.make_graph(nodes, "g", [axes], [helper.make_tensor_value_info("y", 7, [2])])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "m.onnx"), "--value", value])
    assert isinstance(done.exception, ConfigError) and done.exception.message.startswith("--value axes: ")


def test_profile_runs_on_the_threads_that_are_asked_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    real = Library.instance
    monkeypatch.setattr(Library, "instance", lambda *args: threads.append(args[2]) or real(*args))
    model = str(_save(tmp_path / "m.onnx", [2]))
    assert CliRunner().invoke(cli, ["run", model, "--profile", "-t", "3"]).exit_code == 0
    assert threads == [3]


def test_experiments_end_in_1_where_a_way_is_refused(tmp_path: pathlib.Path) -> None:
    model = str(_save(tmp_path / "m.onnx", [2]))
    assert CliRunner().invoke(cli, ["lab", "levels", model, "--rounds", "0"]).exit_code == 0
    wrong = CliRunner().invoke(cli, ["lab", "levels", model, "--rounds", "0", "--target", "nonsense"])
    assert wrong.exit_code == 1 and "unknown target 'nonsense'" in str(wrong.exception)


def test_names_that_a_terminal_has_no_letters_for(tmp_path: pathlib.Path) -> None:
    inputs = [helper.make_tensor_value_info("größe", 1, [2])]
    nodes = [helper.make_node("Relu", ["größe"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", 1, [2])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)), tmp_path / "m.onnx")
    done = _run("info", str(tmp_path / "m.onnx"), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "gr\\xf6\\xdfe" in done.stdout, done.stderr


def test_passes_to_print_after_are_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("FuseOp", "Fuse*"):
        with pytest.raises(PassError, match="PrintIR: there is no pass"):
            PassContext(instruments=[PrintIR(after=[wrong])])
    PassContext(instruments=[PrintIR(before=["*"], after=["FuseOps"])])
    monkeypatch.setenv("MINITVM_PRINT_IR", "FuseOps,FoldConstants")
    with pytest.raises(PassError, match="MINITVM_PRINT_IR: there is no pass 'FoldConstants'"):
        _ = PassContext().instruments
