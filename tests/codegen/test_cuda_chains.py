"""Chains of elementwise operators, fused: interpreter, LLVM and CUDA C give the same bits (a NaN is a NaN), as every
operator rounds to its dtype whether or not its result goes through memory.

Only of operators that IEEE 754 or the table in docs/loop-ir.md gives one result; functions have bounds of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from cuda_kernels import MACHINE
from native_kernel import run_native
from test_cuda_numbers import BACKEND, Compiled

from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op, const, function, var
from minitvm.ir.dtypes import STORED
from minitvm.ir.expr import Expr, Function
from minitvm.ir.loop.interp import run_kernel
from tests.compilers import needs_compiler

pytestmark = needs_compiler

CHAINS, STEPS, ELEMENTS = 6, 9, 331
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, 300.0, -300.0, 65504.0, 1e-7, 6e-8, -3e-5, 1e30, 1e-40, np.inf, -np.inf]

Step = Callable[[Expr, Expr], Expr]


def by(name: str, operands: int) -> Step:
    return lambda a, b: call_op(name, *(a, b)[:operands])


def unsigned_zero(name: str) -> Step:
    """The sign of a zero is either: it is lost before anything can tell."""
    return lambda a, b: call_op("abs", call_op(name, a, b)) + b


def chosen(name: str) -> Step:
    return lambda a, b: call_op("where", call_op(name, a, b), a, b)


def through(dtype: str) -> Step:
    """Not held within what the dtype holds, which is by ``min`` and ``max``."""
    return lambda a, b: call_op("cast", call_op("cast", a, dtype=dtype, saturate=False), dtype=a.checked_type.dtype)


def asked(name: str) -> Step:
    return lambda a, b: call_op("where", call_op(name, a), b, a)


def scalar(value: float, like: Expr) -> Expr:
    return const(np.asarray(value, like.checked_type.dtype))


ANY = [by(name, 2) for name in ("add", "subtract", "multiply", "divide", "floor_divide", "floor_mod", "mod")]
ANY += [chosen(name) for name in ("less", "greater_equal", "equal")]
ANY += [by("negative", 1), by("abs", 1), by("sign", 1), through("bool")]
FLOATS = [*ANY, *(by(name, 1) for name in ("floor", "ceil", "round", "trunc", "rsqrt"))]
FLOATS += [lambda a, b: call_op("sqrt", call_op("abs", a)), lambda a, b: a * b + b, lambda a, b: a * scalar(3.3, a) - b]
FLOATS += [asked("isinf"), asked("isnan"), asked("isfinite"), unsigned_zero("maximum"), unsigned_zero("minimum")]
FLOATS += [through(dtype) for dtype in ("float16", "bfloat16", "float32", "int32", "int8", "float8_e5m2")]
INTEGERS = [*ANY, by("maximum", 2), by("minimum", 2), through("float16"), through("float32"), through("int8")]
INTEGERS += [by(name, 2) for name in ("bitwise_and", "bitwise_xor", "left_shift", "right_shift")]


def chain(rng: np.random.Generator, dtype: str) -> Function:
    """Of steps over two inputs and what the steps before gave; a dtype that is only stored is cast after each."""
    params = [var(f"p{i}", shape=(ELEMENTS,), dtype=dtype) for i in range(2)]
    wide = STORED.get(dtype, dtype)
    steps = FLOATS if "float" in dtype else INTEGERS
    known: list[Expr] = [call_op("cast", p, dtype=wide) if wide != dtype else p for p in params]
    for _ in range(STEPS):
        a, b = (known[i] for i in rng.integers(max(0, len(known) - 3), len(known), 2))
        found = as_dtype(steps[rng.integers(len(steps))](a, b), wide)
        known.append(through(dtype)(found, found) if wide != dtype else found)
    return function(known[-1], params)


def as_dtype(value: Expr, dtype: str) -> Expr:
    return value if value.checked_type.dtype == dtype else call_op("cast", value, dtype=dtype)


def drawn(rng: np.random.Generator, dtype: str) -> np.ndarray:
    if "float" not in dtype:
        info = np.iinfo(dtype)
        ends = [info.min, info.min + 1, info.max, 0, 1, 2, 7]
        return np.concatenate([rng.choice(ends, 99), rng.integers(info.min, info.max, ELEMENTS - 99)]).astype(dtype)
    small = rng.normal(size=ELEMENTS - 132) * rng.choice([1e-3, 1, 30, 1e4], ELEMENTS - 132)
    with np.errstate(over="ignore"):
        return np.concatenate([rng.choice([*SPECIAL, np.nan], 132), small]).astype(dtype)


def bits(array: np.ndarray) -> np.ndarray:
    """What is compared: of NaN only that it is one."""
    wide = array.astype("float32") if array.dtype.name in STORED else array
    return np.where(wide != wide, 1, 0) if wide.dtype.kind == "f" and np.isnan(wide).all() else _canonical(wide)


def _canonical(array: np.ndarray) -> np.ndarray:
    found = array.copy()
    if found.dtype.kind == "f":
        found[np.isnan(found)] = np.nan
    return found.view(f"uint{8 * found.dtype.itemsize}")


def cases(dtype: str, count: int = CHAINS, seed: int = 0) -> Iterator[tuple[Function, list[np.ndarray]]]:
    rng = np.random.default_rng([seed, *dtype.encode()])
    for _ in range(count):
        yield chain(rng, dtype), [drawn(rng, dtype) for _ in range(2)]


def test_one_meaning_of_a_dtype_on_all_targets() -> None:
    found = [(dtype, *case) for dtype in DTYPES for case in cases(dtype)]
    assert not list(different(found))


def different(found: list[tuple[str, Function, list[np.ndarray]]]) -> Iterator[str]:
    """What is not the same."""
    kernels = [simplify(BACKEND.lower(chained, "kernel").kernel) for _, chained, _ in found]
    compiled = Compiled(kernels)
    for number, (dtype, chained, arrays) in enumerate(found):
        cpu = simplify(lower(chained, "kernel", MACHINE))
        (want,) = run_kernel(cpu, *arrays)
        results = {
            "its threads in the interpreter": run_kernel(kernels[number], *arrays)[0],
            "LLVM": run_native(legalize(cpu, SPELLINGS), *arrays)[0],
            "CUDA C": compiled.run(number, arrays, "forward")[0],
        }
        for target, have in results.items():
            wrong = bits(have) != bits(want)
            given = [a[wrong][:3] for a in arrays]
            if wrong.any():
                yield f"{target}, {dtype}: {have[wrong][:3]}, not {want[wrong][:3]}, of {given}\n{chained}"


def test_what_is_too_large_for_float16_is_infinite_within_a_kernel() -> None:
    """`isinf(x * x)` of 300 was false: the product was compared as a float."""
    x = var("x", shape=(8,), dtype="float16")
    compiled = Compiled([simplify(BACKEND.lower(function(call_op("isinf", x * x), [x]), "kernel").kernel)])
    (found,) = compiled.run(0, [np.full(8, 300, "float16")], "forward")
    assert found.all()
