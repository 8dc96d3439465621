"""Rounding and saturation of quantized numbers, and their products."""

import numpy as np

from tests.known_bugs import Case, case, f32, report

ORT = "microsoft/onnxruntime"


@report(ORT, 7524, "MatMulInteger saturates in between: differences of 9 bits in products of 8")
def product_beyond_eight_bits() -> Case:
    a = np.array([[238, 115, 94], [245, 111, 102], [158, 225, 48]], np.uint8)
    b = np.array([[25, 36, 125], [42, -123, 76], [-81, -86, 35]], np.int8)
    text = """(uint8[3, 3] a, int8[3, 3] b) => (int32[3, 3] y) <uint8 az = {42}, int8 bz = {-26}>
    { y = MatMulInteger (a, b, az, bz) }"""
    return case(text, {"a": a, "b": b}, (a.astype(np.int32) - 42) @ (b.astype(np.int32) + 26))


@report(ORT, 16105, "pairs of products of uint8 and int8 saturate at 16 bits")
def pairs_of_products() -> Case:
    a, b = np.array([[210, 198, 234]], np.uint8), np.array([[-81], [-80], [127]], np.int8)
    text = "(uint8[1, 3] a, int8[3, 1] b) => (int32[1, 1] y) { y = MatMulInteger (a, b) }"
    return case(text, {"a": a, "b": b}, a.astype(np.int32) @ b.astype(np.int32))


@report(ORT, 19109, "a product of uint8 is wrong on one kind of CPU")
def product_of_bytes() -> Case:
    a, b = np.array([[167, 120, 72, 142]], np.uint8), np.array([[255], [0], [128], [77]], np.uint8)
    text = """(uint8[1, 4] a, uint8[4, 1] b) => (int32[1, 1] y) <uint8 bz = {131}>
    { y = MatMulInteger (a, b, , bz) }""".replace(", ,", ', "",')
    return case(text, {"a": a, "b": b}, a.astype(np.int32) @ (b.astype(np.int32) - 131))


@report(ORT, 3442, "QuantizeLinear to int8 saturates at -127")
def least_of_int8() -> Case:
    x = f32(-129, -128, -127, -126, 126, 127, 128, 129)
    text = "(float[8] x) => (int8[8] y) <float s = {1}, int8 z = {0}> { y = QuantizeLinear (x, s, z) }"
    return case(text, {"x": x}, np.clip(x, -128, 127).astype(np.int8))


@report(ORT, 18576, "QuantizeLinear of float16 truncates")
def rounded_halves() -> Case:
    text = """(float16[2] x, float16 s) => (int8[2] y) <int8 z = {0}> { y = QuantizeLinear (x, s, z) }"""
    x, s = np.array([0.050018, -0.050018], np.float16), np.float16(0.09998)
    return case(text, {"x": x, "s": s}, np.array([1, -1], np.int8), opset=19)


@report(ORT, 29727, "a quantized Softmax of int8 wraps around where it should saturate")
def saturated_softmax() -> Case:
    text = """(int8[1, 4] x) => (int8[1, 4] y)
    <float sx = {1}, int8 zx = {0}, float sy = {0.00390625}, int8 zy = {-128}>
    { d = DequantizeLinear (x, sx, zx)  p = Softmax <axis = -1> (d)  y = QuantizeLinear (p, sy, zy) }"""
    x = np.array([[120, -100, -100, -100]], np.int8)
    return case(text, {"x": x}, np.array([[127, -128, -128, -128]], np.int8))


@report(ORT, 32132, "a sum between DequantizeLinear and QuantizeLinear rounds another way once it is fused")
def ties_of_a_sum() -> Case:
    text = """(uint8[4] a, uint8[4] b) => (uint8[4] y) <float h = {0.5}, uint8 z = {0}, float one = {1}>
    { p = DequantizeLinear (a, h, z)  q = DequantizeLinear (b, h, z)  s = Add (p, q)
      y = QuantizeLinear (s, one, z) }"""
    feeds = {"a": np.array([1, 3, 4, 5], np.uint8), "b": np.array([0, 0, 1, 2], np.uint8)}
    return case(text, feeds, np.array([0, 2, 2, 4], np.uint8))
