"""Rewrites of graphs, products and operands of no elements, indices, control flow."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.known_bugs import Case, case, f32, i64, refused, report

ORT, OV, TVM = "microsoft/onnxruntime", "openvinotoolkit/openvino", "apache/tvm"


@report(ORT, 32228, "a Transpose that changes nothing makes Gemm transpose its operand")
def identity_transpose_of_the_data() -> Case:
    x, w, b = np.arange(9, dtype="f").reshape(3, 3), np.arange(12, dtype="f").reshape(3, 4), np.arange(4, dtype="f")
    text = """(float[3, 3] x, float[3, 4] w, float[4] b) => (float[3, 4] y)
    { t = Transpose <perm = [0, 1]> (x)  m = MatMul (t, w)  y = Add (m, b) }"""
    return case(text, {"x": x, "w": w, "b": b}, x @ w + b)


@report(ORT, 32418, "the same of Gemm's weight: its bias no longer fits")
def identity_transpose_of_the_weight() -> Case:
    x, b = np.arange(12, dtype="f").reshape(3, 4), np.arange(5, dtype="f")
    text = """(float[3, 4] x, float[4, 5] w, float[5] b) => (float[3, 5] y)
    { t = Transpose <perm = [0, 1]> (w)  y = Gemm (x, t, b) }"""
    w = np.arange(20, dtype="f").reshape(4, 5)
    return case(text, {"x": x, "w": w, "b": b}, x @ w + b)


@report(ORT, 12071, "Gemm whose third operand is transposed is rewritten without end")
def transposed_third_operand() -> Case:
    a, b, c = (np.arange(9, dtype="f").reshape(3, 3) + k for k in range(3))
    text = """(float[3, 3] a, float[3, 3] b, float[3, 3] c) => (float[3, 3] y)
    { t = Transpose (c)  y = Gemm (a, b, t) }"""
    return case(text, {"a": a, "b": b, "c": c}, a @ b + c.T)


@report(ORT, 32416, "a Cast to its own dtype and a factor of one leave a graph with a loose end")
def cast_and_one() -> Case:
    text = """(float[3] x) => (float[3] y) <float one = {1}, float two = {2}>
    { c = Cast <to = 1> (x)  r = Div (one, two)  m = Mul (r, two)  y = Mul (c, m) }"""
    return case(text, {"x": f32(1, 2, 3)}, f32(1, 2, 3))


@report(ORT, 25922, "transposing a constant of no elements crashes while it is folded")
def empty_constant_transposed() -> Case:
    text = """(float[0, 3] x) => (float[3, 0] y, float[3, 0] z) <float[0, 3] e = {}>
    { y = Transpose (e)  t = Transpose (x)  z = Add (t, y) }"""
    return case(text, {"x": np.zeros((0, 3), "f")}, np.zeros((3, 0), "f"), np.zeros((3, 0), "f"))


@report("onnx/tensorflow-onnx", 356, "a kernel transposed for two convolutions is transposed twice for the second")
def kernel_of_two_convolutions() -> Case:
    w = np.arange(6, dtype="f").reshape(1, 1, 2, 3)  # HWIO
    text = """(float[1, 2, 4, 4] x, float[1, 1, 2, 3] w) => (float[1, 3, 4, 4] a, float[1, 3, 4, 4] b)
    { k = Transpose <perm = [3, 2, 0, 1]> (w)  n = Neg (x)  a = Conv (x, k)  b = Conv (n, k) }"""
    x = np.arange(32, dtype="f").reshape(1, 2, 4, 4)
    want = np.einsum("nihw,io->nohw", x, w[0, 0])
    return case(text, {"x": x, "w": w}, want, -want)


@report(TVM, 11704, "a dense layer beside operators that broadcast does not compile")
def dense_beside_broadcasts() -> Case:
    text = """(float[1, 2] a, float[1, 2] b, float[1, 2] c, float[2, 2] w) => (float[1, 1, 2] y)
    <int64[1] one = {1}> { m = Max (a, b)  d = Gemm <transB = 1> (c, w)  e = Unsqueeze (m, one)  p = Mul (m, d)
      y = Add (e, p) }"""
    a, b, c, w = f32([1, -2]), f32([0, 3]), f32([2, 5]), f32([1, 2], [3, 4])
    most = np.maximum(a, b)
    return case(text, {"a": a, "b": b, "c": c, "w": w}, most[None] + most * (c @ w.T))


@report(TVM, 20117, "Min of two constants fails to import")
def least_of_constants() -> Case:
    text = "(float[2] x) => (float[2] y) <float[2] a = {1, 4}, float[2] b = {3, 2}> { m = Min (a, b)  y = Add (x, m) }"
    return case(text, {"x": f32(0, 0)}, f32(1, 2))


@report(TVM, 18598, "PRelu's slope of a channel is applied along another axis")
def slopes_of_channels() -> Case:
    x = (np.arange(16, dtype="f") - 8).reshape(1, 4, 2, 2)
    slope = f32(0.5, 1, 2, 4).reshape(4, 1, 1)
    text = "(float[1, 4, 2, 2] x, float[4, 1, 1] s) => (float[1, 4, 2, 2] y) { y = PRelu (x, s) }"
    return case(text, {"x": x, "s": slope}, np.where(x < 0, x * slope, x))


@report(OV, 16872, "slices that are broadcast along another axis are aligned wrongly")
def broadcast_slices() -> Case:
    deltas, rois = np.arange(40, dtype="f").reshape(1, 10, 1, 4) / 40, np.arange(40, dtype="f").reshape(1, 10, 4)
    text = """(float[1, 10, 1, 4] d, float[1, 10, 4] r) => (float[1, 10, 1, 2] y)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] last = {-1}>
    { u = Unsqueeze (r, two)  low = Slice (u, zero, two, last)  high = Slice (u, two, four, last)
      shift = Slice (d, zero, two, last)  size = Sub (high, low)  p = Mul (size, shift)  y = Add (low, p) }"""
    low, high = rois[:, :, None, :2], rois[:, :, None, 2:]
    return case(text, {"d": deltas, "r": rois}, low + (high - low) * deltas[..., :2], within=1e-6)


@report("ROCm/AMDMIGraphX", 137, "Gemm takes beta for 0")
def beta_of_gemm() -> Case:
    a, b, c = np.ones((2, 3), "f"), np.ones((3, 4), "f"), np.arange(4, dtype="f")
    text = """(float[2, 3] a, float[3, 4] b, float[4] c) => (float[2, 4] y)
    { y = Gemm <alpha = 2.0, beta = 0.5> (a, b, c) }"""
    return case(text, {"a": a, "b": b, "c": c}, 2 * a @ b + 0.5 * c)


@report("webonnx/wonnx", 94, "Gemm of fewer than four columns is 0")
def gemm_of_two_columns() -> Case:
    a, b = np.arange(15, dtype="f").reshape(3, 5), np.arange(10, dtype="f").reshape(5, 2)
    return case("(float[3, 5] a, float[5, 2] b) => (float[3, 2] y) { y = Gemm (a, b) }", {"a": a, "b": b}, a @ b)


@report(ORT, 11895, "MatMul of no rows by a vector fails")
def product_of_no_rows() -> Case:
    feeds = {"a": np.zeros((0, 2), "f"), "b": np.ones(2, "f")}
    return case("(float[M, 2] a, float[2] b) => (float[M] y) { y = MatMul (a, b) }", feeds, np.zeros(0, "f"))


@report(ORT, 25663, "MatMul does not broadcast one matrix to none")
def product_of_no_matrices() -> Case:
    feeds = {"a": np.ones((0, 3, 4), "f"), "b": np.ones((1, 4, 5), "f")}
    text = "(float[B, 3, 4] a, float[1, 4, 5] b) => (float[B, 3, 5] y) { y = MatMul (a, b) }"
    return case(text, feeds, np.zeros((0, 3, 5), "f"))


@report(ORT, 21483, "MatMul over no products fails on one target: it is 0")
def product_over_nothing() -> Case:
    feeds = {"a": np.zeros((16, 0), "f"), "b": np.zeros((0, 16), "f")}
    text = "(float[16, K] a, float[K, 16] b) => (float[16, 16] y) { y = MatMul (a, b) }"
    return case(text, feeds, np.zeros((16, 16), "f"))


@report(ORT, 22111, "Gemm over no products leaves its bias out")
def bias_over_nothing() -> Case:
    feeds = {"a": np.zeros((2, 0), "f"), "b": np.zeros((0, 3), "f"), "c": f32(1, 2, 3)}
    text = "(float[2, K] a, float[K, 3] b, float[3] c) => (float[2, 3] y) { y = Gemm (a, b, c) }"
    return case(text, feeds, f32([1, 2, 3], [1, 2, 3]))


@report(ORT, 4559, "a linear layer of no boxes ends in a segmentation fault")
def layer_of_no_boxes() -> Case:
    text = (
        """(float[1, B, 6] x, float[6, 4] w, float[4] b) => (float[1, B, 4] y) { m = MatMul (x, w)  y = Add (m, b) }"""
    )
    feeds = {"x": np.zeros((1, 0, 6), "f"), "w": np.ones((6, 4), "f"), "b": np.ones(4, "f")}
    return case(text, feeds, np.zeros((1, 0, 4), "f"))


@report(ORT, 187, "Tile by 0 ends in a segmentation fault")
def tiled_by_zero() -> Case:
    text = "(float[4] x, int64[1] r) => (float[n] y) { y = Tile (x, r) }"
    return case(text, {"x": f32(0, 1, 2, 3), "r": i64(0)}, np.zeros(0, "f"))


@report(TVM, 20217, "indices that count from the end are not counted from there")
def indices_from_the_end() -> Case:
    x = np.arange(12, dtype="f").reshape(3, 4)
    text = """(float[3, 4] x, int64[3, 4] e, int64[2, 2] n, int64[2, 1] s, float[2, 4] u, int64[4] o)
    => (float[3, 4] a, float[2] b, float[3, 4] c, float[4, 5] d)
    <int64 depth = {5}, float[2] values = {0, 1}, float zero = {0}>
    { a = GatherElements <axis = 1> (x, e)  b = GatherND (x, n)  z = Mul (x, zero)  c = ScatterND (z, s, u)
      d = OneHot (o, depth, values) }"""
    feeds = {"x": x, "e": np.full((3, 4), -1), "n": i64([-1, -1], [0, -2]), "s": i64([-1], [0])}
    feeds |= {"u": np.arange(1, 9, dtype="f").reshape(2, 4), "o": i64(0, 2, 4, -1)}
    scattered = f32([5, 6, 7, 8], [0] * 4, [1, 2, 3, 4])
    return case(text, feeds, np.repeat(x[:, -1:], 4, 1), f32(11, 2), scattered, np.eye(5, dtype="f")[[0, 2, 4, 4]])


@report("cool-japan/oxionnx", 4, "padding that PyTorch reverses with a Slice from the end comes out empty")
def reversed_padding() -> Case:
    text = f"""(float[1, 1, 5, 5] x) => (float[1, 1, 11, 11] y)
    <int64[4] p = {{3, 3, 3, 3}}, int64[1] four = {{4}}, int64[2] pairs = {{-1, 2}}, int64[1] last = {{-1}},
     int64[1] first = {{{-(2**63)}}}, int64[1] axis = {{0}}, int64[1] flat = {{-1}}>
    {{ z = ConstantOfShape <value: tensor = int64[1] {{0}}> (four)  c = Concat <axis = 0> (p, z)
      r = Reshape (c, pairs)  s = Slice (r, last, first, axis, last)  t = Transpose <perm = [1, 0]> (s)
      f = Reshape (t, flat)  k = Cast <to = 7> (f)  y = Pad <mode = "reflect"> (x, k) }}"""
    x = np.arange(25, dtype="f").reshape(1, 1, 5, 5)
    return case(text, {"x": x}, np.pad(x, [(0, 0), (0, 0), (3, 3), (3, 3)], mode="reflect"))


@report(ORT, 1610, "NonMaxSuppression of the second image finds other boxes than of the first, which is alike")
def boxes_of_two_images() -> Case:
    boxes = f32([0, 0, 0.3, 0.3], [0, 0, 0.4, 0.4], [0, 0, 0.5, 0.5], [0.5, 0.5, 0.9, 0.9], [0.5, 0.5, 1, 1])
    scores = f32([0.1, 0.2, 0.6, 0.3, 0.9], [0.1, 0.2, 0.6, 0.3, 0.9])
    text = """(float[2, 5, 4] b, float[2, 2, 5] s) => (int64[n, 3] y)
    <int64 most = {2}, float overlap = {0.3}> { y = NonMaxSuppression (b, s, most, overlap) }"""
    want = i64(*[[image, kind, box] for image in range(2) for kind in range(2) for box in (4, 2)])
    return case(text, {"b": np.stack([boxes] * 2), "s": np.stack([scores] * 2)}, want)


@report("onnx/onnx-mlir", 1158, "NonMaxSuppression fills its result up with -1")
def boxes_that_are_chosen() -> Case:
    text = """(float[1, 3, 4] b, float[1, 1, 3] s) => (int64[n, 3] y)
    <int64 most = {3}, float overlap = {0.5}, float least = {0.4}>
    { y = NonMaxSuppression (b, s, most, overlap, least) }"""
    boxes = f32([[0, 0, 1, 1], [0, 0, 1, 1.1], [5, 5, 6, 6]])
    return case(text, {"b": boxes, "s": f32([[0.9, 0.8, 0.1]])}, i64([0, 0, 0]))


@report(OV, 20977, "SoftmaxCrossEntropyLoss with weights has another mean")
def weighted_loss() -> Case:
    x, labels, w = np.arange(15, dtype="f").reshape(3, 5) % 7, i64(0, 1, 1), f32(1, 2, 3, 4, 5)
    logs = x - np.log(np.exp(x.astype(float)).sum(1, keepdims=True))
    picked = logs[np.arange(3), labels] * w[labels]
    text = "(float[3, 5] x, int64[3] t, float[5] w) => (float y) { y = SoftmaxCrossEntropyLoss (x, t, w) }"
    want = np.float32(-picked.sum() / w[labels].sum())
    return case(text, {"x": x, "t": labels, "w": w}, want, within=1e-6)


def _recurrence(x: np.ndarray, w: np.ndarray, r: np.ndarray, h: np.ndarray) -> np.ndarray:
    """States of a recurrent layer with a rectifier, one sequence: (length, hidden)."""
    states = []
    for row in x:
        h = np.maximum(w @ row + r @ h, 0)
        states.append(h)
    return np.stack(states)


@report(ORT, 1607, "the way back of a bidirectional RNN does not begin with its initial state")
def both_ways_from_a_state() -> Case:
    rng = np.random.default_rng(0)
    x, w, r, h = (rng.standard_normal(s).astype("f") for s in ((3, 1, 2), (2, 2, 2), (2, 2, 2), (2, 1, 2)))
    text = """(float[3, 1, 2] x, float[2, 2, 2] w, float[2, 2, 2] r, float[2, 1, 2] h) => (float[3, 2, 1, 2] y)
    { y = RNN <hidden_size = 2, direction = "bidirectional", activations = ["Relu", "Relu"]> (x, w, r, "", "", h) }"""
    ways = _recurrence(x[:, 0], w[0], r[0], h[0, 0]), _recurrence(x[::-1, 0], w[1], r[1], h[1, 0])[::-1]
    return case(text, {"x": x, "w": w, "r": r, "h": h}, np.stack(ways, 1)[:, :, None], within=1e-5)


@report("onnx/onnx-tensorflow", 342, "a recurrent layer in reverse begins at the padding of a short sequence")
def back_from_the_end() -> Case:
    rng = np.random.default_rng(1)
    x, w, r = (rng.standard_normal(s).astype("f") for s in ((4, 1, 2), (1, 2, 2), (1, 2, 2)))
    text = """(float[4, 1, 2] x, float[1, 2, 2] w, float[1, 2, 2] r, int32[1] n) => (float[4, 1, 1, 2] y) { y = RNN
    <hidden_size = 2, direction = "reverse", activations = ["Relu"]> (x, w, r, "", n) }"""
    states = _recurrence(x[1::-1, 0], w[0], r[0], np.zeros(2))[::-1]
    want = np.concatenate([states, np.zeros((2, 2))]).astype("f")[:, None, None]
    return case(text, {"x": x, "w": w, "r": r, "n": np.array([2], np.int32)}, want, within=1e-5)


@report(ORT, 11536, "a branch may not hand out a value of the graph around it")
def outer_value_of_a_branch() -> Case:
    text = """(bool c, float[2] x) => (float[2] y) { one = Abs (x)
      y = If (c) <then_branch = g1 () => (float[2] one) {}, else_branch = g2 () => (float[2] t) { t = Neg (x) }> }"""
    return case(text, {"c": np.array(True), "x": f32(-1, 2)}, f32(1, 2))


@report("onnx/onnx", 2082, "what a Loop's body calls its own hides a name outside, and its updates are lost")
def hidden_names() -> Case:
    text = """(int64 n, float[1] b) => (float[1] y) <bool go = {1}, float[1] one = {1}>
    { y = Loop (n, go, b) <body = f (int64 i, bool c, float[1] b) => (bool d, float[1] s)
      { d = Identity (c)  s = Add (b, one) }> }"""
    return case(text, {"n": np.int64(5), "b": f32(10)}, f32(15))


@report(ORT, 4210, "the number of a trip that a Loop hands out is the last one's everywhere")
def numbers_of_trips() -> Case:
    text = """(int64 n) => (int64[k] y) <bool go = {1}>
    { y = Loop (n, go) <body = f (int64 i, bool c) => (bool d, int64 j) { d = Identity (c)  j = Identity (i) }> }"""
    return case(text, {"n": np.int64(4)}, i64(0, 1, 2, 3))


@report("onnx/onnx-mlir", 1153, "what a Loop hands out of each trip is what the next one begins with")
def states_of_trips() -> Case:
    text = """(int64 n, float s) => (float z, float[k] y) <bool go = {1}, float two = {2}>
    { z, y = Loop (n, go, s) <body = f (int64 i, bool c, float v) => (bool d, float w, float o)
      { d = Identity (c)  w = Mul (v, two)  o = Identity (v) }> }"""
    return case(text, {"n": np.int64(3), "s": np.float32(1)}, np.float32(8), f32(1, 2, 4))


@report(ORT, 3755, "a state that an If in a Loop hands out as it is has no type")
def state_through_a_branch() -> Case:
    text = """(int64 n, float[1] s) => (float[1] y) <bool go = {1}, int64 two = {2}, float[1] ten = {10}>
    { y = Loop (n, go, s) <body = f (int64 i, bool c, float[1] v) => (bool d, float[1] w)
      { d = Identity (c)  q = Less (i, two)
        w = If (q) <then_branch = t () => (float[1] u) { u = Add (v, ten) },
        else_branch = e () => (float[1] v) {}> }> }"""
    return case(text, {"n": np.int64(5), "s": f32(1)}, f32(21))


@report("onnx/onnx", 7964, "Scan counts its results by its operands, and forgets the graph around it")
def results_of_scan() -> Case:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["t"]),
            helper.make_node("Identity", ["t"], ["a"]),
            helper.make_node("Mul", ["x", "k"], ["b"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("s", "x")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("t", "a", "b")],
    )
    graph = helper.make_graph(
        [helper.make_node("Scan", ["init", "xs"], ["last", "sums", "products"], num_scan_inputs=1, body=body)],
        "g",
        [
            helper.make_tensor_value_info("init", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("xs", TensorProto.FLOAT, [3, 2]),
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("last", "sums", "products")],
        [numpy_helper.from_array(f32(3), "k")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    xs = np.arange(6, dtype="f").reshape(3, 2)
    return Case(model, {"init": np.zeros(2, "f"), "xs": xs}, (xs.sum(0), np.cumsum(xs, 0), xs * 3))


@report(ORT, 4349, "an operator of an unknown domain crashes")
def unknown_domain() -> Case:
    made = refused("(float[2] x) => (float[2] y) { y = Relu (x) }", {"x": f32(1, 2)})
    made.model.graph.node[0].domain = "ai.onnx\x07"
    return made


@report(ORT, 24806, "an Einsum whose equation has more operands than the node crashes")
def equation_of_too_many() -> Case:
    return refused(
        '(float[2, 2] x) => (float[2, 2] y) { y = Einsum <equation = "ij,jk->ik"> (x) }', {"x": np.eye(2, dtype="f")}
    )
