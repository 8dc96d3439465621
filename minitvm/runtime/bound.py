"""A library for all shapes at some of them: what a run at new sizes costs.

Memory is planned for sizes somewhat above those that a run has, and serves all runs whose sizes round up to the same:
a longer text, or a cache that grows, costs a look at the types and no plan.
"""

from __future__ import annotations

import ctypes
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from minitvm import config
from minitvm.errors import CompilerError, InputError, MiniTVMError, origin
from minitvm.ir.arrays import ALIGNMENT, address_of
from minitvm.ir.types import Leaf, fits, numpy_dtype, symbols
from minitvm.runtime.bind import Binder, Sizes
from minitvm.runtime.direct import AS_EVER, DirectCall, How, is_readable
from minitvm.runtime.graph import Artifact, HostCall, Segment, steps_of
from minitvm.runtime.instance import Instance
from minitvm.runtime.lasting import Lasting

T = TypeVar("T")

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Of inputs, by name."""
Planned: TypeAlias = Any
"""A :class:`Library`, for all shapes or for numbers, that has these plans."""

MOST_MET = 128
"""Values of symbols whose types are kept."""

MOST_PLANS = 8
"""Of one library: those used last are kept."""


def rounded_up(size: int) -> int:
    """The size that memory is planned for: the next of four steps between two powers of two."""
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step


_WORDS = {4: ctypes.c_int32, 8: ctypes.c_int64}
"""By bytes."""


class Bound:
    """What runs at some sizes; as a :class:`Library` for them."""

    def __init__(self, plans: SizePlans, sizes: Sizes) -> None:
        self._plans, self.sizes = plans, sizes

    @property
    def inputs(self) -> dict[str, Leaf]:
        """The types of what a run is given, by name."""
        known = {name: self._plans.open_types.get(t, t) for name, t in self._plans.library.artifact.inputs.items()}
        return {name: self.sizes.type_at(t) if isinstance(t, int) else t for name, t in known.items()}

    @property
    def host_calls(self) -> list[HostCall]:
        return list(self.opened.host_calls)

    @property
    def opened(self) -> Planned:
        """The library for all sizes."""
        return self._plans.library

    def at(self, values: Mapping[str, int]) -> Bound:
        """The same library bound to other values of its symbols; :class:`DoesNotFit`."""
        return self._plans.for_values(values)

    @cached_property
    def library(self) -> Planned:
        """One with a plan for exactly these sizes."""
        return self._plans.exactly(self.sizes)

    @property
    def artifact(self) -> Artifact:
        found: Artifact = self.library.artifact
        return found

    def call(self, feeds: Mapping[str, Any], how: How = AS_EVER) -> list[Any]:
        """All results of a run of arrays that are right."""
        room = self.room
        try:
            if room is not None:
                return room.call(self.sizes, feeds, how)
        except InputError as error:
            if room is None or not isinstance(error.__cause__, MemoryError):
                raise
            self._plans.forget(room)
        try:
            return list(self.library.call(feeds, how))
        except (InputError, CompilerError) as error:
            if isinstance(error, CompilerError) or isinstance(error.__cause__, MemoryError):
                error.where += (self._largest(),)
            raise

    def _largest(self) -> str:
        """The largest value, and what makes it."""
        open_types, nodes = self._plans.open_types, self.opened.artifact.graph.nodes
        made = [(self.sizes.type_at(open_types[t]), node) for node in nodes for t in node.types if t in open_types]
        type_, node = max(made, key=lambda one: one[0].nbytes if one[0].is_static else 0)
        return f"{node.name}: {type_}, {type_.nbytes:,} bytes      {origin(node.spans)}".rstrip()

    @property
    def room(self) -> SizePlan | None:
        """The memory that runs find; ``None`` where they need a plan of their own."""
        return self._plans.of(self.sizes)


class OpenCall(DirectCall):
    """Runs of an instance at any sizes for which its memory is enough."""

    def __init__(self, instance: Instance, opened: Artifact, open_types: Mapping[Leaf, int]) -> None:
        super().__init__(instance)
        heads = enumerate(map(opened.graph.type_of, opened.graph.heads))
        self._open = [(position, open_types[type_]) for position, type_ in heads if type_ in open_types]
        self._places = {place for _, place in self._open}
        self._named = symbols(*(type_ for type_, place in open_types.items() if place in self._places))
        self._numbers = []
        for name, asked in opened.sizes.items():
            numbers = instance.memory.empty((len(asked),), "int64")
            instance.place_input(name, numbers)
            self._numbers.append((numbers, asked))
        self._checked = [(e, instance.types[e]) for e in (instance.graph.entry_id(c) for c, _ in instance.checks)]
        self._checks: list[Any] = []
        self._last: Mapping[str, int] | None = None
        self._version = 0
        """Counts how often types of results were others than before."""
        self._pointed: tuple[object, Any, int] | None = None
        """Whose lasting arrays kernels were pointed at, with what has to be the same for them to find those: the memory
        of all other values, and the types."""

    def _is_bound(self, entry: int) -> bool:
        return True

    def run_at(self, sizes: Sizes, feeds: Mapping[str, Any], how: How) -> list[Any]:
        self._come_to(sizes)
        self._pointed = None
        return self.run(feeds, how)

    def run_again(self, sizes: Sizes, lasting: Lasting, new: Mapping[str, Any]) -> list[Any] | None:
        """Runs as :meth:`run_at` does, of what lasts; ``None`` where some of it has to be copied, or does not fit."""
        self._come_to(sizes)
        if (
            self._is_pointed(lasting)
            and self._changed.keys().isdisjoint(new)
            and all(map(lasting.allows, new.values()))
        ):
            for name, array in new.items():
                self._point(self._inputs[name], address_of(array))
        elif not self._can_point(lasting):
            self._pointed = None
            return None
        found = lasting.results.copy()
        for position, owner in lasting.rest:
            type_ = self._types[position]
            found[position] = array = self._results[owner].array(type_.static_shape, numpy_dtype(type_.dtype))
            self._point(self._readers[owner], address_of(array))
        self._run_quickly()
        return found

    def _is_pointed(self, lasting: Lasting) -> bool:
        whose, arena, version = self._pointed or (None, None, 0)
        return whose is lasting.token and arena is self.instance.arena and version == self._version

    def _run_quickly(self) -> None:
        """As the instance runs, but that what its checks found is looked at where it lies."""
        instance = self.instance
        instance.has_run = False
        for step in instance.steps:
            step()
        if any(check.value for check in self._checks):
            instance.finish()
        instance.has_run = True

    def _can_point(self, lasting: Lasting) -> bool:
        """Points kernels at all that lasts; false where some of it has to be copied, or does not fit."""
        feeds, into = lasting.feeds, lasting.into
        are_right = all(map(is_readable, feeds.values())) and None not in self._as_made
        are_right = are_right and all(type_.nbytes in _WORDS for _, type_ in self._checked)
        if not are_right or not all(fits(array, self._types[position]) for position, array in into.items()):
            return False
        written = self._placed(feeds, into)
        if len(written) < len(into):
            return False
        self._taken(feeds)
        lasting.results = [into.get(position) for position in range(len(self._as_made))]
        lasting.rest = [(self._made_as[owner], owner) for owner in self._results if owner not in written]
        self._checks = [_WORDS[t.nbytes].from_address(self.instance.address(entry)) for entry, t in self._checked]
        self._pointed = lasting.token, self.instance.arena, self._version
        return True

    def _come_to(self, sizes: Sizes) -> None:
        if sizes.values == self._last:
            return
        values, before = sizes.values, self._last or {}
        self.instance.kept_is_right, self._last = False, values
        for numbers, asked in self._numbers:
            for i, symbol in enumerate(asked):
                numbers[i] = values[symbol]
        if not before or any(values.get(symbol) != before.get(symbol) for symbol in self._named):
            self._version += 1
            types = {place: sizes.type_at(place) for place in self._places}
            for position, place in self._open:
                self._types[position] = types[place]


class Arenas:
    """Memory that runs of any sizes lie in, one after the other: fresh pages cost more than most kernels take to fill
    them."""

    ROOM = 1 << 28
    """Bytes at most that larger sizes may need: pages that nobody has written yet are none."""

    def __init__(self) -> None:
        self._idle: list[Any] = []

    def taken(self, instance: Instance) -> Any:
        """Memory that the instance lies in and nobody else has, until it is given back."""
        arena, nbytes = None, instance.plan.nbytes + ALIGNMENT
        while arena is None or arena.nbytes < nbytes:  # what is too small for a run is for nobody
            try:
                arena = self._idle.pop()
            except IndexError:
                arena = instance.memory.empty((nbytes + min(nbytes, self.ROOM),), "uint8")
        if arena is not instance.arena:
            instance.lie_in(arena)
        return arena

    def give_back(self, arena: Any) -> None:
        self._idle.append(arena)


@dataclass
class SizePlan:
    """A memory plan for some sizes."""

    library: Planned
    sizes: Sizes
    _arenas: Arenas
    _make: Callable[[Planned], OpenCall]
    _quick: Callable[[Mapping[str, int]], Sizes | None]
    _idle: list[OpenCall] = field(default_factory=list)

    def call(self, sizes: Sizes, feeds: Mapping[str, Any], how: How) -> list[Any]:
        call = self._free() or self._make(self.library)
        return self._lent(call, lambda: call.run_at(sizes, feeds, how))

    def grown(self, values: Mapping[str, int], before: Mapping[str, int]) -> Sizes | None:
        """The sizes for values of which none is less than before; ``None`` where they need another plan."""
        if not all(map(operator.ge, values.values(), before.values())):
            return None
        sizes = self._quick(values)
        return sizes if sizes is not None and self.sizes.hold(sizes) else None

    def call_again(self, sizes: Sizes, lasting: Lasting, new: Mapping[str, Any]) -> list[Any] | None:
        """All results of a run of what lasts, of which these inputs are others than in the run before; ``None`` where
        :meth:`call` has to look at all of it."""
        call = self._free()
        return None if call is None else self._lent(call, lambda: call.run_again(sizes, lasting, new))

    def _free(self) -> OpenCall | None:
        """A call that nobody else runs."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _lent(self, call: OpenCall, run: Callable[[], T]) -> T:
        """What ``run`` gives, in memory that nobody else has meanwhile; the call is free after it."""
        arena = self._arenas.taken(call.instance)
        try:
            return run()
        finally:
            self._arenas.give_back(arena)
            self._idle.append(call)


