"""TVM's ``parser``: text to modules, ours and Relay's, which begins with ``#[version = "0.0.5"]``.

In Relay's text a whole number without a suffix is int32; large constants are ``meta[relay.Constant][0]``, and stand
behind the module in JSON, ``#[metadata]``; a text may be an expression.
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from minitvm.errors import ParseError
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Var
from minitvm.ir.op import OPS, Op
from minitvm.ir.parser import _Parser
from minitvm.ir.parser import parse_expr as _our_expr
from minitvm.ir.parser import parse_module as _our_module
from minitvm.ir.reader import _TOKEN as _OURS
from minitvm.ir.reader import Constants, Token, tokenize
from minitvm.ir.types import Type, accepts
from minitvm.runtime.param_dict import _load_array, _Reader
from minitvm.scopes.groups import as_groups
from minitvm.scopes.infer import infer_module
from minitvm.scopes.names import linked, named
from minitvm.scopes.nodes import Global, Let, applied, conditional, declared, is_plain_module

_VERSION = re.compile(r'\A\s*#\[version\s*=\s*"(\d+)\.(\d+)\.(\d+)"\]')
_NEWEST = (0, 0, 5)


_MORE = {"(?P<punct>": "(?P<punct>==|!=|<=|>=|<|>|/|", "(?P<suffix>": "(?P<suffix>i(?![0-9])|"}
_TOKEN = re.compile(functools.reduce(lambda text, one: text.replace(*one), _MORE.items(), _OURS.pattern), _OURS.flags)
"""Tokens, those of infix operators too, and ``3i``."""
_MARKS = re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*|\*/|(?<!\S)//[^\n]*'), re.compile(r"/\*|\*/")
"""Strings and comments, and what counts inside a comment."""
_BINARY = {"*": (4, "multiply"), "/": (4, "divide"), "+": (3, "add"), "-": (3, "subtract")}
_BINARY |= {"<": (2, "less"), ">": (2, "greater"), "<=": (2, "less_equal"), ">=": (2, "greater_equal")}
_BINARY |= {"==": (1, "equal"), "!=": (1, "not_equal")}
"""How closely each binds, and the operator that it stands for."""


def _uncommented(text: str) -> str:
    """The text with spaces for comments; block comments may lie in each other."""
    parts, depth, at = [], 0, 0
    while found := _MARKS[depth > 0].search(text, at):
        mark, between = found.group(), text[at : found.start()]
        parts.append(_blank(between) if depth else between)
        parts.append(_blank(mark) if depth or mark.startswith("/") else mark)
        depth = max(depth + (mark == "/*") - (mark == "*/"), 0)
        at = found.end()
    if depth:
        raise ParseError("a comment is not closed", hint="/* ... */")
    return "".join(parts) + text[at:]


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


class _RelayParser(_Parser):
    """Of Relay's text."""

    def __init__(self, text: str, init_meta_table: Any = None) -> None:
        code, _, meta = text.partition("#[metadata]")
        code = _uncommented(_VERSION.sub(lambda line: _blank(line.group()), code))
        super().__init__("", None)
        self.text, self.tokens = code, tokenize(code, _TOKEN)
        self.table = {"relay.Constant": _arrays(meta), **(init_meta_table or {})}
        self.given: set[str] = set()
        self.own: set[str] = set()
        self.beside: dict[str, Function] = {}
        self.whole = True
        """False for an expression by itself, whose variables have the types that are written, and no others."""

    def function_named(self, name: str, token: Token | None = None) -> Any:
        """The module's function; of one that is being read, its name."""
        if name in self.beside:
            return self.beside[name]
        if name in self.functions and self.functions[name] is None:
            return Global(name)
        with self.scoped({}):
            return super().function_named(name, token)

    @contextmanager
    def scoped(self, scope: dict[str, Expr] | None = None) -> Iterator[None]:
        """A scope inside of the present one, where names may be bound anew."""
        outer = self.scope, self.own
        self.scope, self.own = dict(self.scope) if scope is None else scope, set()
        yield
        self.scope, self.own = outer

    def bind(self, key: str, value: Expr, token: Token) -> None:
        if key in self.own:
            raise self.error(f"{token.text} is bound twice", "each name is bound once in a function", token)
        self.scope[key] = value
        self.own.add(key)

    def function(self) -> Function:
        """A function, which may use what is bound around it."""
        start = self.token
        with self.scoped(), self.nested():
            params, attrs = self.parameters()
            result = self.type() if self.accept("->") else None
            self.expect("{")
            body = self.block()
            self.expect("}")
        if result is not None and body.checked_type is not None and not accepts(result, body.checked_type):
            raise self.error(f"the function is declared as {result}, its body is {body.checked_type}", token=start)
        with self.located(start):
            made = Function(params, body, attrs)
        if result is not None and body.checked_type is None:
            declared[made] = result
        return made

    def function_call(self, function: Expr, token: Token) -> Any:
        """A call of a function, or of a value that is one."""
        args = [self.expr() for _ in self.items("(", ")")]
        with self.located(token):
            return applied(function, args)

    def chosen(self, condition: Expr, then: Expr, orelse: Expr) -> Expr:
        return conditional(condition, then, orelse)

    def branch(self) -> Expr:
        self.expect("{")
        with self.scoped(), self.nested():
            found = self.block()
        self.expect("}")
        return found

    def number(self) -> tuple[int | float, str]:
        token = self.token
        if token.suffix == "i":
            self.tokens[self.position] = token = replace(token, text=f"{token.text}32", suffix="i32")
        value, dtype = super().number()
        if not token.suffix and dtype == "int64" and -(2**31) <= value < 2**31:
            return value, "int32"
        return value, dtype

    def array(self, value: Any, dtype: str, token: Token) -> np.ndarray:
        made = super().array(value, dtype, token)
        if made.ndim == 0 and isinstance(value, float) and abs(value) != float("inf") and np.isinf(made):
            raise self.error(f"{value} is beyond what {dtype} holds", token=token)
        return made

    def attribute_value(self) -> Any:
        if self.token.kind == "number" and self.token.suffix.startswith("f"):
            return float(super().number()[0])
        return super().attribute_value()

    def type(self) -> Any:
        """A type; ``_`` is one that is not said."""
        return None if self.accept("_") else super().type()

    def block(self) -> Expr:
        """Bindings and expressions, of which the last is the result; ``let`` stands around what follows it."""
        lets: list[tuple[Expr, Expr, Token]] = []
        while True:
            start = self.token
            if self.accept("let"):
                lets.append(self.let())
            elif self.token.kind == "name" and self.tokens[self.position + 1].text == "=":
                key, token = self.name("%", "a variable such as %x")
                self.expect("=")
                self.bind(key, self.expr(), token)
            else:
                found = self.expr()
                if not self.accept(";"):
                    break
                lets.append((Var("_", self._known(found)), found, start))
                continue
            self.expect(";")
        for variable, value, token in reversed(lets):
            with self.located(token):
                found = Let(variable, value, found)
        return found

    def let(self) -> tuple[Expr, Expr, Token]:
        """``%x: type = value``, which may be a function that calls itself."""
        key, token = self.name("%", "a variable such as %x")
        name = key.removeprefix("%") if token.text[1:].isdigit() else key
        type_ = self.type() if self.accept(":") else None
        self.expect("=")
        if self.at("fn"):
            variable = Var(name, type_)
            self.bind(key, variable, token)
            return variable, self.expr(), token
        value = self.expr()
        known = self._known(value)
        if type_ is not None and known is not None and not accepts(type_, known):
            raise self.error(f"{token.text} is declared as {type_}, its value is {known}", token=token)
        variable = Var(name, type_ or known)
        self.bind(key, variable, token)
        return variable, value, token

    def _known(self, value: Expr) -> Any:
        return value.checked_type if self.whole else None

    def expr(self, least: int = 1) -> Expr:
        """Operands between infix operators, which bind as in Relay."""
        with self.nested():
            found = self._operand()
            while True:
                sign = self._sign()
                if sign is None or _BINARY[sign][0] < least:
                    return found
                token = self.token
                if self.token.kind == "punct":
                    self.take()
                other = self.expr(_BINARY[sign][0] + 1)
                with self.located(token):
                    found = Call(OPS[_BINARY[sign][1]](), (found, other))

    def _sign(self) -> str | None:
        """The infix operator that stands next; ``1 -1`` is a difference."""
        token = self.token
        if token.kind == "number" and token.text.startswith("-"):
            self.tokens[self.position] = replace(token, text=token.text[1:], start=token.start + 1)
            return "-"
        return token.text if token.kind == "punct" and token.text in _BINARY else None

    def _operand(self) -> Expr:
        if not self.accept("-"):
            return super().expr()
        found = self._operand()
        return Constant(-found.value) if isinstance(found, Constant) else Call(OPS["negative"](), (found,))

    def operator_call(self) -> Call:
        """Attributes that are left out are at Relay's defaults."""
        outer, self.given = self.given, set()
        found = super().operator_call()
        op: Any = found.op
        signatures = importlib.import_module("minitvm.tvm.relay.operators").signatures()
        theirs = signatures[op.name].parameters if op.name in signatures else {}
        own = {n: v for n, v in op.attributes().items() if n not in self.given and n in theirs}
        defaults = {n: theirs[n].default for n in own if isinstance(theirs[n].default, (str, float, bool))}
        changed = {n: default for n, default in defaults.items() if default not in ("", own[n])}
        self.given = outer
        return Call(op.with_attributes(**changed), found.args) if changed else found

    def keyword(self, op: type[Op], args: list[Expr], keywords: dict[str, Any]) -> None:
        self.given.add(self.token.text)
        super().keyword(op, args, keywords)

    def named_constant(self) -> Constant:
        start = self.take()
        self.expect("[")
        if self.token.kind == "string":
            raise self.error("a constant that is kept beside the text", "texts of minitvm have no version line", start)
        kind = self.expect_kind("word", "a kind such as relay.Constant").text
        self.expect("]")
        self.expect("[")
        index = int(self.expect_kind("number", "a constant's number").text)
        self.expect("]")
        held = self.table.get(kind, [])
        if not 0 <= index < len(held):
            hint = "astext(show_meta_data=True) writes the section, and init_meta_table may hold what is not in it"
            raise self.error(f"the text has no metadata of {kind}[{index}]", hint, start)
        found = held[index]
        return found if isinstance(found, Constant) else Constant(found)


