"""Texts as Relay's ``astext`` writes them."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.errors import MiniTVMError, ParseError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.structural import structural_equal
from minitvm.runtime.param_dict import _save_array

SEMVER = '#[version = "0.0.5"]\n'
X = relay.var("x", shape=(2, 3))
ONES = np.ones((2, 3), "float32")


def meta(*arrays: np.ndarray) -> str:
    """A section of constants."""
    nodes: list[Any] = [{"type_key": ""}, {"type_key": "Map", "keys": ["relay.Constant"], "data": [2]}]
    nodes += [{"type_key": "Array", "data": [3 + i for i in range(len(arrays))]}]
    nodes += [{"type_key": "relay.Constant", "attrs": {"data": str(i), "span": "0"}} for i in range(len(arrays))]
    stored = [base64.b64encode(_save_array(a)).decode() for a in arrays]
    return "\n#[metadata]\n" + json.dumps({"root": 1, "nodes": nodes, "b64ndarrays": stored, "attrs": {}})


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("add(%x, 1f)", relay.add(X, relay.const(1.0))),
        ("%0 = exp(%x) /* ty=Tensor[(2, 3), float32] */;\n add(%0, %0) /* ty=Tensor[(2, 3), float32] */", None),
        ("let %a = exp(%x); multiply(%a, %a)", None),
        ("%0 = split(%x, indices_or_sections=3, axis=1); %0.0", None),
        ("%1 = fn (%p: Tensor[(2, 3), float32], Primitive=1) -> Tensor[(2, 3), float32] { nn.relu(%p) }; %1(%x)", None),
        ("if (True) { %x } else { negative(%x) }", None),
        ('cast(1, dtype="float32")', relay.cast(relay.const(1), "float32")),
        ("(%x, 3, 4i64, True, 2f64)", None),
    ],
)
def test_bodies(text: str, want: Any) -> None:
    module = relay.fromtext(
        f"{SEMVER}def @main(%x: Tensor[(2, 3), float32] /* ty=Tensor[(2, 3), float32] */) {{ {text} }}"
    )
    assert want is None or structural_equal(module["main"].body, want, map_free_vars=True)
    assert structural_equal(relay.fromtext(module.astext()), module)
    evaluate(module, ONES)


def test_whole_numbers_are_int32_behind_a_version_line() -> None:
    assert relay.parse_expr(f"{SEMVER}(1, 2i64)").checked_type.fields[0].dtype == "int32"
    assert relay.parse_expr("1").dtype == relay.parse_expr("-3i").dtype == "int32"
    assert relay.parse_expr("2147483648").dtype == "int64"
    assert relay.parse_expr("1", variables=[X]).dtype == "int64"


def test_constants_of_the_metadata() -> None:
    text = f"{SEMVER}def @main(%x: Tensor[(2, 3), float32]) {{ add(%x, meta[relay.Constant][1]) }}"
    module = relay.fromtext(text + meta(np.zeros(3, "int8"), 2 * ONES))
    np.testing.assert_array_equal(evaluate(module, ONES), 3 * ONES)
    given = relay.parse(text, init_meta_table={"relay.Constant": [relay.const(ONES), relay.const(ONES)]})
    np.testing.assert_array_equal(evaluate(given, ONES), 2 * ONES)


def test_an_expression_and_functions_beside() -> None:
    module = relay.parse(
        f"{SEMVER}fn (%x: Tensor[(2, 3), float32]) {{ exp(%x) }}", init_module=relay.IRModule({"f": X_OF})
    )
    assert [*module.functions] == ["f", "main"]


X_OF = relay.Function([X], X)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('#[version = "0.0.6"]\ndef @main() { () }', "is of version 0.0.6"),
        (f"{SEMVER}meta[relay.Constant][0]", r"no metadata of relay.Constant\[0\]"),
        (f"{SEMVER}meta[relay.Constant][0]\n#[metadata]\n{{", "metadata of the text is damaged"),
        (f'{SEMVER}meta["w"]', "kept beside the text"),
        (f"{SEMVER}def @main() {{ nosuch() }}", "unknown operator"),
    ],
)
def test_what_is_no_text_of_relays(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        relay.fromtext(text)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_texts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = f"{SEMVER}def @main(%x: Tensor[(2, 3), float32]) {{ add(%x, meta[relay.Constant][0]) }}{meta(ONES)}"
    for _ in range(60):
        at = int(rng.integers(0, len(whole)))
        text = whole[:at] + chr(int(rng.integers(32, 126))) + whole[at + int(rng.integers(0, 3)) :]
        with contextlib.suppress(MiniTVMError):
            relay.fromtext(text)
