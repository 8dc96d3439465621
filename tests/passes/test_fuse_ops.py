"""FuseOps.  The cases are Relay's (test_pass_fuse_ops), by the same names.

Left out: test_fuse_max_num_args (a kernel's parameters come as an array, so there is no limit on their number), and
the parts of test_fuse_myia_regression about closures (there are none); its If is in test_control_flow_is_a_host_call.
"""

from __future__ import annotations

import pytest
from rewriting import check_rewrite, outline, run

from minitvm.errors import ConfigError
from minitvm.ir.builder import call_op, function, nn, var
from minitvm.ir.expr import Function, Module
from minitvm.ir.op import Op
from minitvm.ir.parser import parse_module
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.passes.fuse_ops import FuseOps
from minitvm.passes.manager import PassContext

fuse = FuseOps(2)

SIMPLE = """
def @main(%x: Tensor[(10, 20), float32]) {
  %0 = add(%x, 1f);
  %1 = exp(%0);
  squeeze(%1)
}
"""


def kernels(text: str, level: int = 2) -> list[str]:
    return outline(run(FuseOps(level), text)).splitlines()


def test_fuse_simple() -> None:
    after = """
    def @main(%x: Tensor[(10, 20), float32]) {
      %0 = fn (%p0: Tensor[(10, 20), float32], primitive=True, name="fused_add_exp_squeeze", reshape_only=False) {
        %1 = add(%p0, 1f);
        %2 = exp(%1);
        squeeze(%2)
      };
      %0(%x)
    }
    """
    check_rewrite(fuse, SIMPLE, after)


def test_level_0_makes_each_operator_a_kernel() -> None:
    assert kernels(SIMPLE, level=0) == ["0 = fused_add(x)", "1 = fused_exp(0)", "2 = fused_squeeze(1)", "2"]


def test_the_level_is_the_contexts_unless_it_is_given() -> None:
    for given in (None, -1):
        for level, count in ((0, 3), (2, 1)):
            with PassContext(opt_level=level):
                assert len(calls(FuseOps(given)(parse_module(SIMPLE)).main.body)) == count


def test_conv2d_fuse() -> None:
    """A diamond after a convolution joins it; of two convolutions that an addition joins, the first takes it."""
    text = """
    def @main(%x: Tensor[(1, 16, 8, 8), float32], %w1: Tensor[(16, 16, 3, 3), float32],
              %w2: Tensor[(16, 16, 1, 1), float32], %w3: Tensor[(16, 16, 3, 3), float32]) {
      %0 = add(%x, 1f);
      %1 = nn.conv2d(%0, %w1, padding=[1, 1, 1, 1]);
      %2 = add(1f, %1);
      %3 = add(%1, %2);
      %4 = nn.conv2d(%3, %w2);
      %5 = nn.conv2d(%3, %w3, padding=[1, 1, 1, 1]);
      add(%4, %5)
    }
    """
    assert kernels(text) == [
        "0 = fused_add(x)",
        "1 = fused_nn_conv2d_add_add(0, w1)",
        "2 = fused_nn_conv2d(1, w3)",
        "3 = fused_nn_conv2d_add(1, w2, 2)",
        "3",
    ]


def test_residual_block() -> None:
    text = """
    def @main(%x: Tensor[(1, 8, 6, 6), float32], %w: Tensor[(8, 8, 3, 3), float32], %b: Tensor[(8, 1, 1), float32]) {
      %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
      %1 = add(%0, %b);
      %2 = nn.relu(%1);
      %3 = nn.conv2d(%2, %w, padding=[1, 1, 1, 1]);
      %4 = add(%3, %b);
      %5 = add(%4, %x);
      nn.relu(%5)
    }
    """
    assert kernels(text) == [
        "0 = fused_nn_conv2d_add_nn_relu(x, w, b)",
        "1 = fused_nn_conv2d_add_add_nn_relu(0, w, b, x)",
        "1",
    ]


