"""A model's kernels beside what the machine does at most: ``minitvm bench --roofline``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from minitvm import config
from minitvm.codegen.backend import Backend
from minitvm.driver.kernels import Progress
from minitvm.runtime.cache import KernelCache, cache_key
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.measured import Measured, again
from minitvm.runtime.roofline import Roofline, roofline
from minitvm.target import Level, Rates


def rates_of(backend: Backend) -> Rates:
    """What the machine that is here does at most: the best of all times that it was measured, kept beside its kernels.

    Whatever else ran meanwhile can only have lowered a figure.
    """
    cache, found = KernelCache(config.cache_dir()), backend.measured()
    names = (*vars(found), *(level.name for level in found.levels))  # what another minitvm keeps is not read
    key = cache_key("rates", str(backend.version), backend.machine.name, str(found.threads), *names)
    kept = cache.get(key)
    if kept is not None:
        form = json.loads(kept)
        found = found.better_of(Rates(**{**form, "levels": tuple(Level(*level) for level in form["levels"])}))
    cache.put(key, json.dumps(vars(found)).encode())
    return found


def roofline_of(
    module: GraphModuleDebug,
    run: Callable[[], Sequence[float]],
    backend: Backend,
    rounds: int,
    on_progress: Progress | None = None,
) -> Roofline:
    """The kernels of a module whose inputs are set; ``run`` times whole runs.  All is measured again where something
    is unreliable."""
    rates = rates_of(backend)

    def measured() -> Roofline:
        alone = module.seconds_of_kernels(rounds, on_progress)
        return roofline(module.instance.artifact, alone, Measured.of(run()), rates)

    return again(measured, lambda found: found.unreliable)
