"""The interpreter defines the loop IR: every operator and dtype against numpy, memory rules, lanes, every error."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    BINARY_OPS,
    DOT_OPERANDS,
    INTRINSICS,
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Cast,
    Const,
    For,
    If,
    Kernel,
    LoopExpr,
    LoopKind,
    LoopVar,
    Stmt,
    Store,
    binary,
    const,
    intrin,
    loop,
    nest,
    select,
    seq,
    walk_exprs,
)
from minitvm.ir.loop.interp import run_kernel, run_sequence

SIDE_BY_SIDE = sorted(set(LoopKind) - {LoopKind.SERIAL, LoopKind.UNROLLED}, key=lambda k: k.value)
EVERY_KIND = [LoopKind.SERIAL, LoopKind.UNROLLED, *SIDE_BY_SIDE]


def elementwise(value: Callable[..., LoopExpr], *arrays: np.ndarray, kind: LoopKind = LoopKind.SERIAL) -> np.ndarray:
    """``value`` of the elements of vectors, in a loop of some kind."""
    inputs = [Buffer(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
    dtype = value(*(b[0] for b in inputs)).dtype
    out = Buffer("out", arrays[0].shape, dtype)
    body = loop(arrays[0].size, lambda i: Store(out, (i,), value(*(b[i] for b in inputs))), kind)
    (result,) = run_kernel(Kernel("k", (*inputs, out), body), *arrays)
    return result


def error_of(kernel: Kernel, *arrays: np.ndarray, **options: bool) -> str:
    with pytest.raises(CompilerError) as error:
        run_kernel(kernel, *arrays, **options)
    return str(error.value)


# --- operators ------------------------------------------------------------------------------------------------

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Ordinary values, extremes, and zero as a divisor."""
    if dtype == "bool":
        return np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    if dtype in FLOATS:
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 7.25]
        pairs = np.array([(a, b) for a in special for b in special], dtype)
        return pairs[:, 0].copy(), pairs[:, 1].copy()
    info = np.iinfo(dtype)
    values = [info.min, info.max, 0, 1, 2, 7, 100] + ([-1, -7, -100] if info.min else [])
    pairs = np.array([(a, b) for a in values for b in values], dtype)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def exact(op: str, a: int, b: int) -> int:
    """Integer arithmetic as it is written, before it wraps around; division by zero divides by one."""
    b = 1 if b == 0 and op in ("div", "mod", "floordiv", "floormod") else b
    truncated = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    table: dict[str, Callable[[], int]] = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "div": lambda: truncated,
        "mod": lambda: a - b * truncated,
        "floordiv": lambda: a // b,
        "floormod": lambda: a % b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "larger": lambda: max(a, b),
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "eq": lambda: a == b,
        "ne": lambda: a != b,
        "lt": lambda: a < b,
        "le": lambda: a <= b,
    }
    return int(table[op]())


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", sorted(BINARY_OPS - {"pow", "shl", "shr"}))
def test_integers(op: str, dtype: str) -> None:
    a, b = operands(dtype)
    bits = 8 * a.dtype.itemsize
    result = elementwise(lambda x, y: binary(op, x, y), a, b)
    for x, y, have in zip(a.tolist(), b.tolist(), result.tolist(), strict=True):
        assert (int(have) - exact(op, x, y)) % (1 << bits) == 0, (x, y, have)