def test_epilogues_are_finished_before_injective_operators_join() -> None:
    """The addition belongs to the convolution, so the transpose beside it stays a kernel."""
    text = """
    def @main(%x: Tensor[(1, 6, 6, 8), float32], %w: Tensor[(8, 8, 3, 3), float32], %y: Tensor[(1, 8, 6, 6), float32]) {
      %0 = transpose(%x, axes=[0, 3, 1, 2]);
      %1 = nn.conv2d(%y, %w, padding=[1, 1, 1, 1]);
      add(%0, %1)
    }
    """
    assert kernels(text) == ["0 = fused_transpose(x)", "1 = fused_nn_conv2d_add(0, y, w)", "1"]


def test_concatenate() -> None:
    """The pool stays alone; the reshaped input, the concatenation and the addition are one kernel."""
    text = """
    def @main(%x: Tensor[(1, 4, 8, 8), float32]) {
      %0 = nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2]);
      %1 = repeat(%0, repeats=2, axis=2);
      %2 = strided_slice(%x, begin=[0, 0, 0, 0], end=[1, 4, 8, 4]);
      %3 = concatenate((%1, %2), axis=1);
      add(%3, 1f)
    }
    """
    found = kernels(text)
    assert found == ["0 = fused_nn_max_pool2d(x)", "1 = fused_repeat_strided_slice_concatenate_add(0, x)", "1"]


def test_tuple_root() -> None:
    """What a returned tuple holds is not fused into it."""
    text = """
    def @main(%x: Tensor[(1, 4, 8, 8), float32]) {
      %0 = nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2]);
      %1 = repeat(%0, repeats=2, axis=2);
      (%1, %x)
    }
    """
    assert kernels(text) == ["0 = fused_nn_max_pool2d(x)", "1 = fused_repeat(0)", "(1, x)"]


def test_stop_fusion() -> None:
    text = """
    def @main(%x: Tensor[(10, 20), float32]) {
      %0 = add(%x, 1f);
      %1 = annotation.stop_fusion(%0);
      exp(%1)
    }
    """
    assert kernels(text) == ["0 = fused_add(x)", "1 = fused_exp(0)", "1"]


def test_control_flow_is_a_host_call() -> None:
    then = function(nn.relu(var("a", shape=(3,))))
    orelse = function(call_op("exp", var("a", shape=(3,))))
    x, c = var("x", shape=(3,)), var("c", TensorType((), "bool"))
    branch = call_op("control.if", c, call_op("negative", x), then_branch=then, else_branch=orelse)
    body = call_op("exp", branch[0] if not isinstance(branch.checked_type, TensorType) else branch)
    fused = fuse(Module(function(body, [c, x])))
    kinds = [call.op.name if isinstance(call.op, Op) else call.op.attrs["name"] for call in calls(fused.main.body)]
    assert kinds == ["fused_negative", "control.if", "fused_exp"]


def test_fuse_tuple_get_elemwise() -> None:
    text = """
    def @main(%x: Tensor[(2, 16), float32], %w: Tensor[(48, 16), float32]) {
      %0 = nn.dense(%x, %w);
      %1 = split(%0, indices_or_sections=3, axis=1);
      %2 = sigmoid(%1.0);
      %3 = tanh(%1.1);
      %4 = exp(%1.2);
      multiply(add(%2, %3), %4)
    }
    """
    assert kernels(text) == ["0 = fused_nn_dense(x, w)", "1 = fused_split_sigmoid_tanh_add_exp_multiply(0)", "1"]


def test_tuple_get_root() -> None:
    text = """
    def @main(%x: Tensor[(2, 16), float32], %w: Tensor[(16, 8), float32]) {
      %0 = split(%x, indices_or_sections=2, axis=1);
      nn.dense(%0.0, %w)
    }
    """
    assert kernels(text) == ["0 = fused_split(x)", "1 = fused_nn_dense(0, w)", "1"]


def test_tuple_intermediate() -> None:
    """Inputs of a concatenation are computed where the joined tensor is written."""
    text = """
    def @main(%x: Tensor[(1, 4, 6, 6), float32]) {
      %0 = squeeze(%x, axis=[0]);
      %1 = add(%0, 1f);
      %2 = nn.relu(%0);
      %3 = add(%2, %2);
      %4 = concatenate((%1, %3), axis=0);
      %5 = squeeze(%4);
      add(%5, 1f)
    }
    """
    assert kernels(text) == ["0 = fused_squeeze_add_nn_relu_add_concatenate_squeeze_add(x)", "0"]


