"""SimplifyExpr: local algebra, applied until nothing changes.

Exact rules act at every level, reassociating ones at level 2 and above, approximate ones where
``minitvm.allow_approximate`` names them (Relay applies all of them at level 0 already, and changes floats by it).
"""

from __future__ import annotations

from minitvm.passes.rule import RulePass
from minitvm.passes.simplify import arithmetic as simplify_arithmetic
from minitvm.passes.simplify import casts as simplify_casts
from minitvm.passes.simplify import products as simplify_products
from minitvm.passes.simplify import shapes as simplify_shapes
from minitvm.passes.simplify import windows as simplify_windows

_AFTER_LAYOUT = (
    simplify_arithmetic.drop_added_zero,
    simplify_arithmetic.drop_added_float_zero,
    simplify_arithmetic.drop_subtracted_zero,
    simplify_arithmetic.drop_multiplied_one,
    simplify_arithmetic.drop_divided_one,
    simplify_shapes.drop_reshape_to_same,
    simplify_shapes.merge_reshapes,
    simplify_shapes.drop_transpose_of_nothing,
    simplify_shapes.merge_transposes,
    simplify_shapes.drop_layout_transform_to_same,
    simplify_shapes.merge_layout_transforms,
    *simplify_casts.RULES,
    *simplify_arithmetic.ADDED_CONSTANTS,
)


class SimplifyExpr(RulePass, opt_level=0):
    """All rules about shapes, products, windows, casts and arithmetic."""

    rules = (
        *simplify_shapes.RULES,
        *simplify_products.RULES,
        *simplify_windows.RULES,
        *simplify_casts.RULES,
        *simplify_arithmetic.RULES,
    )


class SimplifyExprPostAlterOp(RulePass, opt_level=0):
    """What AlterOpLayout may have left: identities, reshapes, layouts and casts that cancel, two biases in a row."""

    rules = _AFTER_LAYOUT
