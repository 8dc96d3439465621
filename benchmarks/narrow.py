"""Peers on a machine with fewer instructions than this one: what they ask the processor, ``cpuid``, is answered for the
target.

Onnxruntime has no switch for it, OpenVINO's heeds oneDNN only and not the products that it has from elsewhere.  So a
copy of a package is imported in which every ``cpuid`` instruction is one that no x86-64 processor knows; a handler of
the signal that follows does what stood there and takes bits out of the answer.  Linux on x86-64; Intel's and AMD's
manuals give the bits.
"""

from __future__ import annotations

import bisect
import ctypes
import hashlib
import importlib
import importlib.util
import os
import pathlib
import platform
import struct
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import llvmlite.binding

from minitvm import config
from minitvm.codegen.llvm.compile import Cpu, assembly, compile_object, cpu_of, host
from minitvm.runtime.native import NativeCode
from minitvm.target import Target

llvm: Any = llvmlite.binding  # has no types

CPUID, MARK = b"\x0f\xa2", b"\x37\xa2"
"""The instruction, and what stands for it: ``aaa``, which 64-bit code cannot have."""

KEPT = ("onnxruntime", "openvino")
"""Peers that are kept to a target this way."""


class Bits(NamedTuple):
    """Of a register (0 to 3: eax, ebx, ecx, edx) that ``cpuid`` gives for a leaf and a subleaf."""

    leaf: int
    subleaf: int
    register: int
    bits: tuple[int, ...]

    @property
    def mask(self) -> int:
        return sum(1 << bit for bit in self.bits)


_AVX512 = (
    Bits(7, 0, 1, (16, 17, 21, 26, 27, 28, 30, 31)),
    Bits(7, 0, 2, (1, 6, 11, 12, 14)),
    Bits(7, 0, 3, (2, 3, 8, 22, 23, 24, 25)),
    Bits(7, 1, 0, (5, 21)),
    Bits(7, 1, 3, (8, 19, 21)),
)
"""AVX-512 and what needs it, bfloat16, float16 and VNNI among it; AMX, AVX10, APX."""
_DOTS = (
    Bits(7, 0, 2, (11,)),
    Bits(7, 0, 3, (22, 23, 24, 25)),
    Bits(7, 1, 0, (4, 5, 21, 23)),
    Bits(7, 1, 3, (4, 5, 8, 10)),
)
"""Products of bytes that are added at once, by VNNI, AVX-VNNI or AMX, and what came with them or later."""
_AVX2 = (Bits(1, 0, 2, (12, 22)), Bits(7, 0, 1, (3, 5, 8)), Bits(7, 0, 2, (8, 9, 10)), Bits(7, 1, 0, (4, 23)))
"""AVX2, FMA, BMI."""
_AVX = (Bits(1, 0, 2, (28, 29)),)

_INTEGERS = """
define void @probe(ptr %p) {
  %x = load <8 x i32>, ptr %p
  %y = mul <8 x i32> %x, %x
  store <8 x i32> %y, ptr %p
  ret void
}
"""


def lacks(cpu: Cpu) -> dict[str, tuple[Bits, ...]]:
    """What an x86 processor does not have of vector instructions, by name."""
    found: dict[str, tuple[Bits, ...]] = {}
    if cpu.vector_bytes < 64:
        found["AVX-512"] = _AVX512
    if "dot4" not in cpu.dots:
        found["VNNI"] = _DOTS
    if cpu.vector_bytes < 32 or "ymm" not in assembly(_INTEGERS, cpu):
        found["AVX2"] = _AVX2
    if cpu.vector_bytes < 32:
        found["AVX"] = _AVX
    return found


@cache
def hidden(target: str) -> dict[str, tuple[Bits, ...]]:
    """What this machine has and a target lacks."""
    here, there = host(), cpu_of(Target.parse(target))
    if here.arch != "x86" or there.arch != "x86" or here == there:
        return {}
    return {name: bits for name, bits in lacks(there).items() if name not in lacks(here)}


