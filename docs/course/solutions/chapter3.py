"""Solutions of chapter 3."""

from collections.abc import Hashable

from minitvm.ir.expr import Call, Expr, Function
from minitvm.ir.visitor import rewrite
from minitvm.passes.rule import Rule
from minitvm.testing import check_rewrite, check_unchanged


def merge_equal(function: Function) -> Function:
    first: dict[Hashable, Expr] = {}

    def visit(old: Expr, new: Expr) -> Expr:
        if not isinstance(new, Call) or isinstance(new.op, Function) or new.op.stateful:
            return new
        return first.setdefault((new.op, *new.args), new)

    return rewrite(function, visit)


def scale_counterexample() -> str:
    return "def @main(%x: Tensor[(4,), float32]) { multiply(nn.relu(%x), -2f) }"


def transpose_counterexample() -> str:
    return """
    def @main(%x: Tensor[(2, 2, 2), float32]) {
      transpose(transpose(%x, axes=[1, 2, 0]), axes=[1, 2, 0])
    }
    """


def dense(constant: str, result: str = "multiply(%0, CONSTANT)", units: int = 3) -> str:
    text = f"""
    def @main(%x: Tensor[(2, 3), float32], %w: Tensor[({units}, 3), float32]) {{
      %0 = nn.dense(%x, %w);
      {result}
    }}
    """
    return text.replace("CONSTANT", constant)


def folded(constant: str) -> str:
    return f"""
    def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(3, 3), float32]) {{
      nn.dense(%x, multiply(%w, {constant}))
    }}
    """


def prove(rule: Rule) -> None:
    per_unit = "const([2, 3, 5], float32)"
    check_rewrite(rule, dense("2f"), folded("2f"))
    check_rewrite(rule, dense(per_unit), folded("const([[2], [3], [5]], float32)"))
    check_unchanged(rule, dense(per_unit), opt_level=1)
    check_unchanged(rule, dense(per_unit, "(multiply(%0, CONSTANT), %0)"))
    check_unchanged(rule, dense("const([[2], [3]], float32)"))
    check_unchanged(rule, dense(per_unit, units=1))
