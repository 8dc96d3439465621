"""Structural equality, the path it names, and the hash that agrees with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from minitvm.errors import IRError
from minitvm.ir.builder import call_op, const, function, nn, var
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var, span_scope
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import assert_structural_equal, node_key, structural_equal, structural_hash
from minitvm.ir.types import TensorType
from tests.steps import assert_linear

CONV = """
def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
  nn.relu(%0)
}"""

TWO = "def @main(%x: Tensor[(2, 2), float32], %y: Tensor[(2, 2), float32]) { BODY }"


def two(body: str) -> Module:
    return parse_module(TWO.replace("BODY", body))


def same(a: Expr | Module, b: Expr | Module) -> bool:
    """Equality, after checking that it is symmetric and that equal things hash equally."""
    equal = structural_equal(a, b)
    assert structural_equal(b, a) == equal
    assert not equal or structural_hash(a) == structural_hash(b)
    return equal


def test_bound_names_spans_and_constant_names_do_not_count() -> None:
    with span_scope(("elsewhere",)):
        renamed = parse_module(CONV.replace("%x", "%input").replace("%0", "%conv"))
    assert same(parse_module(CONV), renamed)
    assert same(Constant(np.float32(1), "a"), Constant(np.float32(1), "b"))


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        (CONV, CONV.replace("padding=[1, 1, 1, 1]", "padding=[1, 1, 1, 1], dilation=[2, 2]"),
         "main.body.args[0].op.dilation: [1, 1] != [2, 2]"),
        (CONV, CONV.replace("padding", "groups=1, padding").replace("1, 1, 1, 1", "2, 2, 2, 2"),
         "main.body.args[0].op.padding: [1, 1, 1, 1] != [2, 2, 2, 2]"),
        (CONV, CONV.replace("relu", "softmax"), "main.body.op: nn.relu != nn.softmax"),
        (CONV, CONV.replace("(1, 3, 8, 8)", "(2, 3, 8, 8)"),
         "main.params[0].type: Tensor[(1, 3, 8, 8), float32] != Tensor[(2, 3, 8, 8), float32]"),
        (CONV, CONV.replace("nn.relu(%0)", "%0"), "main.body.op: nn.relu != nn.conv2d"),
        (CONV, CONV.replace("nn.relu(%0)", "(%0,)"), "main.body: a call of nn.relu != a Tuple"),
        (CONV, CONV.replace("@main", "@other"), "functions: main != other"),
        (TWO.replace("BODY", "add(%x, %y)"), TWO.replace("BODY", "add(%y, %x)"), "main.body.args[0]: %x != %y"),
        (TWO.replace("BODY", "add(%x, 1f)"), TWO.replace("BODY", "add(%x, 2f)"), "main.body.args[1]: 1f != 2f"),
        (TWO.replace("BODY", "(%x, %y)"), TWO.replace("BODY", "(%x, %y, %x)"),
         "main.body.type: (Tensor[(2, 2), float32], Tensor[(2, 2), float32]) != "
         "(Tensor[(2, 2), float32], Tensor[(2, 2), float32], Tensor[(2, 2), float32])"),
        (TWO.replace("BODY", "split(%x, indices_or_sections=2).0"),
         TWO.replace("BODY", "split(%x, indices_or_sections=2).1"),
         "main.body.index: 0 != 1"),
        (TWO.replace("BODY", "%x"), TWO.replace("BODY", "%x").replace(", %y: Tensor[(2, 2), float32]", ""),
         "main.params: 2 parameters != 1 parameters"),
        (TWO.replace("BODY", "%x"), TWO.replace("BODY", "%x").replace(") {", ", tag=1) {"),
         "main.attrs: {} != {tag}"),
    ],
)  # fmt: skip
def test_the_difference_is_named(before: str, after: str, difference: str) -> None:
    a, b = parse_module(before), parse_module(after)
    with pytest.raises(IRError) as caught:
        assert_structural_equal(a, b)
    assert str(caught.value) == f"the graphs differ at {difference}"
    assert not same(a, b)
    assert structural_hash(a) != structural_hash(b)


def test_sharing_counts() -> None:
    once = two("%0 = exp(%x); add(%0, %0)")
    twice = two("%0 = exp(%x); %1 = exp(%x); add(%0, %1)")
    with pytest.raises(IRError) as caught:
        assert_structural_equal(once, twice)
    assert str(caught.value) == "the graphs differ at main.body.args[1]: a shared Call != a copied Call"
    assert not same(once, twice)
    assert structural_hash(once) != structural_hash(twice)


def test_sharing_of_constants_and_projections_does_not_count() -> None:
    x = var("x", shape=(4,))
    halves = call_op("split", x, indices_or_sections=2)
    one, c = halves[0], const(2.0)
    shared = call_op("multiply", call_op("add", one, c), call_op("add", one, c))
    copied = call_op("multiply", call_op("add", halves[0], const(2.0)), call_op("add", halves[0], const(2.0)))
    assert same(function(shared), function(copied))


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (np.float32(0.0), np.float32(-0.0), False),
        (np.float32(np.nan), np.float32(np.nan), True),
        (np.float32(1), np.float64(1), False),
        (np.zeros((2, 0), "int8"), np.zeros((0, 2), "int8"), False),
        (np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), True),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2), False),
        (np.float16([1, 2]), np.float16([1, 3]), False),
    ],
)
def test_constants_are_compared_by_dtype_shape_and_bits(a: np.ndarray, b: np.ndarray, equal: bool) -> None:
    assert same(Constant(a), Constant(b)) == equal
    assert (structural_hash(Constant(a)) == structural_hash(Constant(b))) == equal


def test_free_variables() -> None:
    x, y = (Var(n, TensorType((2,))) for n in "xy")
    assert same(nn.relu(x), nn.relu(x))
    assert not same(nn.relu(x), nn.relu(y))
    assert structural_equal(nn.relu(x), nn.relu(y), map_free_vars=True)
    assert not structural_equal(nn.relu(x), nn.relu(Var("y", TensorType((3,)))), map_free_vars=True)
    assert not structural_equal(call_op("add", x, y), call_op("add", x, x), map_free_vars=True)
    assert not structural_equal(call_op("add", x, x), call_op("add", x, y), map_free_vars=True)
    assert structural_equal(call_op("add", x, y), call_op("add", y, x), map_free_vars=True)


def group(name: str, op: str = "exp") -> Function:
    p = Var("p0", TensorType((2,)))
    return Function([p], call_op(op, p), {"primitive": True, "name": name})


def test_called_functions_are_compared_by_content_and_attributes() -> None:
    x = var("x", shape=(2,))
    shared = group("a")
    assert same(function(Call(shared, [Call(shared, [x])])), function(Call(group("a"), [Call(group("a"), [x])])))
    a, b, c = (function(Call(f, [x])) for f in (group("a"), group("b"), group("a", "log")))
    with pytest.raises(IRError, match=r"function.body.op.attrs.name: 'a' != 'b'"):
        assert_structural_equal(a, b)
    with pytest.raises(IRError, match=r"function.body.op.body.op: exp != log"):
        assert_structural_equal(a, c)
    assert len({structural_hash(f) for f in (a, b, c)}) == 3


def test_the_order_of_a_modules_functions_does_not_count() -> None:
    a, b = group("a"), group("b", "log")
    assert same(Module({"main": a, "other": b}), Module({"other": b, "main": a}))
    assert not same(Module({"main": a, "other": b}), Module({"main": b, "other": a}))


def test_a_variable_that_is_free_in_a_nested_function_is_not_a_parameter() -> None:
    """Numbering must not mix up the variables of two functions."""
    x, y = (Var(n, TensorType((2,))) for n in "xy")
    p, q = (Var(n, TensorType((2,))) for n in "pq")
    uses_inner = Function([x, y], Call(Function([p, q], call_op("subtract", p, q)), [x, y]))
    swapped = Function([x, y], Call(Function([p, q], call_op("subtract", q, p)), [x, y]))
    assert not same(uses_inner, swapped)
    assert structural_hash(uses_inner) != structural_hash(swapped)


def test_expressions_of_other_kinds() -> None:
    x = var("x", shape=(2,))
    everything: list[Expr] = [x, const(1.0), nn.relu(x), Tuple([x]), TupleGetItem(Tuple([x]), 0), function(x)]
    for i, a in enumerate(everything):
        assert [same(a, b) for b in everything] == [i == j for j in range(len(everything))]
    assert not structural_equal(Module(function(x)), function(x))


def test_hash_is_the_same_in_another_process() -> None:
    program = (
        "from minitvm.ir.parser import parse_module\nfrom minitvm.ir.structural import structural_hash\n"
        f"print(structural_hash(parse_module({CONV!r})))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) == structural_hash(parse_module(CONV))


def chain(length: int, last: str) -> Module:
    expr: Expr = var("x", shape=(2,))
    for _ in range(length):
        expr = call_op("add", expr, expr)
    return Module.from_expr(call_op(last, expr))


def test_negative_zero_is_an_attribute_of_its_own() -> None:
    """clip(-1, -0.0, 1) is -0.0: one over it is another infinity."""
    x = var("x", shape=(2,))
    a, b = (call_op("clip", x, a_min=low, a_max=1.0) for low in (0.0, -0.0))
    assert not structural_equal(a, b) and structural_hash(a) != structural_hash(b)
    assert node_key(a) != node_key(b)
    assert structural_equal(a, call_op("clip", x, a_min=0, a_max=1))


def test_five_thousand_shared_calls_in_linear_time() -> None:
    def compare(count: int) -> Callable[[], None]:
        a, b, c = chain(count, "exp"), chain(count, "exp"), chain(count, "log")

        def work() -> None:
            assert structural_equal(a, b)
            assert structural_hash(a) == structural_hash(b) != structural_hash(c)

        return work

    compare(5000)()
    assert_linear(compare, 500)


def test_long_paths_are_shortened() -> None:
    x = var("x", shape=(2,))
    a, b = (function(_wrapped(call_op(op, x), 3000), [x]) for op in ("exp", "log"))
    with pytest.raises(IRError) as caught:
        assert_structural_equal(a, b)
    assert str(caught.value).startswith("the graphs differ at ...")
    assert str(caught.value).endswith(".args[0].args[0].op: exp != log")
    assert len(str(caught.value)) < 300


def _wrapped(expr: Expr, times: int) -> Expr:
    for _ in range(times):
        expr = call_op("negative", expr)
    return expr
