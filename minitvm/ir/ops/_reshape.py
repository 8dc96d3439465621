"""Relay's rules for the target shape of ``reshape``."""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.ir.dims import Dim, anonymous, differ, product
from minitvm.ir.op import Op
from minitvm.ir.types import Shape, TensorType

_REST = -1
_COPY_ALL, _MERGE, _SPLIT = -2, -3, -4


def resolve_reshape(op: Op, x: TensorType, newshape: Sequence[int], allowzero: bool) -> Shape:
    """``newshape`` with its special values replaced; rejects the call where the sizes cannot agree."""
    try:
        shape, open_at = _expand(x.shape, newshape, allowzero)
    except ValueError as error:
        raise op.reject(f"newshape {list(newshape)} does not fit {x}: {error}") from None
    if open_at is not None:
        shape[open_at] = _remaining(x.shape, shape[:open_at] + shape[open_at + 1 :])
    if -1 in shape or differ(product(x.shape), product(shape)):
        raise op.reject(f"{x} cannot have shape {list(newshape)}: the numbers of elements differ")
    return tuple(shape)


def _expand(source: Shape, newshape: Sequence[int], allowzero: bool) -> tuple[list[Dim], int | None]:
    """The target, and where it has its -1.  Each entry uses up dimensions of ``source`` from the left."""
    result: list[Dim] = []
    entries = list(newshape)
    open_at: int | None = None
    at = 0
    while entries:
        entry = entries.pop(0)
        if entry == _REST:
            if open_at is not None:
                raise ValueError("more than one -1")
            open_at = len(result)
            result.append(_REST)
        elif entry == 0 and not allowzero:
            result.append(_dim(source, at))
        elif entry == _COPY_ALL:
            result += source[at:]
            at = len(source) - 1
        elif entry == _MERGE:
            result.append(product((_dim(source, at), _dim(source, at + 1))))
            at += 1
        elif entry == _SPLIT:
            if len(entries) < 2:
                raise ValueError("-4 takes the two numbers that follow it")
            result += _split(_dim(source, at), entries.pop(0), entries.pop(0))
        elif entry < _SPLIT:
            raise ValueError(f"{entry} means nothing")
        else:
            result.append(entry)
        at += 1
    return result, open_at


def _dim(source: Shape, at: int) -> Dim:
    if at >= len(source):
        raise ValueError(f"it refers to dimension {at}")
    return source[at]


def _split(extent: Dim, first: int, second: int) -> list[Dim]:
    """One dimension as two, of which one may be -1."""
    if -1 not in (first, second):
        return [first, second]
    known = second if first == -1 else first
    rest = extent // known if known else 0
    return [rest, second] if first == -1 else [first, rest]


def _remaining(source: Shape, others: Sequence[Dim]) -> Dim:
    """What -1 stands for: -1 where no number fits.  Symbols and zeros cancel where both sides have as many."""
    given, used = list(source), list(others)
    for dim in others:
        if dim in given and (dim == 0 or not isinstance(dim, int)):
            given.remove(dim)
            used.remove(dim)
    if 0 in given:
        return 0
    total, known = product(given), product(used)
    if known == 0:
        return -1 if isinstance(total, int) else anonymous()
    if isinstance(total, int) and isinstance(known, int) and total % known:
        return -1
    return total // known
