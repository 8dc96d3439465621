"""One record of what was decided, kept where somebody listens."""

from __future__ import annotations

from minitvm.ir.builder import call_op, var
from minitvm.ir.decision import Declined, decide, decisions, listening
from minitvm.ir.expr import Tuple, span_scope

X = var("x", shape=(3,))


def test_a_decision_in_words() -> None:
    node = call_op("exp", X, span=("n1", "n2"))
    with decisions() as log, span_scope(("around",)):
        decide("fuse", node, "into add")
        decide("fuse", Tuple([node], span=()), Declined("no"))
        decide("schedule", "out0", Declined("one row"))
    assert [str(d) for d in log] == [
        "exp [n1, n2]: fuse: into add",
        "a tuple: fuse declined: no",
        "out0 [around]: schedule declined: one row",
    ]


def test_nothing_is_kept_where_nobody_listens() -> None:
    assert not listening()
    decide("fuse", X, "x")
    with decisions() as log:
        assert listening()
    assert log == []


def test_what_is_heard_inside_is_heard_outside() -> None:
    with decisions() as outer:
        decide("a", X, "1")
        with decisions() as inner:
            decide("b", X, "2")
        decide("c", X, "3")
    assert [d.by for d in inner] == ["b"] and [d.by for d in outer] == ["a", "b", "c"]