def refused() -> str:
    """Why peers cannot be kept to a target here; empty where they can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "only on Linux and x86-64"
    return "" if importlib.util.find_spec("capstone") else "capstone is not installed"


def said(target: str) -> str:
    """How peers are kept to a target, in a line; empty where it has all that the machine has."""
    names = ", ".join(hidden(target))
    if names and refused():
        return f"peers use this machine's {names}: {refused()}"
    return f"{' and '.join(KEPT)} are told that there is no {names}" if names else ""


def peer(name: str, target: str) -> Any:
    """The package, imported such that it finds what the target has.

    :class:`RuntimeError` where the process has it already as it finds the machine: it can be had once.
    """
    if not hidden(target) or refused():
        return importlib.import_module(name)
    folder = _copies(name)
    loaded = sys.modules.get(name)
    if loaded is None:
        _answer(tuple(bits for group in hidden(target).values() for bits in group))
        sys.path.insert(0, str(folder))
        try:
            loaded = importlib.import_module(name)
        finally:
            sys.path.remove(str(folder))
    if not pathlib.Path(str(loaded.__file__)).is_relative_to(folder):
        raise RuntimeError(f"{name} was imported before it was to be kept to {target!r}: use a process of its own")
    return loaded


# --- the copy ---------------------------------------------------------------------------------------------------------


@cache
def _copies(name: str) -> pathlib.Path:
    """A folder with the package, its libraries marked; kept in the kernel cache's folder, where there is one."""
    base = config.cache_dir() or pathlib.Path(tempfile.gettempdir()) / f"minitvm-{os.getuid()}"
    root = _root(name)
    which = hashlib.sha256(f"{root} {root.stat().st_mtime_ns} {MARK!r}".encode()).hexdigest()[:8]
    folder = base / "narrow" / f"{name}-{version(name)}-{which}"
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as new:
            _copy(root, pathlib.Path(new) / name)
            try:
                (pathlib.Path(new) / name).rename(folder / name)
            except OSError:
                if not (folder / name).exists():  # else another process was first
                    raise
    return folder


def _root(name: str) -> pathlib.Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed")
    return pathlib.Path(spec.origin).resolve().parent


def _copy(old: pathlib.Path, new: pathlib.Path) -> None:
    """Links to all files but those that change."""
    for folder, folders, files in os.walk(old):
        folders[:] = [one for one in folders if one != "__pycache__"]
        there = new / pathlib.Path(folder).relative_to(old)
        there.mkdir()
        for file in files:
            path = pathlib.Path(folder) / file
            data = path.read_bytes() if ".so" in path.suffixes else b""
            changed = marked(data) if data.startswith(b"\x7fELF") else data
            if changed == data:
                (there / file).symlink_to(path)
            else:
                (there / file).write_bytes(changed)


def marked(data: bytes) -> bytes:
    """A shared object with :data:`MARK` for each of its instructions ``cpuid``."""
    changed = bytearray(data)
    for offset in _places(data):
        changed[offset : offset + 2] = MARK
    return bytes(changed)


def _places(data: bytes) -> Iterator[int]:
    """Offsets in a file where an instruction ``cpuid`` begins: found by decoding, from its start, every function in
    which the two bytes are."""
    segments = _segments(data)
    starts = _functions(data, segments)
    for kind, flags, offset, address, size in segments:
        if kind != _LOAD or not flags & _EXECUTE:
            continue
        found = data.find(CPUID, offset, offset + size)
        while found >= 0:
            at = found - offset + address
            index = bisect.bisect(starts, at) - 1
            if index >= 0 and _begins(data[starts[index] - address + offset : found + 15], at - starts[index]):
                yield found
            found = data.find(CPUID, found + 1, offset + size)


_LOAD, _EXECUTE, _FRAMES = 1, 1, 0x6474E550


