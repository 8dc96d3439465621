"""Attributes are what their annotations say, however an operator is made: by the builder, a text, a library file."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from op_samples import SAMPLES
from op_samples_nn import SAMPLES as NN_SAMPLES

from minitvm.errors import MiniTVMError, TypeInferenceError
from minitvm.ir import builder as b
from minitvm.ir.attributes import attributes_of, format_attribute, kind_of
from minitvm.ir.op import OPS, Fusion, Op, define
from minitvm.ir.ops.elemwise import Unary
from minitvm.ir.parser import parse_expr
from minitvm.ir.types import TensorType
from minitvm.runtime.host_json import host_from_json

OPERATORS = {type(sample.op): sample.op for sample in [*SAMPLES, *NN_SAMPLES]}
VALUES: tuple[Any, ...] = ("abc", 7, -2.5, True, None, (1.5, 2.0), ("a", "b"), (1, 2), ((1, 2, 3),))
"""Of all kinds; each attribute refuses some of them."""


def _fits(annotation: Any, value: Any) -> bool:
    try:
        kind_of(annotation).read(value)
    except (TypeError, ValueError):
        return False
    return True


def _by_text(op: Op, attributes: dict[str, Any]) -> None:
    parse_expr(f"{op.name}({', '.join(f'{n}={format_attribute(v)}' for n, v in attributes.items())})")


def _by_library(op: Op, attributes: dict[str, Any]) -> None:
    host_from_json({"op": op.name, "attributes": attributes, "params": [], "span": []})


def _by_builder(op: Op, attributes: dict[str, Any]) -> None:
    b.call_op(op.name, **attributes)


@pytest.mark.parametrize("make", [_by_builder, _by_text, _by_library])
@pytest.mark.parametrize("op", OPERATORS.values(), ids=lambda op: op.name)
def test_what_an_annotation_does_not_allow_is_refused_everywhere(op: Op, make: Any) -> None:
    for name, attribute in attributes_of(type(op)).items():
        for value in VALUES:
            if not _fits(attribute.annotation, value):
                with pytest.raises(MiniTVMError) as caught:
                    make(op, {**op.attributes(), name: value})
                shown = f"attribute {name!r} is {value!r}, expected {attribute.kind.expected}"
                assert f"{op.name}: {shown}" in caught.value.message


@pytest.mark.parametrize("op", OPERATORS.values(), ids=lambda op: op.name)
def test_numpys_values_and_lists_are_kept_as_pythons(op: Op) -> None:
    def foreign(value: Any) -> Any:
        if isinstance(value, tuple):
            return [foreign(v) for v in value]
        return np.array(value)[()] if isinstance(value, (bool, int, float)) else value

    again = type(op).of({name: foreign(value) for name, value in op.attributes().items()})
    assert again == op
    assert repr(again) == repr(op)


@pytest.mark.parametrize(
    ("annotation", "given", "kept"),
    [
        (int, np.uint8(3), 3),
        (float, 1, 1.0),
        (int | float, 2**63 - 1, 2**63 - 1),
        (bool, 1, True),
        (tuple[int, ...], np.array([1, 2]), (1, 2)),
        (tuple[int, ...], 3, (3,)),
        (tuple[tuple[int, int], ...], [[1, 2]], ((1, 2),)),
        (tuple[int, ...] | None, None, None),
    ],
)
def test_what_is_kept(annotation: Any, given: Any, kept: Any) -> None:
    found = kind_of(annotation).read(given)
    assert found == kept
    assert type(found) is type(kept)


def test_the_place_in_a_text_is_named() -> None:
    with pytest.raises(TypeInferenceError) as caught:
        parse_expr('free_var %x: Tensor[(2,), float32];\nnn.leaky_relu(%x, alpha="abc")')
    assert str(caught.value) == ("nn.leaky_relu: attribute 'alpha' is 'abc', expected a number\n  | line 2 of the text")


def _named(decorate: bool) -> Any:
    class Scaled(Op):
        factor: float = 2.0
        name = f"test.scaled_{decorate}"
        fusion = Fusion.ELEMWISE

    return dataclasses.dataclass(frozen=True)(Scaled) if decorate else Scaled


@pytest.mark.parametrize("decorate", [False, True])
def test_an_operator_is_a_frozen_dataclass_decorated_or_not(decorate: bool) -> None:
    scaled = _named(decorate)
    try:
        assert scaled(factor=3).attributes() == {"factor": 3.0}
        assert scaled(3) == scaled(3.0) != scaled() and hash(scaled(3)) == hash(scaled(3.0))
        assert repr(scaled(3)).endswith("Scaled(factor=3.0)")
        with pytest.raises(dataclasses.FrozenInstanceError):
            scaled().factor = 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            OPS["nn.relu"]().factor = 1  # type: ignore[attr-defined]
        with pytest.raises(TypeInferenceError, match="attribute 'factor' is 'abc', expected a number"):
            scaled("abc")
    finally:
        del OPS[scaled.name]


def test_an_operator_of_a_family_is_a_line() -> None:
    made = define(Unary, "test.cube_root", "The cube root.", kinds="f", ufunc=np.cbrt, homogeneous=False)
    try:
        assert made.__name__ == "CubeRoot" and made.__doc__ == "The cube root." and OPS["test.cube_root"] is made
        assert made().reference(np.array([8.0, -27.0])).round(9).tolist() == [2, -3]
        with pytest.raises(
            TypeInferenceError, match=r"test.cube_root: the argument is Tensor\[\(2,\), int32\]; expected float"
        ):
            made().infer(TensorType((2,), "int32"))
        with pytest.raises(TypeError, match="there is no trait 'kind'"):
            define(Unary, "test.other", "Another.", kind="f")
    finally:
        del OPS[made.name]
