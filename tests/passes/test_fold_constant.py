"""FoldConstant, after Relay's test_pass_fold_constant.

Left out: let, on_device annotations, linked parameters, and the QNN legalizations that Relay runs before folding.
"""

import numpy as np
import pytest

from minitvm.errors import IRError
from minitvm.ir.decision import decisions
from minitvm.ir.expr import Call, Constant
from minitvm.ir.op import OPS, Fusion, Op
from minitvm.ir.parser import parse_module
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.passes import FoldConstant, Sequential, SimplifyInference, fold_constant_expr
from minitvm.testing.checks import check_rewrite, check_unchanged, run_opt_pass


def main(body: str, params: str = "%x: Tensor[(1, 2, 3), float32]") -> str:
    return f"def @main({params}) {{ {body} }}"


def test_constants_are_computed_and_the_rest_stays() -> None:
    before = main("%0 = add(const([1, 2, 3], float32), const([1, 2, 3], float32)); add(add(%x, multiply(%0, 2f)), %0)")
    after = main("add(add(%x, const([4, 8, 12], float32)), const([2, 4, 6], float32))")
    check_rewrite(FoldConstant(), before, after)


def test_concatenate_of_constants() -> None:
    before = main("concatenate((const([1, 2], float32), const([3], float32)))")
    check_rewrite(FoldConstant(), before, main("const([1, 2, 3], float32)"))


def test_fields_of_tuples() -> None:
    check_rewrite(FoldConstant(), main("(add(1f, 1f), %x).0"), main("2f"))
    check_rewrite(FoldConstant(), main("(nn.relu(%x), 1f).0"), main("nn.relu(%x)"))


def test_results_that_are_tuples() -> None:
    before = main("split(const([1, 2, 3, 4], float32), indices_or_sections=2).1")
    check_rewrite(FoldConstant(), before, main("const([3, 4], float32)"))


def test_shape_of_and_ndarray_size_of_static_types() -> None:
    check_rewrite(FoldConstant(), main("shape_of(%x)"), main("const([1, 2, 3], int32)"))
    check_rewrite(FoldConstant(), main('ndarray_size(%x, dtype="int64")'), main("6i64"))
    dynamic = "%x: Tensor[(?, 3), float32]"
    check_unchanged(FoldConstant(), main("shape_of(%x)", dynamic))
    untyped = parse_module(main("shape_of(%x)", "%x"))
    assert FoldConstant()(untyped) is untyped


def test_batch_norm_of_constants_folds_into_scale_and_shift() -> None:
    stats = ", ".join(f"const([{v}, {v}], float32)" for v in (0.5, 0.25, 1.0, 3.99999))
    before = main(f"nn.batch_norm(%x, {stats}, axis=1).0")
    found = run_opt_pass(before, Sequential([SimplifyInference(), FoldConstant()]))
    assert [c.op.name for c in calls(found.main)] == ["multiply", "add"]
    scale = calls(found.main)[0].args[1]
    assert isinstance(scale, Constant)
    np.testing.assert_allclose(scale.value, [[0.25], [0.25]], rtol=1e-6)


def test_dropout_of_a_constant() -> None:
    both = Sequential([SimplifyInference(), FoldConstant()])
    check_rewrite(both, main("add(%x, nn.dropout(add(1f, 1f)).0)"), main("add(%x, 2f)"))


@pytest.mark.parametrize("body", ["zeros(shape=[2, 3])", "ones(shape=[2, 3])", "nn.relu(%x)", "concatenate((%x, %x))"])
def test_what_is_not_folded(body: str) -> None:
    check_unchanged(FoldConstant(), main(body))


def test_a_tensor_made_of_a_scalar_stays_a_call() -> None:
    """1 GB from 4 bytes: folding must not explode memory; a small one folds."""
    large = parse_module("def @main() { broadcast_to(1f, shape=[16384, 16384]) }")
    assert run_opt_pass(large, FoldConstant()) is large
    check_rewrite(FoldConstant(), main("broadcast_to(1f, shape=[2])"), main("const([1, 1], float32)"))
    limit = {"minitvm.FoldConstant.max_bytes": 16}
    check_unchanged(FoldConstant(), main("broadcast_to(1f, shape=[8])"), config=limit)


