"""One library for all shapes: kernels over symbolic sizes, for any numbers that a run gives them."""

from __future__ import annotations

import gc
import itertools
import pathlib
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from symbolic_graphs import GRAPHS, RNG, Make, array

from benchmarks import coverage
from minitvm import InferenceSession
from minitvm.codegen.lower import lower
from minitvm.codegen.templates.running_sum import RunningSum
from minitvm.driver import backend_for, build_consuming, require_symbolic
from minitvm.errors import CompilerError, InputError
from minitvm.ir.builder import call_op, const, var
from minitvm.ir.dims import assumptions, symbol
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function, Module, Var
from minitvm.ir.loop import allocated
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.sizes import bound as bound_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.types import TensorType
from minitvm.passes.manager import PassContext
from minitvm.runtime.bind import DoesNotFit
from minitvm.runtime.bound import Bound
from minitvm.runtime.devices import cpu
from minitvm.runtime.library import Library
from minitvm.runtime.specialised import Specialised

Built: TypeAlias = tuple[Function, Library, Make]


def library_of(shape: Sequence[object], make: Callable[[Expr], Expr], threads: int) -> tuple[Function, Library]:
    with assumptions(), PassContext(opt_level=3):
        x = var("x", shape=shape)
        function = Function([x], make(x))
        backend = backend_for("llvm", threads)
        require_symbolic(function, backend)
        library = build_consuming(Module(function), {}, backend, strict=True)
    return function, library


@pytest.fixture(scope="module", params=list(GRAPHS))
def built(request: pytest.FixtureRequest) -> Built:
    shape, make = GRAPHS[request.param]
    return *library_of(shape, make, threads=3), make


SIZE = st.one_of(st.integers(0, 4), st.integers(0, 70))


@settings(max_examples=20)
@given(SIZE, SIZE)
def test_for_any_numbers_it_computes_what_operators_mean(built: Built, n: int, s: int) -> None:
    function, library, make = built
    shape = tuple(d if isinstance(d, int) else {"n": n, "s": s}[str(d)] for d in function.params[0].tensor_type.shape)
    given_ = array(*shape)
    if 0 in shape and any("max" in name for name in library.function_metadata):
        return  # numpy's maximum of nothing is an error
    instance = library.bound({"x": shape}).instance(cpu(), 3)
    instance.assign("x", given_)
    instance.run()
    x = var("x", shape=shape)
    got, want = instance.value(instance.graph.heads[0]), evaluate(Function([x], make(x)), given_)
    assert isinstance(want, np.ndarray) and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(SIZE, SIZE)
def test_a_kernel_with_numbers_in_place_means_the_same(n: int, s: int) -> None:
    """Which is what is checked of it: every element stored once, no index outside."""
    x = var("x", shape=("n", "s"))
    function = Function([x], call_op("nn.softmax", x, axis=-1))
    kernel = lower(function, "softmax", backend_for("llvm", 2).machine)
    assert kernel.sizes == ("n", "s")
    numbers = bound_kernel(kernel, {"n": n, "s": s})
    verify_kernel(numbers)
    given_ = array(n, s)
    (got,) = run_kernel(numbers, given_)
    np.testing.assert_allclose(got, evaluate(function, given_), rtol=1e-5, atol=1e-6)


def test_what_types_count_on_is_asked_when_shapes_are_met() -> None:
    with assumptions() as assumed:
        x, y = var("x", shape=("n", 3)), var("y", shape=("m", 3))
        function = Function([x, y], x + y)
        assert {frozenset((str(fact.a), str(fact.b))) for fact in assumed} == {frozenset("nm")}
        library = build_consuming(Module(function), {}, backend_for("llvm", 1))
    library.bound({"x": (4, 3), "y": (4, 3)})
    with pytest.raises(DoesNotFit, match="does not hold"):
        library.bound({"x": (4, 3), "y": (1, 3)})


