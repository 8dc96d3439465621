"""Chapter 5: fusion as post-dominance.  Grade with: minitvm lab grade chapter5 THIS_FILE

Graphs here are dictionaries from a node's name to the names of its users, operands before users:
{"x": ["conv"], "conv": ["relu"], "relu": []}.  A node without users is a result.
"""

from minitvm.ir.expr import Function
from minitvm.ir.types import leaves
from minitvm.ir.visitor import calls

Graph = dict[str, list[str]]


def post_dominators(users: Graph) -> dict[str, str | None]:
    """5.1  Of each node the first node that every way from it to a result runs through; None where there is none."""
    raise NotImplementedError


def groups(users: Graph, kinds: dict[str, str]) -> list[set[str]]:
    """5.2  The nodes in groups that one kernel each computes, as few as the rules of the chapter allow.

    Kinds are "heavy" (a convolution), "reduce", "elementwise" and "opaque".
    """
    raise NotImplementedError


def bytes_moved(function: Function) -> int:
    """5.3  Bytes that the calls of a function read and write: all their operands and results.

    What is called may be an operator or a fused group (a ``Function``), whose inside moves nothing.
    """
    raise NotImplementedError
