"""What is compiled of a model, kept for the processes to come: they map it, and neither import nor compile.

An entry's key is made of all that decides what a compilation gives: the model's bytes and those of the files that its
weights are in, the session's options, the target and the CPU, the compiler and what it is made with.  Where something
decides that no key names (a user's operators, passes or options of a ``PassContext``, a library of others), nothing is
kept and nothing is found.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from minitvm import config
from minitvm.errors import MiniTVMError, UnknownValueError, is_own
from minitvm.frontend.description import ModelDescription, ValueDescription
from minitvm.frontend.files import File, Files
from minitvm.frontend.held import HeldModel, external_file
from minitvm.ir.decision import Decision
from minitvm.ort.symbolic import MOST_KEPT, Shapes, bound_to
from minitvm.runtime.cache import KernelCache, cache_key
from minitvm.runtime.document import values_form
from minitvm.runtime.kept import LibraryCache
from minitvm.runtime.library import Library
from minitvm.target import Target

if TYPE_CHECKING:
    from minitvm.models import Model

Json: TypeAlias = Any
Make: TypeAlias = Callable[[], Library]

_SETTLED_NS = 2_000_000_000
"""How long ago a file must have been written to, for its times to tell it from what is written later."""
_PIECE, _SAMPLE = 1 << 22, 1 << 14
SAMPLED = 1 << 26
"""Bytes of a file that is hashed as a whole; of a larger one samples are."""


class Shelf:
    """The libraries of one model, compiled in one way.  Without a key nothing is kept and nothing found."""

    def __init__(self, key: str = "") -> None:
        folder = config.cache_dir() if key else None
        self._key = key
        self._records, self._libraries = KernelCache(folder), LibraryCache(folder)
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._files, self._named = Files(), frozenset[str]()

    # --- what goes into the model and what comes out ---

    def description(self, model: Model) -> ModelDescription | None:
        """The description of a model that was opened before, with the files that its weights are in as they were
        then."""
        found = self._record("description")
        if found is None or not isinstance(model, (HeldModel, bytes)):
            return None
        try:
            now = {name: self._file(external_file(name, model.files, [])) for name in found["files"]}  # type: ignore[union-attr]
        except (MiniTVMError, OSError):  # said where the model is read
            return None
        if now != found["files"]:
            return None
        self._hold(model)
        self._key = cache_key(self._key, json.dumps(now))
        return _described(found)

    def keep_description(self, said: ModelDescription, model: Model) -> None:
        """Keeps the description of a model that was opened: what is compiled of it can be found from now on."""
        if not self._key or any(value.held is not None for value in (*said.inputs, *said.outputs)):
            self._key = ""
            return
        self._hold(model)
        found = {name: self._file(file) for name, file in _others(model).items()}
        inputs, outputs = ([_value_form(value) for value in values] for values in (said.inputs, said.outputs))
        said_of = {"metadata": dict(said.metadata), "buffers": dict(said.buffers), "grown": dict(said.grown)}
        said_of["windows"] = dict(said.windows)
        form = {"inputs": inputs, "outputs": outputs, **said_of, "files": found}
        self._keep_record(form, "description")
        self._key = cache_key(self._key, json.dumps(found))

    def beside(self, form: str) -> Shelf:
        """The shelf of the same model in another form."""
        found = Shelf(self._key and cache_key(self._key, form))
        found._files, found._named = self._files, self._named
        return found

    def _hold(self, model: Model) -> None:
        """The key names the bytes that the model's files have now: from now on, what is written into them is an error,
        whether something is compiled or found."""
        self._files = model.files if isinstance(model, HeldModel) else Files()
        self._named = frozenset(self._files.opened)

    def _file(self, file: File) -> str:
        return digest_of(file, self._records)

    # --- libraries ---

    def own(self, shapes: Shapes, values: Mapping[str, np.ndarray], make: Make) -> Library:
        """The library for these shapes and values; made where it is not there.  Raises what ``make`` raises."""
        what = ("own", _shapes_form(shapes), values_form(values) if self._key else None)
        kept = self._found(make, *what)
        if kept is not None:
            return kept[0]
        unknown = self._record("unknown", *what)
        if unknown is not None:
            raise _unknown(**unknown)
        try:
            made = make()
        except UnknownValueError as error:
            form = {"message": error.message, "where": error.where, "hint": error.hint, "inputs": error.inputs}
            self._keep_record(form, "unknown", *what)
            raise
        self._keep(made, 0.0, *what)
        return made

    def symbolic(self, shapes: Shapes, make: Callable[[], Library | Decision]) -> tuple[Library | Decision, float]:
        """One for all shapes that serves these, or why there is none; and the seconds that it took to make it."""
        numbers = range(MOST_KEPT) if shapes else (-1,)
        with self._lock:
            for number in (n for n in numbers if n not in self._taken):
                kept = self._found(make, "symbolic", number)
                if kept is None:
                    break
                if not shapes or bound_to(kept[0], shapes) is not None:
                    self._taken.add(number)
                    return kept
            else:
                number = len(numbers)
        refused = self._record("refused", _shapes_form(shapes))
        if refused is not None:
            return Decision(**refused), 0.0
        start = time.perf_counter()
        made = make()
        seconds = time.perf_counter() - start
        if isinstance(made, Decision):
            form = {"by": made.by, "about": made.about, "taken": made.taken, "reason": made.reason}
            self._keep_record(form, "refused", _shapes_form(shapes))
        elif number < MOST_KEPT:
            self._taken.add(number)
            self._keep(made, seconds, "symbolic", number)
        return made, seconds

    def _found(self, make: Callable[[], Any], *what: Json) -> tuple[Library, float] | None:
        kept = self._libraries.find(self._name(*what)) if self._key else None
        if kept is None:
            return None
        self._files.require_unchanged()
        found = Library(kept.artifact, again=make)
        if found.host_calls:
            from minitvm.driver.program import announce  # most have none

            announce(kept.artifact.host_calls, strict=False)
        return found, float(kept.notes)

    def _keep(self, library: Library, seconds: float, *what: Json) -> None:
        if self._key and self._is_as_opened():
            self._libraries.keep(self._name(*what), library.artifact, seconds)

    # --- what is known beside them ---

    def _is_as_opened(self) -> bool:
        """True if what is made of the model is made of the bytes that the key names, and of no other file's."""
        try:
            self._files.require_unchanged()
        except MiniTVMError:
            return False
        return self._named.issuperset(self._files.opened)

    def _name(self, *what: Json) -> str:
        return cache_key("session", self._key, json.dumps(what))

    def _record(self, *what: Json) -> Json:
        found = self._records.get(self._name(*what)) if self._key else None
        return None if found is None else json.loads(found)

    def _keep_record(self, form: Json, *what: Json) -> None:
        if self._key and self._is_as_opened():
            self._records.put(self._name(*what), json.dumps(form).encode())


