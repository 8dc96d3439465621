"""What depends on parameters and sizes alone: computed once for each binding, and kept."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import minitvm
from minitvm.errors import InputError
from minitvm.runtime import bind
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.graph import Segment, steps_of
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library
from minitvm.runtime.places import kept_of

HEADS, LONGEST = 3, 40
TABLE = np.random.default_rng(2).standard_normal((LONGEST, HEADS)).astype("f")
MODEL = """<ir_version: 9, opset_import: ["": 17]>
    g (float[batch, 3, seq, seq] x, float[40, 3] table) => (float[batch, 3, seq, seq] y, float[batch, 3, seq, seq] z)
    <int64 zero={0}, int64 one={1}, int64[1] rows={1}, int64[1] columns={0}, int64 axis={2}>
    {
        s = Shape(x) n = Gather(s, axis) e = Exp(x) at = Range(zero, n, one)
        row = Unsqueeze(at, rows) column = Unsqueeze(at, columns) d = Sub(row, column) far = Abs(d)
        found = Gather(table, far) bias = Transpose<perm=[2, 0, 1]>(found) y = Add(e, bias) t = Tanh(y) z = Mul(t, bias)
    }"""
"""A bias by distance, as T5's: used twice, with a value of data between."""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", "0")


def opened(threads: int = 1) -> Library:
    model = onnx.parser.parse_model(MODEL)
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(TABLE, "table"))
    session = minitvm.InferenceSession(model.SerializeToString(), num_threads=threads, specialise_after=0)
    session.run(None, {"x": drawn(1, 4)})
    (found,) = session.libraries
    return found


@pytest.fixture(scope="module")
def library() -> Library:
    return opened()


def drawn(batch: int, seq: int) -> np.ndarray:
    return np.random.default_rng(seq).standard_normal((batch, HEADS, seq, seq), np.float32)


def wanted(x: np.ndarray, table: np.ndarray = TABLE) -> list[np.ndarray]:
    at = np.arange(x.shape[-1])
    bias = table[abs(at[:, None] - at)].transpose(2, 0, 1)
    y = np.exp(x) + bias
    return [y, np.tanh(y) * bias]


def require_right(found: list[np.ndarray], x: np.ndarray, table: np.ndarray = TABLE) -> None:
    for got, want in zip(found, wanted(x, table), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def run_at(library: Library, *shape: int) -> None:
    x = drawn(*shape)
    require_right(library.at({"x": x.shape}).call({"x": x}), x)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often segments ran."""
    ran, original = Counter[str](), Instance.code_step

    def code_step(self: Instance, what: Segment | int) -> object:
        step, name = original(self, what), what.symbol if isinstance(what, Segment) else ""
        return lambda: (ran.update([name]), step())

    monkeypatch.setattr(Instance, "code_step", code_step)
    return ran


def test_the_bias_is_the_first_segment(library: Library) -> None:
    once, rest = steps_of(library.graph)
    assert isinstance(once, Segment) and isinstance(rest, Segment)
    assert all(library.graph.nodes[i].once for i in once.nodes)
    assert not any(library.graph.nodes[i].once for i in rest.nodes)
    assert len(kept_of(library.graph)) >= 1


def test_bindings_in_turns_compute_it_once_each(settled: Counter[str]) -> None:
    library = opened()
    settled.clear()
    for _ in range(3):
        for shape in ((1, 5), (1, 30), (2, 5)):
            run_at(library, *shape)
    assert settled == {"segment_0": 3, "segment_1": 9}
    for seq in (29, 30, 29):  # in the same memory
        run_at(library, 1, seq)
    assert settled == {"segment_0": 6, "segment_1": 12}


def test_what_was_loaded_and_bound_computes_it_once(library: Library, tmp_path: Path, settled: Counter[str]) -> None:
    library.save(tmp_path / "kept.mtvm")
    again = minitvm.load(tmp_path / "kept.mtvm")
    for _ in range(3):
        for shape in ((1, 6), (2, 31)):
            require_right(again.run({"x": drawn(*shape)}), drawn(*shape))
    assert settled == {"segment_0": 2, "segment_1": 6}


def test_too_much_is_computed_in_every_run(settled: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    library = opened()
    settled.clear()
    monkeypatch.setattr(bind, "MOST_KEPT", 4 * HEADS * 20 * 20)
    for seq in (7, 40, 7, 40):
        run_at(library, 1, seq)
    assert settled == {"segment_0": 3, "segment_1": 4}


def test_parameters_that_are_set(library: Library) -> None:
    bound = library.for_shapes({"x": (1, HEADS, 9, 9)})
    module = GraphModule(bound["default"]())
    (name,) = (name for name, value in bound.params.items() if value.shape == TABLE.shape)
    x = drawn(1, 9)

    def check(table: np.ndarray) -> None:
        module.run(x=x)
        require_right(module.outputs(), x, table)

    check(TABLE)
    for factor in (2, 3):  # the second is written to where the first lies
        module.set_input(name, factor * TABLE)
        check(factor * TABLE)
    mine = TABLE.copy()
    module.set_input_zero_copy(name, mine)
    check(mine)
    mine *= 4
    check(mine)


def test_a_run_that_was_told_to_end_settles_nothing(library: Library) -> None:
    instance = library.for_shapes({"x": (1, HEADS, 8, 8)})["default"]()
    x = drawn(1, 8)
    instance.assign("x", x)
    instance.tell(True)
    with pytest.raises(minitvm.MiniTVMError, match="told to end"):
        instance.run()
    instance.tell(False)
    instance.run()
    require_right([instance.result(head) for head in instance.graph.heads], x)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_at_once(threads: int) -> None:
    library, errors = opened(threads), list[BaseException]()

    def work(first: int) -> None:
        try:
            for seq in (first, 12, 35, first, 13, 36, 12):
                run_at(library, 1, seq)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(first,)) for first in (10, 20, 33)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors[0]


def test_a_size_beyond_the_table_is_an_error_each_time(library: Library) -> None:
    x = drawn(1, LONGEST + 1)
    for _ in range(2):
        with pytest.raises(InputError, match="index 40 is outside of dimension 0"):
            library.at({"x": x.shape}).call({"x": x})
        run_at(library, 1, LONGEST)


def test_poisoned_memory(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", "1")
    for shape in ((1, 5), (2, 11), (1, 5)):
        run_at(library, *shape)
