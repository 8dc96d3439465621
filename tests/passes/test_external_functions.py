"""Graphs that are cut up for other compilers: text, numbers, builds, saved libraries, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import MiniTVMError, PassError, TypeInferenceError, UserCodeError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.ops import external
from minitvm.ir.structural import structural_equal
from minitvm.passes.partition import (
    AnnotateTarget,
    MergeCompilerRegions,
    MergeComposite,
    PartitionGraph,
    get_pattern_table,
    register_generator,
    register_op_attr,
    register_pattern_table,
    supported,
)
from minitvm.relay.dataflow_pattern import is_op, wildcard

TYPE = "Tensor[(2, 3), float32]"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two compilers: ``a`` computes exp and tanh, ``b`` negative; both by the interpreter."""
    monkeypatch.setattr(supported, "SUPPORTED", {})
    monkeypatch.setattr(external, "GENERATORS", {"a": interpreted, "b": interpreted})
    for name, compiler in (("exp", "a"), ("tanh", "a"), ("negative", "b")):
        register_op_attr(name, f"target.{compiler}", True)
    yield


def interpreted(function: Function) -> Any:
    return lambda *arrays: evaluate(function, *arrays)


def parsed(body: str) -> Module:
    return relay.parse(f"def @main(%x: {TYPE}) {{ {body} }}")


def partitioned(module: Module, *targets: str, merge: bool = True) -> Module:
    module = AnnotateTarget(targets)(module)
    return PartitionGraph()(MergeCompilerRegions()(module) if merge else module)


def functions(module: Module) -> list[str]:
    return [name.removeprefix("tvmgen_default_") for name in module.functions]


def array(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (2, 3)).astype("float32")


def begin(arg: str, compiler: str) -> str:
    return f'annotation.compiler_begin({arg}, compiler="{compiler}")'


def end(arg: str, compiler: str) -> str:
    return f'annotation.compiler_end({arg}, compiler="{compiler}")'


def test_annotate_target_marks_every_call() -> None:
    found = AnnotateTarget("a")(parsed("abs(exp(%x))"))
    inside = end(f"exp({begin('%x', 'a')})", "a")
    assert structural_equal(found, parsed(end(f"abs({begin(inside, 'default')})", "default")))


def test_a_graph_that_nobody_computes_stays() -> None:
    module = parsed("abs(%x)")
    assert AnnotateTarget(["a", "b"])(module) is module
    assert MergeCompilerRegions()(module) is module and PartitionGraph()(module) is module


def test_the_first_target_that_can_is_taken() -> None:
    register_op_attr("exp", "target.b", lambda call: call.shape == (2, 3))
    assert functions(partitioned(parsed("exp(%x)"), "a", "b")) == ["main", "a_main_0"]
    assert functions(partitioned(parsed("exp(%x)"), "b", "a")) == ["main", "b_main_0"]


def test_merge_compiler_regions() -> None:
    found = MergeCompilerRegions()(AnnotateTarget("a")(parsed("tanh(exp(%x))")))
    assert structural_equal(found, parsed(end(f"tanh(exp({begin('%x', 'a')}))", "a")))


def test_partition_graph() -> None:
    found = partitioned(parsed("%0 = exp(%x); add(tanh(%0), abs(%0))"), "a")
    assert functions(found) == ["main", "a_main_0"]
    made = found["tvmgen_default_a_main_0"]
    assert dict(made.attrs) == {
        "Primitive": 1,
        "Inline": 1,
        "Compiler": "a",
        "global_symbol": "tvmgen_default_a_main_0",
    }
    inner = relay.parse_expr(f"fn (%i: {TYPE}) {{ %0 = exp(%i); (%0, tanh(%0)) }}")
    assert isinstance(inner, Function) and structural_equal(Function(made.params, made.body), inner)
    assert found.astext().count("@tvmgen_default_a_main_0") == 2
    np.testing.assert_array_equal(
        evaluate(found, array()), evaluate(parsed("add(tanh(exp(%x)), abs(exp(%x)))"), array())
    )
    assert structural_equal(relay.parse(found.astext()), found)


def test_neighbours_are_not_joined_around_a_third() -> None:
    """exp -> abs -> add and exp -> tanh -> add: abs lies between, and would need both halves of one function."""
    register_op_attr("add", "target.a", True)
    found = partitioned(parsed("%0 = exp(%x); add(abs(%0), tanh(%0))"), "a")
    assert functions(found) == ["main", "a_main_0", "a_main_1"]
    np.testing.assert_array_equal(
        evaluate(found, array()), evaluate(parsed("%0 = exp(%x); add(abs(%0), tanh(%0))"), array())
    )


