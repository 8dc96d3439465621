"""float16 without instructions for it: the functions that LLVM calls instead, over all numbers."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import minitvm
from minitvm.codegen.llvm.compile import compile_object, host
from minitvm.ir import builder
from minitvm.runtime.cpu import NativeCode
from minitvm.runtime.executor import GraphModule

_EACH = """
declare {result} @{name}({given})
define void @each(ptr %in, ptr %out, i64 %count) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %from = getelementptr {given}, ptr %in, i64 %i
  %x = load {given}, ptr %from
  %y = call {result} @{name}({given} %x)
  %to = getelementptr {result}, ptr %out, i64 %i
  store {result} %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %exit
exit:
  ret void
}}
"""


def _each(name: str, given: str, result: str, x: np.ndarray, dtype: str) -> np.ndarray:
    image = compile_object(_EACH.format(name=name, given=given, result=result), host())
    code = NativeCode([image], ["each"])
    each = code.function("each", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    out = np.empty(x.shape, dtype)
    each(x.ctypes.data, out.ctypes.data, x.size)
    return out


def test_every_float16_is_extended() -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    found = _each("__extendhfsf2", "half", "float", x, "float32")
    np.testing.assert_array_equal(found, x.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


def test_floats_are_rounded_to_the_nearest_float16() -> None:
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:-1] + halves[:-2]) / 2
    around = np.concatenate([halves, middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9)])
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32)
    edges = np.array([65519.996, 65520, 65535, 65536, 1e9, 3e38, np.inf, np.nan, 0], np.float32)
    x = np.concatenate([around, -around, random, edges, -edges])
    found = _each("__truncsfhf2", "float", "half", x, "float16")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, x.astype(np.float16))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


@pytest.mark.skipif(host().arch != "x86", reason="the target is an x86 processor")
@pytest.mark.parametrize("shape", [(), (3,), (64,)])
def test_float16_runs_on_processors_without_it(shape: tuple[int, ...]) -> None:
    x = builder.var("x", shape=shape, dtype="float16")
    library = minitvm.build(builder.function(builder.add(x, builder.sqrt(x))), "llvm -mcpu=x86-64", num_threads=1)
    module = GraphModule(library["default"](None, 1))
    module.set_input("x", np.full(shape, 2.25, "float16"))
    module.run()
    np.testing.assert_array_equal(module.outputs()[0], np.full(shape, 3.75, "float16"))
