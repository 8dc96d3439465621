"""Symbolic kernels: one whose dimensions have symbols means, for any numbers that these stand for, the kernel with the
numbers in their place.  That kernel is what is checked and interpreted."""

from collections.abc import Mapping

from minitvm.ir.dims import number
from minitvm.ir.loop.expr import Buffer, Const, Load, LoopExpr, Size
from minitvm.ir.loop.stmt import Alloc, For, If, Kernel, Seq, Stmt, Store, map_expr


def bound(kernel: Kernel, values: Mapping[str, int]) -> Kernel:
    """The kernel for numbers."""
    return _Binding(values).kernel(kernel) if kernel.sizes else kernel


class _Binding:
    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values
        self.buffers: dict[Buffer, Buffer] = {}

    def kernel(self, kernel: Kernel) -> Kernel:
        params = tuple(map(self.buffer, kernel.params))
        return Kernel(kernel.name, params, self.stmt(kernel.body), kernel.results, kernel.spans)

    def buffer(self, buffer: Buffer) -> Buffer:
        found = self.buffers.get(buffer)
        if found is None:
            shape = tuple(number(d, self.values) for d in buffer.shape)
            found = Buffer(buffer.name, shape, buffer.dtype, buffer.scope)
            self.buffers[buffer] = found
        return found

    def expr(self, expr: LoopExpr) -> LoopExpr:
        def visit(node: LoopExpr) -> LoopExpr:
            if isinstance(node, Size):
                return Const(self.values[node.name])
            return Load(self.buffer(node.buffer), node.index) if isinstance(node, Load) else node

        return map_expr(expr, visit)

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case For(var, extent, body, kind):
                return For(var, self.expr(extent), self.stmt(body), kind)
            case Store(buffer, index, value):
                index = tuple(map(self.expr, index))
                return type(stmt)(self.buffer(buffer), index, self.expr(value))
            case Seq(stmts):
                return Seq(tuple(map(self.stmt, stmts)))
            case If(condition, then, orelse):
                other = None if orelse is None else self.stmt(orelse)
                return If(self.expr(condition), self.stmt(then), other)
            case Alloc(buffer, body):
                return Alloc(self.buffer(buffer), self.stmt(body))
        return stmt
