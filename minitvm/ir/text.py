"""Modules as text that reads like Relay's ``astext`` and parses back (``minitvm.ir.parser``).

    def @main(%data: Tensor[(1, 8), float32], %w: Tensor[(4, 8), float32]) -> Tensor[(1, 4), float32] {
      %0 = nn.dense(%data, %w) /* ty=Tensor[(1, 4), float32] */;
      maximum(%0, 0f) /* ty=Tensor[(1, 4), float32] */
    }

Scalars carry their dtype: ``2f`` float32, ``2f64``, ``3`` int64, ``3i32``, ``True`` (``attributes.format_number``).
Constants of up to 16 elements are written out, ``const([1, 2], float32)``; larger ones are named,
``meta["conv1.weight", Tensor[(64, 3, 7, 7), float32]]``, and kept beside the text (:func:`module_constants`,
:func:`save_constants`), or left out, ``const(..., Tensor[(64, 3, 7, 7), float32])``, with ``show_meta_data=False``.
A function that is called (a fused group) or that is an attribute (a branch) is bound to a name where it is first used;
a function of the module is called as ``@name``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from minitvm.errors import IRError
from minitvm.ir.attributes import format_attribute, format_number, print_attributes, quote
from minitvm.ir.dtypes import STORED, is_float
from minitvm.ir.node import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from minitvm.ir.visitor import children, free_vars, held_functions, post_order

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[./][A-Za-z_][A-Za-z0-9_]*)*\Z")
"""Names that need no quotes behind ``%`` and ``@``."""

MAX_INLINE_ELEMENTS = 16
"""Constants with more elements are named instead of written out."""


class Functions(Protocol):
    """A module, as far as its text is concerned."""

    @property
    def functions(self) -> Mapping[str, Function]: ...


def print_module(module: Functions, show_meta_data: bool = True, show_span: bool = False) -> str:
    """The module as text.

    ``show_meta_data=False`` leaves out the values of large constants: shorter, but it cannot be parsed back.
    ``show_span=True`` adds the names of the model's nodes: ``/* from "conv1" */``.
    """
    return _Printer(module, show_meta_data, show_span).module_text()


def print_expr(expr: Expr, show_meta_data: bool = False, show_span: bool = False) -> str:
    """An expression as text: its free variables (``free_var %x: ...;``), bindings, and last itself."""
    return _Printer(None, show_meta_data, show_span).expr_text(expr)


def module_constants(module: Functions) -> dict[str, np.ndarray]:
    """The arrays that the module's text refers to, by the names it gives them."""
    printer = _Printer(module, True, False)
    printer.module_text()
    return printer.constants


def save_constants(path: str | Path, constants: dict[str, np.ndarray]) -> None:
    """Write :func:`module_constants` as an ``.npz`` file; any name is allowed."""
    arrays: dict[str, Any] = {f"array{i}": value for i, value in enumerate(constants.values())}
    with Path(path).open("wb") as file:
        dtypes = json.dumps([value.dtype.name for value in constants.values()])  # numpy's format has not all of them
        np.savez(file, names=np.array(json.dumps(list(constants))), dtypes=np.array(dtypes), **arrays)


def load_constants(path: str | Path) -> dict[str, np.ndarray]:
    """Read what :func:`save_constants` wrote; :class:`IRError` where it is something else."""
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            names = json.loads(str(file["names"]))
            dtypes = json.loads(str(file["dtypes"]))
            return {name: file[f"array{i}"].view(dtypes[i]) for i, name in enumerate(names)}
    except Exception as error:  # what zipfile, zlib, numpy and its tokenizer make of damaged bytes is no short list
        raise IRError(f"{path}: not a file of constants: {error}", hint="write one with save_constants()") from error


# --- pieces ---------------------------------------------------------------------------------------------------


def format_name(name: str) -> str:
    """``name`` as it stands behind ``%`` or ``@``: quoted where it is not plain."""
    return name if PLAIN_NAME.match(name) else quote(name)


def _is_plain_nan(value: np.ndarray) -> bool:
    """True unless there is a NaN whose bits ``nan`` would not restore."""
    nans = value[np.isnan(value)]
    return bool(nans.tobytes() == np.full_like(nans, np.nan).tobytes())


def is_inline(constant: Constant) -> bool:
    """True for a constant that is written out in the text."""
    value = constant.value
    return value.size <= MAX_INLINE_ELEMENTS and (not is_float(value.dtype.name) or _is_plain_nan(value))


def _nested(value: np.ndarray) -> str:
    if value.ndim == 0:
        return format_number(value[()], value.dtype.name, suffix=False)
    return f"[{', '.join(_nested(part) for part in value)}]"


def fresh_name(wanted: str, used: set[str]) -> str:
    """``wanted``, or ``wanted_1``, ``wanted_2``, ... where it is taken; marks it as used."""
    name, count = wanted, 0
    while name in used:
        count += 1
        name = f"{wanted}_{count}"
    used.add(name)
    return name


# --- the printer ----------------------------------------------------------------------------------------------


class _Scope:
    """The names inside one function.  Functions are closed, so an inner one may use a name again."""

    def __init__(self, indent: str, outer: _Scope | None = None) -> None:
        self.indent = indent
        self.outer = outer
        self.labels: dict[Expr, str] = {}
        self.used: set[str] = set()
        self.bound = 0

    def bind_var(self, var: Var) -> str:
        if var not in self.labels:
            self.labels[var] = "%" + format_name(fresh_name(var.name, self.used))
        return self.labels[var]

    def bind_number(self, expr: Expr) -> str:
        self.labels[expr] = f"%{self.bound}"
        self.bound += 1
        return self.labels[expr]

    def label(self, expr: Expr) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            if expr in scope.labels:
                return scope.labels[expr]
            scope = scope.outer
        return None


