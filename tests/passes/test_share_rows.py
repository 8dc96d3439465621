"""ShareRows: marked are groups of depthwise convolutions that convolutions over all channels read, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.driver import build
from minitvm.ir.decision import decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Function, Module
from minitvm.ir.parser import parse_module
from minitvm.ir.visitor import calls
from minitvm.passes import FuseOps, PassContext, Sequential, ShareRows
from minitvm.target import MachineModel
from minitvm.testing.checks import assert_close_to_scale, assert_same_numbers, check_unchanged

MACHINE = MachineModel(32, 16, threads=2)
OPERANDS = """%x: Tensor[(1, 2, 8, 8, 8), float32], %w: Tensor[(2, 1, 3, 3, 1, 8), float32],
    %p: Tensor[(3, 2, 1, 1, 8, 8), float32], %s: Tensor[(1, 2, 1, 1, 8), float32]"""
LAYOUTS = 'data_layout="NCHW8c", out_layout="NCHW8c"'
DEPTHWISE = (
    f'nn.contrib_depthwise_conv2d_NCHWc({{}}, %w, groups=16, padding=[1, 1, 1, 1], kernel_layout="OIHW1i8o", {LAYOUTS})'
)
POINTWISE = f'nn.contrib_conv2d_NCHWc({{}}, %p, kernel_layout="OIHW8i8o", {LAYOUTS})'


def shared(body: str, machine: MachineModel = MACHINE) -> tuple[list[bool], list[str]]:
    """Whether each group with a depthwise convolution is marked, in order; what was decided."""
    module = parse_module(f"def @main({OPERANDS}) {{ {body} }}")
    with decisions() as log, PassContext(opt_level=3):
        found = Sequential([FuseOps(), ShareRows(machine)])(module)
    assert_same_numbers(module, found)
    return marks(found), [str(d).partition(": ")[2] for d in log if d.by == "ShareRows"]


def marks(module: Module) -> list[bool]:
    groups = [call.op for call in calls(module.main.body) if isinstance(call, Call) and isinstance(call.op, Function)]
    return ["by_rows" in g.attrs for g in groups if "depthwise" in str(g.attrs["name"])]


X = DEPTHWISE.format("%x")
SHARED = "ShareRows: threads share its rows, as they do of what reads it"


@pytest.mark.parametrize(
    "body",
    [
        f"%d = {X}; {POINTWISE.format('%d')}",
        f"%d = nn.relu({X}); nn.relu({POINTWISE.format('%d')})",
        f"%d = {X}; ({POINTWISE.format('%d')}, {POINTWISE.format('%d')})",
        f"%d = reshape({X}, newshape=[1, 2, 4, 16, 8]); {POINTWISE.format('%d')}",
    ],
    ids=["alone", "with activations", "read twice", "read as a view"],
)
def test_rows_where_a_convolution_reads_it(body: str) -> None:
    assert shared(body) == ([True], [SHARED])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (X, "it is a result"),
        (f'%d = {X}; nn.global_avg_pool2d(%d, layout="NCHW8c")', "pool2d reads it, whose threads do not share rows"),
        (f"%d = {X}; ({POINTWISE.format('%d')}, exp(multiply(%d, %s)))", "whose threads do not share rows"),
        (f"%d = {X}; (%d, {POINTWISE.format('%d')})", "a tuple reads it, whose threads do not share rows"),
    ],
    ids=["a result", "a pool", "beside a convolution", "a result beside a convolution"],
)
def test_channels_where_something_else_reads_it(body: str, reason: str) -> None:
    found, said = shared(body)
    assert found == [False] and len(said) == 1 and reason in said[0]


def test_channels_where_weights_leave_the_second_level_cache() -> None:
    body = f"%d = {X}; {POINTWISE.format('%d')}"
    small = MachineModel(32, 16, threads=2, l2_bytes=3 * 2 * 8 * 8 * 4)
    found, (said,) = shared(body, small)
    assert found == [False] and said.endswith("reads it, whose threads share the weights")


def test_what_is_not_fused_stays() -> None:
    check_unchanged(ShareRows(MACHINE), f"def @main({OPERANDS}) {{ %d = {X}; {POINTWISE.format('%d')} }}")


def test_equal_groups_that_are_read_differently_become_two() -> None:
    body = f"%a = {X}; %b = {DEPTHWISE.format('%a')}; %c = {POINTWISE.format('%b')}; %c"
    found, said = shared(body)
    assert found == [False, True] and len(said) == 2


def test_builds_for_several_threads_share_rows() -> None:
    module = parse_module(f"def @main({OPERANDS}) {{ %d = {X}; {POINTWISE.format('%d')} }}")
    rng = np.random.default_rng(0)
    feeds = {p.name: rng.normal(size=p.shape).astype("float32") for p in module.main.params}
    cuda = [str(d) for step in build(module, "cuda").report.steps for d in step.decisions]
    assert not any("ShareRows" in text for text in cuda)
    for threads, reports in ((1, []), (2, [SHARED]), (3, [SHARED])):
        library = build(module, "llvm", opt_level=3, num_threads=threads)
        said = [str(d) for step in library.report.steps for d in step.decisions if d.by == "ShareRows"]
        assert [text.partition(": ")[2] for text in said] == reports
        (found,) = library.run(feeds)
        assert_close_to_scale(found, evaluate(module, *feeds.values()))