def _arrays(text: str) -> list[np.ndarray]:
    """The constants of a metadata section, in order; :class:`ParseError` for anything else."""
    if not text.strip():
        return []
    try:
        graph = json.loads(text)
        nodes, stored = graph["nodes"], [base64.b64decode(one) for one in graph.get("b64ndarrays", [])]
        tables = dict(zip(nodes[graph["root"]].get("keys", []), nodes[graph["root"]].get("data", []), strict=False))
        places = nodes[tables["relay.Constant"]]["data"] if "relay.Constant" in tables else []
        return [_load_array(_Reader(stored[int(nodes[at]["attrs"]["data"])])) for at in places]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ParseError(f"the metadata of the text is damaged: {error!r}") from error


def _require_known(version: tuple[int, ...]) -> None:
    if version > _NEWEST:
        shown, newest = (".".join(map(str, one)) for one in (version, _NEWEST))
        raise ParseError(f"the text is of version {shown}", hint=f"versions up to {newest} are read")


def _version(text: Any) -> tuple[int, ...] | None:
    found = _VERSION.match(text) if isinstance(text, str) else None
    return found and tuple(map(int, found.groups()))


def parse(
    source: str, source_name: Any = "from_string", init_module: Module | None = None, init_meta_table: Any = None
) -> Module:
    """The module that a text describes: Relay's where it has a version line, else ours.

    ``source_name`` may be the arrays that our text refers to; ``init_module`` has functions that stay beside.
    """
    constants: Constants | None = source_name if isinstance(source_name, dict) else None
    version = _version(source)
    if version is None:
        made = _our_module(source, constants)
    else:
        _require_known(version)
        parser = _RelayParser(source, init_meta_table)
        parser.beside = {str(name): f for name, f in init_module.functions.items()} if init_module else {}
        made = Module(parser.module()) if parser.at("def") else Module.from_expr(parser.expression({}))
        made = as_groups(made if is_plain_module(made) and not _is_open(made) else linked(infer_module(named(made))))
    return made if init_module is None else Module({**init_module.functions, **made.functions})


