"""Values that are parts of others: right results whatever is joined and cut, given out, saved, or of open sizes."""

from __future__ import annotations

import pathlib
from random import Random

import numpy as np
import onnx.parser
import pytest

import minitvm
from minitvm import relay
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function
from minitvm.ir.expr import Tuple as TupleExpr
from minitvm.lab.check_models import overlaps
from minitvm.runtime.debug import create
from minitvm.runtime.direct import WORTH_BINDING, DirectCall, How
from minitvm.runtime.graph import Alias, Join
from minitvm.runtime.library import Library
from minitvm.runtime.places import places

SIZE = 4
"""Of images; a channel of them is 64 bytes."""


_KINDS = ("kernel", "kernel", "join", "join", "cut", "slice", "slice", "add", "reshape")


def drawn(seed: int) -> Function:
    """Integers joined, cut and computed with; whatever has no user, and some that have, is a result."""
    random = Random(seed)
    values: list[Expr] = [relay.var(f"x{i}", shape=(1, 2 + i, SIZE, SIZE), dtype="int32") for i in range(2)]
    inputs, used = list(values), set[Expr]()

    def pick() -> Expr:
        found = random.choice(values[-6:])
        used.add(found)
        return found

    for _ in range(16):
        x, kind = pick(), random.choice(_KINDS)
        channels = x.type.static_shape[1]
        at = random.randint(1, channels - 1) if channels > 1 else 0
        if kind == "join":
            values.append(relay.concatenate([x, *(pick() for _ in range(random.randint(1, 2)))], axis=1))
        elif kind == "cut" and at:
            parts = relay.split(x, (at,), axis=1)
            values += [parts[0], parts[1]]
        elif kind == "slice" and at:
            values.append(relay.strided_slice(x, begin=[0, at], end=[1, channels]))
        elif kind == "reshape":
            flat = relay.reshape(x, newshape=(1, -1))
            values.append(relay.reshape(relay.cumsum(flat, axis=1), newshape=(1, channels, SIZE, SIZE)))
        else:
            values.append(x + x if kind == "add" else relay.cumsum(x, axis=random.choice([1, 2, 3])))
    results = [v for v in values[2:] if v not in used or random.random() < 0.1]
    return relay.Function(inputs, TupleExpr(results))


def build(function: Function) -> Library:
    return relay.build(function, opt_level=3)


