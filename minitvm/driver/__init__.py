"""The driver: optimize, partition, lower, emit, plan, link.  From a module to a library, all stages in one place."""

from minitvm.driver.compile import backend_for, build, build_consuming, require_symbolic
from minitvm.driver.program import HostCallWarning
from minitvm.driver.report import BuildReport, KernelReport, PassStep
from minitvm.passes.pipeline import optimize
