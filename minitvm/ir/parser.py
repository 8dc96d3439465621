"""Reads what ``minitvm.ir.text`` prints, and what one writes by hand in a test.

    module   = { "def" "@" name function }
    function = "(" [ %x [":" type] | name "=" value ] , ... ")" [ "->" type ] "{" block "}"
    block    = { ["let"] %x [":" type] "=" expr ";" } expr
    expr     = atom { ".0" | "(" arguments ")" }
    atom     = %x | @f | scalar | const(...) | meta[...] | "(" expr , ... ")" | "fn" function
             | "if" "(" expr ")" "{" block "}" "else" "{" block "}" | operator(arguments)

Comments are ``# ...``, ``/* ... */`` and, with a space on either side, ``// ...``; types of parameters and results are
optional; attributes may stand in any order; an operator's tensors may be given by the name that its ``infer`` gives.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.doors import door, left_out
from minitvm.ir.attributes import attributes_of
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import OPS, Op, signature
from minitvm.ir.reader import Constants, Reader, Token, closest
from minitvm.ir.types import accepts


@door
def choice(condition: Expr, then: Expr, orelse: Expr) -> Call:
    """A call of ``control.if`` whose branches compute these expressions."""
    raise left_out("control flow")


def parse_module(text: str, constants: Constants | None = None) -> Module:
    """The module that ``text`` describes; ``constants`` holds the arrays that ``meta["name"]`` refers to.

    Raises :class:`ParseError` with the place, or :class:`TypeInferenceError` where the operators reject their types.
    """
    parser = _Parser(text, constants)
    return Module(parser.module())


def parse_expr(
    text: str, constants: Constants | None = None, variables: Mapping[str, Expr] | Iterable[Var] = ()
) -> Expr:
    """An expression, with bindings before it if need be.

    Free variables are declared in the text, ``free_var %x: Tensor[(1,), float32];``, or given as ``variables``.
    """
    given = variables if isinstance(variables, Mapping) else {v.name: v for v in variables}
    parser = _Parser(text, constants)
    return parser.expression(given)


class _Parser(Reader):
    def __init__(self, text: str, constants: Constants | None) -> None:
        super().__init__(text, constants)
        self.scope: dict[str, Expr] = {}
        self.definitions: dict[str, int] = {}
        self.functions: dict[str, Function | None] = {}

    # --- modules and functions --------------------------------------------------------------------------------

    def module(self) -> dict[str, Function]:
        self.find_definitions()
        for name in self.definitions:
            self.function_named(name)
        return {name: f for name in self.definitions if (f := self.functions[name]) is not None}

    def find_definitions(self) -> None:
        """The place where each ``def`` starts, so that functions may be called before they are defined."""
        level = 0
        for i, token in enumerate(self.tokens):
            level += (token.text == "{") - (token.text == "}") if token.kind == "punct" else 0
            if level == 0 and token.kind == "word" and token.text == "def":
                self.position = i + 1
                name, at = self.name("@", "a function's name such as @main")
                if name in self.definitions:
                    raise self.error(f"@{name} is defined twice", token=at)
                self.definitions[name] = self.position
        self.position = 0
        if not self.at("def"):
            raise self.error(
                f"expected 'def', found {self.token.shown}", hint="a module is text like: def @main(%x) { nn.relu(%x) }"
            )

    def function_named(self, name: str, token: Token | None = None) -> Function:
        """The module's function, parsed now if it was not yet."""
        if name not in self.definitions:
            raise self.error(f"unknown function @{name}", closest(name, self.definitions, "@"), token)
        if name not in self.functions:
            self.functions[name] = None
            saved, self.position = self.position, self.definitions[name]
            self.functions[name] = self.function()
            if not self.at("def") and self.token.kind != "end":
                raise self.error(f"expected 'def' or the end of the text, found {self.token.shown}")
            self.position = saved
        found = self.functions[name]
        if found is None:
            raise self.error(f"@{name} calls itself", "recursion is not supported", token)
        return found

    def function(self) -> Function:
        """Parameters, attributes, result type and body; a scope of its own."""
        start = self.token
        outer, self.scope = self.scope, {}
        with self.nested():
            params, attrs = self.parameters()
            result = self.type() if self.accept("->") else None
            self.expect("{")
            body = self.block()
            self.expect("}")
        self.scope = outer
        if result is not None and body.checked_type is not None and not accepts(result, body.checked_type):
            raise self.error(f"the function is declared as {result}, its body is {body.checked_type}", token=start)
        with self.located(start):
            return Function(params, body, attrs)

    def parameters(self) -> tuple[list[Var], dict[str, Any]]:
        params: list[Var] = []
        attrs: dict[str, Any] = {}
        for _ in self.items("(", ")"):
            if self.token.kind == "name":
                params.append(self.declaration())
            else:
                name = self.expect_kind("word", "a parameter such as %x, or an attribute").text
                self.expect("=")
                attrs[name] = self.attribute_value()
        return params, attrs

    def declaration(self) -> Var:
        key, token = self.name("%", "a variable such as %x")
        type_ = self.type() if self.accept(":") else None
        var = Var(key.removeprefix("%") if token.text[1:].isdigit() else key, type_)
        self.bind(key, var, token)
        return var

    def bind(self, key: str, value: Expr, token: Token) -> None:
        if key in self.scope:
            raise self.error(f"{token.text} is bound twice", "each name is bound once in a function", token)
        self.scope[key] = value

    def block(self) -> Expr:
        """Bindings, then the result.  Relay's ``let`` is one like any other: what is bound is a node, and shared."""
        while self.accept("let") or (self.token.kind == "name" and self.tokens[self.position + 1].text == "="):
            key, token = self.name("%", "a variable such as %x")
            declared = self.type() if self.accept(":") else None
            self.expect("=")
            value = self.expr()
            if declared and value.checked_type and not accepts(declared, value.checked_type):
                raise self.error(f"{token.text} is declared as {declared}, its value is {value.type}", token=token)
            self.expect(";")
            self.bind(key, value, token)
        return self.expr()

    def expression(self, variables: Mapping[str, Expr]) -> Expr:
        self.scope.update(variables)
        while self.accept("free_var"):
            self.declaration()
            self.expect(";")
        found = self.block()
        if self.token.kind != "end":
            raise self.error(f"expected the end of the text, found {self.token.shown}")
        return found

    # --- expressions ------------------------------------------------------------------------------------------

    def expr(self) -> Expr:
        with self.nested():
            token = self.token
            found = self.atom()
            while True:
                if self.token.kind == "field":
                    index = int(self.take().text[1:])
                    with self.located(token):
                        found = TupleGetItem(found, index)
                elif self.at("("):
                    found = self.function_call(found, token)
                else:
                    return found

    def function_call(self, function: Expr, token: Token) -> Call:
        if not isinstance(function, Function):
            raise self.error(f"{token.text} is not a function and cannot be called")
        args = [self.expr() for _ in self.items("(", ")")]
        with self.located(token):
            return Call(function, args)

    def atom(self) -> Expr:
        token = self.token
        if token.kind == "name":
            return self.function_value() if token.text[0] == "@" else self.variable()
        if token.kind == "number":
            return Constant(self.scalar())
        if token.kind == "word" and token.text in ("True", "False"):
            return Constant(np.array(self.take().text == "True"))
        if self.at("("):
            return self.tuple()
        if token.kind == "word":
            return self.word()
        raise self.error(f"expected an expression, found {token.shown}")

    def word(self) -> Expr:
        following = self.tokens[self.position + 1].text
        if self.at("fn"):
            self.take()
            return self.function()
        if self.at("if") and following == "(":
            return self.choice()
        if self.at("const") and following == "(":
            return self.constant()
        if self.at("meta") and following == "[":
            return self.named_constant()
        return self.operator_call()

    def choice(self) -> Expr:
        """``if (condition) { block } else { block }``: what the blocks bind is seen there only."""
        start = self.take()
        self.expect("(")
        condition = self.expr()
        self.expect(")")
        then = self.branch()
        self.expect("else")
        orelse = self.branch()
        with self.located(start):
            return self.chosen(condition, then, orelse)

    def chosen(self, condition: Expr, then: Expr, orelse: Expr) -> Expr:
        return choice(condition, then, orelse)

    def branch(self) -> Expr:
        outer, self.scope = self.scope, dict(self.scope)
        self.expect("{")
        with self.nested():
            found = self.block()
        self.expect("}")
        self.scope = outer
        return found

    def variable(self) -> Expr:
        key, token = self.name("%", "a variable such as %x")
        if key not in self.scope:
            raise self.error(f"{token.text} is not bound", closest(key, self.scope, "%"), token)
        return self.scope[key]

    def function_value(self) -> Function:
        name, token = self.name("@", "a function such as @main")
        return self.function_named(name, token)

    def tuple(self) -> Expr:
        """``()``, ``(a,)``, ``(a, b)``; ``(a)`` is ``a``."""
        fields = []
        for _ in self.items("(", ")"):
            fields.append(self.expr())
            is_tuple = self.at(",")
        return fields[0] if len(fields) == 1 and not is_tuple else Tuple(fields)

    def operator_call(self) -> Call:
        token = self.take()
        if token.text not in OPS:
            raise self.error(f"unknown operator {token.text!r}", closest(token.text, OPS), token)
        op = OPS[token.text]
        args: list[Expr] = []
        keywords: dict[str, Any] = {}
        for _ in self.items("(", ")"):
            if self.token.kind == "word" and self.tokens[self.position + 1].text == "=":
                self.keyword(op, args, keywords)
            elif keywords:
                raise self.error("an argument stands behind an attribute", "arguments come first")
            else:
                args.append(self.expr())
        with self.located(token):
            return Call(op.of(keywords), args)

    def keyword(self, op: type[Op], args: list[Expr], keywords: dict[str, Any]) -> None:
        """``name=value``: an attribute, or the next argument by name."""
        token = self.take()
        self.expect("=")
        arguments = signature(op).names
        if token.text in arguments:
            if keywords or arguments.index(token.text) != len(args):
                raise self.error(f"argument {token.text!r} is out of order", f"order: {', '.join(arguments)}", token)
            args.append(self.expr())
            return
        known = attributes_of(op)
        if token.text not in known:
            hint = closest(token.text, known) if known else f"{op.name} has no attributes"
            raise self.error(f"{op.name}: unknown attribute {token.text!r}", hint, token)
        if token.text in keywords:
            raise self.error(f"attribute {token.text!r} is given twice", token=token)
        keywords[token.text] = self.attribute_value()