def test_constants_are_inside_or_arguments() -> None:
    register_op_attr("add", "target.a", True)
    module = relay.parse(
        f'def @main(%x: {TYPE}) {{ exp(add(%x, meta["w"])) }}', {"w": np.ones((2, 30, 3), "float32")[:, 0]}
    )
    marked = MergeCompilerRegions()(AnnotateTarget("a")(module))
    assert len(PartitionGraph()(marked)["tvmgen_default_a_main_0"].params) == 1
    assert len(PartitionGraph(bind_constants=False)(marked)["tvmgen_default_a_main_0"].params) == 2
    assert "tvmgen_mine_a_main_0" in PartitionGraph(mod_name="mine")(marked)


def test_tuples_go_with_what_they_are_made_of() -> None:
    register_op_attr("concatenate", "target.a", True)
    module = parsed("abs(concatenate((exp(%x), tanh(%x))))")
    assert functions(partitioned(module, "a")) == ["main", "a_main_0"]
    apart = MergeCompilerRegions()(AnnotateTarget("a", include_non_call_ops=False)(module))
    assert len(PartitionGraph()(apart).functions) == 4
    for found in (
        partitioned(module, "a"),
        PartitionGraph()(apart),
        partitioned(parsed("split(exp(%x), indices_or_sections=3, axis=1).1"), "a"),
    ):
        assert structural_equal(relay.parse(found.astext()), found)
    np.testing.assert_array_equal(evaluate(PartitionGraph()(apart), array()), evaluate(module, array()))


def test_composite_functions() -> None:
    @register_pattern_table("a")
    def table() -> list[Any]:
        both = is_op("nn.relu")(is_op("multiply")(wildcard(), wildcard()))
        return [("a.never", is_op("erf")(wildcard())), ("a.mul_relu", both, lambda relu: relu.shape == (2, 3))]

    module = parsed("nn.relu(multiply(nn.relu(multiply(%x, %x)), %x))")
    merged = MergeComposite(get_pattern_table("a"))(module)
    assert merged.astext().count('Composite="a.mul_relu"') == 2 and "a.never" not in merged.astext()
    found = partitioned(merged, "a")
    assert functions(found) == ["main", "a_main_0"]
    np.testing.assert_array_equal(evaluate(found, array()), evaluate(module, array()))
    np.testing.assert_allclose(minitvm.build(found).run({"x": array()})[0], evaluate(module, array()), rtol=1e-6)
    np.testing.assert_allclose(minitvm.build(merged).run({"x": array()})[0], evaluate(module, array()), rtol=1e-6)


def drawn(rng: random.Random) -> Module:
    """A graph of a dozen calls that share operands."""
    nodes: list[Expr] = [x := relay.var("x", shape=(2, 3))]
    for _ in range(12):
        name = rng.choice(("exp", "tanh", "negative", "abs", "add", "split"))
        one, other = rng.choice(nodes), rng.choice(nodes[-4:])
        if name == "split":
            parts = relay.split(one, 3, axis=1)
            nodes.append(relay.concatenate((parts[2], parts[0], relay.tanh(parts[1])), axis=1))
        else:
            call = relay.add(relay.tanh(one), other) if name == "add" else relay.op.get(name)(relay.tanh(one))
            nodes.append(call)
    return Module(Function([x], relay.Tuple(nodes[-2:])))


def test_drawn_graphs_keep_their_numbers() -> None:
    """However they are cut; what is built of some of them gives the same."""
    rng, regions = random.Random(3), 0
    register_op_attr("add", "target.b", lambda call: rng.random() < 0.5)
    register_op_attr("concatenate", "target.a", True)
    for number in range(60):
        module = drawn(rng)
        expected = evaluate(module, array())
        found = partitioned(module, *rng.choice((("a",), ("b", "a"), ("a", "b"))), merge=number % 3 > 0)
        regions += len(found.functions) - 1
        given = [evaluate(found, array())]
        if number % 20 == 0:
            given.append(tuple(minitvm.build(found).run({"x": array()})))
        for results in given:
            for one, other in zip(results, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-6)
    assert regions > 120


