"""Solutions of chapter 8."""

import struct

from minitvm.codegen import schedule
from minitvm.ir.loop import Binary, Const, For, Kernel, Load, LoopExpr, LoopKind, Store

INSTRUCTIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


def llvm_of(kernel: Kernel) -> str:
    found, lines, values = kernel.body, [], {}
    assert isinstance(found, For) and isinstance(found.body, Store)
    names = {buffer: f"%p{n}" for n, buffer in enumerate(kernel.params)}

    def new(line: str) -> str:
        lines.append(f"  %v{len(lines)} = {line}")
        return f"%v{len(lines) - 1}"

    def value(expr: LoopExpr) -> str:
        if expr not in values:
            values[expr] = written(expr)
        return values[expr]

    def written(expr: LoopExpr) -> str:
        if isinstance(expr, Const):
            (rounded,) = struct.unpack("f", struct.pack("f", expr.value))
            return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
        if isinstance(expr, Load):
            return new(f"load float, ptr {new(f'getelementptr float, ptr {names[expr.buffer]}, i64 %i')}")
        assert isinstance(expr, Binary)
        return new(f"{INSTRUCTIONS[expr.op]} float {value(expr.lhs)}, {value(expr.rhs)}")

    result = value(found.body.value)
    target = new(f"getelementptr float, ptr {names[found.body.buffer]}, i64 %i")
    body = "\n".join(lines)
    return f"""
define void @{kernel.name}({", ".join(f"ptr {name}" for name in names.values())}) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{body}
  store float {result}, ptr {target}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {found.extent.value}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def on_gpu(kernel: Kernel) -> Kernel:
    kernel = schedule.split(kernel, "i", 128, tail="guard")
    kernel = schedule.bind(kernel, "i_outer", LoopKind.BLOCK_X)
    return schedule.bind(kernel, "i_inner", LoopKind.THREAD_X)


def plan_memory(steps: list[tuple[str, list[str], int]], keep: set[str]) -> dict[str, int]:
    last = {name: at for at, (name, _, _) in enumerate(steps)}
    for at, (_, reads, _) in enumerate(steps):
        last.update(dict.fromkeys(reads, at))
    last.update({name: len(steps) for name in keep})
    size = {name: nbytes for name, _, nbytes in steps}
    first = {name: at for at, (name, _, _) in enumerate(steps)}
    offsets: dict[str, int] = {}
    for name in sorted(size, key=lambda n: (-size[n], first[n])):
        alive = [o for o in offsets if first[o] <= last[name] and first[name] <= last[o]]
        at = 0
        for other in sorted(alive, key=offsets.__getitem__):
            if at + size[name] <= offsets[other]:
                break
            at = max(at, offsets[other] + size[other])
        offsets[name] = at
    return offsets
