"""What scripts register for operators, as in Relay: functions that AlterOpLayout, Legalize and ConvertLayout ask first.

    @relay.op.register_alter_op_layout("nn.conv2d")
    def in_blocks(attrs, inputs, tinfos, out_type):
        return relay.nn.conv2d(*inputs, **{**attrs, "data_layout": "NCHW16c", "kernel_layout": "OIHW16i16o"})

A function gives an expression over ``inputs``, or ``None``, which leaves the call as it is.  Layouts that the
expression's outermost operator has other than the call are what its operands are moved to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from minitvm.driver import backend_for
from minitvm.errors import PassError, TypeInferenceError, did_you_mean, user_code
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Expr, Function, Module, Var, describe_call
from minitvm.ir.layout import Layout
from minitvm.ir.op import OPS, Op
from minitvm.ir.ops.transform import LayoutTransform
from minitvm.ir.relayout import Carry, Move, Placement, Site
from minitvm.ir.types import Type
from minitvm.ir.visitor import as_function, children, post_order, rewrite, substitute
from minitvm.passes import alter_op_layout, call_libraries, canonicalize, convert_layout, share_rows
from minitvm.passes.manager import FunctionPass, Pass, PassContext
from minitvm.passes.places import PLACED, Asked, LibraryOf, in_pipeline
from minitvm.target import MachineModel

ALTER, LEGALIZE, CONVERT = "FTVMAlterOpLayout", "FTVMLegalize", "FTVMConvertOpLayout"
_KINDS = ("llvm", "cuda", "interp")

_values: dict[tuple[str, str], list[tuple[int, Any]]] = {}
"""By operator and attribute, what was registered, and how strongly."""


def attribute(op_name: str, attr_name: str) -> Any:
    """What was registered for an operator most strongly, and last; ``None`` where nothing was."""
    found = _values.get((op_name, attr_name), [])
    return max(found, key=lambda entry: entry[0])[1] if found else None


def set_attribute(op_name: str, attr_name: str, value: Any, level: int = 10) -> None:
    """Registers something for an operator; :class:`TypeInferenceError` where there is no such operator."""
    if op_name not in OPS:
        raise TypeInferenceError(f"there is no operator {op_name!r}", hint=did_you_mean(op_name, OPS, str))
    if attr_name in (ALTER, LEGALIZE, CONVERT) and not callable(value):
        raise PassError(f"{attr_name} of {op_name} is {value!r}, no function", hint="f(attrs, inputs, types)")
    _values.setdefault((op_name, attr_name), []).insert(0, (level, value))
    _propose(op_name)


def reset_attribute(op_name: str, attr_name: str) -> None:
    """Forgets what was registered for an operator."""
    _values.pop((op_name, attr_name), None)
    _propose(op_name)


_own: dict[tuple[str, type[Op]], Any] = {}
"""What operators ask for by themselves that something registered is asked in place of."""


def _propose(name: str) -> None:
    """Has AlterOpLayout ask what is registered for an operator, on every kind of target, or the operator itself; and
    builds, whether there is anything to legalize."""
    function = attribute(name, ALTER)
    for kind in _KINDS:
        key, table = (kind, OPS[name]), alter_op_layout.PROPOSALS
        if getattr(table.get(key), "func", None) is not _altered:
            _own[key] = table.get(key)
        ask = _own[key] if function is None else partial(_altered, function)
        table.update({key: ask} if ask else {})
        if ask is None:
            table.pop(key, None)
    PLACED.pop(f"{__name__}.{_legalized.__qualname__}", None)
    if any(attr_name == LEGALIZE and found for (_, attr_name), found in _values.items()):
        in_pipeline(before="Legalize")(_legalized)


class TempOpAttr:
    """``with TempOpAttr("nn.conv2d", "FTVMAlterOpLayout", function):`` registers something for the time of a block."""

    def __init__(self, op_name: str, attr_key: str, attr_value: Any) -> None:
        self.key, self.value = (op_name, attr_key), attr_value

    def __enter__(self) -> TempOpAttr:
        self.before = _values.get(self.key, [])
        _values[self.key] = []
        set_attribute(*self.key, self.value)
        return self

    def __exit__(self, *_: object) -> None:
        _values[self.key] = self.before
        _propose(self.key[0])


def _register(attr_name: str, op_name: str, function: Any = None, level: int = 10) -> Any:
    """``register(op_name, function)``, or as a decorator ``@register(op_name)``."""
    if function is None:
        return partial(_register, attr_name, op_name, level=level)
    set_attribute(op_name, attr_name, function, level)
    return function


register_alter_op_layout, register_legalize = partial(_register, ALTER), partial(_register, LEGALIZE)
register_convert_op_layout = partial(_register, CONVERT)


# --- layouts ----------------------------------------------------------------------------------------------------


def _altered(function: Any, site: Site, _: Any) -> Placement | Declined:
    return placed(site, lambda op, inputs: function(op, inputs, _types(site.call), site.call.type))


def _types(call: Call) -> list[Type]:
    return [arg.type for arg in call.args]


def placed(site: Site, ask: Callable[[Op, list[Any]], Any]) -> Placement | Declined:
    """The placement that an expression over a call's inputs means.

    The inputs have no types there, since they come in the layouts that the outermost operator of the expression says.
    """
    inputs = [Var(f"input{i}") for i in range(len(site.call.args))]
    made = ask(site.op, list(inputs))
    if made is None:
        return Declined("what is registered for it leaves it")
    if not isinstance(made, Expr):
        raise PassError(f"what is registered for {site.op.name} gave a {type(made).__name__}, no expression")
    if not isinstance(made, Call) or not isinstance(made.op, Op):
        return Placement((None,) * len(inputs), None, lambda operands: _over(made, inputs, operands))
    *moves, result = _moves(site.op, made.op, len(made.args))
    uses = [child for node in post_order(made) for child in children(node)]
    direct = {a: m for a, m in zip(made.args, moves, strict=True) if isinstance(a, Var) and uses.count(a) == 1}
    carries: tuple[Carry, ...] = tuple(direct.get(i) for i in inputs)

    def build(operands: Sequence[Expr]) -> Expr:
        found = [_over(arg, inputs, operands) for arg in made.args]
        kept = [a if arg in direct else _moved(a, m) for arg, a, m in zip(made.args, found, moves, strict=True)]
        return Call(made.op, kept, span=site.call.span)

    return Placement(carries, result, build)


def _over(expr: Expr, inputs: Sequence[Expr], operands: Sequence[Expr]) -> Expr:
    return substitute(expr, dict(zip(inputs, operands, strict=True)))


def _moved(expr: Expr, move: Move | None) -> Expr:
    """An operand in the layout that it is wanted in; as it is where it comes so."""
    if move is None or expr.tensor_type.rank != move.old.rank:
        return expr
    return Call(LayoutTransform(str(move.old), str(move.new)), (expr,))


def _moves(old: Op, new: Op, count: int) -> list[Move | None]:
    """For each operand of ``new``, and last for its result, how its layout differs from that of ``old``."""
    before, after = (op.attributes() for op in (old, new))
    moves: list[Move | None] = [None] * (count + 1)
    names = next((n for n in (("data_layout", "kernel_layout"), ("layout",)) if n[0] in before and n[0] in after), ())
    for i, name in enumerate(names[:count]):
        moves[i] = _move(before[name], after[name])
    if "weight_layout" in after and "weight_layout" not in before and count > 1:
        moves[1] = _move("NC" if before.get("transpose_b", True) else "CN", after["weight_layout"])
    if names:
        results = [a.get("out_layout") or a[names[0]] for a in (before, after)]
        moves[-1] = _move(*results)
    return moves


def _move(old: str, new: str) -> Move | None:
    return None if Layout(old) == Layout(new) else Move.of(old, new)


class _AlwaysTransforms(alter_op_layout.LayoutRewriter):
    """Moves by ``layout_transform``, as Relay does, where ours is a reshape because the bytes stay where they are."""

    def _move(self, expr: Expr, src: Layout, dst: Layout) -> Expr:
        if src == dst:
            return expr
        key = (expr, src, dst)
        if key not in self.moved:
            self.moved[key] = Call(LayoutTransform(str(src), str(dst)), (expr,), span=expr.span or None)
        return self.moved[key]


class _ConvertLayout(convert_layout.ConvertLayout):
    def __init__(self, desired: Mapping[str, Sequence[str]]) -> None:
        super().__init__(desired)
        self.info = convert_layout.ConvertLayout.info

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return _AlwaysTransforms(self.info.name, partial(_converted, self.desired, self._propose)).run(function)


class _AlterOpLayout(alter_op_layout.AlterOpLayout):
    def __init__(self, machine: MachineModel, kind: str = "llvm") -> None:
        super().__init__(machine, kind)
        self.info = alter_op_layout.AlterOpLayout.info

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return _AlwaysTransforms(self.info.name, self._ask).run(function)

    def _ask(self, site: Site) -> Placement | Declined | None:
        ask = alter_op_layout.PROPOSALS.get((self.kind, type(site.op)))
        if ask is None:
            return None
        with user_code(ask, f"layout proposal of {site.op.name}", partial(describe_call, site.call)):
            return ask(site, self.machine)


def ConvertLayout(desired_layouts: Mapping[str, Sequence[str]]) -> Pass:
    """Relay's: asks what is registered for an operator first."""
    return _ConvertLayout(desired_layouts)


