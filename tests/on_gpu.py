"""``pytest -p tests.on_gpu``: what runs CUDA C on the simulated GPU is launched on the first real one.

Other tests, and those of what only the simulator tells, are left out.
"""

from __future__ import annotations

import pytest

from simulated_gpu import real
from tests.compilers import needs_compiler

real.use()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that need a compiler for the host run kernels there."""
    kept = [item for item in items if _launches(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _launches(item)])
    items[:] = kept


def _launches(item: pytest.Item) -> bool:
    marks = list(item.iter_markers())
    return needs_compiler.mark in marks and not any(mark.name == "only_simulated" for mark in marks)
