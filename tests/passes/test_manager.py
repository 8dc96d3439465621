"""PassContext, Sequential and the decorators, after Relay's test_pass_manager.

Left out: registration without a decorator as a global packed function, debug callbacks (``PrintIR`` is the instrument).
"""

import threading

import pytest

from minitvm.errors import ConfigError, PassError
from minitvm.ir.expr import Function, Module
from minitvm.ir.ops.elemwise import Relu
from minitvm.ir.parser import parse_module
from minitvm.ir.visitor import calls
from minitvm.passes import (
    FoldConstant,
    FunctionPass,
    InferType,
    ModulePass,
    PassContext,
    Sequential,
    function_pass,
    get_pass,
    module_pass,
)

TEXT = "def @main(%x: Tensor[(2, 3), float32]) { nn.relu(add(%x, add(1f, 2f))) }"
BRANCHES = """
def @main(%c: Tensor[(), bool], %x: Tensor[(2,), float32]) {
  control.if(%c, %x, then_branch=@yes, else_branch=@no)
}
def @yes(%x: Tensor[(2,), float32]) { add(%x, add(1f, 2f)) }
def @no(%x: Tensor[(2,), float32]) { add(%x, 3f) }
"""


def recorder(name: str, level: int, ran: list[str]) -> ModulePass:
    @module_pass(opt_level=level, name=name)
    def record(module: Module, context: PassContext) -> Module:
        ran.append(name)
        return module

    return record


def test_function_decorator_makes_a_pass_of_a_function() -> None:
    @function_pass(opt_level=1)
    def double(function: Function, module: Module, context: PassContext) -> Function:
        return Function(function.params, function.body + function.body)

    assert (double.info.name, double.info.opt_level) == ("double", 1)
    assert [c.op.name for c in calls(double(parse_module(TEXT)).main)] == ["add", "add", "nn.relu", "add"]


def test_module_decorator_makes_a_pass_class_of_a_class() -> None:
    @module_pass(opt_level=2, name="renaming", required=["InferType"])
    class Rename:
        def __init__(self, name: str) -> None:
            self.name = name

        def transform_module(self, module: Module, context: PassContext) -> Module:
            return Module({self.name: module.main})

    step = Rename("other")
    assert isinstance(step, ModulePass)
    assert (step.info.name, step.info.opt_level, step.info.required) == ("renaming", 2, ("InferType",))
    assert list(step(parse_module(TEXT)).functions) == ["other"]


def test_class_without_the_method_is_refused() -> None:
    with pytest.raises(PassError, match="class Empty has no transform_function") as error:

        @function_pass()
        class Empty:
            pass

    assert error.value.hint == "define transform_function in it"


def test_sequential_runs_what_the_level_admits() -> None:
    ran: list[str] = []
    steps = Sequential([recorder(f"level{n}", n, ran) for n in range(4)])
    module = parse_module(TEXT)
    for level, expected in ((0, 1), (1, 2), (3, 4)):
        ran.clear()
        with PassContext(opt_level=level):
            assert steps(module) is module
        assert ran == [f"level{n}" for n in range(expected)]


def test_default_level_is_2() -> None:
    ran: list[str] = []
    Sequential([recorder("two", 2, ran), recorder("three", 3, ran)])(parse_module(TEXT))
    assert ran == ["two"]


def test_required_and_disabled_passes() -> None:
    ran: list[str] = []
    steps = Sequential([recorder("high", 3, ran), recorder("low", 0, ran)])
    with PassContext(opt_level=0, required_pass=["high"], disabled_pass=["low"]):
        steps(parse_module(TEXT))
    assert ran == ["high"]
    with PassContext(required_pass=["low"], disabled_pass=["low"]):
        assert not PassContext.current().pass_enabled(steps.passes[1].info)


def test_calling_a_pass_directly_always_runs_it() -> None:
    ran: list[str] = []
    step = recorder("direct", 3, ran)
    with PassContext(opt_level=0, disabled_pass=["direct"]):
        step(parse_module(TEXT))
    assert ran == ["direct"]


def test_passes_that_a_pass_requires_run_without_asking() -> None:
    seen: list[bool] = []

    @module_pass(opt_level=0, required=["FoldConstant"])
    def after_folding(module: Module, context: PassContext) -> Module:
        seen.append(len(calls(module.main)) == 2)
        return module

    with PassContext(opt_level=0):  # FoldConstant itself is of level 2
        Sequential([after_folding])(parse_module(TEXT))
    assert seen == [True]


