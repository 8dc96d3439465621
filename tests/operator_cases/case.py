"""A call of one operator on arrays, and the table of what makes such calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import TypeInferenceError
from minitvm.ir.op import OPS, Op
from minitvm.ir.types import DTYPES, TupleType, Type, type_of
from operator_cases.accuracy import EXACT, Accuracy
from operator_cases.draw import Draw, RandomDraw


@dataclass(frozen=True, eq=False)
class Case:
    """An operator with its attributes, applied to arrays (or tuples of arrays)."""

    op: Op
    args: tuple[Any, ...]
    accuracy: Accuracy = EXACT
    exempt: str = field(default="", repr=False)
    """Why results are not compared with the reference, or nothing."""

    @property
    def types(self) -> list[Type]:
        return [_type_of(a) for a in self.args]

    def __str__(self) -> str:
        given = ", ".join(map(str, self.types))
        attributes = "".join(f", {k}={v!r}" for k, v in self.op.attributes().items())
        return f"{self.op.name}({given}{attributes})"

    def reference(self) -> tuple[np.ndarray, ...]:
        """The results, as a tuple."""
        with np.errstate(all="ignore"):
            found = self.op.reference(*self.args)
        return found if isinstance(found, tuple) else (found,)


def _type_of(value: Any) -> Type:
    return TupleType(tuple(map(_type_of, value))) if isinstance(value, tuple) else type_of(value)


Generator: TypeAlias = Callable[[str, Draw, str], Case]

GENERATORS: dict[str, Generator] = {}
"""By operator.  A generator gets the operator's name, a draw, and the dtype of the first tensor (or the result)."""


def generator(*names: str) -> Callable[[Generator], Generator]:
    def add(function: Generator) -> Generator:
        for name in names:
            assert name not in GENERATORS, f"{name} has two generators"
            GENERATORS[name] = function
        return function

    return add


def case(name: str, *args: Any, accuracy: Accuracy = EXACT, **attributes: Any) -> Case:
    return Case(OPS[name](**attributes), args, accuracy)


@functools.cache
def accepted_dtypes(name: str) -> tuple[str, ...]:
    """The dtypes that an operator takes: those with which its ``infer`` does not reject the call."""
    return tuple(dtype for dtype in DTYPES if _accepts(GENERATORS[name](name, RandomDraw(0), dtype)))


def _accepts(made: Case) -> bool:
    try:
        made.op.typed(*made.types)
    except TypeInferenceError:
        return False
    return True


def random_case(name: str, draw: Draw) -> Case:
    """A legal call of an operator, of any dtype that it takes."""
    return GENERATORS[name](name, draw, draw.choice(_simplest_first(accepted_dtypes(name))))


def _simplest_first(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(dtypes, key=lambda d: d != "float32"))


def absolute(made: Case) -> Callable[[], np.ndarray]:
    """The sum of the absolute values of an operation's terms: the operation itself on absolute values."""

    def magnitude() -> np.ndarray:
        with np.errstate(all="ignore"):
            result = made.op.reference(*(_absolute(a) for a in made.args))
        return np.asarray(result[0] if isinstance(result, tuple) else result)

    return magnitude


def _absolute(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_absolute, value))
    return np.abs(value.astype("float64")) if value.dtype.kind == "f" else value


def summed(name: str, *args: Any, terms: float, factor: float = 1, **attributes: Any) -> Case:
    """A call that adds up ``terms`` products or elements."""
    made = case(name, *args, **attributes)
    within = Accuracy(ulps=1, terms=(terms + 2) * factor, magnitude=absolute(made))
    return Case(made.op, made.args, within)
