"""A model that is held: its files are open from now on, so that what is compiled later is what was opened.

Nothing here reads a model: ``onnx`` is imported where one is (``onnx/model.py``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from minitvm.errors import FrontendError, NoSuchFileError, NotAModelError
from minitvm.frontend.files import KEPT, File, Files
from minitvm.frontend.other_formats import framework_of

if TYPE_CHECKING:
    import onnx

ModelSource: TypeAlias = "onnx.ModelProto | str | os.PathLike[str] | bytes | LoadedModel | HeldModel"

_SHOWN = 80


@dataclass(frozen=True)
class LoadedModel:
    """A parsed model and the files that its weights are in."""

    proto: onnx.ModelProto
    files: Files


@dataclass(frozen=True)
class HeldModel:
    """An open file of a model, to be parsed as often as it is asked for."""

    files: Files
    name: str
    """Which of them it is."""


def hold(source: ModelSource) -> ModelSource:
    """The model as it is now, to be read again later: a file is open from now on, and what others may change is copied
    where it is small.  :func:`keep_files` copies files.

    Raises :class:`FrontendError` where there is no such file.
    """
    if isinstance(source, (bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, (str, os.PathLike)):
        return open_model(source)
    return source if isinstance(source, (bytes, LoadedModel, HeldModel)) else _copied(source)


def _copied(source: onnx.ModelProto) -> onnx.ModelProto:
    """A small model in memory; what is none is refused where it is read."""
    if not hasattr(source, "CopyFrom") or source.ByteSize() > KEPT:
        return source
    copy = type(source)()
    copy.CopyFrom(source)
    return copy


def keep_files(model: ModelSource) -> bool:
    """Keep in memory the files that were opened of a held model, where they are small; whether there were any."""
    return isinstance(model, (LoadedModel, HeldModel)) and model.files.keep()


def open_model(source: ModelSource) -> HeldModel:
    """The model in a file; :class:`FrontendError` where it is no path of one."""
    if not isinstance(source, (str, os.PathLike)):
        raise FrontendError(
            f"a model is a path, bytes or an onnx.ModelProto; found {type(source).__name__}",
            hint='from_onnx("model.onnx")',
        )
    path = Path(source)
    _require_file(path)
    try:
        file, place = File(path), path.resolve()
    except OSError as error:
        raise FrontendError(f"{path} cannot be read: {error.strerror}") from error
    files = Files(str(place.parent))
    files.opened[place.name] = file
    return HeldModel(files, place.name)


def _require_file(path: Path) -> None:
    if path.is_dir():
        foreign = framework_of(".pb" if (path / "saved_model.pb").exists() else path.suffix)
        if foreign is not None:
            raise foreign_error(path, *foreign)
        raise FrontendError(f"{path} is a folder, not an ONNX file", hint="give the path of the .onnx file inside it")
    if not path.exists():
        raise NoSuchFileError(f"there is no file {path}")


def foreign_error(path: Path | None, framework: str, exporter: str) -> NotAModelError:
    return NotAModelError(
        f"{path} is a {framework} file; minitvm reads ONNX models",
        hint=f"export the model to ONNX, for example with {exporter}",
    )


def external_file(location: str, files: Files, where: list[str]) -> File:
    """The file as it was when it was first asked for."""
    if location not in files.opened:
        path = _external_path(location, files.folder, where)
        try:
            files.opened[location] = File(path)
        except OSError as error:
            raise FrontendError(f"{path} cannot be read: {error.strerror}", where=where) from error
    return files.opened[location]


def _external_path(location: str, folder: str, where: list[str]) -> Path:
    if not str(folder):
        raise FrontendError(
            f"the model stores tensors in the file {location!r}, but was not given as a path",
            where=where,
            hint="call from_onnx with the path of the .onnx file, beside which that file lies",
        )
    root = Path(folder).resolve()
    named = repr(location if len(location) <= _SHOWN else f"{location[:_SHOWN]}...")
    try:
        path = (root / location).resolve()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null character, links in a circle
        raise FrontendError(
            f"external data {named} is no name of a file", where=where, hint="the model is damaged"
        ) from error
    if not location or not path.is_relative_to(root):
        raise FrontendError(
            f"external data {named} leaves the model's folder",
            where=where,
            hint="external data must lie in the folder of the .onnx file or below it",
        )
    if not is_file:
        raise FrontendError(
            f"external data {named} does not exist", where=where, hint=f"put the file into the model's folder, {root}"
        )
    return path
