"""Shapes that a session meets while it runs: weights exist once, and who meets a shape keeps nobody else waiting."""

from __future__ import annotations

import mmap
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from patience import PATIENCE

import minitvm
from minitvm import InferenceSession
from minitvm.errors import InputError, MiniTVMError, TypeInferenceError
from minitvm.frontend import from_onnx
from minitvm.ir import evaluate
from minitvm.ir.arrays import _owner, shared
from minitvm.ir.expr import Call

WIDE = 160
"""The weight has 100 kB: large enough to be mapped, and shared."""


def model(seed: int = 0) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
        for name, shape in (("w", (WIDE, WIDE)), ("b", (WIDE,)))
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", WIDE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(x: np.ndarray, seed: int = 0) -> np.ndarray:
    w, b = (numpy_helper.to_array(t) for t in model(seed).graph.initializer)
    return np.asarray(x @ w + b)


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, WIDE)).astype("float32")


def check(session: InferenceSession, count: int) -> None:
    (got,) = session.run(None, {"x": rows(count)})
    np.testing.assert_allclose(got, expected(rows(count)), rtol=1e-4, atol=1e-4)


# --- weights ----------------------------------------------------------------------------------------------------


def test_weights_exist_once_however_many_shapes_there_are() -> None:
    session = InferenceSession(model(), num_threads=1, symbolic=False)
    for count in (1, 2, 7, 8, 30):
        check(session, count)
    large = [a for lib in session.libraries for a in lib.artifact.params.values() if a.nbytes > WIDE * WIDE]
    assert len(large) >= 5
    assert sum({id(a): a.nbytes for a in large}.values()) <= 4 * WIDE * WIDE * 1.2


def test_a_model_that_is_compiled_again_packs_its_weights_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    session = InferenceSession(tmp_path / "m.onnx", num_threads=1, symbolic=False)
    check(session, 3)
    large: list[str] = []
    compute = evaluate.evaluate_call

    def counted(call: Call, *arguments: Any) -> Any:
        large.extend(call.op.name for a in arguments if a.nbytes >= WIDE * WIDE and call.op.name != "transpose")
        return compute(call, *arguments)

    monkeypatch.setattr(evaluate, "evaluate_call", counted)
    for count in (3, 4, 5):
        check(session, count)
    assert len(session.libraries) == 3 and large == []


def test_equal_arrays_are_one_while_somebody_has_them() -> None:
    x = rows(150)
    first, second, other = shared(x), shared(x.copy()), shared(-x)
    assert first is second and other is not first
    assert first.ctypes.data % 64 == 0 and not first.flags.writeable
    x[0, 0] = 5.0
    assert first[0, 0] != 5.0, "what somebody else may write to is copied"
    zeros = np.zeros(WIDE * WIDE, "float32")
    assert shared(zeros) is not shared(-zeros), "compared by bytes"