class _Printer:
    def __init__(self, module: Functions | None, show_meta_data: bool, show_span: bool) -> None:
        self.module = module
        self.show_meta_data = show_meta_data
        self.show_span = show_span
        self.constants: dict[str, np.ndarray] = {}
        self.constant_names: dict[Constant, str] = {}
        self.used_constant_names: set[str] = set()
        functions = module.functions if module is not None else {}
        self.globals: dict[Expr, str] = {f: "@" + format_name(name) for name, f in functions.items()}

    def module_text(self) -> str:
        assert self.module is not None
        parts = [
            f"def @{format_name(name)}{self.signature_and_body(function, _Scope('  '))}\n"
            for name, function in self.module.functions.items()
        ]
        return "\n".join(parts)

    def expr_text(self, expr: Expr) -> str:
        scope = _Scope("")
        free = free_vars(expr)
        declared = [f"free_var {self.declare(v, scope)};" for v in free]
        return "\n".join([*declared, *self.block(expr, scope)])

    def declare(self, var: Var, scope: _Scope) -> str:
        label = scope.bind_var(var)
        return label if var.checked_type is None else f"{label}: {var.checked_type}"

    def signature_and_body(self, function: Function, scope: _Scope) -> str:
        params = [self.declare(p, scope) for p in function.params]
        attrs = [f"{name}={format_attribute(value)}" for name, value in function.attrs.items()]
        result = "" if function.body.checked_type is None else f" -> {function.body.checked_type}"
        lines = self.block(function.body, scope)
        return f"({', '.join([*params, *attrs])}){result} {{\n" + "\n".join(lines) + f"\n{scope.indent[:-2]}}}"

    def block(self, body: Expr, scope: _Scope) -> list[str]:
        """The lines of a body: a binding per call, tuple and function, then the result."""
        lines = []
        for node in post_order(body, operands=operands):
            if node is body or isinstance(node, (Var, Constant, TupleGetItem)) or node in self.globals:
                continue
            text = self.node_text(node, scope)
            lines.append(f"{scope.indent}{scope.bind_number(node)} = {text}{self.comment(node)};")
        return [*lines, f"{scope.indent}{self.node_text(body, scope)}{self.comment(body)}"]

    def comment(self, node: Expr) -> str:
        text = ""
        if isinstance(node, (Call, Tuple, TupleGetItem)) and node.checked_type is not None:
            text = f" /* ty={node.checked_type} */"
        if self.show_span and node.span:
            origin = ", ".join(map(quote, node.span)).replace("*/", "* /")
            text += f" /* from {origin} */"
        return text

    def node_text(self, node: Expr, scope: _Scope) -> str:
        """A node spelled out over the names of its operands."""
        if isinstance(node, Call):
            return self.call_text(node, scope)
        if isinstance(node, Tuple):
            fields = ", ".join(self.name(f, scope) for f in node.fields)
            return f"({fields}{',' if len(node.fields) == 1 else ''})"
        if isinstance(node, Function) and node not in self.globals:
            return f"fn {self.signature_and_body(node, _Scope(scope.indent + '  ', scope))}"
        return self.name(node, scope)

    def call_text(self, call: Call, scope: _Scope) -> str:
        args = [self.name(a, scope) for a in call.args]
        if isinstance(call.op, Function):
            return f"{self.name(call.op, scope)}({', '.join(args)})"
        attributes = print_attributes(call.op, lambda v: self.name(v, scope) if isinstance(v, Function) else str(v))
        return f"{call.op.name}({', '.join([*args, *attributes])})"

    def name(self, node: Expr, scope: _Scope) -> str:
        """How an operand is referred to: ``%0``, ``%0.1``, ``%x``, ``@f``, or a constant's value."""
        fields = ""
        while isinstance(node, TupleGetItem):
            fields = f".{node.index}{fields}"
            node = node.tuple
        if isinstance(node, Constant):
            return self.constant_text(node)
        label = self.globals.get(node) or scope.label(node)
        if label is None:
            assert isinstance(node, Var), node
            label = scope.bind_var(node)  # bound nowhere: `verify` reports it, the text still shows it
        return label + fields

    def constant_text(self, constant: Constant) -> str:
        value = constant.value
        named = "" if constant.name is None else f", name={quote(constant.name)}"
        if not is_inline(constant):
            if not self.show_meta_data:
                return f"const(..., {constant.type}{named})"
            return f"meta[{quote(self.constant_name(constant))}, {constant.type}]"
        if value.ndim == 0 and value.dtype.name not in STORED:
            return format_number(value[()], value.dtype.name)
        return f"const({_nested(value)}, {value.dtype.name if value.size else constant.type}{named})"

    def constant_name(self, constant: Constant) -> str:
        if constant not in self.constant_names:
            wanted = constant.name if constant.name is not None else f"c{len(self.constant_names)}"
            name = fresh_name(wanted, self.used_constant_names)
            self.constant_names[constant] = name
            self.constants[name] = constant.value
        return self.constant_names[constant]


def operands(node: Expr) -> tuple[Expr, ...]:
    """What must be named before ``node`` can be written: operands, and the functions that a call refers to."""
    if isinstance(node, Call):
        return (*held_functions(node).values(), *node.args)
    return () if isinstance(node, Function) else children(node)
