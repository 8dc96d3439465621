"""SimplifyInference, after Relay's test_simplify_batchnorm, and one case for each other operator."""

import numpy as np
import pytest

from minitvm.ir import builder as ir
from minitvm.ir.expr import Expr, Function
from minitvm.ir.op import Op
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.passes import SimplifyInference
from minitvm.testing.checks import check_rewrite, check_unchanged, run_opt_pass

EXPAND_ALL = {"minitvm.SimplifyInference.keep": ()}


def simple_batch_norm(x: Expr, gamma: Expr, beta: Expr, mean: Expr, var: Expr, axis: int, epsilon: float) -> Expr:
    """What batch_norm means, written by hand."""
    rank, dtype = x.tensor_type.rank, x.dtype
    scale = ir.rsqrt(var + ir.const(epsilon, dtype)) * gamma
    shift = -mean * scale + beta
    after = rank - axis - 1
    if after:
        scale, shift = (ir.expand_dims(v, axis=1, num_newaxis=after) for v in (scale, shift))
    return x * scale + shift


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("rank", "axis", "times"), [(2, 1, 1), (4, 1, 1), (4, 0, 3)])
def test_batch_norm(rank: int, axis: int, times: int, dtype: str) -> None:
    shape = (4, 4, 5, 6)[:rank]
    x = ir.var("x", TensorType(shape, dtype))
    params = [ir.var(n, TensorType((shape[axis],), dtype)) for n in ("gamma", "beta", "mean", "var")]
    before: Expr = x
    after: Expr = x
    for _ in range(times):
        before = ir.nn.batch_norm(before + ir.const(1.0, dtype), *params, axis=axis, epsilon=0.01)[0]
        before = ir.nn.dropout(before)[0]
        after = simple_batch_norm(after + ir.const(1.0, dtype), *params, axis=axis, epsilon=0.01)
    check_rewrite(SimplifyInference(), Function([x, *params], before), Function([x, *params], after))


@pytest.mark.parametrize(("center", "scale"), [(True, False), (False, True), (False, False)])
def test_batch_norm_without_gamma_or_beta(center: bool, scale: bool) -> None:
    text = """def @main(%x: Tensor[(2, 3, 4), float32], %g: Tensor[(3,), float32], %b: Tensor[(3,), float32],
                        %m: Tensor[(3,), float32], %v: Tensor[(3,), float32]) {
      nn.batch_norm(%x, %g, %b, %m, %v, axis=-2, ATTRS).0
    }""".replace("ATTRS", f"center={center}, scale={scale}")
    found = run_opt_pass(text, SimplifyInference())
    used = {v.name for call in calls(found.main) for v in call.args if v in found.main.params}
    read = {"x": True, "m": True, "v": True, "g": scale, "b": center}
    assert used == {name for name, there in read.items() if there}


def test_statistics_that_are_read_stay() -> None:
    params = "%x: Tensor[(2, 3), float32], " + ", ".join(f"%{n}: Tensor[(3,), float32]" for n in "gbmv")
    check_unchanged(SimplifyInference(), f"def @main({params}) {{ nn.batch_norm(%x, %g, %b, %m, %v).1 }}")


def test_dropout_becomes_its_input_and_its_mask_stays() -> None:
    check_rewrite(
        SimplifyInference(),
        "def @main(%x: Tensor[(3,), float32]) { nn.relu(nn.dropout(%x, rate=0.3f).0) }",
        "def @main(%x: Tensor[(3,), float32]) { nn.relu(%x) }",
    )
    check_unchanged(SimplifyInference(), "def @main(%x: Tensor[(3,), float32]) { nn.dropout(%x).1 }")


NORM = """
def @main(%x: Tensor[(2, 6, 4, 5), float32], %g: Tensor[(N,), float32], %b: Tensor[(N,), float32]) {
  BODY
}"""


def norm(body: str, channels: int = 6) -> str:
    return NORM.replace("BODY", body).replace("N,", f"{channels},")


def test_layer_norm_stays_whole_by_default() -> None:
    """Nothing fuses from a reduction, so its parts would be four kernels; whole, it is one."""
    check_unchanged(SimplifyInference(), norm("nn.layer_norm(%x, %g, %b)", 5))


def test_layer_norm_expands_as_in_relay_on_request() -> None:
    after = """
    %0 = mean(%x, axis=[-1], keepdims=True);
    %1 = variance(%x, %0, axis=[-1], keepdims=True);
    %2 = divide(subtract(%x, %0), sqrt(add(%1, 0.001f)));
    add(multiply(%2, %g), %b)"""
    before = norm("nn.layer_norm(%x, %g, %b, epsilon=0.001)", 5)
    check_rewrite(SimplifyInference(), before, norm(after, 5), config=EXPAND_ALL)
    check_rewrite(SimplifyInference(keep=()), before, norm(after, 5))


def test_instance_norm() -> None:
    after = """
    %0 = mean(%x, axis=[2, 3], keepdims=True);
    %1 = variance(%x, %0, axis=[2, 3], keepdims=True);
    %2 = divide(subtract(%x, %0), sqrt(add(%1, 1e-05f)));
    %3 = multiply(%2, expand_dims(%g, axis=1, num_newaxis=2));
    add(%3, expand_dims(%b, axis=1, num_newaxis=2))"""
    check_rewrite(SimplifyInference(), norm("nn.instance_norm(%x, %g, %b)"), norm(after))


def test_group_norm() -> None:
    after = """
    %0 = reshape(%x, newshape=[2, 3, 2, 4, 5]);
    %1 = mean(%0, axis=[2, 3, 4], keepdims=True);
    %2 = variance(%0, %1, axis=[2, 3, 4], keepdims=True);
    %3 = divide(subtract(%0, %1), sqrt(add(%2, 1e-05f)));
    %4 = multiply(reshape(%3, newshape=[2, 6, 4, 5]), expand_dims(%g, axis=1, num_newaxis=2));
    add(%4, expand_dims(%b, axis=1, num_newaxis=2))"""
    check_rewrite(SimplifyInference(), norm("nn.group_norm(%x, %g, %b, num_groups=3)"), norm(after))


@pytest.mark.parametrize("name", ["nn.instance_norm", "nn.group_norm", "nn.layer_norm"])
@pytest.mark.parametrize("axis", [1, -3])
def test_expansions_compute_the_same_on_any_axis(name: str, axis: int) -> None:
    groups = ", num_groups=2" * (name == "nn.group_norm")
    found = run_opt_pass(norm(f"{name}(%x, %g, %b, axis={axis}{groups}, scale=False)"), SimplifyInference(keep=()))
    assert name not in [c.op.name for c in calls(found.main) if isinstance(c.op, Op)]
    check_rewrite(SimplifyInference(keep=()), norm(f"{name}(%x, %g, %b, axis={axis}{groups}, scale=False)"), found)


def test_l2_normalize() -> None:
    after = "%0 = sum(multiply(%x, %x), axis=[1], keepdims=True); divide(%x, sqrt(maximum(%0, 1e-06f)))"
    check_rewrite(SimplifyInference(), norm("nn.l2_normalize(%x, eps=1e-06, axis=[1])"), norm(after))


def test_constants_have_the_dtype_of_the_data_or_of_its_sums() -> None:
    text = "def @main(%x: Tensor[(2, 3), float16]) { nn.l2_normalize(%x, eps=0.001, axis=[1]) }"
    dtypes = {arg.dtype for c in calls(run_opt_pass(text, SimplifyInference()).main) for arg in c.args}
    assert dtypes == {np.dtype("float16").name, np.dtype("float32").name}