def test_a_library_keeps_external_functions(tmp_path: Path) -> None:
    asked: list[Function] = []

    @register_generator("a", override=True)
    def generate(function: Function) -> Any:
        asked.append(function)
        return interpreted(function)

    weight = np.random.default_rng(1).normal(size=(40, 3)).astype("float32")
    register_op_attr("nn.dense", "target.a", True)
    module = relay.parse(f'def @main(%x: {TYPE}) {{ abs(exp(nn.dense(%x, meta["w"]))) }}', {"w": weight})
    library = minitvm.build(partitioned(module, "a"), strict=True)
    assert [call.op for call in library.host_calls] == ["tvmgen_default_a_main_0 (by code generator a)"]
    expected = np.abs(np.exp(array() @ weight.T))
    np.testing.assert_allclose(library.run({"x": array()})[0], expected, rtol=1e-5)
    library.save(tmp_path / "library.mtvm")
    loaded = minitvm.load(tmp_path / "library.mtvm")
    for seed in range(3):
        np.testing.assert_allclose(loaded.run({"x": array(seed)})[0], np.abs(np.exp(array(seed) @ weight.T)), rtol=1e-5)
    assert all(f.attrs["Compiler"] == "a" and relay.analysis.free_vars(f) == [] for f in asked)
    del external.GENERATORS["a"]
    with pytest.raises(MiniTVMError, match="@tvmgen_default_a_main_0: no code generator 'a' is registered"):
        loaded.run({"x": array()})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: (x, x), "gives 2 results; the function has 1 result"),
        (lambda x: x[0], r"gives Tensor\[\(3,\), float32\] as result 0; the function's is Tensor\[\(2, 3\), float32\]"),
        (lambda x: x.astype("float64"), r"gives Tensor\[\(2, 3\), float64\] as result 0; the function's is"),
        (lambda x: None, "gives NoneType as result 0"),
    ],
)
def test_what_a_generator_returns_wrongly(result: Any, message: str) -> None:
    external.GENERATORS["a"] = lambda function: result
    library = minitvm.build(partitioned(parsed("exp(%x)"), "a"))
    with pytest.raises(MiniTVMError, match=f"function @tvmgen_default_a_main_0: code generator 'a' {message}") as error:
        library.run({"x": array()})
    assert "def @main(%a_0_i0" in str(error.value)


def test_errors_of_generators_are_of_the_build() -> None:
    module = partitioned(parsed("exp(%x)"), "a")
    external.GENERATORS["a"] = lambda function: 7
    with pytest.raises(MiniTVMError, match="function @tvmgen_default_a_main_0: code generator 'a' gives a int"):
        minitvm.build(module)
    external.GENERATORS["a"] = lambda function: 1 / 0
    with pytest.raises(
        UserCodeError, match="code generator a of function @tvmgen_default_a_main_0 raised ZeroDivision"
    ):
        minitvm.build(module)
    external.GENERATORS["a"] = lambda function: lambda x: 1 / 0
    with pytest.raises(UserCodeError, match="made by code generator a, raised ZeroDivisionError"):
        minitvm.build(module).run({"x": array()})
    del external.GENERATORS["a"]
    with pytest.raises(MiniTVMError, match="no code generator 'a' is registered"):
        minitvm.build(module)


def test_what_is_refused() -> None:
    with pytest.raises(TypeInferenceError, match=r"there is no operator 'nn\.conv3'"):
        register_op_attr("nn.conv3", "target.a", True)
    with pytest.raises(PassError, match="FTVMLegalize of exp is True"):
        minitvm.ir.register_op_attr("exp", "FTVMLegalize", True)
    with pytest.raises(PassError, match="no pattern table is registered for 'numpie'"):
        get_pattern_table("numpie")
    with pytest.raises(PassError, match=r"an entry of a pattern table is 'a\.b'"):
        MergeComposite(["a.b"])  # type: ignore[list-item]
    with pytest.raises(PassError, match="there is a code generator 'a' already"):
        register_generator("a", lambda function: None)
    with pytest.raises(PassError, match=r"register_func of 'my\.function'"):
        minitvm.register_func("my.function", lambda: None)
    with pytest.warns(UserWarning, match=r"no pattern of the table matches anything; its patterns: a\.erf"):
        module = parsed("exp(%x)")
        assert MergeComposite([("a.erf", is_op("erf")(wildcard()))])(module) is module
    with pytest.raises(UserCodeError, match=r"target\.a of exp raised KeyError"):
        register_op_attr("exp", "target.a", lambda call: {}["x"])
        AnnotateTarget("a")(module)


def test_names() -> None:
    assert relay.transform.PartitionGraph is PartitionGraph and relay.op.contrib.get_pattern_table is get_pattern_table
    from minitvm.relay.op.contrib.register import register_pattern_table as same

    assert same is register_pattern_table
    assert isinstance(relay.op.get("exp")(relay.var("x", shape=(2,))), Call)
