"""Passes of one's own in builds, and other orders: ``passes``, ``pipeline``, ``PassContext.before``, ``Sequential``."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import minitvm
from minitvm.errors import PassError, UserCodeError
from minitvm.ir.expr import Call, Expr, Module
from minitvm.ir.ops.elemwise import Relu
from minitvm.ir.parser import parse_module
from minitvm.ir.pattern import call, value
from minitvm.ir.visitor import calls
from minitvm.passes import FoldConstant, PassContext, Sequential, module_pass, rule

MODULE = parse_module("def @main(%x: Tensor[(2, 3), float32]) { nn.relu(add(%x, add(1f, 2f))) }")


def names(library: minitvm.Library) -> list[str]:
    assert library.report is not None
    return [step.name for step in library.report.steps]


def look(seen: list[int]) -> object:
    def looking(module: Module) -> Module:
        seen.append(len(calls(module.main)))
        return module

    return looking


@rule(call(Relu, value("x")))
def keep_negative(x: Expr) -> Expr:
    return x


def result(library: minitvm.Library, x: np.ndarray) -> np.ndarray:
    module = minitvm.GraphModule(library["default"](minitvm.cpu()))
    module.run(x=x)
    return module.get_output(0).numpy()


def test_passes_run_first_and_may_be_functions_and_rules() -> None:
    seen: list[int] = []
    library = minitvm.build(MODULE, passes=[keep_negative, look(seen)])
    assert names(library)[:3] == ["keep_negative", "looking", "InferType"] and seen == [2]
    x = np.array([[-9, 0, 1], [2, -3, 4]], "float32")
    assert result(library, x).tolist() == (x + 3).tolist()
    assert result(minitvm.build(MODULE), x).tolist() == np.maximum(x + 3, 0).tolist()  # nothing is remembered


def test_a_model_is_compiled_with_passes() -> None:
    value_info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value_info[:1], value_info[1:])
    library = minitvm.compile(helper.make_model(graph), passes=[keep_negative])
    assert result(library, np.full((2, 3), -1, "float32")).tolist() == [[-1] * 3] * 2


def test_a_pipeline_names_passes_of_the_default_one() -> None:
    seen: list[int] = []
    library = minitvm.build(MODULE, pipeline=["FoldConstant#2", look(seen), "FuseOps"], opt_level=3)
    assert names(library) == ["FoldConstant", "looking", "FuseOps", "pipeline"] and seen == [2]


def test_levels_gate_a_pipeline_and_say_so() -> None:
    library = minitvm.build(MODULE, pipeline=["FoldScaleAxis", "FoldConstant", "FuseOps"], opt_level=2)
    assert names(library) == ["FoldConstant", "FuseOps", "pipeline"]
    assert "the whole module: FoldScaleAxis declined: it is of level 3, and the context of 2" in [
        str(d)
        for d in library.report.decisions  # type: ignore[union-attr]
    ]


def test_a_context_places_passes_among_those_of_builds() -> None:
    seen: list[int] = []
    with PassContext(opt_level=3).before("FuseOps", look(seen)).after("FoldConstant#1", keep_negative):
        ran = names(minitvm.build(MODULE))
    assert ran[ran.index("FuseOps") - 1] == "looking" and seen == [1]
    assert ran[ran.index("FoldConstant") + 1] == "keep_negative"
    assert "looking" not in names(minitvm.build(MODULE))


def test_the_first_run_and_the_last() -> None:
    with PassContext(opt_level=3).before("FoldConstant", look([])).after("FoldConstant", keep_negative):
        ran = names(minitvm.build(MODULE))
    runs = [i for i, name in enumerate(ran) if name == "FoldConstant"]
    assert ran[runs[0] - 1] == "looking" and ran[runs[-1] + 1] == "keep_negative"


def test_a_pass_that_the_level_leaves_out_has_a_place() -> None:
    with PassContext(opt_level=1).before("AlterOpLayout", look([])):
        ran = names(minitvm.build(MODULE))
    assert "AlterOpLayout" not in ran and "looking" in ran


def test_names_that_are_none() -> None:
    with pytest.raises(PassError) as error:
        PassContext().before("FuseOp", look([]))
    assert error.value.hint == "did you mean 'FuseOps'?"
    with PassContext().before("FoldConstant#8", look([])), pytest.raises(PassError) as error:
        minitvm.build(MODULE)
    assert error.value.message == "default_pipeline has no run 'FoldConstant#8'"
    assert error.value.hint == "the runs are FoldConstant#1, FoldConstant#2, FoldConstant#3"
    with pytest.raises(PassError, match="there is no pass 'FoldConstants'"):
        minitvm.build(MODULE, pipeline=["FoldConstants"])
    for wrong in ("FuseOps", 3):
        with pytest.raises(PassError, match="not a list of passes"):
            minitvm.build(MODULE, pipeline=wrong)  # type: ignore[arg-type]
    with pytest.raises(PassError) as error:
        minitvm.build(MODULE, passes=[FoldConstant])
    assert error.value.hint == "call it: FoldConstant()"


def test_a_pipeline_without_kernels_is_refused() -> None:
    with pytest.raises(PassError) as error:
        minitvm.build(MODULE, pipeline=["FoldConstant"])
    assert error.value.message == "after all passes add is in no kernel"


def test_what_a_pass_raises_or_returns_is_named() -> None:
    def divides(module: Module) -> Module:
        raise ZeroDivisionError("by nothing")

    def forgets(module: Module) -> Module:
        return None  # type: ignore[return-value]

    with pytest.raises(UserCodeError, match="pass divides raised ZeroDivisionError: by nothing"):
        minitvm.build(MODULE, passes=[divides])
    with pytest.raises(PassError, match="pass forgets returned NoneType instead of a Module"):
        minitvm.build(MODULE, passes=[forgets])

    @minitvm.transform.function_pass()
    def loses(function: object, module: Module, context: PassContext) -> object:
        return None

    with pytest.raises(PassError, match="pass loses returned NoneType instead of a Function"):
        minitvm.build(MODULE, passes=[loses])


def test_sequentials_are_rearranged() -> None:
    @module_pass(name="Mine")
    def mine(module: Module, context: PassContext) -> Module:
        return module

    inner = Sequential([FoldConstant(), mine], name="inner")
    steps = Sequential([FoldConstant(), inner, FoldConstant()])
    assert steps.names == ("FoldConstant", "inner", "FoldConstant", "Mine", "FoldConstant")
    assert steps.before("Mine", keep_negative).names[3:5] == ("keep_negative", "Mine")
    assert steps.after("FoldConstant", mine).names[-2:] == ("FoldConstant", "Mine")
    assert steps.without("FoldConstant").names == ("inner", "Mine")
    assert steps.without("FoldConstant#2").names == ("FoldConstant", "inner", "Mine", "FoldConstant")
    assert steps.replaced("FoldConstant#3", mine).names[-1] == "Mine"
    assert steps.names[0] == "FoldConstant"


def test_kernels_of_another_pipeline_are_not_taken_from_the_cache() -> None:
    """A kernel is known by its group: a pass that makes another constant of it makes another kernel."""

    def doubled(module: Module) -> Module:
        return Module.from_expr(_twice(module.main.body))

    x = np.ones((2, 3), "float32")
    found = [result(minitvm.build(MODULE, passes=p), x).max() for p in ([], [doubled], [])]
    assert found == [4, 8, 4]


def _twice(body: Expr) -> Expr:
    assert isinstance(body, Call)
    return body + body
