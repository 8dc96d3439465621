"""Everything that a compiled model needs to run.  ``load_module`` is here too, as in TVM."""

from minitvm.runtime.library import load_module

__all__ = ["load_module"]
