"""ShareMemory: which concatenations and slices need no kernel, which operands are copied, and why."""

from __future__ import annotations

import pytest
from rewriting import outline, run

from minitvm.driver.program import read_program
from minitvm.ir.decision import decisions
from minitvm.ir.dims import assumptions
from minitvm.ir.expr import Function
from minitvm.ir.parser import parse_module
from minitvm.ir.visitor import calls
from minitvm.passes import FuseOps, PassContext, Sequential, ShareMemory
from minitvm.runtime.graph import Alias, Graph, Join
from minitvm.runtime.memory import plan_memory
from minitvm.runtime.places import places

# cumsum fuses with nothing, so it is a kernel of its own


def shared(body: str, shape: str = "(1, 4, 16)") -> tuple[Graph, list[str], str]:
    """The graph of a function of %x after both passes, what was decided, and its calls."""
    text = f"def @main(%x: Tensor[{shape}, float32]) {{ {body} }}"
    with PassContext(opt_level=3), decisions() as log:
        module = run(Sequential([FuseOps(2), ShareMemory()]), text)
    found = [f"{'' if d.taken else 'declined: '}{d.reason}" for d in log if d.by == "ShareMemory"]
    return read_program(module.main).graph, found, outline(module)


def test_operands_are_made_in_the_result_one_behind_the_other() -> None:
    graph, found, _ = shared("%0 = cumsum(%x, axis=1); %1 = cumsum(%0, axis=2); concatenate((%1, %0), axis=1)")
    assert found == ["operands are made in its result"]
    assert [type(node.step).__name__ for node in graph.nodes] == ["NoneType", "Launch", "Launch", "Join"]
    assert places(graph) == [(0, 0), (3, 256), (3, 0), (3, 0)]
    plan = plan_memory(graph)
    assert plan.offsets == (-1, 256, 0, 0) and plan.nbytes == plan.lower_bound == 512 and plan.naive == 512


def test_a_group_says_what_its_memory_is() -> None:
    body = "%0 = split(cumsum(%x, axis=1), indices_or_sections=2, axis=1); (cumsum(%0.0, axis=2), cumsum(%0.1, axis=2))"
    text = f"def @main(%x: Tensor[(1, 4, 16), float32]) {{ {body} }}"
    with PassContext(opt_level=3):
        module = run(Sequential([FuseOps(2), ShareMemory()]), text)
    (group,) = [c.op for c in calls(module.main.body) if isinstance(c.op, Function) and "starts" in c.op.attrs]
    assert group.attrs["starts"] == (0, 128)
    assert parse_module(module.astext()).astext() == module.astext()


def test_parts_lie_within_parts() -> None:
    body = "%0 = cumsum(%x, axis=1); %1 = cumsum(%0, axis=2); %2 = concatenate((%0, %1), axis=1);"
    graph, found, _ = shared(body + "%3 = cumsum(%2, axis=1); concatenate((%3, %2), axis=1)")
    assert found == ["operands are made in its result"] * 2
    assert places(graph) == [(0, 0), (5, 512), (5, 768), (5, 512), (5, 0), (5, 0)]


def test_what_is_no_kernels_or_has_a_place_is_copied() -> None:
    body = "%0 = cumsum(%x, axis=1); %1 = cumsum(%0, axis=2); %2 = concatenate((%0, %x), axis=1);"
    _, found, text = shared(body + "%3 = concatenate((%0, %1), axis=1); (cumsum(%2, axis=1), cumsum(%3, axis=1))")
    assert found == [
        "operands are made in its result, others copied: operand 1 is an input",
        "operands are made in its result, others copied: operand 0 has a place in another concatenation",
    ]
    assert text.count("fused_copy") == 2


def test_results_of_the_model_are_nobodys_parts() -> None:
    body = "%0 = cumsum(%x, axis=1); %1 = cumsum(%0, axis=2); %2 = concatenate((%0, %1), axis=1);"
    _, found, _ = shared(body + "(reshape(%0, newshape=(64,)), %2)")
    assert found == ["operands are made in its result, others copied: operand 0 is a result of the model"]
    _, found, _ = shared("%0 = cumsum(%x, axis=1); split(%0, indices_or_sections=2, axis=1)")
    assert found == ["declined: it is a result of the model"]