def test_weights_stay_in_their_file_until_they_are_needed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    onnx.save(model(), tmp_path / "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0)
    for name in ("m.onnx", "e.onnx"):
        _, params = from_onnx(tmp_path / name, shape_dict={"x": (2, WIDE)})
        assert isinstance(_owner(params["w"]).base, mmap.mmap)
        np.testing.assert_array_equal(params["w"], numpy_helper.to_array(model().graph.initializer[0]))
    library = minitvm.compile(path, shape_dict={"x": (2, WIDE)}, num_threads=1)
    path.write_bytes(b"")  # and the library does not need it any more
    runner = minitvm.GraphModule(library["default"]())
    runner.run(x=rows(2))
    np.testing.assert_allclose(runner.get_output(0).numpy(), expected(rows(2)), rtol=1e-4, atol=1e-4)


def test_a_damaged_file_is_refused_as_ever(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.onnx"
    data = model().SerializeToString()
    rng = np.random.default_rng(3)
    for _ in range(60):
        damaged = bytearray(data[: rng.integers(1, len(data))] if rng.integers(2) else data)
        for at in rng.integers(0, min(len(damaged), 300), 3):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        found = [_imported(source) for source in (path, bytes(damaged))]
        assert found[0] == found[1]


def _imported(source: pathlib.Path | bytes) -> bool:
    try:
        return bool(from_onnx(source, shape_dict={"x": (2, WIDE)}))
    except MiniTVMError:
        return False


# --- threads ----------------------------------------------------------------------------------------------------


class Gate:
    """Holds compilations up; counts them."""

    def __init__(self) -> None:
        self.open, self.reached, self.compiled = threading.Event(), threading.Event(), 0
        self.open.set()

    def __call__(self, done: int, total: int, _: str) -> None:
        self.compiled += done == total
        self.reached.set()
        assert self.open.wait(PATIENCE)

    def close(self) -> None:
        self.open.clear()
        self.reached.clear()


def test_known_shapes_run_while_others_are_compiled_each_once() -> None:
    gate = Gate()
    session = InferenceSession(model(), num_threads=1, symbolic=False, on_progress=gate)
    session.run(None, {"x": rows(3)})
    gate.close()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(session.run, None, {"x": rows(5)}) for _ in range(6)]
        assert gate.reached.wait(PATIENCE)
        (known,) = pool.submit(session.run, None, {"x": rows(3)}).result(PATIENCE)
        np.testing.assert_allclose(known, expected(rows(3)), rtol=1e-4, atol=1e-4)
        assert not any(job.done() for job in waiting)
        gate.open.set()
        for job in waiting:
            np.testing.assert_allclose(job.result(PATIENCE)[0], expected(rows(5)), rtol=1e-4, atol=1e-4)
    assert gate.compiled == 2


def test_an_error_reaches_all_who_wait_and_the_session_stays_usable() -> None:
    def broken(*_: object) -> None:
        if broken_now:
            raise RuntimeError("no more")

    broken_now: list[bool] = []
    session = InferenceSession(model(), num_threads=1, symbolic=False, on_progress=broken)
    session.run(None, {"x": rows(3)})
    broken_now.append(True)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(session.run, None, {"x": rows(9)}) for _ in range(4)]
        assert all(isinstance(job.exception(PATIENCE), RuntimeError) for job in jobs)
    broken_now.clear()
    check(session, 9)


def test_shapes_are_prepared_before_they_are_met() -> None:
    gate = Gate()
    session = InferenceSession(model(), num_threads=1, symbolic=False, on_progress=gate)
    session.prepare({"x": (4, WIDE)})
    session.prepare({"x": [6, WIDE]})
    assert gate.compiled == len(session.libraries) == 2
    for count in (4, 6):
        check(session, count)
    assert gate.compiled == 2
    with pytest.raises(InputError, match="input 'x' has shape"):
        session.prepare({"x": (4, 5)})
    with pytest.raises(InputError, match="the model has no input 'z'"):
        session.prepare({"z": (4, 5)})


def test_a_model_without_kernels_keeps_what_its_types_count_on(tmp_path: pathlib.Path) -> None:
    """``(N, 4)`` as ``(N, 3)`` is right for no elements alone."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4] x) => (float[N, 3] y) <int64[2] s = {0, 3}> { y = Reshape (x, s) }"""
    made = InferenceSession(parser.parse_model(text))
    with pytest.raises(TypeInferenceError, match="the numbers of elements differ"):
        made.run(None, {"x": np.ones((2, 4), np.float32)})
    assert made.run(None, {"x": np.ones((0, 4), np.float32)})[0].shape == (0, 3)
    made.save(tmp_path / "m.mtvm")
    loaded = InferenceSession(tmp_path / "m.mtvm")
    assert loaded.run(None, {"x": np.ones((0, 4), np.float32)})[0].shape == (0, 3)
    with pytest.raises(InputError, match="not for inputs of these shapes"):
        loaded.run(None, {"x": np.ones((2, 4), np.float32)})
