"""Which CPU object code was made for, and whether this machine can run it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from minitvm.errors import LibraryError
from minitvm.runtime.cpu import llvm

_NOT_CODE = frozenset({
    "64bit", "cldemote", "clflushopt", "clwb", "clzero", "cx8", "enqcmd", "fsgsbase", "fxsr", "hreset", "invpcid",
    "lwp", "movdir64b", "movdiri", "mwaitx", "pconfig", "pku", "prfchw", "ptwrite", "rdpid", "rdpru", "rtm", "sahf",
    "serialize", "sgx", "shstk", "tsxldtrk", "uintr", "vzeroupper", "waitpkg", "wbnoinvd", "xsave", "xsavec",
    "xsaveopt", "xsaves",
})  # fmt: skip
"""Features that kernels make no use of, so that a machine without them may still run the code."""


@dataclass(frozen=True)
class CpuTag:
    """The CPU that object code was made for."""

    triple: str
    name: str
    features: tuple[str, ...]
    """Instruction sets that the code may use, without ``+``."""


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
