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
        names: dict[TensorType, list[str]] = {}
        for name, type_ in types.items():
            if isinstance(type_, TensorType) and is_numeric(type_) and not any(map(_is_unknown, type_.shape)):
                names.setdefault(type_, []).append(name)
        self._count = len(types)
        self._types = [(some, numpy_dtype(type_.dtype), type_.shape) for type_, some in names.items()]

    def values(self, feeds: Any) -> dict[str, int] | None:
        """What the symbols of the types stand for; ``None`` where the inputs have to be looked at more closely."""
        if type(feeds) is not dict or len(feeds) != self._count:
            return None
        found: dict[str, int] = {}
        seen = 0
        for names, dtype, dims in self._types:
            shape = None
            for name in names:
                value = feeds.get(name)
                if type(value) is not np.ndarray or value.dtype is not dtype:
                    return None
                if value.shape != shape:
                    if shape is not None or not _are(value.shape, dims, found):
                        return None
                    shape = value.shape
            seen += len(names)
        return found if seen == self._count else None


def _is_unknown(dim: Dim) -> bool:
    return isinstance(dim, SymbolicDim) and dim.is_anonymous


def _are(shape: tuple[int, ...], dims: tuple[Dim, ...], found: dict[str, int]) -> bool:
    """True if it is the shape of such dimensions; adds what symbols stand for that nobody has found yet."""
    if len(shape) != len(dims):
        return False
    for extent, dim in zip(shape, dims, strict=True):
        if extent != (found.setdefault(dim.atom.of[0], extent) if isinstance(dim, SymbolicDim) else dim):
            return False
    return True
