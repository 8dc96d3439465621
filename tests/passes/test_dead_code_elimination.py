"""DeadCodeElimination and unused functions.

Left out of Relay's cases: ``let`` and everything about it, references, recursion and purity: the graph IR has none.
"""

import pytest

from minitvm.errors import IRError
from minitvm.ir.decision import name_of
from minitvm.ir.expr import Function
from minitvm.ir.parser import parse_module
from minitvm.ir.visitor import calls, held_functions
from minitvm.passes import DeadCodeElimination
from minitvm.testing.checks import check_rewrite, check_unchanged, run_opt_pass

X = "%x: Tensor[(4,), float32]"
USED = f"def @main({X}) {{ @used(%x) }} def @used({X}) {{ @inner(%x) }} def @inner({X}) {{ nn.relu(%x) }}"


def test_functions_nobody_calls_go() -> None:
    check_rewrite(DeadCodeElimination(), USED + f"def @unused({X}) {{ @inner(%x) }}", USED)
    check_unchanged(DeadCodeElimination(), USED)


def test_functions_that_control_flow_holds_stay() -> None:
    text = f"""
    def @main({X}, %c: Tensor[(), bool]) {{ control.if(%c, %x, then_branch=@yes, else_branch=@no) }}
    def @yes({X}) {{ nn.relu(%x) }}
    def @no({X}) {{ exp(%x) }}"""
    check_unchanged(DeadCodeElimination(), text)


def test_several_entries() -> None:
    text = f"def @main({X}) {{ %x }} def @other({X}) {{ exp(%x) }} def @third({X}) {{ sin(%x) }}"
    assert list(run_opt_pass(text, DeadCodeElimination(["main", "other"])).functions) == ["main", "other"]
    with pytest.raises(IRError, match="no function 'fourth'"):
        run_opt_pass(text, DeadCodeElimination(["main", "fourth"]))


def test_fields_of_a_tuple_nobody_reads_go() -> None:
    check_rewrite(
        DeadCodeElimination(), f"def @main({X}) {{ (nn.relu(%x), exp(%x)).0 }}", f"def @main({X}) {{ nn.relu(%x) }}"
    )


def test_results_of_a_group_nobody_reads_go_with_what_they_need() -> None:
    before = f"""
    def @main({X}, %y: Tensor[(4,), float32]) {{
      %0 = fn (%p0: Tensor[(4,), float32], %p1: Tensor[(4,), float32], primitive=True, name="f") {{
        (nn.relu(%p0), exp(%p1), sin(%p0))
      }}(%x, %y);
      add(%0.2, %0.2)
    }}"""
    after = f"""
    def @main({X}, %y: Tensor[(4,), float32]) {{
      %0 = fn (%p0: Tensor[(4,), float32], primitive=True, name="f") {{ (sin(%p0),) }}(%x);
      add(%0.0, %0.0)
    }}"""
    check_rewrite(DeadCodeElimination(), before, after)


def test_results_that_are_all_read_stay() -> None:
    group = 'fn (%p0: Tensor[(4,), float32], primitive=True, name="f") { (nn.relu(%p0), exp(%p0)) }(%x)'
    check_unchanged(DeadCodeElimination(), f"def @main({X}) {{ %0 = {group}; add(%0.0, %0.1) }}")
    check_unchanged(DeadCodeElimination(), f"def @main({X}) {{ {group} }}")


def test_results_of_branches_nobody_reads_go() -> None:
    text = f"""
    def @main({X}, %c: Tensor[(), bool]) {{
      %0 = control.if(%c, %x, then_branch=@yes, else_branch=@no);
      nn.relu(%0.1)
    }}
    def @yes({X}) {{ (exp(%x), sin(%x), cos(%x)) }}
    def @no({X}) {{ (cos(%x), exp(%x), sin(%x)) }}"""
    found = run_opt_pass(text, DeadCodeElimination())
    (choice,) = [c for c in calls(found.main) if not isinstance(c.op, Function) and c.op.name == "control.if"]
    kept = [[c.op.name for c in calls(branch.body)] for branch in (choice.op.then_branch, choice.op.else_branch)]
    assert kept == [["sin"], ["exp"]]
    check_rewrite(DeadCodeElimination(), text, found)


def test_results_of_a_branch_that_are_not_put_together_in_it_go() -> None:
    text = f"""
    def @main({X}, %c: Tensor[(), bool]) {{ control.if(%c, %x, then_branch=@THEN, else_branch=@ELSE).1 }}
    def @whole({X}) {{ split(%x, indices_or_sections=2) }}
    def @parts({X}) {{ %0 = split(%x, indices_or_sections=2); (exp(%0.0), sin(%0.1)) }}"""
    for branches in (["whole", "parts"], ["parts", "whole"]):
        before = text.replace("THEN", branches[0]).replace("ELSE", branches[1])
        found = run_opt_pass(before, DeadCodeElimination())
        (choice,) = calls(found.main)
        kept = [[name_of(c) for c in calls(f.body)] for f in held_functions(choice).values()]
        assert kept == [["split"] if name == "whole" else ["split", "sin"] for name in branches]
        check_rewrite(DeadCodeElimination(), before, found)


def test_functions_without_types_stay() -> None:
    module = parse_module("def @main(%x) { @f(%x).0 } def @f(%a) { (nn.relu(%a), exp(%a)) }")
    assert DeadCodeElimination()(module) is module


def test_carried_values_of_loops_stay() -> None:
    text = f"""
    def @main({X}) {{ control.loop(3i64, True, %x, %x, body=@body, num_carried=2).0 }}
    def @body(%i: Tensor[(), int64], %c: Tensor[(), bool], %a: Tensor[(4,), float32], %b: Tensor[(4,), float32]) {{
      (%c, add(%a, %b), nn.relu(%b))
    }}"""
    check_unchanged(DeadCodeElimination(), text)