def test_tuple_consecutive() -> None:
    """Two concatenations in a row, a pool after them."""
    text = """
    def @main(%x: Tensor[(1, 2, 4, 4), float32]) {
      %0 = concatenate((%x, %x, %x), axis=1);
      %1 = concatenate((%0, %0), axis=1);
      %2 = nn.max_pool2d(%1, pool_size=[2, 2], strides=[2, 2]);
      %3 = add(%2, 1f);
      %4 = add(%2, 2f);
      (%2, %3, %4)
    }
    """
    assert kernels(text) == [
        "0 = fused_concatenate_concatenate(x)",
        "1 = fused_nn_max_pool2d(0)",
        "2 = fused_add(1)",
        "3 = fused_add(1)",
        "(1, 2, 3)",
    ]


def test_inception_like() -> None:
    text = """
    def @main(%x: Tensor[(1, 4, 6, 6), float32], %w: Tensor[(4, 4, 3, 3), float32],
              %v: Tensor[(4, 8, 3, 3), float32]) {
      %0 = nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1]));
      %1 = nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1]));
      %2 = concatenate((%0, %1), axis=1);
      %3 = nn.relu(nn.conv2d(%2, %v, padding=[1, 1, 1, 1]));
      concatenate((%3, %3), axis=1)
    }
    """
    assert kernels(text) == [
        "0 = fused_nn_conv2d_nn_relu(x, w)",
        "1 = fused_nn_conv2d_nn_relu(x, w)",
        "2 = fused_concatenate(0, 1)",
        "3 = fused_nn_conv2d_nn_relu(2, v)",
        "4 = fused_concatenate(3)",
        "4",
    ]


def test_fuse_parallel_injective() -> None:
    text = """
    def @main(%x: Tensor[(10, 20), int32]) {
      %0 = add(%x, 1i32);
      %1 = squeeze(%0);
      %2 = transpose(%0, axes=[0, 1]);
      %3 = left_shift(%1, %2);
      %4 = squeeze(%3);
      add(%4, 1i32)
    }
    """
    assert kernels(text) == ["0 = fused_add_squeeze_transpose_left_shift_squeeze_add(x)", "0"]


def test_immutable() -> None:
    """The input keeps its text, and the result of a second run is equal."""
    module = parse_module(SIMPLE)
    printed = module.astext()
    first, second = fuse(module), fuse(module)
    assert module.astext() == printed and first is not module
    assert first.astext() == second.astext()


def test_primitive_functions_are_not_entered() -> None:
    once = fuse(parse_module(SIMPLE))
    assert outline(fuse(once)) == outline(once)


def test_split() -> None:
    text = """
    def @main(%x: Tensor[(6, 9), float32]) {
      %0 = split(%x, indices_or_sections=3);
      concatenate((%0.0, %0.1, nn.relu(%0.2)), axis=1)
    }
    """
    assert kernels(text) == ["0 = fused_split_nn_relu_concatenate(x)", "0"]


def chain(length: int) -> str:
    steps = "\n".join(f"  %{i + 1} = exp({'%x' if i == 0 else f'%{i}'});" for i in range(length))
    return f"def @main(%x: Tensor[(3,), float32]) {{\n{steps}\n  %{length}\n}}"


@pytest.mark.parametrize(("limit", "expected"), [(256, 2), (10, 26), (1, 260)])
def test_fuse_max(limit: int, expected: int) -> None:
    """``max_depth`` bounds the operators in a kernel."""
    with PassContext(config={"minitvm.FuseOps.max_depth": limit}):
        fused = fuse(parse_module(chain(260)))
    groups = [call.op for call in calls(fused.main.body)]
    assert len(groups) == expected
    assert max(len(calls(g.body)) for g in groups if isinstance(g, Function)) == limit


def test_max_depth_of_the_wrong_type() -> None:
    with pytest.raises(ConfigError, match=r"^option 'minitvm\.FuseOps\.max_depth' takes int, not str '9'"):
        PassContext(config={"minitvm.FuseOps.max_depth": "9"})


