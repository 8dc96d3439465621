"""Functions that other code generators make code of, and the marks of what belongs to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from minitvm.errors import MiniTVMError, PassError, did_you_mean, user_code
from minitvm.ir.evaluate import as_value, fits
from minitvm.ir.expr import Function, Module
from minitvm.ir.op import Fusion, Op
from minitvm.ir.reader import Reader
from minitvm.ir.text import module_constants, print_module
from minitvm.ir.types import TensorType, TupleType, Type, type_of

Generator: TypeAlias = Callable[[Function], Callable[..., Any]]
"""From a function of the graph to one of arrays: as many as it has parameters, to its result or a tuple of them."""

GENERATORS: dict[str, Generator] = {}
"""By the compiler's name."""


class Mark(Op, fusion=Fusion.OPAQUE, takes_stored=True):
    """``data`` itself, at a border of what ``compiler`` computes.  data: any type -> the same."""

    compiler: str

    def infer(self, data: Type) -> Type:
        return data

    def reference(self, data: Any) -> Any:
        return data


class CompilerBegin(Mark, name="annotation.compiler_begin"):
    """Marks where a value goes into what another compiler computes; PartitionGraph removes it."""


class CompilerEnd(Mark, name="annotation.compiler_end"):
    """Marks where a value comes out of what another compiler computes; PartitionGraph removes it."""


class External(Op, name="external", fusion=Fusion.OPAQUE, hosted=True, takes_stored=True):
    """A function that the code generator ``compiler`` computes, in Python, under the name ``symbol``.

    arguments: the function's, then the values of its large ``constants``, by their names in ``source``, its text ->
    values of ``types``, as they print (one, or a tuple of several).  Running it raises :class:`MiniTVMError` where
    there is no such generator, or its results are others than the function's.
    """

    compiler: str
    symbol: str
    source: str
    constants: tuple[str, ...]
    types: tuple[str, ...]

    @staticmethod
    def of_function(function: Function, compiler: str, symbol: str) -> tuple[External, list[np.ndarray]]:
        """The operator, and the values of its constants."""
        module = Module({"main": function})
        held = module_constants(module)
        fields = function.ret_type.fields if isinstance(function.ret_type, TupleType) else (function.ret_type,)
        text = print_module(module)
        return External(compiler, symbol, text, tuple(held), tuple(map(str, fields))), [*held.values()]

    @property
    def title(self) -> str:
        return f"{self.symbol} (by code generator {self.compiler})"

    def infer(self, *arguments: TensorType) -> Type:
        fields = self.results
        return fields[0] if len(fields) == 1 else TupleType(fields)

    @property
    def results(self) -> tuple[Type, ...]:
        return tuple(Reader(text, None).type() for text in self.types)

    def function(self, constants: Sequence[np.ndarray]) -> Function:
        from minitvm.ir.parser import parse_module  # which imports all operators

        return parse_module(self.source, dict(zip(self.constants, constants, strict=True))).main

    def compiled(self, constants: Sequence[np.ndarray]) -> Callable[..., Any]:
        """What the generator makes of the function; :class:`MiniTVMError` where it is none, or makes nothing."""
        generator = GENERATORS.get(self.compiler)
        if generator is None:
            hint = did_you_mean(self.compiler, GENERATORS) or f"tvm.register_func('relay.ext.{self.compiler}', f)"
            raise self._error(f"no code generator {self.compiler!r} is registered", hint)
        with user_code(generator, f"code generator {self.compiler} of function @{self.symbol}"):
            made = generator(self.function(constants))
        if not callable(made):
            what = f"code generator {self.compiler!r} gives a {type(made).__name__}"
            raise self._error(what, "it returns a function from arrays to the results")
        return made

    def reference(self, *arguments: np.ndarray) -> Any:
        count = len(arguments) - len(self.constants)
        made = self._made(arguments[count:])
        with user_code(made, f"function @{self.symbol}, made by code generator {self.compiler},", self._place):
            found = made(*arguments[:count])
        values = tuple(as_value(one) for one in (found if isinstance(found, (tuple, list)) else (found,)))
        self._check(values)
        return values[0] if len(self.types) == 1 else values

    def _made(self, constants: Sequence[np.ndarray]) -> Callable[..., Any]:
        """Once for the same constants in the same memory, by the same generator."""
        key = (GENERATORS.get(self.compiler), [array.__array_interface__["data"][0] for array in constants])
        kept = vars(self).get("_kept")
        if kept is None or kept[0] != key:
            kept = (key, self.compiled(constants), constants)  # held, so that the memory stays theirs
            object.__setattr__(self, "_kept", kept)
        return kept[1]

    def _check(self, values: Sequence[Any]) -> None:
        types, who = self.results, f"code generator {self.compiler!r} gives"
        if len(values) != len(types):
            raise self._error(f"{who} {_count(len(values))}; the function has {_count(len(types))}")
        for n, (value, type_) in enumerate(zip(values, types, strict=True)):
            if not fits(value, type_):
                have = str(type_of(value)) if isinstance(value, np.ndarray) else type(value).__name__
                raise self._error(f"{who} {have} as result {n}; the function's is {type_}")

    def _error(self, what: str, hint: str | None = None) -> MiniTVMError:
        return MiniTVMError(f"function @{self.symbol}: {what}", where=self._place(), hint=hint)

    def _place(self) -> list[str]:
        return [self.source.partition("\n")[0].removesuffix(" {")]


def _count(results: int) -> str:
    return f"{results} result{'' if results == 1 else 's'}"


def register_generator(compiler: str, generator: Generator | None = None, override: bool = False) -> Any:
    """Registers what makes code for a compiler's functions; a decorator without a generator.

    Raises :class:`PassError` where the name is taken, unless ``override`` says so.
    """
    if generator is None:
        return lambda given: register_generator(compiler, given, override)
    if not callable(generator):
        raise PassError(f"code generator {compiler!r} is a {type(generator).__name__}, no function")
    old = GENERATORS.get(compiler)
    if old is not None and not override and getattr(old, "__qualname__", 0) != getattr(generator, "__qualname__", 1):
        raise PassError(f"there is a code generator {compiler!r} already", hint="override=True takes its place")
    GENERATORS[compiler] = generator
    return generator
