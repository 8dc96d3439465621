"""Let and its normal forms: graphs, names for all, names for what several scopes share; dead bindings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.ir.evaluate import evaluate
from minitvm.ir.structural import structural_equal, structural_hash
from minitvm.relay import transform
from minitvm.relay.analysis import Feature, check_basic_block_normal_form, detect_feature
from minitvm.testing import assert_allclose
from minitvm.tvm.relay.text import astext

FLAG = relay.var("flag", "bool")
X = relay.var("x", shape=(3,))
ONE, TWO = relay.const(1.0), relay.const(2.0)
ONES = np.array([1.0, -2.0, 3.0], "float32")


def passed(expr: Any, *passes: Any) -> Any:
    """The expression behind passes, with its types found."""
    module = minitvm.IRModule.from_expr(expr)
    for step in (*passes, transform.InferType()):
        module = step(module)
    return module["main"] if isinstance(expr, relay.Function) else module["main"].body


def same(expr: Any, other: Any) -> bool:
    return structural_equal(passed(expr), passed(other), map_free_vars=True)


def shared() -> Any:
    once = relay.exp(X)
    return relay.Function([FLAG, X], relay.If(FLAG, once + ONE, relay.multiply(once, TWO)) + relay.negative(X))


def nested() -> Any:
    y, z, inner = relay.var("y"), relay.var("z"), relay.var("inner")
    body = relay.Let(y, relay.tanh(X), relay.Let(z, relay.If(FLAG, y, relay.Let(inner, y + y, inner)), z + y))
    return relay.Function([FLAG, X], body)


def closure() -> Any:
    p, f = relay.var("p", shape=(3,)), relay.var("f")
    return relay.Function([FLAG, X], relay.Let(f, relay.Function([p], p + X), relay.add(f(f(X)), ONE)))


def choice_of_functions() -> Any:
    p, q, f = relay.var("p", shape=(3,)), relay.var("q", shape=(3,)), relay.var("f")
    chosen = relay.If(FLAG, relay.Function([p], p + X), relay.Function([q], relay.exp(q)))
    return relay.Function([FLAG, X], relay.Let(f, chosen, f(X) + f(relay.negative(X))))


PROGRAMS = [shared, nested, closure, choice_of_functions]
FORMS = [transform.ToANormalForm, transform.ToBasicBlockNormalForm, transform.ToGraphNormalForm]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_computes_the_same_and_reads_back(program: Any, form: Any) -> None:
    plain = passed(program())
    made = passed(plain, form())
    for flag in (True, False):
        assert_allclose(evaluate(made, np.array(flag), ONES), evaluate(plain, np.array(flag), ONES))
    text = minitvm.IRModule.from_expr(made)
    assert structural_equal(relay.fromtext(astext(text)), text)
    assert structural_hash(passed(plain, form())) == structural_hash(made)
    assert relay.analysis.well_formed(made)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_build_takes_it_to_native_code(program: Any) -> None:
    plain = passed(program())
    library = relay.build(passed(plain, transform.ToANormalForm()))
    assert not library.host_calls
    for flag in (True, False):
        found = library.run({"flag": np.array(flag), "x": ONES})[0]
        assert_allclose(found, evaluate(plain, np.array(flag), ONES))


def test_a_normal_form_names_operands_in_order() -> None:
    a, b, c, d, e = (relay.var(name) for name in "abcde")
    expected = relay.Let(d, b * c, relay.Let(e, a + d, e))
    expected = relay.Let(a, relay.const(1), relay.Let(b, relay.const(2), relay.Let(c, relay.const(3), expected)))
    sums = relay.const(1) + relay.const(2) * relay.const(3)
    made = passed(sums, transform.ToANormalForm())
    assert structural_equal(made, passed(expected))
    assert Feature.fLet in detect_feature(made) and Feature.fLet not in detect_feature(sums)
    assert structural_equal(passed(made, transform.ToGraphNormalForm()), passed(sums))


def test_a_branch_is_a_scope() -> None:
    a, b, c, d = (relay.var(name) for name in "abcd")
    choice = relay.If(c, relay.Let(a, relay.const(2), a), relay.Let(b, relay.const(3), b))
    expected = relay.Let(c, relay.const(True), relay.Let(d, choice, d))
    made = passed(relay.If(relay.const(True), relay.const(2), relay.const(3)), transform.ToANormalForm())
    assert structural_equal(made, passed(expected))


def test_basic_blocks_name_what_branches_share() -> None:
    once = relay.var("once")
    choice = relay.If(FLAG, once + ONE, relay.multiply(once, TWO))
    expected = relay.Function([FLAG, X], relay.Let(once, relay.exp(X), choice + relay.negative(X)))
    assert structural_equal(passed(shared(), transform.ToBasicBlockNormalForm()), passed(expected))
    assert check_basic_block_normal_form(passed(shared(), transform.ToBasicBlockNormalForm()))
    assert not check_basic_block_normal_form(shared())


def test_basic_blocks_of_nested_branches() -> None:
    """What only one branch shares is named there."""
    y = relay.exp(X)
    inner = relay.If(relay.const(True), y, relay.add(ONE, y))
    named = relay.var("named")
    inside = relay.Let(named, relay.exp(X), relay.If(relay.const(True), named, relay.add(ONE, named)))
    made = passed(relay.If(FLAG, inner, X), transform.ToBasicBlockNormalForm())
    assert structural_equal(made, passed(relay.If(FLAG, inside, X)), map_free_vars=True)


def test_what_scopes_do_not_share_stays_a_graph() -> None:
    y = ONE + ONE
    function = relay.Function([], relay.add(y + y, y))
    assert Feature.fLet not in detect_feature(passed(function, transform.ToBasicBlockNormalForm()))


def test_dead_bindings_are_gone() -> None:
    a, b, c = relay.var("a", "float32"), relay.var("b", "float32"), relay.var("c", "float32")
    dead = transform.DeadCodeElimination()
    assert same(passed(relay.Let(a, ONE, relay.Let(b, a + a, c)), dead), c)
    used = relay.Let(a, relay.exp(c), a + a)
    assert structural_equal(passed(used, dead), passed(used), map_free_vars=True)
    assert same(passed(relay.add(relay.Let(a, ONE, TWO), c), dead), relay.add(TWO, c))
    pair = relay.var("pair", relay.TupleType([relay.scalar_type("float32")] * 2))
    assert same(passed(relay.TupleGetItem(relay.Let(a, ONE, pair), 0), dead), relay.TupleGetItem(pair, 0))


def test_inline_once() -> None:
    a, b, c = relay.var("a", "float32"), relay.var("b", "float32"), relay.var("c", "float32")
    once = transform.DeadCodeElimination(inline_once=True)
    assert same(passed(relay.Let(a, relay.exp(b), relay.Let(c, a + ONE, c)), once), relay.exp(b) + ONE)
    twice = relay.Let(a, relay.exp(b), a + a)
    assert structural_equal(passed(twice, once), passed(twice), map_free_vars=True)
    f, p = relay.var("f"), relay.var("p", "float32")
    often = relay.Let(a, relay.exp(b), relay.Let(f, relay.Function([p], p + a), f(f(b))))
    kept = relay.analysis.post_order_visit(passed(often, once))
    assert any(isinstance(n, relay.Let) and n.var.name == "a" for n in kept)


def test_free_and_bound_variables() -> None:
    y, p = relay.var("y"), relay.var("p", shape=(3,))
    expr = relay.Let(y, relay.exp(X), relay.Function([p], p + y + FLAG))
    assert relay.analysis.free_vars(expr) == [X, FLAG]
    assert set(relay.analysis.bound_vars(expr)) == {y, p}
    assert set(relay.analysis.all_vars(expr)) == {X, y, p, FLAG}


def test_equality_and_hash_of_bindings() -> None:
    a, b = relay.var("a"), relay.var("b")
    bound, other = relay.Let(a, ONE, a + X), relay.Let(b, ONE, b + X)
    assert structural_equal(bound, other) and structural_hash(bound) == structural_hash(other)
    assert not structural_equal(bound, relay.Let(a, ONE, b + X))
    assert not structural_equal(bound, relay.Let(a, TWO, a + X))
    assert not structural_equal(relay.Let(a, ONE, relay.Let(b, TWO, a)), relay.Let(a, ONE, relay.Let(b, TWO, b)))
    typed = relay.Let(relay.var("c", "float32"), ONE, X)
    assert not structural_equal(relay.Let(a, ONE, X), typed)


def test_visitors_and_mutators_know_bindings() -> None:
    class Names(relay.ExprVisitor):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def visit_let(self, let: Any) -> None:
            self.seen.append(let.var.name_hint)
            super().visit_let(let)

        def visit_if(self, choice: Any) -> None:
            self.seen.append("if")
            super().visit_if(choice)

    class Doubled(relay.ExprMutator):
        def visit_constant(self, constant: Any) -> Any:
            return relay.const(constant.value * 2)

    names = Names()
    names.visit(nested())
    assert names.seen == ["y", "z", "if", "inner"]
    y = relay.var("y")
    assert structural_equal(Doubled().visit(relay.Let(y, ONE, y + X)), relay.Let(y, TWO, y + X))


def test_a_choice_has_parts() -> None:
    choice = relay.If(FLAG, relay.exp(X), X)
    assert isinstance(choice, relay.If) and choice.cond is FLAG and choice.false_branch is X
    assert structural_equal(choice.true_branch, relay.exp(X))
    scoped = nested().body.body.value
    assert isinstance(scoped, relay.If) and not isinstance(X, relay.If) and not isinstance(relay.exp(X), relay.If)


def test_pickled_and_copied() -> None:
    import copy
    import pickle

    module = minitvm.IRModule.from_expr(closure())
    assert structural_equal(pickle.loads(pickle.dumps(module)), module)
    assert copy.deepcopy(module)["main"] is module["main"]


def test_networks_in_names() -> None:
    """A network as names, as text, back as a graph, is itself."""
    module = relay.testing.mlp.get_workload(batch_size=1)[0]
    named = transform.ToANormalForm()(module)
    read = relay.fromtext(named.astext())
    assert structural_equal(read, named)
    assert structural_equal(transform.ToGraphNormalForm()(read), module)


def test_patterns_of_bindings_and_choices() -> None:
    from minitvm.relay import dataflow_pattern as pattern

    y, exp = relay.var("y"), pattern.is_op("exp")(pattern.wildcard())
    any_, other, third = (pattern.wildcard() for _ in range(3))
    bound = relay.Let(y, relay.exp(X), y + X)
    assert pattern.is_let(pattern.is_var("y"), exp, pattern.is_op("add")(any_, other)).match(bound)
    assert not pattern.is_let(any_, pattern.is_op("tanh")(other), third).match(bound)
    assert not pattern.is_let(any_, other, third).match(relay.exp(X))
    for choice in (relay.If(FLAG, relay.exp(X), X), nested().body.body.value):
        assert pattern.is_if(pattern.is_var("flag"), any_, other).match(choice)
        assert not pattern.is_if(exp, any_, other).match(choice)
    assert pattern.is_if(any_, exp, pattern.is_var("x")).match(relay.If(FLAG, relay.exp(X), X))
    assert not pattern.is_if(any_, other, third).match(bound)
