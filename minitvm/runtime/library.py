"""A compiled model: code, graph, parameters, metadata.  What ``build`` returns and ``load`` reads back."""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm import config
from minitvm.errors import InputError, LibraryError, TargetError, stage
from minitvm.ir.types import Shape, TensorType, shape_text
from minitvm.runtime.beyond import (
    binder,
    control_step,
    from_bytes,
    is_stage,
    json_of,
    poisoned,
    read_trusted,
    save_param_dict,
    size_plans,
    staged,
    to_bytes,
    written,
)
from minitvm.runtime.checks import check_input, check_shapes, dictionary, missing_inputs, unknown_name
from minitvm.runtime.code import Code, code_for
from minitvm.runtime.devices import Device
from minitvm.runtime.direct import AS_EVER, DirectCall, How
from minitvm.runtime.graph import Artifact, HostCall
from minitvm.runtime.instance import HostRun, Instance
from minitvm.runtime.ndarray import Parameter
from minitvm.runtime.origin import Origin
from minitvm.runtime.served import fits, shapes_of, shown
from minitvm.shown import Shown

if TYPE_CHECKING:
    from minitvm.ir.expr import Module
    from minitvm.runtime.bind import Binder
    from minitvm.runtime.bound import Bound, SizePlans
    from minitvm.runtime.signing import PrivateKey, PublicKey


_NOTHING: Mapping[Any, np.ndarray] = MappingProxyType({})


BOUND = 16
"""Shapes for which a library keeps what it made of kernels for all shapes: those used last."""


