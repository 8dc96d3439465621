"""AlterOpLayout: layout propagation, from the layouts that the target's templates are fastest in.

Which layout an operator asks for is an open table by (target kind, operator).  For ``llvm``:

* ``nn.conv2d``, NCHW, float: channels in blocks of one vector, ``NCHW8c`` with weights ``OIHW8i8o``.
  Blocks of half a vector, or a quarter, but at least 4, where only those divide the channels; the weights' blocks of
  output channels are whole vectors all the same, the last one filled up with zeros.  Output channels that none
  divides (10, 21, 1001) leave the convolution as it is, with pixels in lanes.  Input channels that none divides (1 or
  3 of an image, most often) stay in plain NCHW, with weights ``OIHW3i8o``.
* the same with groups, where such blocks divide the channels of a group; grouped convolutions that have none stay.
* depthwise ``nn.conv2d``: the same blocks, weights ``OIHW1i8o``.
* ``nn.dense`` and ``nn.matmul`` with constant weights: units packed in blocks of one vector, ``NC8n``, the last block
  filled up with zeros, unless they are so few that dot products cost less.

* both of bytes by constant bytes, or of int16: the same over words of four or two of them.

For ``cuda``: ``nn.conv2d``, NCHW, has its channels last (``NHWC`` with weights ``HWIO``), so that a thread's vectors
are channels; an image of 1 or 3 channels is read as it comes or, for tensor cores and where that pays, is filled up
with channels of zeros.  ``nn.dense`` with constant weights has them depth first.

Weights move once, at compile time: FoldConstant runs after this pass.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias

from minitvm.errors import PassError, user_code
from minitvm.ir.decision import Declined, decide, name_of, unheard
from minitvm.ir.dims import Dim, usual
from minitvm.ir.dtypes import SHORT
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var, describe_call, span_scope
from minitvm.ir.layout import Layout
from minitvm.ir.loop import DOT_OPERANDS, Dot
from minitvm.ir.op import Op
from minitvm.ir.ops.nn_conv import BlockedConvolution, Conv2d, Conv2dNCHWc, DepthwiseConv2dNCHWc
from minitvm.ir.ops.nn_dense import Dense, DensePack, Matmul
from minitvm.ir.ops.nn_pad import Pad
from minitvm.ir.ops.qnn import Conv2dWords, DenseWords, Words, parts_of
from minitvm.ir.ops.transform import ExpandDims, LayoutTransform, Reshape, Transpose
from minitvm.ir.relayout import Carry, Move, Placement, Site, calling, following
from minitvm.ir.types import (
    Shape,
    TensorType,
    accumulator,
    as_tensor,
    closed,
    is_named,
    leaves,
    only_batch_open,
    tensor_fields,
)
from minitvm.ir.visitor import as_function, children, kinds_of, post_order, rebuild, simplify_projection
from minitvm.passes.bound import SAME_PRODUCTS
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.narrow import is_cast_of_weights, lies_across_depth
from minitvm.target import MachineModel

Propose = Callable[[Site], "Placement | Declined | None"]
"""A call's new layout, or why it has none; ``None`` where the operator is not one's concern."""


@dataclass(frozen=True, slots=True)
class Value:
    """What stands for a node of the original graph, and how it is held."""

    expr: Expr
    carry: Carry


@dataclass
class LayoutRewriter:
    """The engine of AlterOpLayout and ConvertLayout: moves calls to other layouts, and tensors only where they must.

    A *proposal* names calls that should run in another layout.  Every other call is asked, through ``Op.relayout``,
    whether it can work on what its producers now hold; if not, it gets its arguments back as they were.  A tensor is
    moved once per wanted layout, whoever wants it.  Results of the function are as they were.
    """

    by: str
    """The pass that decisions are made for."""
    propose: Propose
    values: dict[Expr, Value] = field(default_factory=dict)
    moved: dict[tuple[Expr, Layout, Layout], Expr] = field(default_factory=dict)
    expanded: dict[tuple[Expr, Layout, int | None], Expr] = field(default_factory=dict)

    def run(self, function: Function) -> Function:
        """``function`` with the same meaning, parameters and result; itself where nothing was proposed."""
        for node in post_order(function.body):
            with span_scope(node.span):
                self.values[node] = self._visit(node)
        with span_scope(function.body.span):
            result = self._as(self.values[function.body], None)
        return as_function(rebuild(function, (*function.params, result)))

    def _visit(self, node: Expr) -> Value:
        if isinstance(node, Call):
            return self._visit_call(node)
        below = [self.values[child] for child in children(node)]
        if isinstance(node, TupleGetItem):
            (source,) = below
            carry = source.carry[node.index] if isinstance(source.carry, tuple) else None
            return Value(simplify_projection(rebuild(node, [source.expr])), carry)
        return Value(rebuild(node, [v.expr for v in below]), tuple(v.carry for v in below) if below else None)

    def _visit_call(self, call: Call) -> Value:
        placement = self._placement(call)
        if placement is None:
            return Value(rebuild(call, [self._as(self.values[arg], None) for arg in children(call)]), None)
        operands = [self._as(self.values[a], want) for a, want in zip(call.args, placement.args, strict=True)]
        with user_code(placement.build, f"layout rule of {name_of(call)}", partial(describe_call, call)):
            result = placement.build(operands)
        _check(call, result, placement.result)
        return Value(result, placement.result)

    def _placement(self, call: Call) -> Placement | None:
        if not isinstance(call.op, Op):
            return None
        may_ask = _is_known(call) or _is_product_of_rows(call) or is_over_open_pixels(call)
        if not may_ask and not all(is_named(node.type) for node in (call, *call.args)):
            return None
        site = Site(call, call.op, tuple(self.values[arg].carry for arg in call.args))
        answer, why = self.propose(site) if may_ask else None, ""
        if not isinstance(answer, Placement) and any(_is_moved(c) for c in site.carries):
            with user_code(type(call.op), f"layout rule of {name_of(call)}", partial(describe_call, call)):
                own = following(site)
            answer = answer if isinstance(own, Declined) and answer is not None else own
            why = ", as its operands are"
        if isinstance(answer, Placement):
            held = f"its result is held as {_describe(answer.result)}{why or _blocks_of(call, answer.result)}"
            decide(self.by, call, answer.what or held)
            return answer
        if answer is not None:
            decide(self.by, call, answer)
        return None

    def _as(self, value: Value, want: Carry) -> Expr:
        """The value held as wanted; a tuple field by field."""
        if isinstance(want, tuple) or isinstance(value.carry, tuple):
            return self._tuple_as(value, want)
        return self._tensor_as(value.expr, value.carry, want)

    def _tuple_as(self, value: Value, want: Carry) -> Expr:
        count = len(want) if isinstance(want, tuple) else len(value.carry)  # type: ignore[arg-type]
        have, wish = (c if isinstance(c, tuple) else (None,) * count for c in (value.carry, want))
        if have == wish or not any(map(_is_moved, (*have, *wish))):
            return value.expr
        fields = value.expr.fields if isinstance(value.expr, Tuple) else tuple(value.expr)
        parts = [self._as(Value(f, h), w) for f, h, w in zip(fields, have, wish, strict=True)]
        return rebuild(value.expr, parts) if isinstance(value.expr, Tuple) else Tuple(parts)

    def _tensor_as(self, expr: Expr, have: Move | None, want: Move | None) -> Expr:
        if have is not None and want is not None and have.old == want.old:
            return self._move(expr, have.new, want.new)
        if have is not None:
            expr = self._move(expr, have.new, have.old)
        return expr if want is None else self._move(self._expand(expr, want), want.old, want.new)

    def _expand(self, expr: Expr, want: Move) -> Expr:
        """``expr`` with the dimensions of ``want.old`` that it lacks, of extent 1."""
        rank, missing = len(expr.shape), want.old.rank - len(expr.shape)
        key = (expr, want.old, want.at)
        if key not in self.expanded:
            before = missing if want.at is None else want.at
            new = Call(ExpandDims(0, before), (expr,)) if before else expr
            if missing > before:
                new = Call(ExpandDims(before + rank, missing - before), (new,))
            self.expanded[key] = new
        return self.expanded[key]

    def _move(self, expr: Expr, src: Layout, dst: Layout) -> Expr:
        if src == dst:
            return expr
        key = (expr, src, dst)
        if key not in self.moved:
            self.moved[key] = Call(_transform(expr.shape, src, dst), (expr,), span=expr.span or None)
        return self.moved[key]


@lru_cache(maxsize=1 << 12)
def _transform(shape: Shape, src: Layout, dst: Layout) -> Op:
    """The operator that moves a tensor; a reshape where the bytes stay where they are."""
    extents = src.primal_shape(shape)
    if storage_order(src, extents) == storage_order(dst, extents):
        return Reshape.to(dst.shape_of(extents))
    return LayoutTransform(str(src), str(dst))


def _describe(carry: Carry) -> str:
    if isinstance(carry, tuple):
        return ", ".join(map(_describe, carry))
    return "it was" if carry is None else str(carry.new)


def _blocks_of(call: Call, carry: Carry) -> str:
    """What a proposal's layout is for, as far as it is seen from it: vectors of channels."""
    if not isinstance(carry, Move) or not carry.new.is_blocked:
        return ""
    extents = carry.old.primal_shape(call.tensor_type.shape)
    blocks = [(axis, carry.new.factor(axis)) for axis in carry.new.primal if carry.new.factor(axis) > 1]
    return ", so that " + " and ".join(f"vectors take {n} of {axis}, which is {extents[axis]}" for axis, n in blocks)


