"""From one fused group to its code: the stages that a back end has for a kernel, and the cache in front of them."""

import functools
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from minitvm import config
from minitvm.codegen.backend import Backend, backend_of, stages
from minitvm.codegen.listing import Listing
from minitvm.codegen.lower import Lowering, plain
from minitvm.codegen.problem import OVERRIDES, RECORDS, TEMPLATES, asking, override_for
from minitvm.codegen.schedule import Schedule, apply, title, verify_kernel
from minitvm.codegen.simplify import simplify
from minitvm.doors import door
from minitvm.errors import CompilerError, ConfigError, MiniTVMError, as_raised, is_own
from minitvm.ir.budget import current
from minitvm.ir.dims import Dim, Undecided, assumed, under
from minitvm.ir.expr import Function
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.sizes import bound
from minitvm.ir.op import Op
from minitvm.ir.structural import structural_digest
from minitvm.ir.visitor import calls, sizes_of
from minitvm.passes.manager import PassContext, using
from minitvm.target import Target

Progress = Callable[[int, int, str], None]
"""``on_progress(done, total, name)`` after every kernel."""


class Cache(Protocol):
    """Bytes that are kept between runs, by key.  ``hits`` and ``misses`` are counted."""

    hits: int
    misses: int

    def key(self, *parts: str) -> str:
        """The key of what is determined by ``parts``."""

    def get(self, key: str) -> bytes | None:
        """What was put under ``key``, or ``None``."""

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``."""

    def trim_where_due(self) -> None:
        """Deletes what was not used for longest, where there is too much."""


class NoCache:
    """A cache that keeps nothing, for kernels that are not to be found again."""

    hits = misses = 0

    def key(self, *parts: str) -> str:
        """Returns one key for all kernels."""
        return ""

    def get(self, key: str) -> bytes | None:
        """Returns ``None``, as nothing is kept."""
        return None

    def put(self, key: str, data: bytes) -> None:
        """Forgets ``data``, which nobody will ask for."""

    def trim_where_due(self) -> None:
        """Leaves what is not there."""


@door
def kernel_cache(folder: Path | None) -> Cache:
    """Keeps what is compiled in a folder; nothing where that is ``None``, or nobody keeps anything."""
    return NoCache()


class NotLowered(CompilerError):
    """A group that no template accepts and no compute rule describes: it can only run in Python."""


@dataclass(frozen=True)
class KernelCode:
    """A compiled kernel, and the workspace that it needs: ``fixed`` bytes and ``per_thread`` for each thread."""

    image: Any
    fixed: Dim
    per_thread: Dim
    cycles: float = 0.0
    """As a template predicts them."""
    undecided: tuple[str, ...] = ()
    """The results that could not be shown to be stored whole, and why."""
    is_library_call: bool = False

    def workspace(self, threads: int) -> Dim:
        return self.fixed + threads * self.per_thread


class Timings:
    """Seconds by stage, summed over threads."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = {} if seconds is None else seconds
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class KernelCompiler:
    """The stages of a kernel for one target.  Safe to use from several threads."""

    def __init__(
        self,
        backend: Backend,
        cache: Cache,
        timings: Timings | None = None,
        on_progress: Progress | None = None,
        schedules: Mapping[str, Schedule] | None = None,
    ) -> None:
        if on_progress is not None and not callable(on_progress):
            raise ConfigError(f"on_progress is a {type(on_progress).__name__}, not a function of (done, total, name)")
        self.backend = backend
        self.on_progress = on_progress
        self.schedules = dict(schedules or {})
        self.overrides = OVERRIDES.get()
        """What is chosen for single kernels."""
        self.context = PassContext.current()
        """Whose options templates see, whatever thread asks them, and when."""
        self._assumed = assumed()
        self.cache = cache
        self.timings = timings or Timings()
        self._writing = threading.Lock()  # one thread in Python and the others in LLVM, rather than two in Python
        self._verify = config.read_flag("MINITVM_VERIFY")

    def lowered(self, symbol: str, group: Function) -> Lowering:
        """The group as loops for this target, functions not yet spelled out, and what made them."""
        with using(self.context), under(self._assumed), asking(self.overrides), self.timings.stage("lower"):
            try:
                lowered = self._lowered(symbol, group)
            except ConfigError:  # an override that cannot be done is not done in Python
                raise
            except CompilerError as error:
                raise NotLowered(error.message, where=error.where, hint=error.hint) from error
            except (Undecided, MiniTVMError) as error:
                if not sizes_of(group):
                    raise
                raise NotLowered(f"its loops are made for numbers only: {error}") from error
        with self.timings.stage("simplify"):
            return replace(lowered, kernel=simplify(lowered.kernel))

    def _lowered(self, symbol: str, group: Function) -> Lowering:
        given, override = self.schedules.get(symbol), override_for(symbol, group)
        if override is not None and override.schedule is not None:
            given = override.schedule
        if given is None:
            return self.backend.lower(group, symbol)
        return Lowering(apply(given, plain(group, symbol)), title(given))

    def library_call(self, symbol: str, group: Function) -> Any | None:
        with using(self.context):
            return self.backend.library_call(group, symbol)

    def kernel(self, symbol: str, group: Function) -> Kernel:
        """The group as loops that the back end can spell."""
        return self.legalized(self.lowered(symbol, group).kernel)

    def legalized(self, lowered: Kernel) -> Kernel:
        """Loops with nothing in them that the back end cannot spell."""
        with self.timings.stage("legalize"):
            kernel = self.backend.legalize(lowered)
        if self._verify:
            with self.timings.stage("verify"):
                verify_kernel(_with_numbers(kernel))
        return kernel

    def text(self, symbol: str, group: Function, stage: str) -> str:
        """The group at a stage: ``plain``, ``loops``, or one that its back end offers, or else another one."""
        if stage == "plain":
            return str(plain(group, symbol))
        if self.library_call(symbol, group) is not None:
            with using(self.context):
                return self.backend.library_text(group, symbol)
        if stage == "loops":
            return str(self.lowered(symbol, group).kernel)
        if stage in self.backend.stages:
            return self.backend.stages[stage](self.backend, self.backend.bind(self.kernel(symbol, group)))
        other = backend_of(Target(stages()[stage]), self.backend.machine.threads)
        return KernelCompiler(other, self.cache, schedules=self.schedules).text(symbol, group, stage)

    def listings(self, symbol: str, group: Function, kind: str = "") -> tuple[Listing, ...]:
        """The texts of the group's way to code, line by line, by its back end or that of another kind.

        Of what a library computes, the call alone."""
        if kind not in ("", self.backend.kind):
            other = backend_of(Target(kind), self.backend.machine.threads)
            return KernelCompiler(other, self.cache, schedules=self.schedules).listings(symbol, group)
        if self.library_call(symbol, group) is not None:
            with using(self.context):
                return (Listing("text", tuple(self.backend.library_text(group, symbol).splitlines())),)
        lowered = self.lowered(symbol, group).kernel
        return self.backend.listings(lowered, self.legalized(lowered))

    def compile_all(self, groups: Mapping[str, Function]) -> tuple[dict[str, KernelCode], dict[str, str]]:
        """Every group's code, a few at a time (LLVM leaves the interpreter's lock alone); and why others have none."""
        found: dict[str, KernelCode] = {}
        refused: dict[str, str] = {}
        budget = current()
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            jobs: dict[Future[KernelCode], str] = {pool.submit(self.compile, s, g): s for s, g in groups.items()}
            try:
                for done, job in enumerate(as_completed(jobs), 1):
                    symbol = jobs[job]
                    budget.check_time(f"kernel {done} of {len(jobs)}")
                    try:
                        found[symbol] = job.result()
                    except NotLowered as error:
                        refused[symbol] = str(error)
                    if self.on_progress is not None:
                        with as_raised():
                            self.on_progress(done, len(jobs), symbol)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return {symbol: found[symbol] for symbol in groups if symbol in found}, refused

    def compile(self, symbol: str, group: Function) -> KernelCode:
        """The group's code, from the cache where it is there; or what calls a library in its place."""
        called = self.library_call(symbol, group)
        if called is not None:
            return KernelCode(called, 0, 0, is_library_call=True)
        chosen = symbol in self.schedules or any(override.is_for(symbol, group) for override in self.overrides)
        if chosen or not self._is_own(group) or sizes_of(group):
            return self.fresh(symbol, group)  # the key does not see other people's sources; the image is kept
        key = self.cache.key("group", structural_digest(group).hex(), symbol, *self._version(), self._records)
        kept = self.cache.get(key)
        if kept is not None:
            return _unpack(kept)
        code = self._code(symbol, group, self._image)
        self.cache.put(key, _pack(code))
        return code

    def source(self, symbol: str, group: Function) -> Any:
        """What the back end compiles."""
        return self.backend.source(self.backend.bind(self.kernel(symbol, group)))

    def fresh(self, symbol: str, group: Function) -> KernelCode:
        """The group's code, whatever the cache has for it; its image is from there, and kept."""
        return self._code(symbol, group, self.image_of)

    def _code(self, symbol: str, group: Function, image_of: Callable[[Any], Any]) -> KernelCode:
        with self._writing:
            lowered = self.lowered(symbol, group)
            kernel = self.legalized(lowered.kernel)
            with self.timings.stage("coverage"):
                undecided = not_shown_stored(_with_numbers(kernel))
            launches = self.backend.bind(kernel)
            workspace = self.backend.workspace(launches)
            with self.timings.stage("emit"):
                source = self.backend.source(launches)
        image = image_of(source)
        fixed = workspace.nbytes - workspace.thread_bytes
        return KernelCode(image, fixed, workspace.thread_bytes, lowered.cycles, undecided)

    def image_of(self, source: Any) -> Any:
        """What the back end makes of a source, from the cache where it is there."""
        if self.backend.version is None:
            return self._image(source)
        key = self.cache.key("image", source, *self._version())
        kept = self.cache.get(key)
        if kept is not None:
            return kept
        image = self._image(source)
        self.cache.put(key, image)
        return image

    def _image(self, source: Any) -> Any:
        with self.timings.stage(self.backend.kind):
            return self.backend.image(source)

    def _is_own(self, group: Function) -> bool:
        """True if minitvm's own sources alone decide what the group's code looks like: its operators, the templates,
        the back end; and code can be kept."""
        ops = [call.op for call in calls(group.body) if isinstance(call.op, Op)]
        templates = [template for op in ops for template in TEMPLATES.find(self.backend.templates, op)]
        makers = [type(self.backend), *map(type, ops), *templates]
        return self.backend.version is not None and all(map(is_own, makers))

    @functools.cached_property
    def _records(self) -> str:
        """The tuning records that the context names."""
        with using(self.context):
            return records_given()

    def _version(self) -> tuple[str, ...]:
        machine = {**vars(self.backend.machine), "features": sorted(self.backend.machine.features)}
        given = (item for item in self.context.config.items() if item[0] != RECORDS.name)
        options = sorted((name, repr(value)) for name, value in given)
        return (self.backend.kind, str(self.backend.version), str(machine), str(options), source_fingerprint())