def _shapes_form(shapes: Shapes) -> Json:
    return {name: [int(extent) for extent in shape] for name, shape in shapes.items()}


def _value_form(value: ValueDescription) -> Json:
    return [value.name, value.type, value.dtype, list(value.shape), value.has_rank]


def _described(form: Json) -> ModelDescription:
    inputs, outputs = (
        tuple(
            ValueDescription(name, type_, dtype, tuple(shape), ranked) for name, type_, dtype, shape, ranked in values
        )
        for values in (form["inputs"], form["outputs"])
    )
    grown = {name: (output, axis) for name, (output, axis) in form.get("grown", {}).items()}
    held = {"buffers": form.get("buffers", {}), "grown": grown, "windows": form.get("windows", {})}
    return ModelDescription(inputs, outputs, metadata=form["metadata"], **held)


def _value(name: str, type_: str, dtype: str, shape: list[int | str | None], has_rank: bool) -> ValueDescription:
    return ValueDescription(name, type_, dtype, tuple(shape), has_rank)


def _unknown(message: str, where: list[str], hint: str | None, inputs: list[str]) -> UnknownValueError:
    error = UnknownValueError(message, where=where, hint=hint)
    error.inputs = tuple(inputs)
    return error


# --- the key ----------------------------------------------------------------------------------------------------------


def shelf_of(model: Model, target: Target, options: Mapping[str, Any]) -> Shelf:
    """The place where libraries of a model are kept, compiled with these ``options`` of a session."""
    cache = KernelCache(config.cache_dir())
    by_objects = target.kind == "llvm" and not target.libs
    if not by_objects or not isinstance(model, (HeldModel, bytes)) or not _is_as_shipped() or not cache.is_usable():
        return Shelf()
    given = sorted((name, repr(value)) for name, value in options.items())
    return Shelf(cache_key("model", _model_digest(model, cache), str(target), str(given), *_surroundings()))


def _model_digest(model: HeldModel | bytes, cache: KernelCache) -> str:
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    return f"{model.name}:{digest_of(model.files.opened[model.name], cache)}"


