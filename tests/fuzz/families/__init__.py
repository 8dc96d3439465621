"""Families of graphs: networks as people have them, where single operators are drawn by ``generate``.

A family is a function of a :class:`~tests.fuzz.families.net.Net` that adds inputs, layers and outputs.
"""

from tests.fuzz.families import algebra, cnn, flow, quantized, transformer  # noqa: F401  (register)
from tests.fuzz.families.net import FAMILIES, Net

__all__ = ["FAMILIES", "Net"]
