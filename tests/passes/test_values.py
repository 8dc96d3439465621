"""Values that are there are not computed again, and nothing else is taken for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Module
from minitvm.ir.op import OPS
from minitvm.ir.visitor import as_function, rewrite
from minitvm.passes import PassContext, function_pass, values
from minitvm.passes.values import Values
from minitvm.passes.verify import Verify
from minitvm.testing.checks import as_module

LONG = """def @main(%x: Tensor[(3, 4), float32], %y: Tensor[(3, 4), float32]) {
    (tanh(tanh(tanh(%x))), add(%x, %y), add(%y, %x), split(%x, indices_or_sections=2, axis=1))
}"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[np.ndarray]]:
    """Operands of each ``tanh`` whose reference ran."""
    found, reference = list[np.ndarray](), OPS["tanh"].reference
    monkeypatch.setattr(OPS["tanh"], "reference", lambda self, x: found.append(x) or reference(self, x))
    yield found


def _rebuilt(module: Module) -> Module:
    """The module with new calls all over."""
    made = rewrite(module.main, lambda old, new: Call(new.op, new.args) if isinstance(new, Call) else new)
    return as_module(module.with_function("main", as_function(made)))


def test_a_value_is_computed_once_whoever_built_the_call(ran: list[np.ndarray]) -> None:
    module, kept = as_module(LONG), Values()
    x, y = (np.random.default_rng(i).standard_normal((3, 4)).astype("float32") for i in range(2))
    for given in (module, _rebuilt(module), module.main):
        found = evaluate(given, x.copy(), y, how=kept.of)
        for have, want in zip(found[:3], evaluate(module, x, y)[:3], strict=True):
            np.testing.assert_array_equal(have, want)
        kept.turn()
    assert len(ran) == 3 * (1 + 3)  # three references of `evaluate` alone
    evaluate(module, -x, y, how=kept.of)
    assert len(ran) == 3 * (1 + 3 + 1)


@pytest.mark.parametrize("other", [-0.0, np.float64(0.0), np.zeros((1,), "float32"), np.int32(0)], ids=str)
def test_other_bits_dtypes_and_shapes_are_other_values(other: float) -> None:
    kept, zero = Values(), np.float32(0)
    other = np.asarray(other) if isinstance(other, (np.ndarray, np.generic)) else np.float32(other)
    names = [kept._name(np.asarray(value)) for value in (zero, np.float32(0), other)]
    assert names[0] == names[1] != names[2]


def test_what_two_turns_did_not_ask_for_is_let_go(ran: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    module, kept, x = as_module("def @main(%x: Tensor[(8,), float32]) { tanh(%x) }"), Values(), np.ones(8, "float32")
    for turns, runs in ((0, 1), (1, 1), (1, 1), (2, 2)):
        for _ in range(turns):
            kept.turn()
        evaluate(module, x, how=kept.of)
        assert len(ran) == runs
    monkeypatch.setattr(values, "MOST", 31)
    kept.turn()
    kept.turn()
    for runs in (3, 4):
        evaluate(module, x, how=kept.of)
        assert len(ran) == runs


def test_a_pass_is_verified_on_what_it_changed(ran: list[np.ndarray]) -> None:
    @function_pass(opt_level=0, name="Rebuilds")
    def rebuilds(function, module, context):  # type: ignore[no-untyped-def]
        return _rebuilt(module).main

    with PassContext(instruments=[Verify()]):
        rebuilds(as_module(LONG))
        once = len(ran)
        rebuilds(rebuilds(as_module(LONG)))
    assert once and len(ran) == once
