"""What passes ask about weights that are stored in fewer bytes than they have as floats (``SinkCast`` answers)."""

from minitvm.doors import door
from minitvm.ir.expr import Expr


@door
def is_cast_of_weights(node: Expr) -> bool:
    """True if a value is one large constant, moved at most, in another format, which stays as it is stored."""
    return False


@door
def kept_narrow(root: Expr, has_layouts: bool = False) -> set[Expr]:
    """Casts of large weights that are not computed beforehand.  ``has_layouts``: what is not in blocks stays out of
    them."""
    return set()


@door
def lies_across_depth(weight: Expr, product: Expr) -> bool:
    """True if weights have scales for blocks along another axis than a product adds up."""
    return False
