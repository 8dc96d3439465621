"""Symbolic dimensions: their arithmetic, and that inference with symbols agrees with inference with numbers."""

from __future__ import annotations

import itertools
import math
import operator
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import GENERATORS, HypothesisDraw, random_case

from minitvm.errors import ParseError, TypeInferenceError
from minitvm.ir import builder as b
from minitvm.ir.builder import nn
from minitvm.ir.dims import (
    Dim,
    Fact,
    SymbolicDim,
    Undecided,
    always_less,
    anonymous,
    assumptions,
    broadcast_dims,
    deciding,
    differ,
    divide,
    is_anonymous,
    is_less,
    larger,
    least,
    product,
    replace,
    same,
    smaller,
    symbol,
    truncating_divide,
    with_ones,
)
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import structural_equal, structural_hash
from minitvm.ir.types import TensorType, TupleType, Type, accepts, alike
from minitvm.ir.verify import verify
from tests.steps import assert_linear

N, M = symbol("n"), symbol("m")


def valued(dim: Dim, **values: int) -> Dim:
    return replace(dim, {symbol(name).atom: value for name, value in values.items()})


def test_dimensions_are_equal_when_they_are_the_same_whatever_the_symbols_are() -> None:
    assert N + N + 1 == 2 * N + 1 == 1 + symbol("n") * 2
    assert N * (M + 1) - N == M * N
    assert (N - 1) // 2 + 1 == (N + 1) // 2 != N // 2
    assert N - N == 0 and N * 0 == 0 and (2 * N + 6) // 2 == N + 3
    assert (6 * N) // 4 == N + N // 2
    assert (N * M * 64) // M == 64 * N
    assert N // 5 // 2 == N // 10 == (2 * (N // 5)) // 4 and (N // 5 + M + 1) // 2 == (N + 5 * M + 5) // 10
    assert N + (4 - N % 4) % 4 == (N + 3) // 4 * 4 and 5 % N == 5 - 5 // N * N
    assert (4 * N * M - 4 * M) // (N - 1) == 4 * M and (N * N - 1) // (N + 1) == N - 1
    assert hash(N + 1) == hash(1 + N)


def test_sums_of_minima_and_maxima_are_the_same_as_what_they_add_up_to() -> None:
    assert same(smaller(N, 1) + larger(N - 1, 0), N) and same(larger(N * M - 3, 0) + smaller(3, M * N), N * M)
    assert not same(smaller(N, 2) + larger(N - 1, 0), N)
    assert smaller(N, smaller(N, 10)) == smaller(N, 10) and smaller(N + 1, larger(N - 1, 0)) == larger(N - 1, 0)
    for dim in (smaller(N - 3, M) - larger(N, 2 * M), 2 * larger(N - M, smaller(M, 4)) - smaller(N, M)):
        least_ = least(dim)
        for n, m in itertools.product((0, 1, 3, 9), repeat=2):
            assert least_ is None or least_ <= valued(dim, n=n, m=m)


def test_anonymous_dimensions_equal_only_themselves() -> None:
    some = anonymous()
    assert some == some and some + 1 - 1 == some != anonymous()
    assert str(some) == str(2 * some + N) == "?"
    assert TensorType((None, 3)) != TensorType((None, 3))
    assert alike(TensorType((None, 3)), TensorType((None, 3)))


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (2 * N + 1, "2*n + 1"),
        (N - 3, "n - 3"),
        ((N + 1) // 2, "(n + 1)//2"),
        (N // 2 * 3, "3*(n//2)"),
        (7 - N, "-n + 7"),
        (N * M - 2 * M, "m*n - 2*m"),
        (larger(0, N - 1), "max(n - 1, 0)"),
        (symbol("batch size") + 1, '"batch size" + 1'),
        (divide(N, M), "n//m"),
    ],
)
def test_text_of_a_dimension(dim: Dim, text: str) -> None:
    assert str(dim) == text
    type_ = TensorType((dim, 3))
    module = parse_module(f"def @main(%x: {type_}) {{ %x }}")
    assert module.main.params[0].type == type_
    assert str(type_) == f"Tensor[({text}, 3), float32]"