@pytest.mark.parametrize("times", [1, 2])
def test_a_reshape_may_count_on_sizes(times: int) -> None:
    """(3, times * m) elements as (3,) and as (3, 2): where m is 1."""
    newshape = (3, 2)[:times]
    with assumptions():
        x = var("x", shape=(3, "m"))
        wide = call_op("concatenate", [x] * times, axis=1)
        function = Function([x], call_op("nn.relu", call_op("reshape", wide, newshape=newshape)))
        library = build_consuming(Module(function), {}, backend_for("llvm", 1))
    given_ = array(3, 1)
    (got,) = library.bound({"x": (3, 1)}).run({"x": given_})
    np.testing.assert_array_equal(got, np.maximum(np.hstack([given_] * times), 0).reshape(newshape))


def test_a_symbol_is_one_number() -> None:
    _, library = library_of(("n", "n"), lambda x: call_op("nn.relu", x), 1)
    with pytest.raises(DoesNotFit, match="dimension n is 2 and 3"):
        library.bound({"x": (2, 3)})


def test_what_an_image_needs_is_in_memory_an_image_more_and_weights_once() -> None:
    """A padded copy of each image; panels of the weight, which all share."""
    shapes = {"conv": ((2, 3, 9, 7), (5, 3, 3, 3)), "product": ((2, 40, 4, 5), (64, 40, 1, 1))}
    for (n, *image), weight in shapes.values():
        x, w = Var("x", TensorType(("n", *image))), Var("w", TensorType(weight))
        function = Function([x, w], call_op("nn.conv2d", x, w, padding=(1, 1)))
        kernel = lower(function, "conv", backend_for("llvm", 2).machine)
        images = [buffer for buffer in allocated(kernel.body) if not isinstance(buffer.nbytes, int)]
        assert [(buffer.name, buffer.shape[0], buffer.scope) for buffer in images] == [
            ("phases", symbol("n"), "global")
        ]
        numbers = bound_kernel(kernel, {"n": n})
        verify_kernel(numbers)
        given_ = array(n, *image), array(*weight)
        np.testing.assert_allclose(run_kernel(numbers, *given_)[0], evaluate(function, *given_), rtol=1e-4, atol=1e-4)


def test_loops_made_for_numbers_are_refused_before_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Var("x", TensorType((1, 3, "h", 8, 8)))
    function = Function([x], call_op("nn.conv3d", x, const(array(4, 3, 3, 3, 3))))
    with pytest.raises(CompilerError, match="windows over sizes that only a run knows are slow"):
        require_symbolic(function, backend_for("llvm", 1))
    monkeypatch.setattr(RunningSum, "symbolic", False)
    y = Var("y", TensorType(("n", 24)))
    with pytest.raises(CompilerError, match="kernels are made for numbers only"):
        require_symbolic(Function([y], call_op("cumsum", y, axis=1)), backend_for("llvm", 1))


# --- ONNX -------------------------------------------------------------------------------------------------------