def _with_numbers(kernel: Kernel) -> Kernel:
    """A symbolic kernel as it is checked: no two sizes alike, none a multiple of a vector, as large as it has to be."""
    for least in (3, 67, 1031):
        try:
            return bound(kernel, {name: least + 2 * number for number, name in enumerate(kernel.sizes)})
        except ValueError:
            continue
    raise CompilerError(f"{kernel.name} has a dimension that is less than 0 for all sizes that were tried")


def _pack(code: KernelCode) -> bytes:
    return json.dumps([code.fixed, code.per_thread, code.cycles, code.undecided]).encode() + b"\n" + bytes(code.image)


def _unpack(data: bytes) -> KernelCode:
    head, _, image = data.partition(b"\n")
    fixed, per_thread, cycles, undecided = json.loads(head)
    return KernelCode(image, fixed, per_thread, cycles, tuple(undecided))


@functools.cache
def source_fingerprint() -> str:
    """A hash of the sources that decide what a kernel looks like, so that a changed compiler misses the cache."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for folder in ("ir", "codegen"):
        for path in sorted(p for p in (root / folder).rglob("*") if p.suffix in (".py", ".ll", ".jsonl")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    for name in ("driver/kernels.py", "target.py"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


@door
def records_given() -> str:
    """The tuning records that the context names, as they are in a file."""
    return ""


@door
def not_shown_stored(kernel: Kernel) -> tuple[str, ...]:
    """The buffers of which it is not shown that each element is stored once, with the reason; nobody looks."""
    return ()