def _is_moved(carry: Carry) -> bool:
    return any(map(_is_moved, carry)) if isinstance(carry, tuple) else carry is not None


def _is_product_of_rows(call: Call) -> bool:
    """A product of which nothing but the number of rows is open: weights are packed all the same."""
    return isinstance(call.op, (Dense, Matmul)) and isinstance(call.args[0].tensor_type.shape[1], int)


def is_over_open_pixels(call: Call) -> bool:
    """True of a convolution of an image whose height or width only a run knows, and of known channels."""
    nodes = (call, *call.args)
    if not isinstance(call.op, Conv2d) or call.op.data_layout != "NCHW" or not all(is_named(n.type) for n in nodes):
        return False
    return isinstance(call.args[0].tensor_type.shape[1], int) and not _is_known(call)


def _usual_site(call: Call) -> Site:
    """A convolution of an image as large as in the first run."""
    data, op = call.args[0].tensor_type, call.op
    assert isinstance(op, Op)
    image = Var("data", data.with_shape(tuple(map(usual, data.shape))))
    return Site(Call(op, (image, *call.args[1:])), op, (None,) * len(call.args))


def _is_known(call: Call) -> bool:
    """All but how many images there are."""
    return all(only_batch_open(node.type) for node in (call, *call.args))


def _check(call: Call, result: Expr, carry: Carry) -> None:
    """A rule that builds another tensor than it says is a bug in the rule; say so here, not ten calls later."""
    parts = carry if isinstance(carry, tuple) else (carry,)
    for before, after, move in zip(tensor_fields(call.type), tensor_fields(result.type), parts, strict=True):
        expected = before
        if isinstance(move, Move):
            expected = TensorType(move.new.shape_from(move.old, before.shape), before.dtype)
        if after != expected:
            message = f"the layout rule of {name_of(call)} built {after} instead of {expected}"
            raise PassError(message, where=describe_call(call))


