"""Models that the scripts run, as serialized bytes."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser


def image(height, width):
    """Pixels of a picture: (height, width, 3) uint8."""
    return np.random.default_rng(5).integers(0, 256, (height, width, 3)).astype(np.uint8)


def weights(*shape):
    scale = np.sqrt(2 / max(np.prod(shape[1:]), 1))
    return (np.random.default_rng(sum(shape)).normal(size=shape) * scale).astype(np.float32)


def two_layers(denotation=""):
    """x (N, 16) -> y (N, 8)."""
    values = {"w1": weights(16, 32), "b1": weights(32), "w2": weights(32, 8), "b2": weights(8)}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "rectifier"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], "second"),
    ]
    return _model(nodes, [("x", ["N" if not denotation else None, 16])], [("y", ["N", 8])], values, denotation)


def small_classifier():
    """image (N, 3, 32, 32) -> logits (N, 10)."""
    values = {"w1": weights(8, 3, 3, 3), "w2": weights(16, 8, 3, 3), "w3": weights(16, 10), "b3": weights(10)}
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["logits"]),
    ]
    return _model(nodes, [("image", ["N", 3, 32, 32])], [("logits", ["N", 10])], values)


def _model(nodes, inputs, outputs, values, denotation=""):
    made = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in lists] for lists in (inputs, outputs)]
    if denotation:
        made[0][0].type.tensor_type.shape.dim[0].denotation = denotation
    initializers = [numpy_helper.from_array(array, name) for name, array in values.items()]
    graph = helper.make_graph(nodes, "graph", *made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def described():
    model = onnx.load_from_string(two_layers())
    model.producer_name, model.producer_version, model.domain, model.model_version = "trainer", "1.2", "org.example", 7
    model.doc_string, model.graph.doc_string = "two layers", "a graph"
    helper.set_model_props(model, {"classes": "a,b,c", "author": "somebody"})
    return model.SerializeToString()


def decoder_step():
    """token (1, 1), past (1, T, 8) -> logits (1, 12), present (1, T + 1, 8): attention over what came before."""
    values = {"table": weights(12, 8), "out": weights(8, 12), "two": np.array([1, 12], np.int64)}
    text = """<ir_version: 8, opset_import: ["": 17]>
    step (int64[1, 1] token, float[1, T, 8] past) => (float[1, 12] logits, float[1, S, 8] present) {
        e = Gather (table, token)
        present = Concat <axis = 1> (past, e)
        keys = Transpose <perm = [0, 2, 1]> (present)
        scores = MatMul (e, keys)
        weight = Softmax <axis = -1> (scores)
        mixed = MatMul (weight, present)
        sum = Add (mixed, e)
        all = MatMul (sum, out)
        logits = Reshape (all, two)
    }"""
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
    return model.SerializeToString()


def sequences():
    return parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (seq(float[A]) parts, float[B] more) => (float[C] whole, seq(float[D]) back, int64 count) {
        back = SequenceInsert (parts, more)
        whole = ConcatFromSequence <axis = 0> (back)
        count = SequenceLength (back)
    }""").SerializeToString()


def classifier_with_zipmap():
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["float_input"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            coefficients=[0.5, -1.0, 0.25, 1.5, 0.75, -0.5, -1.0, 0.5, 0.125],
            intercepts=[0.1, -0.2, 0.3],
            classlabels_ints=[0, 1, 2],
            multi_class=0,
            post_transform="SOFTMAX",
        ),
        helper.make_node(
            "ZipMap", ["scores"], ["output_probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
        ),
        helper.make_node("Identity", ["label"], ["output_label"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sklearn",
        [helper.make_tensor_value_info("float_input", TensorProto.FLOAT, [None, 3])],
        [
            helper.make_tensor_value_info("output_label", TensorProto.INT64, [None]),
            helper.make_value_info(
                "output_probability",
                helper.make_sequence_type_proto(
                    helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
                ),
            ),
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def text_model():
    nodes = [
        helper.make_node("Identity", ["words"], ["same"]),
        helper.make_node(
            "LabelEncoder",
            ["same"],
            ["codes"],
            domain="ai.onnx.ml",
            keys_strings=["Hello", "of"],
            values_int64s=[4, 9],
            default_int64=-1,
        ),
        helper.make_node("Identity", ["same"], ["lower"]),
    ]
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info("words", TensorProto.STRING, [2, 2])],
        [
            helper.make_tensor_value_info("lower", TensorProto.STRING, [2, 2]),
            helper.make_tensor_value_info("codes", TensorProto.INT64, [2, 2]),
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def half_model():
    return parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float16[N, 8] x) => (float16[N, 8] y) {
        one = Constant <value = float16[1] {1}> ()
        two = Constant <value = float16[1] {2}> ()
        r = Relu (x)
        m = Mul (r, two)
        y = Add (m, one)
    }""").SerializeToString()
