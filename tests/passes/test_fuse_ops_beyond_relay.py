"""What FuseOps promises beyond Relay's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from rewriting import outline, run, stayed

from minitvm.ir.builder import call_op, const, function, nn, var
from minitvm.ir.decision import decisions
from minitvm.ir.expr import Call, Function, Module, Tuple
from minitvm.ir.op import OPS, Fusion, Op
from minitvm.ir.parser import parse_module
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.passes import fuse_ops
from minitvm.passes.fuse_ops import FuseOps, build_graph
from tests.steps import assert_linear

fuse = FuseOps(2)


def kernels(text: str, level: int = 2) -> list[str]:
    return outline(run(FuseOps(level), text)).splitlines()


def test_scalars_become_literals_and_arrays_parameters() -> None:
    text = """
    def @main(%x: Tensor[(2, 3), float32]) {
      %0 = multiply(%x, const([1, 2, 3], float32));
      %1 = maximum(%0, 0.5f);
      minimum(%1, 6f)
    }
    """
    fused = run(fuse, text)
    assert outline(fused).splitlines() == ["0 = fused_multiply_maximum_minimum(x, const)", "0"]


def test_a_scalar_that_a_template_reads_is_a_parameter() -> None:
    @dataclass(frozen=True)
    class Scaled(Op):
        name = "test.scaled"
        fusion = Fusion.OUT_ELEMWISE_FUSABLE
        lowered_by_template = True

        def infer(self, x: TensorType, scale: TensorType) -> TensorType:
            return x

    try:
        half = const(0.5)
        body = call_op("multiply", Call(Scaled(), (var("x", shape=(3,)), half)), half)
        assert outline(fuse(Module(function(body)))) == "0 = fused_test_scaled_multiply(x, 0.5)\n0"
        scaled = Call(Scaled(), (var("x", shape=(3,)), half))
        apart = outline(fuse(Module(function(Tuple([scaled, call_op("multiply", scaled, half)])))))
        assert apart.splitlines()[:2] == ["0 = fused_test_scaled(x, 0.5)", "1 = fused_multiply(0)"]
    finally:
        del OPS["test.scaled"]


def test_a_literal_in_two_kernels_does_not_tie_them_together() -> None:
    half, x, w = const(0.5), var("x", shape=(2, 4)), var("w", shape=(4, 4))
    y = nn.dense(call_op("multiply", x, half), w)
    body = call_op("multiply", nn.dense(y, w), half)
    assert outline(fuse(Module(function(body)))).splitlines() == [
        "0 = fused_multiply(x)",
        "1 = fused_nn_dense(0, w)",
        "2 = fused_nn_dense_multiply(1, w)",
        "2",
    ]


def test_equal_groups_share_one_function() -> None:
    x, w = var("x", shape=(2, 4)), var("w", shape=(4, 4))
    y = x
    for factor in (2.0, 2.0, 3.0):
        y = call_op("multiply", nn.dense(y, w), const(factor))
    functions = [call.op for call in calls(fuse(Module(function(y))).main.body)]
    assert functions[0] is functions[1]
    assert functions[1] is not functions[2], "another literal is another kernel"
    y = nn.dense(nn.dense(x, const(np.eye(4, dtype="float32"))), const(np.ones((4, 4), "float32")))
    first, second = (call.op for call in calls(fuse(Module(function(y))).main.body))
    assert first is second, "other weights are another argument"


def test_parameters_are_tensors_even_where_a_tuple_comes_from_outside() -> None:
    text = """
    def @main(%x: Tensor[(4, 6), float32], %y: Tensor[(4, 6), float32]) {
      %0 = (%x, %y);
      %1 = concatenate(%0, axis=0);
      %2 = concatenate(%0, axis=1);
      (%1, %2)
    }
    """
    assert kernels(text) == ["0 = fused_concatenate(x, y)", "1 = fused_concatenate(x, y)", "(0, 1)"]


def test_results_of_a_host_call_are_taken_apart_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    def @main(%x: Tensor[(4, 6), float32], %y: Tensor[(4, 6), float32]) {
      %0 = concatenate(split(%x, indices_or_sections=2, axis=1), axis=0);
      %1 = concatenate(split(%y, indices_or_sections=[3], axis=1), axis=0);
      (exp(%0), exp(%1))
    }
    """

    monkeypatch.setattr(fuse_ops, "is_lowerable", lambda c: isinstance(c.op, Op) and c.op.name != "split")
    fused = run(FuseOps(2), text)
    lines = [
        "0 = split(x)",
        "1 = fused_concatenate_exp(0.0, 0.1)",
        "2 = split(y)",
        "3 = fused_concatenate_exp(2.0, 2.1)",
    ]
    assert outline(fused).splitlines() == [*lines, "(1, 3)"]
    assert len({call.op for call in calls(fused.main.body) if isinstance(call.op, Function)}) == 1


