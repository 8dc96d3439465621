"""``InferenceSession``: ONNX models and saved libraries with ONNX Runtime's calls."""

from __future__ import annotations

import copy
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm import config
from minitvm.errors import ConfigError, InputError, LibraryError, MiniTVMError, stage, warn
from minitvm.frontend import ValueDescription, hold
from minitvm.ir.decision import Decision
from minitvm.ort.binding import IOBinding
from minitvm.ort.compiling import CompileOptions, Compiling
from minitvm.ort.declared import tell_sizes
from minitvm.ort.environment import CPU, CUDA, INFO, TARGETS, log, providers_of
from minitvm.ort.errors import BindingError
from minitvm.ort.loaded import Loaded
from minitvm.ort.opening import engine_of
from minitvm.ort.options import OptionWarning, RunOptions, SessionOptions, Settings, go_on
from minitvm.ort.profiling import Profiler
from minitvm.ort.values import OrtValue, held, value_of
from minitvm.runtime import archive
from minitvm.runtime.checks import unknown_name
from minitvm.runtime.code import code_for
from minitvm.runtime.direct import AS_EVER, How, copied_into
from minitvm.runtime.graph import HostCall
from minitvm.runtime.library import Library, load
from minitvm.target import Target

if TYPE_CHECKING:
    from minitvm.driver.kernels import Progress
    from minitvm.models import Model
    from minitvm.ort.varying import Varying

SPECIALISATIONS = 16
SUFFIX = ".mtvm"
_ZIP = b"PK\x03\x04"
"""What a library file begins with."""