def test_nested_sequential_is_gated_as_a_whole() -> None:
    ran: list[str] = []
    inner = Sequential([recorder("inside", 0, ran)], opt_level=3, name="inner")
    with PassContext(opt_level=2):
        Sequential([inner])(parse_module(TEXT))
    assert ran == []
    with PassContext(opt_level=2, required_pass=["inner"]):
        Sequential([inner])(parse_module(TEXT))
    assert ran == ["inside"]


def test_empty_sequential_returns_the_same_module() -> None:
    module = parse_module(TEXT)
    assert Sequential([])(module) is module


def test_context_is_of_the_thread() -> None:
    levels: list[int] = []
    with PassContext(opt_level=3), PassContext(opt_level=1):
        thread = threading.Thread(target=lambda: levels.append(PassContext.current().opt_level))
        thread.start()
        thread.join()
        levels.append(PassContext.current().opt_level)
    assert levels == [2, 1]
    assert PassContext.current().opt_level == 2


def test_function_passes_reach_branches_but_not_fused_groups() -> None:
    folded = FoldConstant()(parse_module(BRANCHES))
    (branch,) = calls(folded.main)
    assert len(calls(branch.op.then_branch.body)) == 1
    assert branch.op.then_branch is folded["yes"], "the branch and the module's function are one"
    text = """
    def @main(%x: Tensor[(2,), float32]) {
      fn (%p0: Tensor[(2,), float32], primitive=True) { add(%p0, add(1f, 2f)) }(%x)
    }"""
    module = parse_module(text)
    assert FoldConstant()(module) is module


def test_called_functions_are_transformed_where_they_are_called() -> None:
    text = """
    def @main(%x: Tensor[(2,), float32]) { nn.relu(@shift(%x)) }
    def @shift(%x: Tensor[(2,), float32]) { add(%x, add(1f, 2f)) }
    """
    folded = FoldConstant()(parse_module(text))
    (called,) = [c.op for c in calls(folded.main) if not isinstance(c.op, Relu)]
    assert called is folded["shift"]
    assert len(calls(called.body)) == 1


@pytest.mark.parametrize("level", [-1, 4, "3", True, 2.0])
def test_opt_level_out_of_range(level: object) -> None:
    with pytest.raises(ConfigError) as error:
        PassContext(opt_level=level)  # type: ignore[arg-type]
    assert str(error.value) == f"opt_level is {level!r}\n  = hint: the levels are 0 to 3"


def test_unknown_pass_names_the_closest() -> None:
    with pytest.raises(PassError) as error:
        PassContext(disabled_pass=["FoldConstants"])
    assert str(error.value) == (
        "disabled_pass: there is no pass 'FoldConstants'\n  = hint: did you mean 'FoldConstant'?"
    )
    with pytest.raises(PassError, match="required_pass: there is no pass 'Nonsense12'"):
        PassContext(required_pass="Nonsense12")
    with pytest.raises(PassError, match="there is no pass 'InferTypes'"):
        get_pass("InferTypes")


def test_unknown_option_names_the_closest() -> None:
    with pytest.raises(ConfigError) as error:
        PassContext(config={"minitvm.FuseOps.max_dept": 3})
    assert str(error.value) == (
        "there is no option 'minitvm.FuseOps.max_dept'\n  = hint: did you mean 'minitvm.FuseOps.max_depth'?"
    )


@pytest.mark.parametrize("value", ["3", True, 2.5, None])
def test_option_of_the_wrong_type(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        PassContext(config={"minitvm.FoldConstant.max_bytes": value})
    assert error.value.message == (
        f"option 'minitvm.FoldConstant.max_bytes' takes int, not {type(value).__name__} {value!r}"
    )
    assert error.value.hint is not None


def test_options_are_listed_with_their_meaning() -> None:
    assert PassContext().option("minitvm.FoldConstant.max_bytes") == 1 << 20
    assert all(key.meaning for key in PassContext.list_configs().values())


def test_a_class_is_not_a_pass() -> None:
    with pytest.raises(PassError) as error:
        Sequential([InferType])  # type: ignore[list-item]
    assert error.value.hint == "call it: InferType()"


def test_wrong_argument_and_wrong_result() -> None:
    with pytest.raises(PassError, match="InferType takes a Module, not str"):
        InferType()("def @main() {}")  # type: ignore[arg-type]

    @module_pass()
    def nothing(module: Module, context: PassContext) -> Module:
        return None  # type: ignore[return-value]

    with pytest.raises(PassError, match="nothing returned NoneType instead of a Module"):
        nothing(parse_module(TEXT))


def test_pass_that_needs_arguments_cannot_be_required() -> None:
    class NeedsOne(FunctionPass):
        def __init__(self, one: int) -> None:
            self.one = one

    with pytest.raises(PassError, match="pass NeedsOne needs arguments, so it cannot be run by name"):
        get_pass("NeedsOne")
