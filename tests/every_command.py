"""Commands as click lists them, and everything that can be seen of a run of one: also what it does and does not say."""

from __future__ import annotations

import contextlib
import pathlib
import webbrowser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import helper, numpy_helper

import minitvm
from minitvm import models
from minitvm.cli import building, check, cli, common, demo, profile, run, workers
from minitvm.codegen.llvm.backend import LlvmBackend
from minitvm.driver.kernels import KernelCompiler
from minitvm.errors import MiniTVMError
from minitvm.frontend import from_onnx
from minitvm.lab import check_all, mutation, ordering, rule_check, subject
from minitvm.passes.manager import PassContext
from minitvm.runtime.library import Library, load
from minitvm.viewer import serve
from tests import small_decoders

MINE = """
import numpy as np
from minitvm import relay
from minitvm.ir.pattern import call, value
from minitvm.passes import rule

print("mine.py runs")

@rule(call("nn.relu", value("x")))
def dropped(x):
    return x
"""
MUTATED = "def half(x):\n    return x // 2 if x > 0 and x % 2 == 0 else None\n"


def _commands(group: click.Group = cli, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(_commands())


def _save(path: pathlib.Path, shape: tuple[int, ...], *nodes: onnx.NodeProto) -> None:
    inputs = [helper.make_tensor_value_info("x", 1, ["N", 4]), helper.make_tensor_value_info("n", 1, [])]
    values = np.random.default_rng(1).normal(size=shape).astype("float32")
    weights = [numpy_helper.from_array(values, "w")]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, None)], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def fill(folder: pathlib.Path) -> None:
    """What the commands read."""
    node = helper.make_node
    relu, scale = node("Relu", ["x"], ["a"], "act"), node("Mul", ["a", "n"], ["b"], "scaled")
    plain = (relu, scale, node("Add", ["b", "w"], ["c"], "sum"), node("Softmax", ["c"], ["y"], "soft"))
    _save(folder / "m.onnx", (64, 1, 4), *plain)
    _save(folder / "one.onnx", (4, 16), relu, scale, node("MatMul", ["b", "w"], ["y"], "product"))
    _save(folder / "python.onnx", (1,), relu, node("Cast", ["a"], ["z"], to=8), node("Cast", ["z"], ["y"], to=1))
    minitvm.compile(folder / "m.onnx", shape_dict={"x": (1, 4)}).save(folder / "m.mtvm")
    np.savez(folder / "x.npz", x=np.ones((3, 4), np.float32), n=np.float32(2))
    for name, text in {"mine.py": MINE, "mutated.py": MUTATED, "taken.py": "", "empty": ""}.items():
        (folder / name).write_text(text)
    for name in ("test_mutated.py", "test_other.py"):
        (folder / name).write_text("import mutated\n")
    onnx.save(small_decoders.sums(), folder / "sums.onnx")
    for name, letter in {"tokenizer.json": "w", "other.json": "v"}.items():
        (folder / name).write_text(small_decoders.tokenizer(letter))


class Log(list[str]):
    """What commands do that they do not say."""

    def watch(
        self, patch: pytest.MonkeyPatch, place: Any, name: str, said: Callable[..., str], instead: Any = None
    ) -> None:
        """``place.name`` is noted before it is called, or ``instead`` of it."""
        real = instead or getattr(place, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.append(said(*args, **kwargs))
            return real(*args, **kwargs)

        patch.setattr(place, name, noted)


def watched(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Builds, executors and timings are noted; what takes long is left out."""
    log = Log()

    def built(_: Any, backend: Any, *__: Any, **___: Any) -> str:
        context = PassContext.current()
        return (
            f"target {backend.target}, level {context.opt_level}, {backend.machine.threads} threads, {context.config}"
        )

    note = lambda *args, **kwargs: log.watch(monkeypatch, *args, **kwargs)  # noqa: E731
    note(common, "be_quiet", lambda: "quiet", lambda: None)
    note(KernelCompiler, "__init__", built)
    note(KernelCompiler, "_lowered", lambda _, __, group: f"group of {[str(p.type) for p in group.params]}")
    note(PassContext, "__init__", lambda _, level=2, *__, **kwargs: f"level {kwargs.get('opt_level', level)}")
    note(Library, "_create", lambda _, device=None, threads=None: f"runs on {device} with {threads} threads")
    for place in (models, subject, check_all):
        note(place, "from_onnx", lambda *_, value_dict=None, **__: f"values {value_dict}")
    note(building, "random_inputs", lambda module, seed: f"seed {seed}, {module.input_types()}")
    for place in (run, ordering):
        note(place, "side_by_side", lambda _, rounds: f"{rounds} rounds")
    note(profile, "profile_module", lambda _, __, ___, repeats, warmup, *____: f"{repeats} repeats, {warmup} warmup")
    note(check, "prove", lambda *_, reduction, **__: f"{reduction} reduction")
    note(mutation, "_run", lambda _, __, tests, ___: f"pytest {' '.join(tests)}", lambda *_: 0)
    note(mutation, "ThreadPoolExecutor", lambda jobs: f"{jobs} at a time")
    verdict = lambda rule, tries, seed: rule_check.Verdict(rule)  # noqa: E731
    note(rule_check, "verify_rule", lambda rule, tries, seed: f"{tries} tries, seed {seed}", verdict)
    note(workers, "ProcessPoolExecutor", lambda n, **_: f"{n} workers", lambda n, **_: ThreadPoolExecutor(n))
    monkeypatch.setattr(webbrowser, "open", str)
    server = lambda _, watched, port: f"port {port}, watches {' '.join(map(str, watched))}"  # noqa: E731
    note(serve, "Server", server, lambda *_: _Served())
    monkeypatch.setenv("MINITVM_NUM_THREADS", "1")
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    monkeypatch.setattr(demo, "from_onnx", lambda *_: from_onnx(_classifier()))
    monkeypatch.setattr(LlvmBackend, "measured", lambda self: self.machine.rates(self.machine.threads))
    return log


class _Served(contextlib.nullcontext["_Served"]):
    address = ""

    def __enter__(self) -> _Served:
        return self

    def run(self) -> None: ...


def _classifier() -> onnx.ModelProto:
    """As large as its inputs and results have to be."""
    image, result = (
        helper.make_tensor_value_info(*one) for one in (("image", 1, [1, 3, 224, 224]), ("y", 1, [1, 1000]))
    )
    weight = numpy_helper.from_array(np.ones((3, 1000), np.float32), "w")
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    return helper.make_model(
        helper.make_graph(nodes, "g", [image], [result], [weight]), opset_imports=[helper.make_opsetid("", 17)]
    )


def invoke(command: str, words: str) -> Result:
    """A run that ends in an exit status, or in an error that is printed without a traceback."""
    done = CliRunner().invoke(cli, [*command.split(), *words.split()], prog_name="minitvm")
    if done.exception is not None and not isinstance(done.exception, (SystemExit, MiniTVMError, OSError)):
        raise done.exception
    assert done.exit_code in (0, 1, 2), (command, words, done.output)
    return done


def seen(command: str, words: str, log: Log) -> str:
    """Everything that can be seen of a run."""
    log.clear()
    before = {path: path.stat().st_mtime_ns for path in pathlib.Path().rglob("*")}
    done = invoke(command, words)
    written = [path for path in pathlib.Path().rglob("*") if path.stat().st_mtime_ns != before.get(path)]
    files = [f"wrote {path}" for path in written]
    libraries = [text for path in written if path.suffix == ".mtvm" for text in load(path).serves]
    return "\n".join([done.output, str(done.exception), f"exit {done.exit_code}", *files, *libraries, *log])