def test_what_a_tuple_and_another_operator_read_is_computed_once() -> None:
    text = """
    def @main(%x: Tensor[(4,), float32], %y: Tensor[(4,), float32]) {
      %0 = exp(%x);
      nn.relu(add(concatenate((%0, %y)), repeat(%0, repeats=2, axis=0)))
    }
    """
    assert kernels(text) == ["0 = fused_exp(x)", "1 = fused_concatenate_repeat_add_nn_relu(0, y)", "1"]


def test_tuples_of_tuples_are_put_together_and_taken_apart_outside() -> None:
    text = """
    def @main(%t: ((Tensor[(4,), float32], Tensor[(4,), float32]), Tensor[(4,), float32])) {
      %0 = (exp(%t.0.1), negative(%t.1));
      (concatenate(%0), (%0, %t.1))
    }
    """
    expected = ["0 = fused_exp(t.0.1)", "1 = fused_negative(t.1)", "2 = fused_concatenate(0, 1)", "(2, ((0, 1), t.1))"]
    assert outline(fuse(parse_module(text))).splitlines() == expected


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("nn.attention(transpose(%x, axes=[0, 2, 1, 3]), %y, %y)", ["fused_transpose_nn_attention(x, y)"]),
        (
            "%0 = transpose(%x, axes=[0, 2, 1, 3]); nn.attention(%0, %0, %y)",
            ["fused_transpose(x)", "fused_nn_attention(0, y)"],
        ),
        ("nn.attention(%y, reverse(%y, axis=1), %y)", ["fused_reverse(y)", "fused_nn_attention(y, 0)"]),
        (
            "%0 = split(%y, indices_or_sections=2, axis=3); nn.attention(%0.0, %0.1, %y)",
            ["fused_split(y)", "fused_nn_attention(0.0, 0.1, y)"],
        ),
    ],
)
def test_what_is_merely_moved_is_read_where_it_lies(body: str, found: list[str]) -> None:
    """By whoever can, where nobody else wants the copy."""
    params = "%x: Tensor[(1, 2, 4, 6), float32], %y: Tensor[(1, 4, 2, 6), float32]"
    lines = [f"{i} = {line}" for i, line in enumerate(found)]
    assert kernels(f"def @main({params}) {{ {body} }}") == [*lines, str(len(found) - 1)]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("nn.attention(transpose(exp(%x), axes=[0, 2, 1, 3]), %y, %y)", ["fused_exp_transpose_nn_attention(x, y)"]),
        (
            "nn.attention(%y, transpose(exp(%x), axes=[0, 2, 1, 3]), %y)",
            ["fused_exp(x)", "fused_transpose_nn_attention(y, 0)"],
        ),
        (
            "%0 = add(nn.dense(reshape(%x, newshape=[8, 6]), %w), %b); "
            "%1 = split(%0, indices_or_sections=[6, 12], axis=1); %2 = reshape(%1.0, newshape=[1, 4, 2, 6]); "
            "%3 = reshape(%1.1, newshape=[1, 4, 2, 6]); nn.attention(%2, %3, %3)",
            ["fused_nn_dense_add"],
        ),
    ],
)
def test_what_each_query_reads_is_computed_before(body: str, found: list[str]) -> None:
    """Keys and values, not what is merely moved; what a layer ends in stays with the layer."""
    params = "%x: Tensor[(1, 2, 4, 6), float32], %y: Tensor[(1, 4, 2, 6), float32]"
    weights = "%w: Tensor[(24, 6), float32], %b: Tensor[(24,), float32]"
    lines = [line.partition(" = ")[2] for line in kernels(f"def @main({params}, {weights}) {{ {body} }}")]
    assert all(any(name in line for line in lines) for name in found), lines


