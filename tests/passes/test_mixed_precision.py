"""ToMixedPrecision: what becomes float16, what stays float32 and why, and that numbers stay close."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from small_workloads import compiled, sample, small

import minitvm
import minitvm.codegen.cuda.templates
from minitvm.codegen.cuda.machine import GpuModel, gpu_model
from minitvm.codegen.lower import predicted
from minitvm.errors import PassError
from minitvm.ir.decision import Declined, decisions
from minitvm.ir.expr import Call
from minitvm.ir.op import OPS, Precision
from minitvm.passes import PassContext, ToMixedPrecision
from minitvm.passes.mixed_precision import weighed
from minitvm.target import MachineModel
from minitvm.testing import check_rewrite, check_unchanged
from minitvm.testing.checks import as_module, run_opt_pass

PARAMS = "%x: Tensor[(4, 8), float32], %w: Tensor[(6, 8), float32], %b: Tensor[(6), float32]"
HALF = 4e-3
"""Relative: float16 has 11 bits."""


def main(body: str, params: str = PARAMS) -> str:
    return f"def @main({params}) {{ {body} }}"


def half(name: str) -> str:
    return f'cast({name}, dtype="float16")'


def single(name: str) -> str:
    return f'cast({name}, dtype="float32")'


DENSE = f"nn.dense({half('%x')}, {half('%w')})"


def test_products_take_and_give_float16() -> None:
    check_rewrite(ToMixedPrecision(), main("nn.dense(%x, %w)"), main(single(DENSE)), rtol=HALF)


def test_a_dtype_that_operands_have_anyway_is_no_wish_for_it() -> None:
    """As an ONNX Gemm is imported."""
    before = 'nn.dense(%x, %w, out_dtype="float32")'
    check_rewrite(ToMixedPrecision(), main(before), main(single(DENSE)), rtol=HALF)


def test_what_follows_a_product_follows_its_dtype() -> None:
    before, after = "nn.relu(add(nn.dense(%x, %w), %b))", f"nn.relu(add({DENSE}, {half('%b')}))"
    check_rewrite(ToMixedPrecision(), main(before), main(single(after)), rtol=HALF)


STEEP = ["nn.softmax(%0)", "sum(%0, axis=[1])", "exp(%0)", "nn.l2_normalize(%0, axis=[1])", "power(%0, 2f)"]


@pytest.mark.parametrize("body", STEEP)
def test_sums_and_steep_functions_stay_float32(body: str) -> None:
    after = f"%0 = {DENSE}; %1 = {single('%0')}; {body.replace('%0', '%1')}"
    check_rewrite(ToMixedPrecision(), main(f"%0 = nn.dense(%x, %w); {body}"), main(after), rtol=0.1)


def test_a_value_is_cast_once_for_all_who_read_it() -> None:
    before = "%0 = nn.softmax(nn.dense(%x, %w)); (%0, nn.dense(%0, %0), nn.relu(add(%0, %0)))"
    after = f"""%0 = nn.softmax({single(DENSE)}); %1 = {half("%0")};
        (%0, {single("nn.dense(%1, %1)")}, nn.relu(add(%0, %0)))"""
    check_rewrite(ToMixedPrecision(), main(before), main(after), rtol=HALF)


def test_tuples_and_their_fields_follow() -> None:
    before = "%0 = split(concatenate((nn.dense(%x, %w), %c), axis=1), indices_or_sections=2, axis=1); %0.1"
    after = f"%0 = split(concatenate(({DENSE}, {half('%c')}), axis=1), indices_or_sections=2, axis=1); {single('%0.1')}"
    params = PARAMS + ", %c: Tensor[(4, 6), float32]"
    check_rewrite(ToMixedPrecision(), main(before, params), main(after, params), rtol=HALF)


@pytest.mark.parametrize("body", ["nn.relu(add(%x, %x))", "nn.softmax(%x)", "transpose(%w)", "concatenate((%x, %x))"])
def test_nothing_is_rounded_without_a_product(body: str) -> None:
    check_unchanged(ToMixedPrecision(), main(body))


def test_constants_that_would_be_infinite_keep_their_operator_wide() -> None:
    before = "nn.relu(subtract(nn.dense(%x, %w), 1000000f))"
    check_rewrite(ToMixedPrecision(), main(before), main(before.replace("nn.dense(%x, %w)", single(DENSE))), rtol=HALF)
    with decisions() as log:
        run_opt_pass(as_module(main(before)), ToMixedPrecision())
    assert any("float16 does not hold all numbers of its constant" in str(d) for d in log)


def test_a_product_that_is_not_worth_it_stays_float32() -> None:
    def weigh(wide: Call, short: Call) -> Declined | None:
        assert (wide.dtype, short.dtype) == ("float32", "float16")
        return Declined("too few are saved") if wide.tensor_type.shape[1] == 6 else None

    body = "(nn.dense(%x, %w), nn.dense(%x, %x))"
    after = f"%0 = {half('%x')}; (nn.dense(%x, %w), {single('nn.dense(%0, %0)')})"
    with decisions() as log:
        check_rewrite(ToMixedPrecision(weigh=weigh), main(body), main(after), rtol=HALF)
    assert any("too few are saved" in str(d) for d in log)


def test_a_gpu_weighs_products_by_predicted_cycles() -> None:
    """A launch takes as long as a small product; a CPU that is asked for fewer bits has fewer bytes to read."""

    def declined(machine: MachineModel, rows: int) -> list[str]:
        text = main("nn.dense(%x, %x)", f"%x: Tensor[({rows}, {rows}), float32]")
        kind = "cuda" if isinstance(machine, GpuModel) else "llvm"
        weigh = weighed(partial(predicted, machine=machine, templates=(kind,)), machine)
        with decisions() as log:
            run_opt_pass(as_module(text), ToMixedPrecision(weigh=weigh))
        return [str(d) for d in log if "too few are saved" in str(d)]

    assert declined(gpu_model("sm_90"), 32) and not declined(gpu_model("sm_90"), 2048)
    assert not declined(MachineModel(32, 16), 32)


def test_other_dtypes_are_left_alone() -> None:
    check_unchanged(ToMixedPrecision(), main("nn.dense(%x, %w)", PARAMS.replace("float32", "float64")))
    check_unchanged(ToMixedPrecision(), main("nn.dense(%x, %w)", PARAMS.replace("float32", "float16")))


def test_there_is_no_other_precision() -> None:
    with pytest.raises(PassError, match=r"^there is no mixed precision in 'float8'\n  = hint: 'float16' is"):
        ToMixedPrecision("float8")


def test_products_say_that_fewer_bits_are_worth_it_and_sums_that_not() -> None:
    by = {name: op.wanted_precision() for name, op in OPS.items()}
    short = {name for name, precision in by.items() if precision is Precision.SHORT}
    assert {"nn.dense", "nn.matmul", "nn.batch_matmul", "nn.conv2d", "nn.conv2d_transpose"} <= short
    wide = {"nn.softmax", "nn.layer_norm", "nn.batch_norm", "sum", "mean", "exp", "cast", "power", "qnn.quantize"}
    assert {by[name] for name in wide} == {Precision.WIDE}
    assert {by[name] for name in ("add", "nn.relu", "reshape", "transpose", "concatenate")} == {Precision.FOLLOW}


@pytest.mark.parametrize("name", ["resnet18_stem", "mobilenet_v2", "transformer"])
def test_whole_networks_in_float16(name: str) -> None:
    """Batch norms are in the weights before these are rounded: no scale is left, and one rounding is saved."""
    module, params = small(name)
    data = sample(module)
    want = compiled(module, params, data, 3)
    with PassContext(opt_level=3, config={"minitvm.mixed_precision": "float16"}):
        library = minitvm.build(module, "llvm", params)
    graph = minitvm.GraphModule(library["default"](minitvm.cpu(0)))
    graph.run(data=data)
    assert any("float16" in library.report.kernel(symbol).text("loops") for symbol in library.report.groups)
    for i, expected in enumerate(want):
        found = graph.get_output(i).numpy()
        assert found.dtype == expected.dtype
        assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()