def _converted(desired: Mapping[str, Sequence[str]], own: Any, site: Site) -> Placement | Declined | None:
    function, wanted = attribute(site.op.name, CONVERT), desired.get(site.op.name)
    if function is None or wanted is None:
        found: Placement | Declined | None = own(site)
        return found
    with user_code(function, f"what is registered for {site.op.name}", partial(describe_call, site.call)):
        return placed(site, lambda op, inputs: function(op, inputs, _types(site.call), list(wanted)))


# --- legalize ---------------------------------------------------------------------------------------------------


class LegalizeRegistered(FunctionPass, opt_level=1):
    """Calls of operators for which :func:`register_legalize` has a function become what it gives; of others, with
    ``own``, what minitvm's :class:`minitvm.passes.Legalize` makes of them."""

    def __init__(self, attr_name: str = LEGALIZE, own: bool = False) -> None:
        self.attr_name, self.own = attr_name, own

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        made = as_function(rewrite(function, lambda _, new: self._visit(new)))
        return canonicalize.Legalize().transform_function(made, module, context) if self.own else made

    def _visit(self, node: Expr) -> Expr:
        ask = attribute(node.op.name, self.attr_name) if isinstance(node, Call) and isinstance(node.op, Op) else None
        if ask is None or not isinstance(node, Call) or not isinstance(node.op, Op):
            return node
        with user_code(ask, f"what is registered for {node.op.name}", partial(describe_call, node)):
            made = ask(node.op, list(node.args), [*_types(node), node.type])
        if made is not None and not isinstance(made, Expr):
            raise PassError(f"what is registered for {node.op.name} gave a {type(made).__name__}, no expression")
        return node if made is None else made


