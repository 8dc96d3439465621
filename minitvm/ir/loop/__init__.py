"""The loop IR: one small immutable tree for kernels of every target.

Expressions are scalar; a loop's *kind* says how it runs.  ``ir.loop.interp`` is the living definition.  This module is
the door: ``expr`` has the expressions and buffers, ``stmt`` the statements, walks and rewrites.

Index arithmetic is ``int64``.  ``Binary`` operators::

    add sub mul          wrap around for integers
    div                  true division for floats, truncating for integers (C)
    mod                  remainder of that division, sign of the dividend (C, fmod)
    floordiv floormod    rounding towards minus infinity (Python); what index arithmetic uses
    min max              of floats: NaN if either operand is (ONNX, numpy)
    pow                  floats and integers
    and or xor           bitwise; on bool, logical
    shl shr              integers; shr is arithmetic for signed dtypes
    eq ne lt le          result bool

``Shuffle`` exchanges values between the threads of a warp.  ``Intrin`` functions: see :data:`INTRINSICS`.
"""

from __future__ import annotations

from minitvm.ir.loop import stmt
from minitvm.ir.loop.expr import (
    BINARY_OPS,
    CHEAP,
    COMPARISONS,
    DOT_OPERANDS,
    INTRINSICS,
    Binary,
    Buffer,
    Cast,
    Const,
    Dot,
    Index,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Select,
    Shuffle,
    Size,
    Stage,
    all_of,
    as_index,
    binary,
    const,
    dim_of,
    intrin,
    maximum,
    minimum,
    select,
    size_expr,
)
from minitvm.ir.loop.stmt import (
    Alloc,
    Barrier,
    Body,
    CopyAsync,
    CopyCommit,
    CopyWait,
    For,
    If,
    Kernel,
    Ldmatrix,
    LoopKind,
    Mma,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Wgmma,
    WgmmaSync,
    allocated,
    dependency_order,
    guarded,
    loop,
    map_expr,
    map_nodes,
    map_stmt,
    nest,
    rebuild_expr,
    replace_stmt,
    seq,
    stmt_children,
    stmt_exprs,
    store,
    substitute_vars,
    summary,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.text import print_kernel

stmt.printer = print_kernel
