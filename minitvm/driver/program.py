"""From the module after all passes to the graph that runs: one node a call, each with what it means and costs."""

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from minitvm.doors import door
from minitvm.errors import CompilerError, warn
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, TupleGetItem, Var
from minitvm.ir.expr import Tuple as TupleExpr
from minitvm.ir.op import Op
from minitvm.ir.ops.checks import OutOfRange
from minitvm.ir.types import Span, TensorType, TupleType, Type, closed, flatten, is_numeric, leaves, nest, tensor_fields
from minitvm.ir.visitor import calls, post_order, sizes_of
from minitvm.runtime.cost import Cost
from minitvm.runtime.graph import Alias, Entry, Graph, Host, HostCall, HostStep, Join, Launch, LibraryCall, Node, Step
from minitvm.runtime.hosts import branch_functions, operators_of
from minitvm.target import MachineModel


@dataclass
class Program:
    """A graph with what its nodes mean: kernels' groups, host calls' functions, parameters' arrays."""

    graph: Graph
    groups: dict[str, Function]
    hosts: dict[str, Function]
    """By node name; the body is the call that the host makes."""
    params: dict[str, np.ndarray]
    sizes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameters that hold the sizes of kernels, by name their symbols."""


_Value: TypeAlias = "Entry | tuple[Any, ...]"
"""What an expression stands for: an entry, or a tuple of values."""


class _Names:
    """Names given so far: a wanted one gets a number where it is taken."""

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.last: Counter[str] = Counter()

    def fresh(self, wanted: str) -> str:
        found = wanted
        while found in self.given:
            self.last[wanted] += 1
            found = f"{wanted}_{self.last[wanted]}"
        self.given.add(found)
        return found


class _Reader:
    """Turns ``main`` after FuseOps into a :class:`Program`, one node per call."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.groups: dict[str, Function] = {}
        self.hosts: dict[str, Function] = {}
        self.params: dict[str, np.ndarray] = {}
        self.names = _Names()
        self.symbols: dict[Function, str] = {}
        self.symbol_names = _Names()
        self.values: dict[Expr, _Value] = {}
        self.sizes: dict[tuple[str, ...], int] = {}

    def read(self, main: Function) -> Program:
        for param in main.params:
            self.values[param] = self._null(param.name, param.type, param.span)
        for expr in post_order(main.body):
            if expr not in self.values:
                self.values[expr] = self._value(expr)
        heads = flatten(main.body.type, self.values[main.body])
        sizes = {self.nodes[node].name: symbols for symbols, node in self.sizes.items()}
        return Program(Graph(tuple(self.nodes), tuple(heads)), self.groups, self.hosts, self.params, sizes)

    def _value(self, expr: Expr) -> _Value:
        match expr:
            case Constant():
                return self._constant(expr)
            case TupleExpr():
                return tuple(self.values[f] for f in expr.fields)
            case TupleGetItem():
                return self.values[expr.tuple][expr.index]  # type: ignore[return-value]
            case Call():
                return self._call(expr)
        assert isinstance(expr, Var), expr
        raise CompilerError(f"variable %{expr.name} of main is not one of its parameters")

    def _null(self, name: str, type_: Type, span: Span) -> _Value:
        """An input node; a tuple becomes one per field."""
        if isinstance(type_, TupleType):
            return tuple(self._null(f"{name}_{i}", t, span) for i, t in enumerate(type_.fields))
        self._add(self.names.fresh(name), None, (), type_, span)
        return (len(self.nodes) - 1, 0)

    def _constant(self, expr: Constant) -> _Value:
        value = self._null(f"p{len(self.params)}", expr.type, expr.span)
        self.params[self.nodes[-1].name] = expr.value
        return value

    def _sizes(self, group: Function) -> list[Entry]:
        """The parameter with the sizes that a symbolic kernel is handed."""
        symbols = sizes_of(group)
        if symbols and symbols not in self.sizes:
            self._null("sizes", TensorType((len(symbols),), "int64"), ())
            self.sizes[symbols] = len(self.nodes) - 1
        return [(self.sizes[symbols], 0)] if symbols else []

    def _call(self, call: Call) -> _Value:
        inputs = [e for a in call.args for e in flatten(a.type, self.values[a])]
        moves_nothing = _step_without_kernel(call.op) if isinstance(call.op, Function) else None
        if isinstance(call.op, Function) and not moves_nothing:
            inputs += self._sizes(call.op)
        node = len(self.nodes)
        value: _Value = nest(call.type, ((node, output) for output in itertools.count()))
        if isinstance(call.op, Function) and moves_nothing:
            self._add(self.names.fresh(_group_name(call.op)), moves_nothing, inputs, call.type, call.span)
        elif isinstance(call.op, Function):
            symbol = self._symbol(call.op)
            self._add(self.names.fresh(symbol), Launch(symbol), inputs, call.type, call.span, _check_of(call.op))
        else:
            name = self.names.fresh(call.op.name.replace(".", "_"))
            self.hosts[name] = _host_function(call)
            self._add(name, HostStep(), inputs, call.type, call.span)
        return value

    def _add(
        self, name: str, step: Step | None, inputs: Sequence[Entry], type_: Type, span: Span, check: str = ""
    ) -> None:
        self.nodes.append(Node(name, step, tuple(inputs), leaves(type_), span, check))

    def _symbol(self, group: Function) -> str:
        """The kernel's name; FuseOps gives equal groups one ``Function``, so they share a kernel."""
        if group not in self.symbols:
            self.symbols[group] = self.symbol_names.fresh(_group_name(group))
            self.groups[self.symbols[group]] = group
        return self.symbols[group]


