"""What scripts get wrong: names, versions of texts, recursion without end, tables and generators that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay as names
from minitvm.errors import IRError, MiniTVMError, ParseError
from minitvm.passes.partition import (
    AnnotateTarget,
    MergeComposite,
    PartitionGraph,
    register_generator,
    register_op_attr,
)
from minitvm.relay.dataflow_pattern import is_op, wildcard

relay: Any = names  # names that are not there are asked for
X = relay.var("x", shape=(2, 3))
MODULE = minitvm.IRModule.from_expr(relay.Function([X], relay.exp(X)))
ONES = np.ones((2, 3), "float32")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        (lambda: relay.nn.relo, "nn.relu"),
        (lambda: relay.addd, "add"),
        (lambda: relay.op.nn.relo, "nn.relu"),
        (lambda: relay.transform.FoldConstnt, "FoldConstant"),
        (lambda: relay.analysis.free_var, "free_vars"),
        (lambda: relay.dataflow_pattern.is_opp, "is_op"),
        (lambda: relay.op.get("nn.relo"), "nn.relu"),
        (lambda: is_op("nn.conv2"), "nn.conv2d"),
        (lambda: relay.quantize.qconfig(nbit_inputs=8), "nbit_input"),
    ],
)
def test_absent_names_come_with_the_nearest(name: Callable[[], Any], near: str) -> None:
    with pytest.raises((MiniTVMError, AttributeError), match=f"did you mean '?{near}'?\\?"):
        name()


@pytest.mark.parametrize("version", ["0.0.6", "0.1.0", "1.0.0"])
def test_texts_of_newer_versions(version: str) -> None:
    with pytest.raises(ParseError, match=f"the text is of version {version}"):
        relay.fromtext(f'#[version = "{version}"]\ndef @main(%x: int32) {{ %x }}')


def test_recursion_without_end() -> None:
    module, f, n = minitvm.IRModule(), relay.GlobalVar("f"), relay.var("n", shape=(), dtype="int32")
    module[f] = relay.Function([n], relay.add(f(n), relay.const(1)), relay.scalar_type("int32"))
    module["main"] = relay.Function([n], f(n))
    typed = relay.transform.InferType()(module)
    with pytest.raises(IRError, match="@f calls itself, and is no loop"):
        relay.build(typed, "llvm")
    with pytest.raises(MiniTVMError, match="@f"):
        relay.create_executor("debug", typed).evaluate()(np.int32(3))


def test_a_table_that_matches_nothing_says_so() -> None:
    with pytest.warns(UserWarning, match=r"no pattern of the table matches anything; its patterns: a\.b"):
        found = MergeComposite([("a.b", is_op("nn.relu")(wildcard()))])(MODULE)
    assert found is MODULE


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda a: (a, a), "gives 2 results; the function has 1 result"),
        (lambda a: a[:1], r"gives Tensor\[\(1, 3\), float32\] as result 0"),
        (lambda a: a.astype("float64"), r"gives Tensor\[\(2, 3\), float64\] as result 0"),
        (lambda a: None, "gives NoneType as result 0"),
        (lambda: 1, "raised TypeError"),
        (lambda a: [a, [a]], "gives 2 results"),
    ],
)
def test_what_a_generator_gives_is_the_functions(result: Any, said: str) -> None:
    register_generator("wrong", lambda _: result, override=True)
    register_op_attr("exp", "target.wrong", lambda _: True)
    library = relay.build(PartitionGraph()(AnnotateTarget("wrong")(MODULE)), "llvm")
    with pytest.raises(MiniTVMError, match=said):
        library.run({"x": ONES})
