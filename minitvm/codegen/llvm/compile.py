"""LLVM IR text to machine code, for this machine or another one."""

import ctypes
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding

from minitvm import config
from minitvm.codegen.llvm.arith import DOTS, WIDTH
from minitvm.codegen.llvm.plain_addresses import addresses_of
from minitvm.errors import CompilerError, TargetError, did_you_mean
from minitvm.ir.loop import Dot
from minitvm.target import MachineModel, Target, arch_of, marks_of, text_of

llvm: Any = llvmlite.binding  # has no types
ffi: Any = llvmlite.binding.ffi


Caches = tuple[int, int, int]
"""Bytes of a core's first level data cache, of its second level, and of the third, which all share."""

USUAL: Caches = (MachineModel.l1_bytes, MachineModel.l2_bytes, MachineModel.l3_bytes)


@dataclass(frozen=True)
class Cpu:
    """A processor as LLVM names it.  ``features``: ``+avx2,-fma``, added to what the name implies."""

    triple: str
    name: str
    features: str
    vector_bytes: int
    vector_registers: int
    dots: tuple[Dot, ...] = ()
    """What multiplies the parts of words and adds them up in an instruction or two: pairs where nothing does bytes."""
    fuses: bool = False
    """Whether a product and a sum are rounded once."""
    tune: str = ""
    """The processor that instructions are put in order for, where it is another one."""

    @property
    def arch(self) -> str:
        """``x86``, ``aarch64``, or the triple's first word."""
        return arch_of(self.triple)

    @property
    def scales(self) -> bool:
        """True if an instruction multiplies with any power of two: VSCALEFPS."""
        return self.arch == "x86" and self.vector_bytes == 64

    @property
    def sound(self) -> str:
        """Its features without those that LLVM makes wrong code with by itself."""
        return _with_feature(self.features, *_UNSOUND) if self.arch == "x86" else self.features

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """What code for it may use, without ``+``, in order; of x86 also what the name implies."""
        named = {f[1:] for f in self.features.split(",") if f.startswith("+")}
        implied = _IMPLIED.get(self.vector_bytes, ()) if self.arch == "x86" else ()
        return tuple(sorted({*named, *implied}))


_IMPLIED = {32: ("avx",), 64: ("avx", "avx2", "avx512f")}
"""What a CPU's name promises of x86 features, by the width of its vectors in bytes."""


@cache
def _initialize() -> None:
    """This machine's own target: the others take LLVM tens of megabytes."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def _initialize_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _llvm_target(triple: str) -> Any:
    """LLVM's target for a triple; ``RuntimeError`` where it has none."""
    _initialize()
    try:
        return llvm.Target.from_triple(triple)
    except RuntimeError:
        _initialize_all()
        return llvm.Target.from_triple(triple)


def host() -> Cpu:
    """The processor this runs on, or the one that ``MINITVM_CPU`` takes it for.

    :class:`TargetError` where LLVM does not know that one.
    """
    return _host(config.read("MINITVM_CPU"))


@cache
def _host(taken_for: str) -> Cpu:
    _initialize()
    triple = llvm.get_process_triple()
    if taken_for:
        _check_names(triple, taken_for, "")
        return _cpu(triple, taken_for, "")
    listed = llvm.get_host_cpu_features()
    return _cpu(triple, llvm.get_host_cpu_name(), listed.flatten(), frozenset(f for f in listed if listed[f]))


def cpu_of(target: Target) -> Cpu:
    """The processor of an ``llvm`` target; what it does not say is the host's.

    :class:`TargetError` for a triple, CPU or feature that LLVM does not know.
    """
    if target.kind != "llvm":
        raise TargetError(f"target {str(target)!r} is not a CPU", hint="use a target that begins with 'llvm'")
    triple, name, extra = (target.options.get(key, "") for key in ("mtriple", "mcpu", "mattr"))
    here = host()
    _check_triple(triple or here.triple)
    if name == "native" or not (triple or name):
        name, extra = here.name, ",".join(filter(None, (here.features, extra)))
    triple = triple or here.triple
    name = name or _GENERIC.get(_arch_word(triple), "generic")
    is_here = (triple, name, extra) == (here.triple, here.name, here.features)
    if not is_here:
        _check_names(triple, name, extra)
    found = here if is_here else _cpu(triple, name, extra)
    tune = _tuned_for(target, triple, here)
    return found if tune in ("", name) else replace(found, tune=tune)


