"""How CUDA C spells dtypes, constants and scalar operations: tables.  No header is needed for any of it.

float16 is kept in memory as its bits, in registers as a float that is one of its numbers: what is computed is rounded
at once, as by the loop interpreter.  A sum, product, quotient or root of float, rounded once more, is that of float16
(Figueroa 1995, "When is double rounding innocuous?").
"""

import math
import re
import struct

import numpy as np

from minitvm.ir.dtypes import bits_of, is_float
from minitvm.ir.loop.text import INFIX as LOOP_INFIX

STORAGE = {
    "bool": "unsigned char",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "unsigned short",
    "float32": "float",
    "float64": "double",
}
"""Types in memory."""

VALUE = {**STORAGE, "bool": "bool", "float16": "float"}
"""Types of values."""

INFIX = {**LOOP_INFIX, "mod": LOOP_INFIX["floormod"]}
BOOL = {"or": "||", "and": "&&", "xor": "!="}
INDEX = frozenset({"add", "sub", "mul", "div", "mod"})
"""What indices are made of, which cannot overflow."""
WRAPPING = frozenset({"add", "sub", "mul", "shl"})
"""What overflows in signed integers, which C does not allow."""

EXACT = frozenset({"min", "max", "mod", "neg", "abs", "floor", "ceil", "trunc", "round", "bitcast_float"})
"""What gives a number of the operands' dtype, whatever computes it."""

FLOAT_BINARY = {"mod": "fmod{f}({0}, {1})", "pow": "pow{f}({0}, {1})"}

_SAME_NAME = (
    ("floor", "ceil", "trunc", "sqrt", "exp", "log", "log2", "log1p", "expm1", "tanh", "erf", "sin", "cos", "tan")
    + ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
)  # fmt: skip

INTRINSIC = {
    **{name: name + "{f}({0})" for name in _SAME_NAME},
    "abs": "fabs{f}({0})",
    "round": "rint{f}({0})",
    "fma": "fma{f}({0}, {1}, {2})",
    "ldexp": "ldexp{f}({0}, {1})",
}
"""Functions of floats: ``{f}`` is ``f`` for float and nothing for double."""

BITS = {
    ("bitcast_int", "float32"): "__float_as_int",
    ("bitcast_float", "int32"): "__int_as_float",
    ("bitcast_int", "float64"): "__double_as_longlong",
    ("bitcast_float", "int64"): "__longlong_as_double",
}
"""Numbers as their bits, and back."""

_MMA = {"tf32": ("m16n8k8", "tf32"), "f16": ("m16n8k16", "f16"), "bf16": ("m16n8k16", "bf16")}
PRODUCTS = {"tf32": "mma_tf32", "float16": "mma_f16", "bfloat16": "mma_bf16"}
"""Functions that multiply on tensor cores, by kind (:class:`minitvm.ir.loop.Mma`)."""


def _mma(name: str, shape: str, dtype: str) -> str:
    return f"""\
__device__ __forceinline__ void mma_{name}(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {{
    asm volatile("mma.sync.aligned.{shape}.row.col.f32.{dtype}.{dtype}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, "
                 "{{%8, %9}}, {{%0, %1, %2, %3}};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}"""


GROUP_PRODUCTS = {"float16": "wgmma_f16", "bfloat16": "wgmma_bf16"}
"""Functions of a warpgroup (:class:`minitvm.ir.loop.Wgmma`), for each number of columns."""
_GROUP_SYNC = {
    "shared": "fence.proxy.async.shared::cta;",
    "sums": "wgmma.fence.sync.aligned;",
    "commit": "wgmma.commit_group.sync.aligned;",
}
_GROUP_PRODUCT = re.compile(r"wgmma_(b?f16)(_lines)?<(\d+)>")


def helper(name: str) -> str:
    """The text of a function; of a warpgroup's product that of so many columns."""
    found = _GROUP_PRODUCT.fullmatch(name)
    return _wgmma(name.partition("<")[0], found[1], int(found[3]), bool(found[2])) if found else HELPERS[name]


def _wgmma(name: str, dtype: str, columns: int, lines: bool) -> str:
    """Factors are in swizzled rows of 128 bytes, of the depth; the right-hand one's of ``lines``, ``apart`` bytes from
    64 of them to the next (PTX ISA, "asynchronous warpgroup level matrix instructions": descriptors of matrices)."""
    count = columns // 2
    sums, outs = (", ".join(form.format(i) for i in range(count)) for form in ("%{}", '"+f"(d[{}])'))
    parameters = "const void *a, const void *b, int apart"
    return f"""\
template <int N> __device__ void {name}(float (&d)[N / 2], {parameters});
template <> __device__ __forceinline__ void {name}<{columns}>(float (&d)[{count}], {parameters}) {{
    const unsigned long long rows = 1ull << 62 | 64ull << 32;  // swizzled by 128 bytes; 8 rows are 1,024
    const unsigned long long left = rows | 1 << 16 | (unsigned)__cvta_generic_to_shared(a) >> 4;
    const unsigned long long right = rows | apart >> 4 << 16 | (unsigned)__cvta_generic_to_shared(b) >> 4;
    asm volatile("{{.reg .pred p; setp.ne.b32 p, 1, 0;"
                 "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{dtype}.{dtype} {{{sums}}}, "
                 "%{count}, %{count + 1}, p, 1, 1, 0, {int(lines)};}}"
                 : {outs}
                 : "l"(left), "l"(right));
}}"""


