"""A compiled model: object code, graph, parameters, metadata.  What ``build`` returns and ``load`` reads back."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm.errors import LibraryError, TargetError
from minitvm.ir.types import Span
from minitvm.runtime import signing
from minitvm.runtime.cpu import NativeCode
from minitvm.runtime.cpu_tag import CpuTag, check_cpu
from minitvm.runtime.graph import Graph, graph_form
from minitvm.runtime.instance import Instance
from minitvm.runtime.memory import Plan
from minitvm.runtime.ndarray import CUDA_HINT, CUDA_NOT_YET, Device, cpu
from minitvm.runtime.param_dict import save_param_dict
from minitvm.runtime.signing import Origin, PrivateKey, PublicKey
from minitvm.runtime.steps import Segment, steps_of

if TYPE_CHECKING:
    from minitvm.ir.expr import Module
    from minitvm.runtime.control import HostFunction
    from minitvm.runtime.debug import DebugHandle

LIBMOD_NAME = "default"
_FLOPS_A_SECOND, _BYTES_A_SECOND = 5e10, 2e10  # one core with wide vectors; its second-level cache


@dataclass(frozen=True)
class HostCall:
    """An operator that runs in Python instead of in a kernel, and why."""

    op: str
    reason: str
    node: str
    span: Span = ()

    def __str__(self) -> str:
        origin = f" (from ONNX node {', '.join(map(repr, self.span))})" if self.span else ""
        return f"{self.op}{origin}: {self.reason}"


@dataclass(frozen=True)
class Contents:
    """Everything that a library consists of; what its file holds."""

    graph: Graph
    plan: Plan
    params: Mapping[str, np.ndarray]
    """64-byte aligned."""
    objects: Mapping[str, bytes]
    """Object code by kernel."""
    metadata: Mapping[str, Mapping[str, Any]]
    target: str
    cpu: CpuTag
    threads: int
    """What the plan's workspaces were made for."""
    entry: bytes = b""
    """Object code that calls the kernels; holds the seal, from which the library's file is written and read."""
    hosts: Mapping[str, HostFunction] = field(default_factory=dict)
    host_calls: tuple[HostCall, ...] = ()


class Library:
    """A compiled model.  Unpacks as TVM's old triple: ``graph_json, lib, params = library``.

    May be shared by threads; every ``lib["default"](device)`` has memory of its own.
    """

    executor = "graph"
    libmod_name = LIBMOD_NAME

    def __init__(
        self, contents: Contents, ir_mod: Module | None = None, report: Any = None, origin: Origin | None = None
    ) -> None:
        self.contents = contents
        self.graph = contents.graph
        self.plan = contents.plan
        self.params: dict[str, np.ndarray] = dict(contents.params)
        self.hosts = contents.hosts
        self.threads = contents.threads
        self.host_calls: list[HostCall] = list(contents.host_calls)
        self.function_metadata = dict(contents.metadata)
        self.target = contents.target
        self.ir_mod = ir_mod
        self.report = report
        self.origin = origin or Origin()
        self._native: NativeCode | None = None
        self._lock = threading.Lock()

    @property
    def graph_json(self) -> str:
        form = graph_form(self.graph, self.plan.storage_ids, self.plan.offsets, self.plan.nbytes)
        return json.dumps(form, indent=1)

    @property
    def native(self) -> NativeCode:
        """The object code, linked on first use."""
        with self._lock:
            if self._native is None:
                kernels = [i for i, node in enumerate(self.graph.nodes) if node.is_kernel]
                segments = [s.symbol for s in steps_of(self.graph) if isinstance(s, Segment)]
                symbols = [*(f"node_{i}" for i in kernels), *segments]
                self._native = NativeCode([*self.contents.objects.values(), self.contents.entry], symbols)
            return self._native

    def __getitem__(self, name: str) -> Callable[..., Any]:
        entries: dict[str, Callable[..., Any]] = {
            LIBMOD_NAME: self._create,
            "debug_create": self._create_debug,
            "get_graph_json": lambda: self.graph_json,
            "get_graph_params": lambda: self.params,
        }
        if not isinstance(name, str) or name not in entries:
            raise LibraryError(f"the library has no entry {name!r}", hint=f"it has: {', '.join(entries)}")
        return entries[name]

    @functools.cached_property
    def work_seconds(self) -> float:
        """A rough estimate of one run's native work on one thread, branches of control flow not counted."""
        facts = [self.function_metadata[n.func] for n in self.graph.nodes if n.is_kernel]
        return float(sum(f["flops"] / _FLOPS_A_SECOND + f["bytes"] / _BYTES_A_SECOND for f in facts))

    def _create(self, device: Device | None = None, num_threads: int | None = None) -> Instance:
        where = cpu() if device is None else device
        if not isinstance(where, Device):
            raise TargetError(f"{where!r} is no device", hint="use minitvm.cpu(0)")
        if not where.exist:
            message = CUDA_NOT_YET if where.kind != "cpu" else f"there is no device {where}"
            raise TargetError(message, hint=CUDA_HINT if where.kind != "cpu" else "use minitvm.cpu(0)")
        check_cpu(self.contents.cpu, "the library")
        return Instance(self, where, num_threads)

    def _create_debug(self, name: str = LIBMOD_NAME, device: Device | None = None) -> DebugHandle:
        from minitvm.runtime.debug import DebugHandle

        return DebugHandle(name, self._create(device))

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self, self.params))

    def get_lib(self) -> Library:
        """The part that holds code; here the library itself."""
        return self

    def get_graph_json(self) -> str:
        return self.graph_json

    def get_params(self) -> dict[str, np.ndarray]:
        return self.params

    def save(self, path: str | pathlib.Path, key: PrivateKey | None = None) -> None:
        """Write the library as one file, which :func:`minitvm.load` reads in any process of a like machine.

        ``key``, a private Ed25519 key or its PEM file, signs it (needs the package ``cryptography``).
        """
        from minitvm.runtime.archive import write

        write(self.contents, _path(path), key)

    def export_library(self, path: str | pathlib.Path) -> None:
        """``save`` by TVM's name; the file is the same whatever its suffix."""
        self.save(path)

    def save_params(self) -> bytes:
        return save_param_dict(self.params)

    def __repr__(self) -> str:
        kernels = sum(node.is_kernel for node in self.graph.nodes)
        return f"<Library for {self.target}: {kernels} kernel calls, {len(self.params)} params; {self.origin}>"


def load(path: str | pathlib.Path, trusted_keys: Iterable[PublicKey] | None = None) -> Library:
    """Read a saved library; ``library.origin`` says where it comes from.

    With ``trusted_keys``, public Ed25519 keys or their PEM files, it must be signed by one of them; they are those
    of ``MINITVM_TRUSTED_KEYS`` unless given.  :class:`LibraryError` says what is wrong with a file that cannot be used.
    """
    from minitvm.runtime.archive import read

    contents, origin = read(_path(path), signing.trusted_keys(trusted_keys))
    return Library(contents, origin=origin)


def _path(given: Any) -> pathlib.Path:
    if isinstance(given, (str, os.PathLike)) and "\0" not in os.fspath(given):
        return pathlib.Path(given)
    raise LibraryError(f"{given!r} is no path of a library file", hint="libraries are files: lib.save('model.mtvm')")


load_module = load
