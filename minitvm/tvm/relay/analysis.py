"""Relay's ``analysis``: what one asks of a graph."""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from minitvm.errors import IRError, MiniTVMError
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import Op
from minitvm.ir.ops.control import If as Choice
from minitvm.ir.types import FuncType, TensorType, leaves
from minitvm.ir.verify import verify
from minitvm.ir.visitor import calls, children, post_order
from minitvm.passes import FuseOps, InferType
from minitvm.scopes import nodes as scopes
from minitvm.scopes.check import check_module
from minitvm.scopes.names import call_graph, calls_itself
from minitvm.scopes.nodes import everything, is_plain_module
from minitvm.scopes.normal import is_basic_blocks, names_itself
from minitvm.tvm import lacking

_PRODUCTS = ("nn.conv", "nn.dense", "nn.matmul", "nn.batch_matmul", "nn.contrib_conv")
"""How the names of operators begin whose multiplications are counted."""


def post_order_visit(expr: Expr | Module, fvisit: Callable[[Expr], Any] | None = None) -> list[Expr]:
    """``fvisit(node)`` for every node below ``expr`` and itself, operands before users; gives the nodes, too."""
    nodes = post_order(_root(expr))
    if fvisit is not None:
        for node in nodes:
            fvisit(node)
    return nodes


def all_vars(expr: Expr | Module) -> list[Var]:
    """Every variable, bound or free, in post-order; behind them parameters that nothing uses."""
    return [*dict.fromkeys([*scopes.all_vars(_root(expr)), *bound_vars(expr)])]


def bound_vars(expr: Expr | Module) -> list[Var]:
    """The parameters of functions, and the variables of ``let``, in ``expr``."""
    return scopes.bound_vars(_root(expr))


def well_formed(expr: Expr | Module) -> bool:
    """True if variables are bound once and used in their scopes, and :func:`minitvm.ir.verify.verify` finds nothing
    wrong in what has no scopes."""
    try:
        module = expr if isinstance(expr, Module) else Module.from_expr(expr)
        verify(module) if is_plain_module(module) else check_module(module)
    except MiniTVMError:
        return False
    return True


def list_op_freqs(mod: Module | Expr) -> dict[str, int]:
    """The number of calls of each operator in ``main``, fused groups included."""
    return dict(_counted(_root(mod)))


def _counted(root: Expr) -> Counter[str]:
    found: Counter[str] = Counter()
    for call in calls(root):
        found += _counted(call.op) if isinstance(call.op, Function) else Counter([call.op.name])
    return found


def _root(expr: Expr | Module) -> Expr:
    """What is asked about: of a module, ``main``."""
    return expr.main if isinstance(expr, Module) else expr


def free_vars(expr: Expr | Module) -> list[Var]:
    """The variables of ``expr`` (of a module's ``main``) that nothing binds, in post-order."""
    return scopes.free_vars(_root(expr))


def count_layers(expr: Expr | Module, valid_ops: Sequence[str] = ("nn.conv2d", "nn.dense")) -> int:
    """Calls of these operators on the longest way through ``expr``."""
    depth: dict[Expr, int] = {}
    root = _root(expr)
    below = root.body if isinstance(root, Function) else root
    for node in post_order(below):
        counted = isinstance(node, Call) and getattr(node.op, "name", "") in valid_ops
        depth[node] = counted + max((depth[n] for n in _operands(node)), default=0)
    return depth[below]


def _operands(node: Expr) -> tuple[Expr, ...]:
    return () if isinstance(node, Function) else children(node)


def get_total_mac_number(expr: Expr | Module) -> int:
    """Multiplications with an addition, of convolutions and matrix products."""
    return sum(
        _macs(call) for call in calls(_root(expr)) if isinstance(call.op, Op) and call.op.name.startswith(_PRODUCTS)
    )


def _macs(call: Call) -> int:
    assert isinstance(call.op, Op)
    return int(call.op.flops([arg.tensor_type for arg in call.args], [call.tensor_type])) // 2


def extract_fused_functions(mod: Module) -> dict[str, Function]:
    """The fused groups of a module, by name; of one that is not fused those that ``FuseOps`` makes."""
    groups = _groups(mod) or _groups(FuseOps(fuse_opt_level=2)(InferType()(mod)))
    return {str(group.attrs.get("name", f"group{i}")): group for i, group in enumerate(dict.fromkeys(groups))}


def _groups(mod: Module) -> list[Function]:
    return [call.op for call in calls(mod.main) if isinstance(call.op, Function) and call.op.is_primitive]


def extract_intermediate_expr(mod: Module, expr_id: int) -> Module:
    """What a module computes up to a call, tuple or part of one, by its number in post-order.

    :class:`IRError` where there are fewer.
    """
    found = [n for n in post_order(mod.main.body) if isinstance(n, (Call, Tuple, TupleGetItem))]
    if not 0 <= expr_id < len(found):
        raise IRError(f"there is no expression {expr_id}", hint=f"there are {len(found)}")
    return Module.from_expr(found[expr_id])


