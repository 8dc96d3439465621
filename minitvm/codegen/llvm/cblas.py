"""Matrix products by OpenBLAS, as functions with a kernel's arguments.  The team's first thread calls it."""

from __future__ import annotations

from minitvm.codegen.libraries import Gemm

_ROWS, _PLAIN, _TRANSPOSED = 101, 111, 112
"""cblas.h: CblasRowMajor, CblasNoTrans, CblasTrans."""

_TEXT = """declare i1 @minitvm.alone(ptr, i64, i64)
declare void @minitvm.finished(ptr, i64)
declare void @cblas_{name}(i32, i32, i32, i64, i64, i64, {real}, ptr, i64, ptr, i64, {real}, ptr, i64)

define void @{symbol}(ptr %a, ptr %b, ptr %c, ptr %workspace, i64 %thread, i64 %threads, ptr %place) {{
entry:
  %is_first = call i1 @minitvm.alone(ptr %place, i64 %thread, i64 %threads)
  br i1 %is_first, label %products, label %done
products:
  %i = phi i64 [ 0, %entry ], [ %next, %products ]
  %at_a = mul i64 %i, {stride_a}
  %at_b = mul i64 %i, {stride_b}
  %at_c = mul i64 %i, {stride_c}
  %pa = getelementptr {real}, ptr %a, i64 %at_a
  %pb = getelementptr {real}, ptr %b, i64 %at_b
  %pc = getelementptr {real}, ptr %c, i64 %at_c
  call void @cblas_{name}({arguments})
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {batch}
  br i1 %more, label %products, label %finished
finished:
  call void @minitvm.finished(ptr %place, i64 %threads)
  br label %done
done:
  ret void
}}
"""


def gemm_text(gemm: Gemm, symbol: str) -> str:
    """The LLVM IR of a group's function: :func:`minitvm.runtime.cblas.functions` are its externals."""
    real = {"float32": "float", "float64": "double"}[gemm.dtype]
    forms = [_TRANSPOSED if swapped else _PLAIN for swapped in (gemm.transpose_a, gemm.transpose_b)]
    integers = [f"i32 {n}" for n in (_ROWS, *forms)] + [f"i64 {n}" for n in (gemm.m, gemm.n, gemm.k)]
    operands = [f"ptr %pa, i64 {gemm.lda}", f"ptr %pb, i64 {gemm.ldb}"]
    arguments = ", ".join([*integers, f"{real} 1.0", *operands, f"{real} 0.0", f"ptr %pc, i64 {gemm.n}"])
    return _TEXT.format(
        name=gemm.name,
        symbol=symbol,
        real=real,
        arguments=arguments,
        batch=gemm.batch,
        stride_a=gemm.stride_a,
        stride_b=gemm.stride_b,
        stride_c=gemm.m * gemm.n,
    )
