"""What is not a number, what is infinite, and integers at the ends of their range."""

import numpy as np

from tests.known_bugs import Case, case, f32, i64, report

NAN, INF = np.nan, np.inf
ORT, OV, TVM = "microsoft/onnxruntime", "openvinotoolkit/openvino", "apache/tvm"


@report(ORT, 10514, "ReduceMax loses NaN where three of four elements are NaN")
def reduce_max_of_nans() -> Case:
    text = "(float[4] x) => (float[1] y) { y = ReduceMax (x) }"
    return case(text, {"x": f32(NAN, NAN, NAN, 42)}, f32(NAN), opset=13)


@report(ORT, 21455, "Min takes the bound where the bound is one element and the other is NaN")
def min_of_one_element() -> Case:
    text = "(float[3, 1] x) => (float[3, 1] y) <float[1] b = {10}> { y = Min (x, b) }"
    return case(text, {"x": f32([NAN], [1], [20])}, f32([NAN], [1], [10]))


@report(OV, 35928, "ReduceMin forgets the smallest number once it has met NaN")
def reduce_min_of_nan() -> Case:
    text = "(float[5] x) => (float y) { y = ReduceMin <keepdims = 0> (x) }"
    return case(text, {"x": f32(2, 8, NAN, 5, 6)}, np.float32(NAN))


@report(TVM, 19518, "maxima along an axis drop NaN on one target and keep it on the other")
def maximum_along_an_axis() -> Case:
    text = "(float[2, 2] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceMax <keepdims = 0> (x, a) }"
    return case(text, {"x": f32([NAN, 1], [3, 2])}, f32(NAN, 3))


@report(OV, 33626, "ArgMax of nothing but NaN is not the first index")
def arg_max_of_only_nans() -> Case:
    text = "(float[58] x) => (int64[1] y) { y = ArgMax (x) }"
    return case(text, {"x": np.full(58, NAN, np.float32)}, i64(0))


@report(OV, 35886, "ArgMin passes over NaN, which numpy and ONNX Runtime take for the least")
def arg_min_of_nan() -> Case:
    text = "(float[6] x) => (int64 y) { y = ArgMin <axis = 0, keepdims = 0> (x) }"
    return case(text, {"x": f32(4, 2, NAN, 6, 1, 3)}, np.int64(2))


@report(TVM, 19558, "ArgMax passes over NaN that stands before the largest number")
def arg_max_of_nan() -> Case:
    text = "(float[3, 5] x) => (int64[3] y) { y = ArgMax <axis = 1, keepdims = 0> (x) }"
    x = f32([2, NAN, 7, 4, 1], [NAN, 2, 7, 4, 1], [2, 4, 7, 1, NAN])
    return case(text, {"x": x}, i64(1, 0, 4))


@report(TVM, 19540, "Min of NaN and a number is the number")
def min_of_nan() -> Case:
    text = "(float[4] a, float[4] b) => (float[4] y) { y = Min (a, b) }"
    return case(text, {"a": f32(NAN, 5, 4, NAN), "b": f32(7, NAN, 6, NAN)}, f32(NAN, NAN, 4, NAN))


@report(OV, 35649, "Relu of NaN is 0")
def relu_of_nan() -> Case:
    return case("(float[5] x) => (float[5] y) { y = Relu (x) }", {"x": f32(NAN, -1, 0, 1, INF)}, f32(NAN, 0, 0, 1, INF))


@report(TVM, 19572, "Sign of NaN is 0")
def sign_of_nan() -> Case:
    return case("(float[3] x) => (float[3] y) { y = Sign (x) }", {"x": f32(NAN, -2, 3)}, f32(NAN, -1, 1))


@report(OV, 35897, "Softmax over an infinity is 0 beside NaN: nothing there is a number")
def softmax_of_infinity() -> Case:
    text = "(float[1, 5] x) => (float[1, 5] y) { y = Softmax <axis = -1> (x) }"
    return case(text, {"x": f32([2.5, 7, INF, -1, 0.5])}, f32([NAN] * 5))


@report(OV, 35934, "Gelu of infinity is NaN")
def gelu_of_infinity() -> Case:
    x = f32(INF, INF, 5e30, 75)
    return case("(float[4] x) => (float[4] y) { y = Gelu (x) }", {"x": x}, x, opset=20)


