"""Parameters, targets and marks of tests by TVM's names, as scripts of TVM's tests write them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

SCRIPT = """
import numpy as np
import tvm
import tvm.testing
from tvm import relay, te
from tvm.relay.testing import run_infer_type

kind = tvm.testing.parameter("graph", "vm")


class TestSums:
    shape, axis = tvm.testing.parameters(((2, 3), 0), ((2, 3, 4), -1))
    dtype = tvm.testing.parameter("float32", "int32", ids=["real", "whole"])

    @tvm.testing.fixture
    def data(self, shape, dtype):
        return np.ones(shape, dtype)

    def test_sum(self, target, dev, kind, data, axis):
        x = relay.var("x", relay.TensorType(data.shape, str(data.dtype)))
        function = relay.Function([x], relay.sum(x, axis))
        found = relay.create_executor(kind, device=dev, target=target).evaluate(function)(data)
        tvm.testing.assert_allclose(found.numpy(), data.sum(axis))


@tvm.testing.uses_gpu
def test_split():
    for target, dev in tvm.testing.enabled_targets():
        n = te.var("n")
        assert isinstance(n, tvm.tir.Var) and tvm.testing.device_enabled(target)
        y = run_infer_type(relay.split(relay.var("x", shape=(n, 4)), 2, axis=0).astuple())
        assert y.checked_type.fields[0] == relay.TensorType((tvm.tir.indexdiv(n, 2), 4))


@tvm.testing.requires_cuda
def test_where_there_is_a_gpu():
    assert tvm.cuda(0).exist


@tvm.testing.exclude_targets("llvm")
def test_left_out(target, dev):
    assert False


if __name__ == "__main__":
    tvm.testing.main()
"""


def test_a_script_of_tests(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "minitvm.tvm", str(script), "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "9 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
