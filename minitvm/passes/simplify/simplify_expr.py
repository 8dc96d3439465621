"""SimplifyExpr: local algebra, applied until nothing changes.

Exact rules act at every level, reassociating ones at level 2 and above, approximate ones where
``minitvm.allow_approximate`` names them (Relay applies all of them at level 0 already, and changes floats by it).
"""

from __future__ import annotations

from minitvm.passes.rule import RulePass, rules_in
from minitvm.passes.simplify import arithmetic, casts, shapes


class SimplifyExpr(RulePass, opt_level=0):
    """All rules about shapes, products, windows, casts and arithmetic."""

    rules = rules_in(shapes, casts, arithmetic)


class SimplifyExprPostAlterOp(RulePass, opt_level=0):
    """What AlterOpLayout may have left: identities, reshapes, layouts and casts that cancel, two biases in a row."""

    rules = (
        arithmetic.drop_added_zero,
        arithmetic.drop_added_float_zero,
        arithmetic.drop_subtracted_zero,
        arithmetic.drop_multiplied_one,
        arithmetic.drop_divided_one,
        arithmetic.add_constants_of_floats,
        arithmetic.add_constants_of_integers,
        shapes.drop_reshape_to_same,
        shapes.merge_reshapes,
        shapes.drop_transpose_of_nothing,
        shapes.merge_transposes,
        shapes.drop_layout_transform_to_same,
        shapes.merge_layout_transforms,
        *rules_in(casts),
    )