def encoder() -> onnx.ModelProto:
    """An embedding with positions, heads cut by computed shapes, a mask, attention and a dense layer."""
    rng = np.random.default_rng(7)
    shapes = {"table": (50, 24), "places": (1, 40, 24), "w": (24, 24), "b": (24,)}
    weights = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    constants = {"zero": [0], "one": [1], "two": [2], "heads": [3], "rest": [-1]}
    initializers = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    initializers += [numpy_helper.from_array(np.array(v, "int64"), n) for n, v in constants.items()]
    nodes = [
        helper.make_node("Shape", ["ids"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one"], ["batch"]),
        helper.make_node("Slice", ["shape", "one", "two"], ["length"]),
        helper.make_node("Slice", ["places", "zero", "length", "one"], ["here"]),
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("Add", ["words", "here"], ["x"]),
        helper.make_node("Concat", ["batch", "length", "heads", "rest"], ["apart"], axis=0),
        helper.make_node("Reshape", ["x", "apart"], ["h"]),
        helper.make_node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "q"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["batch", "length", "rest"], ["joined"], axis=0),
        helper.make_node("Reshape", ["back", "joined"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n", "s"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", "s", 24])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def sessions() -> tuple[InferenceSession, InferenceSession, list[str]]:
    compiled: list[str] = []
    model = encoder()
    symbolic = InferenceSession(model, num_threads=1, on_progress=lambda done, total, name: compiled.append(name))
    return symbolic, InferenceSession(model, num_threads=1, symbolic=False), compiled


def test_an_encoder_is_compiled_once_for_all_shapes(
    sessions: tuple[InferenceSession, InferenceSession, list[str]],
) -> None:
    symbolic, specialised, compiled = sessions
    for n, s in ((1, 7), (2, 1), (3, 33), (1, 40)):
        ids = RNG.integers(0, 50, (n, s))
        (got,), (want,) = symbolic.run(None, {"ids": ids}), specialised.run(None, {"ids": ids})
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        compiled.append("|")
    assert compiled.count("|") == 4 and set(compiled[compiled.index("|") :]) == {"|"}
    assert len({id(lib.report) for lib in symbolic.libraries}) == 1
    (table,) = {id(a) for lib in symbolic.libraries for a in lib.artifact.params.values() if a.shape == (50, 24)}
    assert table


def test_a_new_shape_costs_little_python(
    sessions: tuple[InferenceSession, InferenceSession, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of Python functions, from a shape to what runs it: no inference of types; where sizes round up to ones that
    were met no plan, else none that is packed anew."""
    session = sessions[0]
    session.run(None, {"ids": np.ones((2, 5), "int64")})
    monkeypatch.setenv("MINITVM_POISON", "0")

    def calls(shape: tuple[int, ...]) -> Counter[str]:
        found: Counter[str] = Counter()

        def count(frame: Any, event: str, _: object) -> None:
            if event == "call":
                found[f"{pathlib.Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"] += 1

        sys.setprofile(count)
        try:
            session.run(None, {"ids": np.ones(shape, "int64")})
        finally:
            sys.setprofile(None)
        return found

    nodes = len(session.libraries[-1].graph.nodes)
    first, second = calls((1, 18)), calls((1, 19))
    assert not {"memory.pack", "types.infer"} & set(first), first
    assert not any(name.startswith(("memory.", "graph.with_types")) for name in second), second
    assert first.total() < 80 * nodes and second.total() < 300, (first.total(), second.total())


def test_a_new_shape_leaves_few_objects(
    sessions: tuple[InferenceSession, InferenceSession, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python looks through all objects once there are a quarter more, and stops every thread for it."""
    session, shapes = sessions[0], [(2, 6), (2, 7), (1, 21), (1, 22), (1, 23)]
    monkeypatch.setenv("MINITVM_POISON", "0")
    counts = []
    for shape in shapes:
        session.run(None, {"ids": np.ones(shape, "int64")})
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert min(after - before for before, after in itertools.pairwise(counts)) < 30, counts


def test_shapes_that_its_types_do_not_hold_for_are_specialised(
    sessions: tuple[InferenceSession, InferenceSession, list[str]],
) -> None:
    """41 words, of which 40 have places: an error of the model, said as ever."""
    messages = []
    for session in sessions[:2]:
        with pytest.raises(Exception, match="broadcast") as error:
            session.run(None, {"ids": np.ones((1, 41), "int64")})
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_an_index_outside_is_an_error_after_the_run(
    sessions: tuple[InferenceSession, InferenceSession, list[str]],
) -> None:
    with pytest.raises(Exception, match="50 is outside of dimension 0"):
        sessions[0].run(None, {"ids": np.full((2, 3), 50)})


def test_prepared_shapes_have_kernels_of_their_own(
    sessions: tuple[InferenceSession, InferenceSession, list[str]],
) -> None:
    symbolic, _, compiled = sessions
    ids = RNG.integers(0, 50, (2, 9))
    (first,) = symbolic.run(None, {"ids": ids})
    before = len(compiled)
    symbolic.prepare({"ids": (2, 9)})
    assert len(compiled) > before and symbolic.libraries[-1].artifact.graph.entry_types[0].is_static
    (second,) = symbolic.run(None, {"ids": ids})
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-4)


def test_what_is_broadcast_is_decided_as_the_first_run_has_it() -> None:
    """A row that stands for all, inputs of one row, as many rows as there are columns: of each a library."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 8] x, float[m, 8] y) => (float[k, 8] z) {
        start = Constant <value = int64[1] {-1}> ()
        end = Constant <value = int64[1] {9223372036854775807}> ()
        axis = Constant <value = int64[1] {0}> ()
        last = Slice (x, start, end, axis)
        both = Add (x, last)
        z = Mul (both, y) }"""
    session = InferenceSession(onnx.parser.parse_model(text), num_threads=1)
    for n, m, count in ((4, 1, 1), (9, 1, 1), (3, 3, 2), (7, 7, 2), (1, 5, 3), (1, 2, 3)):
        x, y = array(n, 8), array(m, 8)
        np.testing.assert_allclose(session.run(None, {"x": x, "y": y})[0], (x + x[-1:]) * y, rtol=1e-6)
        assert len(session.libraries) == count


def test_windows_that_are_shifted_over_padded_rows_are_compiled_once() -> None:
    """As Swin has them: padded to a multiple of 4, rolled by a computed shift, cut back."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[n, 3] x) => (float[k, 3] y, float[w] z)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] shift = {-2}, int64[1] four = {4}, int64[2] rows = {-1, 3},
         int64[2] axes = {1, 2}, int64[3] windows = {-1, 4, 3}, int64[1] far = {9223372036854775807}> {
        n1 = Shape <start = 0, end = 1> (x)
        over = Mod (n1, four)
        lacks = Sub (four, over)
        pad = Mod (lacks, four)
        pads = Concat <axis = 0> (zero, pad)
        padded = Pad (x, pads, , zero)
        m = Shape <start = 0, end = 1> (padded)
        start = Mod (shift, m)
        tail = Slice (padded, start, far, zero)
        head = Slice (padded, zero, start, zero)
        rolled = Concat <axis = 0> (tail, head)
        cut = Reshape (rolled, windows)
        flat = Reshape (cut, rows)
        y = Slice (flat, zero, n1, zero)
        sums = ReduceSum <keepdims = 0> (cut, axes)
        z = Identity (sums) }"""
    session = InferenceSession(onnx.parser.parse_model(text), num_threads=1)
    for n in (9, 8, 5, 30, 33):
        x = array(n, 3)
        rolled = np.roll(np.pad(x, ((0, -n % 4), (0, 0))), 2, axis=0)
        got, sums = session.run(None, {"x": x})
        np.testing.assert_array_equal(got, rolled[:n])
        np.testing.assert_allclose(sums, rolled.reshape(-1, 12).sum(1), rtol=1e-4, atol=1e-4)
    assert len(session.libraries) == 1


def test_images_sampled_at_computed_places_are_compiled_once() -> None:
    """As DETR's decoders do, with positions counted in floats."""
    text = """<ir_version: 8, opset_import: ["": 18]>
        g (float[n, 2, h, w] x, float[n, p, q, 2] at) => (float[n, 2, p, q] y, float[c] z)
        <float zero = {0}, float one = {1}, float minus = {-2}> {
        width = Shape <start = 3, end = 4> (x)
        wide = Cast <to = 1> (width)
        last = Squeeze (wide)
        ahead = Range (zero, last, one)
        back = Range (last, zero, minus)
        z = Concat <axis = 0> (ahead, back)
        y = GridSample <padding_mode = "MODE", align_corners = 1> (x, at) }"""
    for mode in ("zeros", "border", "reflection"):
        model = onnx.parser.parse_model(text.replace("MODE", mode))
        session = InferenceSession(model, num_threads=1)
        static = InferenceSession(model, num_threads=1, symbolic=False)
        for n, h, w, p, q in ((2, 5, 7, 3, 4), (1, 9, 4, 1, 1), (3, 2, 12, 6, 2)):
            feeds = {"x": array(n, 2, h, w), "at": array(n, p, q, 2)}
            (got, counted), (want, _) = session.run(None, feeds), static.run(None, feeds)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(counted, [*range(w), *range(w, 0, -2)])
        assert len(session.libraries) == 1


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_images_padded_to_what_pools_want_are_compiled_once(mode: str) -> None:
    """As TensorFlow pads; windows that hang over the end."""
    text = """<ir_version: 8, opset_import: ["": 19]>
        g (float[n, 2, h, w] x) => (float[n, 2, a, b] y, float[n, 2, c, d] z, float[n, 2, e, f] padded)
        <int64[2] two = {2, 2}, int64[2] three = {3, 3}, int64[2] none = {0, 0}, int64[2] axes = {2, 3}> {
        size = Shape <start = 2, end = 4> (x)
        counted = Add (size, two)
        windows = Div (counted, three)
        wanted = Mul (windows, three)
        more = Sub (wanted, size)
        lacks = Max (more, none)
        pads = Concat <axis = 0> (none, lacks)
        padded = Pad <mode = "MODE"> (x, pads, , axes)
        y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (padded)
        z = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x) }"""
    model = onnx.parser.parse_model(text.replace("MODE", mode))
    session = InferenceSession(model, num_threads=1)
    static = InferenceSession(model, num_threads=1, symbolic=False)
    for n, h, w in ((2, 9, 7), (1, 64, 33), (3, 8, 3), (1, 5, 100)):
        x = array(n, 2, h, w)
        for got, want in zip(session.run(None, {"x": x}), static.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert len(session.libraries) == 1


def wait_for(session: InferenceSession) -> None:
    """Until what is compiled beside its runs is there."""
    assert session._engine.worker is not None
    session._engine.worker.submit(int).result()


def test_shapes_that_come_again_get_kernels_of_their_own() -> None:
    compiled: list[str] = []
    model = encoder()
    session = InferenceSession(model, num_threads=1, specialise_after=3, on_progress=lambda *_: compiled.append(_[2]))
    ids = RNG.integers(0, 50, (2, 9))
    first, *_ = [session.run(None, {"ids": ids})[0] for _ in range(3)]
    session.run(None, {"ids": ids[:1]})
    before = len(compiled)
    wait_for(session)
    np.testing.assert_allclose(session.run(None, {"ids": ids})[0], first, rtol=1e-4, atol=1e-4)
    assert [d.taken for d in session.compiled_beside] == [True] and "ids (2, 9)" in str(session.compiled_beside[0])
    own, common = session.libraries[-1], session.libraries[0]
    assert own.report is not common.report and len(compiled) == before
    assert len(session.libraries) == 2
    for _ in range(4):
        session.run(None, {"ids": ids})
    assert len(session.compiled_beside) == 1 and session.libraries[-1] is own


def test_what_cannot_be_compiled_beside_stands_in_nobodys_way(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minitvm.frontend.files.KEPT", 0)
    path = tmp_path / "m.onnx"
    onnx.save(encoder(), path)
    session = InferenceSession(path, num_threads=1, specialise_after=2)
    ids = RNG.integers(0, 50, (2, 9))
    (first,) = session.run(None, {"ids": ids})
    path.write_bytes(b"")
    session.run(None, {"ids": ids})
    wait_for(session)
    assert not session.compiled_beside[0].taken and "m.onnx" in session.compiled_beside[0].reason
    np.testing.assert_array_equal(session.run(None, {"ids": ids})[0], first)


@pytest.mark.parametrize("mistake", [CompilerError("no such loops"), KeyError("loops")])
def test_mistakes_beside_the_runs_are_seen(mistake: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is a decision; what nobody expects is one too, and printed as errors of threads are."""
    session = InferenceSession(encoder(), num_threads=1, specialise_after=2)
    ids = RNG.integers(0, 50, (2, 9))
    (first,) = session.run(None, {"ids": ids})
    monkeypatch.setattr(session._engine, "_compile", Mock(side_effect=mistake))
    seen: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda found: seen.append(found.exc_value))
    session.run(None, {"ids": ids})
    wait_for(session)
    assert session._engine.worker is not None
    session._engine.worker.shutdown()
    assert not session.compiled_beside[0].taken and "loops" in session.compiled_beside[0].reason
    assert seen == ([] if isinstance(mistake, CompilerError) else [mistake])
    np.testing.assert_array_equal(session.run(None, {"ids": ids})[0], first)


def test_runs_pay_for_kernels_of_their_own_before_they_get_them() -> None:
    class Slow(Bound):
        def __init__(self) -> None:
            pass

        def call(self, *_: object) -> list[object]:
            return []

    for library, seconds, worth in ((Slow(), 0.0, [False, False, True, False]), (Slow(), 60.0, [False] * 4)):
        common, own = Specialised(library, frozenset(), True), Specialised(library, frozenset())
        found = [(common.run({}), common.is_worth(seconds, None))[1] for _ in range(4)]
        assert found == worth and not any((own.run({}), own.is_worth(seconds, None))[1] for _ in range(4))


def test_declared_bounds() -> None:
    session = InferenceSession(encoder(), num_threads=1, shape_dict={"ids": (2, "words <= 12")})
    (got,) = session.run(None, {"ids": np.ones((2, 12), "int64")})
    assert got.shape == (2, 12, 24) and session.symbolic is not None and session.symbolic.taken
    with pytest.raises(InputError) as error:
        session.run(None, {"ids": np.ones((2, 13), "int64")})
    assert str(error.value) == (
        "input 'ids' has shape (2, 13), but dimension 1 is declared as words<=12\n"
        "  = hint: declare a larger bound where the session is made: shape_dict"
    )
    with pytest.raises(InputError, match="dimension 0 is declared as 2"):
        session.run(None, {"ids": np.ones((1, 12), "int64")})
    assert session.run(None, {"ids": np.ones((2, 1), "int64")})[0].shape == (2, 1, 24)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({"ids": ("n", "s<5")}, "shape_dict gives a dimension of input 'ids' as 's<5'"),
        ({"ids": ("n", -1)}, "shape_dict gives a dimension of input 'ids' as -1"),
        ({"ids": ("n",)}, "shape_dict gives input 'ids' 1 dimensions, not 2"),
        ({"words": ("n", "s")}, "shape_dict names 'words', which is no input"),
    ],
)
def test_declarations_that_do_not_fit(shape: dict[str, tuple[object, ...]], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        InferenceSession(encoder(), shape_dict=shape)  # type: ignore[arg-type]


def test_threads_that_meet_new_shapes_wait_for_one_compilation(
    sessions: tuple[InferenceSession, InferenceSession, list[str]],
) -> None:
    _, specialised, _ = sessions
    compiled: list[str] = []
    session = InferenceSession(encoder(), num_threads=1, on_progress=lambda *_: compiled.append(_[2]))
    with ThreadPoolExecutor(8) as pool:
        ids = [RNG.integers(0, 50, (1 + i % 2, 3 + i)) for i in range(12)]
        found = [*pool.map(lambda given: session.run(None, {"ids": given})[0], ids)]
    kernels = len(session.libraries[0].function_metadata)
    assert len(compiled) == kernels
    for given_, got in zip(ids[::4], found[::4], strict=True):
        np.testing.assert_allclose(got, specialised.run(None, {"ids": given_})[0], rtol=1e-4, atol=1e-4)


SAMPLES = "add_bcast matmul_3d softmax_axis_1 gather_0 layer_normalization_3d_axis1_epsilon"
UNKNOWN = ("reduce_mean_keepdims_example", "argmax_default_axis_example", "conv_with_strides_padding", "lstm_defaults")


@pytest.mark.parametrize("name", [*SAMPLES.split(), *UNKNOWN])
def test_onnx_tests_pass_where_all_dimensions_are_unknown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage.Watched, "opened", True)
    with coverage.own_folder():
        found = coverage.outcome(coverage.cases()[f"Node/test_{name}"])
    assert found.kind == "compiled"
    assert coverage.Watched.prepared is not None
    decision = coverage.Watched.prepared.session.symbolic
    assert decision is not None and (decision.taken or name not in SAMPLES.split())


def test_what_has_no_symbolic_loops_is_specialised_and_says_why() -> None:
    weight = numpy_helper.from_array(array(4, 3, 3, 3, 3), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="first")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, "h", 8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model, num_threads=1)
    assert session.run(None, {"x": array(2, 3, 8, 8, 8)})[0].shape == (2, 4, 6, 6, 6)
    assert session.symbolic is not None and not session.symbolic.taken
    assert "first" in str(session.symbolic)
