"""Arrays that a run takes as they are, found to be so in one look at all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minitvm.ir.dims import Dim, SymbolicDim
from minitvm.ir.types import Leaf, TensorType, is_numeric, numpy_dtype


class Plain:
    """What inputs of such types are like where nothing has to be checked one by one, nor converted: a dictionary of
    exactly numpy's arrays, of the dtypes and shapes that are expected.  Many have one type, as a decoder's caches."""

    def __init__(self, types: Mapping[str, Leaf]) -> None:
        like: dict[TensorType, tuple[Any, tuple[int | str, ...]]] = {}
        self._like: dict[str, tuple[Any, tuple[int | str, ...]]] = {}
        for name, type_ in types.items():
            if isinstance(type_, TensorType) and is_numeric(type_) and not any(map(_is_unknown, type_.shape)):
                dims = tuple([dim.atom.of[0] if isinstance(dim, SymbolicDim) else dim for dim in type_.shape])
                self._like[name] = like.setdefault(type_, (numpy_dtype(type_.dtype), dims))
        self._count = len(types)
        named: dict[str, set[str]] = {}
        for name, (_, dims) in self._like.items():
            for symbol in (dim for dim in dims if isinstance(dim, str)):
                named.setdefault(symbol, set()).add(name)
        self._named: Mapping[str, set[str]] = named
        """By symbol, the inputs whose types name it."""

    def values(self, feeds: Any) -> dict[str, int] | None:
        """What the symbols of the types stand for; ``None`` where the inputs have to be looked at more closely."""
        if type(feeds) is not dict or len(feeds) != self._count:
            return None
        found = self._some(feeds)
        return None if found is None else {symbol: found[symbol] for symbol in self._named}

    def _some(self, feeds: Mapping[str, Any]) -> dict[str, int] | None:
        """Of the symbols that the types of these inputs name."""
        found: dict[str, int] = {}
        like = shape = None
        for name, value in feeds.items():
            own = self._like.get(name)
            if own is None or type(value) is not np.ndarray or value.dtype is not own[0]:
                return None
            if own is not like or value.shape != shape:
                like, shape = own, value.shape
                if not _are(shape, own[1], found):
                    return None
        return found

    def values_with(self, new: Mapping[str, Any], before: Mapping[str, int]) -> Mapping[str, int] | None:
        """:meth:`values` where these inputs are given anew and others as ``before``, which is returned where nothing
        else follows."""
        found = self._some(new)
        if found is None or found.items() <= before.items():
            return None if found is None else before
        other = [symbol for symbol, size in found.items() if before[symbol] != size]
        return {**before, **found} if all(new.keys() >= self._named[symbol] for symbol in other) else None


def _is_unknown(dim: Dim) -> bool:
    return isinstance(dim, SymbolicDim) and dim.is_anonymous


def _are(shape: tuple[int, ...], dims: tuple[int | str, ...], found: dict[str, int]) -> bool:
    """True if it is the shape of such dimensions; adds what symbols stand for that nobody has found yet."""
    if len(shape) != len(dims):
        return False
    for extent, dim in zip(shape, dims, strict=True):
        if extent != (found.setdefault(dim, extent) if dim.__class__ is str else dim):
            return False
    return True