def storage_order(layout: Layout, extents: Mapping[str, Dim]) -> list[tuple[str, Dim]]:
    """The order of elements in memory: axes from slow to fast, extents of 1 left out, neighbours of one axis joined.
    Two layouts of equal order hold the same bytes."""
    order: list[tuple[str, Dim]] = []
    for axis, extent in zip(layout.axes, layout.shape_of(extents), strict=True):
        if order and order[-1][0] == axis.primal:
            order[-1] = (axis.primal, order[-1][1] * extent)
        elif extent != 1:
            order.append((axis.primal, extent))
    return order


Proposal: TypeAlias = Callable[[Site, MachineModel], "Placement | Declined"]

_ACROSS = 5
"""Vector operations that add up the lanes of a dot product."""
Faster: TypeAlias = Callable[..., "Placement | Declined"]
"""What is better than the placement that a call of a site asks for, for which alone so many elements have to be moved,
and for what is better so many be copied; or why it stays as it is."""

PROPOSALS: dict[tuple[str, type[Op]], Proposal] = {}
"""What an operator asks for, by target kind and operator."""


def proposal(kind: str, *ops: type[Op]) -> Callable[[Proposal], Proposal]:
    """Register what operators ask for on a target."""

    def register(ask: Proposal) -> Proposal:
        PROPOSALS.update({(kind, op): ask for op in ops})
        return ask

    return register


