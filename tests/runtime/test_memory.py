"""The memory plan: reuse, what must not be shared, and how close it comes to the least possible."""

from __future__ import annotations

import itertools
from functools import partial
from random import Random

import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm
from minitvm import relay
from minitvm.driver.program import read_program
from minitvm.ir.types import TensorType
from minitvm.passes import FuseOps
from minitvm.runtime import memory
from minitvm.runtime.graph import Alias, CpuTag, Graph, Launch, Node
from minitvm.runtime.memory import Request, Stack, lower_bound, pack, pack_apart, plan_memory, spread_limit
from tests.steps import assert_linear


def graph_of(function: relay.Function, opt_level: int = 0) -> Graph:
    return read_program(FuseOps(opt_level)(function).main).graph


def test_plan_memory() -> None:
    """Relay's case: a chain of six values over two inputs needs two storages besides the inputs'."""
    x, y = relay.var("x", shape=(10,)), relay.var("y", shape=(1,))
    z = relay.add(x, relay.exp(y))
    for _ in range(3):
        z = relay.exp(z)
    plan = plan_memory(graph_of(relay.Function([x, y], z)))
    assert len(set(plan.storage_ids)) == 4
    assert plan.nbytes == plan.lower_bound == 128 and plan.naive == 5 * 64


def test_reshape_nop() -> None:
    """Relay's case: reshapes share the storage of what they reshape."""
    x = relay.var("x", shape=(10, 4))
    y = relay.expand_dims(relay.abs(x), axis=1)
    t0 = relay.reshape(y, newshape=(1, 40))
    t1 = relay.abs(y)
    results = [relay.reshape(t0, newshape=(2, 20)), relay.sqrt(t1), relay.reshape(t1, newshape=(1, 40))]
    graph = graph_of(relay.Function([x], relay.Tuple(results)), opt_level=1)
    plan = plan_memory(graph)
    storage = dict(zip([node.name for node in graph.nodes], plan.storage_ids, strict=True))
    nops = [i for i, node in enumerate(graph.nodes) if node.step == Alias()]
    assert nops and all(plan.storage_ids[i] == plan.storage_ids[graph.nodes[i].inputs[0][0]] for i in nops)
    assert len(set(storage.values())) == 4


def test_a_reshape_of_an_input_is_the_input() -> None:
    x = relay.var("x", shape=(4, 6))
    plan = plan_memory(graph_of(relay.Function([x], relay.reshape(x, newshape=(24,)))))
    assert plan.storage_ids == (0, 0) and plan.offsets == (-1, -1) and plan.nbytes == 0


def chain(sizes: list[int]) -> Graph:
    types = [TensorType((n,), "int8") for n in sizes]
    nodes = [Node("n0", None, (), (types[0],))]
    nodes += [Node(f"n{i}", Launch("kernel"), ((i - 1, 0),), (t,)) for i, t in enumerate(types) if i]
    return Graph(tuple(nodes), ((len(sizes) - 1, 0),))


def test_workspaces_lie_in_the_arena_while_their_kernel_runs() -> None:
    graph = chain([64, 640, 64, 64])
    plan = plan_memory(graph, {2: 100, 3: 5000})
    assert set(plan.workspaces) == {2, 3}
    start = plan.workspaces[2]
    for entry in (1, 2):
        low, high = plan.offsets[entry], plan.offsets[entry] + graph.entry_types[entry].nbytes
        assert high <= start or start + 100 <= low
    assert plan.nbytes == plan.lower_bound


def test_results_of_the_graph_live_to_its_end() -> None:
    graph = chain([64] * 6)
    plan = plan_memory(Graph(graph.nodes, ((1, 0), (5, 0))))
    assert plan.offsets.count(plan.offsets[1]) == 1