def test_what_cannot_be_decided_is_neither_true_nor_false() -> None:
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(TypeError, match="the dimension n is decided only when the model runs"):
            compare(N, 4)
    with pytest.raises(TypeError, match="decided only when"):
        bool(N)
    assert always_less(N, N + 1) and not always_less(N, 4) and not always_less(4, N)
    assert differ(N, N + 2) and differ(-1, N) and not differ(N, M)
    assert smaller(N, N + 1) == N and larger(N, 0) == N and larger(N, M) == larger(M, N)


def test_quotients_of_what_is_no_less_are_no_less() -> None:
    """So that a pool that rounds up has one extent, which does not grow from one pool to the next."""
    n = symbol("n")
    assert always_less((n + 1) // 4, (n + 3) // 4 + 1)
    assert always_less((n + 1) // 4, (n + 5) // 4)
    assert not always_less((n + 1) // 4, (n + 4) // 4)
    assert not always_less((n + 1) // 4, (n + 9) // 5 + 1)
    image: Expr = b.var("x", shape=(1, 4, "n", 99))
    for _ in range(4):
        image = nn.max_pool2d(image, pool_size=(3, 3), strides=(2, 2), ceil_mode=True)
    assert str(image.tensor_type.shape[2]) == "n//16"


def test_what_was_decided_once_stays_decided() -> None:
    with assumptions({"n": 7}) as facts:
        with pytest.raises(Undecided):
            is_less(N - 3, 0)
        with deciding():
            assert truncating_divide(N - 3, 2) == (N - 3) // 2
        assert truncating_divide(N - 3, 2) == (N - 3) // 2 and not is_less(N - 3, 0)
    assert facts == {Fact("<", 0, N - 2)}
    assert str(truncating_divide(N - 3, 2)) == "truncdiv(n - 3, 2)"


def test_nothing_is_counted_on_that_the_sample_contradicts() -> None:
    with assumptions({"n": 3, "m": 1}) as facts:
        assert differ(N, 4) and not differ(N, 3)
        with pytest.raises(Undecided):
            broadcast_dims(N, M)
        with deciding():
            assert with_ones((N, M), (N,), (2, M, N)) == [(N, 1), (N,), (2, 1, N)]
    assert {Fact("!=", N, 4), Fact("==", N, 3), Fact("==", M, 1)} <= facts
    assert with_ones((M, 3), (3, 3)) == [(M, 3), (3, 3)]


LEAVES: Any = st.integers(-3, 5) | st.sampled_from([N, M, symbol("k")])
OPERATIONS: dict[str, tuple[Callable[[Any, Any], Dim], Callable[[int, int], int]]] = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "//": (divide, operator.floordiv),
    "min": (smaller, min),
    "max": (larger, max),
    "truncdiv": (truncating_divide, lambda a, b: math.trunc(Fraction(a, b))),
    "broadcast": (broadcast_dims, lambda a, b: np.broadcast_shapes((a,), (b,))[0]),
}
TREES = st.recursive(LEAVES, lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), inner, inner), max_leaves=6)


def _both(tree: Any, values: dict[str, int]) -> tuple[Dim, int]:
    """A dimension built of symbols, and the number that the same operations give of their values."""
    if not isinstance(tree, tuple):
        return tree, int(valued(tree, **values))  # type: ignore[arg-type]
    (a, x), (c, y) = _both(tree[1], values), _both(tree[2], values)
    symbolic, numeric = OPERATIONS[tree[0]]
    if tree[0] in ("//", "truncdiv"):
        c = y = y if y > 0 else 2
    if tree[0] == "broadcast" and (x != y or x < 0):
        a, x = 1, 1
        c, y = (1, 1) if y < 0 else (c, y)
    return symbolic(a, c), numeric(x, y)


@given(TREES, st.fixed_dictionaries({"n": st.integers(0, 9), "m": st.integers(0, 9), "k": st.integers(0, 9)}))
@settings(max_examples=300, deadline=None)
def test_arithmetic_of_symbols_is_that_of_their_values(tree: Any, values: dict[str, int]) -> None:
    dim, number = _both(tree, values)
    assert valued(dim, **values) == number
    bound = least(dim)
    assert bound is None or bound <= number
    if isinstance(dim, SymbolicDim):
        parsed = parse_module(f"def @main(%x: Tensor[({dim},), float32]) {{ %x }}").main.params[0].tensor_type
        assert parsed.shape == (dim,)


# --- inference ------------------------------------------------------------------------------------------------


KNOWN_ONLY = "must be known|must have a known shape|axis is needed where|is known only when|a known first dimension"


def _symbolic(type_: Type, named: Callable[[int], Dim]) -> Type:
    if isinstance(type_, TupleType):
        return TupleType(tuple(_symbolic(field, named) for field in type_.fields))
    assert isinstance(type_, TensorType)
    return type_.with_shape(tuple(named(d) for d in type_.static_shape))


def _agrees(found: Type, expected: Type, values: dict[str, int]) -> bool:
    if isinstance(found, TupleType) and isinstance(expected, TupleType):
        return all(_agrees(a, e, values) for a, e in zip(found.fields, expected.fields, strict=True))
    assert isinstance(found, TensorType) and isinstance(expected, TensorType)
    pairs = zip(found.shape, expected.shape, strict=True)
    return found.dtype == expected.dtype and all(is_anonymous(d) or valued(d, **values) == e for d, e in pairs)


@pytest.mark.parametrize("name", sorted(GENERATORS))
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_inference_with_symbols_agrees_with_inference_with_numbers(name: str, data: Any) -> None:
    case = random_case(name, HypothesisDraw(data))
    share = data.draw(st.integers(0, 2))  # of dimensions that stay numbers: none to all but a few
    values: dict[str, int] = {}

    def named(extent: int) -> Dim:
        if data.draw(st.integers(0, 2)) < share:
            return extent
        shift = data.draw(st.integers(0, min(extent, 2)))
        key = f"d{extent - shift}" if data.draw(st.booleans()) else f"s{len(values)}_{extent - shift}"
        values[key] = extent - shift
        return symbol(key) + shift

    types = [_symbolic(t, named) for t in case.types]
    try:
        found = case.op.infer(*types)
    except TypeInferenceError as error:
        assert any(part in str(error) for part in KNOWN_ONLY.split("|")), error
        return
    assert _agrees(found, case.op.infer(*case.types), values), f"{case.op} of {', '.join(map(str, types))}: {found}"


def test_shapes_of_a_network_are_said_in_its_symbols() -> None:
    x = b.var("x", shape=("n", 3, "h", "w"))
    stem = nn.conv2d(x, b.var("w", shape=(8, 3, 7, 7)), strides=2, padding=3)
    assert str(stem.type) == "Tensor[(n, 8, (h + 1)//2, (w + 1)//2), float32]"
    assert nn.conv2d(stem, b.var("w", shape=(8, 8, 3, 3)), padding=1).type == stem.type
    assert str(nn.batch_flatten(stem).type) == "Tensor[(n, 8*((h + 1)//2)*((w + 1)//2)), float32]"
    pooled = nn.max_pool2d(x, pool_size=2, strides=2)  # of one pixel there is one window
    assert str(pooled.type) == "Tensor[(n, 3, truncdiv(h - 2, 2) + 1, truncdiv(w - 2, 2) + 1), float32]"
    tokens = b.var("tokens", shape=("batch", "length", 64))
    heads = b.reshape(tokens, newshape=(0, 0, 8, 8))
    assert str(heads.type) == "Tensor[(batch, length, 8, 8), float32]"
    assert b.reshape(heads, newshape=(-1, 64)).type == TensorType((symbol("batch") * symbol("length"), 64))


def test_errors_name_both_sides() -> None:
    with pytest.raises(TypeInferenceError, match=r"inner dimensions differ: Tensor\[\(4, n\)"):
        nn.dense(b.var("x", shape=(4, "n")), b.var("w", TensorType((5, N + 1))))
    with pytest.raises(TypeInferenceError, match=r"'n' is no shape|\[3, 1.5\] is no shape"):
        b.var("x", shape=[3, 1.5])


@pytest.mark.parametrize(
    ("dim", "message"),
    [
        ("n//0", "divided by 0"),
        ("most(n, 2)", "most of 2 is not a dimension"),
        ("min(n)", "min of 1"),
        ("n +", "found"),
    ],
)
def test_text_that_is_no_dimension(dim: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_module(f"def @main(%x: Tensor[({dim}, 3), float32]) {{ %x }}")


def nested(depth: int) -> Dim:
    """Each made of the one before."""
    found: Dim = symbol("n")
    for i in range(depth):
        found = (found * symbol(f"m{i}") + 1) // (i + 2) + symbol(f"k{i}") * symbol("n")
    return found


def test_a_dimension_is_written_and_hashed_once() -> None:
    """What looks into all of it anew for each that is made of it takes quadratic time."""
    assert_linear(lambda depth: lambda: (str(nested(depth)), hash(nested(depth))), 6)
    made = pickle.loads(pickle.dumps(nested(4)))
    assert made == nested(4) and hash(made) == hash(nested(4))
    assert "_hash" not in vars(pickle.loads(pickle.dumps(nested(4)))), "a hash is of one process"


def test_graphs_are_compared_and_hashed_by_their_symbols() -> None:
    def of(dim: Any) -> Module:
        return Module.from_expr(nn.relu(b.var("x", shape=(dim, 3))))

    assert structural_equal(of("n"), of("n")) and structural_hash(of("n")) == structural_hash(of("n"))
    assert not structural_equal(of("n"), of("m")) and structural_hash(of("n")) != structural_hash(of("m"))
    assert structural_equal(of(None), of(None)) and not structural_equal(of(None), of("n"))
    assert structural_equal(parse_module(of("n").astext()), of("n"))
    verify(of(None))


def test_a_function_called_twice_has_two_results() -> None:
    p = b.var("p", shape=(None, 3))
    function = Function([p], b.argwhere(p))
    doubled = Function([q := b.var("q", shape=(None, 3))], b.concatenate([q, q]))
    x, y = b.var("x", shape=("n", 3)), b.var("y", shape=("m", 3))
    called = [b.Call(f, [v]) for f in (function, doubled) for v in (x, y)]
    first, second = (c.tensor_type.shape[0] for c in called[:2])
    assert first != second and is_anonymous(first)
    assert [c.tensor_type.shape for c in called[2:]] == [(2 * N, 3), (2 * M, 3)]
    assert accepts(p.type, x.type) and not accepts(x.type, y.type)
    with pytest.raises(TypeInferenceError, match=r"parameter %q is Tensor\[\(n, 3\).*the argument is Tensor\[\(m, 3\)"):
        b.Call(Function([b.var("q", shape=("n", 3))], x), [y])
    verify(Module.from_expr(b.Tuple(called)))


@pytest.mark.parametrize("numbers", [(), (3,), (2, 0), (4, 5, 1)])
def test_a_product_does_not_depend_on_order(numbers: tuple[int, ...]) -> None:
    dims: list[Dim] = [symbol("n"), *numbers, symbol("m") + 1]
    assert product(dims) == product(dims[::-1]) == (symbol("n") * symbol("m") + symbol("n")) * math.prod(numbers)
    assert product(numbers) == math.prod(numbers)