extract_intermdeiate_expr = extract_intermediate_expr
"""The name in v0.14."""


def list_fake_quantized_op_freqs(mod: Module | Expr) -> dict[str, int]:
    """The number of calls of each operator that lie between ``qnn.dequantize`` and ``qnn.quantize``."""
    quantized = _is_called("qnn.dequantize")
    found: dict[Expr, None] = {}
    for end in filter(_is_called("qnn.quantize"), post_order(_root(mod))):
        way = post_order(children(end)[0], operands=lambda n: () if quantized(n) else children(n))
        if any(map(quantized, way)) and not any(isinstance(n, Var) for n in way):
            found |= dict.fromkeys(n for n in way if isinstance(n, Call) and not quantized(n))
    return dict(Counter(n.op.name for n in found if isinstance(n, Call) and isinstance(n.op, Op)))


def _is_called(name: str) -> Callable[[Expr], bool]:
    return lambda node: isinstance(node, Call) and getattr(node.op, "name", "") == name


class Feature(IntEnum):
    """What a program may consist of."""

    fVar, fGlobalVar, fConstant, fTuple, fTupleGetItem, fFunction, fOp, fCall, fLet, fIf = range(10)
    fRefCreate, fRefRead, fRefWrite, fConstructor, fMatch, fGraph, fLetRec = range(10, 17)


_FEATURES: dict[type, Feature] = {
    Var: Feature.fVar,
    Constant: Feature.fConstant,
    Tuple: Feature.fTuple,
    TupleGetItem: Feature.fTupleGetItem,
    Function: Feature.fFunction,
    Call: Feature.fCall,
    scopes.Apply: Feature.fCall,
    scopes.Global: Feature.fGlobalVar,
    scopes.If: Feature.fIf,
    scopes.Let: Feature.fLet,
}


def detect_feature(a: Expr | Module, b: Expr | Module | None = None) -> set[Feature]:
    """What an expression, or all functions of a module, consist of; nodes that have several users are ``fGraph``."""
    given = [one for one in (a, b) if one is not None]
    nodes = everything(*(f for one in given for f in (one.functions.values() if isinstance(one, Module) else [one])))
    found = {_FEATURES[type(node)] for node in nodes}
    called = [node.op for node in nodes if isinstance(node, Call)]
    found |= {Feature.fIf if isinstance(op, Choice) else Feature.fOp for op in called if isinstance(op, Op)}
    found |= {Feature.fLetRec for node in nodes if isinstance(node, scopes.Let) and names_itself(node)}
    atoms = (Var, Constant, scopes.Global)
    users = Counter(child for node in nodes for child in children(node) if not isinstance(child, atoms))
    return found | ({Feature.fGraph} if any(count > 1 for count in users.values()) else set())


def check_basic_block_normal_form(expr: Expr) -> bool:
    """True if nothing but variables is used by several scopes, as ``ToBasicBlockNormalForm`` leaves it."""
    return is_basic_blocks(expr)


def check_constant(expr: Expr) -> bool:
    """True for a constant, and for a tuple of constants."""
    return all(map(check_constant, expr.fields)) if isinstance(expr, Tuple) else isinstance(expr, Constant)


def all_dtypes(expr: Expr | Module) -> set[str]:
    """The dtypes of all tensors in an expression, as far as types are known."""
    types = [node.checked_type for node in everything(_root(expr))]
    known = [one for one in types if one is not None and not isinstance(one, FuncType)]
    return {leaf.dtype for one in known for leaf in leaves(one) if isinstance(leaf, TensorType)}


def free_type_vars(expr: Any, mod: Module | None = None) -> list[Any]:
    """None: functions are made for types, and have no type parameters."""
    return []


bound_type_vars = all_type_vars = free_type_vars


class CallGraph:
    """The graph of who calls whom among a module's functions."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.called = call_graph(module)
        """By name, the functions that each refers to."""

    def __getitem__(self, name: str) -> list[str]:
        found = str(getattr(name, "name_hint", name))
        self.module[found]
        return self.called[found]

    def ref_count(self, name: str) -> int:
        """The number of functions that refer to one."""
        return sum(str(name) in called for called in self.called.values())

    def global_call_count(self, name: str) -> int:
        """The number of functions that one refers to."""
        return len(self[name])

    def is_recursive(self, name: str) -> bool:
        """True if a function calls itself, directly or not."""
        self[name]
        return calls_itself(self.called, str(name))

    def print_var(self, name: str) -> str:
        """A function and those that it refers to, in a line."""
        return f"@{name} -> {', '.join(f'@{one}' for one in self[name]) or 'nothing'}"

    def __str__(self) -> str:
        return "\n".join(map(self.print_var, self.called))


def __getattr__(name: str) -> Any:
    return lacking.attribute("relay.analysis", name)
