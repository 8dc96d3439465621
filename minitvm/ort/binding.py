"""ONNX Runtime's ``IOBinding``: inputs and outputs that stay where they are from one run to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np

from minitvm.errors import listing
from minitvm.ort.again import Again
from minitvm.ort.errors import BindingError
from minitvm.ort.values import OrtValue, array_at, device_named, held, value_of
from minitvm.runtime.checks import unknown_name
from minitvm.runtime.devices import HOST, Device


class _Session(Protocol):
    """What a binding asks of a session."""

    def get_inputs(self) -> Sequence[Any]: ...

    def get_overridable_initializers(self) -> Sequence[Any]: ...

    def get_outputs(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class _Out:
    """The place where a result goes: into ``value``'s memory, else into new memory of ``device``."""

    device: Device
    value: OrtValue | None = None

    @cached_property
    def is_host(self) -> bool:
        return self.device == HOST.device


@cache
def _new_memory(device_type: str, device_id: int) -> _Out:
    return _Out(device_named(device_type, device_id))


class IOBinding:
    """What :meth:`InferenceSession.run_with_iobinding` reads and writes.

    Inputs are read where they are.  A result that is bound to an :class:`OrtValue` or a buffer of the host is written
    there by the kernels, where it begins on a 64-byte boundary (``OrtValue.ortvalue_from_shape_and_type`` does) and
    overlaps no input; else it is copied there after the run.
    """

    def __init__(self, session: _Session) -> None:
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        self._inputs = dict.fromkeys(value.name for value in inputs)
        self._outputs = {value.name: position for position, value in enumerate(session.get_outputs())}
        self._feeds: dict[str, Any] = {}
        self._bound: dict[str, _Out] = {}
        self._known: _Layout | None = None
        self._results: list[OrtValue] = []
        self._new: dict[str, Any] = {}
        """Inputs that were bound since the last run."""
        self._again: Again | None = None
        """What runs it as it ran last."""

    # --- inputs ---

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """An array of the host, which is read when the session runs; text and sequences too."""
        self._feed(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._feed(name, value_of(_ortvalue(ortvalue)))

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """The memory at an address, which its owner keeps alive."""
        where = device_named(device_type, device_id)
        self._feed(name, value_of(OrtValue(array_at(buffer_ptr, shape, element_type, where), where)))

    def _feed(self, name: str, value: Any) -> None:
        if name not in self._inputs:
            raise _unknown(name, self._inputs, "input")
        self._feeds[name] = self._new[name] = value

    def clear_binding_inputs(self) -> None:
        self._feeds.clear()
        self._again = None

    def synchronize_inputs(self) -> None:
        """Nothing is begun that a run does not wait for."""

    # --- outputs ---

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """A result in new memory of a device, or in the memory at an address."""
        if buffer_ptr is None:
            self._want(name, _new_memory(device_type, device_id))
            return
        where = device_named(device_type, device_id)
        if element_type is None or shape is None:
            raise BindingError("a buffer needs 'element_type' and 'shape'")
        self._want(name, _Out(where, OrtValue(array_at(buffer_ptr, shape, element_type, where), where)))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._want(name, _Out(_ortvalue(ortvalue)._device, ortvalue))

    def _want(self, name: str, out: _Out) -> None:
        if name not in self._outputs:
            raise _unknown(name, self._outputs, "output")
        before, self._bound[name] = self._bound.get(name), out
        if before is None or before.value is not out.value:
            self._known = self._again = None
        self._results = []  # whose memory the next run may have, if nobody else holds it

    def clear_binding_outputs(self) -> None:
        self._bound.clear()
        self._known, self._again, self._results = None, None, []

    def synchronize_outputs(self) -> None:
        """A run has ended when it returns."""

    # --- results ---

    def get_outputs(self) -> list[OrtValue]:
        """The results of the last run, in the order in which they were bound; none once an output is bound anew."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results of the last run as arrays of their own, in the order in which they were bound."""
        return [np.array(one.numpy()) if one.is_tensor() else one._data for one in self._results]

    # --- what a session asks ---

    @property
    def _layout(self) -> _Layout:
        """The same as long as results are bound to the same memory, which many steps of a decoder are."""
        if not self._bound:
            first = next(iter(self._outputs))
            raise BindingError("no output is bound", hint=f"binding.bind_output({first!r}), before the session runs")
        if self._known is None:
            placed = {name: out.value for name, out in self._bound.items() if out.value and out.is_host}
            into = {self._outputs[name]: value._tensor for name, value in placed.items()}
            rest = [(at, name) for at, name in enumerate(self._bound) if name not in placed]
            self._known = _Layout(into, [placed.get(name) for name in self._bound], rest)
        return self._known

    def _into(self) -> Mapping[int, np.ndarray]:
        """Memory of the host that results are to be written to, by their positions; :class:`BindingError` where no
        output is bound."""
        return self._layout.into

    def _take(self, results: Sequence[Any]) -> None:
        """Keep what a run made of the outputs that are bound."""
        layout = self._layout
        self._new.clear()
        self._results = found = layout.values.copy()
        for at, name in layout.rest:
            found[at] = _kept(self._bound[name], results[self._outputs[name]])


@dataclass(frozen=True)
class _Layout:
    """Where results go: ``into`` memory of the host, by position; of the outputs in the order in which they were bound,
    the ``values`` that have such memory, and the places and names of the ``rest``."""

    into: dict[int, np.ndarray]
    values: list[Any]
    rest: list[tuple[int, str]]


def _kept(out: _Out, result: Any) -> OrtValue:
    if out.value is None:
        return held(result, out.device)
    if not out.is_host:
        out.value.update_inplace(np.asarray(result))
    return out.value


def _ortvalue(given: Any) -> OrtValue:
    if isinstance(given, OrtValue):
        return given
    raise BindingError(f"a {type(given).__name__} is bound, not an OrtValue", hint="OrtValue.ortvalue_from_numpy(x)")


def _unknown(name: str, known: Collection[str], what: str) -> BindingError:
    found = unknown_name(name, [*known], what)
    return BindingError(found.message, hint=found.hint or listing(known))