def block(extent: int, lanes: int) -> int | None:
    """Channels in a block: as many as ``lanes``, half of it or a quarter; ``None`` where none of these divides."""
    return next((size for size in (lanes, lanes // 2, lanes // 4) if size >= 4 and extent % size == 0), None)


@proposal("llvm", Conv2d)
def blocked_conv2d(site: Site, machine: MachineModel) -> Placement | Declined:
    op, data, weight, result = site.op, site.type(0), site.type(1), site.call.tensor_type
    assert isinstance(op, Conv2d)
    if (op.data_layout, op.kernel_layout) != ("NCHW", "OIHW"):
        return Declined(f"its layouts are {op.data_layout} and {op.kernel_layout}, not NCHW and OIHW")
    dot = _dot_of(site.call, machine)
    if dot and op.groups == 1:
        return _conv2d_of_words(op, dot, site, machine.lanes("int32"))
    if not data.is_float or accumulator(data.dtype) != accumulator(result.dtype):
        return Declined(f"it computes {result.dtype} from {data.dtype}")
    lanes, groups = machine.lanes(accumulator(data.dtype)), op.groups
    channels, units = data.extents[1], weight.static_shape[0]
    out, inner = block(units // groups, lanes), block(channels // groups, lanes)
    if groups == channels == units > 1:
        size = block(channels, lanes)
        found = f"NCHW{size}c", f"OIHW1i{size}o", f"NCHW{size}c"
        none = Declined(f"no blocks of {lanes} divide its {channels} channels")
        return none if size is None else _blocked(op, DepthwiseConv2dNCHWc, site.call.args[1], *found)
    if out is None or (inner is None and groups > 1):
        group = f"the {channels // groups} and {units // groups} channels of a group"
        return Declined(f"no blocks of {lanes} divide {group if groups > 1 else f'its {units} output channels'}")
    image = f"NCHW{inner}c" if inner else "NCHW"
    return _blocked(op, Conv2dNCHWc, site.call.args[1], image, f"OIHW{inner or channels}i{lanes}o", f"NCHW{out}c")


def _dot_of(call: Call, machine: MachineModel) -> Dot | None:
    """What adds up a product of constant weights."""
    data, weight = call.args
    if call.dtype != "int32" or not isinstance(weight, Constant):
        return None
    found = next((dot for dot, parts in DOT_OPERANDS.items() if parts == (data.dtype, weight.dtype)), None)
    return found if found in ("dot4", "dot2", *dots_of(machine)) else None


def dots_of(machine: MachineModel) -> frozenset[str]:
    """What multiplies words that have to be integers: in one instruction, or as machines do that have none."""
    return machine.features.intersection(DOT_OPERANDS) or frozenset(
        ("sdot4", "udot4") if "neon" in machine.features else ("dot4",)
    )


def _conv2d_of_words(op: Conv2d, dot: Dot, site: Site, lanes: int) -> Placement | Declined:
    """Some channels to a word; weights of a block come word by word."""
    (units, channels), padding = site.type(1).static_shape[:2], op.padding
    out, inner = block(units, lanes), block(channels, lanes)
    if out is None or inner is None:
        return Declined(f"no blocks of {lanes} divide {channels} and {units} channels")
    words = inner // parts_of(site.type(0).dtype)
    layouts = f"NCHW{words}c", f"OIHW{words}i{lanes}o", f"NCHW{out}c"
    names = dict(zip(("data_layout", "kernel_layout", "out_layout"), layouts, strict=True))
    made = Conv2dWords.of(op.attributes() | names | {"channels": units, "padding": padding, "product": dot})

    def build(args: Sequence[Expr]) -> Expr:
        blocks = in_whole_blocks(args[1], "OIHW", f"OIHW{inner}i{lanes}o", "O")
        return Call(made, (Call(Words(), (args[0],)), _words_of_lanes(blocks)))

    return Placement((Move.of("NCHW", f"NCHW{inner}c"), None), Move.of("NCHW", layouts[2]), build)


def _words_of_lanes(weight: Expr) -> Expr:
    """(..., 4 * n, lanes) bytes, or pairs, as (..., n, lanes) words of neighbours before the lanes."""
    *outer, depth, lanes = weight.tensor_type.static_shape
    parts = parts_of(weight.dtype)
    apart = Call(Reshape.to((*outer, depth // parts, parts, lanes)), (weight,))
    rank = len(outer) + 3
    words = Call(Words(), (Call(Transpose((*range(rank - 2), rank - 1, rank - 2)), (apart,)),))
    return Call(Reshape.to((*outer, depth // parts, lanes)), (words,))


def _blocked(op: Conv2d, made: type[BlockedConvolution], weight: Expr, data: str, kernel: str, out: str) -> Placement:
    """With weights in whole blocks: the last one of each group may have zeros behind its filters."""
    units = weight.tensor_type.static_shape[0]
    blocked = made.of(op.attributes() | {"data_layout": data, "kernel_layout": kernel, "out_layout": out})
    moved, result = Move.of("NCHW", data), Move.of("NCHW", out)
    whole_blocks = units // op.groups % Layout(kernel).factor("O") == 0 and not is_cast_of_weights(weight)
    if made is DepthwiseConv2dNCHWc or whole_blocks:
        return Placement((moved, Move.of("OIHW", kernel)), result, calling(blocked))
    whole = blocked.with_attributes(channels=units)

    def build(args: Sequence[Expr]) -> Expr:
        return Call(whole, (args[0], in_whole_blocks(args[1], "OIHW", kernel, "O", op.groups)))

    return Placement((moved, None), result, build)


def in_whole_blocks(weight: Expr, axes: str, layout: str, unit: str, groups: int = 1) -> Expr:
    """A weight with its units in blocks, the last one of each group filled up with zeros; in the format that it has."""
    if is_cast_of_weights(weight) and isinstance(weight, Call):
        moved = [a if a.tensor_type.rank == 0 else in_whole_blocks(a, axes, layout, unit, groups) for a in weight.args]
        op: Any = weight.op
        if len(weight.args) > 1 and weight.args[1].tensor_type.rank:  # scales along an axis
            op = op.with_attributes(axis=Layout(layout).index(axes[op.axis]))
        return Call(op, moved, span=weight.span)
    at, extents = axes.index(unit), weight.tensor_type.static_shape
    missing = -(extents[at] // groups) % Layout(layout).factor(unit)
    if groups > 1 and missing:
        weight = Call(Reshape.to((*extents[:at], groups, extents[at] // groups, *extents[at + 1 :])), (weight,))
    if missing:
        padded = at + (groups > 1)
        widths = tuple((0, missing if axis == padded else 0) for axis in range(weight.tensor_type.rank))
        weight = Call(Pad(widths), (weight,))
    if groups > 1 and missing:
        weight = Call(Reshape.to((*extents[:at], extents[at] + groups * missing, *extents[at + 1 :])), (weight,))
    return Call(LayoutTransform(axes, layout), (weight,))


@proposal("llvm", Dense, Matmul)
def packed_dense(site: Site, machine: MachineModel) -> Placement | Declined:
    data, weight, attributes = site.type(0), site.call.args[1], site.op.attributes()
    if not isinstance(weight, Constant) and not is_cast_of_weights(weight):
        return Declined("its weights are not constant: packing them at every run costs more than it saves")
    dot = _dot_of(site.call, machine)
    if dot and data.extents[1] % parts_of(data.dtype):
        return Declined(f"words of {data.dtype} do not divide its depth of {data.extents[1]}")
    if not dot and not (data.is_float and site.call.tensor_type.is_float):
        return Declined(f"it computes {site.call.tensor_type.dtype} from {data.dtype}")
    if attributes.get("transpose_a"):
        return Declined("its first operand comes transposed")
    if lies_across_depth(weight, site.call):
        return Declined("blocks of its weights lie along its units")
    depth, units = data.extents[1], site.call.tensor_type.extents[1]
    lanes = machine.lanes("int32" if dot else accumulator(data.dtype))
    if not dot and units * (depth + _ACROSS * lanes) < lanes * depth:
        return Declined(f"{units} dot products of {depth} cost less than one vector of {lanes} units")
    axes, layout = "NC" if attributes.get("transpose_b", True) else "CN", f"NC{lanes}n"
    made = {"weight_layout": layout, "units": units, "out_dtype": attributes["out_dtype"]}
    packed = DenseWords.of(made | {"product": dot}) if dot else DensePack.of(made)

    def build(args: Sequence[Expr]) -> Expr:
        panels = in_whole_blocks(args[1], axes, layout, "N")
        operands = (Call(Words(), (args[0],)), _words_of_lanes(panels)) if dot else (args[0], panels)
        return Call(packed, operands)

    told = (
        f"its weights are held as {layout}, so that vectors take {lanes} of {units} units; its result is held as it was"
    )
    return Placement((None, None), None, build, told)


@proposal("cuda", Conv2d)
def channels_last(site: Site, machine: MachineModel) -> Placement | Declined:
    op, data = site.op, site.type(0)
    assert isinstance(op, Conv2d)
    if (op.data_layout, op.kernel_layout) != ("NCHW", "OIHW"):
        return Declined(f"its layouts are {op.data_layout} and {op.kernel_layout}, not NCHW and OIHW")
    in_vectors = data.extents[1] % machine.lanes(data.dtype) == 0
    image, missing = Move.of("NCHW", "NHWC") if in_vectors else None, 0 if in_vectors else _missing(site, machine)
    last = "NHWC" if image or missing else "NCHW"
    made = op.with_attributes(data_layout=last, kernel_layout="HWIO", out_layout="NHWC")
    build = partial(_filled_up, made, missing) if missing else calling(made)
    return Placement((image, Move.of("OIHW", "HWIO")), Move.of("NCHW", "NHWC"), build)


def _missing(site: Site, machine: MachineModel) -> int:
    """The channels that an image lacks to be read in vectors, where filling it up with zeros pays; else 0."""
    data, lanes = site.type(0), machine.lanes(site.type(0).dtype)
    assert isinstance(site.op, Conv2d)
    tensor_cores = data.dtype in SHORT or PassContext.current().option("cuda.allow_tf32")
    if site.op.groups > 1 or not tensor_cores or not isinstance(data.extents[1], int):
        return 0
    channels, elements = data.extents[1], as_tensor(closed(data, 1)).size
    filled = -(-channels // lanes) * lanes
    nbytes = elements // channels * (channels + filled) * machine.vector_bytes // lanes
    pays = machine.pays_to_fill(_multiply_adds(site.call), filled / channels, nbytes)
    return filled - channels if pays else 0


def _filled_up(made: Conv2d, missing: int, args: Sequence[Expr]) -> Expr:
    """The convolution of an image in NCHW, and of weights in HWIO, both with so many more channels of zeros."""
    image = Call(LayoutTransform("NCHW", "NHWC"), (Call(Pad(((0, 0), (0, missing), (0, 0), (0, 0))), (args[0],)),))
    return Call(made, (image, Call(Pad(((0, 0), (0, 0), (0, missing), (0, 0))), (args[1],))))


@proposal("cuda", Dense)
def depth_first(site: Site, machine: MachineModel) -> Placement | Declined:
    if not isinstance(site.call.args[1], Constant):
        return Declined("its weights are not constant: turning them at every run costs more than it saves")
    if site.type(0).extents[0] == 1:
        return Declined("one row: each result is a sum along a row of the weights")
    made = Matmul(out_dtype=site.op.attributes()["out_dtype"])

    def build(args: Sequence[Expr]) -> Expr:
        return Call(made, (args[0], Call(Transpose((1, 0)), (args[1],))))

    told = "its weights are turned, so that units lie side by side; its result is held as it was"
    return Placement((None, None), None, build, told)


def elements_moved(call: Call, function: Function, machine: MachineModel) -> int:
    """The elements that change their layout for the only convolution of ``function``: its image, and no more than what
    is returned, as pools and the like follow the layout; 0 where nothing is gained by leaving it as it is."""
    if not isinstance(call.op, Conv2d) or str(call.op.layouts[0]) != "NCHW" or _dot_of(call, machine):
        return 0
    data, result = (as_tensor(closed(node.type, 1)) for node in (call.args[0], call))
    tensors = [closed(field, 1) for field in leaves(function.body.type) if isinstance(field, TensorType)]
    returned = sum(as_tensor(field).size for field in tensors if field.is_static)
    return data.size + min(result.size, returned)


def _multiply_adds(call: Call) -> int:
    """Those that another layout can share loads of: none of a depthwise convolution."""
    weight, result = (as_tensor(closed(node.type, 1)) for node in (call.args[1], call))
    assert isinstance(call.op, Conv2d)
    units, *taps = weight.static_shape
    return 0 if call.op.groups == units else result.size * math.prod(taps)


class AlterOpLayout(FunctionPass, opt_level=3, bound=SAME_PRODUCTS):
    """Operators in the layouts that they ask for on a machine; parameters and results keep theirs.

    ``weigh``: a convolution without another one to share its layout with only moves where that pays.
    ``faster``: what may be better than the placement that a call asks for, or whether that is worth moving for.
    """

    def __init__(
        self, machine: MachineModel, kind: str = "llvm", weigh: bool = False, faster: Faster | None = None
    ) -> None:
        self.machine = machine
        self.kind = kind
        self.weigh = weigh
        self.faster = faster

    def slides_over_pixels(self, call: Call, tiled: Expr) -> bool:
        """True if a convolution over open pixels becomes a direct one over blocks of channels, which takes images of
        any size; at that of the first run.  ``tiled``: the one over its tiles that Winograd's would stand for."""
        runs = PassContext.current().pass_enabled(self.info)
        if not runs or not is_over_open_pixels(call):
            return False
        with unheard(), span_scope(call.span):
            site = _usual_site(call)
            copied = site.type(0).size + site.call.tensor_type.size
            found = PROPOSALS[self.kind, Conv2d](site, self.machine)
            if isinstance(found, Declined) or self.faster is None:
                return isinstance(found, Placement)
            assert isinstance(tiled, Call)
            of_tiles = _usual_site(tiled)
            over_tiles = PROPOSALS[self.kind, Conv2d](of_tiles, self.machine)
            stays = self.faster(site, found, 0, copied) is found
            return stays or self.faster(of_tiles, over_tiles, 0) is over_tiles

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        alone = self.weigh and kinds_of(function)[Conv2d] == 1

        def propose(site: Site) -> Placement | Declined | None:
            ask = PROPOSALS.get((self.kind, type(site.op)))
            if ask is None:
                return None
            with user_code(ask, f"layout proposal of {site.op.name}", partial(describe_call, site.call)):
                is_open = is_over_open_pixels(site.call)
                moved = elements_moved(site.call, function, self.machine) if alone and not is_open else 0
                if moved and not self.machine.pays_to_move(_multiply_adds(site.call), moved):
                    return Declined(f"it stands alone, and {moved} elements would be moved for it")
                found = ask(site, self.machine)
                if isinstance(found, Declined) or self.faster is None or is_open:
                    return found
                return self.faster(site, found, moved)

        return LayoutRewriter(self.info.name, propose).run(function)