def _tuned_for(target: Target, triple: str, here: Cpu) -> str:
    """What ``-mtune`` says; else this machine, where the target names none by a triple."""
    said = target.options.get("mtune", "" if "mtriple" in target.options else "native")
    name = here.name if said == "native" else said
    if "mtune" in target.options:
        _check_names(triple, name, "", "mtune")
    return name


_GENERIC = {"x86_64": "x86-64"}


def _arch_word(triple: str) -> str:
    return triple.partition("-")[0]


def _check_triple(triple: str) -> None:
    try:
        _llvm_target(triple)
    except RuntimeError as error:
        raise TargetError(
            f"LLVM does not know the target triple {triple!r}",
            where=(str(error),),
            hint="a triple is arch-vendor-system, such as x86_64-unknown-linux-gnu or aarch64-linux-gnu",
        ) from error


def _check_names(triple: str, name: str, extra: str, option: str = "mcpu") -> None:
    cpus, features = known_names(triple)
    if cpus and name not in cpus:
        raise TargetError(f"unknown CPU -{option}={name} for {_arch_word(triple)}", hint=_closest(name, cpus))
    for feature in filter(None, extra.split(",")):
        if feature[0] not in "+-":
            raise TargetError(f"feature {feature!r} of -mattr has no sign", hint=f"write +{feature} or -{feature}")
        if features and feature[1:] not in features:
            raise TargetError(
                f"unknown feature -mattr={feature} for {_arch_word(triple)}", hint=_closest(feature[1:], features)
            )


def _closest(word: str, known: frozenset[str]) -> str:
    return did_you_mean(word, sorted(known), most=3) or "see `llc -mcpu=help` for the names"


_LIST_NAMES = """
import sys, llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.Target.from_triple(sys.argv[1]).create_target_machine(cpu="help")
"""


@cache
def known_names(triple: str) -> tuple[frozenset[str], frozenset[str]]:
    """CPU and feature names that LLVM knows for a triple; both empty where they cannot be listed.

    LLVM only prints them, to the process's standard error; hence a process of its own.
    """
    command = [sys.executable, "-c", _LIST_NAMES, triple]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    cpus, _, features = text.partition("Available features for this target:")
    return _first_words(cpus), _first_words(features)


def _first_words(text: str) -> frozenset[str]:
    """From lines such as ``  znver3   - Select the znver3 processor.``"""
    return frozenset(line.split()[0] for line in text.splitlines() if line.startswith("  ") and " - " in line)


_PROBE = """
target triple = "{triple}"
define void @probe(ptr %p) "prefer-vector-width"="512" {{
  %x = load <16 x float>, ptr %p
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %p
  ret void
}}
"""


_UNSOUND = ("-avxvnni", "-avx512vnni")
"""LLVM 22 takes a sum of 16 or 64 products of int8 and uint8 for one VPDPBUSD, and adds up one of its four lanes."""

_DOT_FEATURES = ("avx512vnni", "avxvnni")

_DOT_PROBE = """
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @probe(ptr %p, ptr %q) "minitvm-dots" {
  %a = load <16 x i8>, ptr %p
  %b = load <16 x i8>, ptr %q
  %x = zext <16 x i8> %a to <16 x i32>
  %y = sext <16 x i8> %b to <16 x i32>
  %z = mul <16 x i32> %x, %y
  %s = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %z)
  ret i32 %s
}
"""


def _vnni(draft: Cpu) -> str:
    """Which of the features with VPDPBUSD a processor has: seen in where LLVM takes it."""
    for feature in _DOT_FEATURES:
        others = [f for f in _UNSOUND if f[1:] != feature]
        if "vpdpbusd" in assembly(_DOT_PROBE, replace(draft, features=_with_feature(draft.features, *others))):
            return feature
    return ""


def _neon_dots(draft: Cpu) -> tuple[Dot, ...]:
    """Those of bytes that a processor has: seen in where LLVM takes SDOT (UDOT is beside it) and USDOT."""
    if "sdot" not in assembly(_DOT_PROBE.replace("zext", "sext"), draft):
        return ()
    return ("sdot4", "udot4", "dot4") if "usdot" in assembly(_DOT_PROBE, draft) else ("sdot4", "udot4")


def _width(draft: Cpu) -> int:
    """Bytes of a vector register: seen in what LLVM makes of a 512-bit addition."""
    text = assembly(_PROBE.format(triple=draft.triple), draft)
    return 64 if "zmm" in text else 32 if "ymm" in text else 16


