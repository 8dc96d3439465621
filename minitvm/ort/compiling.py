"""An ONNX model and the libraries it is compiled to: for all shapes, for those that come again, for values."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from minitvm.errors import LibraryError, MiniTVMError, TypeInferenceError, UnknownValueError
from minitvm.frontend import ModelDescription, keep_files
from minitvm.ir.decision import Decision
from minitvm.ir.types import STRING, MapType, SequenceType, TensorType
from minitvm.ort.again import Again
from minitvm.ort.declared import check_declared, check_given, declared_shapes, declared_type, nothing_of, with_values
from minitvm.ort.growing import Growing
from minitvm.ort.loaded import write
from minitvm.ort.plain import Plain
from minitvm.ort.shelf import Shelf
from minitvm.ort.symbolic import Measured, Shapes, SymbolicLibraries
from minitvm.runtime.bind import DoesNotFit
from minitvm.runtime.bound import Bound
from minitvm.runtime.checks import check_input, check_shapes, dictionary
from minitvm.runtime.code import code_for
from minitvm.runtime.devices import HOST, Device, Memory, device_of, memory_of
from minitvm.runtime.direct import AS_EVER, How
from minitvm.runtime.graph import HostCall
from minitvm.runtime.lasting import Lasting
from minitvm.runtime.library import Library
from minitvm.runtime.specialised import Specialisations, Specialised
from minitvm.target import Target

if TYPE_CHECKING:  # what compiles is imported where something is compiled
    from minitvm.driver.kernels import Progress
    from minitvm.models import Model
    from minitvm.ort.open_models import Imported

Arrays: TypeAlias = Mapping[str, np.ndarray]
Make: TypeAlias = Callable[[Shapes, Arrays], Specialised]
"""What makes a library for shapes and values."""

VALUE_LIMIT = 256
"""Elements of an input for whose values the model may be compiled: a shape, axes, sizes, pads, a repetition."""

_LEAVES_MUCH = 0.3
"""Seconds of compiling that leave so many objects that Python's collector would soon look through all there are."""


@dataclass(frozen=True)
class CompileOptions:
    """The way in which a session compiles its model, as the arguments of :class:`minitvm.InferenceSession` have it."""

    shape_dict: Mapping[str, Sequence[int | str]] | None
    num_threads: int
    opt_level: int
    strict: bool
    specialisations: int
    symbolic: bool
    specialise_after: int | None
    on_progress: Progress | None


