"""What is bound stays where kernels found it: a run costs what was bound anew, and is right whatever was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import minitvm
from minitvm.errors import MiniTVMError
from minitvm.ort.again import Again
from minitvm.ort.binding import IOBinding
from minitvm.ort.values import OrtValue
from tests.steps import steps

ROOM, SIZE = 64, 32


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", "0")


def decoder(caches: int = 1) -> minitvm.InferenceSession:
    """Grouped-query attention of each cache over buffers; the mask's length is how many places there are then."""
    nodes = [
        helper.make_node("ReduceSum", ["mask", "axis"], ["sums"], keepdims=0),
        helper.make_node("Sub", ["sums", "one"], ["last64"]),
        helper.make_node("Cast", ["last64"], ["last"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["total64"], axis=0),
        helper.make_node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
    ]
    rows: list[str | int | None] = ["b", "n", 2 * SIZE]
    value, inputs, outputs = helper.make_tensor_value_info, [], []
    for k in range(caches):
        names = [f"x{k}", f"x{k}", f"x{k}", f"key{k}", f"value{k}", "last", "total"]
        results = [f"y{k}", f"new_key{k}", f"new_value{k}"]
        made = helper.make_node(
            "GroupQueryAttention", names, results, domain="com.microsoft", num_heads=2, kv_num_heads=2
        )
        nodes.append(made)
        cache: list[str | int | None] = ["b", 2, "room", SIZE]
        inputs += [value(f"x{k}", TensorProto.FLOAT, rows)]
        inputs += [value(name, TensorProto.FLOAT, cache) for name in names[3:5]]
        outputs += [value(results[0], TensorProto.FLOAT, rows)]
        outputs += [value(name, TensorProto.FLOAT, cache) for name in results[1:]]
    known = [helper.make_tensor(name, TensorProto.INT64, [1], [1]) for name in ("axis", "one")]
    inputs.append(value("mask", TensorProto.INT64, ["b", "total"]))
    graph = helper.make_graph(nodes, "g", inputs, outputs, known)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return minitvm.InferenceSession(model.SerializeToString(), num_threads=1)


class Steps:
    """A binding of caches in place, with the same caches beside it for runs that bind nothing."""

    def __init__(self, session: minitvm.InferenceSession, caches: int = 1) -> None:
        self.session, self.caches, self.past = session, caches, 0
        self.binding = session.io_binding()
        self.beside: dict[str, Any] = {}
        for k in range(caches):
            self.binding.bind_output(f"y{k}")
            for kind in ("key", "value"):
                buffer = OrtValue.ortvalue_from_shape_and_type((1, 2, ROOM, SIZE), np.float32)
                buffer.numpy()[...] = 0
                self.beside[f"{kind}{k}"] = np.zeros((1, 2, ROOM, SIZE), np.float32)
                self.binding.bind_ortvalue_input(f"{kind}{k}", buffer)
                self.binding.bind_ortvalue_output(f"new_{kind}{k}", buffer)
        self.rng = np.random.default_rng(caches)

    def bind(self, new: int = 1, **instead: Any) -> None:
        self.past += new
        mask = np.ones((1, self.past), np.int64)
        given = {f"x{k}": self.rng.normal(size=(1, new, 2 * SIZE)).astype("f") for k in range(self.caches)}
        self.given = {"mask": mask, **given, **instead}
        for name, array in self.given.items():
            self.binding.bind_cpu_input(name, array)

    def run(self) -> list[np.ndarray]:
        self.session.run_with_iobinding(self.binding)
        return [value.numpy() for value in self.binding.get_outputs()]

    def check(self, new: int = 1, **instead: Any) -> list[np.ndarray]:
        self.bind(new, **instead)
        want = self.session.run(None, {**{n: a.copy() for n, a in self.given.items()}, **self.beside})
        found = dict(zip(self.binding._bound, [a.copy() for a in self.run()], strict=True))
        names = [output.name for output in self.session.get_outputs()]
        for name, array in zip(names, want, strict=True):
            np.testing.assert_array_equal(found[name], array, err_msg=name)
        self.beside = {n.removeprefix("new_"): a for n, a in zip(names, want, strict=True) if n.startswith("new_")}
        return list(found.values())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each run that began as the one before, whether it could go on so."""
    found, original = list[bool](), Again.run

    def run(self: Again, new: Any) -> Any:
        results = original(self, new)
        found.append(results is not None)
        return results

    monkeypatch.setattr(Again, "run", run)
    return found


def test_steps_find_what_is_bound_where_it_was(quick: list[bool]) -> None:
    one = Steps(decoder())
    one.check(17)
    for _ in range(20):
        one.check()
    assert sum(quick) > 12


def test_a_step_takes_as_many_lines_however_much_is_bound() -> None:
    def lines(caches: int) -> int:
        one, found = Steps(decoder(caches), caches), list[int]()
        one.check(17)
        for _ in range(6):  # of which some need a larger plan
            one.bind()
            found.append(steps(one.run))
        return min(found)

    few, many = lines(2), lines(12)
    assert few < 600 and (many - few) / 10 < 130  # an x that is bound anew and a new y, whatever caches there are


def test_an_input_over_what_is_written_is_read_before(quick: list[bool]) -> None:
    one = Steps(decoder())
    for new in (3, 1, 1):
        one.check(new)
    buffer = one.binding._bound["new_value0"].value
    assert buffer is not None
    one.check(x0=buffer.numpy()[0, 0, :2].reshape(1, 1, 2 * SIZE))
    assert not quick[-1]
    one.check()


def test_what_is_bound_to_other_memory_is_written_there() -> None:
    one = Steps(decoder())
    for new in (3, 1, 1):
        one.check(new)
    old = one.binding._bound["new_key0"].value
    assert old is not None
    before, other = old.numpy().copy(), OrtValue.ortvalue_from_numpy(old.numpy().copy())
    one.binding.bind_ortvalue_input("key0", other)
    one.binding.bind_ortvalue_output("new_key0", other)
    one.check()
    one.check()
    np.testing.assert_array_equal(old.numpy(), before)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((1, 1, 2 * SIZE), "d"), np.zeros((2, 1, 2 * SIZE), "f"), np.zeros((1, 2 * SIZE), "f")],
    ids=["dtype", "batch", "rank"],
)
def test_a_wrong_input_is_an_error_as_ever_and_steps_go_on(wrong: np.ndarray) -> None:
    one = Steps(decoder())
    for new in (3, 1, 1):
        one.check(new)
    one.bind(x0=wrong)
    with pytest.raises(MiniTVMError, match=r"x0|dimension|\[2, 1\]"):
        one.run()
    one.past -= 1
    one.check()


def test_strided_arrays_are_read_as_they_are() -> None:
    one = Steps(decoder())
    for new in (3, 1, 1):
        one.check(new)
    one.check(x0=np.random.default_rng(0).normal(size=(1, 1, 4 * SIZE)).astype("f")[..., ::2])


def gathers() -> minitvm.InferenceSession:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (int64[n] i, float[m, 4] table)
        => (float[n, 4] y) <float two = {2.0}> { rows = Gather(table, i) y = Mul(rows, two) }""")
    return minitvm.InferenceSession(model.SerializeToString(), num_threads=1)


