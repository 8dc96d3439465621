"""Modules as Relay's text: what is written line by line, that it reads back, and Relay's grammar."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitvm import relay, testing
from minitvm.errors import ParseError
from minitvm.ir.expr import Module
from minitvm.ir.structural import assert_structural_equal, structural_equal
from minitvm.passes import FuseOps, SimplifyInference
from minitvm.tvm.relay.text import VERSION, astext

X, FLAG = relay.var("x", shape=(3,)), relay.var("flag", "bool")


def back(node: Any) -> str:
    """The text, which reads back."""
    text = astext(node)
    found = relay.fromtext(text) if isinstance(node, Module) else relay.parse_expr(text)
    assert_structural_equal(found, node, map_free_vars=True)
    return text.removeprefix(VERSION)


def test_the_first_lines_of_the_quick_start() -> None:
    lines = back(testing.resnet.get_workload(num_layers=18, batch_size=1)[0]).splitlines()
    image, blocks = "Tensor[(1, 3, 224, 224), float32]", "Tensor[(1, 64, 112, 112), float32]"
    assert lines[0].startswith(
        f"def @main(%data: {image} /* ty={image} */, %bn_data_gamma: Tensor[(3), float32] /* ty=Tensor[(3), float32] */"
    )
    assert lines[0].endswith(" -> Tensor[(1, 1000), float32] {")
    assert lines[1].startswith("  %0 = nn.batch_norm(%data, %bn_data_gamma, %bn_data_beta, %bn_data_moving_mean, ")
    assert lines[1].endswith(
        f"epsilon=2e-05f, scale=False) /* ty=({image}, Tensor[(3), float32], Tensor[(3), float32]) */;"
    )
    assert lines[2] == f"  %1 = %0.0 /* ty={image} */;"
    assert lines[3] == (
        "  %2 = nn.conv2d(%1, %conv0_weight, strides=[2, 2], padding=[3, 3, 3, 3], channels=64, kernel_size=[7, 7])"
        f" /* ty={blocks} */;"
    )
    assert lines[6] == f"  %5 = nn.relu(%4) /* ty={blocks} */;"


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (42, "int16", "42i16"),
        (42, "int32", "42"),
        (42, "int64", "42i64"),
        (3.0, "float16", "3f16"),
        (3.0, "float32", "3f"),
    ]
    + [
        (3.0, "float64", "3f64"),
        (1 / 3, "float32", "0.33333334f"),
        (1e10, "float32", "1e+10f"),
        (True, "bool", "True"),
    ],
)
def test_scalars(value: Any, dtype: str, text: str) -> None:
    assert back(relay.const(value, dtype)) == text


def test_functions_count_their_bindings_together() -> None:
    y = relay.var("y")
    call = relay.Call(
        relay.Function([X], X), [relay.Call(relay.Function([y], y), [relay.const(np.ones(3, "float32"))])]
    )
    assert astext(call, show_meta_data=False).removeprefix(VERSION) == (
        "%0 = fn (%y) {\n  %y\n};\n%1 = %0(meta[relay.Constant][0]);\n"
        "%2 = fn (%x: Tensor[(3), float32]) {\n  %x\n};\n%2(%1)"
    )


def test_a_choice_is_an_expression() -> None:
    once = relay.exp(X)
    text = back(relay.If(FLAG, once + relay.const(1.0), once))
    assert text == (
        "free_var %flag: bool;\nfree_var %x: Tensor[(3), float32];\n%0 = exp(%x);\n"
        "if (%flag) {\n  add(%0, 1f)\n} else {\n  %0\n}"
    )


@pytest.mark.parametrize(
    "node",
    [
        relay.var("1"),
        relay.var("base/x") + relay.var("base/y"),
        relay.zeros([], "float32"),
        relay.Tuple([relay.const([1, 2, 3]), relay.const(np.int8([1])), relay.Tuple([])]),
        relay.split(X, 3)[1],
        relay.nn.softmax(relay.var("x"), axis=2),
        relay.Function([X], relay.nn.leaky_relu(X, 0.25)).with_attr("Primitive", 1),
        relay.multiply(relay.If(FLAG, X, relay.exp(X)), X),
        relay.clip(X, 0.0, 1099511627776.0),
        relay.full(relay.const(1.0), ()),
    ],
)
def test_expressions_read_back(node: Any) -> None:
    back(node)


@pytest.mark.parametrize("network", [testing.mlp, testing.lstm, testing.squeezenet])
def test_networks_read_back(network: Any) -> None:
    module = network.get_workload()[0]
    back(module)
    back(FuseOps(2)(SimplifyInference()(module)))


def test_names_of_nodes_and_variables() -> None:
    named = relay.Call(relay.exp(X).op, [X], span=relay.Span(relay.SourceName("Exp0"), 0, 0, 0, 0))
    assert "/* span=Exp0:0:0 */" in back(named)
    inner = relay.Function([relay.var("x", shape=(3,))], X)
    assert "fn (%x1: Tensor[(3), float32])" in astext(relay.Call(inner, [X]))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1 * 2 + 3 - 4", "(((1 * 2) + 3) - 4)"),
        ("1 + 2 * 3 < 4 / 5", "((1 + (2 * 3)) < (4 / 5))"),
        ("(1 < 2) == (2 != 3)", "equal(less(1, 2), not_equal(2, 3))"),
        ("--10", "10"),
        ("1 -1", "1 - 1"),
        ('/* a /* b */ " */ (1, 2) // the end', "(1, 2)"),
        ("(); let %x: _ = 3; 4; %x", "let %a = (); let %y = 3; let %b = 4; %y"),
        ("let %f = fn (%x: int32) { %x * %x }; %f(3)", "let %g = fn (%y: int32) { %y * %y }; %g(3)"),
        ("free_var %a/b: float32; exp(%a/b)", "free_var %c: float32; exp(%c)"),
    ],
)
def test_grammar(text: str, same: str) -> None:
    assert structural_equal(relay.parse_expr(text), relay.parse_expr(same), map_free_vars=True)


def test_a_name_by_itself() -> None:
    assert relay.parse_expr("nn.relu") == relay.op.get("nn.relu")
    assert isinstance(relay.parse_expr("@f"), relay.GlobalVar)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2147483648i32", "not a constant of int32"),
        ("3.40283e+38f32", "beyond what float32 holds"),
        ("/* open", "a comment is not closed"),
        ("let @x = 1; ()", "expected"),
        ("if (True) { let %x = (); () } else { %x }", "%x is not bound"),
        ("1 +", "expected an expression"),
    ],
)
def test_what_is_no_expression(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        relay.parse_expr(text)


def test_what_is_left_out_is_at_relays_default() -> None:
    text = "free_var %x: Tensor[(3), float32]; nn.leaky_relu(%x)"
    assert relay.parse_expr(text).attrs.alpha == 0.01


def test_functions_beside() -> None:
    beside = relay.fromtext(VERSION + "def @f(%y: Tensor[(3), float32]) { negative(%y) }")
    made = relay.fromtext(VERSION + "def @main(%x: Tensor[(3), float32]) { @f(%x) + 1f }", init_module=beside)
    assert [*made.functions] == ["f", "main"]
    back(made)


def test_scripts_of_tvms_print_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import tvm\nfrom tvm import relay\n"
        "m = tvm.IRModule.from_expr(relay.exp(relay.var('x', shape=(3,))))\nprint(m)\n"
        "import numpy as np\nassert relay.const(np.ones(3)).checked_type.dtype == 'float32'\n"
    )
    command = [sys.executable, "-m", "minitvm.tvm", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('#[version = "0.0.5"]\ndef @main(%x: Tensor[(3), float32] /* ty=')


def fused(body: Any) -> Module:
    return FuseOps(2)(Module.from_expr(body))


def test_fused_groups_are_relays() -> None:
    """A group is ``fn`` with ``Primitive=1``, called in place; a group that a test writes by hand is the same graph."""
    weight = relay.var("w", shape=(2, 3))
    made = fused(relay.exp(relay.nn.dense(relay.add(relay.reshape(X, (1, 3)), relay.const(1.0)), weight, units=2)))
    assert [re.sub(r" /\* ty=.*?\*/", "", line) for line in back(made).splitlines()] == [
        "def @main(%x: Tensor[(3), float32], %w: Tensor[(2, 3), float32]) -> Tensor[(1, 2), float32] {",
        "  %1 = fn (%p0: Tensor[(3), float32], Primitive=1) -> Tensor[(1, 3), float32] {",
        "    %0 = reshape(%p0, newshape=[1, 3]);",
        "    add(%0, 1f)",
        "  };",
        "  %2 = %1(%x);",
        "  %4 = fn (%p01: Tensor[(1, 3), float32], %p1: Tensor[(2, 3), float32], Primitive=1)"
        " -> Tensor[(1, 2), float32] {",
        "    %3 = nn.dense(%p01, %p1, units=2);",
        "    exp(%3)",
        "  };",
        "  %4(%2, %w)",
        "}",
    ]
    p = relay.var("p")
    group = relay.Function([p], relay.exp(relay.add(p, relay.const(1.0)))).with_attr("Primitive", 1)
    expected = relay.testing.run_opt_pass(relay.Function([X], group(X)), relay.transform.InferType())
    assert_structural_equal(fused(relay.exp(relay.add(X, relay.const(1.0)))).main, expected)
    assert "relay.reshape_only=1" in back(fused(relay.reshape(X, (1, 3))))
