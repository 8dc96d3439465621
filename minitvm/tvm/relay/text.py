"""Modules and expressions as Relay's text, of version 0.0.5, which ``relay.fromtext`` reads and TVM reads, too.

    #[version = "0.0.5"]
    def @main(%x: Tensor[(3), float32] /* ty=Tensor[(3), float32] */) -> Tensor[(3), float32] {
      %0 = multiply(%x, 2f /* ty=float32 */) /* ty=Tensor[(3), float32] */;
      add(%0, meta[relay.Constant][0] /* ty=Tensor[(3), float32] */) /* ty=Tensor[(3), float32] */
    }

Attributes come in the order of Relay's parameters, those at their defaults left out; constants that are no scalars
stand behind the module, in ``#[metadata]``.  :func:`install` makes this the text of all modules, for scripts of TVM's.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.ir.attributes import format_attribute, quote
from minitvm.ir.expr import Call, Constant, Expr, Function, GlobalVar, Module, Tuple, TupleGetItem, Var
from minitvm.ir.loop import dependency_order
from minitvm.ir.op import Op
from minitvm.ir.ops.control import If
from minitvm.ir.text import _Printer, _Scope, format_name
from minitvm.ir.types import FuncType, TensorType, TupleType, Type
from minitvm.ir.visitor import children, held_functions, substitute
from minitvm.runtime.param_dict import _save_array
from minitvm.scopes import nodes as scopes
from minitvm.scopes.groups import relays_attributes
from minitvm.scopes.nodes import Apply, Binding, Global, Let, free_vars
from minitvm.tvm.relay import forms, spelled, typed_first
from minitvm.tvm.relay.operators import signatures

VERSION = '#[version = "0.0.5"]\n'
_SUFFIX = {"float32": "f", "float64": "f64", "float16": "f16", "int32": "", "int64": "i64", "int16": "i16", "bool": ""}
"""Scalars that stand in the text."""
_WRITTEN = {"nn.dense": ("units",), "nn.conv2d": ("padding",), "nn.conv2d_transpose": ("padding",)}
_WRITTEN |= dict.fromkeys((f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3)), ("pool_size",))
"""Attributes that Relay has no default for, or that its functions write in another form than the default."""


def astext(node: Any, show_meta_data: bool = True) -> str:
    """Relay's text; without ``show_meta_data`` large constants are left out."""
    if not isinstance(node, (Module, Expr)):  # the name of a function or of an operator
        return VERSION + (f"@{format_name(node)}" if isinstance(node, GlobalVar) else str(node.name))
    printer = _RelayText(node if isinstance(node, Module) else None, isinstance(node, (Module, Function)))
    text = printer.module_text() if isinstance(node, Module) else printer.expr_text(node)
    return VERSION + text + (printer.metadata() if show_meta_data and printer.held else "")


def type_text(type_: Type | None) -> str:
    """A type as Relay writes it: ``Tensor[(3), float32]``, a scalar by its dtype."""
    if isinstance(type_, TensorType):
        shape = ", ".join(map(str, type_.shape))
        return f"Tensor[({shape}), {type_.dtype}]" if type_.shape else type_.dtype
    if isinstance(type_, TupleType):
        fields = ", ".join(map(type_text, type_.fields))
        return f"({fields}{',' if len(type_.fields) == 1 else ''})"
    if isinstance(type_, FuncType):
        return f"fn ({', '.join(map(type_text, type_.params))}) -> {type_text(type_.result)}"
    return str(type_)


def _number(value: Any, dtype: str) -> str:
    """A scalar in the fewest digits that give it back."""
    if dtype == "bool":
        return str(bool(value))
    if dtype.startswith("int"):
        return f"{int(value)}{_SUFFIX[dtype]}"
    kept = np.dtype(dtype).type(value)
    short = f"{float(kept):g}"
    return (short if np.dtype(dtype).type(short) == kept or kept != kept else str(kept)) + _SUFFIX[dtype]


def _attribute(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return (f"{value:g}" if float(f"{value:g}") == value else repr(float(value))) + "f"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_attribute, value))}]"
    return type_text(value) if isinstance(value, Type) else format_attribute(value)


def attributes_text(op: Op) -> list[str]:
    """``name=value`` for every attribute that Relay writes, in its order."""
    given, relay = op.attributes(), signatures().get(op.name)
    default = {a.name: a.default for a in relay.parameters.values()} if relay else {}
    order = sorted(given, key=lambda name: (name not in default, [*default, *given].index(name)))
    own = {f.name: f.default for f in dataclasses.fields(op)}
    written = {*_WRITTEN.get(op.name, ()), *(name for name, value in own.items() if value is dataclasses.MISSING)}
    kept = [n for n in order if n in written or not _same(given[n], default.get(n, own[n]))]
    return [f"{name}={_attribute(given[name])}" for name in kept]


def _same(value: Any, default: Any) -> bool:
    """True for a default, one number of which stands for all axes."""
    if isinstance(value, tuple) and isinstance(default, (tuple, list)) and value:
        return value == tuple(default) or (len(set(value)) == 1 and {*value} == {*default})
    if isinstance(value, tuple) and isinstance(default, int):
        return {*value} == {default}
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