requests = st.lists(
    st.builds(
        lambda nbytes, first, length: Request(64 * nbytes, first, first + length),
        st.integers(0, 40),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=40,
)


def check_apart(wanted: list[Request], offsets: list[int]) -> None:
    for (a, at), (b, bt) in itertools.combinations(zip(wanted, offsets, strict=True), 2):
        together = a.first <= b.last and b.first <= a.last
        assert not together or a.nbytes == 0 or b.nbytes == 0 or at + a.nbytes <= bt or bt + b.nbytes <= at


@settings(max_examples=150, deadline=None)
@given(requests)
def test_what_is_alive_together_never_overlaps(wanted: list[Request]) -> None:
    offsets = pack(wanted)
    check_apart(wanted, offsets)
    top = max((o + r.nbytes for o, r in zip(offsets, wanted, strict=True)), default=0)
    assert lower_bound(wanted) <= top <= sum(r.nbytes for r in wanted)


@settings(max_examples=150, deadline=None)
@given(requests, st.randoms(use_true_random=False))
def test_values_of_other_sizes_stay_above_and_below_each_other(wanted: list[Request], random: Random) -> None:
    offsets = pack(wanted)
    stack = Stack.of(wanted, offsets)
    assert all(again <= at for at, again in zip(offsets, stack.placed(wanted), strict=True))
    others = [Request(64 * random.randrange(40), r.first, r.last) for r in wanted]
    check_apart(others, stack.placed(others))


@settings(max_examples=150, deadline=None)
@given(requests, st.randoms(use_true_random=False))
def test_requests_of_other_kinds_share_no_memory(wanted: list[Request], random: Random) -> None:
    kinds = [random.randrange(3) for _ in wanted]
    offsets = pack_apart(wanted, kinds)
    check_apart(wanted, offsets)
    ends = [at + r.nbytes for at, r in zip(offsets, wanted, strict=True)]
    for (a, at, end), (b, bt, other) in itertools.combinations(zip(kinds, offsets, ends, strict=True), 2):
        assert a == b or end <= bt or other <= at


def images(*shapes: tuple[int, ...]) -> Graph:
    types = [TensorType(shape, "float32") for shape in shapes]
    nodes = [Node("n0", None, (), (types[0],))]
    nodes += [Node(f"n{i}", Launch("kernel"), ((i - 1, 0),), (t,)) for i, t in enumerate(types) if i]
    return Graph(tuple(nodes), ((len(types) - 1, 0),))


def test_images_of_one_size_share_memory_and_others_lie_apart() -> None:
    """So a core writes the rows that it wrote before."""
    large, small, few = (1, 2, 8, 8, 16), (1, 6, 4, 4, 16), (1, 2, 4, 4, 16)
    graph = images(large, large, large, small, few, small, few)
    together, apart = plan_memory(graph), plan_memory(graph, room=24 * 1024)
    assert (together.nbytes, apart.nbytes) == (16 * 1024, 24 * 1024)
    first, second, *others = apart.offsets[1:]
    assert {first, second} == {0, 8 * 1024} and others[:2] == others[2:]
    assert {*others[:2]} in ({16 * 1024, 22 * 1024}, {16 * 1024, 18 * 1024})
    assert plan_memory(graph, room=apart.nbytes - 1) == together


def test_where_room_is_short_workspaces_alone_lie_apart() -> None:
    """What threads keep to themselves is written by the core that wrote it before."""
    large, small = (1, 2, 8, 8, 16), (1, 6, 4, 4, 16)
    graph, workspaces = images(large, large, large, small, small, small), {5: 4096}
    together, apart = plan_memory(graph, workspaces), plan_memory(graph, workspaces, room=20 * 1024)
    assert (together.nbytes, apart.nbytes) == (16 * 1024, 20 * 1024)
    assert apart.workspaces == {5: 16 * 1024}
    assert plan_memory(graph, workspaces, room=apart.nbytes - 1) == together


@pytest.mark.parametrize("shapes", [[(2, 2, 8, 8)] * 3 + [(2, 4, 8, 8)], [(8, 64)] * 3 + [(16, 64)]])
def test_what_is_no_image_is_packed(shapes: list[tuple[int, ...]]) -> None:
    assert plan_memory(images(*shapes), room=1 << 20) == plan_memory(images(*shapes))


def test_one_thread_has_no_room_for_images_apart() -> None:
    cpu = CpuTag("x86_64", "znver4", (), (32 << 10, 1 << 20, 32 << 20))
    assert (spread_limit(cpu, 1), spread_limit(cpu, 2), spread_limit(CpuTag("", "interpreter", ()), 2)) == (
        0,
        16 << 20,
        0,
    )


SOFTMAXES = """<ir_version: 8, opset_import: ["" : 17]> softmaxes (float[1, 4, ROWS, 32] x) => (float[1, 4, m, 16] y)
{
  a = Softmax(x)  b = Softmax(a)
  c = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b)
  d = Softmax(c)  y = Softmax(d)
}"""


@pytest.mark.parametrize("rows", ["32", "n"])
def test_on_several_threads_a_session_has_images_apart(rows: str) -> None:
    large, small = (4 * n * n * 4 for n in (32, 16))
    model, sizes = onnx.parser.parse_model(SOFTMAXES.replace("ROWS", rows)), []
    for threads in (1, 2):
        session = minitvm.InferenceSession(model, num_threads=threads, target="llvm -caches=32K,1M,4M")
        session.prepare({"x": (1, 4, 32, 32)})
        sizes += [library.artifact.plan.nbytes for library in session.libraries]
    assert sizes == [2 * large, 2 * large + 2 * small]


def test_sizes_that_grow_alike_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    monkeypatch.setattr(memory, "pack", lambda requests: packed.append(1) or pack(requests))
    sizes = [128, 640, 64, 320, 64, 1280]
    planner = memory.Planner(chain(sizes), [3])
    for factor in (1, 7, 2, 40):
        graph = chain([factor * size for size in sizes])
        found, alone = planner.plan(graph, {3: 192 * factor}), plan_memory(graph, {3: 192 * factor})
        assert found.nbytes == alone.nbytes and found.lower_bound == alone.lower_bound and found.naive == alone.naive
    assert len(packed) == 1 + 4
    found = planner.plan(chain([64, 64, 64, 64, 6400, 64]), {3: 64})
    assert found.nbytes <= memory.Planner.WASTE * found.lower_bound


def test_a_graph_of_thousands_of_calls_is_planned_in_linear_time() -> None:
    def graph_of(calls: int) -> Graph:
        return chain([64 * (1 + i % 7) for i in range(calls)])

    assert_linear(lambda calls: partial(plan_memory, graph_of(calls)), 500)
    plan = plan_memory(graph_of(5000))
    assert plan.nbytes <= 1.1 * plan.lower_bound
