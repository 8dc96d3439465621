"""Reads constants, attribute values and types out of the text form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from minitvm.ir.dims import CONSTRUCTORS, Dim, anonymous, symbol
from minitvm.ir.expr import Constant, Expr, Function
from minitvm.ir.lexer import Reader, Token, closest, unquote
from minitvm.ir.literals import dtype_of
from minitvm.ir.types import DTYPES, FuncType, TensorType, TupleType, Type

Constants: TypeAlias = Mapping[str, np.ndarray]


class ValueReader(Reader):
    """What stands in the text without depending on names; functions as attributes are read by the parser's ``atom``."""

    def __init__(self, text: str, constants: Constants | None) -> None:
        super().__init__(text)
        self.constants = constants
        self._named: dict[str, Constant] = {}

    def atom(self) -> Expr:
        raise NotImplementedError

    def scalar(self) -> np.ndarray:
        token = self.take()
        text = token.text.removesuffix(token.suffix)
        is_float = any(c in text for c in ".eEn")
        dtype = dtype_of(token.suffix, is_float)
        return self.array(float(text) if is_float or dtype.startswith("f") else int(text), dtype, token)

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
                return self.scalar().item() if token.suffix else self.number()
            if self.at("[", "("):
                return tuple(self.attribute_value() for _ in self.items(token.text, "]" if token.text == "[" else ")"))
            if self.at("True", "False", "None"):
                return {"True": True, "False": False, "None": None}[self.take().text]
            if self.at("Tensor"):
                return self.type()
            if token.kind == "name" or self.at("fn"):
                return self.attribute_function()
            raise self.error(f"expected a value, found {token.shown}", 'strings stand in quotes: layout="NCHW"')

    def number(self) -> int | float:
        text = self.take().text
        return float(text) if any(c in text for c in ".eEn") else int(text)

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
        token = self.expect_kind("word", "a dtype")
        if token.text not in DTYPES:
            raise self.error(f"{token.text!r} is not a dtype", closest(token.text, DTYPES), token)
        self.expect("]")
        return TensorType(shape, token.text)

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
        if name not in CONSTRUCTORS or len(dims) != 2:
            raise self.error(f"{name} of {len(dims)} is not a dimension", closest(name, CONSTRUCTORS), token)
        try:
            return CONSTRUCTORS[name](*dims)
        except (ValueError, ArithmeticError) as error:
            raise self.error(f"{name} is not a dimension: {error}", token=token) from error
