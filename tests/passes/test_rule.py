"""Rules: captures, exactness, reasons, use counts, the fixed point."""

import pytest

from minitvm.errors import PassError
from minitvm.ir.decision import decisions
from minitvm.ir.expr import Call, Constant, Expr, Tuple
from minitvm.ir.ops.elemwise import Add, Multiply, Negative, Relu
from minitvm.ir.parser import parse_module
from minitvm.ir.pattern import call, const, get_item, tuple_of, value
from minitvm.ir.visitor import calls
from minitvm.passes import Bound, Declined, PassContext, apply_rules, rule, rule_pass
from minitvm.passes.bound import USUAL
from minitvm.passes.rule import Replacement
from minitvm.testing.checks import check_rewrite, check_unchanged, run_opt_pass


def main(body: str) -> str:
    return "def @main(%x: Tensor[(4,), float32], %y: Tensor[(4,), float32]) { BODY }".replace("BODY", body)


@rule(call(Add, value("x"), const("c")))
def drop_zero(x: Expr, c: Constant) -> Replacement:
    return Declined(f"the constant is {c.value}") if c.value.any() else x


@rule(call(Negative, call(Multiply, value("x"), const("c"), single_use=True)))
def negate_factor(x: Expr, c: Constant) -> Expr:
    """Only where nothing else reads the product: else it would be computed twice."""
    return x * Constant(-c.value)


def test_fires_in_either_order_and_to_a_fixed_point() -> None:
    check_rewrite(drop_zero, main("nn.relu(add(-0f, add(add(%x, -0f), -0f)))"), main("nn.relu(%x)"))


@rule(tuple_of(value("x"), call(Relu, name="y"), name="pair"))
def swap(pair: Tuple, x: Expr, y: Expr) -> Replacement:
    return Declined("it stays") if x is not y else Tuple([y, x])


@rule(get_item(tuple_of(value("x"), value("y")), index=1))
def take_apart(x: Expr, y: Expr) -> Expr:
    return y


def test_a_pattern_of_a_tuple_may_stand_alone() -> None:
    """Other nodes are walked past, and operands that are no tuples."""
    check_rewrite(
        [swap, take_apart],
        main("(concatenate((%x, %y, %x)), (%x, nn.relu(%y)).1, %y)"),
        main("(concatenate((%x, %y, %x)), nn.relu(%y), %y)"),
    )


def test_declines_with_a_reason() -> None:
    check_unchanged(drop_zero, main("add(%x, 2f)"))
    with decisions() as log:
        apply_rules([drop_zero], parse_module(main("add(add(%x, 2f), 0f)")).main)
    assert [str(d) for d in log] == ["add: drop_zero declined: the constant is 2.0", "add: drop_zero: becomes add"]


def test_single_use_declines_where_there_is_another_user() -> None:
    check_rewrite(negate_factor, main("negative(multiply(%x, 3f))"), main("multiply(%x, -3f)"))
    check_unchanged(negate_factor, main("%0 = multiply(%x, 3f); (negative(%0), %0)"))


def test_a_rebuilt_node_keeps_its_use_count() -> None:
    """The product is rebuilt, since its operand is simplified in the same sweep; it still has two users."""
    before = main("%0 = multiply(add(%x, -0f), 3f); (negative(%0), %0)")
    check_rewrite([drop_zero, negate_factor], before, main("%0 = multiply(%x, 3f); (negative(%0), %0)"))


def test_a_replacement_has_the_uses_of_what_it_replaces() -> None:
    """``add(product, 0)`` has two users; so has the product that replaces it, though its only reader was the add."""
    before = main("%0 = multiply(%x, 3f); %1 = add(%0, -0f); (negative(%1), %1)")
    check_rewrite([drop_zero, negate_factor], before, main("%0 = multiply(%x, 3f); (negative(%0), %0)"))


def test_what_a_rule_builds_counts_its_operands() -> None:
    @rule(call(Relu, value("x")))
    def relu_to_product(x: Expr) -> Expr:
        three = Constant(3.0 * Constant(1.0).value.astype("float32"))
        product = x * three
        return product + product - product  # the same value, three users

    counted: list[int] = []

    @rule(call(Negative, call("subtract", value(), call(Multiply, name="product", single_use=True))))
    def never(product: Expr) -> Replacement:
        counted.append(1)
        return Declined("")

    module = parse_module(main("negative(nn.relu(%x))"))
    rewritten = apply_rules([relu_to_product, never], module.main)
    assert counted == []
    assert len(calls(rewritten)) == 4


def test_sharing_survives() -> None:
    before = main("%0 = add(%x, -0f); %1 = nn.relu(%0); add(%1, %1)")
    check_rewrite(drop_zero, before, main("%1 = nn.relu(%x); add(%1, %1)"))


def test_new_nodes_inherit_the_span() -> None:
    module = parse_module(main("negative(multiply(%x, 3f))"))
    (product, negated) = calls(module.main)
    marked = Call(negated.op, [product], span=("node7",))
    function = type(module.main)(module.main.params, marked)
    (found,) = calls(apply_rules([negate_factor], function))
    assert found.span == ("node7",)


