"""Peers that are kept to a target's instructions."""

import signal
import subprocess
import sys

import pytest

from benchmarks import narrow, worker

pytest.importorskip("capstone")
linux = pytest.mark.skipif(bool(narrow.refused()), reason=narrow.refused() or "can be done here")
HASWELL = "llvm -mcpu=haswell"


def run(code: str) -> "subprocess.CompletedProcess[str]":
    environment = worker.environment()
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)


def test_an_instruction_is_found_where_one_begins() -> None:
    code = b"\xb8\x0f\xa2\x00\x00" + b"\x0f\xa2" + b"\xc3"  # mov eax, 0xa20f; cpuid; ret
    assert not narrow._begins(code, 1)
    assert narrow._begins(code, 5)


def test_what_a_target_lacks_is_hidden() -> None:
    assert narrow.hidden("llvm") == {} and narrow.said("llvm") == ""
    lacking = {name: set(narrow.lacks(narrow.cpu_of(narrow.Target.parse(f"llvm -mtriple=x86_64-linux -mcpu={name}"))))
               for name in ("nehalem", "sandybridge", "haswell", "skylake-avx512", "icelake-server")}  # fmt: skip
    assert lacking == {
        "nehalem": {"AVX-512", "VNNI", "AVX2", "AVX"},
        "sandybridge": {"AVX-512", "VNNI", "AVX2"},
        "haswell": {"AVX-512", "VNNI"},
        "skylake-avx512": {"VNNI"},
        "icelake-server": set(),
    }


_ASKS = """
from benchmarks import narrow
from minitvm.codegen.llvm.compile import compile_object, host
from minitvm.runtime.native import NativeCode
import ctypes
narrow._answer((narrow.Bits(7, 0, 1, (16, 5)), narrow.Bits(1, 0, 2, (28,))))
text = '''
define void @ask(i32 %leaf, ptr %found) {
  %all = call {i32, i32, i32, i32} asm sideeffect "BYTES", "={ax},={bx},={cx},={dx},0,2"(i32 %leaf, i32 0)
  store {i32, i32, i32, i32} %all, ptr %found
  ret void
}'''
found = []
for word in ("cpuid", ".byte 0x37, 0xa2"):
    code = NativeCode([compile_object(text.replace("BYTES", word), host())], ["ask"])
    ask = code.function("ask", None, ctypes.c_int32, ctypes.c_void_p)
    for leaf in (0, 1, 7):
        four = (ctypes.c_uint32 * 4)()
        ask(leaf, four)
        found.append(list(four))
zero, one, seven, zero_, one_, seven_ = found
assert zero == zero_
assert one_[2] == one[2] & ~(1 << 28), (one, one_)
assert seven_ == [seven[0], seven[1] & ~(1 << 16 | 1 << 5), *seven[2:]], (seven, seven_)
trap = NativeCode([compile_object(text.replace("BYTES", "ud2"), host())], ["ask"])
trap.function("ask", None, ctypes.c_int32, ctypes.c_void_p)(7, four)
"""


@linux
def test_answers_lack_what_is_hidden_and_other_signals_end_the_process() -> None:
    done = run(_ASKS)
    assert done.returncode == -signal.SIGILL, done.stderr


_BYTES = f"""
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper
from benchmarks import narrow
a, b = np.full((4, 64), 255, "uint8"), np.full((64, 16), 127, "int8")
graph = helper.make_graph(
    [helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "g",
    [helper.make_tensor_value_info("a", TensorProto.UINT8, a.shape)],
    [helper.make_tensor_value_info("y", TensorProto.INT32, (4, 16))], [numpy_helper.from_array(b, "b")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
ort = narrow.peer("onnxruntime", {HASWELL!r})
session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print(session.run(None, {{"a": a}})[0][0, 0], 255 * 127 * 64)
"""


@linux
@pytest.mark.skipif("VNNI" not in narrow.hidden(HASWELL), reason="this machine has no VNNI to hide")
def test_onnxruntime_multiplies_bytes_as_without_vnni() -> None:
    """Sums of two products in 16 bits, which are too few: known of it, and the products that take the time of AVX2."""
    pytest.importorskip("onnxruntime")
    done = run(_BYTES)
    assert not done.returncode, done.stderr
    found, exact = map(int, done.stdout.split())
    assert found == 32767 * 32 < exact


@linux
@pytest.mark.skipif("AVX-512" not in narrow.hidden(HASWELL), reason="this machine has no AVX-512 to hide")
def test_a_package_is_imported_for_one_target() -> None:
    pytest.importorskip("onnxruntime")
    done = run(f"import onnxruntime; from benchmarks import narrow; narrow.peer('onnxruntime', {HASWELL!r})")
    assert "was imported before it was to be kept to 'llvm -mcpu=haswell': use a process of its own" in done.stderr