@cache
def _cpu(triple: str, name: str, features: str, listed: frozenset[str] = frozenset()) -> Cpu:
    """Vector registers and dot products are those of the features that are ``listed``; where none are, LLVM is asked,
    which takes 20 MB more of its code into memory."""
    draft = Cpu(triple, name, features, 16, 16)
    if draft.arch == "aarch64":
        return replace(draft, vector_registers=32, dots=_neon_dots(draft), fuses=True)
    if draft.arch != "x86":
        return draft
    vnni = next((f for f in _DOT_FEATURES if f in listed), "") if listed else _vnni(draft)
    features = _with_feature(features, f"+{vnni}") if vnni else features
    width = next((n for n in (64, 32) if listed.issuperset(_IMPLIED[n])), 16) if listed else _width(draft)
    pairs = not vnni and (
        _PAIRS[width] in {*listed, ""} if listed else _REGISTERS[width] in assembly(_PAIRS_PROBE, draft)
    )
    fuses = not listed.isdisjoint(("fma", "avx512f")) if listed else "vfmadd" in assembly(_FMA_PROBE, draft)
    dots: tuple[Dot, ...] = ("dot4",) if vnni else ("dot2",) if pairs else ()
    if width == 64:
        return Cpu(triple, name, _with_feature(features, "-prefer-256-bit"), 64, 32, dots, fuses)
    return Cpu(triple, name, features, width, 16, dots, fuses)


_PAIRS = {16: "", 32: "avx2", 64: "avx512bw"}
"""The feature with which vectors so wide hold integers of 16 bits."""
_REGISTERS = {16: "xmm", 32: "ymm", 64: "zmm"}

_PAIRS_PROBE = """
define void @probe(ptr %p) "prefer-vector-width"="512" {
  %x = load <32 x i16>, ptr %p
  %y = add <32 x i16> %x, %x
  store <32 x i16> %y, ptr %p
  ret void
}
"""


_FMA_PROBE = """
declare float @llvm.fmuladd.f32(float, float, float)
define float @probe(float %x) {
  %y = call float @llvm.fmuladd.f32(float %x, float %x, float %x)
  ret float %y
}
"""


def _with_feature(features: str, *more: str) -> str:
    """More at the end, where they win; named once, so that a processor described by its own words is equal."""
    others = [f for f in features.split(",") if f and f[1:] not in [m[1:] for m in more]]
    return ",".join((*others, *more))


def machine_model(cpu: Cpu, threads: int = 1, caches: Caches = USUAL) -> MachineModel:
    """What templates and the emitter need to know of a processor.

    ``features`` holds what the emitter asks for: the architecture, ``neon``, ``posix``, ``fma``, products of words.
    """
    marks = marks_of(cpu.triple).union(cpu.dots, ["fma"] if cpu.fuses else [])
    first, second, third = caches
    return MachineModel(cpu.vector_bytes, cpu.vector_registers, first, second, threads, marks, third)


# --- caches ---------------------------------------------------------------------------------------------------

_SYSTEM = Path("/sys/devices/system/cpu/cpu0")
_SIZE = r"([1-9]\d*)([KM])"
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def caches_of(target: Target) -> Caches:
    """What ``-caches`` says; else this machine's where the target is this machine, by no name."""
    said = target.options.get("caches")
    if said is not None:
        return _parse(said)
    named = target.options.get("mtriple") or target.options.get("mcpu", "native") != "native"
    return USUAL if named or config.read("MINITVM_CPU") else of_host()


def _parse(said: str) -> Caches:
    if re.fullmatch(f"{_SIZE}(,{_SIZE}){{1,2}}", said) is None:
        raise TargetError(
            f"caches {said!r} are no two or three sizes",
            hint="first, second and perhaps third level, as in -caches=32K,1M,16M",
        )
    sizes = [int(number) * _UNITS[unit] for number, unit in re.findall(_SIZE, said)]
    first, second, third = (*sizes, *USUAL[len(sizes) :])
    return first, second, third