def _ldmatrix(count: int, end: str) -> str:
    words, results = (", ".join(form.format(i) for i in range(count)) for form in ("%{}", '"=r"(r[{}])'))
    return f"""\
__device__ __forceinline__ void ldmatrix_x{count}{end}(unsigned (&r)[{count}], const void *row) {{
    unsigned from = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{end.replace("_", ".")}.shared.b16 {{{words}}}, [%{count}];"
                 : {results}
                 : "r"(from)
                 : "memory");
}}"""


def _dot(name: str, first: str, second: str) -> str:
    return f"""\
__device__ __forceinline__ int {name}(int a, int b, int total) {{
    int result;
    asm("dp4a.{first}32.{second}32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(total));
    return result;
}}"""


HELPERS = {
    "Pack": """\
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T at[N];
    __device__ __forceinline__ T &operator[](int lane) { return at[lane]; }
};""",
    **{name: _dot(name, *kinds) for name, *kinds in (("dot4", "u", "s"), ("sdot4", "s", "s"), ("udot4", "u", "u"))},
    "dot2": """\
__device__ __forceinline__ int dot2(int a, int b, int total) {
    return (unsigned)total + (short)a * (short)b + (a >> 16) * (b >> 16);
}""",
    # of `0 - value`, NVRTC 13.0 loses the minus among minima (VIMNMX3), and what is beyond 16 bits is not cut off
    "negated": """\
__device__ __forceinline__ unsigned negated(unsigned value) {
    unsigned result;
    asm("sub.u32 %0, 0, %1;" : "=r"(result) : "r"(value));
    return result;
}""",
    "to_tf32": """\
__device__ __forceinline__ unsigned to_tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}""",
    "cp_async": """\
template <int BYTES> __device__ __forceinline__ void cp_async(void *shared, const void *global, bool real = true) {
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    int read = real ? BYTES : 0;  // the rest is zeros
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(read));
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(read));
}""",
    "cp_async_commit": """\
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }""",
    "cp_async_wait": """\
template <int BUT_LAST> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(BUT_LAST) : "memory");
}""",
    **{
        f"wgmma_{what}": f"""\
__device__ __forceinline__ void wgmma_{what}() {{
    asm volatile("{text}" ::: "memory");
}}"""
        for what, text in _GROUP_SYNC.items()
    },
    "wgmma_wait": """\
template <int BUT_LAST> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(BUT_LAST) : "memory");
}""",
    "swizzled": """\
template <int ROW> __device__ __forceinline__ int swizzled(int at) {
    return at ^ (at / ROW % 8) * (ROW / 8);
}""",
    "cluster_barrier": """\
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}""",
    "last_to_arrive": """\
__device__ __forceinline__ bool last_to_arrive(unsigned parts, unsigned *counter) {
    bool last = false;
    __syncthreads();  // the block's stores come before its arrival
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(counter, 1u) == parts - 1;
        if (last) *counter = 0;
        __threadfence();  // others' stores come before what is loaded next
    }
    return __syncthreads_or(last);
}""",
    **{f"mma_{name}": _mma(name, *form) for name, form in _MMA.items()},
    **{f"ldmatrix_x{count}{end}": _ldmatrix(count, end) for count in (2, 4) for end in ("", "_trans")},
    "minimum": """\
template <class T> __device__ __forceinline__ T minimum(T a, T b) { return (b < a || b != b) ? b : a; }""",
    "maximum": """\
template <class T> __device__ __forceinline__ T maximum(T a, T b) { return (b > a || b != b) ? b : a; }""",
    "int_pow": """\
template <class T> __device__ __forceinline__ T int_pow(T a, T b) {  // wraps around
    unsigned long long base = a, result = 1;
    for (; b > 0; b >>= 1, base *= base)
        if (b & 1) result *= base;
    return (T)result;
}""",
    "half_to_float": """\
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}""",
    "float_to_half": """\
__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}""",
}
"""Device functions, written into a kernel's source where it uses them."""


def suffix(dtype: str) -> str:
    """The suffix of a function's name, and of a literal, for a dtype."""
    return "" if dtype == "float64" else "f"


def constant(value: bool | int | float, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    return _float(float(value), dtype) if is_float(dtype) else _integer(int(value), dtype)


def _float(value: float, dtype: str) -> str:
    with np.errstate(over="ignore"):
        number = np.dtype(dtype).type(value)
    rounded = float(number)
    if math.isfinite(rounded):
        text = str(number if dtype != "float16" else rounded)
        return (text if any(c in text for c in ".e") else f"{text}.0") + suffix(dtype)
    if dtype == "float64":
        return f"__longlong_as_double(0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016x}ll)"
    return f"__int_as_float(0x{struct.unpack('<I', struct.pack('<f', rounded))[0]:08x})"


def _integer(value: int, dtype: str) -> str:
    bits, signed = bits_of(dtype), dtype.startswith("int")
    wrapped = value & ((1 << bits) - 1)
    if not signed:
        return f"{wrapped}{'u' if bits <= 32 else 'ull'}"
    value = wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped
    end = "ll" if bits == 64 and abs(value) >= 1 << 31 else ""
    if value == -(1 << (bits - 1)) and bits >= 32:
        return f"{value + 1}{end} - 1"
    return f"{value}{end}"