@pytest.mark.parametrize("dtype", INTS)
def test_integer_powers_wrap_and_negative_exponents_truncate(dtype: str) -> None:
    a, b = np.array([0, 3, 7, 2, 5, 1], dtype), np.array([0, 2, 1, 6, 3, 9], dtype)
    wrapped = [pow(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    result = elementwise(lambda x, y: binary("pow", x, y), a, b)
    bits = 8 * a.dtype.itemsize
    assert [int(r) % (1 << bits) for r in result] == [w % (1 << bits) for w in wrapped]
    if dtype.startswith("int"):
        assert elementwise(lambda x, y: binary("pow", x, y), a, np.full(6, -1, dtype)).tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("dtype", INTS)
def test_shifts(dtype: str) -> None:
    a, b = np.array([1, 5, 100, 3], dtype), np.array([0, 3, 2, 6], dtype)
    bits = 8 * a.dtype.itemsize
    left = elementwise(lambda x, y: binary("shl", x, y), a, b)
    assert [int(v) % (1 << bits) for v in left] == [(int(x) << int(y)) % (1 << bits) for x, y in zip(a, b, strict=True)]
    negative = np.array([-8, 9, -1, 64], "int64").astype(dtype)
    right = elementwise(lambda x, y: binary("shr", x, y), negative, b)
    assert right.tolist() == [int(x) >> int(y) for x, y in zip(negative, b, strict=True)]


NUMPY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "mod": np.fmod, "pow": np.power,
    "floordiv": lambda a, b: np.floor(a / b), "floormod": np.mod, "min": np.minimum, "max": np.maximum,
    "larger": lambda a, b: np.where(a < b, b, a),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", sorted(NUMPY))
def test_floats(op: str, dtype: str) -> None:
    a, b = operands(dtype)
    with np.errstate(all="ignore"):
        expected = NUMPY[op](a, b)
    result = elementwise(lambda x, y: binary(op, x, y), a, b)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


TRUTH = {
    "and": [0, 0, 0, 1], "or": [0, 1, 1, 1], "xor": [0, 1, 1, 0], "add": [0, 1, 1, 1], "mul": [0, 0, 0, 1],
    "larger": [0, 1, 1, 1], "max": [0, 1, 1, 1], "min": [0, 0, 0, 1],
    "eq": [1, 0, 0, 1], "lt": [0, 1, 0, 0], "le": [1, 1, 0, 1],
}  # fmt: skip


@pytest.mark.parametrize(("op", "table"), TRUTH.items())
def test_truth_values(op: str, table: list[int]) -> None:
    result = elementwise(lambda x, y: binary(op, x, y), *operands("bool"))
    assert result.dtype == bool and result.astype(int).tolist() == table


def test_index_arithmetic_wraps_around_as_data() -> None:
    out = Buffer("out", (), "int64")
    value = binary("mul", Binary("add", Const(2**62), Const(2**62)), Const(3))
    (result,) = run_kernel(Kernel("k", (out,), Store(out, (), value)))
    assert result == -(2**63)  # 3 * 2**63 in 64 bits


MATH = {n: getattr(math, n) for n in ["exp", "log", "log2", "log1p", "expm1", "tanh", "erf", "sin", "cos", "tan"]} | {
    n: getattr(math, n) for n in ["asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sqrt"]
}
MATH |= {
    "neg": lambda x: -x,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,  # half to even
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}
DOMAIN = {"log": (0.1, 9), "log2": (0.1, 9), "log1p": (-0.9, 9), "asin": (-1, 1), "acos": (-1, 1), "sqrt": (0, 9)} | {
    "acosh": (1, 9), "atanh": (-0.9, 0.9), "rsqrt": (0.1, 9)
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", sorted(MATH))
def test_functions(name: str, dtype: str) -> None:
    low, high = DOMAIN.get(name, (-4, 4))
    x = np.random.default_rng(5).uniform(low, high, 33).astype(dtype)
    result = elementwise(lambda v: intrin(name, v), x)
    expected = np.array([MATH[name](float(v)) for v in x])
    assert result.dtype == x.dtype
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(result.astype("float64"), expected, rtol=4 * eps, atol=4 * eps)


def test_every_function_is_tested() -> None:
    assert set(INTRINSICS) - set(MATH) == {
        "not",
        "unlikely",
        "same_memory",
        "isnan",
        "isinf",
        "fma",
        "ldexp",
        *DOT_OPERANDS,
        "bitcast_int",
        "bitcast_float",
    }


def test_halves_are_rounded_to_even() -> None:
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], "float32")
    assert elementwise(lambda v: intrin("round", v), halves).tolist() == [-2, -2, 0, 0, 2, 2]


def test_tests_of_floats() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0, 3], "float32")
    assert elementwise(lambda v: intrin("isnan", v), x).tolist() == [True, False, False, False, False]
    assert elementwise(lambda v: intrin("isinf", v), x).tolist() == [False, True, True, False, False]


def test_not() -> None:
    assert elementwise(lambda v: intrin("not", v), np.array([True, False])).tolist() == [False, True]
    assert elementwise(lambda v: intrin("not", v), np.array([0, 5], "uint8")).tolist() == [255, 250]


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("dot4", [1000 - 255 * 128 + 2 - 128, 4 * 255 * 127 - 1 - 2**31]),
        ("sdot4", [1000 + 128 + 2 + 128, 2**31 - 1 - 4 * 127]),
        ("udot4", [1000 + 255 * 128 + 2 + 128 * 255, 4 * 255 * 127 - 1 - 2**31]),
    ],
)
def test_bytes_of_words_are_multiplied(name: str, sums: list[int]) -> None:
    a, b = np.array([[255, 1, 0, 128], [255] * 4], "uint8"), np.array([[-128, 2, 7, -1], [127] * 4], "int8")
    total = np.array([1000, 2**31 - 1], "int32")
    found = elementwise(lambda x, y, z: intrin(name, x, y, z), a.view("<i4")[:, 0], b.view("<i4")[:, 0], total)
    assert found.tolist() == sums


