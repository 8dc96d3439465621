"""A function's value, for which what was computed before is not computed again: most of a model is, before and after a
pass, the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from minitvm.ir.evaluate import evaluate, evaluate_call
from minitvm.ir.expr import Call, Function
from minitvm.ir.structural import node_key

MOST = 1 << 30
"""Bytes of values that are kept; what comes after them is computed each time."""


class Values:
    """Values of calls, by the operator and the bits of its operands.

    The same operator of the same bits has the same value, whoever built the call: nothing is left out of a comparison.
    What neither this turn nor the one before has asked for is let go.
    """

    def __init__(self) -> None:
        self._values = _Lately()
        self._names = _Lately()

    def turn(self) -> None:
        """Turns to other things, which are compared from now on."""
        self._values.turn()
        self._names.turn()

    def of(self, call: Call, *given: Any) -> Any:
        """A call's value from its arguments', as :func:`evaluate_call` finds it."""
        if isinstance(call.op, Function):
            return evaluate(call.op, *given, how=self.of)
        names = [self._name(value) for value in given]
        if call.op.stateful or None in names:
            return evaluate_call(call, *given)
        key = (node_key(call), call.checked_type, tuple(names))
        return self._values.get(key, lambda: evaluate_call(call, *given))

    def _name(self, value: Any) -> Hashable | None:
        """What tells a value from all others: its bits, dtype and shape."""
        if isinstance(value, (tuple, list)):
            names = [self._name(part) for part in value]
            return None if None in names else (type(value), *names)
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            return None
        named: tuple[np.ndarray, Hashable] = self._names.get(id(value), lambda: (value, _bits(value)))
        return named[1]


class _Lately:
    """What was asked for in this turn and the last; ``MOST`` bytes of it."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Any] = {}
        self._now: dict[Hashable, Any] = {}
        self._nbytes = 0

    def turn(self) -> None:
        self._last, self._now, self._nbytes = self._now, {}, 0

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key in self._now:
            return self._now[key]
        found = self._last.pop(key) if key in self._last else make()
        self._nbytes += _nbytes(found)
        if self._nbytes <= MOST:
            self._now[key] = found
        return found


def _bits(value: np.ndarray) -> Hashable:
    return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest()


def _nbytes(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_nbytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0
