"""Inputs of any name, through every door: what Python, numpy, the file formats and the terminal make of a name
must not matter."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import minitvm
from benchmarks import worker
from minitvm import relay
from minitvm.cli import cli
from minitvm.cli.common import read_npz, write_npz
from minitvm.errors import InputError
from minitvm.runtime.debug import GraphModuleDebug

Feeds: TypeAlias = Mapping[str, np.ndarray]

_CALLS = (
    minitvm.GraphModule.set_input,
    minitvm.GraphModule.run,
    minitvm.GraphModule.benchmark,
    GraphModuleDebug.run,
    minitvm.InferenceSession.run,
    minitvm.build,
    minitvm.compile,
    np.savez,
)
PARAMETERS = sorted({name for call in _CALLS for name in inspect.signature(call).parameters})
"""Whatever a function on the way calls its own parameters: ``self``, ``key``, ``value``, ``params``, ``number``, ..."""

OTHERS = [
    *("name", "file", "array", "query", "lambda", "None", "arr_0", "names", "x.npy", "x"),
    *(
        "input.1",
        "a b",
        "x:0",
        "/model/attn/key",
        "../x",
        "C:\\x",
        "0",
        "-1",
        "[/red]",
        "[bold]x",
        ":smile:",
        "{x}",
        "%x",
        '"',
    ),
    *("p0", "a0", "__nop", "main", "fused_nn_relu", "nn.relu", "entry", "é", "日本", "a\nb", "'", "x" * 300),
]


def model(names: list[str]) -> onnx.ModelProto:
    """``y``: the sum of ``(i + 1) * input i``, each of shape (2, 3)."""
    weights = [helper.make_tensor(f"weight {i}", TensorProto.FLOAT, [], [i + 1.0]) for i in range(len(names))]
    nodes = [helper.make_node("Mul", [name, f"weight {i}"], [f"product {i}"]) for i, name in enumerate(names)]
    nodes.append(helper.make_node("Sum", [f"product {i}" for i in range(len(names))], ["the sum"]))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3)) for name in names]
    result = helper.make_tensor_value_info("the sum", TensorProto.FLOAT, (2, 3))
    graph = helper.make_graph(nodes, "g", inputs, [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_for(names: list[str], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-9, 9, (2, 3)).astype("float32") for name in names}


def expected(feeds: Feeds) -> np.ndarray:
    return np.sum([(i + 1) * value for i, value in enumerate(feeds.values())], axis=0)


# --- the doors --------------------------------------------------------------------------------------------------


def running(library: minitvm.Library) -> minitvm.GraphModule:
    return minitvm.GraphModule(library["default"](minitvm.cpu()))


def by_dictionary(library: minitvm.Library, feeds: Feeds) -> np.ndarray:
    module = running(library)
    module.run(feeds)
    return module.outputs()[0]


def by_keyword(library: minitvm.Library, feeds: Feeds) -> np.ndarray:
    module = running(library)
    module.run(**feeds)
    return module.outputs()[0]


def set_one_by_one(library: minitvm.Library, feeds: Feeds) -> np.ndarray:
    module = running(library)
    for name, value in feeds.items():
        module.set_input(name, value)
        assert module.get_input(name).numpy().tolist() == value.tolist()
    module.run()
    return module.outputs()[0]


def set_by_keyword(library: minitvm.Library, feeds: Feeds) -> np.ndarray:
    module = running(library)
    module.set_input(None, None, **feeds)
    module.run()
    return module.outputs()[0]


def from_bytes(library: minitvm.Library, feeds: Feeds) -> np.ndarray:
    module = running(library)
    module.load_params(relay.save_param_dict(feeds))
    other = running(library)
    other.share_params(module, relay.save_param_dict(feeds))
    other.run()
    return other.outputs()[0]


def timed(library: minitvm.Library, feeds: Feeds) -> np.ndarray:
    module = running(library)
    module.benchmark(repeat=1, number=1, end_to_end=True, feeds=feeds)
    return module.outputs()[0]


def node_by_node(library: minitvm.Library, feeds: Feeds) -> np.ndarray:
    module = GraphModuleDebug(library["debug_create"]("default", minitvm.cpu()))
    module.run(feeds, number=2)
    module.run_quietly(feeds)
    return module.outputs()[0]


def as_the_benchmark_does(library: minitvm.Library, feeds: Feeds) -> np.ndarray:
    return worker._library_run(running(library))(feeds)[0]


DOORS: dict[str, Callable[[minitvm.Library, Feeds], np.ndarray]] = {
    f.__name__: f
    for f in (
        *(by_dictionary, by_keyword, set_one_by_one, set_by_keyword, from_bytes, timed, node_by_node),
        as_the_benchmark_does,
    )
}

NAMES = list(dict.fromkeys([*PARAMETERS, *OTHERS]))


@pytest.fixture(scope="module")
def library() -> minitvm.Library:
    return minitvm.compile(model(NAMES))


@pytest.mark.parametrize("door", DOORS)
def test_modules(door: str, library: minitvm.Library) -> None:
    feeds = feeds_for(NAMES)
    np.testing.assert_array_equal(DOORS[door](library, feeds), expected(feeds))


def test_files(library: minitvm.Library, tmp_path: pathlib.Path) -> None:
    feeds = feeds_for(NAMES)
    library.save(tmp_path / "m.mtvm")
    np.testing.assert_array_equal(by_dictionary(minitvm.load(tmp_path / "m.mtvm"), feeds), expected(feeds))
    worker.save_feeds(tmp_path / "m.onnx", feeds)
    assert all((worker.read_feeds(str(tmp_path / "m.onnx"))[name] == feeds[name]).all() for name in NAMES)


@pytest.mark.parametrize("level", range(4))
def test_sessions(level: int) -> None:
    feeds = feeds_for(NAMES)
    for order in (1, -1):  # the order of the dictionary is not the order of the model
        (found,) = minitvm.InferenceSession(model(NAMES), opt_level=level).run(None, dict(list(feeds.items())[::order]))
        np.testing.assert_array_equal(found, expected(feeds))


def test_evaluate() -> None:
    feeds = feeds_for(NAMES)
    module, params = relay.frontend.from_onnx(model(NAMES))
    run = relay.create_executor("graph", module, params=params).evaluate()
    for result in (run(**feeds), run(*feeds.values())):
        np.testing.assert_array_equal(result.numpy(), expected(feeds))


def test_graph_text() -> None:
    module, _ = relay.frontend.from_onnx(model(NAMES))
    assert minitvm.ir.structural.structural_equal(minitvm.ir.parser.parse_module(str(module)), module)


def test_command_line(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(NAMES), "m.onnx")
    write_npz(tmp_path / "in.npz", feeds_for(NAMES))
    assert list(read_npz(tmp_path / "in.npz")) == NAMES
    for command in (
        *("info m.onnx", "compile m.onnx", "run m.mtvm -i in.npz -o out.npz", "run m.onnx -i in.npz --profile"),
        *("bench m.onnx -n 1", "show m.onnx", "show m.onnx --stage loops", "show m.onnx --after InferType"),
    ):
        done = CliRunner().invoke(cli, command.split(), prog_name="minitvm")
        assert done.exception is None, (command, done.exception)
        if command == "info m.onnx":
            assert [name for name in NAMES if name not in done.stdout and len(name) < 100 and "\n" not in name] == []
    np.testing.assert_array_equal(read_npz(tmp_path / "out.npz")["the sum"], expected(feeds_for(NAMES)))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=4, unique=True))
def test_any_text(names: list[str]) -> None:
    feeds = feeds_for(names)
    session = minitvm.InferenceSession(model(names), num_threads=1)
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected(feeds))
    [library] = session.libraries
    for door in (by_keyword, set_one_by_one, from_bytes):
        np.testing.assert_array_equal(door(library, feeds), expected(feeds))


# --- what is refused --------------------------------------------------------------------------------------------


def message(act: Callable[..., object], *arguments: Any, **named: Any) -> str:
    with pytest.raises(InputError) as caught:
        act(*arguments, **named)
    return str(caught.value)


def test_an_input_given_twice() -> None:
    module, feeds = running(minitvm.compile(model(["key", "value"]))), feeds_for(["key", "value"])
    text = "input 'key' is given twice, in the dictionary and by keyword"
    for act in (module.run, module.set_input):
        assert message(act, feeds, key=feeds["key"]) == text
    assert message(module.set_input, "key", feeds["key"], key=feeds["key"]) == text
    assert message(module.benchmark, feeds=feeds, key=feeds["key"]) == text


def test_inputs_that_are_no_dictionary() -> None:
    module = running(minitvm.compile(model(["self"])))
    assert message(module.run, [1, 2]) == (
        "the inputs are a list, not a dictionary\n  = hint: run({name: array, ...}), run(name=array)"
    )
    assert message(module.set_input, {"self": np.zeros((2, 3))}).startswith("input 'self' is float64, the model")
    assert message(module.run, {3: np.zeros((2, 3))}) == "the model has no input 3\n  = hint: its inputs are: self"
    assert message(module.run, {}) == (
        "input not set: self\n  = hint: give every input, in run(name=array) or by set_input(name, array)"
    )
