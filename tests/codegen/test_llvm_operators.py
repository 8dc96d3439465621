"""Every operator that is lowered, as machine code on two threads, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from native_kernel import run_native
from op_samples import Sample
from test_lower import LOWERED, as_function

from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify


@pytest.mark.parametrize("sample", LOWERED, ids=str)
def test_machine_code_gives_what_reference_gives(sample: Sample) -> None:
    function, arrays = as_function(sample)
    kernel = legalize(simplify(lower(function, "kernel", machine_model(host(), threads=2))), SPELLINGS)
    with np.errstate(all="ignore"):
        expected = sample.op.reference(*sample.args)
    results = run_native(kernel, *arrays, threads=2)
    for want, have in zip(expected if isinstance(expected, tuple) else (expected,), results, strict=True):
        assert have.dtype == want.dtype
        if want.dtype.kind == "f":
            scale = max(1.0, float(np.abs(np.nan_to_num(want, posinf=0, neginf=0)).max(initial=0)))
            rtol = 2e-3 if want.dtype == np.float16 else 2e-5  # another order of summation
            np.testing.assert_allclose(have.reshape(want.shape), want, rtol=rtol, atol=rtol * scale)
        else:
            np.testing.assert_array_equal(have.reshape(want.shape), want)
