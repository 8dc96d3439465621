; Conversions between float16 and float32 for processors that have none: what LLVM calls there, in the object itself;
; each object has its own, which no other sees.
;
; Only multiplications and additions that round right do the rounding, as in F. Giesen, "Half to float done quic" and
; "float->half variants".

@llvm.compiler.used = appending global [2 x ptr] [ptr @__extendhfsf2, ptr @__truncsfhf2], section "llvm.metadata"

define internal float @__extendhfsf2(half %x) nounwind memory(none) {
  %short = bitcast half %x to i16
  %bits = zext i16 %short to i32
  %size = and i32 %bits, 32767
  %placed = shl i32 %size, 13
  %small = bitcast i32 %placed to float
  %scaled = fmul float %small, 0x46F0000000000000  ; 2 ** 112, the difference of the exponents' biases
  %finite = bitcast float %scaled to i32
  %special = icmp uge i32 %size, 31744
  %nan = icmp ugt i32 %size, 31744
  %quiet = select i1 %nan, i32 2143289344, i32 2139095040
  %beyond = or i32 %placed, %quiet
  %found = select i1 %special, i32 %beyond, i32 %finite
  %top = and i32 %bits, 32768
  %sign = shl i32 %top, 16
  %signed = or i32 %found, %sign
  %result = bitcast i32 %signed to float
  ret float %result
}

define internal half @__truncsfhf2(float %x) nounwind memory(none) {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %absolute = bitcast i32 %size to float
  %nan = icmp ugt i32 %size, 2139095040
  %beyond = select i1 %nan, i32 32256, i32 31744
  %aligned = fadd float %absolute, 0.5  ; a subnormal's last bit is that of numbers between a half and 1
  %lifted = bitcast float %aligned to i32
  %subnormal = sub i32 %lifted, 1056964608
  %shifted = lshr i32 %size, 13
  %odd = and i32 %shifted, 1
  %rebased = sub i32 %size, 939520001  ; 112 << 23, less what rounds halves up
  %even = add i32 %rebased, %odd
  %normal = lshr i32 %even, 13
  %is_subnormal = icmp ult i32 %size, 947912704
  %finite = select i1 %is_subnormal, i32 %subnormal, i32 %normal
  %is_beyond = icmp uge i32 %size, 1199570944
  %found = select i1 %is_beyond, i32 %beyond, i32 %finite
  %top = lshr i32 %bits, 16
  %sign = and i32 %top, 32768
  %signed = or i32 %found, %sign
  %short = trunc i32 %signed to i16
  %result = bitcast i16 %short to half
  ret half %result
}
