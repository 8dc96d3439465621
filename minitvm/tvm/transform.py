"""The passes by Relay's name for their home: ``from minitvm.passes import PassContext``.  Re-exports only."""

from minitvm.passes import *  # noqa: F403  (the same names, whatever they are)
from minitvm.passes import __all__ as __all__