def test_fuse_max_diamond() -> None:
    """A limit never cuts a diamond so that a kernel would need what comes after it."""
    x = y = var("x", shape=(3,))
    for _ in range(9):
        y = call_op("add", call_op("exp", y), call_op("negative", y))
    with PassContext(config={"minitvm.FuseOps.max_depth": 7}):
        fused = fuse(Module(function(y, [x])))
    groups = [call.op for call in calls(fused.main.body)]
    assert sum(len(calls(g.body)) for g in groups if isinstance(g, Function)) == 27
    assert 4 <= len(groups) <= 9


def test_fuse_take() -> None:
    text = """
    def @main(%x: Tensor[(10, 1), float32], %i: Tensor[(4,), int64]) {
      %0 = squeeze(%x);
      %1 = take(%0, %i, axis=0);
      add(%1, 1f)
    }
    """
    assert kernels(text) == ["0 = fused_squeeze_take_add(x, i)", "0"]


def test_fuse_gather_nd() -> None:
    text = """
    def @main(%x: Tensor[(4, 4), float32], %i: Tensor[(2, 3), int64]) {
      %0 = exp(%x);
      %1 = gather_nd(%0, %i);
      add(%1, 1f)
    }
    """
    assert kernels(text) == ["0 = fused_exp_gather_nd_add(x, i)", "0"]


def test_fuse_bcast_reduce_scalar() -> None:
    """What a full reduction reads is computed in its kernel; nothing is fused after it."""
    text = """
    def @main(%x: Tensor[(3, 5), float32]) {
      %0 = less(%x, 0.5f);
      %1 = cast(%0, dtype="int32");
      %2 = sum(%1);
      add(%2, 7i32)
    }
    """
    assert kernels(text) == ["0 = fused_less_cast_sum(x)", "1 = fused_add(0)", "1"]


def test_fuse_dynamic_squeeze_slice_take() -> None:
    """Calls whose shapes are not known stay what they are: host calls."""
    text = """
    def @main(%x: Tensor[(1, ?, 4), float32], %y: Tensor[(4,), float32]) {
      %0 = squeeze(%x, axis=[0]);
      %1 = exp(%y);
      RESULT
    }
    """
    assert outline(fuse(parse_module(text.replace("RESULT", "sum(%0)")))) == "0 = squeeze(x)\n1 = sum(0)\n1"
    assert outline(fuse(parse_module(text.replace("RESULT", "add(%0, nn.relu(%1))")))).splitlines() == [
        "0 = squeeze(x)",
        "1 = fused_exp_nn_relu(y)",
        "2 = add(0, 1)",
        "2",
    ]


def test_fuse_softmax() -> None:
    text = """
    def @main(%x: Tensor[(16, 9), float32]) {
      %0 = nn.softmax(%x);
      cast(%0, dtype="float64")
    }
    """
    assert kernels(text) == ["0 = fused_nn_softmax_cast(x)", "0"]


def test_long_names_end_in_a_hash() -> None:
    (call,) = calls(fuse(parse_module(chain(40))).main.body)
    (longer,) = calls(fuse(parse_module(chain(41))).main.body)
    assert isinstance(call.op, Function) and isinstance(longer.op, Function)
    assert len(call.op.attrs["name"]) == len(longer.op.attrs["name"]) == 80
    assert call.op.attrs["name"] != longer.op.attrs["name"]


def doubled(length: int) -> str:
    """Each value is joined with itself: the first is made at 2 ** length places of the last."""
    lines, size = ["def @main(%x: Tensor[(1,), float32]) {", "  %0 = exp(%x);"], 1
    for i in range(length):
        lines.append(f"  %{2 * i + 1} = (%{2 * i}, %{2 * i});")
        lines.append(f"  %{2 * i + 2} = concatenate(%{2 * i + 1}, axis=0);")
        size *= 2
    return "\n".join([*lines, f"  negative(%{2 * length})", "}"])


@pytest.mark.parametrize(("most", "expected"), [(16, 2), (2, 5), (10**9, 1)])
def test_a_value_made_at_many_places_has_a_kernel(most: int, expected: int) -> None:
    """``max_copies`` bounds how often it is computed anew."""
    with PassContext(config={"minitvm.FuseOps.max_copies": most}):
        fused = fuse(parse_module(doubled(8)))
    assert len([call for call in calls(fused.main.body) if isinstance(call.op, Function)]) == expected