def _others(model: Model) -> dict[str, File]:
    """The files beside the model's own that were opened."""
    if not isinstance(model, HeldModel):
        return {}
    return {name: file for name, file in model.files.opened.items() if name != model.name}


def digest_of(file: File, cache: KernelCache) -> str:
    """What names the bytes of a file: their SHA-256.  It is read once: after that its number, size and times tell that
    it is the same file, unless it was written to within the two seconds before it was read.

    Those times name a large file from the first time on, together with a sample of its bytes, where it was not written
    to just before: gigabytes take as long to hash as all passes.  A copy of it is another file.
    """
    before = file.identity()
    key = cache_key("file", *map(str, before))
    known = cache.get(key)
    if known is not None:
        return known.decode()
    is_settled = time.time_ns() - max(before[-2:]) > _SETTLED_NS
    hashed = cache_key("hashed", *map(str, before[1:3]))
    if len(file) <= SAMPLED:
        digest = _hash_of(file, _PIECE)
    elif is_settled and cache.get(hashed) is None:  # on whatever device, as they have other numbers when mounted again
        digest = cache_key("sampled", *map(str, before[1:]), _hash_of(file, _SAMPLE))
    else:
        digest = _hash_of(file, _PIECE)
        cache.put(hashed, b"\n")  # whoever opens it later finds what is made of it now
    if is_settled and file.identity() == before:
        cache.put(key, digest.encode())
    return digest


def _hash_of(file: File, most: int) -> str:
    """SHA-256 of the first bytes, at most so many, of each piece of a file."""
    digest = hashlib.sha256()
    for start in range(0, len(file), _PIECE):
        digest.update(file[start : start + most])
    return digest.hexdigest()


_VARIABLES = ("MINITVM_CPU", "MINITVM_MAX_TRIPS")
_PACKAGES = ("numpy", "onnx", "llvmlite", "ml_dtypes")
_SOURCES = (".py", ".ll", ".jsonl")


def _surroundings() -> Iterator[str]:
    """This machine, and what compiles on it."""
    from minitvm.runtime.native import this_machine

    yield from map(config.read, _VARIABLES)
    yield str(this_machine())
    yield from _compiler()


@functools.cache
def _compiler() -> tuple[str, ...]:
    """The compiler's files and those of the packages that it is made with: names, sizes and times, which a new version
    changes; to read them would take longer than all the rest."""
    root = Path(__file__).parents[1]
    packages = (importlib.util.find_spec(name) for name in _PACKAGES)
    origins = [package.origin for package in packages if package is not None and package.origin is not None]
    return (sys.version, str(root), str([_state(Path(origin)) for origin in origins]), str(sorted(_sources(root))))


def _sources(folder: Path | str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SOURCES):
                yield _state(entry)
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path)


def _state(file: Path | os.DirEntry[str]) -> tuple[str, int, int]:
    found = file.stat()
    return os.fspath(file), found.st_size, found.st_mtime_ns


# --- what no key names ------------------------------------------------------------------------------------------------


def _is_as_shipped() -> bool:
    """True if nobody has added to what compiles or chosen otherwise for it, and nobody listens to it.  What is not
    imported yet is as shipped."""
    asked = ("MINITVM_VERIFY", "MINITVM_PRINT_IR", "MINITVM_BUDGET")
    if any(config.read(name) not in ("", "0") for name in asked):
        return False
    return all(sys.modules.get(name) is None or is_plain(sys.modules[name]) for name, is_plain in _PLACES.items())


def _all_own(makers: Iterable[Any]) -> bool:
    return all(map(is_own, makers))


def _has_defaults(context: Any) -> bool:
    given = (context.required_pass, context.disabled_pass, context.config, context.given_instruments)
    return not any(given) and not context.placements


_PLACES: Mapping[str, Callable[[Any], bool]] = {
    "minitvm.frontend.onnx.registry": lambda m: _all_own(b for known in m.BUILDERS.values() for b in known.values()),
    "minitvm.ir.op": lambda m: _all_own(m.OPS.values()),
    "minitvm.codegen.problem": lambda m: (
        not m.OVERRIDES.get()
        and m.TRIED.get() is None
        and _all_own(template for known in m.TEMPLATES.table.values() for template in known)
    ),
    "minitvm.passes.context": lambda m: _has_defaults(m.PassContext.current()),
    "minitvm.passes.manager": lambda m: _all_own(m.PASSES.values()),
    "minitvm.ir.decision": lambda m: not m.listening(),
    "minitvm.ir.budget": lambda m: m.meter() is None,
}
"""By module: whether what is registered and set there is minitvm's own."""
