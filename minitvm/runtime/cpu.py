"""Object code in memory: linked by LLVM's ORC JIT, which needs no compiler or linker; and what this machine can run."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding

from minitvm.errors import LibraryError
from minitvm.runtime.artifact import CpuTag

llvm: Any = llvmlite.binding  # has no types

_names = itertools.count()
_lock = threading.Lock()


@cache
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


# --- this machine ---------------------------------------------------------------------------------------------

_NOT_CODE = frozenset({
    "64bit", "cldemote", "clflushopt", "clwb", "clzero", "cx8", "enqcmd", "fsgsbase", "fxsr", "hreset", "invpcid",
    "lwp", "movdir64b", "movdiri", "mwaitx", "pconfig", "pku", "prfchw", "ptwrite", "rdpid", "rdpru", "rtm", "sahf",
    "serialize", "sgx", "shstk", "tsxldtrk", "uintr", "vzeroupper", "waitpkg", "wbnoinvd", "xsave", "xsavec",
    "xsaveopt", "xsaves",
})  # fmt: skip
"""Features that kernels make no use of, so that a machine without them may still run the code."""


@cache
def this_machine() -> CpuTag:
    """The CPU that this process runs on."""
    llvm.initialize_native_target()
    features = [name for name, there in llvm.get_host_cpu_features().items() if there]
    return CpuTag(llvm.get_process_triple(), llvm.get_host_cpu_name(), tuple(sorted(features)))


def check_cpu(made_for: CpuTag, name: str) -> None:
    """:class:`LibraryError` where this machine cannot run code made for that CPU; ``name`` is the library's."""
    here = this_machine()
    hint = "compile the model again on this machine, or for it: minitvm compile --target 'llvm -mcpu=...'"
    if made_for.triple.split("-")[0] != here.triple.split("-")[0]:
        raise LibraryError(f"{name} was compiled for {made_for.triple}, this machine is {here.triple}", hint=hint)
    lacking = [f for f in made_for.features if f not in here.features and f not in _NOT_CODE]
    if lacking:
        more = f" and {len(lacking) - 6} more" if len(lacking) > 6 else ""
        raise LibraryError(
            f"{name} was compiled for {made_for.name}; this machine's CPU, {here.name}, "
            f"lacks {', '.join(lacking[:6])}{more}",
            hint=hint,
        )