class Compiling:
    """What an ONNX model is compiled to, as runs ask for it.

    Models with open dimensions are compiled once for all shapes where their operators allow it (``symbolic``), else for
    the shapes they are first run with, or prepared for; models whose shapes depend on the values of small inputs
    (sizes, axes) for those values.  The ``specialisations`` used last are kept, their equal weights once.  May be used
    by several threads at once: who meets new shapes waits for their compilation, nobody else does.

    The ``model`` is one that is held (``frontend.hold``): what is compiled later is what was opened.

    Shapes that come again and again get kernels of their own, compiled beside the runs: as soon as runs of one shape
    have taken as long as compiling did, or there were ``specialise_after`` of them (0: never).
    """

    def __init__(
        self,
        model: Model,
        target: Target,
        description: ModelDescription,
        options: CompileOptions,
        shelf: Shelf | None = None,
        is_new: bool = True,
    ) -> None:
        self._shelf = shelf or Shelf()
        self._model, self.target, self._options, self.description = model, target, options, description
        self._inputs = {v.name: v for v in self.description.inputs}
        self._types = {v.name: declared_type(v) for v in self.description.inputs}
        self._tensors = {name: type_ for name, type_ in self._types.items() if isinstance(type_, TensorType)}
        self._declared = declared_shapes(options.shape_dict, self._inputs)
        self._lock, self._kept = threading.Lock(), Specialisations(options.specialisations)
        self._symbolic = SymbolicLibraries(self._compiled_symbolic)
        self._imported: list[Imported] = []  # as the model was found consistent, until it is compiled
        self._cost = 0.0  # seconds that compiling for all shapes took
        self.worker: ThreadPoolExecutor | None = None
        self.compiled_beside: list[Decision] = []
        self._by_value: set[str] = set()
        self._host_calls: dict[HostCall, None] = {}
        self._only: Specialised | None = None  # where all shapes are known: the one library there is
        self._plain: tuple[Plain, Bound | None] | None = None  # for inputs that are, one for all shapes
        is_closed = all(None not in type_.sizes for type_ in self._tensors.values())
        if is_new:
            if not is_closed:
                from minitvm.ort.open_models import require_consistent

                found = require_consistent(model, self._names())
                self._imported += found if options.symbolic else []
            self._shelf.keep_description(description, model)
        if is_closed:
            self._compile_at_once({name: type_.shape for name, type_ in self._tensors.items()})
        if self._only is None and keep_files(model):
            self._imported.clear()  # it has its weights in the files
        in_place = options.symbolic and self._declared.keys().isdisjoint(description.grown)
        self._growing = Growing.of(description, self._shelf, self._make_symbolic) if in_place else None

    def _names(self) -> dict[str, list[int | str]]:
        """What inputs' dimensions were said to be."""
        return {name: [declared.dim for declared in shape] for name, shape in self._declared.items()}

    def _compile_at_once(self, shapes: Mapping[str, Any]) -> None:
        """Compiles for the model's own shapes, unless more than shapes must be known."""
        try:
            self._only = self._specialised(shapes, {})
        except UnknownValueError as error:
            if not error.inputs or any(math.prod(shapes[name]) > VALUE_LIMIT for name in error.inputs):
                raise
            self._by_value.update(error.inputs)
        else:
            self._plain = Plain(self._types), None

    # --- description ---

    @property
    def host_calls(self) -> list[HostCall]:
        """Operators that run in Python, of all shapes compiled so far."""
        return list(self._host_calls)

    @property
    def inputs_by_value(self) -> list[str]:
        """Inputs for whose values the model is compiled, as far as runs have shown: shapes depend on them."""
        return [name for name in self._inputs if name in self._by_value]

    @property
    def symbolic(self) -> Decision | None:
        """The decision whether one library serves all shapes, else why not; ``None`` as long as no run has asked for
        it."""
        found = self._symbolic.done()
        refused = next((one for one in found if isinstance(one, Decision)), None)
        if refused is not None or not found:
            return refused
        times = "compiled once" if len(found) == 1 else f"compiled {len(found)} times, for what sizes decide"
        return Decision("session", "kernels for all shapes", True, times)

    @property
    def libraries(self) -> list[Library]:
        """The libraries compiled so far and kept: those for all shapes, then others, the one used last at the end."""
        symbolic = [one for one in self._symbolic.done() if isinstance(one, Library) and one.artifact.is_open]
        symbolic += [] if self._growing is None else self._growing.libraries
        return symbolic + [kept.own for kept in self._kept.all() if not (kept.symbolic and symbolic)]

    def prepare(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any] | None = None) -> None:
        """Compile for shapes of the inputs before they are met; those of fixed shapes need not be given.

        The kernels are those for these numbers, which may be faster than those for all.  ``values`` are those of inputs
        that shapes depend on.  Raises what :meth:`run` raises.
        """
        given: dict[str, Any] = {name: t.shape for name, t in self._tensors.items() if None not in t.sizes}
        given |= check_shapes(shapes)
        found = dictionary(values or {}, "values", "{name: array}")
        arrays = {name: np.asarray(value) for name, value in found.items()}
        given |= {name: array.shape for name, array in arrays.items()}
        stand_ins = {name: np.broadcast_to(np.zeros((), self._dtype(name)), shape) for name, shape in given.items()}
        held = {name: nothing_of(t) for name, t in self._types.items() if isinstance(t, (SequenceType, MapType))}
        checked = self._checked(held | stand_ins | arrays)
        known = {name: checked[name] for name in arrays}
        self._specialised({name: checked[name].shape for name in self._tensors}, known, self._compile)

    def save(self, path: str | Path, key: Any = None) -> None:
        """Write what was compiled so far as one library: for all shapes, for those that were prepared or met; weights
        once.  :func:`minitvm.load` reads it, and its ``run`` takes what serves the shapes of what it is given.

        Kernels for all shapes are compiled where nothing is yet.  Raises :class:`LibraryError` where they cannot be,
        and what :meth:`Library.save` raises.
        """
        write(self.to_save(), path, key)

    def to_save(self) -> list[Library]:
        """What a file of this model holds; :class:`LibraryError` where there is nothing."""
        found = [one.own for one in self._kept.all() if not one.symbolic]
        if not found and not self._symbolic.done():
            self._symbolic.any({})
        symbolic = self._symbolic.done()
        found = [one for one in symbolic if isinstance(one, Library)] + found
        if not found:
            hint = "compile it for shapes before: session.prepare({name: shape})"
            raise LibraryError(f"nothing is compiled that could be saved: {symbolic[0]}", hint=hint)
        return found

    def _dtype(self, name: str) -> str:
        found = self._types[name].dtype if name in self._types else "float32"
        return "U1" if found == STRING else found

    # --- running ---

    def run(self, feeds: Mapping[str, Any], how: How = AS_EVER) -> list[Any]:
        """Runs the model; all results.

        Raises :class:`InputError` for a missing or unknown input, a wrong dtype, rank or shape; the first run for a
        shape may raise what compiling raises.
        """
        if self._growing is not None and how.into:
            results = self._growing.run(feeds, how, self._checked)
            if results is not None:
                return results
        ready = self._ready(feeds)
        found, checked = self.found(feeds) if ready is None else (ready, dict(feeds))
        try:
            results = found.run(checked, how)
        except DoesNotFit as error:
            return self._run_otherwise(found, checked, how, error)
        self.has_run(found, checked)
        return results

    def has_run(self, found: Specialised, feeds: Mapping[str, Any]) -> None:
        """Kernels of their own are compiled for shapes that are worth it."""
        if found.is_worth(self._cost, self._options.specialise_after):
            with self._lock:
                self.worker = self.worker or ThreadPoolExecutor(1, "minitvm-beside")
            with contextlib.suppress(RuntimeError):  # the process is ending
                self.worker.submit(self._compile_beside, {name: feeds[name].shape for name in self._tensors})

    def again(self, feeds: dict[str, Any], into: Mapping[int, np.ndarray]) -> Again | None:
        """What runs bound inputs and results as the last run did; ``None`` where each run looks at all of them."""
        plain, opened = self._plain or (None, None)
        values = None if plain is None or self._by_value else plain.values(feeds)
        if plain is None or opened is None or values is None or (self._growing is not None and into):
            return None
        return Again.of(self, Lasting(feeds, into), plain, self.at(opened, values, feeds))

    def found(self, feeds: Mapping[str, Any]) -> tuple[Specialised, dict[str, Any]]:
        """What runs these inputs, and the inputs as it takes them; raises what :meth:`run` raises."""
        checked = self._checked(feeds)
        return self._specialised({name: checked[name].shape for name in self._tensors}, checked), checked

    def _run_otherwise(self, than: Specialised, feeds: dict[str, Any], how: How, error: DoesNotFit) -> list[Any]:
        """A run in which sizes that the data decide are others than ``than`` is for."""
        shapes = {name: feeds[name].shape for name in self._tensors}
        for library in self._symbolic.others(shapes, than.library, error):
            try:
                results = library.call(feeds, how)
            except DoesNotFit as again:
                error.measured = again.measured
            else:
                self._kept.put(tuple(shapes.values()), Specialised(library, frozenset(), True))
                return results
        self._kept.drop(tuple(shapes.values()))
        return self._specialised(shapes, feeds, self._compile_plain).run(feeds, how)

    def _compile_plain(self, shapes: Shapes, values: Arrays) -> Specialised:
        return Specialised(self._make(shapes, values, {}), frozenset(values))

    def _compile_beside(self, shapes: Shapes) -> None:
        about = f"kernels for {', '.join(f'{name} {shape}' for name, shape in shapes.items())}"
        try:
            self._specialised(shapes, {}, partial(self._compile, on_progress=None))
        except Exception as error:  # the kernels for all shapes go on serving; nobody waits here
            from minitvm.ort.open_models import reason_of

            if _is_ending(error):
                return
            self.compiled_beside.append(Decision("session", about, False, reason_of(error)))
            if not isinstance(error, MiniTVMError):
                found = (*sys.exc_info(), threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(found))
        else:
            self.compiled_beside.append(Decision("session", about, True, "compiled beside the runs"))

    def _ready(self, feeds: Mapping[str, Any]) -> Specialised | None:
        """What runs these arrays where nothing has to be checked or converted: the one library, or one for all shapes
        at theirs; ``None``: :meth:`found` says."""
        plain, opened = self._plain or (None, None)
        values = None if plain is None or self._by_value else plain.values(feeds)
        if values is None or opened is None:
            return None if values is None else self._only
        return self.at(opened, values, feeds)

    def at(self, opened: Bound, values: Mapping[str, int], feeds: Mapping[str, Any]) -> Specialised | None:
        """What runs at these values of the symbols of a library for all shapes; ``None`` where it does not fit."""
        for name, declared in self._declared.items():
            check_declared(name, feeds[name].shape, declared)
        key = tuple([feeds[name].shape for name in self._tensors])
        try:
            return self._kept.known(key) or self._kept.put(key, Specialised(opened.at(values), frozenset(), True))
        except DoesNotFit:
            return None

    def _checked(self, input_feed: Mapping[str, Any]) -> dict[str, Any]:
        check_given(input_feed, self._inputs)
        memory = self._memory(input_feed)
        found = {name: check_input(name, input_feed[name], type_, memory) for name, type_ in self._types.items()}
        for name, declared in self._declared.items():
            check_declared(name, found[name].shape, declared)
        return found

    def _memory(self, feed: Mapping[str, Any]) -> Memory:
        """What inputs may be in beside the host's: the device's is asked for where one is not there."""
        if all(type(value) is np.ndarray or device_of(value) == HOST.device for value in feed.values()):
            return HOST
        return memory_of(Device(code_for(self.target.kind).device_kind))

    def _specialised(self, shapes: Shapes, feeds: Arrays, make: Make | None = None) -> Specialised:
        given = {name: feeds[name] for name in self._tensors if name in feeds}
        small = {name: np.asarray(value) for name, value in given.items() if value.size <= VALUE_LIMIT}
        values = {name: small[name] for name in self._by_value if name in small}
        return with_values(partial(self._kept_for, make, shapes), values, small)

    def _kept_for(self, make: Make | None, shapes: Shapes, values: Arrays) -> Specialised:
        known = [values[name].tobytes() for name in sorted(values)]

        def made() -> Specialised:
            found = (make or self._made)(shapes, values)
            with self._lock:
                self._by_value.update(values)
                self._host_calls.update(dict.fromkeys(found.library.host_calls))
            return found

        return self._kept.get((*(shapes[name] for name in self._tensors), *known), made, make is not None)

    def _made(self, shapes: Shapes, values: Arrays) -> Specialised:
        """Of the symbolic library where there is one and it fits, else compiled."""
        library = None if values else self._symbolic.bound(shapes)
        if library is not None:
            if isinstance(library, Bound) and library.opened.artifact.inputs.keys() == self._types.keys():
                self._plain = Plain(library.opened.artifact.inputs), library
            return Specialised(library, frozenset(), True)
        try:
            return self._compile(shapes, values)
        except TypeInferenceError:
            self._symbolic.forget_refusal()
            raise

    def _compiled_symbolic(self, shapes: Shapes, measured: Measured) -> Library | Decision:
        """For all shapes for which sizes decide as these do, or why not."""
        if not self._options.symbolic:
            return Decision("session", "kernels for all shapes", False, "the session was asked for none")
        found, self._cost = self._shelf.symbolic(shapes, partial(self._make_symbolic, shapes, measured))
        self._imported.clear()
        return found

    def _make_symbolic(
        self, shapes: Shapes, measured: Measured, grown: Mapping[str, tuple[int, int]] = MappingProxyType({})
    ) -> Library | Decision:
        from minitvm.models import NEEDS_NUMBERS
        from minitvm.ort.open_models import compile_symbolic, reason_of

        start = time.perf_counter()
        given = self._options
        how: dict[str, Any] = {"num_threads": given.num_threads, "on_progress": given.on_progress, "grown": grown}
        how |= {"shape_dict": self._names(), "sample": shapes, "measured": measured, "imported": self._imported}
        try:
            found = compile_symbolic(self._model, self.target, given.opt_level, **how)
        except NEEDS_NUMBERS as error:  # the session goes on with them, and says so
            return Decision("session", "kernels for all shapes", False, reason_of(error))
        if gc.isenabled() and time.perf_counter() - start > _LEAVES_MUCH:
            gc.collect()  # a run soon after would do it, for which all threads would wait
        return found

    def _compile(self, shapes: Shapes, values: Arrays, **options: Any) -> Specialised:
        if any(isinstance(one, Library) and one.is_staged for one in self._symbolic.done()):
            options = {**options, "staged": True}
        library = self._shelf.own(shapes, values, partial(self._make, shapes, values, options))
        return Specialised(library, frozenset(values))

    def _make(self, shapes: Shapes, values: Arrays, options: Mapping[str, Any]) -> Library:
        from minitvm.models import compile

        open_shapes = {name: shape for name, shape in shapes.items() if None in self._tensors[name].sizes}
        given = self._options
        how = {"num_threads": given.num_threads, "strict": given.strict, "on_progress": given.on_progress, **options}
        return compile(self._model, self.target, given.opt_level, open_shapes, value_dict=values, **how)


def _is_ending(error: Exception) -> bool:
    """True if a thread was refused as the process ends: Python has no class for it."""
    return isinstance(error, RuntimeError) and "interpreter shutdown" in str(error)
