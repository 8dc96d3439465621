"""``python -m tests.relay_forms``: how much of what Relay's tests write is accepted, by kind, as our tests have it.

Prints a table in the order of those tests; every row is counted by running the files that are named for it.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
from collections import Counter

import pytest

from minitvm.tvm.relay.operators import is_offered, signatures

ROOT = pathlib.Path(__file__).parent
KINDS = {
    "layouts and legalization that scripts register": ["tvm/test_registered_for_operators.py"],
    "instruments, analyses, rewriting, types of called functions": [
        "tvm/test_forms_of_passes.py",
        "tvm/test_analyses_of_relay.py",
    ],
    "SimplifyExpr, FlattenAtrousConv": ["tvm/test_simplify_expr_of_relay.py", "tvm/test_flatten_atrous_conv.py"],
    "dataflow patterns": ["tvm/test_dataflow_pattern.py"],
    "texts with a version line": ["tvm/test_texts_of_relay.py", "tvm/test_text_as_relays.py"],
    "normal forms, dead code, inlining, lifting, recursion": [
        "scopes/test_normal_forms.py",
        "scopes/test_recursion.py",
    ],
    "type inference, structural equality and hash of scopes": ["scopes/test_types_and_equality.py"],
    "FakeQuantizationToInteger": ["tvm/test_fake_quantization_of_relay.py"],
    "variables, types, constants, functions, modules, executors": ["tvm/test_forms_of_nodes.py"],
    "operators: forms and numbers": ["tvm/test_operators_of_relay.py", "tvm/test_rare_operators_of_relay.py"],
    "calls of the tutorials, names": ["tvm/test_tutorial_calls.py", "tvm/test_relay_names.py", "tvm/test_alias.py"],
    "every recorded name is here, or says what to use": ["tvm/test_recorded_names.py"],
    "operators of levels 1 and 2, behaviour by behaviour": ["tvm/test_levels_of_relay.py"],
    "bad input: names, versions, recursion, tables, generators": ["tvm/test_bad_input_of_relay.py"],
    "quantization": ["quantize/test_quantize.py"],
    "random numbers by keys": ["tvm/test_random_of_relay.py"],
}


class Count:
    """A plugin of pytest's that counts outcomes."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1


def accepted(files: list[str]) -> tuple[int, int]:
    """Cases that pass, of how many."""
    count = Count()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([str(ROOT / file) for file in files], plugins=[count])
    return count.outcomes["passed"], sum(count.outcomes.values())


def main() -> None:
    """Prints the table."""
    print("| kind | accepted | of |\n|---|---|---|")
    for kind, files in KINDS.items():
        print("| {} | {} | {} |".format(kind, *accepted(files)))
    offered = sum(map(is_offered, signatures()))
    print(f"| functions of v0.14 that are here; the others say so | {offered} | {len(signatures())} |")


if __name__ == "__main__":
    main()
