"""Gradients of operators beside finite differences, on the calls that tests of operators draw: any shape, axis, layout,
stride and padding that they take.

    python tests/passes/gradient_cases.py --seeds 200            # every operator with a gradient, in float64
    python tests/passes/gradient_cases.py --seeds 3 --compiled   # compiled in float32, beside the interpreter
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from operator_cases import GENERATORS, Case, RandomDraw

from minitvm import relay
from minitvm.errors import PassError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Expr, Function, Var
from minitvm.ir.op import Op
from minitvm.ir.types import TupleType, type_of
from minitvm.passes.gradient import GRADIENTS, gradient
from minitvm.passes.gradient.rules import rule_of

STEP = 1e-6
DIRECTIONS = 2
MOST_OPERANDS = 4096

RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("log", "log2", "sqrt", "rsqrt", "power", "divide", "mod", "floor_mod", "cumprod"), (0.4, 2.2)),
    **dict.fromkeys(("asin", "acos", "atanh", "log1p", "prod"), (-0.9, 0.9)),
    "acosh": (1.2, 3.0),
    "floor_divide": (0.4, 2.2),
    "tan": (-1.3, 1.3),
    "nn.batch_norm": (0.3, 2.0),
}
"""Where an operator has a slope; elsewhere from -2 to 2."""


def with_gradient() -> list[str]:
    """Operators that have a gradient and a generator."""
    rule_of("add")
    return sorted(GRADIENTS.keys() & GENERATORS.keys())


class Drawn:
    """A call with floats of float64 that lie apart from each other, and what it is worth: its results times weights."""

    def __init__(self, made: Case, seed: int, dtype: str = "float64") -> None:
        self.rng, self.op, self.dtype = np.random.default_rng(seed), _in_one_dtype(made.op), dtype
        self.arrays: list[np.ndarray] = []
        self.params: list[Var] = []
        self.flowed = False
        self.call = Call(self.op, [self._expression(arg) for arg in made.args])
        self.loss = self._weighted()
        self.function = Function(self.params, self.loss)

    def _expression(self, arg: Any) -> Expr:
        if isinstance(arg, tuple):
            return relay.Tuple([self._expression(one) for one in arg])
        if arg.dtype.kind == "f":
            arg = self._floats(arg.shape)
        self.arrays.append(arg)
        self.params.append(Var(f"x{len(self.params)}", type_of(arg)))
        return self.params[-1]

    def _floats(self, shape: Sequence[int]) -> np.ndarray:
        """Apart from each other by more than a step, so that no order changes."""
        low, high = RANGES.get(self.op.name, (-2.0, 2.0))
        count = int(np.prod(shape))
        places = self.rng.permutation(count) + self.rng.uniform(0.3, 0.7, count)
        return np.asarray((low + places / max(count, 1) * (high - low)).reshape(shape), self.dtype)

    @property
    def results(self) -> list[Expr]:
        return list(self.call) if isinstance(self.call.type, TupleType) else [self.call]

    def _weighted(self) -> Expr:
        total: Expr = relay.const(0.0, self.dtype)
        for part in self.results:
            if part.dtype == self.dtype:
                total = total + relay.sum(part * self._weights(part.shape, part.dtype))
        return total

    def _weights(self, shape: Sequence[int], dtype: str) -> Expr:
        return relay.const(self.rng.uniform(-1, 1, shape).astype(dtype))

    @property
    def floats(self) -> list[int]:
        return [n for n, array in enumerate(self.arrays) if array.dtype.kind == "f"]

    def mistake(self) -> str | None:
        """What is wrong, by derivatives along random directions; ``None`` where they agree."""
        worth, slopes = evaluate(gradient(self.function), *self.arrays)
        self.flowed = any(slopes[n].any() for n in self.floats)
        for _ in range(DIRECTIONS):
            step = [self.rng.uniform(-1, 1, a.shape) if a.dtype.kind == "f" else np.zeros_like(a) for a in self.arrays]
            ahead, behind = self._worth(step, STEP), self._worth(step, -STEP)
            found = sum(float(np.sum(slopes[n] * step[n])) for n in self.floats)
            scale = sum(float(np.sum(np.abs(slopes[n] * step[n]))) for n in self.floats)
            expected = (ahead - behind) / (2 * STEP)
            if abs(found - expected) > 1e-6 * scale + 1e-7 * (1 + abs(worth)):
                return f"{found} where differences say {expected}"
        return None

    def _worth(self, direction: Sequence[np.ndarray], by: float) -> float:
        moved = [a if a.dtype.kind != "f" else a + by * d for a, d in zip(self.arrays, direction, strict=True)]
        return float(evaluate(self.function, *moved))

    def compiled_mistake(self) -> str | None:
        """What differs between the compiled gradient and the interpreter's."""
        function = gradient(self.function)
        worth, slopes = evaluate(function, *self.arrays)
        library = relay.build(function, "llvm")
        results = library.run({p.name: a for p, a in zip(function.params, self.arrays, strict=True)})
        for n, (expected, found) in enumerate(zip((worth, *slopes), results, strict=True)):
            size = np.abs(expected).max(initial=0) if expected.dtype.kind == "f" else 0
            if not np.allclose(found, expected, rtol=2e-4, atol=2e-5 * size, equal_nan=True):
                return f"result {n} differs by {np.abs(found - expected).max()}"
        return None


def _in_one_dtype(op: Op) -> Op:
    """An operator whose result has its operands' dtype."""
    known = op.attributes()
    return op.with_attributes(out_dtype="") if known.get("out_dtype") else op


def drawn(name: str, seed: int, dtype: str = "float64") -> Drawn | None:
    """The call that a seed makes; ``None`` where it has no floats, or too many elements."""
    case = GENERATORS[name](name, RandomDraw(seed), dtype)
    try:
        case.op.typed(*case.types)
    except Exception:
        return None
    leaves = [a for arg in case.args for a in (arg if isinstance(arg, tuple) else (arg,))]
    if not any(a.dtype.kind == "f" and a.size for a in leaves) or sum(a.size for a in leaves) > MOST_OPERANDS:
        return None
    found = Drawn(case, seed, dtype)
    return found if np.isfinite(evaluate(found.function, *found.arrays)) else None


def told(check: Callable[[Drawn], str | None], made: Drawn) -> str | None:
    """What a check says, or what it raises; nothing where the attributes have no gradient."""
    try:
        return check(made)
    except PassError as error:
        return None if "has no gradient" in str(error) else f"PassError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def mistakes(
    names: Sequence[str], seeds: int, check: Callable[[Drawn], str | None], dtype: str = "float64"
) -> list[str]:
    """What is wrong, a line each."""
    found = []
    for name in names:
        checked = 0
        for seed in range(seeds):
            made = drawn(name, seed, dtype)
            if made is not None:
                checked += 1
                wrong = told(check, made)
                if wrong is not None:
                    found.append(f"{name}, seed {seed}: {wrong}: {made.call}")
        print(f"{name:24} {checked} calls", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="operators; all that have a gradient")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args()
    check, dtype = (Drawn.compiled_mistake, "float32") if given.compiled else (Drawn.mistake, "float64")
    found = mistakes(given.names or with_gradient(), given.seeds, check, dtype)
    print(*found, sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
