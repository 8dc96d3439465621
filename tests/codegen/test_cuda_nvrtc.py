"""Every kind of kernel compiles to an sm_90 cubin, within its resources.  Needs NVRTC, no GPU."""

from __future__ import annotations

import ctypes
import sys

import pytest
from cuda_kernels import GROUPS, MACHINE, group, kernel_of
from nvrtc import needs_nvrtc
from test_cuda_emit import tiled

from benchmarks.nvrtc import ptx
from minitvm.codegen.cuda import backend
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.errors import CompilerError
from minitvm.ir.builder import call_op
from minitvm.ir.loop import (
    BINARY_OPS,
    COMPARISONS,
    DOT_OPERANDS,
    INTRINSICS,
    Buffer,
    Cast,
    Const,
    Intrin,
    Kernel,
    Stmt,
    Store,
    binary,
    seq,
)
from minitvm.ir.loop.verify import verify_kernel


@needs_nvrtc
@pytest.mark.parametrize("name", GROUPS)
def test_group_compiles(name: str) -> None:
    for kernel in bind_plain(kernel_of(name)):
        cubin = compile_cubin(emit_cuda(kernel))
        assert cubin.image[:4] == b"\x7fELF"
        assert 0 < cubin.registers <= 255 and cubin.shared_bytes == 0
        assert cubin.spills == 0 or name == "lstm", cubin.log  # its gates are in a local array of one thread
        assert "Compiling entry function" in cubin.log and "sm_90" in cubin.log


@needs_nvrtc
def test_shared_memory_is_counted() -> None:
    assert compile_cubin(emit_cuda(tiled())).shared_bytes == 32 * 4


WHOLE = {"neg", "abs", "not", "sign", "fma", "isnan", "isinf", "floor", "ceil", "round", "trunc"}
"""Functions that integers have."""


def every_operation(dtype: str) -> Kernel:
    """One kernel with every operator and function that ``dtype`` has, and casts to all others."""
    is_float, is_bool = dtype.startswith("float"), dtype == "bool"
    x, y = Buffer("x", (4,), dtype), Buffer("y", (64,), dtype)
    flags = Buffer("flags", (64,), "bool")
    stores: list[Stmt] = []
    refused = {"and", "or", "xor", "shl", "shr"} if is_float else set()
    if is_bool:
        refused = {"div", "mod", "floordiv", "floormod", "pow", "shl", "shr"}
    for op in sorted(BINARY_OPS - refused):
        out = flags if op in COMPARISONS else y
        stores.append(Store(out, (Const(len(stores)),), binary(op, x[0], x[1])))
    flags_only = {"not", "unlikely", "same_memory"}
    names = flags_only if is_bool else set(INTRINSICS) - flags_only if is_float else WHOLE
    for name in sorted(names - {"same_memory", "ldexp", "bitcast_int", "bitcast_float", *DOT_OPERANDS}):
        value = Intrin(name, (x[0], x[1], x[2]) if name == "fma" else (x[0],))
        stores.append(Store(flags if value.dtype == "bool" else y, (Const(len(stores)),), value))
    outs = [Buffer(f"as_{to}", (1,), to) for to in ("float16", "float32", "float64", "int8", "int64", "uint32", "bool")]
    stores += [Store(out, (Const(0),), Cast(x[0], out.dtype) if out.dtype != dtype else x[0]) for out in outs]
    return Kernel(f"all_{dtype}", (x, y, flags, *outs), seq(*stores), results=len(outs) + 2)


@needs_nvrtc
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "bool"]
)
def test_every_operator_and_function_compiles(dtype: str) -> None:
    kernel = every_operation(dtype)
    verify_kernel(kernel)
    assert compile_cubin(emit_cuda(kernel)).registers > 0


@needs_nvrtc
def test_blocks_that_would_cost_spills_are_given_up() -> None:
    body = "".join(f"    float v{i} = x[{i} * n];\n" for i in range(90))
    text = "const volatile float *x, volatile float *y, int n)\n{\n" + body
    text += "    y[n] = " + " + ".join(f"v{i} * y[{i}]" for i in range(90)) + ";\n"
    text += "    y[0] = " + " + ".join(f"v{i}" for i in range(90)) + ";\n}\n"
    found = compile_cubin('extern "C" __global__ void __launch_bounds__(256, 8)\nk(' + text)
    assert found.spills == 0 and found.registers > 64


@needs_nvrtc
def test_errors_show_the_line() -> None:
    with pytest.raises(CompilerError) as error:
        compile_cubin('extern "C" __global__ void k(float *x)\n{\n    x[0] = y;\n}\n')
    text = str(error.value)
    assert text.startswith("NVRTC refuses the kernel for sm_90\n")
    assert 'identifier "y" is undefined\n  |   line 3: x[0] = y;' in text


@needs_nvrtc
def test_unknown_architecture() -> None:
    with pytest.raises(CompilerError, match="NVRTC refuses the kernel for sm_1"):
        compile_cubin('extern "C" __global__ void k() {}', arch="sm_1")


def test_without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(CompilerError) as error:
        compile_cubin("")
    assert str(error.value) == (
        "NVRTC is not installed, so CUDA kernels cannot be compiled\n"
        "  = hint: pip install cuda-bindings nvidia-cuda-nvrtc"
    )


class Silent:
    """NVRTC that found what it kept from before, which has no log: one byte is written, a 0."""

    @staticmethod
    def nvrtcGetProgramLogSize(program: object) -> tuple[object, int]:
        return SUCCESS, 1

    @staticmethod
    def nvrtcGetProgramLog(program: object, log: bytes) -> tuple[object]:
        assert log is not bytes(1) and log != b" "
        ctypes.memset(log, 0, 1)
        return (SUCCESS,)

    class nvrtcResult:
        NVRTC_SUCCESS = 0


SUCCESS = Silent.nvrtcResult.NVRTC_SUCCESS


def test_a_log_of_nothing_is_written_where_nobody_else_reads() -> None:
    """The one object that Python has for a blank became a 0: numpy's headers were full of them, kernels had no name."""
    assert backend._text(Silent, None) == "" and bytes([32]) == b" "


@needs_nvrtc
def test_nothing_is_taken_from_nvrtc_s_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a driver, it has one from 12.9 on; what comes from it has no log."""
    nvrtc, asked = backend._load(), list[list[bytes]]()
    compiled = nvrtc.nvrtcCompileProgram
    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", lambda *args: asked.append(args[2]) or compiled(*args))
    compile_cubin('extern "C" __global__ void fresh() {}')
    assert [b"--no-cache" in options for options in asked] == [nvrtc.nvrtcVersion()[1:] >= (12, 9)]


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint32"])
def test_integers_are_negated_by_a_subtraction(dtype: str) -> None:
    """NVRTC 13.0 lost the minus of a `neg` among three minima, and did not cut 16 bits off."""
    smallest = group(lambda x: call_op("min", call_op("negative", x), axis=(1,)), (7, 50), dtype=dtype)
    text = ptx("\n".join(emit_cuda(part) for part in bind_plain(simplify(lower(smallest, "k", MACHINE)))), "sm_90")
    assert "sub.u32" in text and "neg." not in text