def test_pairs_in_words_are_multiplied() -> None:
    a, b = np.array([[-32768] * 2, [-255, 3]], "int16"), np.array([[-32768] * 2, [255, -7]], "int16")
    total = np.array([5, 1000], "int32")
    found = elementwise(lambda x, y, z: intrin("dot2", x, y, z), a.view("<i4")[:, 0], b.view("<i4")[:, 0], total)
    assert found.tolist() == [5 - 2**31, 1000 - 255 * 255 - 21]


def test_fma_rounds_once() -> None:
    a, b = np.array([1 + 2**-12], "float32"), np.array([1 - 2**-12], "float32")
    c = np.array([-1], "float32")
    assert elementwise(lambda x, y, z: intrin("fma", x, y, z), a, b, c)[0] == np.float32(-(2.0**-24))


@pytest.mark.parametrize("dtype", FLOATS)
def test_bits(dtype: str) -> None:
    x = np.array([0.0, -0.0, 1.5, np.inf, -3.25], dtype)
    bits = elementwise(lambda v: intrin("bitcast_int", v), x)
    assert bits.dtype == np.dtype(f"int{8 * x.itemsize}")
    np.testing.assert_array_equal(bits, x.view(bits.dtype))
    np.testing.assert_array_equal(elementwise(lambda v: intrin("bitcast_float", v), bits).view(bits.dtype), bits)


@pytest.mark.parametrize("to", ["bool", *INTS, *FLOATS])
def test_casts(to: str) -> None:
    x = np.array([0.0, 1.0, 2.75, 100.5], "float32")
    result = elementwise(lambda v: Cast(v, to), x)
    assert result.dtype == np.dtype(to)
    np.testing.assert_array_equal(result, x.astype(to))
    if to.startswith("int"):
        assert elementwise(lambda v: Cast(v, to), np.array([-2.75], "float32")).tolist() == [-2]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind_of_loop_runs_all_iterations(kind: LoopKind) -> None:
    x = np.random.default_rng(1).normal(size=37).astype("float32")
    np.testing.assert_array_equal(elementwise(lambda v: v * v - v, x, kind=kind), x * x - x)


def test_expressions_deeper_than_python_s_stack() -> None:
    x = np.random.default_rng(8).uniform(0.5, 1.5, 5).astype("float64")

    def value(v: LoopExpr) -> LoopExpr:
        total = v
        for _ in range(400):
            total = total * const(0.5, "float64") + v
        return total

    expected = x
    for _ in range(400):
        expected = expected * 0.5 + x
    np.testing.assert_array_equal(run_kernel(_deep(value), x)[0], expected)


def _deep(value: Callable[[LoopExpr], LoopExpr]) -> Kernel:
    x, out = Buffer("x", (5,), "float64"), Buffer("out", (5,), "float64")
    expr = value(x[LoopVar("i")])
    var = next(e for e in walk_exprs(expr) if isinstance(e, LoopVar))
    return Kernel("k", (x, out), For(var, Const(5), Store(out, (var,), expr)))


# --- lanes ----------------------------------------------------------------------------------------------------


def test_loops_side_by_side_within_each_other() -> None:
    out = Buffer("out", (3, 4, 5), "int64")

    def body(*index: LoopExpr) -> Stmt:
        return Store(out, index, index[0] * 100 + index[1] * 10 + index[2])

    inner = [LoopVar(n) for n in "ijk"]
    stmt: Stmt = body(*inner)
    for var, extent, kind in zip(
        reversed(inner), (5, 4, 3), (LoopKind.VECTORIZED, LoopKind.SERIAL, LoopKind.PARALLEL), strict=True
    ):
        stmt = loop(extent, lambda v, var=var, s=stmt: _renamed(s, var, v), kind)  # type: ignore[misc]
    (result,) = run_kernel(Kernel("k", (out,), stmt), check_races=True)
    i, j, k = np.indices((3, 4, 5))
    np.testing.assert_array_equal(result, i * 100 + j * 10 + k)


def _renamed(stmt: Stmt, old: LoopVar, new: LoopVar) -> Stmt:
    from minitvm.codegen.loops import bind_vars

    return bind_vars(stmt, {old: new})


