"""Which tests are slow: ``python -m tests.durations`` measures the suite, and writes ``tests/slow.txt``.

Measured are seconds of all CPUs, the processes that a test starts included, which a busy machine changes little. Of a
test with many parameters three are measured, for all of them.  What costs least stays, as much as fits into
:data:`SECONDS`; the rest is marked ``slow``, and left out by ``pytest -m "not slow"``.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import pytest

SLOW = pathlib.Path(__file__).with_name("slow.txt")
SECONDS = 360.0
"""Of two cores' CPU time in five minutes, what collecting and starting leave."""
MEASURED = 3
_FILE = "MINITVM_TEST_DURATIONS"


def function_of(node: str) -> str:
    """A test without its parameters."""
    return node.partition("[")[0]


def slow_ones() -> frozenset[str]:
    return frozenset(SLOW.read_text(encoding="utf-8").split())


def _spent() -> float:
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = _spent()
    yield
    with pathlib.Path(os.environ[_FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([item.nodeid, round(_spent() - before, 3)]) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps a few of each test's parameters, and notes how many there are."""
    by_function: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_function.setdefault(function_of(item.nodeid), []).append(item)
    counts = {name: len(found) for name, found in by_function.items()}
    pathlib.Path(f"{os.environ[_FILE]}.counts").write_text(json.dumps(counts), encoding="utf-8")
    items[:] = [one for found in by_function.values() for one in found[:: max(1, -(-len(found) // MEASURED))]]


def costs(measured: Sequence[tuple[str, float]], counts: Mapping[str, int]) -> dict[str, float]:
    """Seconds of each test with all of its parameters."""
    found: dict[str, list[float]] = {}
    for node, seconds in measured:
        found.setdefault(function_of(node), []).append(seconds)
    return {name: sum(each) + (counts[name] - len(each)) * statistics.median(each) for name, each in found.items()}


def chosen(by_function: Mapping[str, float], most: float = SECONDS) -> list[str]:
    """The most expensive tests, without which the others take ``most`` seconds."""
    slow, left = [], sum(by_function.values())
    for name, seconds in sorted(by_function.items(), key=lambda item: -item[1]):
        if left <= most:
            break
        slow.append(name)
        left -= seconds
    return sorted(slow)


def write(file: pathlib.Path) -> None:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    counts = json.loads(pathlib.Path(f"{file}.counts").read_text(encoding="utf-8"))
    by_function = costs([(node, seconds) for node, seconds, *_ in lines], counts)
    slow = chosen(by_function)
    SLOW.write_text("".join(f"{name}\n" for name in slow), encoding="utf-8")
    tests = sum(counts[name] for name in slow)
    print(f"{len(slow)} of {len(by_function)} tests are slow, {tests} of {sum(counts.values())} with parameters:")
    print(f"{sum(by_function[name] for name in slow):.0f} of {sum(by_function.values()):.0f} s")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "durations"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.durations", *sys.argv[1:]]
        subprocess.run(command, env={**os.environ, _FILE: str(file)}, check=False)
        write(file)


if __name__ == "__main__":
    main()
