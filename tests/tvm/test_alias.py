"""Scripts that import tvm, run by ``python -m minitvm.tvm``; what analyses and patterns say to them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minitvm import relay
from minitvm.ir.expr import Call, Function, Module
from minitvm.relay.dataflow_pattern import wildcard
from minitvm.tvm.relay import analysis

SCRIPT = """
import sys
import numpy as np
import tvm
import tvm.relay as relay
from tvm.contrib import graph_executor
from tvm.relay import testing
import minitvm.tvm
assert relay is minitvm.tvm.relay and tvm is minitvm.tvm
x = relay.var("x", shape=(3,))
lib = relay.build(tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(x))), "llvm")
module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
module.set_input("x", np.array([-1, 0, 2], "float32"))
module.run()
print(module.get_output(0).numpy().tolist(), sys.argv[1:], __name__)
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "minitvm.tvm", *arguments], capture_output=True, text=True, check=False
    )


def test_a_script_that_imports_tvm_runs(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text(SCRIPT)
    done = _run(str(path), "one", "--two")
    assert (done.stdout, done.returncode) == ("[0.0, 0.0, 2.0] ['one', '--two'] __main__\n", 0), done.stderr


@pytest.mark.parametrize("arguments", [(), ("no_such_script.py",)])
def test_without_a_script_it_says_how(arguments: tuple[str, ...]) -> None:
    done = _run(*arguments)
    assert done.returncode == 1 and "hint: python -m minitvm.tvm script.py" in done.stderr


def test_analyses_of_a_module_are_of_its_main() -> None:
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(4, 3))
    module = Module.from_expr(Function([x, w], relay.nn.dense(x, w)))
    assert analysis.count_layers(module) == 1 and analysis.free_vars(module) == []
    assert analysis.get_total_mac_number(relay.transform.InferType()(module)) == 2 * 3 * 4


@pytest.mark.parametrize(("wanted", "found"), [({"Composite": "mine"}, True), ({"Composite": "yours"}, False)])
def test_attributes_of_the_function_that_is_called(wanted: dict[str, str], found: bool) -> None:
    x = relay.var("x", shape=(2,))
    body = Function([x], relay.nn.relu(x), attrs={"Composite": "mine"})
    pattern = wildcard().has_attr(wanted)(wildcard())
    assert pattern.match(Call(body, (x,))) is found
    assert not pattern.match(relay.nn.relu(x))
