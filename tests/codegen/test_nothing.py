"""Every operator with dimensions of 0 and of 1: the right result of nothing, or an error that is minitvm's own.

A dimension of a sample row is a size; all dimensions of that size become 0 (or 1), and each of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from op_samples import Sample
from test_lower import as_function
from test_ops import SAMPLES, WITHOUT_COMPUTE

from minitvm.codegen.backend import backend_of
from minitvm.codegen.coverage import check_coverage
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.lower import lower
from minitvm.codegen.problem import TEMPLATES
from minitvm.codegen.simplify import simplify
from minitvm.errors import MiniTVMError
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.ir.types import TupleType, Type, type_of
from minitvm.target import MachineModel, Target

PARTS = 4
LONG = settings.get_current_profile_name() == "long"
MOST = None if LONG else 2
HELD_BY_PYTHON = {"nn.rnn"}
"""Of recurrent layers without a state no template has loops, and compute rules have none at all."""
MACHINE = MachineModel(vector_bytes=32, vector_registers=16, threads=2)


def leaves(args: Any) -> Iterator[np.ndarray]:
    for one in args if isinstance(args, tuple) else (args,):
        yield from leaves(one) if isinstance(one, tuple) else (one,)


def resized(value: Any, change: Any, at: Iterator[int]) -> Any:
    """An argument with dimensions that ``change`` chooses."""
    if isinstance(value, tuple):
        return tuple(resized(v, change, at) for v in value)
    number = next(at)
    shape = tuple(change(number, axis, size) for axis, size in enumerate(value.shape))
    return np.resize(value, shape) if value.size and 0 not in shape else np.zeros(shape, value.dtype)


def variants(sample: Sample, to: int) -> list[Sample]:
    """Those whose types the operator takes."""
    arrays = [*leaves(sample.args)]
    sizes = sorted({size for a in arrays for size in a.shape} - {to})
    changes = [lambda n, a, s, size=size: to if s == size else s for size in sizes]
    places = [(n, a) for n, array in enumerate(arrays) for a in range(array.ndim)]
    changes += [lambda n, a, s, place=place: to if (n, a) == place else s for place in places]
    found = {}
    for change in changes:
        given = Sample(sample.op, resized(sample.args, change, iter(range(len(arrays)))))
        if is_typed(given):
            found[tuple(a.shape for a in leaves(given.args))] = given
    return list(found.values())


def types_of(args: Any) -> list[Type]:
    return [TupleType(tuple(types_of(a))) if isinstance(a, tuple) else type_of(a) for a in args]


def is_typed(sample: Sample) -> bool:
    try:
        sample.op.typed(*types_of(sample.args))
    except MiniTVMError:
        return False
    return True


def expected(sample: Sample) -> tuple[np.ndarray, ...] | None:
    """``None`` where numpy has no answer: the largest of nothing."""
    try:
        with np.errstate(all="ignore"):
            found = sample.op.reference(*sample.args)
    except ValueError as error:
        if "zero-size array to reduction" in str(error):
            return None
        raise
    except MiniTVMError:  # an index that is outside
        return None
    return found if isinstance(found, tuple) else (found,)


def compared(kernel: Kernel, arrays: list[np.ndarray], wanted: tuple[np.ndarray, ...] | None) -> None:
    """The kernel is sound and the interpreter has the right results of it."""
    verify_kernel(kernel)
    check_coverage(kernel)
    found = run_kernel(kernel, *(a.reshape(p.shape) for a, p in zip(arrays, kernel.inputs, strict=True)))
    for have, want in zip(found, wanted or found, strict=True):
        assert have.size == want.size
        rtol = 2e-3 if have.dtype == "float16" else 1e-4
        np.testing.assert_allclose(have.reshape(want.shape), want, rtol=rtol, atol=rtol)


def has_kernels(op: Op, kind: str) -> bool:
    return op.name not in WITHOUT_COMPUTE or bool(TEMPLATES.find(kind, op))


def check(sample: Sample) -> None:
    function, arrays = as_function(sample)
    wanted = expected(sample)
    if has_kernels(sample.op, "llvm"):
        kernel = simplify(lower(function, "nothing", MACHINE))
        compared(kernel, arrays, wanted)
        legalize(kernel, SPELLINGS)


def check_cuda(sample: Sample) -> None:
    """By lowering, binding and printing alone."""
    function, _ = as_function(sample)
    if has_kernels(sample.op, "cuda"):
        backend = backend_of(Target.parse("cuda"), 1)
        legal = backend.legalize(backend.lower(function, "nothing").kernel)
        launches = backend.bind(legal)
        backend.workspace(launches)
        backend.source(launches)
        assert launches.kernels or not any(a.size for a in expected(sample) or ()), "nobody writes the results"


BY_OPERATOR = sorted({sample.op.name for sample in SAMPLES} - HELD_BY_PYTHON)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("part", range(PARTS))
def test_dimensions_of_nothing_and_of_one(part: int) -> None:
    """A part of the operators, a row of each; ``--hypothesis-profile=long`` looks at all rows and all dimensions."""
    for name in BY_OPERATOR[part::PARTS]:
        rows = [sample for sample in SAMPLES if sample.op.name == name]
        for sample in rows if LONG else rows[:1]:
            for given in [*variants(sample, 0)[:MOST], *variants(sample, 1)[: MOST and 1]]:
                try:
                    check(given)
                    check_cuda(given)
                except Exception as error:
                    raise AssertionError(f"{given}: {type(error).__name__}: {error}") from error
