"""ShareRows: threads share the rows of a depthwise convolution where what reads it is shared by rows, too.

Otherwise they share its channels, each of which a thread walks from top to bottom.  A convolution over all channels is
shared by pixels, so half of what it reads another core has written, or more on more threads, and a line of another
core takes many times as long as one of the own.  Rows of both are the same thread's but for those where shares meet.
"""

from collections.abc import Iterator, Mapping, Sequence

from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.ops.nn_conv import BlockedConvolution, DepthwiseConv2dNCHWc
from minitvm.ir.types import TensorType, as_tensor
from minitvm.ir.visitor import as_function, calls, rewrite, users
from minitvm.passes.fuse_ops import BY_ROWS
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import in_pipeline
from minitvm.target import MachineModel


@in_pipeline(kind="llvm", given="machine", shared=True)
class ShareRows(FunctionPass, opt_level=3):
    """Marks the groups of depthwise convolutions that only convolutions over all channels read; after FuseOps."""

    def __init__(self, machine: MachineModel) -> None:
        self.machine = machine

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        readers, marked = users(function.body), dict[Function, Function]()

        def visit(old: Expr, new: Expr) -> Expr:
            layer = _layer(new)
            if layer is None or not isinstance(layer[0], DepthwiseConv2dNCHWc):
                return new
            assert isinstance(new, Call) and isinstance(new.op, Function)
            refusal = self._refusal([*_read_by(old, readers)])
            decide(self.info.name, new, refusal or "threads share its rows, as they do of what reads it")
            if refusal is not None:
                return new
            if new.op not in marked:
                group = new.op
                marked[group] = Function(group.params, group.body, {**group.attrs, BY_ROWS: True}, span=group.span)
            return Call(marked[new.op], new.args, span=new.span)

        return as_function(rewrite(function, visit))

    def _refusal(self, found: Sequence[Expr]) -> Declined | None:
        for reader in found:
            layer = _layer(reader)
            if layer is None or layer[0].groups != 1:
                return Declined(f"{_name(reader)} reads it, whose threads do not share rows")
            if layer[1].nbytes > self.machine.l2_bytes // 2:
                return Declined(f"{_name(reader)} reads it, whose threads share the weights")
        return None if found else Declined("it is a result")


def _layer(node: Expr) -> tuple[BlockedConvolution, TensorType] | None:
    """A group's convolution, and the type of its weights."""
    inside = calls(group.body) if (group := _group(node)) is not None else ()
    found = ((c.op, as_tensor(c.args[1].type)) for c in inside if isinstance(c.op, BlockedConvolution))
    return next(found, None)


def _read_by(node: Expr, readers: Mapping[Expr, Sequence[Expr]]) -> Iterator[Expr]:
    """Who reads a value, as it is or as a view of it."""
    stack = [*readers.get(node, ())]
    while stack:
        reader = stack.pop()
        if (group := _group(reader)) is not None and group.attrs.get("reshape_only"):
            stack += readers.get(reader, ())
        else:
            yield reader


def _name(node: Expr) -> str:
    group = _group(node)
    return name_of(node) if group is None else str(group.attrs.get("name", "a function"))


def _group(node: Expr) -> Function | None:
    return node.op if isinstance(node, Call) and isinstance(node.op, Function) else None
