# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm.driver.compile import backend_for as backend_for
from minitvm.driver.compile import build as build
from minitvm.driver.compile import build_consuming as build_consuming
from minitvm.driver.compile import require_symbolic as require_symbolic
from minitvm.driver.program import HostCallWarning as HostCallWarning
from minitvm.driver.report import BuildReport as BuildReport
from minitvm.driver.report import KernelReport as KernelReport
from minitvm.driver.report import PassStep as PassStep
from minitvm.passes.pipeline import optimize as optimize