def test_an_index_out_of_range_is_found_and_the_binding_works_after_it() -> None:
    session = gathers()
    binding, table = session.io_binding(), np.arange(20, dtype="f").reshape(5, 4)
    binding.bind_cpu_input("table", table)
    binding.bind_output("y")

    def rows(*indices: int) -> np.ndarray:
        binding.bind_cpu_input("i", np.array(indices))
        session.run_with_iobinding(binding)
        found: np.ndarray = binding.get_outputs()[0].numpy()
        return found

    for indices in ((1, 2), (3, 4), (0, 1)):
        np.testing.assert_array_equal(rows(*indices), 2 * table[[*indices]])
    with pytest.raises(MiniTVMError, match="7"):
        rows(7, 1)
    np.testing.assert_array_equal(rows(4, 1), 2 * table[[4, 1]])
    np.testing.assert_array_equal(rows(4, 1, 0), 2 * table[[4, 1, 0]])


def test_a_binding_goes_to_another_session() -> None:
    one, other = decoder(), decoder()
    step = Steps(one)
    for new in (3, 1, 1):
        step.check(new)
    step.session = other
    step.check()
    assert isinstance(step.binding, IOBinding) and len(other.libraries) == 1


def test_shapes_that_stay_get_kernels_of_their_own() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[b, 8] x) => (float[b, 8] y) <float two = {2.0}> { z = Mul(x, two) y = Softmax(z) }""")
    session = minitvm.InferenceSession(model.SerializeToString(), num_threads=1, specialise_after=4)
    binding = session.io_binding()
    binding.bind_output("y")
    for count in (3, 4, 4, 4, 4):
        binding.bind_cpu_input("x", np.ones((count, 8), "f"))
        session.run_with_iobinding(binding)
    worker = session._engine.worker
    assert worker is not None
    worker.shutdown(wait=True)
    assert [one.taken for one in session.compiled_beside] == [True]