def test_statements_of_lanes_run_in_step() -> None:
    """Every lane's first store comes before any lane's second statement."""
    t, out = Buffer("t", (8,), "int64", "local"), Buffer("out", (8,), "int64")
    body = loop(8, lambda k: seq(Store(t, (k,), k * k), Store(out, (k,), t[Const(7) - k])), LoopKind.VECTORIZED)
    assert run_kernel(Kernel("k", (out,), Alloc(t, body)))[0].tolist() == [(7 - k) ** 2 for k in range(8)]


@pytest.mark.parametrize("scope", ["local", "shared"])
def test_memory_inside_a_loop_belongs_to_its_iteration(scope: str) -> None:
    t, out = Buffer("t", (2,), "int64", scope), Buffer("out", (5,), "int64")

    def body(i: LoopExpr) -> Stmt:
        return Alloc(t, seq(Store(t, (i % 2,), i * 3), Barrier(), Store(out, (i,), t[i % 2] + 1)))

    kernel = Kernel("k", (out,), loop(5, body, LoopKind.PARALLEL))
    assert run_kernel(kernel, check_races=True)[0].tolist() == [1, 4, 7, 10, 13]


def test_memory_outside_of_a_loop_is_shared_by_its_lanes() -> None:
    t, out = Buffer("t", (8,), "int64", "shared"), Buffer("out", (3, 8), "int64")

    def block(i: LoopExpr) -> Stmt:
        fill = loop(8, lambda k: Store(t, (k,), i * 10 + k), LoopKind.THREAD_X)
        turn = loop(8, lambda k: Store(out, (i, k), t[(k + 1) % 8]), LoopKind.THREAD_X)
        return Alloc(t, seq(fill, Barrier(), turn))

    (result,) = run_kernel(Kernel("k", (out,), loop(3, block, LoopKind.BLOCK_X)))
    np.testing.assert_array_equal(result, np.arange(3)[:, None] * 10 + (np.arange(8) + 1) % 8)


def test_extents_that_differ_by_lane() -> None:
    out = Buffer("out", (6,), "int64")

    def body(i: LoopExpr) -> Stmt:
        return seq(Store(out, (i,), Const(0)), loop(i, lambda s: Store(out, (i,), out[i] + s), name="s"))

    assert run_kernel(Kernel("k", (out,), loop(6, body, LoopKind.VECTORIZED)))[0].tolist() == [0, 0, 1, 3, 6, 10]


def test_branches_split_the_lanes() -> None:
    out = Buffer("out", (6,), "int64")

    def body(i: LoopExpr) -> Stmt:
        return If(
            (i % 2).equal(0), Store(out, (i,), i), If(i < 4, Store(out, (i,), Const(-1)), Store(out, (i,), i * 9))
        )

    for kind in (LoopKind.SERIAL, LoopKind.PARALLEL):
        assert run_kernel(Kernel("k", (out,), loop(6, body, kind)))[0].tolist() == [0, -1, 2, -1, 4, 45]


@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.VECTORIZED])
def test_only_the_chosen_side_of_a_select_is_loaded(kind: LoopKind) -> None:
    x, out = Buffer("x", (4,), "float32"), Buffer("out", (6,), "float32")
    body = loop(6, lambda i: Store(out, (i,), select((i >= 1) & (i < 5), x[i - 1], const(-1, "float32"))), kind)
    assert run_kernel(Kernel("k", (x, out), body), np.arange(4, dtype="float32"))[0].tolist() == [-1, 0, 1, 2, 3, -1]


def test_more_lanes_than_run_at_once() -> None:
    out = Buffer("out", (600, 700), "int64")
    kernel = Kernel("k", (out,), nest((600, 700), lambda i, j: Store(out, (i, j), i - j), LoopKind.PARALLEL))
    np.testing.assert_array_equal(run_kernel(kernel)[0], np.arange(600)[:, None] - np.arange(700))


def test_gather_reads_where_the_data_says() -> None:
    x, at, out = Buffer("x", (5,), "float32"), Buffer("at", (4,), "int64"), Buffer("out", (4,), "float32")
    body = loop(4, lambda i: Store(out, (i,), x[at[i]]), LoopKind.PARALLEL)
    values = np.array([1, 2, 3, 4, 5], "float32")
    indices = np.array([4, 0, 0, 2], "int64")
    assert run_kernel(Kernel("k", (x, at, out), body), values, indices)[0].tolist() == [5, 1, 1, 3]