def test_reshape_only() -> None:
    text = """
    def @main(%x: Tensor[(2, 6), float32]) {
      %0 = annotation.stop_fusion(expand_dims(reshape(%x, newshape=[3, 4]), axis=0));
      exp(squeeze(%0))
    }
    """
    found = [
        call.op.attrs["reshape_only"] for call in calls(run(fuse, text).main.body) if isinstance(call.op, Function)
    ]
    assert found == [True, False]


def test_decisions_say_why() -> None:
    text = """
    def @main(%x: Tensor[(2, 4), float32], %w: Tensor[(4, 4), float32]) {
      %0 = nn.dense(%x, %w);
      %1 = nn.relu(%0);
      %2 = sum(%1, axis=[1], keepdims=True);
      divide(%1, %2)
    }
    """
    with decisions() as log:
        fuse(parse_module(text))
    assert [str(d) for d in log] == [
        "nn.dense: FuseOps: into nn.relu: an elementwise epilogue of the anchor",
        "nn.relu: FuseOps declined: into divide: the way there is comm_reduce, an epilogue must be elementwise",
        "sum: FuseOps declined: into divide: nothing is fused after a reduction",
        "divide: FuseOps declined: its value is a result of the function, or its users meet nowhere",
    ]


def test_decisions_name_the_tuple() -> None:
    with decisions() as log:
        fuse(parse_module("def @main(%x: Tensor[(3,), float32]) { %0 = exp(%x); (%0, negative(%0)) }"))
    assert stayed(log) == [
        "exp: into a tuple: a kernel does not end in a tuple",
        "negative: into a tuple: a kernel does not end in a tuple",
    ]


def test_origin_of_a_kernel_is_that_of_all_its_operators() -> None:
    x = var("x", shape=(3,))
    body = call_op("exp", call_op("negative", x, span=("neg_1",)), span=("exp_7",))
    (call,) = calls(fuse(Module(function(body))).main.body)
    assert call.span == ("neg_1", "exp_7")


def test_post_dominators_of_a_diamond() -> None:
    """The worst edge on any way counts, wherever it lies."""
    text = """
    def @main(%x: Tensor[(3,), float32]) {
      %0 = exp(%x);
      %1 = nn.relu(%0);
      %2 = sum(negative(%0), axis=[0], keepdims=True);
      add(%1, %2)
    }
    """
    graph = build_graph(parse_module(text).main)
    tree = {expr.op.name: node for expr, node in graph.items() if isinstance(expr, Call)}  # type: ignore[union-attr]
    assert tree["exp"].parent is tree["add"] and tree["exp"].edge is Fusion.COMM_REDUCE
    assert tree["nn.relu"].edge is Fusion.ELEMWISE
    assert tree["add"].parent is None and tree["add"].depth == 1


def test_five_thousand_calls_without_recursion_or_quadratic_time() -> None:
    def tower(blocks: int) -> Module:
        x = y = var("x", shape=(2, 4))
        w = const(np.eye(4, dtype="float32"))
        for _ in range(blocks):
            y = call_op("add", nn.relu(nn.dense(y, w)), call_op("multiply", y, const(0.5)))
        return Module(function(call_op("exp", y), [x]))

    assert_linear(lambda blocks: partial(fuse, tower(blocks)), 100)
    fused = fuse(tower(1000))
    assert len({id(call.op) for call in calls(fused.main.body)}) <= 4
