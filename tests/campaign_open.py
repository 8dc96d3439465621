"""Random graphs, all of whose dimensions are open, over sizes with 0 and 1, every buffer between guard pages.

    python -m tests.campaign_open --graphs 5000 --seed 1

One session of a graph runs with several tuples of sizes, in a process of its own; results are judged as the fuzzer's
are, against ONNX Runtime and ONNX's reference.  A read or write outside of a buffer ends that process and is counted as
a crash.  Each kind of failure is printed once, with the number of its graph for ``--first``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests import guarded, open_graphs
from tests.fuzz.case import Case
from tests.fuzz.judge import Judge, Outcome
from tests.fuzz.worker import Worker

ROWS = ("crash", "exception", "difference", "hang", "refusal")
"""Kinds of failures: the process died, what is no ``MiniTVMError``, wrong numbers, no answer, what others run."""


class GuardedJudge(Judge):
    """minitvm between guard pages."""

    def __init__(self) -> None:
        super().__init__()
        self._subject.close()
        self._subject = Worker(guarded.perform)


def _described(case: Case) -> str:
    shapes = [{n: a.shape for n, a in feeds.items()} for feeds in case.feeds]
    return f"    {', '.join(case.operators)}; level {case.config.level}\n    {shapes}"


def campaign(seed: int, first: int, graphs: int) -> Counter[str]:
    """Runs it; prints what fails, each kind once."""
    judge, found, known, start = GuardedJudge(), Counter[str](), Counter[tuple[str, ...]](), time.monotonic()
    for index in range(first, first + graphs):
        case = open_graphs.case(seed, index)
        verdict = judge.verdict(case)
        found["runs"] += len(case.feeds)
        found[verdict.kind if verdict.failed else verdict.outcome.value] += 1
        if verdict.failed:
            key = (*verdict.signature, *(sorted(set(case.operators)) if verdict.kind == "difference" else ()))
            known[key] += 1
            if known[key] == 1:
                print(f"{seed}:{index} {verdict.kind}: {verdict.message}\n{_described(case)}", flush=True)
                print("    " + verdict.detail.strip()[-1500:].replace("\n", "\n    "), flush=True)
        if (index - first) % 100 == 99:
            print(f"-- {index - first + 1} graphs, {time.monotonic() - start:.0f} s: {dict(found)}", flush=True)
    judge.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    options = parser.parse_args()
    found = campaign(options.seed, options.first, options.graphs)
    print(f"{options.graphs} graphs, {found['runs']} runs")
    for row in (*(o.value for o in Outcome if o is not Outcome.FAILED), *ROWS):
        print(f"{row:>16} {found[row]:6}")
    sys.exit(1 if any(found[row] for row in ROWS) else 0)


if __name__ == "__main__":
    main()