Callback = Callable[[list[Any], Any, str], object]
"""Of ``run_async``: results, the user's data, what went wrong (nothing: an empty text)."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 2**63 - 1
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


class InferenceSession:
    """An ONNX model, or a saved library, ready to run with ONNX Runtime's calls.

    Code written for ONNX Runtime runs by changing the import; ``docs/from-onnxruntime.md`` says what each option of
    ``sess_options`` does here, and what is not offered.  ``providers`` choose the target where ``target`` does not: the
    first of ``CUDAExecutionProvider`` and ``CPUExecutionProvider`` that this machine has; others are warned of.

    The other options are minitvm's, and count more than those in ``sess_options``; :class:`Compiling` says how models
    with open dimensions are compiled.  Where kernels compiled beside the runs are refused, ``compiled_beside`` says
    why; what is no :class:`MiniTVMError` goes to ``threading.excepthook`` as well, which prints it.

    ``shape_dict`` says beforehand what dimensions will be: a number, a name, or a name with a bound, such as
    ``{"ids": ("batch<=8", "seq<=512")}``; other shapes are errors.  An error leaves the session as it was.
    """

    _make: Callable[[Target], Compiling | Varying | Loaded]
    _profiler: Profiler | None = None

    @stage("opening the session")
    def __init__(
        self,
        path_or_bytes: Model,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        target: str | Target | None = None,
        shape_dict: Mapping[str, Sequence[int | str]] | None = None,
        num_threads: int | None = None,
        opt_level: int | None = None,
        strict: bool = False,
        specialisations: int = SPECIALISATIONS,
        symbolic: bool = True,
        specialise_after: int | None = None,
        on_progress: Progress | None = None,
        enable_fallback: int = 1,
    ) -> None:
        start = time.perf_counter()
        _check_counts(specialisations, specialise_after)
        settings = self._settings = Settings.of(sess_options)
        self._options = copy.copy(sess_options) if isinstance(sess_options, SessionOptions) else sess_options
        self._asked = _asked(providers, provider_options, settings)
        asked = config.resolve_threads(settings.threads if num_threads is None else num_threads)
        self._shape_dict = shape_dict or {}
        self._threads = min(asked, config.usable_cpus())  # kernels are scheduled for those that run
        library = _library_of(path_or_bytes)
        if library is not None:
            _refuse_if_loaded({"target": target, "shape_dict": shape_dict, "opt_level": opt_level}, settings)
            self._make = lambda _: Loaded(library)
        else:
            level = settings.opt_level if opt_level is None else opt_level
            after = 0 if settings.deterministic and specialise_after is None else specialise_after
            ways = (specialisations, symbolic, after, on_progress)
            options = CompileOptions(shape_dict, self._threads, level, strict, *ways)
            self._make = partial(engine_of, hold(path_or_bytes), settings, options)
        self._engine = self._made(_target_of(self._asked) if target is None else Target.parse(target))
        self._begin(start)

    def _begin(self, start: float) -> None:
        """Does once what the options ask for."""
        settings = self._settings
        if settings.profile is not None:
            self._profiler = Profiler(settings.profile, self.get_providers()[0])
            self._profiler.session_event("session_initialization", start)
        if settings.save_as:
            self._save_optimized(settings.save_as)
        log(INFO, f"session ready after {time.perf_counter() - start:.3f} s", settings.severity, settings.logid)

    def _made(self, target: Target) -> Compiling | Varying | Loaded:
        """What compiles for a target."""
        engine = self._make(target)
        self._output_names = [value.name for value in engine.description.outputs]
        self._positions = {name: self._output_names.index(name) for name in self._output_names}
        return engine

    def _save_optimized(self, path: str) -> None:
        """What ``optimized_model_filepath`` asks for is a library here."""
        if Path(path).suffix != SUFFIX:
            warn(
                f"{path} holds a library of minitvm, no ONNX model: InferenceSession reads it, other programs do not",
                OptionWarning,
            )
        self.save(path)

    def __reduce__(self) -> tuple[Any, ...]:
        raise LibraryError(
            "a session is memory and threads of this process, and cannot be copied or pickled",
            hint="session.save('model.mtvm') here, InferenceSession('model.mtvm') in the other process; "
            "threads of this one share the session",
        )

    # --- description ---

    @stage("describing the model")
    def get_inputs(self) -> list[NodeArg]:
        return list(map(_node_arg, self._engine.description.inputs))

    @stage("describing the model")
    def get_outputs(self) -> list[NodeArg]:
        return list(map(_node_arg, self._engine.description.outputs))

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Weights that are inputs as well: defaults in whose place a run may be given others."""
        return list(map(_node_arg, self._engine.description.overridable))

    @property
    def buffers(self) -> Mapping[str, str]:
        """Inputs that may be longer than what is in use, as a decoder's caches, with the outputs that are the same with
        new places written: bound to one ``OrtValue`` both, they are changed where they lie.  Of a model's file."""
        return MappingProxyType(dict(self._engine.description.buffers))

    @property
    def grown(self) -> Mapping[str, str]:
        """Inputs that are handed out with new places behind them, as the caches of most exporters, with those outputs:
        bound to first places of one ``OrtValue`` (:meth:`OrtValue.first`), they are changed where they lie.  Of a
        model's file."""
        return MappingProxyType({name: output for name, (output, _) in self._engine.description.grown.items()})

    @property
    def windows(self) -> Mapping[str, int]:
        """Inputs that are caches of the last tokens alone (``sliding_window_cache``): they have as many rows as the
        caller likes, but at least so many, from the first run on.  Of a model's file."""
        return MappingProxyType(dict(self._engine.description.windows))

    @stage("describing the model")
    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(**self._engine.description.metadata)

    def get_session_options(self) -> Any:
        """The options it was made with."""
        return SessionOptions() if self._options is None else self._options

    # --- where it runs ---

    def get_providers(self) -> list[str]:
        own = f"{code_for(self._engine.target.kind).device_kind.upper()}ExecutionProvider"
        return list(dict.fromkeys([own, CPU]))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options that each provider that is used was given, of which none has an effect."""
        return {name: self._asked.get(name, {}) for name in self.get_providers()}

    @stage("opening the session")
    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None
    ) -> None:
        """Choose providers again; where they mean another target, the model is compiled for that one."""
        self._asked = _asked(providers, provider_options, self._settings)
        target = _target_of(self._asked)
        if target.kind != self._engine.target.kind:
            self._engine = self._made(target)

    def enable_fallback(self) -> None:
        """Does nothing: a run that fails on a device says so."""

    def disable_fallback(self) -> None:
        """Does nothing: nothing runs elsewhere than was asked for."""

    # --- what was compiled: minitvm's own ---

    @property
    def host_calls(self) -> list[HostCall]:
        """Operators that run in Python, of all shapes compiled so far."""
        return self._engine.host_calls

    @property
    def inputs_by_value(self) -> list[str]:
        """Inputs for whose values the model is compiled, as far as runs have shown: shapes depend on them."""
        return self._engine.inputs_by_value

    @property
    def symbolic(self) -> Decision | None:
        """The decision whether one library serves all shapes, else why not; ``None`` as long as no run has asked for
        it."""
        return self._engine.symbolic

    @property
    def compiled_beside(self) -> list[Decision]:
        """Shapes that came again and again: whether they have kernels of their own now, or why not."""
        return self._engine.compiled_beside

    @property
    def libraries(self) -> list[Library]:
        """The libraries compiled so far and kept, the one used last at the end."""
        return self._engine.libraries

    @stage("compiling the model")
    def prepare(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any] | None = None) -> None:
        """Compile for shapes of the inputs before they are met; those of fixed shapes need not be given.

        The kernels are those for these numbers, which may be faster than those for all.  ``values`` are those of inputs
        that shapes depend on.  Raises what :meth:`run` raises.
        """
        self._engine.prepare(shapes, values)

    @stage("saving the library")
    def save(self, path: str | os.PathLike[str], key: Any = None) -> None:
        """Write what was compiled so far as one library: for all shapes, for those that were prepared or met; weights
        once.  :func:`minitvm.load` reads it, and so does ``InferenceSession``.

        Kernels for all shapes are compiled where nothing is yet.  Raises :class:`LibraryError` where they cannot be,
        and what :meth:`Library.save` raises.
        """
        self._engine.save(Path(path), key)

    # --- running ---

    @stage("running the model")
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run the model.

        ``output_names`` chooses results, ``None`` all of them; ``input_feed`` has an array for every input, for
        a sequence a list of arrays, for an optional ``None`` or nothing where there is no value.  Text is an array of
        ``str``.  Where ``run_options.terminate`` is set, before the run or by another thread meanwhile, it
        ends before its next kernel in :class:`Fail`.  Returns new arrays.

        Raises :class:`InputError` for a missing or unknown input, a wrong dtype, rank or shape, and an unknown
        output; the first run for a shape may raise what compiling raises.
        """
        wanted = None if output_names is None else self._wanted(output_names)
        results = self._results(_raw(input_feed), run_options)
        return results if wanted is None else [results[i] for i in wanted]

    @stage("running the model")
    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> list[OrtValue]:
        """The same as :meth:`run`, from values to values: nothing is copied on the way."""
        return [held(result) for result in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        """Inputs and outputs that stay where they are; for :meth:`run_with_iobinding`."""
        return IOBinding(self)

    @stage("running the model")
    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run with what is bound; the binding has the results then.  :class:`BindingError` where it does not fit."""
        into = iobinding._into()
        try:
            results = self._bound_results(iobinding, run_options, into)
        except InputError as error:
            raise BindingError(error.message, where=error.where, hint=error.hint) from error
        iobinding._take(results)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run in another thread, which then calls ``callback(results, user_data, error)``; ``error`` is a text, empty
        where all is well.  The process waits for such runs before it ends."""
        if not callable(callback):
            raise ConfigError(f"the callback is a {type(callback).__name__}, which cannot be called")

        def job() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as raised:
                results, error = [], str(raised)
            try:
                callback(results, user_data, error)
            except Exception:  # nobody else would see it
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

        _POOL.submit(job)

    def _bound_results(self, bound: IOBinding, run_options: Any, into: Mapping[int, np.ndarray]) -> list[Any]:
        again = bound._again if run_options is None and self._profiler is None else None
        results = again.run(bound._new) if again is not None and again.engine is self._engine else None
        if results is None:
            results = self._results(bound._feeds, run_options, into)
            bound._again = self._engine.again(bound._feeds, into)
        return results

    def _results(
        self, feeds: Mapping[str, Any], run_options: Any, into: Mapping[int, np.ndarray] | None = None
    ) -> list[Any]:
        """All results of a run; none where its options say by then that it shall end."""
        if run_options is None:
            return self._run(feeds, How(into) if into else AS_EVER)
        go_on(run_options)
        results = self._run(feeds, How(into or {}, run_options.watch if isinstance(run_options, RunOptions) else None))
        go_on(run_options)
        return results

    def _run(self, feeds: Mapping[str, Any], how: How) -> list[Any]:
        if self._profiler is None:
            try:
                return self._engine.run(feeds, how)
            except MiniTVMError as error:
                tell_sizes(error, self._engine.description.inputs, self._shape_dict, feeds)
                raise
        found, checked = self._engine.found(feeds)
        library = found if isinstance(found, Library) else found.own
        results = self._profiler.run(library, {name: checked[name] for name in library.artifact.inputs})
        for position, array in how.into.items():
            results[position] = copied_into(array, results[position], self._output_names[position])
        return results

    def _wanted(self, output_names: Sequence[str]) -> list[int]:
        if isinstance(output_names, (str, bytes)) or not isinstance(output_names, Iterable):
            raise InputError(
                f"the wanted outputs are {output_names!r}, not a list of names",
                hint=f"run([{self._output_names[0]!r}], ...), or run(None, ...) for all",
            )
        output_names = list(output_names) or self._output_names
        for name in output_names:
            if name not in self._positions:
                raise unknown_name(name, self._output_names, "output")
        return [self._positions[name] for name in output_names]

    # --- profiling ---

    @stage("saving the profile")
    def end_profiling(self) -> str:
        """Write the profile that ``enable_profiling`` asked for; its file, or an empty text where there is none."""
        return "" if self._profiler is None else self._profiler.end()

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._profiler is None else self._profiler.start_ns


_POOL = ThreadPoolExecutor(thread_name_prefix="minitvm-async")
"""Runs of ``run_async``, of all sessions; its threads start when they are first needed."""


def _raw(feeds: Any) -> Any:
    """What an engine takes of what a run is given: of an :class:`OrtValue` what it holds."""
    if isinstance(feeds, Mapping):
        for value in feeds.values():
            if isinstance(value, OrtValue):
                return {name: value_of(value) for name, value in feeds.items()}
    return feeds


def _node_arg(value: ValueDescription) -> NodeArg:
    return NodeArg(value.name, value.type, list(value.shape))


def _asked(providers: Any, provider_options: Any, settings: Settings) -> dict[str, dict[str, str]]:
    """The providers that are asked for and there, with their options."""
    if providers is None:
        providers, provider_options = settings.providers, None
    return providers_of(providers, provider_options)


def _target_of(providers: Mapping[str, Any]) -> Target:
    return Target.parse(next((TARGETS[name] for name in providers if name in (CUDA, CPU)), TARGETS[CPU]))


def _library_of(model: Any) -> Library | None:
    """The library, where what is given is the path or the bytes of one."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return Library(archive.from_bytes(bytes(model), "the given bytes")) if bytes(model[:4]) == _ZIP else None
    if not isinstance(model, (str, os.PathLike)) or "\0" in os.fspath(model):
        return None
    path = Path(model)
    return load(path) if path.is_file() and (path.suffix == SUFFIX or _begins(path) == _ZIP) else None


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP))
    except OSError:  # said where the model is read
        return b""


def _check_counts(specialisations: int, specialise_after: int | None) -> None:
    if type(specialisations) is not int or specialisations < 1:
        raise ConfigError(f"specialisations is {specialisations!r}, but at least 1 must be kept")
    if specialise_after is not None and (type(specialise_after) is not int or specialise_after < 0):
        raise ConfigError(f"specialise_after is {specialise_after!r}, not a number of runs")


def _refuse_if_loaded(given: Mapping[str, Any], settings: Settings) -> None:
    """:class:`ConfigError` for what says how to compile, where a library is given."""
    given = {**given, "a dimension's size": settings.by_name or settings.by_denotation or None}
    given["an initializer"] = settings.initializers or None
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name} says how to compile, and a library is compiled already",
                hint="give the .onnx file, or leave the option away",
            )


__all__ = ["InferenceSession", "ModelMetadata", "NodeArg", "RunOptions", "SessionOptions"]
