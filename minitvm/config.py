"""The environment variables, in one table (``docs/environment.md`` is checked against it)."""

import functools
import math
import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from minitvm.errors import ConfigError


class Variable(NamedTuple):
    name: str
    default: str
    meaning: str


VARIABLES: dict[str, Variable] = {
    v.name: v
    for v in (
        Variable(
            "MINITVM_BUDGET",
            "",
            "what compiling may cost, such as nodes=2000000,bytes=268435456,steps=200000,seconds=0; 0 is no limit",
        ),
        Variable("MINITVM_CACHE_DIR", "~/.cache/minitvm", "folder of compiled kernels; empty turns the cache off"),
        Variable("MINITVM_CPU", "", "the CPU this machine is taken for, such as haswell; its own if empty"),
        Variable("MINITVM_MAX_TRIPS", "0", "trips that a loop of a model may have, more are an error; 0 is no limit"),
        Variable("MINITVM_NUM_THREADS", "0", "threads a model runs on; 0 is one per physical core"),
        Variable(
            "MINITVM_VERIFY",
            "0",
            "1 verifies every module between passes and every kernel, and compares their numbers; slow",
        ),
        Variable(
            "MINITVM_POISON",
            "0",
            "1 runs every kernel over poisoned memory: what it leaves unwritten is an error; slow",
        ),
        Variable("MINITVM_REQUIRE_SIGNED", "0", "1 loads no library that is not signed by a trusted key"),
        Variable(
            "MINITVM_TRUSTED_KEYS",
            "",
            "PEM files of the public keys that libraries must be signed by, separated as in PATH",
        ),
        Variable("MINITVM_PRINT_IR", "", "names of passes, comma-separated, after which the module is printed"),
    )
}


def read(name: str) -> str:
    """The value of a variable from :data:`VARIABLES`."""
    return os.environ.get(name, VARIABLES[name].default)


def read_int(name: str) -> int:
    """The value of an integer variable; :class:`ConfigError` where it is not one."""
    text = read(name)
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}, not an integer", hint=VARIABLES[name].meaning) from None


def read_flag(name: str) -> bool:
    """True if a variable is set, to anything but 0."""
    return read(name) not in ("", "0")


def cache_dir() -> Path | None:
    """The kernel cache's folder, or ``None`` where the cache is off, or would be in a home that is not
    there.  Not created here."""
    text = read("MINITVM_CACHE_DIR")
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError:  # nobody's home: a user without one keeps nothing
        return None


@functools.cache
def version() -> str:
    """minitvm's version, as installed."""
    import importlib.metadata  # takes longer to import than all of the runtime's modules

    try:
        return importlib.metadata.version("minitvm")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


# --- how many threads -----------------------------------------------------------------------------------------

MOST_THREADS = 1024


def allowed_cpus() -> frozenset[int]:
    """The CPUs that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cpus() -> int:
    """The number of threads that can run at once: allowed CPUs, or fewer where a container has the time of fewer; at
    least 1."""
    return max(1, int(min(len(allowed_cpus()), cpu_quota())))


def physical_cores() -> int:
    """The same as :func:`usable_cpus`, but hardware threads of one core count once."""
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {_read_text(Path(siblings.format(c))) or str(c) for c in allowed_cpus()}
    return max(1, int(min(len(cores), cpu_quota())))


@functools.cache
def cpu_quota(proc: str = "/proc/self", cgroups: str = "/sys/fs/cgroup") -> float:
    """CPUs whose time the process's control groups may use, as Linux limits it; ``inf`` where nothing does.

    https://docs.kernel.org/admin-guide/cgroup-v2.html (``cpu.max``) and cgroup-v1 (``cpu.cfs_quota_us``).
    """
    found = [math.inf]
    for line in (_read_text(Path(proc, "cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        group = PurePosixPath(path)
        folders = [Path(cgroups, controllers, str(g).lstrip("/")) for g in (group, *group.parents)]
        if not controllers:
            found += (_quota(*(_read_text(folder / "cpu.max") or "max").split()) for folder in folders)
        elif "cpu" in controllers.split(","):
            names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            found += (_quota(*(_read_text(folder / name) or "-1" for name in names)) for folder in folders)
    return min(found)


def _quota(quota: str, period: str = "100000") -> float:
    limited = quota.isdigit() and period.isdigit() and int(period) > 0
    return int(quota) / int(period) if limited else math.inf


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def resolve_threads(threads: int | None) -> int:
    """The number of threads to run on: as asked, else ``MINITVM_NUM_THREADS``, else one per physical core."""
    count = read_int("MINITVM_NUM_THREADS") if threads is None else threads
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_THREADS:
        raise ConfigError(
            f"num_threads is {count!r}, not a whole number from 0 to {MOST_THREADS}",
            hint="0 or None is one thread per physical core",
        )
    return count or physical_cores()
