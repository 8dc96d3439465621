"""TVM's ``instrument``: what watches passes, by its names."""

import types
from collections.abc import Sequence
from typing import Any

from minitvm.passes.instrument import PassInfo, PassInstrument, PassTiming, PrintIR

PassTimingInstrument = PassTiming


def pass_instrument(cls: Any = None) -> Any:
    """A decorator: a class with some of :class:`PassInstrument`'s methods becomes one."""

    def decorate(cls: type) -> type:
        return types.new_class(cls.__name__, (cls, PassInstrument), {}, lambda body: body.update(__doc__=cls.__doc__))

    return decorate if cls is None else decorate(cls)


def PassPrintingInstrument(
    print_before_pass_names: Sequence[str] = (), print_after_pass_names: Sequence[str] = ()
) -> PrintIR:
    """Prints the module before and after passes of these names."""
    return PrintIR(before=print_before_pass_names, after=print_after_pass_names)


def PrintBeforeAll() -> PrintIR:
    """Prints the module before every pass."""
    return PrintIR(before=["*"])


def PrintAfterAll() -> PrintIR:
    """Prints the module after every pass."""
    return PrintIR(after=["*"])
