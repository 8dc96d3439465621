"""The default pipeline on whole networks: numbers, levels, time, and what disappears."""

from functools import partial

import numpy as np
import pytest

from minitvm.ir import builder as ir
from minitvm.ir.decision import Decision, decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import structural_hash
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls, post_order
from minitvm.passes import (
    InferType,
    PassContext,
    PassInfo,
    PassInstrument,
    PassLog,
    Verify,
    bind_module,
    default_pipeline,
)
from minitvm.target import MachineModel
from minitvm.testing import resnet
from tests.steps import assert_linear

MACHINE = MachineModel(vector_bytes=32, vector_registers=16)

SMALL = """
def @main(%x: Tensor[(1, 8, 9, 9), float32], %w: Tensor[(16, 8, 3, 3), float32], %b: Tensor[(16,), float32],
          %g: Tensor[(16,), float32], %h: Tensor[(16,), float32], %m: Tensor[(16,), float32],
          %v: Tensor[(16,), float32], %d: Tensor[(5, 16), float32]) {
  %0 = nn.bias_add(nn.conv2d(%x, %w, padding=[1, 1, 1, 1]), %b);
  %1 = nn.relu(nn.batch_norm(%0, %g, %h, %m, %v).0);
  %2 = nn.batch_flatten(nn.global_avg_pool2d(%1));
  nn.softmax(nn.dense(nn.dropout(%2).0, %d))
}"""


def bound(module: Module, keep: int = 1, seed: int = 5) -> Module:
    """``module`` with random values for all but its first ``keep`` parameters."""
    rng = np.random.default_rng(seed)
    params = {p.name: rng.uniform(0.1, 1.1, p.shape).astype(p.dtype) for p in module.main.params[keep:]}
    return bind_module(module, params)


def constants(module: Module) -> int:
    return sum(isinstance(node, Constant) for node in post_order(module.main))


def run(module: Module, level: int) -> Module:
    with PassContext(opt_level=level):
        return default_pipeline(MACHINE)(module)


def test_levels_agree_and_leave_their_input_alone() -> None:
    module = bound(parse_module(SMALL))
    before = structural_hash(module)
    x = np.random.default_rng(7).standard_normal((1, 8, 9, 9)).astype("float32")
    expected = evaluate(module, x)
    for level in range(4):
        np.testing.assert_allclose(evaluate(run(module, level), x), expected, rtol=1e-5, atol=1e-6)
    assert structural_hash(module) == before


def test_each_level_does_more() -> None:
    module = bound(parse_module(SMALL))
    kernels = [len([c for c in calls(run(module, n).main) if isinstance(c.op, Function)]) for n in range(4)]
    assert kernels[0] > kernels[1] > kernels[2]
    blocked = [any("NCHWc" in str(c.op.attrs.get("name")) for c in calls(run(module, n).main)) for n in (2, 3)]
    assert blocked == [False, True]


def test_batch_norms_of_resnet_disappear_into_weights() -> None:
    """98 parameters or more go in, 43 or fewer come out."""
    module, params = resnet.get_workload(num_layers=18, batch_size=1, image_shape=(3, 224, 224))
    module = bind_module(InferType()(module), params)
    assert len(params) >= 98
    assert constants(run(module, 3)) <= 43


def test_log_of_the_pipeline_says_what_changed() -> None:
    log = PassLog()
    with PassContext(opt_level=3, instruments=[log]):
        default_pipeline(MACHINE)(bound(parse_module(SMALL)))
    changed = {r.name for r in log.records if r.changed}
    assert {"SimplifyInference", "FoldConstant", "BackwardFoldScaleAxis", "AlterOpLayout", "FuseOps"} <= changed
    assert [r.name for r in log.records if r.name == "EliminateCommonSubexpr"] == ["EliminateCommonSubexpr"]
    assert "EliminateCommonSubexpr" not in changed


def test_every_pass_verifies_with_numbers() -> None:
    with PassContext(opt_level=3, instruments=[Verify()]):
        default_pipeline(MACHINE)(bound(parse_module(SMALL)))


class Talk(PassInstrument):
    """Which passes changed the module, and which said something."""

    def __init__(self, log: list[Decision]) -> None:
        self.log, self.changed, self.silent = log, set[str](), set[str]()

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self.before, self.said = module, len(self.log)

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        if module is not self.before:
            self.changed.add(info.name)
            if not any(d.taken for d in self.log[self.said :]):
                self.silent.add(info.name)


TALKATIVE = """
def @main(%x: Tensor[(1, 8, 9, 9), float32], %w,
          %b: Tensor[(16,), float32], %d: Tensor[(5, 16), float32]) {
  %0 = nn.conv2d(%x, %w, channels=16, kernel_size=[3, 3]);
  %1 = cast(cast(%0, dtype="int8"), dtype="int32"); %2 = exp(%0); %3 = exp(%0);
  %4 = nn.batch_flatten(nn.global_avg_pool2d(nn.bias_add(add(%2, %3), %b)));
  (add(%1, 1i32), add(%1, 2i32), nn.dense(%4, %d))
}"""


def test_whatever_changes_a_module_says_so() -> None:
    changed = set()
    for text in (SMALL, TALKATIVE):
        with decisions() as log:
            talk = Talk(log)
            with PassContext(opt_level=3, instruments=[talk]):
                default_pipeline(MACHINE)(parse_module(text))
        assert not talk.silent - {"default_pipeline", "FoldScaleAxis"}
        changed |= talk.changed
    assert changed >= {"InferType", "EliminateCommonSubexpr", "CanonicalizeCast", "AlterOpLayout", "FuseOps"}


def test_disabled_pass_is_left_out() -> None:
    log = PassLog()
    with PassContext(opt_level=3, disabled_pass=["FoldScaleAxis", "AlterOpLayout"], instruments=[log]):
        default_pipeline(MACHINE)(bound(parse_module(SMALL)))
    assert not {"FoldScaleAxis", "BackwardFoldScaleAxis", "AlterOpLayout"} & {r.name for r in log.records}


def tower(blocks: int) -> Module:
    """A residual network of 5 calls a block, with weights of their own."""
    rng = np.random.default_rng(11)
    x: Expr = ir.var("x", TensorType((1, 8, 4, 4)))
    for _ in range(blocks):
        weight = ir.const(rng.standard_normal((8, 8, 1, 1)).astype("float32"))
        stats = [ir.const(rng.uniform(0.5, 1.5, 8).astype("float32")) for _ in range(4)]
        conv = ir.nn.conv2d(x, weight)
        x = ir.nn.relu(ir.nn.batch_norm(conv, *stats)[0] + x)
    return Module.from_expr(ir.nn.global_avg_pool2d(x))


@pytest.mark.parametrize("level", [0, 3])
def test_time_is_linear_in_the_graph(level: int) -> None:
    """Thousands of calls neither overflow the stack nor take quadratic time."""
    assert isinstance(run(tower(600), level).main.body, Call)
    assert_linear(lambda blocks: partial(run, tower(blocks), level), 30)


def test_passes_for_one_kind_of_target_are_in_its_pipeline_alone() -> None:
    def names(kind: str, features: frozenset[str]) -> set[str]:
        machine = MachineModel(64, 32, threads=2, features=features)
        return {step.info.name for step in default_pipeline(machine, kind=kind).passes}

    bytes_, own = frozenset({"dot4"}), {"TileWindows", "ShareRows", "MultiplyByParts"}
    assert own <= names("llvm", bytes_) and not own & names("cuda", bytes_)
    assert own - names("llvm", frozenset()) == {"MultiplyByParts"}
