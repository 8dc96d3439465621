"""Reads tokens, names, constants, attribute values and types of the text form; ``minitvm.ir.parser`` does the rest."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from minitvm.errors import MiniTVMError, ParseError, did_you_mean
from minitvm.ir.attributes import dtype_of
from minitvm.ir.dims import FUNCTIONS, Dim, anonymous, symbol
from minitvm.ir.expr import Constant, Expr, Function
from minitvm.ir.types import (
    DTYPES,
    STRING,
    AnyTensor,
    FuncType,
    HostType,
    MapType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
)

Constants: TypeAlias = Mapping[str, np.ndarray]

MAX_DEPTH = 100
"""How deep expressions may be nested in the text; bind inner ones to names instead."""

_SHOWN = 100
"""How much of a long line an error shows."""

_QUOTED = r'''"(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'''  # as JSON's
_TOKEN = re.compile(
    rf"""
      (?P<skip>\s+|\#[^\n]*|(?:(?<!\S)//|//(?=\s|\Z))[^\n]*|/\*.*?\*/)
    | (?P<name>[%@](?:[A-Za-z_][A-Za-z0-9_]*(?:[./][A-Za-z_][A-Za-z0-9_]*)*|[0-9]+|{_QUOTED}))
    | (?P<number>-?(?:inf|nan|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)
        (?P<suffix>f16|f32|f64|f|[iu](?:8|16|32|64))?(?![A-Za-z0-9_]))
    | (?P<field>\.[0-9]+)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    | (?P<string>{_QUOTED})
    | (?P<punct>->|\.\.\.|//|[(){{}}\[\],:;=?+*-])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """``name`` (with ``%`` or ``@``), ``number``, ``field`` (``.0``), ``word``, ``string``, ``punct`` or ``end``."""
    text: str
    start: int
    suffix: str = ""

    @property
    def shown(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.text)


def tokenize(text: str, pattern: re.Pattern[str] = _TOKEN) -> list[Token]:
    """The tokens of ``text``, closed by one of kind ``end``; :class:`ParseError` at what is none."""
    if not isinstance(text, str):
        raise ParseError(f"a module is text, not {type(text).__name__}")
    tokens = []
    position = 0
    while position < len(text):
        found = pattern.match(text, position)
        if found is None:
            raise error_at(text, position, f"unexpected character {text[position]!r}")
        kind = found.lastgroup if found.lastgroup != "suffix" else "number"
        assert kind is not None
        if kind != "skip":
            tokens.append(Token(kind, found.group(), position, found.group("suffix") or ""))
        position = found.end()
    return [*tokens, Token("end", "", len(text))]


def error_at(text: str, position: int, message: str, hint: str | None = None) -> ParseError:
    """A :class:`ParseError` that shows the line and points at the place."""
    line = text.count("\n", 0, position) + 1
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    column = position - start + 1
    first = max(start, position - _SHOWN // 2)
    source = text[first : min(len(text) if end < 0 else end, first + _SHOWN)]
    caret = "".join("\t" if c == "\t" else " " for c in source[: position - first]) + "^"
    error = ParseError(message, where=[f"line {line}, column {column}", source, caret], hint=hint)
    error.line, error.column = line, column
    return error


def unquote(text: str) -> str:
    """The value of a string token; a plain name is itself."""
    return str(json.loads(text, strict=False)) if text.startswith('"') else text


def closest(word: str, known: Iterable[str], sigil: str = "") -> str:
    names = list(known)
    guess = did_you_mean(word, names, lambda name: sigil + name.removeprefix(sigil), most=3)
    if guess or not names:
        return guess or "none is defined here"
    return f"known: {', '.join(sigil + n.removeprefix(sigil) for n in names[:20])}{', ...' if len(names) > 20 else ''}"


class Reader:
    """Walks over the tokens of a text, and reads what does not depend on names; functions that are attributes are read
    by the parser's ``atom``."""

    def __init__(self, text: str, constants: Constants | None) -> None:
        self.text = text
        self.constants = constants
        self._named: dict[str, Constant] = {}
        self.tokens = tokenize(text)
        self.position = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def error(self, message: str, hint: str | None = None, token: Token | None = None) -> ParseError:
        return error_at(self.text, (token or self.token).start, message, hint)

    def take(self) -> Token:
        token = self.token
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def at(self, *texts: str) -> bool:
        return self.token.text in texts and self.token.kind in ("punct", "word")

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.at(text):
            raise self.error(f"expected {text!r}, found {self.token.shown}")
        return self.take()

    def expect_kind(self, kind: str, what: str) -> Token:
        if self.token.kind != kind:
            raise self.error(f"expected {what}, found {self.token.shown}")
        return self.take()

    def name(self, sigil: str, what: str) -> tuple[str, Token]:
        """A name behind ``%`` or ``@``, as the key it is known by: numbers keep their sigil."""
        token = self.token
        if token.kind != "name" or token.text[0] != sigil:
            raise self.error(f"expected {what}, found {token.shown}")
        self.take()
        body = token.text[1:]
        return (token.text if body.isdigit() else unquote(body)), token

    @contextmanager
    def nested(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(
                f"nested more than {MAX_DEPTH} deep", hint="bind inner expressions to names: %0 = ...; then use %0"
            )
        yield
        self.depth -= 1

    @contextmanager
    def located(self, token: Token) -> Iterator[None]:
        """Errors of the graph's own get the line of the text that caused them."""
        try:
            yield
        except ParseError:
            raise
        except MiniTVMError as error:
            line = error_at(self.text, token.start, "").line
            raise type(error)(
                error.message, where=[*error.where, f"line {line} of the text"], hint=error.hint
            ) from error

    def items(self, opening: str, closing: str) -> Iterator[None]:
        """Runs the loop's body once per item of a comma-separated list; a trailing comma is allowed."""
        self.expect(opening)
        while not self.at(closing):
            yield
            if not self.at(closing):
                self.expect(",")
        self.expect(closing)

    # --- constants and attributes ---------------------------------------------------------------------------

    def atom(self) -> Expr:
        raise NotImplementedError

    def number(self) -> tuple[int | float, str]:
        """A number and its dtype."""
        token = self.take()
        text = token.text.removesuffix(token.suffix)
        is_float = any(c in text for c in ".eEn")
        dtype = dtype_of(token.suffix, is_float)
        return (float(text) if is_float or dtype.startswith("f") else int(text)), dtype

    def scalar(self) -> np.ndarray:
        token = self.token
        return self.array(*self.number(), token)

    def array(self, value: Any, dtype: str, token: Token) -> np.ndarray:
        try:
            with np.errstate(over="ignore"):
                return np.array(value, dtype)
        except (ValueError, OverflowError, TypeError) as error:
            raise self.error(f"not a constant of {dtype}: {error}", token=token) from error

    def constant(self) -> Constant:
        """``const([1, 2], float32)``, ``const([], Tensor[(0, 3), int64])``, with ``name="w"`` if need be."""
        start = self.take()
        self.expect("(")
        if self.at("..."):
            raise self.error(
                "the value of this constant was left out when the text was printed",
                hint="print with show_meta_data=True and give parse_module the module_constants",
            )
        value = self.attribute_value()
        self.expect(",")
        type_ = self.tensor_or_dtype()
        name = None
        if self.accept(","):
            self.expect("name")
            self.expect("=")
            name = unquote(self.expect_kind("string", "a name in quotes").text)
        self.expect(")")
        if isinstance(type_, str):
            return Constant(self.array(value, type_, start), name)
        array = self.array(value, type_.dtype, start)
        if array.size != type_.size:
            raise self.error(f"{array.size} values for a constant of type {type_}", token=start)
        return Constant(array.reshape(type_.static_shape), name)

    def tensor_or_dtype(self) -> TensorType | str:
        if self.token.kind == "word" and self.token.text in DTYPES:
            return self.take().text
        token = self.token
        found = self.type()
        if not isinstance(found, TensorType) or not found.is_static:
            raise self.error(f"a constant cannot be a {found}", token=token)
        return found

    def named_constant(self) -> Constant:
        start = self.take()
        self.expect("[")
        name = unquote(self.expect_kind("string", "a constant's name in quotes").text)
        type_ = self.type() if self.accept(",") else None
        self.expect("]")
        if self.constants is None:
            raise self.error(f"the constant {name!r} is kept beside the text", "give parse_module the constants", start)
        if name not in self.constants:
            raise self.error(f"no constant {name!r} was given", closest(name, self.constants), start)
        found = self._named.setdefault(name, Constant(self.constants[name], name))  # one node, however often it is read
        if type_ is not None and found.type != type_:
            raise self.error(f"the constant {name!r} is {found.type}, the text says {type_}", token=start)
        return found

    def attribute_value(self) -> Any:
        """A number, string, ``True``, ``None``, ``[1, 2]`` or ``(1, 2)`` (both tuples), type, or function."""
        with self.nested():
            token = self.token
            if token.kind == "string":
                return unquote(self.take().text)
            if token.kind == "number":
                return self.scalar().item() if token.suffix else self.number()[0]
            if self.at("[", "("):
                return tuple(self.attribute_value() for _ in self.items(token.text, "]" if token.text == "[" else ")"))
            if self.at("True", "False", "None"):
                return {"True": True, "False": False, "None": None}[self.take().text]
            if self.at("Tensor"):
                return self.type()
            if token.kind == "name" or self.at("fn"):
                return self.attribute_function()
            raise self.error(f"expected a value, found {token.shown}", 'strings stand in quotes: layout="NCHW"')

    def attribute_function(self) -> Function:
        token = self.token
        found = self.atom()
        if not isinstance(found, Function):
            raise self.error(f"an attribute cannot be a {type(found).__name__}", token=token)
        return found

    # --- types ------------------------------------------------------------------------------------------------

    def type(self) -> Type:
        with self.nested():
            token = self.token
            if self.accept("Tensor"):
                return self.tensor_type()
            if self.at("Sequence", "Optional", "Map", "AnyTensor", "NoTensor"):
                return self.host_type(self.take().text)
            if token.kind == "word" and token.text in DTYPES:
                return TensorType((), self.take().text)
            if self.at("("):
                return TupleType(tuple(self.type() for _ in self.items("(", ")")))
            if self.accept("fn"):
                params = tuple(self.type() for _ in self.items("(", ")"))
                self.expect("->")
                return FuncType(params, self.type())
            raise self.error(f"expected a type, found {token.shown}", "a type is like Tensor[(1, 3), float32]")

    def tensor_type(self) -> TensorType:
        self.expect("[")
        shape = tuple(self.extent() for _ in self.items("(", ")"))
        self.expect(",")
        dtype = self.dtype()
        self.expect("]")
        return TensorType(shape, dtype)

    def dtype(self) -> str:
        token = self.expect_kind("word", "a dtype")
        if token.text not in (*DTYPES, STRING):
            raise self.error(f"{token.text!r} is not a dtype", closest(token.text, DTYPES), token)
        return token.text

    def host_type(self, kind: str) -> HostType:
        """The rest of ``Sequence[...]``, ``Optional[...]``, ``Map[string, float32]`` or ``AnyTensor[float32]``."""
        self.expect("[")
        if kind == "Map":
            key = self.dtype()
            self.expect(",")
            made = MapType(key, self.dtype())
            self.expect("]")
            return made
        token = self.token
        element = self.dtype() if kind.endswith("Tensor") else self.type()
        self.expect("]")
        if isinstance(element, str):
            return AnyTensor(element, kind == "NoTensor")
        if isinstance(element, (TupleType, FuncType)):
            raise self.error(f"a {kind.lower()} of {element}", token=token)
        return SequenceType(element, kind == "Optional")

    def extent(self) -> Dim:
        token, found = self.token, self.dimension()
        if isinstance(found, int) and found < 0:
            raise self.error(f"{found} is not a dimension", token=token)
        return found

    def dimension(self) -> Dim:
        """``3``, ``n``, ``2*n + 1``, ``(n + 1)//2``, ``max(0, n - 1)``, ``?``."""
        with self.nested():
            total = -self.product() if self.accept("-") else self.product()
            while self.at("+", "-"):
                total = total + self.product() if self.take().text == "+" else total - self.product()
        return total

    def product(self) -> Dim:
        found = self.factor()
        while self.at("*", "//"):
            found = found * self.factor() if self.take().text == "*" else self.divided(found)
        return found

    def divided(self, found: Dim) -> Dim:
        token, by = self.token, self.factor()
        if by == 0:
            raise self.error("a dimension is divided by 0", token=token)
        return found // by

    def factor(self) -> Dim:
        token = self.token
        if self.accept("?"):
            return anonymous()
        if self.accept("("):
            found = self.dimension()
            self.expect(")")
            return found
        if token.kind == "string":
            return symbol(unquote(self.take().text))
        if token.kind == "word":
            self.take()
            return self.function_of_dims(token.text) if self.at("(") else symbol(token.text)
        if not self.expect_kind("number", "a dimension").text.removeprefix("-").isdigit():
            raise self.error(f"{token.text} is not a dimension", token=token)
        return int(token.text)

    def function_of_dims(self, name: str) -> Dim:
        token, dims = self.token, [self.dimension() for _ in self.items("(", ")")]
        if name not in FUNCTIONS or len(dims) != 2:
            raise self.error(f"{name} of {len(dims)} is not a dimension", closest(name, FUNCTIONS), token)
        try:
            return FUNCTIONS[name](*dims)
        except (ValueError, ArithmeticError) as error:
            raise self.error(f"{name} is not a dimension: {error}", token=token) from error
