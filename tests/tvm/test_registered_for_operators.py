"""What scripts register for operators: AlterOpLayout, Legalize and ConvertLayout ask it first."""

from __future__ import annotations

from typing import Any

import pytest

import minitvm
from minitvm import passes, relay
from minitvm.errors import MiniTVMError, TypeInferenceError
from minitvm.ir.structural import assert_structural_equal
from minitvm.relay import transform
from minitvm.relay.testing.temp_op_attr import TempOpAttr
from minitvm.testing import assert_same_numbers
from minitvm.tvm.relay.op import OpName

X, W, B = relay.var("x", shape=(1, 32, 8, 8)), relay.var("w", shape=(32, 32, 3, 3)), relay.var("b", shape=(32,))
CONV = relay.nn.conv2d(X, W, channels=32, kernel_size=(3, 3), padding=(1, 1))


def module(body: Any) -> Any:
    return minitvm.IRModule.from_expr(body)


def in_blocks(attrs: Any, inputs: Any, tinfos: Any, out_type: Any) -> Any:
    assert [t.shape for t in tinfos] == [X.shape, W.shape] and out_type.shape == X.shape
    new = dict(attrs)
    new["data_layout"], new["kernel_layout"] = "NCHW16c", "OIHW16i"
    return relay.nn.conv2d(*inputs, **new)


def test_a_layout_goes_on_through_what_follows() -> None:
    given = module(relay.nn.relu(relay.nn.bias_add(CONV, B)))
    with TempOpAttr("nn.conv2d", "FTVMAlterOpLayout", in_blocks):
        found = transform.AlterOpLayout()(given)
    data, weight = relay.layout_transform(X, "NCHW", "NCHW16c"), relay.layout_transform(W, "OIHW", "OIHW16i")
    conv = relay.nn.conv2d(
        data, weight, channels=32, kernel_size=(3, 3), padding=(1, 1), data_layout="NCHW16c", kernel_layout="OIHW16i"
    )
    bias = relay.expand_dims(relay.expand_dims(B, axis=0), axis=2, num_newaxis=2)
    body = relay.nn.relu(relay.add(conv, relay.layout_transform(bias, "NCHW", "NCHW16c")))
    assert_structural_equal(found, module(relay.Function([X, W, B], relay.layout_transform(body, "NCHW16c", "NCHW"))))
    assert_same_numbers(given, found)


def test_weights_that_are_changed_come_in_their_own_layout() -> None:
    def doubled(attrs: Any, inputs: Any, *types: Any) -> Any:
        return in_blocks(attrs, [inputs[0], relay.multiply(inputs[1], relay.const(2.0))], *types)

    with TempOpAttr("nn.conv2d", "FTVMAlterOpLayout", doubled):
        found = transform.AlterOpLayout()(module(CONV))
    assert_same_numbers(found, module(relay.nn.conv2d(X, relay.multiply(W, relay.const(2.0)), padding=(1, 1))))
    assert "multiply(%w, 2f)" in str(found)


def test_none_leaves_a_call_and_the_end_of_the_block_what_was_there() -> None:
    before = transform.AlterOpLayout()(module(CONV))
    with TempOpAttr("nn.conv2d", "FTVMAlterOpLayout", lambda *_: None):
        assert transform.AlterOpLayout()(module(CONV)).main.body is CONV
    assert_structural_equal(transform.AlterOpLayout()(module(CONV)), before, map_free_vars=True)


def test_another_operator_than_the_one_altered() -> None:
    dense = relay.nn.dense(relay.var("d", shape=(4, 16)), relay.var("e", shape=(16, 16)))

    def packed(attrs: Any, inputs: Any, tinfos: Any, out_type: Any) -> Any:
        return relay.nn.contrib_dense_pack(*inputs, weight_layout="NC8n", units=16, out_dtype=out_type.dtype)

    with TempOpAttr("nn.dense", "FTVMAlterOpLayout", packed):
        found = transform.AlterOpLayout()(module(dense))
    assert "nn.contrib_dense_pack" in str(found)
    assert_same_numbers(found, module(dense))


