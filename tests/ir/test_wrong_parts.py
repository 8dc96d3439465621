"""What is no type, shape, dtype or name is refused where it is written, with a hint that goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.errors import MiniTVMError, TypeInferenceError
from minitvm.ir import builder, expr, types

NOT_TYPES = [(2, 3), [2, 3], "float32", 3, np.float32, types.TensorType, object(), np.zeros(3), builder.const(1.0), ()]
NOT_SHAPES = [3, "2,3", "n", (2, 3.5), (2, -3), object(), 1.5, (2, (3,)), {"x": 1.0}.values()]
NOT_DTYPES = ["flaot32", "float", "f32", 3, None, float, "", b"float32", object(), "string8"]
PLACES = {
    "builder": lambda wrong: builder.var("x", wrong),
    "Var": lambda wrong: expr.Var("x", wrong),
    "TupleType": lambda wrong: types.TupleType((types.TensorType(()), wrong)),
    "FuncType": lambda wrong: types.FuncType((wrong,), types.TensorType(())),
    "result": lambda wrong: types.FuncType((), wrong),
}
SHAPED = {"var": lambda wrong: builder.var("x", shape=wrong), "TensorType": types.TensorType}
TYPED = {
    "var": lambda wrong: builder.var("x", shape=(2, 3), dtype=wrong),
    "TensorType": lambda wrong: types.TensorType((2, 3), wrong),
    "const": lambda wrong: builder.const([1, 2], wrong),
}
CASES = {
    f"{place}-{n}": (make, wrong)
    for places, values in ((PLACES, NOT_TYPES), (SHAPED, NOT_SHAPES), (TYPED, NOT_DTYPES))
    for place, make in places.items()
    for n, wrong in enumerate(values)
    if not (place == "const" and wrong is None)
    if not (place == "var" and isinstance(wrong, str) and places is PLACES)  # relay.var("x", "float32") is a number
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_none_is_refused_at_once(case: str) -> None:
    make, wrong = CASES[case]
    with pytest.raises(MiniTVMError) as caught:
        make(wrong)
    assert caught.value.hint


@pytest.mark.parametrize("type_", [(2, 3), [4]])
def test_the_hint_of_a_variable_can_be_copied(type_: object) -> None:
    with pytest.raises(TypeInferenceError, match=r"variable %x: .* is no type") as caught:
        builder.var("x", type_)
    made = eval(str(caught.value.hint), {"var": builder.var})
    assert isinstance(made, expr.Var) and made.shape is not None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: builder.var("x", shape=(2,), dtype="flaot32"), r"'flaot32' is not a dtype\n.*mean 'float32'\?"),
        (lambda: builder.var("x", dtype="int8"), r"variable %x: a dtype without a shape\n.*shape=\(\)"),
        (lambda: builder.var("x", types.TensorType((2,)), (2,)), r"variable %x has a type and a shape"),
        (lambda: builder.var(3, shape=(2,)), r"3 is no variable's name"),
    ],
)
def test_what_is_said(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeInferenceError, match=said):
        made()


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16")])
def test_numpys_dtypes_are_dtypes(dtype: object) -> None:
    assert builder.var("x", shape=np.array([2, 3]), dtype=dtype).type == types.TensorType((2, 3), "float16")
    assert builder.const(1, dtype).type == types.TensorType((), "float16")


def test_relays_variable_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeInferenceError, match=r"%x: \(2, 3\) is no type\n.*var\(.x., shape=\(2, 3\)\)"):
        relay.var("x", (2, 3))