@report(OV, 36234, "ReduceLogSumExp of NaN is infinite")
def log_sum_exp_of_nan() -> Case:
    text = "(float[6] x) => (float y) { y = ReduceLogSumExp <keepdims = 0> (x) }"
    return case(text, {"x": f32(0.5, 1.5, 2.5, NAN, 3.5, 4.5)}, np.float32(NAN))


@report(OV, 37968, "infinities of float64 become the largest float32")
def double_infinity() -> Case:
    text = """(double[5] x) => (double[5] r, double[5] a, double[5] n, double[5] i)
    { r = Round (x)  a = Abs (x)  n = Neg (x)  i = Identity (x) }"""
    x = np.array([INF, -INF, NAN, 1.5, 1e300])
    return case(text, {"x": x}, np.rint(x), np.abs(x), -x, x)


@report(ORT, 28262, "BitShift of 64 bits by 64 gives the number back")
def shift_by_the_width() -> Case:
    text = '(uint64[4] x, uint64[4] n) => (uint64[4] y) { y = BitShift <direction = "RIGHT"> (x, n) }'
    x = np.array([1000, 255, 1, 42], np.uint64)
    return case(text, {"x": x, "n": np.full(4, 64, np.uint64)}, np.zeros(4, np.uint64))


@report(OV, 35646, "Mul of uint8 saturates; it wraps around")
def mul_of_bytes() -> Case:
    a, b = np.array([200, 100, 50, 10], np.uint8), np.array([200, 3, 6, 30], np.uint8)
    return case("(uint8[4] a, uint8[4] b) => (uint8[4] y) { y = Mul (a, b) }", {"a": a, "b": b}, a * b)


@report(OV, 35647, "Add of uint8 saturates; it wraps around")
def add_of_bytes() -> Case:
    a, b = np.array([200, 100, 255, 128], np.uint8), np.array([100, 200, 10, 200], np.uint8)
    return case("(uint8[4] a, uint8[4] b) => (uint8[4] y) { y = Add (a, b) }", {"a": a, "b": b}, a + b)


@report(OV, 33518, "a chain of Sub, Mul and Add of uint8 saturates in between")
def chain_of_bytes() -> Case:
    a, b = np.arange(0, 250, 10, dtype=np.uint8), np.arange(250, 0, -10, dtype=np.uint8)
    text = "(uint8[25] a, uint8[25] b) => (uint8[25] y) { s = Sub (a, b)  m = Mul (s, a)  y = Add (m, b) }"
    return case(text, {"a": a, "b": b}, (a - b) * a + b)


