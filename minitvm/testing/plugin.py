"""The plugin of pytest's that TVM's tests are written for: parameters of tests, and ``target`` with its ``dev``."""

from __future__ import annotations

from typing import Any

import pytest

from minitvm.runtime.devices import Device, device
from minitvm.testing.targets import device_enabled, enabled_targets, groups_of


def pytest_generate_tests(metafunc: Any) -> None:
    """Parametrizes a test by what its class and its module name so, and by targets."""
    scopes = [one for one in (metafunc.cls, metafunc.module) if one is not None]
    given = {name.strip() for mark in metafunc.definition.iter_markers("parametrize") for name in _names(mark.args[0])}
    for group in groups_of([name for name in metafunc.fixturenames if name not in given], scopes):
        rows = list(zip(*(one.values for one in group.values()), strict=True))
        ids = next(iter(group.values())).ids
        metafunc.parametrize(list(group), rows, ids=ids)
    if "target" in metafunc.fixturenames and "target" not in given:
        metafunc.parametrize("target", targets_of(metafunc.function))


def _names(names: Any) -> list[str]:
    return names.split(",") if isinstance(names, str) else list(names)


def targets_of(test: Any) -> list[Any]:
    """What a test runs for: skipped where this machine has no such device, or the test leaves it out."""
    left_out = getattr(test, "_excluded", ())
    found = getattr(test, "_targets", None) or [name for name, _ in enabled_targets()]
    failing = getattr(test, "_failing", ())
    return [
        pytest.param(
            name,
            marks=[
                *([] if device_enabled(name) else [pytest.mark.skip(reason=f"there is no device for {name}")]),
                *([pytest.mark.xfail] if name.split()[0] in failing else []),
            ],
        )
        for name in found
        if name.split()[0] not in left_out
    ]


@pytest.fixture
def dev(target: Any) -> Device:
    """The device of the target."""
    return device(str(target).split()[0], 0)