def Legalize(legalize_map_attr_name: str = LEGALIZE) -> Pass:
    """Relay's: what is registered for operators; then minitvm's own."""
    return LegalizeRegistered(legalize_map_attr_name, own=legalize_map_attr_name == LEGALIZE)


def _legalized(asked: Asked) -> Iterable[Pass]:
    return [LegalizeRegistered()]


# --- passes for a target ----------------------------------------------------------------------------------------


def AlterOpLayout(machine: MachineModel | None = None, kind: str | None = None, **options: Any) -> Pass:
    """Relay's: for the target that was entered, or this machine, unless one is named."""
    backend = backend_for(None, None) if machine is None else None
    found = backend.machine if backend else machine
    assert found is not None
    kind = kind or (backend.schedules if backend else "llvm")
    return alter_op_layout.AlterOpLayout(found, kind, **options) if options else _AlterOpLayout(found, kind)


def ShareRows(machine: MachineModel | None = None) -> Pass:
    """The pass for the target that was entered, or this machine, unless one is given."""
    return share_rows.ShareRows(machine or backend_for(None, None).machine)


def CallLibraries(library_of: LibraryOf | None = None) -> Pass:
    """The pass by libraries of the target that was entered, as ``llvm -libs=cblas``, unless a choice is given."""
    backend = backend_for(None, None)
    return call_libraries.CallLibraries(library_of or (backend.library_of if backend.target.libs else _no_library))


def _no_library(_: Call) -> None:
    """Of a target that names none."""