def _step_without_kernel(group: Function) -> Alias | Join | None:
    """Of a group whose results are in memory already (:class:`ShareMemory`, FuseOps for reshapes)."""
    if group.attrs.get("joined"):
        return Join()
    starts = group.attrs.get("starts", (0,) if group.attrs.get("reshape_only") else ())
    return Alias(starts) if starts else None


def _check_of(group: Function) -> str:
    """What the executor raises where the group's result, a check, is not 0."""
    body = group.body
    return (
        body.op.message(body.args[0].tensor_type) if isinstance(body, Call) and isinstance(body.op, OutOfRange) else ""
    )


def _group_name(group: Function) -> str:
    return str(group.attrs.get("name", "fused"))


def _host_function(call: Call) -> Function:
    """The call over fresh variables, one per argument, so that it stands alone."""
    assert isinstance(call.op, Op)
    args = [Var(f"a{i}", arg.type) for i, arg in enumerate(call.args)]
    return Function(args, Call(call.op, args, span=call.span), span=call.span)


def read_program(main: Function) -> Program:
    """The executable graph of ``main`` as FuseOps leaves it (groups are called functions, host calls plain calls)."""
    return _Reader().read(main)


def without_kernels(program: Program, symbols: Collection[str]) -> Program:
    """The program with the nodes of those kernels as host calls."""
    if not symbols:
        return program
    nodes = [replace(n, step=HostStep()) if n.func in symbols else n for n in program.graph.nodes]
    known = ((n, program.groups[n.func]) for n in program.graph.nodes if n.func in symbols)
    hosts = {n.name: Function(g.params, g.body, {"symbol": n.func}, span=n.spans) for n, g in known}
    groups = {symbol: group for symbol, group in program.groups.items() if symbol not in symbols}
    graph = Graph(tuple(nodes), program.graph.heads)
    return replace(program, graph=graph, groups=groups, hosts={**program.hosts, **hosts})


def with_library_calls(program: Program, symbols: Collection[str]) -> Program:
    """The program with calls of a library in the place of those kernels."""
    nodes = [replace(n, step=LibraryCall(n.func)) if n.func in symbols else n for n in program.graph.nodes]
    return replace(program, graph=Graph(tuple(nodes), program.graph.heads))


# --- what kernels cost ----------------------------------------------------------------------------------------


def group_cost(group: Function, machine: MachineModel, cycles: float = 0.0) -> Cost:
    """The cost of a group: with the ``cycles`` that a template predicts, else as the machine has them for so many
    operations."""
    inside = calls(group.body)
    flops = sum(map(call_flops, inside))
    results = tensor_fields(group.ret_type)
    nbytes = sum(_closed(t).nbytes for p in group.params for t in tensor_fields(p.type))
    nbytes += sum(_closed(t).nbytes for t in results)
    if any(isinstance(c.op, Op) and c.op.looks_up for c in inside):
        nbytes -= sum(_not_read(p, inside) for p in group.params)
    return Cost(flops, nbytes, cycles or machine.cycles(flops, results[0].dtype if results else "float32"))


def _not_read(param: Var, inside: Sequence[Call]) -> int:
    """Bytes of a parameter that a group does not read: a table that is only looked up in, but for what is found."""
    whole = sum(_closed(t).nbytes for t in tensor_fields(param.type))
    users = [call for call in inside if any(arg is param for arg in call.args)]
    if not all(isinstance(c.op, Op) and c.op.looks_up and not any(arg is param for arg in c.args[1:]) for c in users):
        return 0
    found = sum(_closed(t).nbytes for call in users for t in tensor_fields(call.type))
    return max(0, whole - found) if users else 0