@report("onnx/onnx", 3637, "what Mul and Div of uint8 do was left open: the one wraps around, the other truncates")
def div_of_bytes() -> Case:
    a, b = np.array([22, 12, 255], np.uint8), np.array([21, 23, 2], np.uint8)
    text = "(uint8[3] a, uint8[3] b) => (uint8[3] m, uint8[3] d) { m = Mul (a, b)  d = Div (a, b) }"
    return case(text, {"a": a, "b": b}, a * b, a // b)


@report(OV, 35837, "CumSum of int64 keeps 32 bits")
def running_sum_of_int64() -> Case:
    x = i64(2**33, 2**34, 2**35, 5, 7)
    return case("(int64[5] x) => (int64[5] y) <int64 a = {0}> { y = CumSum (x, a) }", {"x": x}, np.cumsum(x))


@report(OV, 35829, "Mod of int64 is computed in float32")
def mod_of_int64() -> Case:
    a = i64(3, 1234567890, 999999999, 1999999993, 1500000001)
    return case("(int64[5] a) => (int64[5] y) <int64 b = {13}> { y = Mod (a, b) }", {"a": a}, a % 13)


@report(OV, 37766, "Div of int64 is computed in float32, and is 0 beyond 32 bits")
def div_of_int64() -> Case:
    a = i64(2**62, 2**40, 2**31, 2**31 - 1)
    return case("(int64[4] a) => (int64[4] y) <int64 b = {11}> { y = Div (a, b) }", {"a": a}, a // 11)


@report(OV, 35830, "Div of int32 is computed in float32")
def div_of_int32() -> Case:
    a = np.array([2**31 - 1, 16777217, -16777219], np.int32)
    want = np.array([(2**31 - 1) // 3, 16777217 // 3, -(16777219 // 3)], np.int32)
    return case("(int32[3] a) => (int32[3] y) <int32 b = {3}> { y = Div (a, b) }", {"a": a}, want)


@report(ORT, 26997, "ONNX's reference rounds integer quotients down, ONNX Runtime towards 0")
def quotients_towards_zero() -> Case:
    feeds = {"a": i64(8, -8, 7, -7), "b": i64(-3, 3, -2, 2)}
    return case("(int64[4] a, int64[4] b) => (int64[4] y) { y = Div (a, b) }", feeds, i64(-2, -2, -3, -3))


@report(OV, 13491, "ArgMin of integers finds another index in a longer vector")
def arg_min_of_integers() -> Case:
    x = np.array([0] * 4 + [-1] * 12, np.int32)
    return case("(int32[16] x) => (int64[1] y) { y = ArgMin <axis = 0> (x) }", {"x": x}, i64(4))


@report(TVM, 2486, "a remainder of constants was folded into their product")
def folded_remainder() -> Case:
    text = """(int64[4] x) => (int64[4] y) <int64 four = {4}, int64 six = {6}>
    { p = Mul (x, four)  r = Mod (six, four)  s = Add (p, r)  y = Mod (s, four) }"""
    return case(text, {"x": i64(0, 1, 5, -3)}, i64(2, 2, 2, 2))


@report("pytorch/pytorch", 60179, "an exported remainder of negative numbers has the wrong sign")
def remainder_of_negatives() -> Case:
    x, y = f32(-7, 7, -6, 5.5), f32(3, -3, 3, 2)
    text = "(float[4] x, float[4] y) => (float[4] r) { d = Div (x, y)  f = Floor (d)  p = Mul (f, y)  r = Sub (x, p) }"
    return case(text, {"x": x, "y": y}, f32(2, -2, 0, 1.5))


@report(TVM, 16211, "x + c1 + c2 becomes x + c, which rounds to another number")
def constants_added_together() -> Case:
    text = """(float[4] x) => (float[4] y) <float big = {12582912}, float back = {-12582912}>
    { a = Add (x, big)  y = Add (a, back) }"""
    return case(text, {"x": f32(0.3, 1.7, -2.4, 2.5)}, f32(0, 2, -2, 2))


@report(ORT, 21935, "LayerNormalization of a constant row takes the root of a negative variance")
def norm_of_a_constant() -> Case:
    text = """(float[2, 256] x, float[256] s) => (float[2, 256] y)
    { y = LayerNormalization <axis = -1> (x, s) }"""
    x = np.repeat(f32([1234], [0.1]), 256, 1)
    return case(text, {"x": x, "s": np.ones(256, np.float32)}, np.zeros_like(x), within=1e-2)


@report(ORT, 28463, "LayerNormalization of large numbers that lie together is NaN")
def norm_of_large_numbers() -> Case:
    text = "(float[2, 4] x, float[4] s) => (float[2, 4] y) { y = LayerNormalization <axis = -1> (x, s) }"
    x = f32([40000, 40001, 40002, 40003], [80000, 80001, 80002, 80003])
    row = (np.arange(4) - 1.5) / np.sqrt(1.25 + 1e-5)
    return case(text, {"x": x, "s": np.ones(4, np.float32)}, np.array([row, row], np.float32), within=1e-5)


@report(ORT, 29034, "SkipSimplifiedLayerNormalization of large float16 is 0, as squares overflow in 16 bits")
def norm_of_large_halves() -> Case:
    text = """(float16[1, 2, 8] x, float16[1, 2, 8] r, float16[8] s) => (float16[1, 2, 8] y)
    { y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-6> (x, r, s) }"""
    x = np.full((1, 2, 8), 8000, np.float16)
    feeds = {"x": x, "r": np.zeros_like(x), "s": np.ones(8, np.float16)}
    return case(text, feeds, np.ones_like(x), contrib=True, within=1e-3)
