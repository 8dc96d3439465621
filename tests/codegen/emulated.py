"""Runs a kernel's AArch64 object code, or a model's, under an emulator (unicorn), on any machine.

The object is linked by hand: sections one after the other, relocations as the "ELF for the Arm 64-bit
Architecture" says, functions of the C library as addresses at which Python stands in.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import io
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from native_kernel import memory_of, poisoned

from minitvm.codegen.backend import plan_workspace
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.llvm.compile import compile_object, cpu_of, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.lower import lowering
from minitvm.codegen.simplify import simplify
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, TupleGetItem
from minitvm.ir.loop import Kernel
from minitvm.ir.types import TupleType, tensor_fields
from minitvm.ir.visitor import post_order
from minitvm.runtime.poison import A_NUMBER, NOT_A_NUMBER
from minitvm.target import SHARING, MachineModel, Target, spinning_text

try:
    import unicorn
    from elftools.elf.elffile import ELFFile
    from unicorn import arm64_const as arm64
except ImportError:
    INSTALLED = False
    """Whether there is an emulator: ``pip install unicorn pyelftools``."""
else:
    INSTALLED = True

TARGET = "llvm -mtriple=aarch64-unknown-linux-gnu"
DOTS = f"{TARGET} -mattr=+dotprod"
MIXED = f"{TARGET} -mattr=+dotprod,+i8mm"
STUBS, CODE, STACK, DATA = 0x10_0000, 0x20_0000, 0x5000_0000, 0x6000_0000
PAGE, STACK_BYTES = 0x1000, 1 << 20
END = STUBS + 0xFF8
"""Where the kernel returns to."""


def machine(threads: int = 1, target: str = TARGET) -> MachineModel:
    return machine_model(cpu_of(Target.parse(target)), threads)


def run_emulated(kernel: Kernel, *arrays: np.ndarray, threads: int = 1, target: str = TARGET) -> tuple[np.ndarray, ...]:
    """The kernel's results; a thread runs after the other, so it must have no barriers if there are more.

    They do not depend on what was in memory before.
    """
    image = compile_object(_with_sharing(emit(kernel, machine(threads, target))), cpu_of(Target.parse(target)))
    results, others = (_run_over(marker, image, kernel, arrays, threads) for marker in (NOT_A_NUMBER, A_NUMBER))
    for buffer, one, other in zip(kernel.outputs, results, others, strict=True):
        assert one.tobytes() == other.tobytes(), f"{buffer.name} depends on what was in memory before"
    return results


def run_model(module: Module, *arrays: np.ndarray, target: str) -> Any:
    """A built module's result, kernel by kernel."""
    values: dict[Expr, Any] = dict(zip(module.main.params, arrays, strict=True))
    for node in post_order(module.main.body):
        if isinstance(node, Constant):
            values[node] = node.value
        elif isinstance(node, TupleGetItem):
            values[node] = values[node.tuple][node.index]
        elif isinstance(node, Call):
            given = [values[arg] for arg in node.args]
            assert isinstance(node.op, Function)
            kernel = legalize(simplify(lowering(node.op, "kernel", machine(target=target)).kernel), SPELLINGS)
            found = run_emulated(kernel, *given, target=target)
            results = [r.reshape(t.static_shape) for r, t in zip(found, tensor_fields(node.type), strict=True)]
            values[node] = results if isinstance(node.type, TupleType) else results[0]
    return values[module.main.body]


def _with_sharing(text: str) -> str:
    """A kernel's text with the functions that it calls for its part of the work, nothing declared twice."""
    lines = f"{text}\n{spinning_text(SHARING, machine().features)}".splitlines()
    declared = dict.fromkeys(x for x in lines if x.startswith("declare ") and " @minitvm." not in x)
    return "\n".join([*declared, *(x for x in lines if not x.startswith("declare "))])