def call_flops(call: Call) -> float:
    """Operations of one call, as its operator counts them."""
    assert isinstance(call.op, Op)
    operands, results = ([t for node in nodes for t in tensor_fields(node.type)] for nodes in (call.args, (call,)))
    return call.op.flops([*map(_closed, operands)], tuple(map(_closed, results)))


_TYPICAL = 32
"""What a symbol is taken for where costs are predicted."""


def _closed(type_: TensorType) -> TensorType:
    found = type_ if type_.is_static else closed(type_, _TYPICAL)
    assert isinstance(found, TensorType)
    return found


def _inputs(group: Function) -> list[TensorType]:
    return [t for p in group.params for t in tensor_fields(p.type)]


def group_metadata(group: Function, machine: MachineModel, cycles: float) -> dict[str, Any]:
    """The kernel's signature: types of its ``inputs`` and ``results``.  And ``flops``, ``bytes``, ``cycles`` as in
    :class:`Cost`, ``seconds`` on one thread, ``dtype`` of the first result, ``ops``, ``spans``;
    ``in_place`` as :attr:`Op.in_place` where it may be."""
    inside, results, cost = calls(group.body), tensor_fields(group.ret_type), group_cost(group, machine, cycles)
    changed = inside[0].op.in_place if len(inside) == 1 and isinstance(inside[0].op, Op) else None
    return {
        "inputs": [str(t) for t in _inputs(group)],
        "results": [str(t) for t in results],
        "flops": cost.flops,
        "bytes": cost.nbytes,
        "cycles": cost.cycles,
        "seconds": cost.seconds(machine.rates(1)),
        "dtype": results[0].dtype if results else "",
        "ops": [c.op.name for c in inside if isinstance(c.op, Op)],
        "spans": list(dict.fromkeys(s for c in inside for s in c.span) or group.span),
        **({} if changed is None else {"in_place": changed}),
    }


# --- what runs in Python --------------------------------------------------------------------------------------


class HostCallWarning(UserWarning):
    """Part of a model runs in Python instead of in compiled kernels."""


@door
def is_stage(host: Host) -> bool:
    """True if a call is of what follows from sizes that the data decide."""
    return False


@door
def is_native(host: Host, target: str) -> bool:
    """True if control flow over known shapes runs without Python."""
    return False


def host_calls_of(
    program: Program, hosts: Mapping[str, Host], refused: Mapping[str, str], target: str
) -> tuple[HostCall, ...]:
    """The host calls of a program and, after each, those inside its branches; not what runs without Python all the
    same."""
    found: list[HostCall] = []
    for node in program.graph.nodes:
        if isinstance(node.step, HostStep):
            host = hosts[node.name]
            inside = [call for branch in host.branches.values() for call in branch.host_calls]
            if is_native(host, target) or (inside and is_stage(host)):
                found += inside
                continue
            reason = refused.get(str(host.function.attrs.get("symbol"))) or _reason(host.function)
            found.append(HostCall(operators_of(host.function), reason, node.name, node.spans))
            decide("placement", found[-1].op, Declined(f"no kernel, since {reason}"), node.spans)
            found += inside
    return tuple(found)


def _reason(function: Function) -> str:
    """The reason why a call stayed outside of the kernels."""
    types: list[Type] = [function.ret_type, *(p.type for p in function.params)]
    if branch_functions(function):
        return "control flow that depends on data; its branches are compiled"
    if not all(map(is_numeric, types)):
        return "values that only Python holds"
    if any(isinstance(call.op, Op) and call.op.draws for call in calls(function.body)):
        return DRAWS
    if not all(t.is_static for t in types):
        return "a shape that is known only when the model runs"
    asked = any(isinstance(call.op, Op) and call.op.hosted for call in calls(function.body))
    return ASKED if asked else "no compute rule"


DRAWS, ASKED = "it draws numbers at random", "nobody asks for a kernel of it"
"""Why an operator runs in Python of which ``strict`` asks for no kernel; of the second, nobody warns."""


def announce(calls: tuple[HostCall, ...], strict: bool) -> None:
    """Warn of host calls once, or refuse them."""
    found = [call for call in calls if call.reason != ASKED and (not strict or call.reason != DRAWS)]
    if not found:
        return
    lines = list(dict.fromkeys(str(call) for call in found))
    shown = [*lines[:8], *([f"... and {len(lines) - 8} more"] if len(lines) > 8 else [])]
    what = f"{len(found)} operator{'s' if len(found) > 1 else ''}"
    if strict:
        message = f"{what} would run in Python instead of in kernels"
        raise CompilerError(message, where=shown, hint="build with strict=False to allow it")
    message = f"{what} run{'s' if len(found) == 1 else ''} in Python instead of in kernels"
    warn("\n  | ".join([message, *shown]) + "\n  = hint: library.host_calls lists them", HostCallWarning)