def test_results_may_be_larger_than_the_limit_where_operands_are() -> None:
    weights = np.random.default_rng(3).integers(-5, 5, (64, 64)).astype("int8")
    text = main('cast(transpose(meta["w"], axes=[1, 0]), dtype="float32")')
    found = run_opt_pass(
        parse_module(text, {"w": weights}), FoldConstant(), config={"minitvm.FoldConstant.max_bytes": 0}
    )
    assert isinstance(found.main.body, Constant)
    np.testing.assert_array_equal(found.main.body.value, weights.T.astype("float32"))


def test_stateful_operators_stay() -> None:
    class Roll(Op):
        name = "test.roll"
        fusion = Fusion.OPAQUE
        stateful = True

        def infer(self, seed: TensorType) -> TensorType:
            return seed

        def reference(self, seed: np.ndarray) -> np.ndarray:
            return np.random.default_rng().random(seed.shape).astype(seed.dtype)

    del OPS["test.roll"]  # other tests look at every operator
    call = Call(Roll(), [Constant(np.float32(3))])
    assert fold_constant_expr(call) is call


def test_quantized_operators_only_on_request() -> None:
    before = main("qnn.dequantize(const([1, 2], int8), 0.5f, 0i8)")
    check_unchanged(FoldConstant(), before)
    check_rewrite(FoldConstant(fold_qnn=True), before, main("const([0.5, 1], float32)"))


def test_if_with_a_known_condition_becomes_its_branch() -> None:
    functions = """
    def @yes(%x: Tensor[(1, 2, 3), float32]) { add(%x, add(1f, 1f)) }
    def @no(%x: Tensor[(1, 2, 3), float32]) { nn.relu(%x) }"""
    for condition, body in (("True", "add(%x, 2f)"), ("False", "nn.relu(%x)")):
        before = main(f"control.if({condition}, %x, then_branch=@yes, else_branch=@no)")
        found = run_opt_pass(before + functions, FoldConstant())
        check_rewrite(FoldConstant(), found.with_function("main", found.main), found)
        assert str(found.main.body) == str(run_opt_pass(main(body), FoldConstant()).main.body)


def test_if_with_another_condition_stays_and_nothing_is_said_of_it() -> None:
    functions = " def @yes(%y: Tensor[(), bool]) { %y } def @no(%y: Tensor[(), bool]) { logical_not(%y) }"
    with decisions() as log:
        check_unchanged(
            FoldConstant(),
            main("control.if(%x, %x, then_branch=@yes, else_branch=@no)", "%x: Tensor[(), bool]") + functions,
        )
    assert log == []


def test_a_shared_constant_part_is_computed_once() -> None:
    found = run_opt_pass(main("%0 = add(1f, 2f); (add(%x, %0), multiply(%x, %0))"), FoldConstant())
    first, second = calls(found.main)
    assert first.args[1] is second.args[1]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('transpose(meta["conv1.weight"], axes=[1, 0])', "conv1.weight"),
        ('multiply(meta["conv1.weight"], 2f)', "conv1.weight"),
        ('concatenate((meta["conv1.weight"], meta["other"]))', None),
    ],
)
def test_the_name_of_the_parameter_is_kept(body: str, name: str | None) -> None:
    arrays = {n: np.eye(2, 3, dtype="float32") for n in ("conv1.weight", "other")}
    found = run_opt_pass(parse_module(main(body), arrays), FoldConstant())
    assert isinstance(found.main.body, Constant)
    assert found.main.body.name == name


def test_unknown_shapes_become_known() -> None:
    text = main("add(arange(0i64, 3i64, 1i64), 1i64)")
    check_rewrite(FoldConstant(), text, main("const([1, 2, 3], int64)"))


def test_what_divides_by_nothing_is_named() -> None:
    with pytest.raises(IRError, match="arange: the reference failed: division by zero"):
        run_opt_pass(main("arange(0i64, 3i64, 0i64)"), FoldConstant())
