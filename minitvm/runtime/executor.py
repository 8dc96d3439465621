"""The graph executor with TVM's calls: ``GraphModule(lib["default"](dev))``, ``set_input``, ``run``, ``get_output``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from minitvm.errors import ConfigError, InputError, LibraryError, stage
from minitvm.ir.arrays import aligned
from minitvm.ir.types import Leaf
from minitvm.runtime.beyond import load_arrays
from minitvm.runtime.checks import check_input, joined, missing_inputs, unknown_name
from minitvm.runtime.devices import Device, Memory, device_of
from minitvm.runtime.direct import is_readable, is_writable
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library
from minitvm.runtime.ndarray import NDArray
from minitvm.runtime.timing import BenchmarkResult, measure


class GraphModule:
    """A library ready to run, with memory of its own.

    Arrays given in are copied and never written; arrays given out are copies that no later run overwrites.
    One library may serve many modules at once; one module serves one thread at a time: :class:`InputError` where
    another one is busy with it.
    """

    @stage("making an executor")
    def __init__(self, instance: Instance) -> None:
        if not isinstance(instance, Instance):
            raise ConfigError(
                f"a GraphModule is made of what a library creates, not of a {type(instance).__name__}",
                hint='GraphModule(library["default"](minitvm.cpu()))',
            )
        self.instance = instance
        self._graph = instance.graph
        self._heads = instance.graph.heads
        self._busy = threading.RLock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._graph!r} on {self.instance.device}>"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For one thread; inputs, results and what lies between are the same memory for all."""
        if not self._busy.acquire(blocking=False):
            raise InputError(
                "the module is busy in another thread",
                hint='every thread needs one of its own: GraphModule(library["default"](device))',
            )
        try:
            yield
        finally:
            self._busy.release()

    def __reduce__(self) -> tuple[Any, ...]:
        raise LibraryError(
            "a GraphModule is memory of this process, and cannot be copied or pickled",
            hint='copy or pickle the library, and make another: GraphModule(library["default"](device))',
        )

    # --- inputs ---

    @stage("setting inputs")
    def set_input(self, key: str | int | Mapping[str, Any] | None = None, value: Any = None, /, **params: Any) -> None:
        """Set an input by name or number, or several from a dictionary, and any others by keyword.

        Raises :class:`InputError` for a name that the model does not have (by keyword too), and for a wrong
        dtype, rank or shape; nothing is set then.
        """
        if key is None and value is not None:
            raise InputError("an array without the name of its input", hint="set_input(name, array)")
        if key is None or isinstance(key, Mapping):
            self._assign(joined(key, params))
        else:
            self._assign(joined({self._name_of(key): value}, params))

    def _assign(self, feeds: Mapping[str, Any]) -> None:
        checked = {name: self._check(name, array) for name, array in feeds.items()}
        with self._alone():
            for name, array in checked.items():
                self.instance.assign(name, array)

    def _name_of(self, key: str | int) -> str:
        names = self.instance.input_names
        if isinstance(key, int) and not isinstance(key, bool):
            if not 0 <= key < len(names):
                raise InputError(f"the model has no input number {key}", hint=f"it has {len(names)} inputs")
            return names[key]
        return str(key)

    def _check(self, name: str, value: Any) -> Any:
        entry = self.instance.input_entry.get(name)
        if entry is None:
            raise unknown_name(name, self._visible_inputs())
        return check_input(name, value, self.instance.types[entry], self.instance.memory)

    def _visible_inputs(self) -> list[str]:
        """The inputs, without the parameters that the library brings along."""
        return [name for name in self.instance.input_names if name not in self.instance.params]

    @stage("setting inputs")
    def set_input_zero_copy(self, key: str | int, value: Any) -> None:
        """Let kernels read an input where it is: an array of any library, row-major, on the module's device.

        What is in it counts when :meth:`run` is called.  :meth:`set_input` gives the input memory of its own again.
        """
        name = self._name_of(key)
        checked = self._check(name, value)
        if isinstance(checked, np.ndarray) and not is_readable(checked):
            raise InputError(f"input {name!r} cannot be read where it is", hint="numpy.ascontiguousarray(array)")
        _require_aligned(f"input {name!r} cannot be read", self.instance.memory, checked)
        self.instance.replace(name, checked)

    @stage("setting outputs")
    def set_output_zero_copy(self, index: int, array: Any) -> None:
        """Let every run write a result into an array of any library: row-major, on the module's device, aligned.

        What is done with it must wait for the run: ``device.sync()``, or ``get_output`` and its DLPack.
        """
        if not 0 <= index < len(self._heads):
            raise InputError(f"the model has no output number {index!r}", hint=f"it has {len(self._heads)}")
        memory, type_ = self.instance.memory, self._graph.type_of(self._heads[index])
        value = memory.taken(array) if device_of(array) == memory.device else None
        if value is None or (memory.is_host and not is_writable(value)):
            raise InputError(
                f"output {index} cannot be written where the array is",
                hint="minitvm.nd.empty(shape, dtype, device) makes one that can",
            )
        _require_like(index, type_.static_shape, type_.dtype, NDArray(value))
        _require_aligned(f"output {index} cannot be written", memory, value)
        self.instance.place_result(self._heads[index], value)

    @stage("setting inputs")
    def load_params(self, data: bytes) -> None:
        """Set parameters from the bytes of ``save_param_dict``."""
        self._assign(load_arrays(data))

    @stage("setting inputs")
    def share_params(self, other: GraphModule, data: bytes) -> None:
        """Use the memory of ``other``'s parameters for those named in ``data``."""
        for name in load_arrays(data):
            theirs = self._check(name, NDArray(other.instance.there((other.get_input_node(name), 0))))
            self.instance.replace(name, aligned(theirs) if isinstance(theirs, np.ndarray) else theirs)

    def get_input_node(self, name: str) -> int:
        """The node of an input; :class:`InputError` where there is none of that name."""
        if name not in self.instance.input_entry:
            raise unknown_name(name, self.instance.input_names)
        return self._graph.arg_nodes[self.instance.input_names.index(name)]

    @stage("reading inputs")
    def get_input(self, index: str | int) -> Any:
        """A copy of an input's or parameter's present value; a sequence as a list of arrays."""
        node = self.get_input_node(self._name_of(index))
        return self._handed_out(self.instance.there((node, 0)))

    def get_input_index(self, name: str) -> int:
        """The number of an input, -1 if there is none of that name."""
        names = self.instance.input_names
        return names.index(name) if name in names else -1

    def get_input_info(self) -> tuple[dict[str, tuple[int | None, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs that are not parameters, by name."""
        types = self.input_types()
        return {n: t.sizes for n, t in types.items()}, {n: t.dtype for n, t in types.items()}

    def input_types(self) -> dict[str, Leaf]:
        """Types of the inputs that are not parameters, by name."""
        return {name: self.instance.types[self.instance.input_entry[name]] for name in self._visible_inputs()}

    def get_num_inputs(self) -> int:
        """Number of inputs, parameters included."""
        return len(self.instance.input_names)

    # --- running ---

    @stage("running the model")
    def run(self, feeds: Mapping[str, Any] | None = None, /, **inputs: Any) -> None:
        """Run the model, after setting inputs from a dictionary (any names) or by keyword.

        Raises :class:`InputError` where an input was never set, and what :meth:`set_input` raises.
        """
        given = joined(feeds, inputs)
        with self._alone():
            self._assign_all(given)
            self.instance.run()

    def _assign_all(self, feeds: Mapping[str, Any]) -> None:
        self._assign(feeds)
        if self.instance.unset:
            raise missing_inputs([n for n in self.instance.input_names if n in self.instance.unset])

    def get_num_outputs(self) -> int:
        return len(self._heads)

    @stage("reading results")
    def get_output(self, index: int, out: NDArray | np.ndarray | None = None) -> Any:
        """Result ``index`` of the last run as a new array, or copied into ``out``; a sequence as a list of arrays."""
        with self._alone():
            return self._copied_output(index, out)

    def _copied_output(self, index: int, out: NDArray | np.ndarray | None) -> Any:
        value = self._output(index)
        if out is None:
            return self._handed_out(value)
        if not isinstance(out, (NDArray, np.ndarray)):
            raise InputError(
                f"the result cannot be copied into a {type(out).__name__}", hint="give an array, or none for a new one"
            )
        target = out if isinstance(out, NDArray) else NDArray(out)
        _require_like(index, value.shape, value.dtype.name, target)
        return target.copyfrom(value)

    def _handed_out(self, value: Any) -> Any:
        if value is None or isinstance(value, (list, dict)):
            return dict(value) if isinstance(value, dict) else value and list(map(self._handed_out, value))
        return NDArray(value.copy())

    def _output(self, index: int) -> Any:
        if not isinstance(index, (int, np.integer)) or not 0 <= index < len(self._heads):
            raise InputError(f"the model has no output number {index!r}", hint=f"it has {len(self._heads)}")
        if not self.instance.has_run:
            raise InputError(f"output {index} has no value: the model has not run", hint="call run() first")
        self.instance.settle()
        return self.instance.there(self._heads[index])

    @stage("reading results")
    def outputs(self) -> list[Any]:
        """Copies of all results of the last run."""
        with self._alone():
            self.instance.settle()
            return [self.instance.result(head) for head in self._heads]

    # --- timing ---

    @stage("running the model")
    def benchmark(
        self,
        device: Device | None = None,
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: float = 0.0,
        end_to_end: bool = False,
        *,
        func_name: str = "run",
        feeds: Mapping[str, Any] | None = None,
        **inputs: Any,
    ) -> BenchmarkResult:
        """Time ``run``, the one function that there is; ``end_to_end`` includes copying inputs in and results out.
        ``device`` must be the module's.

        Inputs are given as for :meth:`run`; those that are named like an option of this function in ``feeds``.
        """
        if device is not None and device != self.instance.device:
            raise ConfigError(f"the module runs on {self.instance.device}, not on {device}")
        if func_name != "run":
            raise ConfigError(f"there is no function {func_name!r} to time", hint="'run' is what there is")
        given = joined(feeds, inputs)
        self._assign(given)

        def once() -> None:
            self.run(given)
            self.outputs()

        return measure(once if end_to_end else self.run, repeat, number, min_repeat_ms, self.instance.memory.wait)

    def time_evaluator(
        self, name: str, device: Device | None = None, number: int = 10, repeat: int = 1, min_repeat_ms: float = 0.0
    ) -> Callable[[], BenchmarkResult]:
        """A function that times ``run``, as TVM's ``module.time_evaluator("run", dev)``."""
        if name != "run":
            raise ConfigError(f"only 'run' can be timed, not {name!r}")
        return lambda: self.benchmark(device, repeat, number, min_repeat_ms)

    @property
    def module(self) -> GraphModule:
        """Itself; TVM's wrapper keeps the functions in ``.module``."""
        return self


def _require_aligned(what: str, memory: Memory, value: Any) -> None:
    if not memory.is_aligned(value):
        raise InputError(
            f"{what} where the array is: it begins off a boundary of 16 bytes, from which kernels load vectors",
            hint="give a copy: torch's x.clone(), cupy's x.copy(); set_input and get_output copy by themselves",
        )


def _require_like(index: int, shape: tuple[int, ...], dtype: str, target: NDArray) -> None:
    if target.dtype != dtype or target.shape != shape:
        raise InputError(
            f"output {index} is {dtype} of shape {shape}, the array to fill is {target.dtype} of shape {target.shape}",
            hint="allocate it with minitvm.nd.empty(shape, dtype)",
        )


def create(graph_json: str | bytes, lib: Library, device: Device) -> GraphModule:
    """A module from its parts, as TVM's ``graph_executor.create``; the parameters are the library's, or set later.

    Raises :class:`LibraryError` where ``graph_json`` is not the graph that ``lib`` was built from.
    """
    try:
        is_same = json.loads(graph_json) == json.loads(lib.graph_json)
    except (ValueError, TypeError, RecursionError):
        is_same = False
    if not is_same:
        raise LibraryError(
            "the graph JSON is not the one that the library was built from",
            hint="save lib.graph_json and the library together",
        )
    return GraphModule(lib["default"](device))
