"""One kernel cache for the whole test run: a kernel that several tests need is compiled once, by any worker.

The tests' models are small: all of them run on as many threads as they are asked to, worth it or not, and on a machine
with fewer CPUs as well.  They run over
poisoned memory, so that an element that a kernel forgets is an error whatever was there before; ``MINITVM_POISON=0`` in
the environment turns that off.

Properties are tried on the same generated examples each time, so that what fails once fails again; the profile ``long``
draws new ones.  How long one takes is no failure: others use the machine.
"""

from __future__ import annotations

import functools
import gc
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from minitvm import config
from minitvm.codegen.llvm import backend
from minitvm.runtime import instance, native
from tests import durations

settings.register_profile("long", max_examples=1000, deadline=None)
"""``pytest --hypothesis-profile=long``: hours of generated calls of the operators, others each time."""
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

_VARIABLE = "MINITVM_CACHE_DIR"
_OWN = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """A new folder, unless the caller chose one; workers of pytest-xdist inherit it with the environment."""
    os.environ.setdefault("MINITVM_POISON", "1")
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = config.stash[_OWN] = tempfile.mkdtemp(prefix="minitvm-tests-")
    if os.environ[_VARIABLE] and os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # tests' own processes share it
        os.environ["PYTHONPYCACHEPREFIX"] = str(pathlib.Path(os.environ[_VARIABLE]) / "bytecode")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers begin at different ends, so that what a file's tests share is made once, and take what is left from each
    other at the end, where a long test would otherwise keep one of them alone."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _as_tests_need_it() -> Iterator[None]:
    """Teams for small models; LLVM stays in memory, as the next test compiles again (5 ms to come back); the same text
    is compiled once, also where a test goes without the kernel cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instance, "WORTH_A_TEAM", 0.0)
        patch.setattr(config, "usable_cpus", lambda: config.MOST_THREADS)
        patch.setattr(native, "let_go_of_llvm", lambda: None)
        patch.setattr(backend, "compile_object", functools.lru_cache(512)(backend.compile_object))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--more", action="store_true", help="run what is the same again on more models, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked ``more``, unless asked for; marks the slow ones: those of ``tests/slow.txt``, as
    ``tests.durations`` measured them."""
    if not config.getoption("--more", False):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("more")])
        items[:] = [item for item in items if not item.get_closest_marker("more")]
    slow = durations.slow_ones()
    for item in items:
        if durations.function_of(item.nodeid) in slow:
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """What was collected stays: no collection of garbage walks through it again, and there are fewer of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 10)


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_OWN, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop(_VARIABLE, None)
