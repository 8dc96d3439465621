"""InferenceSession and compile: ONNX Runtime's conventions, shapes found on first use, every wrong input's text."""

from __future__ import annotations

import pathlib
import threading

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import minitvm
from minitvm import InferenceSession
from minitvm.errors import ConfigError, FrontendError, InputError, TargetError, TypeInferenceError

STATIC = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x, int64[2] rows) => (float[2, 4] y, float[2, 3] z)
<float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -2, -3}>
{
  h = MatMul(x, w)
  y = Relu(h)
  z = Gather(x, rows)
}
"""
DYNAMIC = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, 3] a, float[batch, n] b) => (float[batch, m] c)
{
  s = Concat<axis = 1>(a, b)
  c = Softmax<axis = 1>(s)
}
"""


def feeds(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((2, 3)).astype("float32"), "rows": rng.integers(0, 2, 2)}


def expected(given: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    w = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -2, -3], "float32").reshape(3, 4)
    return np.maximum(given["x"] @ w, 0), given["x"][given["rows"]]


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(parser.parse_model(STATIC), num_threads=1)


@pytest.fixture(scope="module")
def dynamic() -> InferenceSession:
    return InferenceSession(parser.parse_model(DYNAMIC).SerializeToString(), num_threads=1, specialisations=2)


