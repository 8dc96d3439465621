"""A model whose runs differ in what they give: weights that are defaults, inputs of which it does not say the rank.

Each such form is a model of its own, compiled when a run first asks for it: one whose fed defaults are inputs, so that
nothing was folded that follows from them, and whose inputs have the ranks that came.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm.errors import InputError, LibraryError
from minitvm.frontend import ModelDescription, describe_importable, keep_files, load_model, with_inputs
from minitvm.ir.decision import Decision
from minitvm.ort.again import Again
from minitvm.ort.compiling import CompileOptions, Compiling
from minitvm.ort.declared import check_given
from minitvm.ort.loaded import write
from minitvm.runtime.direct import AS_EVER, How
from minitvm.runtime.graph import HostCall
from minitvm.runtime.library import Library
from minitvm.runtime.specialised import Specialised
from minitvm.target import Target

if TYPE_CHECKING:
    from minitvm.models import Model

Form = tuple[tuple[str, ...], tuple[int, ...]]
"""The defaults that are fed, and the ranks of the inputs without one."""


class Varying:
    """A model like :class:`Compiling`, of which it has one for each form that runs have asked for; as many as
    ``specialisations`` are kept."""

    worker = None

    def __init__(
        self, model: Model, target: Target, description: ModelDescription, unranked: Sequence[str], how: CompileOptions
    ) -> None:
        self.target, self.description, self._how = target, description, how
        self._model = model
        self._inputs = [v.name for v in description.inputs]
        self._defaults = {v.name: v for v in description.overridable}
        said = how.shape_dict or {}
        self._ranks = {name: len(said[name]) if name in said else None for name in unranked}
        """Of what has none in the model, as far as it was said; of a default only where it is fed."""
        self._forms: dict[Form, Compiling] = {}
        self._lock = threading.Lock()
        if all(rank is not None for name, rank in self._ranks.items() if name not in self._defaults):
            self._form((), {})
        keep_files(model)

    # --- forms ---

    def _form(self, fed: Iterable[str], ranks: Mapping[str, int]) -> Compiling:
        """What compiles one form; made by the first who asks."""
        names = tuple(name for name in self._defaults if name in fed)
        wanted = {name: said for name, said in self._ranks.items() if name not in self._defaults or name in names}
        known = {name: ranks[name] if said is None else said for name, said in wanted.items()}
        key = names, tuple(known.values())
        found = self._forms.get(key)
        if found is None:
            with self._lock:
                found = self._forms.get(key) or self._made(names, known)
                self._forms.pop(key, None)
                self._forms[key] = found
                while len(self._forms) > self._how.specialisations:
                    self._forms.pop(next(iter(self._forms)))
        return found

    def _made(self, names: tuple[str, ...], ranks: Mapping[str, int]) -> Compiling:
        if not names and not ranks:
            return Compiling(self._model, self.target, self.description, self._how)
        model = with_inputs(load_model(self._model), names, ranks)
        return Compiling(model, self.target, describe_importable(model), self._how)

    def _form_of(self, feeds: Mapping[str, Any]) -> Compiling:
        check_given(feeds, self._inputs, self._defaults)
        return self._form(
            [name for name in feeds if name in self._defaults],
            {name: _rank(feeds[name]) for name in self._ranks if name in feeds},
        )

    # --- as Compiling ---

    def run(self, feeds: Mapping[str, Any], how: How = AS_EVER) -> list[Any]:
        return self._form_of(feeds).run(feeds, how)

    def again(self, feeds: dict[str, Any], into: Mapping[int, np.ndarray]) -> Again | None:
        return self._form_of(feeds).again(feeds, into)

    def found(self, feeds: Mapping[str, Any]) -> tuple[Specialised, dict[str, Any]]:
        return self._form_of(feeds).found(feeds)

    def prepare(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any] | None = None) -> None:
        """Prepares as :class:`Compiling` does; shapes or values of defaults say that these will be fed."""
        given = {
            **{name: len(shape) for name, shape in shapes.items()},
            **{n: np.ndim(v) for n, v in (values or {}).items()},
        }
        open_ranks = (name for name, rank in self._ranks.items() if rank is None and name not in self._defaults)
        missing = [name for name in open_ranks if name not in given]
        if missing:
            raise InputError(
                f"the model does not say how many dimensions input {missing[0]!r} has",
                hint=f"prepare({{{missing[0]!r}: shape}})",
            )
        self._form(given, given).prepare(shapes, values)

    def save(self, path: str | Path, key: Any = None) -> None:
        """The libraries of all ranks, of what runs without another value of a default; else those used last."""
        forms = list(self._forms.items())
        kept = [form for (fed, _), form in forms if not fed] or [form for _, form in forms[-1:]]
        if not kept:
            raise LibraryError("nothing is compiled that could be saved", hint="session.prepare({name: shape}) before")
        write([library for form in kept for library in form.to_save()], path, key)

    @property
    def host_calls(self) -> list[HostCall]:
        return list(dict.fromkeys(call for form in self._all() for call in form.host_calls))

    @property
    def inputs_by_value(self) -> list[str]:
        return list(dict.fromkeys(name for form in self._all() for name in form.inputs_by_value))

    @property
    def symbolic(self) -> Decision | None:
        """The decision of the form made last."""
        return next((form.symbolic for form in reversed(self._all())), None)

    @property
    def compiled_beside(self) -> list[Decision]:
        return [decision for form in self._all() for decision in form.compiled_beside]

    @property
    def libraries(self) -> list[Library]:
        return [library for form in self._all() for library in form.libraries]

    def _all(self) -> list[Compiling]:
        return list(self._forms.values())


def _rank(value: Any) -> int:
    return len(value.shape) if hasattr(value, "shape") else np.ndim(value)
