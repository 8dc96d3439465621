"""Chapter 1: IR and types.  Grade with: minitvm lab grade chapter1 THIS_FILE"""

from minitvm import relay
from minitvm.ir.expr import Call, Expr, Tuple, TupleGetItem

Shape = tuple[int, ...]


def residual_block(x: Expr, first: Expr, second: Expr) -> Expr:
    """1.1  relu(conv(relu(conv(x, first)), second) + x); 3 x 3 convolutions that keep height and width."""
    raise NotImplementedError


def conv_shape(
    data: Shape, weight: Shape, strides: Shape = (1, 1), padding: Shape = (0, 0), dilation: Shape = (1, 1)
) -> Shape:
    """1.2  The shape of conv2d(data: (n, c, h, w), weight: (o, c, kh, kw)); ValueError where the channels differ.

    ``padding`` is (rows, columns), as much on both sides.
    """
    raise NotImplementedError


def count_calls(root: Expr) -> dict[str, int]:
    """1.3  How many calls of each operator there are below ``root``, each call once: {"nn.conv2d": 2, "add": 1}.

    Operands of a node: ``Call.args``, ``Tuple.fields``, ``TupleGetItem.tuple``.  The graph may be 3,000 nodes deep.
    """
    raise NotImplementedError
