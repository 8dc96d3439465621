# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
import types
from collections.abc import Sequence
from typing import Any
from minitvm.passes.instrument import PassInfo as PassInfo
from minitvm.passes.instrument import PassInstrument as PassInstrument
from minitvm.passes.instrument import PassTiming as PassTiming
from minitvm.passes.instrument import PrintIR as PrintIR
PassTimingInstrument = PassTiming
def pass_instrument(cls: Any=None) -> Any:
    """A decorator: a class with some of :class:`PassInstrument`'s methods becomes one."""
    ...
def PassPrintingInstrument(print_before_pass_names: Sequence[str]=(), print_after_pass_names: Sequence[str]=()) -> PrintIR:
    """Prints the module before and after passes of these names."""
    ...
def PrintBeforeAll() -> PrintIR:
    """Prints the module before every pass."""
    ...
def PrintAfterAll() -> PrintIR:
    """Prints the module after every pass."""
    ...