class Library(Shown):
    """A compiled model.  Unpacks as TVM's old triple: ``graph_json, lib, params = library``.

    May be shared by threads; every ``lib["default"](device)`` has memory of its own.  Where a session saved it, it is
    for all shapes, or has ``others``, the same model for other shapes: ``run`` and ``for_shapes`` find the right one.
    """

    executor = "graph"
    libmod_name = "default"

    def __init__(
        self,
        artifact: Artifact,
        ir_mod: Module | None = None,
        report: Any = None,
        origin: Origin | None = None,
        again: Callable[[], Library] | None = None,
    ) -> None:
        """``again`` compiles it once more, where somebody asks what a build knows and a kept library does not."""
        self.artifact = artifact
        self.graph, self.plan = artifact.graph, artifact.plan
        self.params: dict[str, np.ndarray] = {name: Parameter.of(array) for name, array in artifact.params.items()}
        self.function_metadata = dict(artifact.metadata)
        self._code: Code | None = None
        self._lock = threading.RLock()
        self._bound: OrderedDict[tuple[tuple[str, tuple[int, ...]], ...], Library] = OrderedDict()
        self._idle: list[DirectCall] = []
        self.others = [Library(replace(other, model=artifact.model), origin=origin) for other in artifact.others]
        self.host_calls: list[HostCall] = list(artifact.host_calls)
        self.target = artifact.target
        self.origin = origin or Origin()
        self._again = again
        if again is None:
            self.ir_mod, self.report = ir_mod, report

    @functools.cached_property
    def ir_mod(self) -> Module | None:
        """The module that it was built of."""
        return self._built.ir_mod

    @functools.cached_property
    def report(self) -> Any:
        """What the build decided, and how long it took; ``None`` of a library that was loaded from a file."""
        return self._built.report

    @functools.cached_property
    def _built(self) -> Library:
        assert self._again is not None
        return self._again()

    def _made(self, artifact: Artifact) -> Library:
        """Another one of the same build."""
        if self._again is not None:
            return Library(artifact, origin=self.origin, again=lambda: self._built)
        return Library(artifact, self.ir_mod, self.report, self.origin)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        entries: dict[str, Callable[..., Any]] = {
            self.libmod_name: self._create,
            "debug_create": lambda _name="", device=None: self._create(device),
            "get_graph_json": lambda: self.graph_json,
            "get_graph_params": lambda: self.params,
        }
        if not isinstance(name, str) or name not in entries:
            raise LibraryError(f"the library has no entry {name!r}", hint=f"it has: {', '.join(entries)}")
        return entries[name]

    def device(self, index: int = 0) -> Device:
        """One of the kind that its code runs on."""
        return Device(code_for(self.target).device_kind, index)

    @stage("loading the library")
    def _create(self, device: Device | None = None, num_threads: int | None = None) -> Instance:
        own = self.device()
        where = own if device is None else device
        if not isinstance(where, Device):
            raise TargetError(f"{where!r} is no device", hint=f"use minitvm.{own}")
        if where.kind != own.kind:
            raise TargetError(
                f"the library was compiled for {self.target!r}, it cannot run on {where}",
                hint=f"use minitvm.{own}, or compile the model for another target",
            )
        if where.kind == "cpu" and not where.exist:
            raise TargetError(f"there is no device {where}", hint="use minitvm.cpu(0)")
        if self.artifact.is_open:
            raise LibraryError(
                f"the library is for all shapes: {shown(self.artifact)}",
                hint="library.run({name: array}), or library.for_shapes({name: shape}) for one of them",
            )
        code_for(self.target).check(self.artifact.cpu, "the library")
        return self.instance(where, num_threads)

    def instance(self, device: Device, num_threads: int | None = None) -> Instance:
        """A running copy; under ``MINITVM_POISON`` poisoned, where its memory is the host's."""
        code = self.code.on(device)
        kind = poisoned() if config.read_flag("MINITVM_POISON") and code.memory.is_host else Instance
        calls = (self._host, self._instances, control_step)
        return kind(self.artifact, code, self.params, *calls, device, num_threads)

    def _host(self, node: str, branches: Mapping[str, Instance]) -> HostRun:
        """A call in Python."""
        from minitvm.runtime.hosts import bind  # loads the operators, which most libraries do without

        return bind(self.artifact.hosts[node].function, branches)

    def _instances(self, node: str, device: Device, threads: int) -> Mapping[str, Any]:
        """Instances of a call's branches."""
        held = {n: self.branches[node, n] for n in self.artifact.hosts[node].branches}
        if is_stage(self.artifact.hosts[node]):
            return {n: staged(library) for n, library in held.items()}
        return {n: library.instance(device, threads) for n, library in held.items()}

    # --- shapes ---

    @property
    def shapes(self) -> list[dict[str, Shape]]:
        """The inputs' shapes that it serves, of itself and of ``others``; what has a name may be any number."""
        return [shapes_of(library.artifact) for library in (self, *self.others)]

    @property
    def serves(self) -> list[str]:
        """The same in words, with the values of inputs that it was compiled for."""
        return [shown(library.artifact) for library in (self, *self.others)]

    @stage("binding the library")
    def for_shapes(
        self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, np.ndarray] | None = None
    ) -> Library:
        """The library for inputs of these shapes, and for the ``values`` of inputs that shapes depend on.

        Inputs that are not named may have any.  Raises :class:`InputError` where there is none, and says which are.
        """
        wanted, known = check_shapes(shapes), dictionary(values or {}, "values", "{name: array}")
        for name in (*wanted, *known):
            if name not in self.artifact.inputs and name not in self.artifact.values:
                raise unknown_name(name, [*self.artifact.inputs, *self.artifact.values])
        fitting = [one for one in (self, *self.others) if fits(one.artifact, wanted, known)]
        reasons = []
        for found in sorted(fitting, key=lambda one: bool(one.artifact.is_open)):
            try:
                return found._kept_for(wanted) if found.artifact.is_open else found
            except InputError as error:
                reasons.append(error.message)
        given = ", ".join(f"{name} {shape_text(shape)}" for name, shape in wanted.items())
        raise InputError(
            f"the library is not for inputs of these shapes: {given}",
            where=[*reasons, *(f"it is for {text}" for text in self.serves)],
            hint="compile it for them too: session.prepare({name: shape}) before session.save(path)",
        )

    def bound(self, shapes: Mapping[str, tuple[int, ...]]) -> Library:
        """A library for all shapes for these; :class:`runtime.bind.DoesNotFit` where its types do not hold for them."""
        return self.like(self._binder.artifact(self._binder.sizes(shapes)))

    def like(self, artifact: Artifact) -> Library:
        """One of the same code."""
        found = self._made(artifact)
        found._code, found.branches = self.code, self.branches
        if artifact.hosts is not self.artifact.hosts:
            bodies = {key: artifact.hosts[key[0]].branches[key[1]] for key in self.branches}
            found.branches = {
                key: one if one.artifact is bodies[key] else one.like(bodies[key]) for key, one in self.branches.items()
            }
        return found

    @property
    def is_staged(self) -> bool:
        """True if parts of it are bound in a run, to sizes that the data decide."""
        return any(map(is_stage, self.artifact.hosts.values()))

    def at_values(self, values: Mapping[str, int]) -> Bound:
        """The library of what is behind sizes that the data decide, for values of its symbols;
        :class:`runtime.bind.DoesNotFit`."""
        return self._stage_plans.for_values(values)

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Bound | Library:
        """The library bound as by :meth:`bound`, for a run: memory is shared with runs at other sizes, which a library
        of fixed ones has not."""
        artifact = self.artifact
        is_fixed = not artifact.is_open and all(type_.is_static for type_ in artifact.inputs.values())
        return self if is_fixed else self._plans.at(shapes)

    @functools.cached_property
    def _binder(self) -> Binder:
        return binder(self.artifact)

    @functools.cached_property
    def _plans(self) -> SizePlans:
        return size_plans(self, self._binder)

    @functools.cached_property
    def _stage_plans(self) -> SizePlans:
        return size_plans(self, self._binder, grows=True)

    def _kept_for(self, shapes: Mapping[str, tuple[int, ...]]) -> Library:
        key = tuple(sorted(shapes.items()))
        with self._lock:
            found = self._bound.pop(key, None) or self.bound(shapes)
            self._bound[key] = found
            if len(self._bound) > BOUND:
                self._bound.popitem(last=False)
        return found

    def made_for(self, model: Mapping[str, Any], values: Mapping[str, np.ndarray] = _NOTHING) -> Library:
        """The library with what its ``model`` says of itself, and the values of inputs that it was compiled for."""
        return self._made(replace(self.artifact, model=model, values=values))

    @property
    def output_names(self) -> list[str]:
        """The model's names of the results; of what was built of a graph, ``output0`` and so on."""
        return self.artifact.output_names

    # --- running ---

    @stage("running the model")
    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Runs the model, whatever shapes of its inputs it is for.  All results, as new arrays.

        Raises :class:`InputError` for a missing or unknown input, a wrong dtype, rank or shape.
        """
        chosen, checked = self.chosen(feeds)
        return chosen.call(checked)

    def chosen(self, feeds: Mapping[str, Any]) -> tuple[Library, dict[str, Any]]:
        """What runs these inputs, and its inputs as :meth:`call` takes them; raises what :meth:`run` raises."""
        types, values = self.artifact.inputs, self.artifact.values
        for name in feeds:
            if name not in types and name not in values:
                raise unknown_name(name, [*types, *values])
        missing = [name for name in (*types, *(values if self.others else ())) if name not in feeds]
        if missing:
            raise missing_inputs(missing)
        chosen = self
        if self.artifact.is_open or self.others:
            tensors = [name for name, type_ in types.items() if isinstance(type_, TensorType)]
            chosen = self.for_shapes({name: np.shape(feeds[name]) for name in tensors}, feeds)
        inputs = chosen.artifact.inputs.items()
        return chosen, {name: check_input(name, feeds[name], type_) for name, type_ in inputs}

    def call(self, feeds: Mapping[str, Any], how: How = AS_EVER) -> list[Any]:
        """:meth:`run` of arrays that are right."""
        try:
            call = self._idle.pop()
        except IndexError:
            call = DirectCall(self["default"](None, self.threads))
        try:
            return call.run(feeds, how)
        finally:
            self._idle.append(call)

    # --- what it is made of ---

    @property
    def graph_json(self) -> str:
        return json_of(self.artifact.graph, self.artifact.plan)

    @property
    def threads(self) -> int:
        """What kernels are scheduled for, and the plan's workspaces are made for."""
        return self.artifact.threads

    @property
    def code(self) -> Code:
        """Its code, linked on first use."""
        with self._lock:
            if self._code is None:
                self._code = code_for(self.target)(self.artifact)
            return self._code

    @functools.cached_property
    def branches(self) -> Mapping[tuple[str, str], Library]:
        """The compiled branches of control flow, by node and attribute."""
        hosts = self.artifact.hosts.items()
        return {(node, name): Library(branch) for node, host in hosts for name, branch in host.branches.items()}

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self, self.params))

    def get_lib(self) -> Library:
        """The part that holds code; here the library itself."""
        return self

    def get_graph_json(self) -> str:
        return self.graph_json

    def get_params(self) -> dict[str, np.ndarray]:
        return self.params

    @property
    def lib(self) -> Library:
        """The part that holds code; here the library itself."""
        return self

    def get_executor_config(self) -> str:
        """What an executor is made of: :attr:`graph_json`."""
        return self.graph_json

    @stage("printing the library")
    def get_source(self, format: str = "") -> str:
        """The kernels as text: CUDA C or LLVM IR by default, or any stage of :meth:`report.kernel(name).text`.

        :class:`LibraryError` of a library that was loaded: only a build knows it.
        """
        if self.report is None:
            raise LibraryError("a saved library holds machine code only, no source", hint="build the model again")
        kind = self.target.split()[0]
        stage = format or (kind if kind in ("llvm", "cuda") else "loops")
        return "\n\n".join(self.report.kernel(name).text(stage) for name in self.report.groups)

    @property
    def imported_modules(self) -> list[Library]:
        """The parts for other devices than the CPU: itself where it runs on one, so that
        ``lib.imported_modules[0].get_source()`` is the GPU's."""
        return [self] if self.device().kind != "cpu" else []

    @stage("saving the library")
    def save(self, path: str | Path, key: PrivateKey | None = None) -> None:
        """Write the library as one file, which :func:`minitvm.load` reads in any process of a like machine.

        ``key``, a private Ed25519 key or its PEM file, signs it (needs the package ``cryptography``).
        """
        written(self.artifact, _path(path), key)

    def export_library(self, path: str | Path, **options: Any) -> None:
        """``save`` by TVM's name: with ``.tar`` an archive that ``tar`` reads, else the same whatever the suffix.

        :class:`LibraryError` for options of TVM's that say how a C compiler links: none is needed.
        """
        if options:
            hint = "leave them away: export_library(path)"
            raise LibraryError(f"no compiler links the library, so it takes no {', '.join(options)}", hint=hint)
        self.save(path)

    @stage("saving the library")
    def save_params(self) -> bytes:
        return save_param_dict(self.params)

    def __copy__(self) -> Library:
        """Another one of the same code and parameters, with dictionaries of its own."""
        return self._made(self.artifact)

    def __deepcopy__(self, _: object) -> Library:
        return self.__copy__()  # what they share does not change

    @stage("saving the library")
    def __reduce__(self) -> tuple[Any, ...]:
        """As a file keeps it: without the module and the report."""
        return _unpickled, (to_bytes(self.artifact), self.origin)

    def __repr__(self) -> str:
        kernels = sum(node.is_kernel for node in self.graph.nodes)
        return f"<Library for {self.target}: {kernels} kernel calls, {len(self.params)} params; {self.origin}>"


def _unpickled(data: bytes, origin: Origin) -> Library:
    return Library(from_bytes(data, "the pickled library"), origin=origin)


@stage("loading the library")
def load(path: str | Path, trusted_keys: Iterable[PublicKey] | None = None) -> Library:
    """Read a saved library; ``library.origin`` says where it comes from.

    With ``trusted_keys``, public Ed25519 keys or their PEM files, it must be signed by one of them; they are those
    of ``MINITVM_TRUSTED_KEYS`` unless given.  :class:`LibraryError` says what is wrong with a file that cannot be used.
    """
    artifact, origin = read_trusted(_path(path), trusted_keys)
    return Library(artifact, origin=origin)


def _path(given: Any) -> Path:
    if isinstance(given, (str, os.PathLike)) and "\0" not in os.fspath(given):
        return Path(given)
    raise LibraryError(f"{given!r} is no path of a library file", hint="libraries are files: lib.save('model.mtvm')")


load_module = load