class SizePlans:
    """The memory and plans of a library for all shapes."""

    def __init__(self, library: Planned, binder: Binder, grows: bool = False) -> None:
        self.grows = grows
        """Whether memory is planned for the most there was of each size: what data decide differs from run to run."""
        self.library, self._binder, self.open_types = library, binder, binder.open_types
        self._lock, self._arenas = threading.Lock(), Arenas()
        self._kept: OrderedDict[tuple[int, ...], SizePlan | None] = OrderedDict()
        self._last: Mapping[str, int] = {}
        self._met: OrderedDict[tuple[int, ...], Bound] = OrderedDict()

    def at(self, shapes: Shapes) -> Bound:
        """The library bound to inputs of these shapes; :class:`DoesNotFit` where its types do not hold for them."""
        return Bound(self, self._binder.sizes(shapes))

    def exactly(self, sizes: Sizes) -> Planned:
        """A library with a plan for these sizes alone."""
        return self.library.like(self._binder.artifact(sizes))

    def for_values(self, values: Mapping[str, int]) -> Bound:
        """The library bound to values of its symbols; :class:`DoesNotFit` likewise."""
        key = tuple(values.values())
        with self._lock:
            found = self._met.pop(key, None)
        found = found or Bound(self, self._binder.sizes_for(values))
        with self._lock:
            self._met[key] = found
            if len(self._met) > MOST_MET:
                self._met.popitem(last=False)
        return found

    def of(self, sizes: Sizes) -> SizePlan | None:
        """The place where a run at these sizes finds memory; ``None`` where it needs a plan of its own."""
        if not self._can_share or config.read_flag("MINITVM_POISON"):
            return None
        key = tuple(map(rounded_up, sizes.values.values()))
        with self._lock:
            key = self._larger(key, sizes) if self.grows else key if key in self._kept else self._ahead(sizes.values)
            self._last = sizes.values
            room = self._kept.pop(key) if key in self._kept else self._made(dict(zip(sizes.values, key, strict=True)))
            self._kept[key] = room
            if len(self._kept) > MOST_PLANS:
                self._kept.popitem(last=False)
        return room if room is not None and room.sizes.hold(sizes) else None

    def forget(self, plan: SizePlan) -> None:
        """Forgets a plan for which there was no memory."""
        with self._lock:
            for key in [key for key, kept in self._kept.items() if kept is plan]:
                del self._kept[key]

    def _ahead(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """Rounded up as they are, but for sizes that grow little by little: of a cache's length and that with a new row
        one comes to its step's end first, and one plan is to serve both, and those that follow."""
        grew = {n for name, n in values.items() if 0 < n - self._last.get(name, 0) <= n // 16}
        return tuple([1 << n.bit_length() if n in grew else rounded_up(n) for n in values.values()])

    def _larger(self, key: tuple[int, ...], sizes: Sizes) -> tuple[int, ...]:
        """What the last room was planned for, where that is enough; else as much as it takes for both."""
        last = next(reversed(self._kept.items()), (key, None))
        if last[1] is not None and last[1].sizes.hold(sizes):
            return last[0]
        return tuple(map(max, key, last[0]))

    def _made(self, values: Mapping[str, int]) -> SizePlan | None:
        try:
            sizes = self._binder.sizes_of(values)
            planned = self.library.like(self._binder.artifact(sizes))
            return SizePlan(planned, sizes, self._arenas, self._call, self._binder.quick_sizes)
        except (MiniTVMError, ValueError):  # sizes that nobody asked for may be none, or too large
            return None

    def _call(self, planned: Planned) -> OpenCall:
        return OpenCall(planned["default"](None, planned.threads), self.library.artifact, self.open_types)

    @cached_property
    def _can_share(self) -> bool:
        """True if nobody but kernels, on the host, looks at values between inputs and results."""
        graph = self.library.artifact.graph
        by_kernels = all(isinstance(step, Segment) for step in steps_of(graph))
        plain = all(node.types[0].is_static for node in graph.nodes if node.check)
        return by_kernels and plain and self.library.device().kind == "cpu"
