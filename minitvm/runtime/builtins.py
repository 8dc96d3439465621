"""What LLVM calls for float16 where a processor has no instruction: its compiler runtime, which a JIT must bring along.

Both functions are the usual integer arithmetic: the exponent is rebased by a multiplication, subnormals are rounded by
an addition that pushes their last bits out, and rounding to nearest even adds what is missing to the halfway point.
"""

from __future__ import annotations

from functools import cache

from minitvm.codegen.llvm.compile import compile_object, host

_TEXT = """
define float @__extendhfsf2(half %x) nounwind {
  %h = bitcast half %x to i16
  %bits = zext i16 %h to i32
  %magnitude = and i32 %bits, 32767
  %moved = shl i32 %magnitude, 13
  %small = bitcast i32 %moved to float
  %rebased = fmul float %small, 0x46F0000000000000
  %finite = bitcast float %rebased to i32
  %special = or i32 %moved, 2139095040
  %is_special = icmp uge i32 %magnitude, 31744
  %found = select i1 %is_special, i32 %special, i32 %finite
  %sign = and i32 %bits, 32768
  %sign_moved = shl i32 %sign, 16
  %signed = or i32 %found, %sign_moved
  %result = bitcast i32 %signed to float
  ret float %result
}

define half @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %magnitude = and i32 %bits, 2147483647
  %payload = lshr i32 %magnitude, 13
  %kept = and i32 %payload, 1023
  %quiet = or i32 %kept, 32256
  %is_nan = icmp ugt i32 %magnitude, 2139095040
  %special = select i1 %is_nan, i32 %quiet, i32 31744
  %tiny = bitcast i32 %magnitude to float
  %pushed = fadd float %tiny, 5.000000e-01
  %pushed_bits = bitcast float %pushed to i32
  %subnormal = sub i32 %pushed_bits, 1056964608
  %odd = and i32 %payload, 1
  %to_half = add i32 %magnitude, -939520001
  %to_even = add i32 %to_half, %odd
  %normal = lshr i32 %to_even, 13
  %is_subnormal = icmp ult i32 %magnitude, 947912704
  %finite = select i1 %is_subnormal, i32 %subnormal, i32 %normal
  %is_special = icmp uge i32 %magnitude, 1199570944
  %found = select i1 %is_special, i32 %special, i32 %finite
  %sign = lshr i32 %bits, 16
  %sign_bit = and i32 %sign, 32768
  %signed = or i32 %found, %sign_bit
  %h = trunc i32 %signed to i16
  %result = bitcast i16 %h to half
  ret half %result
}
"""


@cache
def builtins() -> bytes:
    """The functions as object code for this machine."""
    return compile_object(_TEXT, host())
