"""From a loaded artefact to a running instance."""

from __future__ import annotations

from functools import partial

from minitvm import config
from minitvm.runtime.instance import HostRun, Instance
from minitvm.runtime.loaded import Loaded
from minitvm.runtime.ndarray import Device
from minitvm.runtime.poison import PoisonedInstance


def instance_of(loaded: Loaded, device: Device, num_threads: int | None = None) -> Instance:
    """A running copy; under ``MINITVM_POISON`` poisoned, where its memory is the host's."""
    poisoned = config.read_flag("MINITVM_POISON") and loaded.code.memory.is_host
    kind = PoisonedInstance if poisoned else Instance
    return kind(loaded, device, num_threads, partial(_bind_host, loaded, device))


def _bind_host(loaded: Loaded, device: Device, node: str, num_threads: int) -> HostRun:
    from minitvm.runtime.control import bind  # loads the operators, which most libraries do without

    host = loaded.artifact.hosts[node]
    branches = {name: instance_of(loaded.branches[node, name], device, num_threads) for name in host.branches}
    return bind(host.function, branches)
