"""Shapes and values of a model's inputs: those that the command line gives, and those that follow from them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np

from minitvm.cli.common import stderr
from minitvm.errors import ConfigError, MiniTVMError, did_you_mean, listing
from minitvm.frontend import ValueDescription, describe_onnx, from_onnx
from minitvm.runtime.library import Library

OpenDim: TypeAlias = int | str | None
"""A dimension: its size, or the name that the model gives it, if any."""


def open_inputs(path: Path) -> list[ValueDescription]:
    return [v for v in describe_onnx(path).inputs if not _is_known(v.shape)]


def completed(
    path: Path, shapes: Mapping[str, list[int]], values: Mapping[str, np.ndarray], choose: bool = False
) -> dict[str, list[int]]:
    """The shapes that are given, and those of other open inputs: what dimensions of the same name have, and 1 for a
    batch where nothing more is open.  :class:`ConfigError` names all inputs of which more is; ``choose`` takes
    :func:`usual` sizes for them."""
    inputs = {value.name: value.shape for value in describe_onnx(path).inputs}
    for name in shapes:
        if name not in inputs:
            hint = did_you_mean(name, inputs, most=3) or f"inputs: {listing(inputs)}"
            raise ConfigError(f"--shape names {name!r}, which is no input of {path.name}", hint=hint)
    pairs = (pair for name, shape in shapes.items() for pair in zip(inputs[name], shape, strict=False))
    sizes = {dim: size for dim, size in pairs if isinstance(dim, str)}
    missing = [value for value in open_inputs(path) if value.name not in {*shapes, *values}]
    rest = {v.name: [sizes.get(d, d) if isinstance(d, str) else d for d in v.shape] for v in missing}
    left = {name: shape for name, shape in rest.items() if not _is_known(shape)}
    if left and not _is_batch(left.values()):
        chosen = usual(path, {**left, **shapes}) if choose else {}
        if not chosen:
            raise left_open(left, path)
        said = " ".join(_example(*one) for one in chosen.items() if one[0] in left)
        stderr.print(f"sizes of open dimensions: {said} says others", markup=False)
        rest.update({name: [*shape] for name, shape in chosen.items()})
        left = {}
    return {**shapes, **{name: [*shape] for name, shape in _as_batch_of_one(rest, left).items()}}


def of_library(path: Path, library: Library) -> dict[str, list[int]]:
    """The shapes of a saved library's open inputs, where none are given: a batch of 1 where nothing more is open, else
    :class:`ConfigError`."""
    named = {n: [d if isinstance(d, int) else str(d) for d in shape] for n, shape in library.shapes[0].items()}
    left: dict[str, Sequence[OpenDim]] = {name: shape for name, shape in named.items() if not _is_known(shape)}
    if left and not _is_batch(left.values()):
        example = " ".join(_example(*one) for one in left.items())
        raise ConfigError(f"{path.name} leaves {_listed(left)}", hint=f"give them, for example {example}")
    return _as_batch_of_one(left, left)


def _as_batch_of_one(
    shapes: Mapping[str, Sequence[OpenDim]], left: Mapping[str, Sequence[OpenDim]]
) -> dict[str, list[int]]:
    """Shapes with 1 for what is open, which those that are ``left`` are told to have."""
    if left:
        stderr.print(f"a batch of 1: {' '.join(_example(*one) for one in left.items())} says another", markup=False)
    return {name: [d if isinstance(d, int) else 1 for d in shape] for name, shape in shapes.items()}


def _listed(shapes: Mapping[str, Sequence[OpenDim]]) -> str:
    found = (f"input {name!r} open: {list(shape)}" for name, shape in shapes.items())
    return f"dimensions of {' and '.join(found)}"


def _is_known(shape: Iterable[OpenDim]) -> bool:
    return all(isinstance(d, int) for d in shape)


def _is_batch(shapes: Iterable[Sequence[OpenDim]]) -> bool:
    """True if all that is open is one leading dimension, not the length of mere vectors."""
    found = list(shapes)
    return all(_is_known(s[1:]) for s in found) and len({s[0] for s in found}) == 1 and any(s[1:] for s in found)


def left_open(shapes: Mapping[str, Sequence[OpenDim]], path: Path, why: str = "") -> ConfigError:
    """Open dimensions are the command line's business: the hint is an option, not a Python argument."""
    return ConfigError(
        f"{path.name} leaves {_listed(shapes)}",
        where=[why] if why else [],
        hint="give them, for example " + " ".join(_example(*one) for one in (usual(path, shapes) or shapes).items()),
    )


_SIZES = (64, 224, 512, 32, 16, 1)
_MOST_IMPORTS = 24


def usual(path: Path, shapes: Mapping[str, Sequence[OpenDim]]) -> dict[str, list[int]]:
    """Sizes of open dimensions with which the model can be imported: a batch of 1, one usual size for all others, and 1
    for some of these where no size alone will do; nothing where none of them will."""
    for sizes in itertools.islice(_trials(shapes), _MOST_IMPORTS):
        found = {name: [sizes[_key(name, shape, at)] for at in range(len(shape))] for name, shape in shapes.items()}
        with suppress(MiniTVMError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from_onnx(path, found)
            return found
    return {}


def _trials(shapes: Mapping[str, Sequence[OpenDim]]) -> Iterator[dict[OpenDim, int]]:
    """Sizes by dimension (:func:`_key`); those of one name are equal, and lead together."""
    places = {_key(name, shape, at): at for name, shape in shapes.items() for at in range(len(shape))}
    batch = {
        _key(name, shape, 0): 1 for name, shape in shapes.items() if len(shape) > 1 and not isinstance(shape[0], int)
    }
    known = {key: key for key in places if isinstance(key, int)} | batch
    others = [key for key in places if key not in known]
    for size, *rest in itertools.product(_SIZES, *[(False, True)] * len(others)):
        yield {**known, **{key: 1 if is_one else size for key, is_one in zip(others, rest, strict=True)}}


def _key(name: str, shape: Sequence[OpenDim], at: int) -> OpenDim:
    """A dimension's size or name; of what has neither, a name of its own."""
    return f"{name}\n{at}" if shape[at] in (None, "") else shape[at]


def _example(name: str, shape: Sequence[OpenDim]) -> str:
    return f"--shape {name}:" + "x".join(str(d if isinstance(d, int) else 1) for d in shape)


def as_declared(path: Path, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers of the command line in the dtype and shape that the model gives its inputs."""
    declared = {value.name: value for value in describe_onnx(path).inputs}
    found = dict(values)
    for name in set(values) & set(declared):
        shape = [d if isinstance(d, int) else -1 for d in declared[name].shape] if declared[name].has_rank else [-1]
        try:
            found[name] = values[name].astype(declared[name].dtype).reshape(shape)
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"--value {name}: {error}", hint=f"the input is {list(declared[name].shape)}") from None
    return found
