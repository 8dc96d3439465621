"""Terms there and back: the same graph, with the same types; what is none is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitvm import relay
from minitvm.errors import PassError
from minitvm.ir.expr import Module
from minitvm.ir.structural import structural_equal
from minitvm.lab.terms import Term, expression_of, module_of, terms
from minitvm.passes import FuseOps, InferType
from minitvm.testing import mlp, mobilenet, resnet

TEXT = """
def @main(%x: Tensor[(4, 6), float32]) {
  %0 = split(%x, indices_or_sections=[2], axis=1);
  %1 = nn.relu(%0.1);
  (add(%1, %1), add(%0.0, 2f))
}
"""


@pytest.mark.parametrize("workload", [mlp, resnet, mobilenet], ids=lambda m: m.__name__.rpartition(".")[2])
def test_a_network_goes_there_and_back(workload: object) -> None:
    module, _ = workload.get_workload(1)  # type: ignore[attr-defined]
    rows = terms(module.main)
    assert structural_equal(module_of(rows), Module(module.main))
    assert all(term.type is not None for term in rows) and len({term.leaf for term in rows if term.leaf}) > 2


def test_tuples_and_what_is_shared_are_kept() -> None:
    module = InferType()(relay.parse(TEXT))
    rows = terms(module.main)
    assert structural_equal(module_of(rows), module)
    (shared,) = (n for n, term in enumerate(rows) if term.head == "nn.relu")
    assert sum(term.args == (shared, shared) for term in rows) == 1
    assert [str(term) for term in rows][2] == "field(%1, index=1): Tensor[(4, 4), float32]"


def test_what_is_no_graph_is_refused() -> None:
    x = terms(relay.var("x", shape=(2, 3)))[0]
    for rows, words in (
        ([], "no terms are no graph"),
        ([Term("nn.relu", (0,))], "has operands behind it"),
        ([x, Term("nothing", (0,))], "there is no operator 'nothing'"),
        ([x, Term("nn.relu", (0, 0))], "term 1, nn.relu"),
        ([x, Term("nn.relu", (0,), (("no", 1),))], "term 1, nn.relu"),
        ([x, replace(Term("transpose", (0,)), type=x.type)], "is a Tensor\\[\\(3, 2\\), float32\\]"),
    ):
        with pytest.raises(PassError, match=words):
            expression_of(rows)
    module, _ = mlp.get_workload(1)
    with pytest.raises(PassError, match="a Function is no term"):
        terms(FuseOps()(InferType()(module)).main)