def _run_over(
    marker: int, image: bytes, kernel: Kernel, arrays: tuple[np.ndarray, ...], threads: int
) -> tuple[np.ndarray, ...]:
    given = [np.asarray(a, b.dtype).reshape(b.shape) for a, b in zip(arrays, kernel.inputs, strict=True)]
    memory = [memory_of(b, a, marker) for b, a in zip(kernel.inputs, given, strict=True)]
    memory += [memory_of(b, None, marker) for b in kernel.outputs]
    guest = _Guest(image)
    pointers = [guest.place(m) for m in memory]
    pointers.append(guest.place(poisoned(plan_workspace(kernel, threads).nbytes, marker)))
    run = guest.place(np.zeros(16 + 16 * threads, np.int64))
    for thread in range(threads):
        guest.call(kernel.name, *pointers, thread, threads, guest.place(np.array([run, 0, 0], np.int64)))
    found = [np.frombuffer(guest.read(p, m.nbytes), m.dtype) for p, m in zip(pointers, memory, strict=False)]
    for array, flat in zip(given, found, strict=False):
        assert flat.tobytes() == array.tobytes(), "an input was written to"
    results = found[len(given) :]
    return tuple(m.reshape(b.shape).copy() for b, m in zip(kernel.outputs, results, strict=True))