def fed(function: Function, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {p.name: rng.integers(-9, 9, p.type.static_shape).astype(p.type.dtype) for p in function.params}


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_joined_and_cut(seed: int, tmp_path: pathlib.Path) -> None:
    function = drawn(seed)
    library = build(function)
    assert not overlaps(library.graph, library.plan)
    library.save(tmp_path / "one.mtvm")
    loaded = minitvm.load(tmp_path / "one.mtvm")
    assert loaded.graph == library.graph and loaded.plan == library.plan
    calls = [DirectCall(of["default"](None, threads)) for of, threads in ((library, 1), (library, 2), (loaded, 1))]
    for again in range(2):
        feeds = fed(function, 10 * seed + again)
        expected = evaluate(function, *feeds.values())
        for call in calls:
            for have, want in zip(call.run(feeds), expected, strict=True):
                np.testing.assert_array_equal(have, want)


def test_the_graphs_above_share_memory_in_all_ways() -> None:
    steps, kept = list[object](), 0
    for seed in range(12):
        graph = build(drawn(seed)).graph
        steps += [node.step for node in graph.nodes]
        kept += sum(start > 0 and graph.makers[entry].is_kernel for entry, (_, start) in enumerate(places(graph)))
    assert sum(isinstance(step, Join) for step in steps) > 12 and kept > 12
    assert sum(isinstance(step, Alias) and any(step.starts) for step in steps) > 3


def joined(extent: int) -> Function:
    """x -> (all, part): ``all`` joins two kernels' results, of which the last one is used again."""
    x = relay.var("x", shape=(1, 4, extent), dtype="int32")
    first = relay.cumsum(x, axis=1)
    second = relay.cumsum(first, axis=2)
    return relay.Function([x], TupleExpr([relay.concatenate([first, second], axis=1), relay.cumsum(second, axis=2)]))


@pytest.mark.parametrize("extent", [16, WORTH_BINDING // 4])
def test_a_result_that_has_parts_is_given_out(extent: int) -> None:
    function = joined(extent)
    call = DirectCall(build(function)["default"]())
    kept = []
    for seed in range(3):
        feeds = fed(function, seed)
        kept.append((call.run(feeds), evaluate(function, *feeds.values())))
    into = minitvm.nd.empty((1, 8, extent), "int32").numpy()
    feeds = fed(function, 9)
    found = call.run(feeds, How({0: into}))
    assert found[0] is into
    for have, want in [*kept, (found, evaluate(function, *feeds.values()))]:
        for one, other in zip(have, want, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_result_that_has_parts_is_written_where_the_user_says() -> None:
    function = joined(16)
    module = minitvm.GraphModule(build(function)["default"](minitvm.cpu()))
    place, feeds = minitvm.nd.empty((1, 8, 16), "int32"), fed(function, 1)
    module.set_output_zero_copy(0, place)
    module.run(feeds)
    for have, want in zip((place, module.get_output(1)), evaluate(function, *feeds.values()), strict=True):
        np.testing.assert_array_equal(have.numpy(), want)


def test_node_by_node() -> None:
    function, feeds = joined(16), fed(joined(16), 2)
    library = build(function)
    module = create(library.graph_json, library, minitvm.cpu())
    module.run(**feeds)
    (name,) = (node.name for node in library.graph.nodes if isinstance(node.step, Join))
    np.testing.assert_array_equal(module.debug_get_output(name).numpy(), evaluate(function, *feeds.values())[0])


def test_beside_open_dimensions() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x, int32[1, 4, 16] y) => (float[n, 4] a, int32[1, 8, 16] b)
        <int64 one = {1}> {
            a = Softmax <axis = 1> (x)
            c = CumSum (y, one)
            d = CumSum (c, one)
            e = Concat <axis = 1> (d, c)
            b = CumSum (e, one)
        }"""
    )
    session = minitvm.InferenceSession(model)
    for n in (2, 7):
        x, y = np.zeros((n, 4), "float32"), np.arange(64, dtype="int32").reshape(1, 4, 16)
        a, b = session.run(None, {"x": x, "y": y})
        np.testing.assert_array_equal(a, np.full((n, 4), 0.25, "float32"))
        once = y.cumsum(1, dtype="int32")
        np.testing.assert_array_equal(b, np.concatenate([once.cumsum(1), once], 1).cumsum(1, dtype="int32"))


def test_a_branch_that_joins() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (bool c, int32[1, 4, 16] y) => (int32[1, 8, 16] b) <int64 one = {1}> {
            b = If (c) <
                then_branch = g1 () => (int32[1, 8, 16] t) {
                    t0 = CumSum (y, one)
                    t1 = CumSum (t0, one)
                    t = Concat <axis = 1> (t1, t0)
                },
                else_branch = g2 () => (int32[1, 8, 16] s) {
                    s0 = CumSum (y, one)
                    s = Concat <axis = 1> (s0, y)
                }
            >
        }"""
    )
    session, y = minitvm.InferenceSession(model), np.arange(64, dtype="int32").reshape(1, 4, 16)
    once = y.cumsum(1, dtype="int32")
    for c, parts in ((True, [once.cumsum(1), once]), (False, [once, y])):
        (found,) = session.run(None, {"c": np.array(c), "y": y})
        np.testing.assert_array_equal(found, np.concatenate(parts, 1))


def test_an_explanation_says_where_it_is() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (int32[1, 4, 16] y) => (int32[1, 8, 16] b) <int64 one = {1}> {
            c = CumSum (y, one)
            d = CumSum (c, one)
            b = Concat <axis = 1> (d, c)
        }"""
    )
    model.graph.node[2].name = "joined"
    text = str(minitvm.compile(model).report.explain(node="joined"))
    assert "No kernel computes it: its values are in place already, as is said below." in text
    assert "fused_concatenate (joined): ShareMemory: operands are made in its result." in text
