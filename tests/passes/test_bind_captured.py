"""bind_captured: constants that branches and loops capture move into them; called functions are put in place."""

import pytest

from minitvm.ir.expr import Module
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import assert_structural_equal
from minitvm.passes.redundancy import bind_captured
from minitvm.testing.checks import assert_same_numbers

X, C, I = "%x: Tensor[(3,), float32]", "%c: Tensor[(), bool]", "%i: Tensor[(), int64]"
K = "const([1, 2, 3], float32)"


def check(before: str, after: str) -> None:
    """What ``main`` becomes; functions that it no longer holds are not looked at."""
    given, expected = parse_module(before).main, parse_module(after).main
    found = bind_captured(given)
    assert_structural_equal(found, expected)
    assert_same_numbers(Module(given), Module(found))


def test_constants_move_into_the_branches_of_an_if() -> None:
    """Its condition stays, known or not."""
    before = f"""
    def @main({X}, {C}) {{ control.if(CONDITION, {K}, %x, then_branch=@yes, else_branch=@no) }}
    def @yes(%k: Tensor[(3,), float32], {X}) {{ add(%x, %k) }}
    def @no(%k: Tensor[(3,), float32], {X}) {{ multiply(%x, %k) }}"""
    after = f"""
    def @main({X}, {C}) {{ control.if(CONDITION, %x, then_branch=@yes, else_branch=@no) }}
    def @yes({X}) {{ add(%x, {K}) }}
    def @no({X}) {{ multiply(%x, {K}) }}"""
    for condition in ("%c", "True"):
        check(before.replace("CONDITION", condition), after.replace("CONDITION", condition))


def test_constants_that_a_loop_captures_move_into_its_body() -> None:
    """How often it runs, its first condition and what it carries stay."""
    before = f"""
    def @main() {{ control.loop(3i64, True, {K}, {K}, body=@body, num_carried=1) }}
    def @body({I}, {C}, {X}, %k: Tensor[(3,), float32]) {{ (%c, add(%x, %k)) }}"""
    after = f"""
    def @main() {{ control.loop(3i64, True, {K}, body=@body, num_carried=1) }}
    def @body({I}, {C}, {X}) {{ (%c, add(%x, {K})) }}"""
    check(before, after)


@pytest.mark.parametrize("branches", [("outer", "leaf"), ("leaf", "outer")])
def test_constants_move_in_a_branch_alone(branches: tuple[str, str]) -> None:
    text = f"""
    def @main({X}, {C}) {{ control.if(%c, %x, %c, then_branch=@{branches[0]}, else_branch=@{branches[1]}) }}
    def @leaf({X}, {C}) {{ nn.relu(%x) }}
    def @outer({X}, {C}) {{ control.if(%c, %x ARGUMENT, then_branch=@inner, else_branch=@inner) }}
    def @inner({X} PARAMETER) {{ add(%x, VALUE) }}"""
    before = text.replace("ARGUMENT", f", {K}").replace("PARAMETER", ", %k: Tensor[(3,), float32]")
    after = text.replace("ARGUMENT", "").replace("PARAMETER", "").replace("VALUE", K)
    check(before.replace("VALUE", "%k"), after)


def test_control_flow_that_captures_no_constant_stays() -> None:
    text = f"""
    def @main({X}, {C}) {{
      %0 = control.if(%c, %x, then_branch=@leaf, else_branch=@leaf);
      control.loop(3i64, %c, %0, body=@body, num_carried=1)
    }}
    def @leaf({X}) {{ nn.relu(%x) }}
    def @body({I}, {C}, {X}) {{ (%c, nn.relu(%x)) }}"""
    main = parse_module(text).main
    assert bind_captured(main) is main


def test_called_functions_are_put_in_place_and_groups_stay() -> None:
    before = f"""
    def @main({X}) {{ %0 = @f(%x); fn (%p: Tensor[(3,), float32], primitive=True) {{ exp(%p) }}(%0) }}
    def @f({X}) {{ @g(nn.relu(%x)) }}
    def @g({X}) {{ sin(%x) }}"""
    after = f"""
    def @main({X}) {{
      %0 = sin(nn.relu(%x));
      fn (%p: Tensor[(3,), float32], primitive=True) {{ exp(%p) }}(%0)
    }}"""
    check(before, after)