def check(session: InferenceSession, seed: int) -> None:
    given = feeds(seed)
    for got, want in zip(session.run(None, given), expected(given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_descriptions_follow_onnx_runtime(session: InferenceSession, dynamic: InferenceSession) -> None:
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("x", "tensor(float)", [2, 3]),
        ("rows", "tensor(int64)", [2]),
    ]
    assert [(o.name, o.shape) for o in dynamic.get_outputs()] == [("c", ["batch", "m"])]
    assert dynamic.get_inputs()[1].shape == ["batch", "n"]
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_descriptions_are_onnx_runtimes(session: InferenceSession, dynamic: InferenceSession) -> None:
    ort = pytest.importorskip("onnxruntime")
    for text, mine in ((STATIC, session), (DYNAMIC, dynamic)):
        theirs = ort.InferenceSession(parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"])
        for ours, other in ((mine.get_inputs(), theirs.get_inputs()), (mine.get_outputs(), theirs.get_outputs())):
            assert [(v.name, v.type, v.shape) for v in ours] == [(v.name, v.type, v.shape) for v in other]


def test_run_returns_all_results_or_those_asked_for(session: InferenceSession) -> None:
    check(session, 1)
    given = feeds(2)
    y, z = expected(given)
    (only,) = session.run(["z"], given)
    np.testing.assert_array_equal(only, z)
    swapped = session.run(["z", "y"], given, None)
    np.testing.assert_array_equal(swapped[0], z)
    np.testing.assert_allclose(swapped[1], y, rtol=1e-5, atol=1e-5)
    assert len(session.run([], given)) == 2


def test_results_are_new_arrays_and_inputs_are_left_alone(session: InferenceSession) -> None:
    given = feeds(3)
    copies = {name: value.copy() for name, value in given.items()}
    first = session.run(None, given)
    kept = [value.copy() for value in first]
    session.run(None, feeds(4))
    for value, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(value, copy)
    for name, value in given.items():
        np.testing.assert_array_equal(value, copies[name])


def test_a_file_is_read_by_its_path(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(STATIC), path)
    for source in (path, str(path)):
        check(InferenceSession(source, providers=["CPUExecutionProvider"]), 5)


def test_options_of_onnx_runtime_are_taken() -> None:
    class Options:
        intra_op_num_threads = 3
        graph_optimization_level = 99

    session = InferenceSession(parser.parse_model(STATIC), Options(), ["CUDAExecutionProvider"], [{}])
    check(session, 6)
    assert session.libraries[0].threads == 3


MISSING = """input missing: rows
  = hint: give an array for every input: x, rows"""
UNKNOWN = """the model has no input 'row'
  = hint: did you mean 'rows'? its inputs are: x, rows"""
DTYPE = """input 'rows' is int32, the model expects int64
  | %rows: Tensor[(2,), int64]
  = hint: convert it: array.astype('int64')"""
RANK = """input 'x' has rank 3, shape (1, 2, 3); the model expects rank 2
  | %x: Tensor[(2, 3), float32]
  = hint: add or remove dimensions, for example array[np.newaxis] for a batch of one"""
SHAPE = """input 'x' has shape (3, 3), the model expects (2, 3)
  | %x: Tensor[(2, 3), float32]
  = hint: reshape or resize the array, or compile the model for this shape"""
OBJECT = """input 'x' is object, the model expects float32
  | %x: Tensor[(2, 3), float32]
  = hint: convert it: array.astype('float32')"""
NO_DICTIONARY = """the inputs are a list, not a dictionary
  = hint: run(None, {name: array, ...})"""
X, ROWS = feeds(0)["x"], feeds(0)["rows"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": X}, MISSING),
        ({"x": X, "rows": ROWS, "row": ROWS}, UNKNOWN),
        ({"x": X, "rows": ROWS.astype("int32")}, DTYPE),
        ({"x": X[None], "rows": ROWS}, RANK),
        ({"x": np.ones((3, 3), "float32"), "rows": ROWS}, SHAPE),
        ({"x": np.array([[None, "a", 1.0]]), "rows": ROWS}, OBJECT),
        ([X, ROWS], NO_DICTIONARY),
    ],
)
def test_wrong_inputs_say_so_and_leave_the_session_usable(session: InferenceSession, given: object, text: str) -> None:
    with pytest.raises(InputError) as error:
        session.run(None, given)  # type: ignore[arg-type]
    assert str(error.value) == text
    check(session, 7)


def test_an_unknown_output(session: InferenceSession) -> None:
    with pytest.raises(InputError) as error:
        session.run(["y", "yy"], feeds(0))
    assert str(error.value) == "the model has no output 'yy'\n  = hint: did you mean 'y'? its outputs are: y, z"
    check(session, 8)


def softmax_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    powers = np.exp(np.concatenate([a, b], axis=1))
    return powers / powers.sum(axis=1, keepdims=True)


def test_open_dimensions_are_compiled_once(dynamic: InferenceSession) -> None:
    rng = np.random.default_rng(9)
    for batch, n in ((1, 2), (4, 5), (1, 2), (3, 1), (1, 2)):
        a, b = (rng.standard_normal((batch, k)).astype("float32") for k in (3, n))
        (got,) = dynamic.run(None, {"a": a, "b": b})
        np.testing.assert_allclose(got, softmax_of(a, b), rtol=1e-5, atol=1e-6)
    assert len(dynamic.libraries) == 1
    before = dynamic.libraries
    dynamic.run(None, {"a": np.ones((3, 3), "float32"), "b": np.ones((3, 1), "float32")})
    assert set(map(id, dynamic.libraries)) == set(map(id, before))


def test_a_batch_of_nothing(dynamic: InferenceSession) -> None:
    (got,) = dynamic.run(None, {"a": np.zeros((0, 3), "float32"), "b": np.zeros((0, 2), "float32")})
    assert got.shape == (0, 5) and got.dtype == np.float32


def test_dimensions_of_one_name_may_differ_where_the_operators_allow_it() -> None:
    """As in ONNX Runtime: names only describe; an operator that the shapes do not fit says so."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["a", "b"], ["y"], name="sum")],
            "g",
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [d, 2]) for n, d in (("a", "n"), ("b", "n"))],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    session = InferenceSession(model)
    a, b = np.ones((3, 2), "float32"), np.ones((1, 2), "float32")
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], a + b)
    with pytest.raises(TypeInferenceError) as error:
        session.run(None, {"a": a, "b": np.ones((2, 2), "float32")})
    assert "shapes do not broadcast" in str(error.value) and "sum" in str(error.value)


def test_threads_may_share_a_session(dynamic: InferenceSession) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            a, b = (rng.standard_normal((1 + seed % 3, k)).astype("float32") for k in (3, 2))
            if not np.allclose(dynamic.run(None, {"a": a, "b": b})[0], softmax_of(a, b), rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_compile_gives_a_library_that_can_be_saved(tmp_path: pathlib.Path) -> None:
    library = minitvm.compile(parser.parse_model(DYNAMIC), shape_dict={"a": (2, 3), "b": (2, 4)}, num_threads=1)
    library.save(tmp_path / "m.mtvm")
    module = minitvm.GraphModule(minitvm.load(tmp_path / "m.mtvm")["default"]())
    a, b = (np.random.default_rng(1).standard_normal((2, k)).astype("float32") for k in (3, 4))
    module.run(a=a, b=b)
    np.testing.assert_allclose(module.get_output(0).numpy(), softmax_of(a, b), rtol=1e-5, atol=1e-6)


def test_a_shape_with_nan() -> None:
    with pytest.raises(InputError) as error:
        minitvm.compile(parser.parse_model(DYNAMIC), shape_dict={"a": (float("nan"), 3), "b": (1, 2)})
    assert str(error.value) == (
        "shape_dict gives dimension 0 of input 'a' as nan\n  = hint: a dimension is a whole number, 0 or more"
    )


def test_options_that_do_not_exist() -> None:
    model = parser.parse_model(STATIC)
    with pytest.raises(TargetError, match=r"^unknown target 'llwm'\n  = hint: did you mean 'llvm'"):
        InferenceSession(model, target="llwm")
    with pytest.raises(ConfigError, match=r"^opt_level is 7\n  = hint: the levels are 0 to 3$"):
        InferenceSession(model, opt_level=7)
    with pytest.raises(ConfigError, match=r"^num_threads is -2, not a whole number from 0 to 1024\n"):
        InferenceSession(model, num_threads=-2)
    with pytest.raises(ConfigError, match=r"^specialisations is 0, but at least 1 must be kept$"):
        InferenceSession(model, specialisations=0)


@pytest.mark.parametrize("data", [b"", b"hello, this is text", b"\x89PNG\r\n\x1a\n"])
def test_what_is_not_a_model(data: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(FrontendError):
            InferenceSession(source)