@cache
def of_host(system: Path = _SYSTEM) -> Caches:
    """The caches as Linux describes the first core: a core's share of what several have in common (the third level as a
    whole); elsewhere the usual ones."""
    try:
        core = _threads(system / "topology" / "thread_siblings")
        described = [_described(index) for index in system.glob("cache/index*")]
    except (OSError, ValueError, LookupError):
        return USUAL
    found = {level: size if level == 3 else size * core // threads for level, size, threads in described}
    return found.get(1) or USUAL[0], found.get(2) or USUAL[1], found.get(3) or USUAL[2]


def _described(index: Path) -> tuple[int, int, int]:
    """Level (0 for instructions), bytes, and hardware threads that share it."""
    level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
    return (
        int(level) * (kind != "Instruction"),
        int(size[:-1]) * _UNITS.get(size[-1], 1),
        _threads(index / "shared_cpu_map"),
    )


def _threads(path: Path) -> int:
    return max(1, int(path.read_text().replace(",", ""), 16).bit_count())


# --- compiling ------------------------------------------------------------------------------------------------


class _Machines(threading.local):
    """Target machines of one thread: LLVM does not let threads share them."""

    def __init__(self) -> None:
        self.get = cache(_machine)


def _machine(cpu: Cpu, opt: int) -> Any:
    """The machine that makes code with as much care as ``opt`` says, 0 to 3."""
    target = _llvm_target(cpu.triple)
    return target.create_target_machine(cpu=cpu.name, features=cpu.sound, opt=opt, reloc="pic", codemodel="small")


_machines = _Machines()


_ONLY_CALLS = " optnone "
"""Of functions that hand on addresses: LLVM takes a fifth of the time for a module of hundreds where it does little."""


def _optimized(llvm_ir: str, cpu: Cpu) -> tuple[Any, Any]:
    """The module after LLVM's passes, in a context of its own, and the target machine."""
    machine = _machines.get(cpu, 0 if _ONLY_CALLS in llvm_ir else 3)
    if DOTS in llvm_ir:
        llvm_ir = llvm_ir.replace(DOTS, f'"target-features"="{cpu.features}"')
    if cpu.tune:
        llvm_ir = llvm_ir.replace(WIDTH, f'"tune-cpu"="{cpu.tune}" {WIDTH}')
    if " half" in llvm_ir and llvm_ir is not _HALF_PROBE and _lacks_half(cpu):
        llvm_ir += text_of("codegen/llvm/half.ll")
    try:
        module = llvm.parse_assembly(llvm_ir, context=llvm.create_context())
    except RuntimeError as error:
        raise CompilerError("LLVM does not accept the module", where=str(error).splitlines()) from error
    module.triple = cpu.triple
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    _passes().run(module, builder)
    return module, machine


def _passes() -> Any:
    """What an emitter's own loops need: sums that leave memory for registers, lanes and branches that nobody asks for.

    LLVM's back end does the rest.  Its standard pipeline takes ten times as long, and holds memory after every run.
    """
    found = llvm.create_new_module_pass_manager()
    found.add_sroa_pass()
    found.add_simplify_cfg_pass()
    found.add_instruction_combine_pass()
    return found


_HALF_PROBE = """
define float @probe(half %x) {
  %y = fpext half %x to float
  ret float %y
}
"""


@cache
def _lacks_half(cpu: Cpu) -> bool:
    """True if the processor cannot convert float16 to float32 and back."""
    text = assembly(_HALF_PROBE, cpu)
    return "__extendhfsf2" in text or "__truncsfhf2" in text


def optimized_ir(llvm_ir: str, cpu: Cpu) -> str:
    """LLVM IR after LLVM's own optimisations."""
    return str(_optimized(llvm_ir, cpu)[0])


def assembly(llvm_ir: str, cpu: Cpu) -> str:
    """The target's assembly; any target that LLVM was built with."""
    module, machine = _optimized(llvm_ir, cpu)
    with addresses_of(llvm_ir):
        return str(machine.emit_assembly(module))


def compile_object(llvm_ir: str, cpu: Cpu) -> bytes:
    """Relocatable object code.  Threads may call this at the same time.

    llvmlite has one lock around every call.  Here most of the time passes outside of it: a module has its own context
    and a thread its own machine, so threads do not wait for each other.
    """
    module, machine = _optimized(llvm_ir, cpu)
    with ffi.OutputString() as error, addresses_of(llvm_ir):
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
        if not buffer:
            raise CompilerError("LLVM has no machine code for the module", where=str(error).splitlines())
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@cache
def _unlocked(name: str) -> Any:
    """A function of llvmlite's library as it is."""
    found = getattr(ctypes.CDLL(ffi.lib._name), name)
    found.argtypes, found.restype = getattr(ffi.lib, name).argtypes, getattr(ffi.lib, name).restype
    return found
