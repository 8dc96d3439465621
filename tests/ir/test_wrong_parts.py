"""What is no type, shape, dtype or name is refused where it is written, with a hint that goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.errors import MiniTVMError, TypeInferenceError

NOT_TYPES = [(2, 3), [2, 3], "float32", 3, np.float32, relay.TensorType, object(), np.zeros(3), relay.const(1.0), ()]
NOT_SHAPES = [3, "2,3", "n", (2, 3.5), (2, -3), object(), 1.5, (2, (3,)), {"x": 1.0}.values()]
NOT_DTYPES = ["flaot32", "float", "f32", 3, None, float, "", b"float32", object(), "string8"]
PLACES = {
    "var": lambda wrong: relay.var("x", wrong),
    "Var": lambda wrong: relay.Var("x", wrong),
    "TupleType": lambda wrong: relay.TupleType((relay.TensorType(()), wrong)),
    "FuncType": lambda wrong: relay.FuncType((wrong,), relay.TensorType(())),
    "result": lambda wrong: relay.FuncType((), wrong),
}
SHAPED = {"var": lambda wrong: relay.var("x", shape=wrong), "TensorType": relay.TensorType}
TYPED = {
    "var": lambda wrong: relay.var("x", shape=(2, 3), dtype=wrong),
    "TensorType": lambda wrong: relay.TensorType((2, 3), wrong),
    "const": lambda wrong: relay.const([1, 2], wrong),
    "scalar_type": relay.scalar_type,
}
CASES = {
    f"{place}-{n}": (make, wrong)
    for places, values in ((PLACES, NOT_TYPES), (SHAPED, NOT_SHAPES), (TYPED, NOT_DTYPES))
    for place, make in places.items()
    for n, wrong in enumerate(values)
    if not (place == "const" and wrong is None)
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_none_is_refused_at_once(case: str) -> None:
    make, wrong = CASES[case]
    with pytest.raises(MiniTVMError) as caught:
        make(wrong)
    assert caught.value.hint


@pytest.mark.parametrize("type_", [(2, 3), [4], "float16"])
def test_the_hint_of_a_variable_can_be_copied(type_: object) -> None:
    with pytest.raises(TypeInferenceError, match=r"variable %x: .* is no type") as caught:
        relay.var("x", type_)
    made = eval(str(caught.value.hint), {"var": relay.var})
    assert isinstance(made, relay.Var) and made.shape is not None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: relay.var("x", shape=(2,), dtype="flaot32"), r"'flaot32' is not a dtype\n.*did you mean 'float32'\?"),
        (lambda: relay.var("x", dtype="int8"), r"variable %x: a dtype without a shape\n.*shape=\(\)"),
        (lambda: relay.var("x", relay.TensorType((2,)), (2,)), r"variable %x has a type and a shape"),
        (lambda: relay.var(3, shape=(2,)), r"3 is no variable's name"),
    ],
)
def test_what_is_said(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeInferenceError, match=said):
        made()


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16")])
def test_numpys_dtypes_are_dtypes(dtype: object) -> None:
    assert relay.var("x", shape=np.array([2, 3]), dtype=dtype).type == relay.TensorType((2, 3), "float16")
    assert relay.const(1, dtype).type == relay.TensorType((), "float16")