class _Guest:
    """An emulated processor with one linked object file in its memory."""

    def __init__(self, image: bytes) -> None:
        self._cpu = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self._cpu.ctl_set_cpu_model(arm64.UC_CPU_ARM64_MAX)
        self._cpu.reg_write(arm64.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # floating point and vectors are switched on
        self._cpu.mem_map(STUBS, PAGE)
        self._cpu.mem_write(STUBS, struct.pack("<I", 0xD65F03C0) * (PAGE // 4))  # ret
        self._cpu.mem_map(STACK, STACK_BYTES)
        self._free = DATA
        self._stubs: dict[str, int] = {}
        self._symbols = self._link(ELFFile(io.BytesIO(image)))
        self._cpu.hook_add(unicorn.UC_HOOK_CODE, self._stand_in, begin=STUBS, end=END - 8)
        self._cpu.hook_add(unicorn.UC_HOOK_INTR, self._unknown)

    def place(self, memory: np.ndarray) -> int:
        """A copy of host memory, behind a page that faults; its address."""
        size = -(-max(memory.nbytes, 1) // PAGE) * PAGE
        at, self._free = self._free + PAGE, self._free + PAGE + size
        self._cpu.mem_map(at, size)
        self._cpu.mem_write(at, memory.tobytes())
        return at

    def read(self, at: int, nbytes: int) -> bytes:
        return bytes(self._cpu.mem_read(at, nbytes))

    def call(self, symbol: str, *arguments: int) -> None:
        """The procedure call standard: eight integers in registers, the rest on the stack."""
        top = STACK + STACK_BYTES - 4096
        for register, value in enumerate(arguments[:8]):
            self._cpu.reg_write(arm64.UC_ARM64_REG_X0 + register, value)
        self._cpu.mem_write(top, struct.pack(f"<{len(arguments[8:])}Q", *arguments[8:]))
        self._cpu.reg_write(arm64.UC_ARM64_REG_SP, top)
        self._cpu.reg_write(arm64.UC_ARM64_REG_LR, END)
        self._cpu.emu_start(self._symbols[symbol], END)

    def _unknown(self, cpu: Any, number: int, data: object) -> None:
        """USDOT, which the emulator does not know: four sums of unsigned bytes by signed ones."""
        at = cpu.reg_read(arm64.UC_ARM64_REG_PC)
        (word,) = struct.unpack("<I", self.read(at, 4))
        assert word & 0xFFE0FC00 == 0x4E809C00, f"an instruction that is not emulated: {word:#x}"
        total, first, second = (arm64.UC_ARM64_REG_Q0 + (word >> place & 31) for place in (0, 5, 16))
        held = (cpu.reg_read(register).to_bytes(16, "little") for register in (total, first, second))
        sums, x, y = (np.frombuffer(v, dtype) for v, dtype in zip(held, ("<i4", "u1", "i1"), strict=True))
        sums = sums + (x.astype("int32") * y).reshape(4, 4).sum(1, dtype="int32")
        cpu.reg_write(total, int.from_bytes(sums.tobytes(), "little"))
        cpu.reg_write(arm64.UC_ARM64_REG_PC, at + 4)

    # --- linking ------------------------------------------------------------------------------------------------------

    def _link(self, elf: ELFFile) -> dict[str, int]:
        starts, end = {}, CODE
        for index, section in enumerate(elf.iter_sections()):
            if section["sh_flags"] & 2:  # SHF_ALLOC
                align = max(section["sh_addralign"], 1)
                starts[index] = -(-end // align) * align
                end = starts[index] + section["sh_size"]
        table = elf.get_section_by_name(".symtab")
        symbols = list(table.iter_symbols())
        addresses = [self._address(s, starts) for s in symbols]
        got = -(-end // 8) * 8
        self._cpu.mem_map(CODE, -(-(got + 8 * len(symbols) - CODE) // PAGE) * PAGE)
        for index, section in enumerate(elf.iter_sections()):
            if index in starts and section["sh_type"] != "SHT_NOBITS":
                self._cpu.mem_write(starts[index], section.data())
        self._cpu.mem_write(got, struct.pack(f"<{len(symbols)}Q", *addresses))
        for section in elf.iter_sections():
            if section["sh_type"] == "SHT_RELA" and section["sh_info"] in starts:
                for entry in section.iter_relocations():
                    symbol = entry["r_info_sym"]
                    where, target = starts[section["sh_info"]] + entry["r_offset"], addresses[symbol]
                    self._relocate(entry["r_info_type"], where, target + entry["r_addend"], got + 8 * symbol)
        return {s.name: a for s, a in zip(symbols, addresses, strict=True)}

    def _address(self, symbol: Any, starts: dict[int, int]) -> int:
        section = symbol["st_shndx"]
        if section in starts:
            return int(starts[section] + symbol["st_value"])
        return STUBS + 8 * self._stubs.setdefault(symbol.name, len(self._stubs))

    def _relocate(self, kind: int, where: int, target: int, slot: int) -> None:
        """``target`` is S + A of the specification, ``slot`` the symbol's entry in the global offset table."""
        if kind in (257, 260, 261):  # ABS64, PREL64, PREL32
            value, width = (target if kind == 257 else target - where), 4 if kind == 261 else 8
            self._cpu.mem_write(where, (value % (1 << 8 * width)).to_bytes(width, "little"))
            return
        (word,) = struct.unpack("<I", self.read(where, 4))
        self._cpu.mem_write(where, struct.pack("<I", word | _FIELDS[kind](where, target, slot)))

    # --- the C library ------------------------------------------------------------------------------------------------

    def _stand_in(self, cpu: Any, address: int, size: int, data: object) -> None:
        name = list(self._stubs)[(address - STUBS) // 8]
        if name in ("memset", "memcpy", "memmove"):
            to, source, count = (cpu.reg_read(arm64.UC_ARM64_REG_X0 + i) for i in range(3))
            cpu.mem_write(to, bytes([source & 255]) * count if name == "memset" else self.read(source, count))
            return
        dtype = np.dtype("float32" if name.endswith("f") and name != "erf" else "float64")
        function, register = _library(name, dtype), arm64.UC_ARM64_REG_Q0
        count = len(function.argtypes)
        raw = (cpu.reg_read(register + i).to_bytes(16, "little")[: dtype.itemsize] for i in range(count))
        result = function(*(np.frombuffer(r, dtype)[0] for r in raw))
        cpu.reg_write(register, int.from_bytes(np.asarray(result, dtype).tobytes(), "little"))


@cache
def _library(name: str, dtype: np.dtype) -> Any:
    """The function of this machine's C library; to find that starts a compiler."""
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name)
    kind = np.ctypeslib.as_ctypes_type(dtype)
    function.restype, function.argtypes = kind, [kind] * (2 if name.rstrip("f") in ("fmod", "pow") else 1)
    return function


def _page(where: int, target: int) -> int:
    """The immediate of ADRP."""
    pages = ((target & -PAGE) - (where & -PAGE)) >> 12
    return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _near(where: int, target: int) -> int:
    return (target - where) >> 2 & 0x3FFFFFF


def _low(scale: int) -> Callable[[int, int, int], int]:
    return lambda where, target, slot: (target & 0xFFF) >> scale << 10


_FIELDS: dict[int, Callable[[int, int, int], int]] = {
    275: lambda where, target, slot: _page(where, target),  # ADR_PREL_PG_HI21
    277: _low(0),  # ADD_ABS_LO12_NC
    278: _low(0),  # LDST8_ABS_LO12_NC
    284: _low(1),
    285: _low(2),
    286: _low(3),
    299: _low(4),
    282: lambda where, target, slot: _near(where, target),  # JUMP26
    283: lambda where, target, slot: _near(where, target),  # CALL26
    311: lambda where, target, slot: _page(where, slot),  # ADR_GOT_PAGE
    312: lambda where, target, slot: (slot & 0xFFF) >> 3 << 10,  # LD64_GOT_LO12_NC
}
"""Bits of an instruction by kind of relocation."""
