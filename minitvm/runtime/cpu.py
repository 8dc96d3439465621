"""Object code in memory: linked by LLVM's ORC JIT, which needs no compiler or linker on the machine."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import llvmlite.binding

from minitvm.errors import LibraryError

llvm: Any = llvmlite.binding  # has no types

_names = itertools.count()
_lock = threading.Lock()


@lru_cache(maxsize=1)
def _jit() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


class NativeCode:
    """Objects, and LLVM IR ``text``, linked together and loaded; ``address(symbol)`` of the exported ones.

    Unloaded when collected.
    """

    def __init__(self, objects: Iterable[bytes], exports: Sequence[str], text: str = "") -> None:
        builder = llvm.JITLibraryBuilder()
        if text:
            builder.add_ir(text)
        for image in objects:
            builder.add_object_img(image)
        for symbol in exports:
            builder.export_symbol(symbol)
        builder.add_current_process()
        with _lock:
            try:
                self._tracker = builder.link(_jit(), f"minitvm-{next(_names)}")
            except RuntimeError as error:
                raise LibraryError(
                    f"the object code cannot be linked: {error}", hint="build the library again on this machine"
                ) from error

    def address(self, symbol: str) -> int:
        return int(self._tracker[symbol])

    def function(self, symbol: str, result: Any, *arguments: Any) -> Any:
        """The symbol as a ctypes function; calls release the interpreter's lock."""
        return ctypes.CFUNCTYPE(result, *arguments)(self.address(symbol))
