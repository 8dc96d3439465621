"""Exceptions in code that a user adds: each boundary names the code, the call and the node, and chains the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm.codegen.lower import lower, lowering
from minitvm.codegen.problem import TEMPLATES, Choice, Template
from minitvm.codegen.schedule import split
from minitvm.errors import MiniTVMError, PassError, ScheduleError, TypeInferenceError, UserCodeError
from minitvm.ir.builder import function, var
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Var
from minitvm.ir.loop import Buffer, Kernel, LoopKind, Stmt, Store, nest
from minitvm.ir.op import OPS, Fusion, Op
from minitvm.ir.pattern import call, value
from minitvm.ir.relayout import Site
from minitvm.ir.types import TensorType, Type
from minitvm.passes import (
    AlterOpLayout,
    Exactness,
    InferType,
    PassContext,
    PassInstrument,
    Sequential,
    Verify,
    alter_op_layout,
    function_pass,
    module_pass,
    rule,
    rule_pass,
)
from minitvm.target import MachineModel

MACHINE = MachineModel(32, 16)


@pytest.fixture(autouse=True)
def _no_operator_stays() -> Iterator[None]:
    known, templates = set(OPS), dict(TEMPLATES.table)
    yield
    for name in set(OPS) - known:
        del OPS[name]
    TEMPLATES.table.clear()
    TEMPLATES.table.update(templates)


def faulty(fails: str, error: Exception | None = None) -> type[Op]:
    """An operator with one method that raises."""

    @dataclass(frozen=True)
    class Faulty(Op):
        name = f"test.faulty_{fails}"
        fusion = Fusion.ELEMWISE

        def _maybe(self, method: str) -> None:
            if method == fails:
                raise error or KeyError("missing")

        def infer(self, x: TensorType) -> Type:
            self._maybe("infer")
            return x

        def solve(self, types: list[Type | None]) -> list[Type | None]:
            self._maybe("solve")
            return types

        def reference(self, x: np.ndarray) -> np.ndarray:
            self._maybe("reference")
            return x

        def relayout(self, site: Site) -> None:
            self._maybe("relayout")

        def compute(self, x: Buffer) -> Any:
            self._maybe("compute")
            return x

    return Faulty


def module_of(name: str, op: type[Op] | None = None) -> Module:
    """One call of an operator, from the model's node ``n7``."""
    x = Var("x", TensorType((3,), "float32"))
    return Module(function(Call((op or OPS[name])(), [x], span=("n7",))))


def raised(by: str, error: MiniTVMError, cause: type[Exception] = KeyError, node: bool = True) -> None:
    assert isinstance(error, UserCodeError) and type(error.__cause__) is cause
    assert error.message.startswith(f"{by} raised {cause.__name__}: ")
    assert any("test_user_code.py:" in line for line in error.where)
    assert not node or 'from ONNX node "n7"' in error.where[0]


# --- rules and passes -----------------------------------------------------------------------------------------


@rule(call("exp", value("x")))
def bad_rule(x: Expr) -> Expr:
    return {}["no"]  # type: ignore[no-any-return]


def test_a_rule() -> None:
    with pytest.raises(UserCodeError) as caught:
        Sequential([rule_pass(bad_rule, name="Bad")])(module_of("exp"))
    raised("rule bad_rule", caught.value)
    assert caught.value.inside == ("pass Bad",)
    assert str(caught.value).splitlines() == [
        "rule bad_rule raised KeyError: 'no'",
        '  | exp(%x)      from ONNX node "n7"',
        "  |   %x: Tensor[(3,), float32]",
        f"  | {caught.value.where[2]}",
        "  | in pass Bad",
        "  = hint: the exception that this one is chained to has the whole traceback",
    ]
    assert caught.value.where[2].endswith(" in bad_rule")


def test_the_condition_of_a_pattern() -> None:
    @rule(call("exp", value("x", where=lambda x: x.nothing)))
    def never(x: Expr) -> Expr:
        return x

    with pytest.raises(UserCodeError) as caught:
        rule_pass(never, name="Never")(module_of("exp"))
    raised("rule never", caught.value, AttributeError)