def test_parameters_are_checked_against_the_captures() -> None:
    with pytest.raises(PassError) as error:

        @rule(call(Add, value("x"), const("c")))
        def wrong(x: Expr, d: Expr) -> Expr:
            return x

    assert str(error.value) == (
        "rule wrong: its parameters are d, x, the pattern captures c, x\n"
        "  = hint: name each parameter after a capture, and take every capture"
    )


def test_unknown_exactness() -> None:
    with pytest.raises(PassError) as error:
        rule(value("x"), exactness="roughly")
    assert (
        str(error.value) == "there is no exactness 'roughly'\n  = hint: exact, reassociating, approximate or unbounded"
    )


def test_replacement_of_another_type_is_refused() -> None:
    @rule(call(Relu, value("x")))
    def to_bool(x: Expr) -> Expr:
        return Constant(True)

    with pytest.raises(PassError) as error:
        run_opt_pass(main("nn.relu(%x)"), to_bool)
    assert error.value.message == "rule to_bool replaced a Tensor[(4,), float32] by a Tensor[(), bool]"
    assert error.value.where == ("nn.relu(%x)", "  %x: Tensor[(4,), float32]")


def test_answer_that_is_neither() -> None:
    @rule(call(Relu, value("x")))
    def forgets(x: Expr) -> Expr:
        return None  # type: ignore[return-value]

    with pytest.raises(PassError, match="rule forgets returned None"):
        run_opt_pass(main("nn.relu(%x)"), forgets)


def test_rules_that_undo_each_other_are_named() -> None:
    @rule(call(Add, value("x"), value("y")))
    def swap(x: Expr, y: Expr) -> Expr:
        return y + x

    with pytest.raises(PassError) as error:
        run_opt_pass(main("add(%x, %y)"), swap)
    assert error.value.message == "no fixed point after 64 rounds of swap"


@pytest.mark.parametrize(
    ("exactness", "levels"),
    [("exact", [0, 1, 2, 3]), ("reassociating", [2, 3]), ("approximate", []), ("unbounded", [])],
)
def test_exactness_decides_at_which_levels_a_rule_acts(exactness: str, levels: list[int]) -> None:
    bound = Bound(2) if exactness == "reassociating" else None

    @rule(call(Negative, call(Negative, value("x"))), exactness=exactness, bound=bound)
    def twice(x: Expr) -> Expr:
        return x

    acted = [n for n in range(4) if not calls(run_opt_pass(main("negative(negative(%x))"), twice, opt_level=n).main)]
    assert acted == levels


@pytest.mark.parametrize(
    ("exactness", "bound"), [("approximate", Bound(2)), ("exact", Bound(2)), ("unbounded", Bound(2))]
)
def test_only_reassociating_rules_state_a_bound(exactness: str, bound: Bound) -> None:
    with pytest.raises(PassError, match=f"a rule that is {exactness} states no bound"):
        rule(call(Relu, value("x")), exactness=exactness, bound=bound)


def test_a_reassociating_rule_that_states_no_bound_is_held_to_the_usual_one() -> None:
    @rule(call(Relu, value("x")), exactness="reassociating")
    def moved(x: Expr) -> Expr:
        return x

    assert moved.bound == USUAL


def test_unbounded_rules_act_with_fast_math() -> None:
    @rule(call(Negative, call(Negative, value("x"))), exactness="unbounded")
    def twice(x: Expr) -> Expr:
        return x

    before, fast = main("negative(negative(%x))"), {"minitvm.allow_fast_math": True}
    check_rewrite(twice, before, main("%x"), config=fast)
    check_unchanged(twice, before, config=fast, opt_level=1)
    check_unchanged(twice, before, config={"minitvm.allow_fast_math": False})


def test_approximate_rules_act_by_name() -> None:
    @rule(call(Negative, call(Negative, value("x"))), exactness="approximate")
    def twice(x: Expr) -> Expr:
        return x

    allowed = {"minitvm.allow_approximate": ("twice",)}
    check_rewrite(twice, main("negative(negative(%x))"), main("%x"), config=allowed)


@pytest.mark.parametrize("exactness", ["unbounded", "approximate"])
def test_a_rule_that_is_checked_may_act(exactness: str) -> None:
    """Else ``check_unchanged`` would hold for every rule of its kind."""

    @rule(call(Negative, call(Negative, value("x"))), exactness=exactness)
    def twice(x: Expr) -> Expr:
        return x

    before = main("negative(negative(%x))")
    check_rewrite(twice, before, main("%x"))
    check_rewrite([twice], before, main("%x"))
    with pytest.raises(AssertionError, match="changed:"):
        check_unchanged(twice, before)


def test_a_rule_pass_says_what_it_declined() -> None:
    step = rule_pass(drop_zero, name="DropZero", opt_level=1)
    with PassContext(disabled_pass=["DropZero"]), decisions() as log:
        step(parse_module(main("add(%x, 2f)")))
    assert [str(d) for d in log] == ["add: drop_zero declined: the constant is 2.0"]
    with decisions() as log:
        step(parse_module(main("%x")))
    assert [str(d) for d in log] == [
        "a function: DropZero declined: no rule finds the operators that it looks for in it"
    ]