def _segments(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """Kind, flags, offset, address and bytes of the parts of an ELF file of 64 bits."""
    first, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<2H", data, 54))
    rows = (struct.unpack_from("<2I4Q", data, first + size * i) for i in range(count))
    return [(kind, flags, offset, address, nbytes) for kind, flags, offset, address, _, nbytes in rows]


def _functions(data: bytes, segments: list[tuple[int, int, int, int, int]]) -> list[int]:
    """Where functions begin, in order: the table by which exceptions find them (``.eh_frame_hdr``)."""
    for kind, _, offset, address, _ in segments:
        if kind == _FRAMES and data[offset : offset + 4] == b"\x01\x1b\x03\x3b":
            (count,) = struct.unpack_from("<I", data, offset + 8)
            pairs = struct.iter_unpack("<2i", data[offset + 12 : offset + 12 + 8 * count])
            return sorted(address + start for start, _ in pairs)
    return []


def _begins(code: bytes, offset: int) -> bool:
    """Whether ``cpuid`` stands at the offset in a function's code."""
    capstone: Any = importlib.import_module("capstone")
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    here = ((at, name) for at, _, name, _ in decoder.disasm_lite(code, 0) if at >= offset)
    return next(here, None) == (offset, "cpuid")


# --- the answers ------------------------------------------------------------------------------------------------------

_SIGILL, _SIGINFO = 4, 4
_REGISTERS = 40
"""Bytes before the registers in what a handler is given (``ucontext_t``)."""
_RBX, _RDX, _RAX, _RCX, _RIP = 11, 12, 13, 14, 16

_HANDLER = """
define void @answer(i32 %signal, ptr %info, ptr %context) {{
  %registers = getelementptr i8, ptr %context, i64 {registers}
  %rip.at = getelementptr i64, ptr %registers, i64 {rip}
  %rip = load i64, ptr %rip.at
  %code = inttoptr i64 %rip to ptr
  %found = load i16, ptr %code, align 1
  %ours = icmp eq i16 %found, {mark}
  br i1 %ours, label %cpuid, label %other
other:
  %restore = inttoptr i64 {signal} to ptr
  %before = call ptr %restore(i32 %signal, ptr null)
  ret void
cpuid:
  %rax.at = getelementptr i64, ptr %registers, i64 {rax}
  %rbx.at = getelementptr i64, ptr %registers, i64 {rbx}
  %rcx.at = getelementptr i64, ptr %registers, i64 {rcx}
  %rdx.at = getelementptr i64, ptr %registers, i64 {rdx}
  %leaf = load i32, ptr %rax.at
  %subleaf = load i32, ptr %rcx.at
  %all = call {{i32, i32, i32, i32}} asm sideeffect "cpuid", "={{ax}},={{bx}},={{cx}},={{dx}},0,2"(
    i32 %leaf, i32 %subleaf)
  %r0.0 = extractvalue {{i32, i32, i32, i32}} %all, 0
  %r1.0 = extractvalue {{i32, i32, i32, i32}} %all, 1
  %r2.0 = extractvalue {{i32, i32, i32, i32}} %all, 2
  %r3.0 = extractvalue {{i32, i32, i32, i32}} %all, 3
{masked}
  %next = add i64 %rip, 2
  store i64 %next, ptr %rip.at
  ret void
}}
"""

_MASK = """
  %leaf.{i} = icmp eq i32 %leaf, {leaf}
  %subleaf.{i} = icmp eq i32 {subleaf}, {subleaf_is}
  %both.{i} = and i1 %leaf.{i}, %subleaf.{i}
  %keep.{i} = select i1 %both.{i}, i32 {keep}, i32 -1
  %r{r}.{new} = and i32 %r{r}.{old}, %keep.{i}
"""

_STORE = """
  %wide{r} = zext i32 %r{r}.{last} to i64
  store i64 %wide{r}, ptr %{name}.at
"""


def _text(hide: tuple[Bits, ...]) -> str:
    """LLVM IR of the handler.  A signal that is not ours ends the process, as it does without one."""
    last, lines = [0, 0, 0, 0], []
    for i, bits in enumerate(hide):
        r, old = bits.register, last[bits.register]
        last[r] += 1
        subleaf = "%subleaf" if bits.leaf == 7 else "0"  # others have none
        names = {"i": i, "leaf": bits.leaf, "subleaf": subleaf, "subleaf_is": bits.subleaf, "keep": ~bits.mask}
        lines.append(_MASK.format(**names, r=r, old=old, new=last[r]))
    for r, name in enumerate(("rax", "rbx", "rcx", "rdx")):
        lines.append(_STORE.format(r=r, last=last[r], name=name))
    signal = ctypes.cast(ctypes.CDLL(None).signal, ctypes.c_void_p).value
    where = {"rip": _RIP, "rax": _RAX, "rbx": _RBX, "rcx": _RCX, "rdx": _RDX, "registers": _REGISTERS}
    return _HANDLER.format(**where, mark=int.from_bytes(MARK, "little"), signal=signal, masked="".join(lines))


class _Action(ctypes.Structure):
    """``struct sigaction`` of glibc and musl."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_char * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


@cache
def _answer(hide: tuple[Bits, ...]) -> NativeCode:
    """From here on marked code finds what is not hidden.  The result holds the handler's code."""
    llvm.initialize_native_asmparser()  # the handler's own instruction is text
    code = NativeCode([compile_object(_text(hide), host())], ["answer"])
    action = _Action(code.address("answer"), b"", _SIGINFO, None)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sigaction(_SIGILL, ctypes.byref(action), None):
        raise OSError(ctypes.get_errno(), "no handler could be set for SIGILL")
    return code
