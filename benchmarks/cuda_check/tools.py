"""Jobs that let another program look: the suite's tests for a GPU, ``compute-sanitizer``, ``ncu``."""

from __future__ import annotations

import csv
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from minitvm.errors import DeviceError

Found = dict[str, Any]
TESTS = pathlib.Path(__file__).parents[2] / "tests"


def _run(command: Sequence[str]) -> tuple[int, str]:
    """How a program ended, and all that it said, which is in the log as well; pytest's options are the command's."""
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, file=sys.stderr)
    return done.returncode, done.stdout


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise DeviceError(f"{name} is not installed")
    return found


def tested(stand_in: bool) -> Iterator[Found]:
    """The tests that run where there is a GPU; on the stand-in one of them."""
    one = ["-p", "tests.on_standin", str(TESTS / "runtime" / "test_cuda_device.py"), "-k", "test_runs_again_and_again"]
    given = one if stand_in else [str(TESTS / "runtime"), "-rf"]
    code, text = _run([sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *given])
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    yield {"tests": last.strip("= "), "failures": re.findall(r"^FAILED (\S+)", text, re.MULTILINE)}
    if code:
        raise DeviceError(f"tests fail: {last}")


def sanitized(tool: str, job: str) -> Iterator[Found]:
    """What ``compute-sanitizer`` says of a job; errors of calls that a library tries and does without do not count."""
    command = [_tool("compute-sanitizer"), "--tool", tool, *["--report-api-errors=no"] * (tool == "memcheck")]
    code, text = _run([*command, sys.executable, "-m", "benchmarks.cuda_check.jobs", job])
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (.*)", text)
    found = {"tool": tool, "errors": int(summary[-1][0]) if summary else None}
    yield found
    if code or found["errors"] != 0:
        raise DeviceError(f"{tool}: {' '.join(summary[-1]) if summary else f'ended with {code}'}")


# --- counters -----------------------------------------------------------------------------------------------------

PARTS = (
    *("SpeedOfLight", "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables", "Occupancy", "LaunchStats"),
    *("SchedulerStats", "WarpStateStats", "ComputeWorkloadAnalysis"),
)
"""Sections of ``ncu``, whose names are the same for all GPUs; those of counters are not."""
COUNTERS = {
    "us": ("gpu__time_duration.sum",),
    "SMs busy": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "issue": (
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "sm__inst_issued.avg.pct_of_peak_sustained_active",
    ),
    "tensor": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "pipe_tensor"),
    "warps": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "data_bank_conflicts_pipe_lsu"),
    "L2 hits": ("lts__t_sector_hit_rate.pct",),
    "memory": ("dram__bytes.sum", "dram__bytes_read.sum"),
    "waits": ("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio", "long_scoreboard"),
    "active": ("sm__cycles_active.avg",),
    "cycles": ("sm__cycles_elapsed.avg", "sm__cycles_elapsed.max"),
}
"""Columns of the table, and what counters they are: the first that there is, or whose name has the word."""


def counted(functions: Sequence[str], job: str, to: pathlib.Path) -> list[Found]:
    """Counters of functions in a job that runs each of them, one row for each; all of them are in the file."""
    names = "|".join(map(re.escape, functions))
    command = [_tool("ncu"), "--clock-control", "none", "--csv", "--page", "raw", "--profile-from-start", "off"]
    sections = [option for part in PARTS for option in ("--section", part)]
    code, text = _run([*command, *sections, "-k", f"regex:^({names})$", sys.executable, "-m", *_JOBS, job])
    to.write_text(text, encoding="utf-8")
    if code:
        raise DeviceError(f"ncu ended with {code}")
    return list(rows(text))


_JOBS = ("benchmarks.cuda_check.jobs",)


def rows(text: str) -> Iterator[Found]:
    """What ``ncu --csv --page raw`` has printed: names, units, then kernels."""
    lines = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if not lines:
        return
    head, units, *kernels = lines
    columns = {name: column for name, kinds in COUNTERS.items() if (column := _column(head, kinds)) is not None}
    for cells in kernels:
        found: Found = {"kernel": cells[head.index("Kernel Name")]}
        for name, column in columns.items():
            found[name] = _number(cells[column], units[column])
        yield found


def _column(head: Sequence[str], kinds: Sequence[str]) -> int | None:
    exact = next((head.index(kind) for kind in kinds if kind in head), None)
    return exact if exact is not None else next((n for n, name in enumerate(head) if kinds[-1] in name), None)


_UNITS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
_UNITS |= {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def _number(cell: str, unit: str) -> float | None:
    """Microseconds, bytes, or what it is; ``None`` where nothing was counted."""
    try:
        return float(cell.replace(",", "")) * _UNITS.get(unit, 1.0)
    except ValueError:
        return None