@pytest.fixture
def relu() -> Any:
    name = relay.op.get("nn.relu")
    yield name
    name.reset_attr("FTVMLegalize")


def test_legalize_takes_the_strongest_and_builds_do(relu: OpName) -> None:
    body = relay.nn.relu(relay.exp(X))
    relay.op.register_legalize("nn.relu", lambda attrs, inputs, types: relay.negative(inputs[0]), level=9)

    @relay.op.register_legalize("nn.relu", level=11)
    def strongest(attrs: Any, inputs: Any, types: Any) -> Any:
        assert [t.shape for t in types] == [X.shape, X.shape]
        return relay.maximum(inputs[0], relay.const(3.0))

    wanted = relay.maximum(body.args[0], relay.const(3.0))
    assert_structural_equal(transform.Legalize()(module(body)), module(wanted), map_free_vars=True)
    assert transform.Legalize("FOther")(module(body)).main.body is body
    with relay.build_config(opt_level=1):
        assert "maximum" in str(relay.optimize(module(body), "llvm")[0])
    assert relu.get_attr("FTVMLegalize") is strongest and relu.get_attr("TOpPattern") == 0


def test_convert_layout_asks_with_what_is_wanted() -> None:
    def wanted(attrs: Any, inputs: Any, tinfos: Any, layouts: Any) -> Any:
        assert layouts == ["NHWC", "default"]
        return relay.nn.conv2d(*inputs, **{**attrs, "data_layout": layouts[0], "kernel_layout": "HWIO"})

    with TempOpAttr("nn.conv2d", "FTVMConvertOpLayout", wanted):
        found = transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})(module(CONV))
    assert_structural_equal(found, transform.ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"]})(module(CONV)))


@pytest.mark.parametrize("gives", [3, "nn.relu", [X]])
@pytest.mark.parametrize("attribute", ["FTVMAlterOpLayout", "FTVMLegalize"])
def test_what_is_registered_gives_no_expression(gives: Any, attribute: str) -> None:
    made = transform.Legalize() if attribute == "FTVMLegalize" else transform.AlterOpLayout()
    with TempOpAttr("nn.conv2d", attribute, lambda *_: gives), pytest.raises(MiniTVMError, match="no expression"):
        made(module(CONV))


def test_what_raises_says_where() -> None:
    with TempOpAttr("nn.conv2d", "FTVMLegalize", lambda *_: {}["x"]), pytest.raises(MiniTVMError, match=r"nn\.conv2d"):
        transform.Legalize()(module(CONV))
    with pytest.raises(TypeInferenceError, match=r"there is no operator 'nn\.conv3'"):
        relay.op.register_legalize("nn.conv3", lambda *_: None)
    with pytest.raises(MiniTVMError, match="no function"):
        relay.op.register_alter_op_layout("nn.conv2d", 3)


def test_passes_of_a_target_know_this_machine() -> None:
    for made in (transform.AlterOpLayout(), transform.FakeQuantizationToInteger(), transform.Legalize()):
        assert_same_numbers(made(module(CONV)), module(CONV))


def test_every_pass_is_made_without_arguments_but_those_that_have_to_be_told() -> None:
    """``ShareRows()`` and ``CallLibraries()`` wanted a machine and a choice of libraries."""
    told = {"ConvertLayout", "FunctionPass", "ModulePass", "Pass", "RulePass", "Sequential"}
    kinds = {name: getattr(passes, name) for name in passes.__all__ if name not in told}
    named = {name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, passes.Pass)}
    assert {"ShareRows", "CallLibraries", "AlterOpLayout", "FuseOps"} <= named
    made = {name: getattr(transform, name)() for name in named}
    given = transform.InferType()(module(relay.nn.relu(CONV)))
    for name in ("ShareRows", "CallLibraries"):
        assert_structural_equal(made[name](given), given)
