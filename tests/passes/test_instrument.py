"""Instruments, after Relay's test_pass_instrument."""

import re

import pytest

from minitvm.errors import PassError, UserCodeError
from minitvm.ir.expr import Constant, Function, Module
from minitvm.ir.parser import parse_module
from minitvm.passes import (
    FoldConstant,
    InferType,
    PassContext,
    PassInfo,
    PassInstrument,
    PassLog,
    PassTiming,
    PrintIR,
    Sequential,
    Verify,
    function_pass,
    module_pass,
)

TEXT = "def @main(%x: Tensor[(2, 3), float32]) { nn.relu(add(%x, add(1f, 2f))) }"


class Trace(PassInstrument):
    """Notes each callback; raises in the one named ``fails``."""

    def __init__(self, name: str, events: list[str], fails: str = "", allow: bool = True) -> None:
        self.name, self.events, self.fails, self.allow = name, events, fails, allow

    def note(self, event: str) -> None:
        self.events.append(f"{self.name}.{event}")
        if event.split()[0] == self.fails:
            raise ValueError(f"{self.name} fails")

    def enter_pass_ctx(self) -> None:
        self.note("enter")

    def exit_pass_ctx(self) -> None:
        self.note("exit")

    def should_run(self, module: Module, info: PassInfo) -> bool:
        self.note(f"should {info.name}")
        return self.allow

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self.note(f"before {info.name}")

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        self.note(f"after {info.name}")


def run(*instruments: PassInstrument, **context: object) -> None:
    with PassContext(instruments=instruments, **context):  # type: ignore[arg-type]
        InferType()(parse_module(TEXT))


def test_order_of_the_callbacks() -> None:
    events: list[str] = []
    run(Trace("a", events), Trace("b", events))
    steps = ("enter", "should InferType", "before InferType", "after InferType", "exit")
    assert events == [f"{name}.{step}" for step in steps for name in "ab"]


def test_a_pass_runs_where_all_agree_and_all_are_asked() -> None:
    events: list[str] = []
    run(Trace("a", events, allow=False), Trace("b", events))
    assert events == ["a.enter", "b.enter", "a.should InferType", "b.should InferType", "a.exit", "b.exit"]


def test_required_passes_are_not_asked_for() -> None:
    events: list[str] = []
    run(Trace("a", events, allow=False), required_pass=["InferType"])
    assert events == ["a.enter", "a.before InferType", "a.after InferType", "a.exit"]


def test_failing_enter_exits_those_entered_and_drops_all() -> None:
    events: list[str] = []
    context = PassContext(instruments=[Trace("a", events), Trace("b", events, fails="enter"), Trace("c", events)])
    with pytest.raises(UserCodeError, match=r"^instrument Trace raised ValueError: b fails\n"), context:
        events.append("body")
    assert events == ["a.enter", "b.enter", "a.exit"]
    assert context.instruments == ()
    assert PassContext.current() is not context


def test_failing_exit_drops_all() -> None:
    events: list[str] = []
    context = PassContext(instruments=[Trace("a", events), Trace("b", events, fails="exit"), Trace("c", events)])
    with pytest.raises(UserCodeError, match=r"^instrument Trace raised ValueError: b fails\n"), context:
        pass
    assert events[-2:] == ["a.exit", "b.exit"]
    assert context.instruments == ()
    assert PassContext.current() is not context


@pytest.mark.parametrize("fails", ["should", "before", "after"])
def test_failing_callback_reaches_the_caller_and_all_exit(fails: str) -> None:
    events: list[str] = []
    with pytest.raises(UserCodeError, match=r"^instrument Trace around pass InferType raised ValueError: a fails\n"):
        run(Trace("a", events, fails=fails), Trace("b", events))
    assert events[-2:] == ["a.exit", "b.exit"]
    assert events[-3] == f"a.{fails} InferType"


def test_pass_that_raises_has_no_after() -> None:
    @module_pass()
    def failing(module: Module, context: PassContext) -> Module:
        raise RuntimeError("no")

    events: list[str] = []
    with pytest.raises(UserCodeError), PassContext(instruments=[Trace("a", events)]):
        failing(parse_module(TEXT))
    assert events == ["a.enter", "a.should failing", "a.before failing", "a.exit"]


def test_override_instruments_exits_the_old_and_enters_the_new() -> None:
    events: list[str] = []
    with PassContext(instruments=[Trace("a", events)]) as context:
        context.override_instruments([Trace("b", events)])
        InferType()(parse_module(TEXT))
    assert events == [
        "a.enter",
        "a.exit",
        "b.enter",
        "b.should InferType",
        "b.before InferType",
        "b.after InferType",
        "b.exit",
    ]


def test_timing_renders_a_tree() -> None:
    timing = PassTiming()
    with PassContext(instruments=[timing]):
        Sequential([InferType(), Sequential([FoldConstant()], name="inner")], name="outer")(parse_module(TEXT))
    shape = re.sub(r"[\d.]+", "N", timing.render())
    assert shape.splitlines() == [
        "outer: N ms (N%), own N ms",
        "  InferType: N ms (N%)",
        "  inner: N ms (N%), own N ms",
        "    FoldConstant: N ms (N%)",
        "total: N ms",
    ]


