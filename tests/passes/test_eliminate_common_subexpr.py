"""EliminateCommonSubexpr, after Relay's test_pass_eliminate_common_subexpr, and the traps of its ``fskip``."""

from minitvm.ir.decision import decisions
from minitvm.ir.op import Op
from minitvm.passes import EliminateCommonSubexpr
from minitvm.testing.checks import check_rewrite, check_unchanged


def main(body: str) -> str:
    return f"def @main(%x: Tensor[(4, 6), float32], %y: Tensor[(4, 6), float32]) {{ {body} }}"


TWICE = main("%0 = nn.relu(%x); %1 = add(%0, 1f); %2 = add(%0, 1f); add(%1, %2)")


def test_equal_calls_with_equal_scalars_collapse() -> None:
    check_rewrite(EliminateCommonSubexpr(), TWICE, main("%1 = add(nn.relu(%x), 1f); add(%1, %1)"))


def test_calls_to_skip_stay() -> None:
    def is_add(call: object) -> bool:
        op = getattr(call, "op", None)
        return isinstance(op, Op) and op.name == "add"

    check_unchanged(EliminateCommonSubexpr(is_add), TWICE)
    relus = main("add(nn.relu(%x), nn.relu(%x))")
    check_rewrite(EliminateCommonSubexpr(is_add), relus, main("%0 = nn.relu(%x); add(%0, %0)"))


def test_chains_collapse_from_the_operands_up() -> None:
    before = main("add(exp(nn.relu(%x)), exp(nn.relu(%x)))")
    check_rewrite(EliminateCommonSubexpr(), before, main("%0 = exp(nn.relu(%x)); add(%0, %0)"))


def test_fields_of_one_tuple() -> None:
    before = main("%0 = split(%x, indices_or_sections=2); add(nn.relu(%0.0), nn.relu(%0.0))")
    after = main("%0 = split(%x, indices_or_sections=2); %1 = nn.relu(%0.0); add(%1, %1)")
    with decisions() as log:
        check_rewrite(EliminateCommonSubexpr(), before, after)
    assert [d.about for d in log] == ["nn.relu"], "of a projection it is not worth telling"


def test_tuples_as_operands_compare_by_field() -> None:
    before = main("add(concatenate((%x, %y)), concatenate((%x, %y)))")
    check_rewrite(EliminateCommonSubexpr(), before, main("%0 = concatenate((%x, %y)); add(%0, %0)"))
    check_unchanged(EliminateCommonSubexpr(), main("add(concatenate((%x, %y)), concatenate((%y, %x)))"))


def test_other_attributes_other_fields_other_scalars() -> None:
    check_unchanged(EliminateCommonSubexpr(), main("(sum(%x, axis=[0]), sum(%x, axis=[1]))"))
    check_unchanged(EliminateCommonSubexpr(), main("(add(%x, 1f), add(%x, 2f))"))
    check_unchanged(EliminateCommonSubexpr(), main("(multiply(%x, 0f), multiply(%x, -0f))"))
    check_unchanged(EliminateCommonSubexpr(), main("%0 = split(%x, indices_or_sections=2); add(%0.0, %0.1)"))
    check_unchanged(EliminateCommonSubexpr(), main("(nn.softmax(%x), nn.log_softmax(%x))"))


def test_what_is_made_of_equal_fills_is_computed_once() -> None:
    for fill in ('iota(size=6, dtype="float32")', "broadcast_to(%x, shape=[2, 4, 6])", "repeat(%x, repeats=2)"):
        check_rewrite(
            EliminateCommonSubexpr(), main(f"add(exp({fill}), exp({fill}))"), main(f"%0 = exp({fill}); add(%0, %0)")
        )
        check_unchanged(EliminateCommonSubexpr(), main(f"({fill}, {fill})"))
    pairs = main("(concatenate((iota(size=2), iota(size=3))), concatenate((iota(size=3), iota(size=2))))")
    check_unchanged(EliminateCommonSubexpr(), pairs)


def test_fills_and_tensors_of_equal_values_are_not_merged() -> None:
    check_unchanged(EliminateCommonSubexpr(), main("add(zeros(shape=[2]), zeros(shape=[2]))"))
    ones = "add(%x, const([1, 1, 1, 1, 1, 1], float32))"
    check_unchanged(EliminateCommonSubexpr(), main(f"({ones}, {ones})"))