class _Shared(_Scope):
    """A scope that counts bindings, and names variables, together with the scope around it, as Relay's do."""

    def __init__(self, indent: str, outer: _Scope | None = None) -> None:
        super().__init__(indent, outer)
        self.counts: list[int] = outer.counts if isinstance(outer, _Shared) else [0]
        self.used = outer.used if outer is not None else set()

    def bind_var(self, var: Var) -> str:
        if var not in self.labels:
            wanted = f"v{var.name}" if var.name[:1].isdigit() or not var.name else var.name
            name, count = wanted, 0
            while name in self.used:
                count += 1
                name = f"{wanted}{count}"
            self.used.add(name)
            self.labels[var] = "%" + format_name(name)
        return self.labels[var]

    def bind_number(self, expr: Expr) -> str:
        self.labels[expr] = f"%{self.counts[0]}"
        self.counts[0] += 1
        return self.labels[expr]


class _RelayText(_Printer):
    def __init__(self, module: Module | None, show_types: bool) -> None:
        super().__init__(module, show_meta_data=True, show_span=True)
        self.show_types = show_types
        self.held: dict[Constant, int] = {}

    def module_text(self) -> str:
        assert self.module is not None
        return "\n".join(
            f"def @{format_name(name)}{self.signature_and_body(function, _Shared('  '))}\n"
            for name, function in self.module.functions.items()
        )

    def expr_text(self, expr: Expr) -> str:
        scope = _Shared("")
        declared = [f"free_var {self.declare(v, scope)};" for v in free_vars(expr)]
        return "\n".join([*declared, *self.block(expr, scope)])

    def declare(self, var: Var, scope: _Scope) -> str:
        label, shown = scope.bind_var(var), type_text(var.checked_type)
        if var.checked_type is None:
            return label
        return f"{label}: {shown} /* ty={shown} */" if self.show_types else f"{label}: {shown}"

    def signature_and_body(self, function: Function, scope: _Scope) -> str:
        params = [self.declare(p, scope) for p in function.params]
        attrs = [f"{name}={_attribute(value)}" for name, value in relays_attributes(function).items()]
        known = function.body.checked_type is not None and self.show_types
        result = f" -> {type_text(function.body.checked_type)}" if known else ""
        lines = self.block(function.body, scope)
        return f"({', '.join([*params, *attrs])}){result} {{\n" + "\n".join(lines) + f"\n{scope.indent[:-2]}}}"

    def block(self, body: Expr, scope: _Scope) -> list[str]:
        """The lines of a body: a binding per node that is no name or constant, and per ``let``, then the result."""
        lines: list[str] = []
        order = _order(body, scope)
        last = body
        while isinstance(last, Let):
            last = last.body
        written = _written_once(order, last)
        values = {node.let.value for node in order if isinstance(node, Binding)}
        for node in order:
            if isinstance(node, Binding):
                lines.append(self.binding(node.let, scope))
            elif isinstance(node, Let):
                scope.labels[node] = self.name(node.body, scope) if node.body is not last else ""
            elif (node is last and node not in values) or node in written or self.is_name(node):
                continue
            elif not scope.label(node):
                text = self.node_text(node, scope)
                lines.append(f"{scope.indent}{scope.bind_number(node)} = {text}{self.comment(node)};")
        if scope.label(last):
            return [*lines, f"{scope.indent}{self.name(last, scope)}"]
        return [*lines, f"{scope.indent}{self.node_text(last, scope)}{self.comment(last)}"]

    def binding(self, let: Let, scope: _Scope) -> str:
        """``let %x: type = value;``"""
        label, type_ = scope.bind_var(let.var), let.var.checked_type
        shown = f": {type_text(type_)}" if type_ is not None else ""
        value = self.name(let.value, scope) if self.is_known(let.value, scope) else self.node_text(let.value, scope)
        return f"{scope.indent}let {label}{shown} = {value}{self.comment(let.value)};"

    def is_name(self, node: Expr) -> bool:
        return isinstance(node, (Var, Constant, Global)) or node in self.globals

    def is_known(self, node: Expr, scope: _Scope) -> bool:
        return self.is_name(node) or bool(scope.label(node))

    def comment(self, node: Expr) -> str:
        shown = self.show_types and node.checked_type is not None and not isinstance(node, (Var, Constant, Global))
        parts = [f"ty={type_text(node.checked_type)}"] if shown else []
        parts += [f"span={name.replace('*/', '* /')}:0:0" for name in node.span[:1]]
        return f" /* {' '.join(parts)} */" if parts and not isinstance(node, (Var, Constant)) else ""

    def node_text(self, node: Expr, scope: _Scope) -> str:
        if isinstance(node, TupleGetItem):
            return f"{self.name(node.tuple, scope)}.{node.index}"
        if isinstance(node, Function) and node not in self.globals:
            return f"fn {self.signature_and_body(node, _Shared(scope.indent + '  ', scope))}"
        if isinstance(node, Apply):
            args = ", ".join(self.name(arg, scope) for arg in node.args)
            return f"{self.name(node.op, scope)}({args})"
        if isinstance(node, scopes.If):
            return self.branches_text(self.name(node.cond, scope), node.parts[1:], scope)
        return super().node_text(node, scope)

    def call_text(self, call: Call, scope: _Scope) -> str:
        if isinstance(call.op, If):
            return self.choice_text(call, call.op, scope)
        args = [self.name(a, scope) for a in call.args]
        if isinstance(call.op, Function):
            return f"{self.name(call.op, scope)}({', '.join(args)})"
        if held_functions(call):
            return super().call_text(call, scope)
        return f"{call.op.name}({', '.join([*args, *attributes_text(call.op)])})"

    def choice_text(self, call: Call, op: If, scope: _Scope) -> str:
        """``if (...) { ... } else { ... }``, each branch over what it captures."""
        condition, *captured = call.args
        bodies = [
            substitute(branch.body, dict(zip(branch.params, captured, strict=True)))
            for branch in (op.then_branch, op.else_branch)
        ]
        return self.branches_text(self.name(condition, scope), bodies, scope)

    def branches_text(self, condition: str, branches: Sequence[Expr], scope: _Scope) -> str:
        inner = [_Shared(scope.indent + "  ", scope) for _ in branches]
        then, orelse = ("\n".join(self.block(*pair)) for pair in zip(branches, inner, strict=True))
        end = scope.indent
        return f"if ({condition}) {{\n{then}\n{end}}} else {{\n{orelse}\n{end}}}"

    def name(self, node: Expr, scope: _Scope) -> str:
        if isinstance(node, (TupleGetItem, Let)) and (label := scope.label(node)):
            return label
        if isinstance(node, Global):
            return f"@{format_name(node.name_hint)}"
        return super().name(node, scope)

    def constant_text(self, constant: Constant) -> str:
        value = constant.value
        shown = f" /* ty={type_text(constant.type)} */" if self.show_types else ""
        if value.ndim == 0 and value.dtype.name in _SUFFIX:
            return _number(value[()], value.dtype.name) + shown
        index = self.held.setdefault(constant, len(self.held))
        return f"meta[relay.Constant][{index}]{shown}"

    def metadata(self) -> str:
        """The constants, as TVM writes them: nodes in JSON, and their bytes."""
        count = len(self.held)
        nodes: list[dict[str, Any]] = [{"type_key": ""}, {"type_key": "Map", "keys": ["relay.Constant"], "data": [2]}]
        nodes.append({"type_key": "Array", "data": [3 + i for i in range(count)]})
        nodes += [
            {"type_key": "relay.Constant", "attrs": {"data": str(i), "span": "0", "virtual_device_": "0"}}
            for i in range(count)
        ]
        stored = [base64.b64encode(_save_array(c.value)).decode() for c in self.held]
        graph = {"root": 1, "nodes": nodes, "b64ndarrays": stored, "attrs": {"tvm_version": "0.14.0"}}
        return "\n#[metadata]\n" + json.dumps(graph, indent=2)


