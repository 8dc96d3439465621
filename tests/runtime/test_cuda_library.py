"""Libraries for a GPU, built, saved and loaded where there is none: no driver is asked for anything."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from nvrtc import needs_nvrtc
from small_model import Model, sample, small_module
from small_workloads import small

import minitvm
from minitvm import relay
from minitvm.cli import cli
from minitvm.errors import CompilerError, TargetError
from minitvm.runtime import archive
from minitvm.runtime.library import Library
from minitvm.runtime.nvidia import image


@pytest.fixture(scope="module")
def library() -> Library:
    module, params = small_module()
    return minitvm.build(module, "cuda -arch=sm_80", params)


@needs_nvrtc
def test_an_image_is_its_launches_and_a_cubin(library: Library) -> None:
    for symbol, data in library.artifact.objects.items():
        launches, code = image.unpack(data)
        text = library.report.kernel(symbol).text("cuda")
        assert launches == image.records(text) and code[:4] == b"\x7fELF"
        assert text.count('extern "C" __global__') == len(launches) >= 1
        for launch in launches:
            assert f"\n{launch.function}(" in text and 0 < np.prod(launch.block) <= 1024


@needs_nvrtc
def test_launches_hand_on_memory_of_the_workspace() -> None:
    """Packing and multiplying: helpers stand once in the source, what is packed is not the group's to give."""
    x, y = relay.var("x", shape=(40, 20)), relay.var("y", shape=(27, 20))
    built = minitvm.build(relay.Function([x, y], relay.nn.relu(relay.nn.matmul(x, y, transpose_b=True))), "cuda")
    ((symbol, data),) = built.artifact.objects.items()
    launches, _ = image.unpack(data)
    used = [offset for launch in launches for offset in launch.params if offset < 0]
    needs = built.function_metadata[symbol]
    assert bool(used) == bool(needs["workspace"]) and needs["workspace_per_thread"] == 0
    assert all((-1 - offset) % 256 == 0 and -1 - offset < needs["workspace"] for offset in used)
    assert {n for launch in launches for n in launch.params if n >= 0} == {0, 1, 2}


@needs_nvrtc
def test_images_are_kept_on_disk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path))
    x = relay.var("x", shape=(3, 5))
    found = [minitvm.build(relay.Function([x], relay.tanh(x)), f"cuda -arch=sm_{n}") for n in (80, 80, 90)]
    assert [library.report.cache_misses > 0 for library in found] == [True, False, True]
    objects = [library.artifact.objects for library in found]
    assert objects[0] == objects[1] != objects[2]


FROM_THE_CACHE = """
import sys, minitvm
from minitvm import relay
x = relay.var("x", shape=(3, 5))
library = minitvm.build(relay.Function([x], relay.tanh(x)), "cuda -arch=sm_80")
print(library.report.cache_misses, "cuda.bindings" in sys.modules)
"""


@needs_nvrtc
def test_what_is_in_the_cache_needs_no_nvrtc(tmp_path: pathlib.Path) -> None:
    """Its package says which one made an image; where it comes with a toolkit, it is opened and asked."""
    try:
        importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("NVRTC is here without its package")
    environment = {**os.environ, "MINITVM_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", FROM_THE_CACHE]
    said = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [done.stdout.split()[1] for done in said] == ["True", "False"]
    assert said[1].stdout.startswith("0 ") and not said[0].stdout.startswith("0 ")


IN_A_NEW_PROCESS = """
import sys, minitvm
library = minitvm.load(sys.argv[1])
assert library.target == "cuda -arch=sm_80" and library.artifact.cpu.name == "sm_80"
assert not [m for m in sys.modules if m.startswith(("llvmlite", "cuda", "minitvm.codegen", "minitvm.passes"))]
"""


@needs_nvrtc
def test_a_library_is_saved_and_loads_anywhere(library: Library, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.mtvm"
    library.save(path)
    assert archive.to_bytes(minitvm.load(path).artifact) == path.read_bytes()
    subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS, path], check=True)
    told = CliRunner().invoke(cli, ["info", str(path)]).stdout
    assert "cuda -arch=sm_80, sm_80" in told


@needs_nvrtc
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_whole_models_are_built(name: str) -> None:
    module, params = small(name)
    built = minitvm.build(module, "cuda -arch=sm_90", dict(params), opt_level=3)
    assert not built.host_calls and built.artifact.entry


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    x = relay.var("x", shape=(3, 5))
    with pytest.raises(CompilerError) as error:
        minitvm.build(relay.Function([x], relay.tanh(x)), "cuda -arch=sm_90")
    assert str(error.value) == (
        "NVRTC is not installed, so CUDA kernels cannot be compiled\n"
        "  = hint: pip install cuda-bindings nvidia-cuda-nvrtc"
    )


def test_a_library_of_another_kind_of_device(model: Model) -> None:
    with pytest.raises(TargetError, match=r"^the library was compiled for 'llvm', it cannot run on cuda\(0\)\n"):
        model[2]["default"](minitvm.cuda(0))
    executor = minitvm.GraphModule(model[2]["default"](minitvm.cpu(0)))
    executor.run(x=sample(0))
