"""Chapter 2: the first rewrite.  Grade with: minitvm lab grade chapter2 THIS_FILE

Each pattern here is a beginning: part of the exercise is to say what has to be matched.
"""

import numpy as np

from minitvm import relay
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.pattern import call, const, value
from minitvm.passes import Declined, Replacement, rule


@rule(call("negative", value("x")))
def drop_double_negation(x: Expr) -> Replacement:
    """2.1  -(-x) is x."""
    raise NotImplementedError


@rule(call("maximum", value("x"), const("c")))
def maximum_is_relu(x: Expr, c: Constant) -> Replacement:
    """2.2  maximum(x, 0) is nn.relu(x), where the result has x's shape; nothing else is."""
    raise NotImplementedError


@rule(call("multiply", value("x"), const("a")))
def merge_scales(x: Expr, a: Constant) -> Replacement:
    """2.3  (x * a) * b is x * (a * b), where nobody else reads x * a.  What does it do to roundings?"""
    raise NotImplementedError


@rule(call("divide", value("x"), const("c")))
def divide_by_power_of_two(x: Expr, c: Constant) -> Replacement:
    """2.4  x / c is x * (1 / c) to the last bit, where c is a power of two and so is representable 1 / c."""
    raise NotImplementedError
