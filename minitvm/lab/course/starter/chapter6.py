"""Chapter 6: layout.  Grade with: minitvm lab grade chapter6 THIS_FILE"""

from minitvm import relay
from minitvm.ir.expr import Call, Expr
from minitvm.ir.pattern import call, value
from minitvm.passes import Declined, Replacement, rule


def place(layout: str, shape: dict[str, int], index: dict[str, int]) -> int:
    """6.1  At which place in memory (counted in elements) the element lies whose coordinates are ``index``.

    ``shape`` and ``index`` are by plain axis: {"N": 1, "C": 16, "H": 4, "W": 4}.  The layout may split axes:
    in "NCHW8c" the channel 11 is in block 1, at 3 inside of it.
    """
    raise NotImplementedError


@rule(call("layout_transform", call("layout_transform", value("x"), name="first"), name="second"))
def cancel_transforms(x: Expr, first: Call, second: Call) -> Replacement:
    """6.2  Into a layout and back is nothing at all."""
    raise NotImplementedError


@rule(call("nn.relu", call("layout_transform", value("x"), name="transform")))
def relu_first(x: Expr, transform: Call) -> Replacement:
    """6.3  relu(layout_transform(x)) is layout_transform(relu(x)): then transforms meet, and cancel."""
    raise NotImplementedError


@rule(call("nn.conv2d", value("x"), value("w"), name="conv"))
def blocked(x: Expr, w: Expr, conv: Call) -> Replacement:
    """6.4  A plain conv2d as transforms around ``relay.nn.contrib_conv2d_NCHWc``, in blocks of 8 channels."""
    raise NotImplementedError
