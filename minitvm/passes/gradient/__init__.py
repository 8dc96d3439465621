"""Reverse-mode differentiation of graphs: ``gradient`` and, an operator each, the rules behind it."""

from minitvm.passes.gradient.reverse import FirstOrderGradient, gradient
from minitvm.passes.gradient.rules import GRADIENTS, register_gradient

__all__ = ["GRADIENTS", "FirstOrderGradient", "gradient", "register_gradient"]