def test_kernels_in_sequence_share_buffers() -> None:
    x, t, out = (Buffer(n, (4,), "float32") for n in ("x", "t", "out"))
    first = Kernel("a", (x, t), loop(4, lambda i: Store(t, (i,), x[i] + x[i])))
    second = Kernel("b", (t, x, out), loop(4, lambda i: Store(out, (i,), t[i] * x[i])))
    arrays = run_sequence([first, second], {x: np.array([1, 2, 3, 4], "float32")})
    assert arrays[out].tolist() == [2, 8, 18, 32]


# --- errors ---------------------------------------------------------------------------------------------------

X, Y = Buffer("x", (4,), "float32"), Buffer("y", (4,), "float32")
GIVEN = np.array([3, 1, 4, 1], "float32")


def test_wrong_number_of_arrays() -> None:
    assert error_of(Kernel("k", (X, Y), seq())) == "k takes 1 arrays, 0 given"


@pytest.mark.parametrize(
    ("array", "text"), [(np.zeros(4), "float64[4]"), (np.zeros((2, 2), "float32"), "float32[2, 2]")]
)
def test_wrong_array(array: np.ndarray, text: str) -> None:
    assert error_of(Kernel("k", (X, Y), seq()), array) == f"x is float32[4], given {text}"


@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.PARALLEL])
def test_index_outside(kind: LoopKind) -> None:
    kernel = Kernel("k", (X, Y), loop(4, lambda i: Store(Y, (i,), X[i + 1]), kind))
    assert error_of(kernel, GIVEN) == (
        "k reaches outside of x: index 4 in dimension 0 of extent 4\n  | index (4) where i=3"
    )
    before = Kernel("k", (X, Y), loop(4, lambda i: Store(Y, (i - 2,), X[i]), kind))
    assert error_of(before, GIVEN) == (
        "k reaches outside of y: index -2 in dimension 0 of extent 4\n  | index (-2) where i=0"
    )


def test_index_outside_without_loops() -> None:
    assert error_of(Kernel("k", (X, Y), Store(Y, (Const(9),), X[0])), GIVEN) == (
        "k reaches outside of y: index 9 in dimension 0 of extent 4\n  | index (9) where no loop"
    )


@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.VECTORIZED])
def test_read_before_write(kind: LoopKind) -> None:
    t = Buffer("t", (4,), "float32", "local")
    body = seq(loop(3, lambda i: Store(t, (i,), X[i]), kind), loop(4, lambda j: Store(Y, (j,), t[j]), kind, name="j"))
    assert error_of(Kernel("k", (X, Y), Alloc(t, body)), GIVEN) == (
        "k reads t before it is written\n  | index (3) where j=3"
    )


def test_memory_does_not_survive_its_alloc() -> None:
    t = Buffer("t", (), "float32", "local")
    first = If(LoopVar("i").equal(0), Store(t, (), X[0]))
    var = first.condition.lhs  # type: ignore[attr-defined]

    def body(i: LoopExpr) -> Stmt:
        return Alloc(t, seq(_renamed(first, var, i), Store(Y, (i,), t[()])))  # type: ignore[arg-type]

    assert error_of(Kernel("k", (X, Y), loop(4, body)), GIVEN) == (
        "k reads t before it is written\n  | index () where i=1"
    )


def test_unknown_memory() -> None:
    t = Buffer("t", (4,), "float32")
    assert error_of(Kernel("k", (X, Y), Store(Y, (Const(0),), t[0])), GIVEN) == (
        "k uses t, which is neither a parameter nor allocated"
    )


def test_result_that_is_not_stored() -> None:
    kernel = Kernel("k", (X, Y), loop(2, lambda i: Store(Y, (i * 2,), X[i])))
    assert error_of(kernel, GIVEN) == "k never stores y[1]"


def test_races() -> None:
    kernel = Kernel("k", (X, Y), loop(8, lambda i: Store(Y, (i % 4,), X[i % 4]), LoopKind.PARALLEL))
    assert error_of(kernel, GIVEN, check_races=True) == "k: two iterations store to the same element of y"
    np.testing.assert_array_equal(run_kernel(kernel, GIVEN)[0], GIVEN)
    one_place = Kernel("k", (X, Y), loop(4, lambda i: Store(Y, (Const(2),), X[i]), LoopKind.PARALLEL))
    assert error_of(one_place, GIVEN, check_races=True) == "k: two iterations store to the same element of y"


def test_private_memory_is_no_race() -> None:
    t = Buffer("t", (), "float32", "local")
    body = loop(4, lambda i: Alloc(t, seq(Store(t, (), X[i]), Store(Y, (i,), t[()]))), LoopKind.PARALLEL)
    np.testing.assert_array_equal(run_kernel(Kernel("k", (X, Y), body), GIVEN, check_races=True)[0], GIVEN)