def _is_open(module: Module) -> bool:
    """True where parameters that have types leave a result without one: a function inside has none."""
    functions = module.functions.values()
    return any(f.body.checked_type is None and all(p.checked_type is not None for p in f.params) for f in functions)


def parse_expr(source: str, constants: Constants | None = None, variables: Any = ()) -> Any:
    """The expression that a text describes: Relay's, with a version line or without, unless ``constants`` or
    ``variables`` are given, as our text has them; the name of an operator or of a function by itself is that.
    """
    version = _version(source)
    if version is not None:
        _require_known(version)
    elif constants is not None or variables:
        return _our_expr(source, constants, variables)
    parser = _RelayParser(source)
    if len(parser.tokens) == 2 and parser.token.text in OPS:
        return importlib.import_module("minitvm.tvm.relay.op").get(parser.token.text)
    if len(parser.tokens) == 2 and parser.token.text.startswith("@"):
        named: Any = importlib.import_module("minitvm.tvm.relay.forms").GlobalVar(parser.name("@", "a function")[0])
        return named
    parser.whole = False
    return parser.expression({})


def parse_type(source: str) -> Type:
    """The type that a text describes: ``Tensor[(1, 3), float32]``."""
    found: Type = _RelayParser(source).type()
    return found


fromtext = parse_module = parse
