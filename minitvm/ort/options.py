"""What ONNX Runtime calls session options and run options: its names, types and defaults.

What each of them does here stands in ``docs/from-onnxruntime.md``.
"""

from __future__ import annotations

import enum
import operator
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from minitvm.errors import ConfigError, StoppedError, warn
from minitvm.ort.errors import Fail, OptionTypeError, UnknownEntryError
from minitvm.runtime.instance import Instance


class GraphOptimizationLevel(enum.IntEnum):
    """The levels of rewriting a graph; minitvm's ``opt_level`` is that of :data:`OPT_LEVEL`."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99

    __str__ = enum.Enum.__str__


OPT_LEVEL = {level: min(int(level), 3) for level in GraphOptimizationLevel}


class ExecutionMode(enum.IntEnum):
    """An option without effect: kernels run one after the other, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1

    __str__ = enum.Enum.__str__


class ExecutionOrder(enum.IntEnum):
    """An option without effect: the order is the one that the memory plan was made for."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2

    __str__ = enum.Enum.__str__


class OptionWarning(UserWarning):
    """An option that is accepted, and does nothing here that it would do in ONNX Runtime."""


class _Options:
    """Attributes of the names, types and defaults in ``_FIELDS``, and entries that are text."""

    _FIELDS: Mapping[str, Any] = {}
    """Defaults, which have the type."""
    _KNOWN: frozenset[str] = frozenset()
    """Entries that change no result, so that they may be without effect."""

    def __init__(self) -> None:
        for name, value in self._FIELDS.items():
            object.__setattr__(self, name, value)
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        if name not in self._FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        object.__setattr__(self, name, self._checked(name, value))

    def _checked(self, name: str, value: Any) -> Any:
        """The value as one of the type of the option's default."""
        wanted = type(self._FIELDS[name])
        if isinstance(value, wanted):
            return value
        if wanted is int and hasattr(value, "__index__"):
            return operator.index(value)
        if wanted is str and isinstance(value, os.PathLike):
            return os.fspath(value)
        hint = f"such as {name} = {self._FIELDS[name]}" if issubclass(wanted, enum.Enum) else None
        raise OptionTypeError(f"{name} is {value!r}, not a {wanted.__name__}", hint=hint)

    def _add(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise OptionTypeError(f"the entry {key!r}: {value!r} is not two strings", hint="numbers too are strings")
        if not key or len(key) > _LONGEST_KEY:
            raise UnknownEntryError("a key of an entry is empty, or too long")
        if key not in self._KNOWN and not key.startswith(_OF_PROVIDERS):
            warn(f"the entry {key!r} has no effect in minitvm", OptionWarning)
        self._entries[key] = value

    def _entry(self, key: str) -> str:
        if key not in self._entries:
            raise UnknownEntryError(f"{type(self).__name__} does not have an entry {key!r}")
        return self._entries[key]

    def __repr__(self) -> str:
        changed = {n: getattr(self, n) for n, v in self._FIELDS.items() if getattr(self, n) != v}
        return f"<{type(self).__name__} {', '.join(f'{n}={v!s}' for n, v in changed.items()) or 'as they are'}>"


_LONGEST_KEY = 1024
_OF_PROVIDERS = ("ep.", "ep_factory.", "memory.enable_memory_arena_shrinkage")


HARMLESS = frozenset(
    {
        "optimization.disable_specified_optimizers",
        "optimization.minimal_build_optimizations",
        "session.disable_aot_function_inlining",
        "session.disable_cpu_ep_fallback",
        "session.disable_double_qdq_remover",
        "session.disable_prepacking",
        "session.disable_quant_qdq",
        "session.dynamic_block_base",
        "session.enable_dq_matmulnbits_fusion",
        "session.enable_quant_qdq_cleanup",
        "session.force_spinning_stop",
        "session.inter_op.allow_spinning",
        "session.intra_op.allow_spinning",
        "session.intra_op_thread_affinities",
        "session.load_model_format",
        "session.model_external_initializers_file_folder_path",
        "session.optimized_model_external_initializers_file_name",
        "session.qdqisint8allowed",
        "session.save_external_prepacked_constant_initializers",
        "session.save_model_format",
        "session.strict_shape_type_inference",
        "session.use_device_allocator_for_initializers",
        "session.use_env_allocators",
        "session.use_ort_model_bytes_directly",
        "session.use_ort_model_bytes_for_initializers",
    }
)
"""Entries of a session's configuration that change no result, so that they may be without effect."""


class SessionOptions(_Options):
    """ONNX Runtime's, with its defaults; what is no option of it is an ``AttributeError``."""

    _FIELDS = {
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }
    _KNOWN = HARMLESS

    def __init__(self) -> None:
        super().__init__()
        self._by_name: dict[str, int] = {}
        self._by_denotation: dict[str, int] = {}
        self._initializers: dict[str, Any] = {}
        self._providers: list[tuple[str, dict[str, str]]] = []

    def add_session_config_entry(self, key: str, value: str) -> None:
        """An entry of the session's configuration; warns of those without effect that might change a result."""
        if (key, str(value).upper()) == ("session.load_model_format", "ORT"):
            raise ConfigError("models in ORT's own format are not read", hint="give the .onnx file it was made from")
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """A dimension that the model calls ``name`` is ``size``, in all inputs and outputs."""
        self._by_name[name] = _size(name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Overrides dimensions with that denotation (``DATA_BATCH``), as by name."""
        self._by_denotation[denotation] = _size(denotation, size)

    def add_initializer(self, name: str, value: Any) -> None:
        """Use the values of an :class:`OrtValue` for a weight of the model."""
        if not hasattr(value, "numpy"):
            raise OptionTypeError(f"initializer {name!r} is a {type(value).__name__}, not an OrtValue")
        self._initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Several initializers at once."""
        if len(names) != len(values):
            raise ConfigError(f"{len(names)} names of initializers, but {len(values)} values")
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """An execution provider, as ``providers`` of a session would have it."""
        self._providers.append((name, dict(options)))

    def has_providers(self) -> bool:
        return bool(self._providers)

    def register_custom_ops_library(self, path: str) -> None:
        """Refused: its operators are code for ONNX Runtime alone."""
        raise Fail(
            f"{path} cannot be loaded: operators of a custom library are written for ONNX Runtime's own interface",
            hint="write them in Python: @minitvm.frontend.onnx_op(name, since=1, domain=...), docs/add-an-operator.md",
        )


class RunOptions(_Options):
    """ONNX Runtime's; ``terminate`` ends runs in :class:`Fail`, those under way before their next kernel."""

    terminate: bool
    _FIELDS = {
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }
    _KNOWN = frozenset({"disable_synchronize_execution_providers", "gpu_graph_id", "run.enable_shape_inference"})

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[Instance] = []

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "terminate" and value:
            with _RUNS:
                for instance in self._runs:
                    instance.tell(stop=True)

    @contextmanager
    def watch(self, instance: Instance) -> Iterator[None]:
        """Inside, a run that these options are for: it ends where they say so."""
        with _RUNS:
            self._runs.append(instance)
            if self.terminate:
                instance.tell(stop=True)
        try:
            yield
        except StoppedError:
            raise _told_to_end() from None
        finally:
            with _RUNS:
                self._runs.remove(instance)
                if instance.stopped:
                    instance.tell(stop=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._entry(key)


_RUNS = threading.Lock()
"""Held where runs begin, end, or are told to."""


def _told_to_end() -> Fail:
    return Fail("the run's options say that it shall end", hint="run_options.terminate = False")


def go_on(run_options: Any) -> None:
    """:class:`Fail` where ``terminate`` is set in options of any class."""
    if getattr(run_options, "terminate", False):
        raise _told_to_end()


def _size(name: str, size: Any) -> int:
    if not isinstance(name, str) or isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
        raise OptionTypeError(f"the dimension {name!r} is {size!r}, not a size")
    return operator.index(size)


@dataclass(frozen=True)
class Settings:
    """What a session reads of its options, of minitvm's or of ONNX Runtime's own class."""

    threads: int | None = None
    opt_level: int = 3
    deterministic: bool = False
    profile: str | None = None
    """The prefix of the profile's file, where there is to be one."""
    save_as: str = ""
    severity: int = -1
    logid: str = ""
    by_name: Mapping[str, int] = field(default_factory=dict)
    by_denotation: Mapping[str, int] = field(default_factory=dict)
    initializers: Mapping[str, Any] = field(default_factory=dict)
    providers: Sequence[tuple[str, dict[str, str]]] = ()

    @staticmethod
    def of(given: Any) -> Settings:
        """The settings of an options object, whatever its class; its 0 threads are as many as there are cores."""

        def read(name: str) -> Any:
            return getattr(given, name, SessionOptions._FIELDS[name])

        return Settings(
            threads=read("intra_op_num_threads") or None,
            opt_level=min(int(read("graph_optimization_level")), 3),
            deterministic=bool(read("use_deterministic_compute")),
            profile=str(read("profile_file_prefix")) if read("enable_profiling") else None,
            save_as=str(read("optimized_model_filepath")),
            severity=read("log_severity_level"),
            logid=read("logid"),
            by_name=dict(getattr(given, "_by_name", {})),
            by_denotation=dict(getattr(given, "_by_denotation", {})),
            initializers={name: value.numpy() for name, value in getattr(given, "_initializers", {}).items()},
            providers=tuple(getattr(given, "_providers", ())),
        )
