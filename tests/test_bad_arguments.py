"""Arguments of the wrong kind at every public call, and files whose parts contradict each other, word for word."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper
from patience import PATIENCE

import minitvm
from minitvm import relay
from minitvm.errors import ConfigError, FrontendError, InputError, MiniTVMError, PassError
from minitvm.frontend import from_onnx
from minitvm.ir.arrays import aligned_empty
from minitvm.ir.builder import call_op
from minitvm.ir.expr import Function, Module
from minitvm.ir.parser import parse_module
from minitvm.passes.verify import compare_numbers
from minitvm.runtime.cache import KernelCache
from minitvm.runtime.executor import create
from minitvm.runtime.library import Library
from minitvm.runtime.param_dict import load_arrays, save_param_dict

X = np.random.default_rng(43).normal(size=(2, 3)).astype("float32")


def image() -> relay.Var:
    return relay.var("x", shape=(1, 3, 8, 8))


@pytest.fixture(scope="module")
def library() -> Library:
    x = relay.var("x", shape=(2, 3))
    return minitvm.build(Module.from_expr(relay.nn.relu(relay.nn.softmax(x))))


def two_results(x: relay.Expr) -> relay.Function:
    return relay.Function([x], relay.Tuple([relay.nn.relu(x), relay.exp(x)]))


def running(library: Library) -> minitvm.GraphModule:
    return minitvm.GraphModule(library["default"](minitvm.cpu()))


Act = Callable[[Library], object]

CASES: dict[str, tuple[Act, str]] = {
    "a target that is not closed": (
        lambda _: minitvm.Target.parse("llvm '"),
        'target "llvm \'" cannot be read: No closing quotation\n'
        '  = hint: write it as "llvm -mcpu=NAME -mattr=+FEATURE"',
    ),
    "an option twice": (
        lambda _: minitvm.Target.parse("llvm -mcpu=znver3 -mcpu=znver4"),
        "option -mcpu of target 'llvm' is given twice\n  = hint: keep one of -mcpu=znver3 and -mcpu=znver4",
    ),
    "an option without a value": (
        lambda _: minitvm.Target.parse("llvm -mcpu="),
        "option -mcpu of target 'llvm' has no value\n  = hint: write -mcpu=VALUE",
    ),
    "no module": (
        lambda _: minitvm.build(image()),
        "build takes a Module or a Function, not a Var\n"
        "  = hint: minitvm.compile(model) for ONNX models; Module.from_expr(body) for an expression",
    ),
    "parameters as a list": (
        lambda _: minitvm.build(Module.from_expr(relay.nn.relu(image())), params=[X]),
        "params is a list, not a dictionary of arrays by name",
    ),
    "passes that are no list": (
        lambda _: minitvm.PassContext(disabled_pass=3),
        "disabled_pass is 3, not a list of passes' names",
    ),
    "options that are no dictionary": (
        lambda _: minitvm.PassContext(config=[1]),
        "config is a list, not a dictionary of options",
    ),
    "an instrument that is none": (
        lambda _: minitvm.PassContext(instruments=["timing"]),
        "instruments hold a str, which is no PassInstrument\n  = hint: instruments=[minitvm.passes.PassTiming()]",
    ),
    "an attribute of another kind": (
        lambda _: relay.nn.softmax(image(), axis=1.5),
        "nn.softmax: attribute 'axis' is 1.5, expected a whole number",
    ),
    "a tuple for a tensor": (
        lambda _: relay.nn.relu([image()]),
        "nn.relu: takes tensors, not (Tensor[(1, 3, 8, 8), float32],)\n  | nn.relu(%data)\n"
        "  |   %data: (Tensor[(1, 3, 8, 8), float32],)",
    ),
    "a constant that is text": (
        lambda _: relay.const("three"),
        "a str is no tensor\n  = hint: constants are numbers, booleans and arrays of them",
    ),
    "a shape that is none": (
        lambda _: relay.var("x", shape=(2.5, 3)),
        "(2.5, 3) is no shape\n  = hint: a shape is a tuple of whole numbers, symbols' names and None",
    ),
    "a body that is a number": (
        lambda _: relay.Function([image()], 3),
        "a function's body are expressions, not int\n  = hint: minitvm.relay.const(value)",
    ),
    "text that is bytes": (lambda _: parse_module(b"def"), "a module is text, not bytes"),
    "a path that is a number": (
        lambda _: minitvm.load(3),
        "3 is no path of a library file\n  = hint: libraries are files: lib.save('model.mtvm')",
    ),
    "a device by name": (lambda lib: lib["default"]("cpu"), "'cpu' is no device\n  = hint: use minitvm.cpu(0)"),
    "a module of nothing": (
        lambda _: minitvm.GraphModule(None),
        "a GraphModule is made of what a library creates, not of a NoneType\n"
        '  = hint: GraphModule(library["default"](minitvm.cpu()))',
    ),
    "an array without a name": (
        lambda lib: running(lib).set_input(None, X),
        "an array without the name of its input\n  = hint: set_input(name, array)",
    ),
    "nothing for an input": (
        lambda lib: running(lib).set_input("x", None),
        "input 'x' is None\n  = hint: give an array of float32",
    ),
    "nothings for an input": (
        lambda lib: running(lib).set_input("x", [[None] * 3] * 2),
        "input 'x' is a list that is no array of float32: not all of its values are numbers of that kind\n"
        "  = hint: give a numpy array",
    ),
    "an output by text": (
        lambda lib: running(lib).get_output("0"),
        "the model has no output number '0'\n  = hint: it has 1",
    ),
    "another graph": (
        lambda lib: create(b"\xff", lib, minitvm.cpu()),
        "the graph JSON is not the one that the library was built from\n"
        "  = hint: save lib.graph_json and the library together",
    ),
    "parameters that are text": (
        lambda _: load_arrays("text"),
        "the parameters are a str, not bytes\n  = hint: pass what save_param_dict returned",
    ),
    "parameters that cannot be saved": (
        lambda _: save_param_dict({"w": np.array(["a"])}),
        "parameter 'w' cannot be saved: it is str32\n"
        "  = hint: parameters are arrays of booleans, integers or floats by name",
    ),
    "petabytes": (
        lambda _: aligned_empty((1 << 25, 1 << 25), "float32"),
        "4,503,599,627,370,496 bytes of memory cannot be had, for float32 of shape (33554432, 33554432)\n"
        "  = hint: run the model on smaller inputs",
    ),
    "more than can be addressed": (
        lambda _: minitvm.build(Module.from_expr(relay.nn.relu(relay.var("x", shape=(10**12, 10**12))))),
        "nn.relu: the result, Tensor[(1000000000000, 1000000000000), float32], would take "
        "4,000,000,000,000,000,000,000,000 bytes\n"
        "  | nn.relu(%x)\n"
        "  |   %x: Tensor[(1000000000000, 1000000000000), float32]\n"
        "  = hint: is a size a mistake?",
    ),
    "more together than can be addressed": (
        lambda _: minitvm.build(two_results(relay.var("x", shape=(1 << 45,)))),
        "the values of this graph take 281,474,976,710,656 bytes, more than can be addressed\n"
        "  = hint: compile the model for smaller inputs",
    ),
    "a benchmark without an end": (
        lambda lib: running(lib).benchmark(min_repeat_ms=float("nan"), x=X),
        "min_repeat_ms is nan, not a number of milliseconds from 0 to 86,400,000",
    ),
    "a file that is none": (
        lambda lib: lib.save(os.devnull),
        f"the library cannot be written to {os.devnull}: it is not an ordinary file\n  = hint: give the path of a file",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_arguments(name: str, library: Library) -> None:
    act, text = CASES[name]
    with pytest.raises(MiniTVMError) as caught:
        act(library)
    assert str(caught.value) == text
    module = running(library)
    module.run(x=X)
    assert module.get_output(0).numpy().sum() == pytest.approx(2.0)


def test_whole_numbers_are_not_made_of_fractions() -> None:
    x = relay.var("x", shape=(2,), dtype="int64")
    module = minitvm.GraphModule(minitvm.build(Module.from_expr(relay.negative(x)))["default"]())
    with pytest.raises(InputError, match=r"^input 'x' is a list that is no array of int64: not all of its values"):
        module.run(x=[1.5, 2])
    module.run(x=[1.0, 2])
    assert module.get_output(0).numpy().tolist() == [-1, -2]


# --- models ---------------------------------------------------------------------------------------------------


def relu_model(**options: Any) -> Any:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "r")], "g", [value("x", 1, ["n", 3])], [value("y", 1, None)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **options)


def test_a_function_that_calls_itself() -> None:
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    again = helper.make_function("f", "F", ["a"], ["b"], [helper.make_node("F", ["a"], ["b"], domain="f")], sets)
    model = relu_model(functions=[again])
    model.opset_import.append(sets[1])
    model.graph.node[0].op_type, model.graph.node[0].domain = "F", "f"
    with pytest.raises(FrontendError) as caught:
        from_onnx(model)
    assert caught.value.message == "function f.F calls itself"
    assert "f.F calls f.F" in str(caught.value)


@pytest.mark.parametrize("option", ["shape_dict", "dtype_dict"])
def test_options_of_the_importer_are_dictionaries(option: str) -> None:
    with pytest.raises(InputError) as caught:
        from_onnx(relu_model(), **{option: 3})
    assert str(caught.value) == f"{option} is a int, not a dictionary\n  = hint: {option}={{name of an input: ...}}"


def test_threads_that_fail_leave_the_others_alone() -> None:
    session = minitvm.InferenceSession(relu_model(), num_threads=2)
    rows = [np.random.default_rng(n).normal(size=(n + 1, 3)).astype("float32") for n in range(3)]
    found: list[str] = []

    def right() -> None:
        for i in range(30):
            (result,) = session.run(None, {"x": rows[i % 3]})
            found.append("right" if np.array_equal(result, np.maximum(rows[i % 3], 0)) else "wrong")

    def wrong() -> None:
        for _ in range(30):
            try:
                session.run(None, {"x": np.zeros((2, 4), "float32")})
            except InputError:
                found.append("refused")

    threads = [threading.Thread(target=f) for f in (right, wrong, right, wrong)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["refused"] * 60 + ["right"] * 60


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *(
            ({"x": shape}, f"the shape of input 'x' is {shape!r}")
            for shape in (5, None, "ab", (-1, 3), (1.5, 3), (2**62, 3))
        ),
        ([("x", (2, 3))], "the shapes are a list, not a dictionary"),
        (None, "the shapes are a NoneType, not a dictionary"),
        ({"y": (2, 3)}, "the model has no input 'y'"),
    ],
)
def test_shapes_that_are_none(library: Library, given: Any, text: str) -> None:
    session = minitvm.InferenceSession(relu_model(), num_threads=1)
    for refuse in (session.prepare, library.for_shapes):
        with pytest.raises(InputError) as caught:
            refuse(given)
        assert str(caught.value).splitlines()[0] == text
    for refuse in (session.prepare, library.for_shapes):
        with pytest.raises(InputError, match="the values are a int, not a dictionary"):
            refuse({"x": (2, 3)}, 5)  # type: ignore[arg-type]


# --- the verifier ---------------------------------------------------------------------------------------------


def failing() -> Module:
    """A branch on ``flag`` that fails either way."""
    flag, x = relay.var("flag", shape=(), dtype="bool"), relay.var("x", shape=(2,))
    fail = Function([], call_op("control.fail", message="not with these", shapes=((2,),), dtypes=("float32",)))
    return Module(Function([flag, x], relay.add(x, call_op("control.if", flag, then_branch=fail, else_branch=fail))))


def test_a_module_that_raises_is_not_compared() -> None:
    compare_numbers(failing(), failing(), "pass Any")


def test_a_module_that_raises_only_after_a_pass_is_wrong() -> None:
    flag, x = relay.var("flag", shape=(), dtype="bool"), relay.var("x", shape=(2,))
    before = Module(Function([flag, x], relay.nn.relu(x)))
    with pytest.raises(PassError) as caught:
        compare_numbers(before, failing(), "pass Any")
    assert caught.value.message == "pass Any made a module that fails where the one before did not: not with these"


# --- Ctrl-C ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_leaves_no_broken_entry(tmp_path: pathlib.Path) -> None:
    code = (
        "import signal, sys, minitvm, minitvm.testing as testing\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "m, p = testing.squeezenet.get_workload()\n"
        "def said(done, total, _):\n"
        "    print('kernel', flush=True)\n"
        "    done == total - 1 and sys.stdin.read()\n"  # not over before the signal comes
        "minitvm.build(m, params=p, on_progress=said)"
    )
    environment = {**os.environ, "MINITVM_CACHE_DIR": str(tmp_path)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "kernel\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert "KeyboardInterrupt" in errors
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and {path.suffix for path in files} == {".bin"}
    cache = KernelCache(tmp_path)
    assert all(cache.get(path.stem) for path in files) and all(path.exists() for path in files)


def test_the_session_says_how_it_is_called() -> None:
    session = minitvm.InferenceSession(relu_model())
    with pytest.raises(InputError) as caught:
        session.run("y", {"x": X})
    assert str(caught.value) == (
        "the wanted outputs are 'y', not a list of names\n  = hint: run(['y'], ...), or run(None, ...) for all"
    )
    with pytest.raises(ConfigError) as wrong:
        minitvm.InferenceSession(relu_model(), specialisations="many")
    assert str(wrong.value) == "specialisations is 'many', but at least 1 must be kept"
    with pytest.raises(ConfigError, match=r"^specialise_after is -1, not a number of runs$"):
        minitvm.InferenceSession(relu_model(), specialise_after=-1)
    with pytest.raises(ConfigError, match=r"^specialise_after is True, not a number of runs$"):
        minitvm.InferenceSession(relu_model(), specialise_after=True)
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], np.maximum(X, 0))
