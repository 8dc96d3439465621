"""The driver: optimize, partition, lower, emit, plan, link.  From a module to a library, all stages in one place."""

from __future__ import annotations

from minitvm.driver.compile import build, build_consuming, build_options, optimize
from minitvm.driver.function import create_executor
from minitvm.driver.host_calls import HostCallWarning
from minitvm.driver.report import BuildReport, KernelReport, PassStep

__all__ = [
    "BuildReport",
    "HostCallWarning",
    "KernelReport",
    "PassStep",
    "build",
    "build_consuming",
    "build_options",
    "create_executor",
    "optimize",
]