def test_an_error_of_minitvm_in_a_rule_says_where_it_came_through() -> None:
    @rule(call("exp", value("x")))
    def misbuilt(x: Expr) -> Expr:
        return Call(OPS["nn.dense"](), [x, Constant(np.zeros((2, 9, 9), "float32"))])

    with pytest.raises(TypeInferenceError) as caught:
        rule_pass(misbuilt, name="Misbuilt")(module_of("exp"))
    assert caught.value.inside == ("rule misbuilt", "pass Misbuilt")
    assert "  | in rule misbuilt\n  | in pass Misbuilt" in str(caught.value)


def test_what_a_rule_returns() -> None:
    @rule(call("exp", value("x")))
    def number(x: Expr) -> Any:
        return 3

    with pytest.raises(PassError, match=r'^rule number returned 3\n  \| exp\(%x\)      from ONNX node "n7"\n'):
        rule_pass(number, name="Number")(module_of("exp"))


def test_passes() -> None:
    @module_pass()
    def whole(module: Module, context: PassContext) -> Module:
        return 1 // 0  # type: ignore[return-value]

    @function_pass(name="ByClass")
    class ByClass:
        def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
            raise LookupError("nothing")

    for step, name, cause in ((whole, "whole", ZeroDivisionError), (ByClass(), "ByClass", LookupError)):
        with pytest.raises(UserCodeError) as caught:
            Sequential([InferType(), step])(module_of("exp"))
        raised(f"pass {name}", caught.value, cause, node=False)


@pytest.mark.parametrize(
    "method", ["enter_pass_ctx", "exit_pass_ctx", "should_run", "run_before_pass", "run_after_pass"]
)
def test_instruments(method: str) -> None:
    class Watch(PassInstrument):
        pass

    def fails(*_: object) -> bool:
        raise IndexError("over")

    setattr(Watch, method, fails)
    with pytest.raises(UserCodeError) as caught, PassContext(instruments=[Watch()]):
        InferType()(module_of("exp"))
    around = "" if "ctx" in method else " around pass InferType"
    raised(f"instrument Watch{around}", caught.value, IndexError, node=False)


# --- operators ------------------------------------------------------------------------------------------------


def test_infer() -> None:
    op = faulty("infer")
    with pytest.raises(UserCodeError) as caught:
        module_of("", op)
    raised("infer of test.faulty_infer", caught.value)


def test_infer_that_returns_no_type() -> None:
    @dataclass(frozen=True)
    class Shape(Op):
        name = "test.faulty_shape"
        fusion = Fusion.ELEMWISE

        def infer(self, x: TensorType) -> Type:
            return x.shape  # type: ignore[return-value]

    with pytest.raises(TypeInferenceError, match=r"^test.faulty_shape: infer returned \(3,\), which is no type\n"):
        module_of("", Shape)


def test_solve() -> None:
    op = faulty("solve")
    body = Call(op(), [Var("x")], span=("n7",))
    with pytest.raises(UserCodeError) as caught:
        InferType()(Module(Function([body.args[0]], body)))  # type: ignore[list-item]
    raised("solve of test.faulty_solve", caught.value)
    assert caught.value.inside == ("pass InferType",)


def test_reference_while_folding_and_while_verifying() -> None:
    op = faulty("reference")
    with pytest.raises(UserCodeError) as caught:
        minitvm.build(Module(function(Call(op(), [Constant(np.zeros(3, "float32"))], span=("n7",)))))
    raised("reference of test.faulty_reference", caught.value)
    assert caught.value.inside == ("pass FoldConstant",)

    @module_pass()
    def rebuilt(module: Module, context: PassContext) -> Module:
        return module_of("", op)

    with pytest.raises(UserCodeError) as caught, PassContext(instruments=[Verify()]):
        rebuilt(module_of("", op))
    raised("reference of test.faulty_reference", caught.value)
    assert caught.value.inside == ("instrument Verify around pass rebuilt",)


@pytest.mark.filterwarnings("ignore:1 operator runs in Python")
def test_reference_in_a_host_call() -> None:
    op = faulty("reference")
    op.compute = Op.compute  # type: ignore[method-assign]
    module = minitvm.GraphModule(minitvm.build(module_of("", op))["default"](minitvm.cpu()))
    with pytest.raises(UserCodeError) as caught:
        module.run(x=np.zeros(3, "float32"))
    raised("reference of test.faulty_reference", caught.value)


