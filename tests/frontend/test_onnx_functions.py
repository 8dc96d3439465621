"""Functions that a model brings: attributes, operator sets, overloads, inputs that are left out, how deep they go."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx_build import build, error_of, run, value
from steps import steps

import minitvm
from minitvm.errors import FrontendError, UnsupportedOperatorError
from minitvm.frontend import describe_onnx, from_onnx, onnx_op
from minitvm.frontend.onnx.node import emit
from minitvm.frontend.onnx.registry import BUILDERS
from minitvm.ir.expr import Call
from minitvm.ir.visitor import post_order

X = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
HEAD = '<ir_version: 10, opset_import: ["": 18, "f": 1]> g (float[2,3] x) => (float[2,3] y) '


def main(body: str, *functions: str) -> onnx.ModelProto:
    """A model from x to y, and functions of domain ``f`` over opset 18."""
    head = '<domain: "f", opset_import: ["": 18, "f": 1]> '
    return parser.parse_model(HEAD + "{" + body + "}" + "".join(head + function for function in functions))


def result(model: onnx.ModelProto) -> np.ndarray:
    return run(model, {"x": X})[0]


AS_ONNX_RUNTIME = {
    "defaults of attributes": main(
        "y = f.F (x)",
        "F <perm: ints = [0, 1], alpha: float = 0.5> (x) => (y) "
        "{ t = Transpose <perm: ints = @perm> (x) y = LeakyRelu <alpha: float = @alpha> (t) }",
    ),
    "a given attribute, of another name inside": main(
        "y = f.F <slope = 0.25> (x)", "F <slope> (x) => (y) { y = LeakyRelu <alpha: float = @slope> (x) }"
    ),
    "an attribute that is left out": main(
        "y = f.F (x)", "F <alpha> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }"
    ),
    "attributes handed on": main(
        "a = f.F <alpha = 0.25> (x) y = f.F (a)",
        "F <alpha: float = 2.0> (x) => (y) { y = f.G <alpha: float = @alpha> (x) }",
        "G <alpha: float = 3.0, beta: float = 0.5> (x) => (y) "
        "{ a = LeakyRelu <alpha: float = @alpha> (x) y = HardSigmoid <alpha: float = @beta> (a) }",
    ),
    "attributes in a branch in a loop": main(
        "y = f.F <alpha = 0.25> (x)",
        """F <alpha: float = 0.5, n: int = 3> (x) => (y) {
            m = Constant <value_int: int = @n> () one = Constant <value_int = 1> () go = Cast <to = 9> (one)
            y = Loop (m, go, x) <body = b (int64 i, bool c, float[2,3] v) => (bool d, float[2,3] w) {
                d = Identity (c) first = Less (i, one)
                w = If (first) <
                    then_branch = t () => (float[2,3] p) { q = LeakyRelu <alpha: float = @alpha> (v) p = Add (q, x) },
                    else_branch = e () => (float[2,3] p) { p = Elu <alpha: float = @alpha> (v) }>
            }>
        }""",
    ),
    "inputs that are left out": main(
        "low = Constant <value_float = -0.5> () a = f.F (x, low) y = f.F (a)",
        "F (x, low, high) => (y) { y = Clip (x, low, high) }",
    ),
    "inputs that are left out of an inner call": main(
        "high = Constant <value_float = 2.0> () y = f.G (x, , high)",
        "G (x, low, high) => (y) { y = f.F (high, x, low) }",
        "F (high, x, low) => (y) { y = Clip (x, low, high) }",
    ),
    "names that mean something else inside": main(
        "t = Neg (x) u = f.F (t) y = Sub (u, t)",
        "F (x) => (u) { y = Abs (x) t = f.G (y) u = Add (t, y) }",
        "G (x) => (u) { t = Sqrt (x) y = Add (t, x) u = Mul (y, t) }",
    ),
    "the name of an operator": main("y = f.Relu (x)", "Relu (x) => (y) { y = Neg (x) }"),
    "nodes in another order": main("y = f.F (x)", "F (x) => (y) { a = Abs (x) b = Neg (a) y = Add (a, b) }"),
    "an operator of ONNX is not replaced": parser.parse_model(
        HEAD + '{ y = Relu (x) } <domain: "", opset_import: ["": 18]> Relu (x) => (y) { y = Neg (x) }'
    ),
    "overloads": parser.parse_model(
        HEAD + '{ a = f.F:one (x) y = f.F:two (a) } <domain: "f", overload: "one", opset_import: ["": 18]> '
        'F (x) => (y) { y = Neg (x) } <domain: "f", overload: "two", opset_import: ["": 18]> '
        "F (x) => (y) { y = Exp (x) }"
    ),
}


@pytest.mark.parametrize("name", AS_ONNX_RUNTIME)
def test_as_onnx_runtime(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = AS_ONNX_RUNTIME[name]
    (expected,) = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(result(model), expected, rtol=1e-6, strict=True)
    for level in (0, 3):
        session = minitvm.InferenceSession(model, opt_level=level, num_threads=1)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-6, strict=True)


def test_the_defaults_of_the_function_count_not_those_of_the_operator() -> None:
    np.testing.assert_array_equal(result(AS_ONNX_RUNTIME["defaults of attributes"]), np.where(X < 0, X * 0.5, X))


def test_an_operator_set_of_its_own() -> None:
    """Over all from the axis on in opset 11; ONNX Runtime takes the model's operator set for the function's."""
    function = '<domain: "f", opset_import: ["": 11]> F (x) => (y) { y = f.G (x) } '
    inner = '<domain: "f", opset_import: ["": 12]> G (x) => (y) { y = Softmax <axis = 0> (x) }'
    model = parser.parse_model(HEAD + "{ y = f.F (x) }" + function + inner)
    np.testing.assert_allclose(result(model), np.exp(X) / np.exp(X).sum(), rtol=1e-6)
    np.testing.assert_allclose(minitvm.InferenceSession(model).run(None, {"x": X})[0], result(model), rtol=1e-6)


def test_outputs_of_a_function() -> None:
    """One value twice, an input as it is, one that nobody asks for, one that was left out."""
    imports = [helper.make_opsetid("", 18)]
    body = [helper.make_node("Neg", ["a"], ["n"])]
    function = helper.make_function("f", "F", ["a", "b"], ["n", "a", "n", "b"], body, imports)
    call = helper.make_node("F", ["x"], ["y0", "y1", "", ""], domain="f")
    again = helper.make_node("F", ["x", "y1"], ["", "", "y2", "y3"], domain="f")
    model = build([call, again], [value("x", X)], ["y0", "y1", "y2", "y3"], functions=[function])
    for found, expected in zip(run(model, {"x": X}), (-X, X, -X, X), strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(minitvm.InferenceSession(model).run(None, {"x": X}), (-X, X, -X, X), strict=True):
        np.testing.assert_array_equal(found, expected)
    model = build([helper.make_node("F", ["x"], ["", "", "", "y"], domain="f")], [value("x", X)], ["y"],
                  functions=[function])  # fmt: skip
    assert error_of(FrontendError, model) == "value 'y' is an output that its operator does not produce in minitvm"


def test_a_builder_of_ones_own_comes_before_the_function() -> None:
    model = main("y = f.F (x)", "F (x) => (y) { y = Neg (x) }")
    onnx_op("F", domain="f")(lambda node: emit("exp", node[0]))
    try:
        np.testing.assert_allclose(result(model), np.exp(X), rtol=1e-6)
    finally:
        del BUILDERS["f", "F"]
    np.testing.assert_array_equal(result(model), -X)


def test_where_a_node_comes_from() -> None:
    model = main("y = f.F (x)", "F (x) => (y) { a = f.G (x) y = f.G (a) }", "G (x) => (y) { y = Neg (x) }")
    module, _ = from_onnx(model)
    spans = [node.span for node in post_order(module.main.body) if isinstance(node, Call)]
    assert spans == [("F_y/G_a/Neg_y",), ("F_y/G_y/Neg_y",)]
    found = describe_onnx(model)
    assert (found.operators, found.inner_operators) == (("F",), ("G", "G", "Neg"))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors_name_the_function_and_its_calls() -> None:
    model = main("y = f.F (x)", "F (x) => (y) { y = f.G (x) }", "G (x) => (y) { y = Softmax <axis = 5> (x) }")
    assert error_of(FrontendError, model) == (
        "Softmax: axis 5 is outside a tensor of rank 2\n"
        '  | ONNX node that produces "y" (Softmax)\n'
        '  | in function f.G, called by ONNX node that produces "y" (f.G)\n'
        '  | in function f.F, called by ONNX node that produces "y" (f.F)'
    )


REFUSED: dict[str, tuple[Any, str]] = {
    "recursion": (
        main("y = f.F (x)", "F (x) => (y) { y = f.G (x) }", "G (x) => (y) { y = f.F (x) }"),
        "function f.F calls itself\n  | f.F calls f.G\n  | f.G calls f.F\n"
        "  = hint: ONNX functions do not recur; recurrence is written with Loop or Scan",
    ),
    "recursion in a branch": (
        main(
            "y = f.F (x)",
            "F (x) => (y) { c = Constant <value_int = 1> () d = Cast <to = 9> (c) y = If (d) "
            "<then_branch = t () => (p) { p = f.F (x) }, else_branch = e () => (p) { p = Neg (x) }> }",
        ),
        "function f.F calls itself\n  | f.F calls f.F\n"
        "  = hint: ONNX functions do not recur; recurrence is written with Loop or Scan",
    ),
    "an attribute it has not": (
        main("y = f.F <beta = 1.0> (x)", "F <alpha: float = 1.0> (x) => (y) { y = Elu <alpha: float = @alpha> (x) }"),
        "function f.F has no attribute 'beta'\n"
        '  | in function f.F, called by ONNX node that produces "y" (f.F)\n  = hint: its attributes: alpha',
    ),
    "more inputs than it has": (
        main("y = f.F (x, x)", "F (x) => (y) { y = Neg (x) }"),
        'F: is a function of 1 inputs and 1 outputs\n  | ONNX node that produces "y" (f.F)',
    ),
    "an output that it does not produce": (
        main("y = f.F (x)", "F (x) => (y, z) { y = Neg (x) }"),
        "output 'z' of function f.F is never produced",
    ),
    "twice": (
        main("y = f.F (x)", "F (x) => (y) { y = Neg (x) }", "F (x) => (y) { y = Abs (x) }"),
        "function f.F is defined twice",
    ),
    "operators that nobody knows": (
        main("y = f.F (x)", "F (x) => (y) { y = f.Missing (x) }"),
        "the model has operators that minitvm cannot import: f.Missing (1)\n  | f.Missing: y\n"
        "  = hint: write a builder for them: @minitvm.frontend.onnx_op(name, since=..., domain=...)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    model, text = REFUSED[name]
    assert error_of(FrontendError if "operators" not in name else UnsupportedOperatorError, model) == text


# --- how deep ---------------------------------------------------------------------------------------------------------


def chain(depth: int, twice: str) -> onnx.ModelProto:
    """Functions each of which calls the one before it twice."""
    calls = [f"F{i} (x) => (y) {{ {twice.replace('F', f'f.F{i - 1}')} }}" for i in range(1, depth + 1)]
    return main(f"y = f.F{depth} (x)", "F0 (x) => (y) { y = Neg (x) }", *calls)


def test_functions_that_call_each_other_twice_are_bounded() -> None:
    error = error_of(FrontendError, chain(40, "a = F (x) y = F (a)"))
    assert error == (
        "calls of the model's functions stand for 3,298,534,883,326 nodes; at most 65,536 are imported\n"
        "  | 41 functions of 81 nodes call each other\n"
        "  = hint: functions that call each other many times: a Loop repeats without copies"
    )
    np.testing.assert_array_equal(result(chain(6, "a = F (x) y = F (a)")), X)


def test_the_same_call_is_imported_once() -> None:
    """Work grows with the functions, not with the paths through them."""
    shallow, deep = (steps(partial(from_onnx, chain(d, "a = F (x) b = F (x) y = Add (a, b)"))) for d in (10, 40))
    assert deep < 8 * shallow
    (found,) = run(chain(40, "a = F (x) b = F (x) y = Mul (a, b)"), {"x": np.ones_like(X)})
    np.testing.assert_array_equal(found, np.ones_like(X))


def test_calls_that_draw_random_numbers_are_not_the_same() -> None:
    model = main(
        "a = f.F (x) b = f.F (x) y = Sub (a, b)", "F (x) => (y) { y = f.G (x) }",
        "G (x) => (y) { y = RandomUniformLike (x) }",
    )  # fmt: skip
    assert np.all(minitvm.InferenceSession(model).run(None, {"x": X})[0] != 0)
