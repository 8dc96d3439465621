"""What fusing computes anew: a fused value has no memory, so it is made at every place at which its users read it.

A user that reads it elsewhere than it writes (``x[i] + x[n - i]``) makes it twice, the next one such doubles that: of a
chain as deep as a group may be that is more work than there is time.  So groups are cut where a value would be made at
more than ``minitvm.FuseOps.max_copies`` places; it gets memory and a kernel of its own.  What element-wise users
read at their own place is one, however many they are.  What an anchor reads for each of many results (the keys of an
attention, for every few queries) is computed before it, if it is computed and not merely moved.  The work is a bounded
number of steps for each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from minitvm.errors import MiniTVMError, user_code
from minitvm.ir.dims import Undecided
from minitvm.ir.expr import Call, Expr, Tuple, TupleGetItem
from minitvm.ir.loop import Buffer, Stage, dependency_order
from minitvm.ir.loop.affine import loads
from minitvm.ir.node import describe_call
from minitvm.ir.op import Fusion, Op, compute_of
from minitvm.ir.types import TensorType, TupleType, tensor_fields
from minitvm.ir.visitor import children

MAX_COPIES = 16

Value = tuple[Expr, int]
"""One result of a node."""
Places = set[int]
"""Where a value is made, numbered: equal ways from the result of its kernel are one place."""


@dataclass
class Cutting:
    """Walks the nodes of fused groups, users before operands.  ``users`` are a node's within its group."""

    users: Callable[[Expr], Sequence[Expr]]
    most: int
    home: dict[Expr, Expr] = field(default_factory=dict)
    """The root of the group that a node is in from now on."""
    _places: dict[Value, Places] = field(default_factory=dict)
    _numbers: dict[object, int] = field(default_factory=dict)
    _always: dict[int, int] = field(default_factory=dict)
    """Of a place that only a condition leads to, the same one without it."""
    _reads: dict[Expr, Mapping[int, int]] = field(default_factory=dict)
    _again: set[Expr] = field(default_factory=set)
    """What an anchor reads for each of many results, itself or moved."""

    def visit(self, node: Expr) -> str:
        """The reason why a node has to be the root of a group of its own; nothing where it need not."""
        found = self._verdict(node)
        if found or not self.users(node):
            self.home[node] = node
            for number in range(len(tensor_fields(node.type))):
                self._places[node, number] = {0}
        self._pass_on(node)
        return found

    def _verdict(self, node: Expr) -> str:
        homes = {self.home[user] for user in self.users(node)}
        if not homes:
            return ""
        self.home[node] = home = homes.pop()
        if homes or isinstance(home, Tuple):
            return "its users are in several kernels"
        count = sum(len(self._at(node, number)) for number in range(len(tensor_fields(node.type))))
        if isinstance(node, Call) and count > self.most:
            return f"it would be computed at more than max_copies = {self.most} places of its users"
        if node in self._again and isinstance(node, Call) and isinstance(node.op, Op) and not node.op.moves():
            return "it would be computed again for each of many results"
        return ""

    def _at(self, node: Expr, number: int) -> Places:
        return self._places.setdefault((node, number), set())

    def _add(self, value: Value, found: Places) -> None:
        """More places than are allowed are as bad as one more than that."""
        places = self._at(*value)
        for place in found:
            if len(places) > self.most:
                break
            if self._always.get(place) not in places:
                places.add(place)
        places -= {place for place in places if self._always.get(place) in places}

    def _number(self, way: object) -> int:
        return self._numbers.setdefault(way, len(self._numbers) + 1)

    def _pass_on(self, node: Expr) -> None:
        """A node's places to what it reads."""
        if node in self._again and self.home[node] is not node:
            self._again.update(children(node))
        elif isinstance(node, Call) and isinstance(node.op, Op):
            self._again.update(node.args[i] for i in node.op.read_again)
        if isinstance(node, Tuple):
            for number, value in enumerate(node.fields):
                self._add((value, 0), self._at(node, number))
        elif isinstance(node, TupleGetItem):
            self._add((node.tuple, node.index), self._at(node, 0))
        elif isinstance(node, Call) and isinstance(node.op, Op):
            own = {place for n in range(len(tensor_fields(node.type))) for place in self._at(node, n)}
            for number, operand in enumerate(_operands(node)):
                self._add(operand, self._read(node, node.op, number, operand, own))

    def _read(self, call: Call, op: Op, number: int, value: Value, own: Places) -> Places:
        """The place where an operand is read if the call is computed at its ``own`` places."""
        if op.is_elementwise:
            shape = tensor_fields(value[0].type)[value[1]].shape
            if isinstance(call.type, TensorType) and shape == call.type.shape:
                return {self._if_chosen(call, place) for place in own} if op.chooses and number else own
            return {self._number((shape, place)) for place in own}
        times = self._times(call, op).get(number, 1)
        return {self._number((call, number, k, place)) for place in own for k in range(min(times, self.most + 1))}

    def _if_chosen(self, call: Call, place: int) -> int:
        """A kernel computes anew in each of two choices what is not computed outside of them."""
        found = self._number((call, place))
        self._always[found] = place
        return found

    def _times(self, call: Call, op: Op) -> Mapping[int, int]:
        """How many elements of each operand an element of the result is made of, where that is not one."""
        if op.fusion is not Fusion.INJECTIVE or op.view or op.affine or not op.has_compute():
            return {}
        if call not in self._reads:
            self._reads[call] = _counted(call, op, self.most)
        return self._reads[call]


def _operands(call: Call) -> Iterator[Value]:
    for arg in call.args:
        if isinstance(arg, Tuple):
            yield from ((value, 0) for value in arg.fields)
        else:
            yield from ((arg, number) for number in range(len(tensor_fields(arg.type))))


def _counted(call: Call, op: Op, most: int) -> Mapping[int, int]:
    """Different loads of each operand below the compute rule, each as often as the stage that it stands in."""
    given = [[Buffer(f"p{i}", t.extents, t.dtype) for t in tensor_fields(a.type)] for i, a in enumerate(call.args)]
    buffers = [tuple(g) if isinstance(a.type, TupleType) else g[0] for g, a in zip(given, call.args, strict=True)]
    try:
        with user_code(type(op), f"compute of {op.name}", partial(describe_call, call)):
            results = compute_of(op, *buffers)
    except (MiniTVMError, Undecided):
        return {}  # lowering says so
    times: Counter[Buffer] = Counter(results)
    for stage in reversed(dependency_order(results, _read_by)):
        for load in loads(stage.value) if isinstance(stage, Stage) else ():
            times[load.buffer] = min(times[load.buffer] + times[stage], most + 1)
    return {number: times[buffer] for number, buffer in enumerate(b for g in given for b in g)}


def _read_by(buffer: Buffer) -> list[Buffer]:
    return [load.buffer for load in loads(buffer.value)] if isinstance(buffer, Stage) else []
