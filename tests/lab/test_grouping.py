"""Fusion by labels: the groups of FuseOps give what FuseOps gives, others give the same numbers, and what is no kernel
is refused."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import PassError
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.op import Fusion, Op
from minitvm.ir.structural import structural_equal
from minitvm.ir.visitor import calls, use_counts
from minitvm.lab import primitive_functions
from minitvm.passes import FuseOps, PassContext, function_pass
from minitvm.passes.fuse_ops import partition
from minitvm.testing import mobilenet, resnet, squeezenet

NETWORKS = {"resnet": resnet, "mobilenet": mobilenet, "squeezenet": squeezenet}


@pytest.mark.parametrize("network", NETWORKS)
def test_its_own_groups_give_what_fuse_ops_gives(network: str) -> None:
    module = relay.transform.SimplifyInference()(NETWORKS[network].get_workload()[0])
    groups = partition(module.main, 3, 256, 8, False)
    labels: dict[Expr, Hashable] = {node: id(group) for node, group in groups.items()}
    with PassContext(opt_level=3, disabled_pass=["ShareMemory"]):
        expected = FuseOps()(module)
    assert structural_equal(Module(primitive_functions(module.main, labels)), expected)


@function_pass(opt_level=0, name="Chains")
def chains(function: Function, module: Module, context: PassContext) -> Function:
    """Element-wise operators join what they read, where nobody else does."""
    uses, labels = use_counts(function.body), dict[Expr, Hashable]()
    for call in calls(function):
        first, joins = call.args[0], isinstance(call.op, Op) and call.op.fusion <= Fusion.BROADCAST
        labels[call] = labels[first] if joins and first in labels and uses[first] == 1 else call
    return primitive_functions(function, labels)


def test_a_fuser_of_ten_lines_takes_the_place_of_fuse_ops() -> None:
    module, params = resnet.get_workload(num_layers=18, image_shape=(3, 32, 32))
    steps = ["SimplifyInference", "FoldConstant"]
    libraries = [minitvm.build(module, params=params, pipeline=[*steps, last]) for last in (chains, "FuseOps")]
    runners = [minitvm.GraphModule(library["default"](minitvm.cpu())) for library in libraries]
    x = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype("float32")
    results = [runner.run(data=x) or runner.get_output(0).numpy() for runner in runners]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-6)
    assert len(libraries[0].report.groups) > 20


X = relay.var("x", shape=(4, 4))
A = relay.exp(X)
B = relay.tanh(A)
C = relay.add(A, B)
PRODUCT = relay.nn.dense(relay.nn.dense(X, A), A)
WRONG = {
    "several values are seen": (relay.multiply(C, A), {A: 1, B: 1}, "has one result, and of this group exp and tanh"),
    "a value comes back": (C, {A: 1, C: 1}, "one result|need each other's results"),
    "two anchors": (PRODUCT, {PRODUCT: 1, PRODUCT.args[0]: 1}, "nn.dense and nn.dense cannot be one kernel"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_kernel_is_refused(case: str) -> None:
    body, labels, said = WRONG[case]
    with pytest.raises(PassError, match=said):
        primitive_functions(Function([X], body), labels)
