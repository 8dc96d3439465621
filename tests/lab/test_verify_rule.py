"""``verify_rule``: rules that are wrong in ways that a hand-written test misses are found; minitvm's own hold."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from minitvm.cli import cli
from minitvm.errors import ConfigError, InputError
from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, Exactness
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Function
from minitvm.ir.ops.elemwise import Add, CastTo, Multiply, Relu
from minitvm.ir.ops.transform import Reshape, Transpose
from minitvm.ir.pattern import Pattern, call, const, either, filled, value
from minitvm.lab.rule_check import LEAST, known_rules, verify_rule
from minitvm.passes.bits import same_bits
from minitvm.passes.bound import Bound, Of
from minitvm.passes.compare import compare
from minitvm.passes.rule import Replacement, Rule, rule

RARE = (
    "factor_binomial",  # two values, six times
    "transposed_convolution_to_convolution",  # image, weights and strides that go together
    "merge_layout_transforms",  # the second starts from where the first ends
    "scalar_of_filled",  # an operator without operands
    "drop_dequantize_before_argmax",
    "drop_taps_in_padding",
    "sink_below_binary",
    "sink_below_unary",
)


BOUNDED = [rule.name for rule in known_rules().values() if rule.bound and rule.name not in RARE]
UNBOUNDED = {
    "add_any_constants": Bound(32, Of.SUMS),
    "multiply_any_sum": Bound(6, Of.SUMS),
    "multiply_any_constants": Bound(4),
    "divide_inside_any_by_constant": Bound(8),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_stated_bound_holds_near_cancellation_overflow_and_underflow(name: str) -> None:
    verdict = verify_rule(known_rules()[name], most=LEAST)
    assert verdict.counterexample is None and verdict.compared >= LEAST, verdict


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_bound_that_does_not_hold_is_found(name: str) -> None:
    claims = replace(known_rules()[name], exactness=Exactness.REASSOCIATING, bound=UNBOUNDED[name])
    assert verify_rule(claims).state == "wrong"


@pytest.mark.parametrize("name", [name for name in known_rules() if name not in BOUNDED])
def test_own_rules_hold(name: str) -> None:
    verdict = verify_rule(known_rules()[name], most=LEAST if name in RARE else 30)
    assert verdict.counterexample is None and verdict.compared >= LEAST, verdict
    assert verdict.holds or name == "scalar_of_filled", verdict  # which needs some more for every kind of fill


def test_what_underflows_on_the_way_is_the_models() -> None:
    """``(x * 1e-5) * -128`` in float16: what lies between is 8 of the smallest numbers, so that 2 % are lost."""
    x = ir.var("x", shape=(), dtype="float16")
    small, large, both = (Constant(np.float16(number)) for number in (1e-5, -128, -0.001282))
    apart, together = (Function([x], body) for body in (large * (small * x), x * both))
    assert compare(apart, lambda inputs: evaluate(together, *inputs)).difference
    assert not compare(apart, lambda inputs: evaluate(apart, *inputs)).difference


def test_taps_of_an_empty_window_are_left_alone() -> None:
    verdict = verify_rule(known_rules()["drop_taps_in_padding"], tries=1500, most=8)
    assert verdict.counterexample is None, verdict


@rule(call(Add, value("x"), filled(0)))
def forgets_broadcasting(x: Expr) -> Expr:
    return x


@rule(call(Add, value("x"), filled(0), name="whole"))
def forgets_negative_zero(whole: Call, x: Expr) -> Replacement:
    return x if x.checked_type == whole.checked_type else Declined("it broadcasts")


@rule(call(CastTo, call(CastTo, value("x")), name="outer"))
def forgets_the_first_cast(outer: Call, x: Expr) -> Expr:
    return Call(outer.op, (x,))


@rule(call(Transpose, call(Transpose, value("x"), name="inner"), name="outer"))
def composes_the_wrong_way(outer: Call, inner: Call, x: Expr) -> Expr:
    first, second = (call_.op.order(call_.tensor_type.rank) for call_ in (inner, outer))  # type: ignore[union-attr]
    return ir.transpose(x, axes=tuple(second[a] for a in first))


@rule(call(Multiply, value("x"), const("c")))
def divides_by_nothing(x: Expr, c: Constant) -> Replacement:
    return x if 1 // int(c.value.flat[0]) == 1 else Declined("no")


WRONG = {
    forgets_broadcasting: "replaced a",
    forgets_negative_zero: "the sign of a zero",
    forgets_the_first_cast: "result 0",
    composes_the_wrong_way: "replaced a",
    divides_by_nothing: "it raised",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda found: found.name)
def test_a_wrong_rule_is_found(wrong: Rule) -> None:
    verdict = verify_rule(wrong)
    assert not verdict.holds and verdict.state == "wrong"
    assert WRONG[wrong] in str(verdict.counterexample)
    assert "def @main(" in str(verdict.counterexample)


def test_what_was_not_drawn_is_no_pass() -> None:
    class Impossible(Pattern):
        def accepts(self, expr: Expr) -> bool:
            return False

    @rule(call(Relu, either(call(Reshape, value("x")), call(Relu, Impossible()))))
    def one_way(x: Expr | None) -> Replacement:
        return ir.nn.relu(x) if x is None else Declined("never")

    verdict = verify_rule(one_way, tries=400)
    assert verdict.state == "not verified" and verdict.why.startswith("never drawn: alternative 2 of either")
    never = Rule("never", call(Relu, value("x")), lambda x: Declined("not today"), one_way.exactness)
    assert verify_rule(never, tries=200).why == "it never fired; it declined: not today"
    with pytest.raises(ConfigError, match="is not a rule"):
        verify_rule(call)  # type: ignore[arg-type]


def test_bits() -> None:
    zero, nan = np.zeros(2, "float32"), np.full(2, np.nan, "float32")
    assert same_bits(zero, zero) and same_bits(nan, -nan)
    assert not same_bits(zero, -zero) and not same_bits(zero, zero.astype("float64"))


def test_on_the_command_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("""
from minitvm.ir.ops.elemwise import Copy
from minitvm.ir.pattern import call, value
from minitvm.passes import rule

@rule(call(Copy, value("x")))
def uncopied(x):
    return x
""")
    run = CliRunner().invoke(cli, ["lab", "verify", f"{path}:uncopied", "--tries", "200"])
    assert run.exit_code == 0 and "uncopied (exact): holds" in run.output
    assert CliRunner().invoke(cli, ["lab", "verify", "drop_copy", "--tries", "1"]).exit_code == 1
    for wrong in ("drop_copi", f"{path}:other", str(tmp_path / "no.py")):
        assert isinstance(CliRunner().invoke(cli, ["lab", "verify", wrong]).exception, (ConfigError, InputError))
