"""Chapter 3: a pass and its proof.  Grade with: minitvm lab grade chapter3 THIS_FILE"""

from minitvm import relay
from minitvm.ir.expr import Call, Constant, Expr, Function
from minitvm.ir.visitor import children, rewrite
from minitvm.passes.rule import Rule
from minitvm.testing import check_rewrite, check_unchanged


def merge_equal(function: Function) -> Function:
    """3.1  Calls of equal operators (``call.op == other.op``) over the same operands become one call.

    Not where ``call.op.stateful``; the same ``function`` comes back where there is nothing to merge.
    """
    raise NotImplementedError


def scale_counterexample() -> str:
    """3.2  The text of a module on which "multiply(nn.relu(x), c) is nn.relu(multiply(x, c))" is wrong."""
    raise NotImplementedError


def transpose_counterexample() -> str:
    """3.2  One on which "transpose(transpose(x, axes=p), axes=p) is x" is wrong."""
    raise NotImplementedError


def prove(rule: Rule) -> None:
    """3.3  Raise AssertionError unless ``rule`` does what chapter 3 says of ``scale_into_dense``."""
    raise NotImplementedError