def test_timing_survives_a_pass_that_raised() -> None:
    @module_pass()
    def raising(module: Module, context: PassContext) -> Module:
        raise RuntimeError("no")

    timing = PassTiming()
    with PassContext(instruments=[timing]):
        with pytest.raises(UserCodeError):
            Sequential([raising], name="outer")(parse_module(TEXT))
        assert timing.render().splitlines()[:2] == ["outer: did not finish", "  raising: did not finish"]


def test_log_says_what_each_pass_did() -> None:
    log = PassLog()
    with PassContext(instruments=[log]):
        Sequential([InferType(), FoldConstant()], name="both")(parse_module(TEXT))
    records = [(r.name, r.changed, r.calls_before, r.calls_after, r.depth) for r in log.records]
    assert records == [("InferType", False, 3, 3, 1), ("FoldConstant", True, 3, 2, 1), ("both", True, 3, 2, 0)]
    assert all(r.seconds >= 0 for r in log.records)
    assert re.search(r"  InferType +[\d.]+ ms  \(unchanged\)\n  FoldConstant +[\d.]+ ms  3 -> 2 calls", str(log))


def test_print_before_and_after() -> None:
    written: list[str] = []
    with PassContext(instruments=[PrintIR(before=["FoldConstant"], after=["FoldConstant"], write=written.append)]):
        Sequential([InferType(), FoldConstant()])(parse_module(TEXT))
    assert [text.splitlines()[0] for text in written] == ["// before FoldConstant", "// after FoldConstant"]
    assert "add(1f, 2f)" in written[0]
    assert "3f" in written[1]


def test_print_by_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MINITVM_PRINT_IR", "FoldConstant, FuseOps")
    Sequential([InferType(), FoldConstant()])(parse_module(TEXT))
    out = capsys.readouterr().out
    assert out.startswith("// after FoldConstant\ndef @main(")
    assert out.count("//") == 1


@function_pass()
def negate_relu(function: Function, module: Module, context: PassContext) -> Function:
    return Function(function.params, -function.body)


def test_verify_names_the_pass_and_the_first_call() -> None:
    with PassContext(instruments=[Verify()]), pytest.raises(PassError) as error:
        Sequential([FoldConstant(), negate_relu])(parse_module(TEXT))
    assert re.match(r"pass negate_relu changed result 0: element \(\d, \d\) was \S+ and is -\S+$", error.value.message)
    assert error.value.where == ("the first new value is computed by negative: Tensor[(2, 3), float32]",)


def test_verify_looks_past_correct_rewrites_for_the_wrong_one() -> None:
    """``relu(a - b) + 1``: the pass rewrites the difference rightly and the sum wrongly."""
    before = "def @main(%a: Tensor[(3,), float32], %b: Tensor[(3,), float32]) { add(nn.relu(subtract(%a, %b)), 1f) }"
    after = (
        "def @main(%a: Tensor[(3,), float32], %b: Tensor[(3,), float32]) { add(nn.relu(add(%a, negative(%b))), 2f) }"
    )

    @module_pass()
    def half_right(module: Module, context: PassContext) -> Module:
        return parse_module(after)

    with PassContext(instruments=[Verify()]), pytest.raises(PassError) as error:
        half_right(parse_module(before))
    assert error.value.where == ("the first new value is computed by add: Tensor[(3,), float32]",)


def test_verify_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    negate_relu(parse_module(TEXT))
    monkeypatch.setenv("MINITVM_VERIFY", "1")
    with pytest.raises(PassError, match="pass negate_relu changed result 0"):
        negate_relu(parse_module(TEXT))


def test_verify_without_numbers_checks_the_form_only() -> None:
    with PassContext(instruments=[Verify(numbers=False)]):
        negate_relu(parse_module(TEXT))


def test_verify_finds_a_module_that_is_not_valid() -> None:
    @function_pass()
    def unbind(function: Function, module: Module, context: PassContext) -> Function:
        return Function([], function.body)

    with (
        PassContext(instruments=[Verify()]),
        pytest.raises(PassError, match="pass unbind made a module that is not valid"),
    ):
        unbind(parse_module(TEXT))


def test_verify_finds_a_pass_that_writes_into_its_input() -> None:
    @module_pass()
    def vandal(module: Module, context: PassContext) -> Module:
        constant = module.main.body
        assert isinstance(constant, Constant)
        constant.value.setflags(write=True)
        constant.value[...] = 7
        return module

    module = parse_module("def @main() { const([1, 2], int32) }")
    with PassContext(instruments=[Verify()]), pytest.raises(PassError) as error:
        vandal(module)
    assert error.value.message == "pass vandal changed the module that it was given"


def test_verify_compares_the_number_of_results() -> None:
    @module_pass()
    def drop(module: Module, context: PassContext) -> Module:
        return parse_module("def @main(%x: Tensor[(2,), float32]) { (%x,) }")

    with PassContext(instruments=[Verify()]), pytest.raises(PassError, match="number of results from 2 to 1"):
        drop(parse_module("def @main(%x: Tensor[(2,), float32]) { (%x, %x) }"))
