"""The command line where something goes wrong around it, and options that would do nothing."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from functools import partial

import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

from minitvm import config
from minitvm.cli import cli
from minitvm.errors import ConfigError, PassError
from minitvm.passes import PassContext
from minitvm.passes.instrument import PrintIR


def _save(path: pathlib.Path, *shapes: list[int | str]) -> pathlib.Path:
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


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_has_no_traceback() -> None:
    """Python drops an interrupt that arrives in a destructor or a callback, so another one follows."""
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
    command = [sys.executable, "-m", "minitvm", "demo"]
    running = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, preexec_fn=heard)
    time.sleep(0.4)
    while running.poll() is None:
        running.send_signal(signal.SIGINT)
        time.sleep(0.5)
    assert running.returncode != 0 and "Traceback" not in running.communicate(timeout=60)[1]


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
    ("arguments", "message"),
    [
        (["run", "--trace", "t"], "--trace does nothing without --profile"),
        (["show", "--after", "FuseOps", "--stage", "loops"], "--stage does nothing beside --after"),
        (["show", "--after", "FuseOps", "--before", "FuseOps"], "--after and --before say different things"),
        (["show", "--why", "*", "--kernel", "k"], "--kernel does nothing beside --why"),
        (["show", "--stage", "asm", "--constants"], "--constants does nothing beside --stage"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path: pathlib.Path, arguments: list[str], message: str) -> None:
    command, *rest = arguments
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(cli, [command, str(_save(tmp_path / "m.onnx", [2])), *rest], catch_exceptions=False)


def test_passes_to_print_after_are_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("FuseOp", "Fuse*"):
        with pytest.raises(PassError, match="PrintIR: there is no pass"):
            PassContext(instruments=[PrintIR(after=[wrong])])
    PassContext(instruments=[PrintIR(before=["*"], after=["FuseOps"])])
    monkeypatch.setenv("MINITVM_PRINT_IR", "FuseOps,FoldConstants")
    with pytest.raises(PassError, match="MINITVM_PRINT_IR: there is no pass 'FoldConstants'"):
        _ = PassContext().instruments