@pytest.mark.parametrize(
    ("shape", "body", "reason"),
    [
        ("(2, 4, 16)", "concatenate((%0, %1), axis=1)", "parts are not one stretch of memory each"),
        ("(1, 3, 5)", "concatenate((%0, %1), axis=1)", "a part begins at byte 60, which is no multiple of 64"),
        ("(1, 0, 16)", "concatenate((%0, %1), axis=1)", "a part has no elements"),
        (
            "(1, 4, 16)",
            "concatenate((%0, %x, reshape(%x, newshape=(1, 4, 16))), axis=0)",
            "most operands cannot be made in its result: operand 1 is an input; operand 2 is an input",
        ),
    ],
)
def test_a_kernel_joins_where_memory_does_not(shape: str, body: str, reason: str) -> None:
    _, found, _ = shared(f"%0 = cumsum(%x, axis=1); %1 = cumsum(%0, axis=2); cumsum({body}, axis=1)", shape)
    assert found == [f"declined: {reason}"]


def test_twice_the_same_operand_is_no_join_in_place() -> None:
    graph, found, _ = shared("%0 = cumsum(%x, axis=1); cumsum(concatenate((%0, %0), axis=1), axis=1)")
    assert found == [] and not any(isinstance(node.step, Join) for node in graph.nodes)


def test_slices_are_read_where_they_lie() -> None:
    cut = "strided_slice(%0, begin=[0, 1], end=[1, 3])"
    graph, found, _ = shared(f"%0 = cumsum(%x, axis=1); cumsum(reshape({cut}, newshape=(2, 16)), axis=1)")
    assert found == ["read where it lies"]
    assert [node.step for node in graph.nodes if isinstance(node.step, Alias)] == [Alias((64,))]
    assert places(graph)[2] == (1, 64)


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        ("strided_slice(%0, begin=[0, 0, 8], end=[1, 1, 16])", "a part begins at byte 32, which is no multiple of 64"),
        ("strided_slice(%x, begin=[0, 1], end=[1, 3])", "what it is cut out of lies anywhere"),
    ],
)
def test_slices_that_are_copied(cut: str, reason: str) -> None:
    _, found, _ = shared(f"%0 = cumsum(%x, axis=1); (cumsum({cut}, axis=1), cumsum(%0, axis=1))")
    assert found == [f"declined: {reason}"]


@pytest.mark.parametrize("how", ["begin=[0, 0, 0], end=[1, 4, 8]", "begin=[0, 0], end=[1, 4], strides=[1, 2]"])
def test_slices_that_are_no_stretch_have_a_kernel(how: str) -> None:
    graph, found, _ = shared(f"%0 = cumsum(%x, axis=1); cumsum(strided_slice(%0, {how}), axis=1)")
    assert found == [] and not any(isinstance(node.step, Alias) for node in graph.nodes)


def test_a_slice_that_is_joined_is_made_there() -> None:
    body = "%0 = cumsum(%x, axis=1); %1 = strided_slice(%0, begin=[0, 1], end=[1, 3]);"
    graph, found, _ = shared(body + "%2 = cumsum(%1, axis=1); cumsum(concatenate((%2, %1), axis=1), axis=1)")
    assert found == ["operands are made in its result", "declined: it is made in the result of a concatenation"]
    assert len([node for node in graph.nodes if node.is_kernel]) == 4


def test_what_is_joined_with_a_kernels_result_is_made_in_place_too() -> None:
    """FuseOps leaves the operands of such a concatenation alone, unless no other pass follows."""
    body = "%0 = cumsum(%x, axis=1); concatenate((%0, transpose(%x, axes=[0, 1, 2])), axis=1)"
    assert "fused_transpose_concatenate" not in shared(body)[2]
    text = f"def @main(%x: Tensor[(1, 4, 16), float32]) {{ {body} }}"
    with PassContext(opt_level=3, disabled_pass=["ShareMemory"]):
        assert "fused_transpose_concatenate" in outline(run(FuseOps(2), text))


def test_operands_that_nothing_but_moves_are_fused() -> None:
    body = "%0 = cumsum(%x, axis=1); concatenate((transpose(%0, axes=[0, 1, 2]), exp(%x)), axis=1)"
    assert "fused_transpose_exp_concatenate" in shared(body)[2]


def test_a_kernel_of_nothing_makes_its_part_as_any() -> None:
    body = '%0 = cumsum(zeros(shape=[1, 4, 16], dtype="float32"), axis=1);'
    _, found, text = shared(body + "cumsum(concatenate((cumsum(%x, axis=1), %0), axis=1), axis=1)")
    assert found == ["operands are made in its result"] and "fused_zeros()" in text


def test_open_sizes_are_joined_by_a_kernel() -> None:
    body = "%0 = nn.softmax(%x); nn.softmax(concatenate((%0, nn.softmax(%0)), axis=1))"
    with PassContext(opt_level=3), assumptions():
        module = parse_module(f"def @main(%x: Tensor[(1, n, 16), float32]) {{ {body} }}")
        found = Sequential([FuseOps(2), ShareMemory()])(module)
    assert "fused_concatenate" in outline(found) and "joined" not in found.astext()