def test_compute() -> None:
    op = faulty("compute")
    with pytest.raises(UserCodeError) as caught:
        minitvm.build(module_of("", op))
    raised("compute of test.faulty_compute", caught.value)


def test_compute_of_another_type() -> None:
    op = faulty("nothing")
    op.compute = lambda self, x: Buffer("y", (4,), x.dtype)  # type: ignore[assignment]
    message = r"^test.faulty_nothing: compute's result is Tensor\[\(4,\), float32\], but infer says Tensor\[\(3,"
    with pytest.raises(MiniTVMError, match=message):
        minitvm.build(module_of("", op))


# --- templates, schedules, layouts ----------------------------------------------------------------------------


def lowered_by(loops: Callable[[Template, Choice], Any]) -> Kernel:
    """By a template with these loops."""

    class Mine(Template):
        def loops(self, choice: Choice) -> Stmt:
            return loops(self, choice)  # type: ignore[no-any-return]

    TEMPLATES.table["llvm", "exp"] = [Mine]
    return lower(module_of("exp").main, "kernel", MACHINE)


def test_a_template() -> None:
    def fails(template: Template, choice: Choice) -> None:
        raise OverflowError("too large")

    with pytest.raises(UserCodeError) as caught:
        lowered_by(fails)
    raised("template test_user_code.Mine", caught.value, OverflowError)


def test_what_a_template_returns() -> None:
    message = r"^loops of template test_user_code.Mine returned None\n  \| exp\(%x\)  "
    with pytest.raises(UserCodeError, match=message):
        lowered_by(lambda template, choice: None)


def test_a_schedule() -> None:
    """A step that refuses names the loops; the template around it and the node are named as well."""
    plain = lower(module_of("negative").main, "plain", MACHINE)
    with pytest.raises(ScheduleError) as caught:
        lowered_by(lambda template, choice: split(plain, "nowhere", 4).body)
    assert caught.value.inside == ("template test_user_code.Mine",)


def test_an_approximate_template_acts_where_it_is_named() -> None:
    class Rounded(Template):
        exactness = Exactness.APPROXIMATE

        def loops(self, choice: Choice) -> Stmt:
            (x,), out = self.problem.inputs, self.problem.output
            return nest(out.shape, lambda *i: Store(out, i, x[i]), LoopKind.PARALLEL)

    TEMPLATES.table["llvm", "exp"] = [Rounded]
    assert lowering(module_of("exp").main, "kernel", MACHINE).template is None
    with PassContext(config={"minitvm.allow_approximate": ("Rounded",)}):
        assert isinstance(lowering(module_of("exp").main, "kernel", MACHINE).template, Rounded)


def test_layout_rules_and_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("layout")

    x, w = var("x", shape=(1, 16, 8, 8)), var("w", shape=(16, 16, 3, 3))
    convolution = Call(OPS["nn.conv2d"](), [x, w], span=("n7",))
    module = Module(function(Call(faulty("relayout")(), [convolution], span=("n7",))))
    with pytest.raises(UserCodeError) as caught:
        AlterOpLayout(MACHINE)(module)
    raised("layout rule of test.faulty_relayout", caught.value)
    monkeypatch.setitem(alter_op_layout.PROPOSALS, ("llvm", OPS["nn.conv2d"]), fails)
    with pytest.raises(UserCodeError) as caught:
        AlterOpLayout(MACHINE)(module)
    raised("layout proposal of nn.conv2d", caught.value)


# --- what passes through --------------------------------------------------------------------------------------


def test_what_is_no_exception_passes() -> None:
    op = faulty("compute", KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        lower(module_of("", op).main, "kernel", MACHINE)


def test_bugs_of_minitvm_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """An assert that fails in minitvm's own code is no user's error."""

    def fails(self: Op, x: Any) -> Any:
        raise AssertionError("a bug")

    monkeypatch.setattr(OPS["exp"], "compute", fails)
    with pytest.raises(AssertionError, match=r"^a bug$"):
        lower(module_of("exp").main, "kernel", MACHINE)