def _operands(node: Expr) -> tuple[Expr, ...]:
    """What is written before a node: arguments, then the functions that it calls or holds; of branches nothing."""
    if isinstance(node, Call):
        own = () if isinstance(node.op, If) else tuple(held_functions(node).values())
        return (*node.args, *own)
    if isinstance(node, scopes.If):
        return (node.cond,)
    return () if isinstance(node, Function) else children(node)


def _order(body: Expr, scope: _Scope) -> list[Any]:
    """What is written for a body, in order; a :class:`Binding` behind the value of a ``let``."""
    bindings: dict[Let, Binding] = {}

    def below(node: Any) -> tuple[Any, ...]:
        if isinstance(node, Binding):
            return (node.let.value,)
        if scope.label(node):
            return ()
        if isinstance(node, Let):
            return bindings.setdefault(node, Binding(node)), node.body
        return _operands(node)

    return dependency_order((body,), below)


def _written_once(order: list[Any], last: Expr) -> set[Expr]:
    """Values of ``let`` that nothing else in the body uses: they have no other name."""
    values = Counter(node.let.value for node in order if isinstance(node, Binding))
    others = (child for node in order if not isinstance(node, (Binding, Let)) for child in _operands(node))
    used = {*others, *(node.body for node in order if isinstance(node, Let)), last}
    return {value for value, count in values.items() if count == 1 and value not in used}


def install() -> None:
    """Makes Relay's text that of modules and expressions, for ``str`` and ``print``, too; constants without a dtype
    float32 and int32 where numpy has 64 bits, and ``SimplifyExpr`` as fast as Relay's: for programs that are TVM's."""

    def text(self: Any, show_meta_data: bool = True, annotate: Any = None) -> str:
        return astext(self, show_meta_data)

    for kind, name in ((Module, "astext"), (Expr, "astext")):
        setattr(kind, name, text)
    typed_first.install()
    spelled.install()
    forms.NARROWER.update(int64="int32", float64="float32")
