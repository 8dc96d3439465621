"""The text form: what it says word for word, and that it parses back to the same graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm.errors import IRError, ParseError, TypeInferenceError
from minitvm.ir.attributes import print_attributes
from minitvm.ir.builder import call_op, const, function, nn, var
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var, span_scope
from minitvm.ir.loop import Const
from minitvm.ir.loop.text import print_loop_expr
from minitvm.ir.op import OPS, Fusion, Op
from minitvm.ir.parser import parse_expr, parse_module
from minitvm.ir.structural import assert_structural_equal, structural_equal, structural_hash
from minitvm.ir.text import load_constants, module_constants, print_expr, save_constants
from minitvm.ir.types import TensorType, Type
from tests.steps import assert_linear


@dataclass(frozen=True)
class Branch(Op):
    """An operator with functions, alone and in a tuple, as attributes."""

    name = "test.text_branch"
    fusion = Fusion.OPAQUE
    then: Function
    others: tuple[Function, ...] = ()
    label: str = "none"
    scale: float = 1.0

    def infer(self, x: Type) -> Type:
        return x


del OPS[Branch.name]  # known only inside the test that uses it: other tests look at every operator


def round_trip(module: Module) -> Module:
    """Prints and parses; the text of the result is the text again."""
    text = module.astext()
    parsed = parse_module(text, module_constants(module))
    assert_structural_equal(parsed, module)
    assert structural_hash(parsed) == structural_hash(module)
    assert parsed.astext() == text
    return parsed


def dense_and_split() -> Module:
    x, w = var("data", shape=(1, 8)), var("w", shape=(4, 8))
    halves = call_op("split", nn.dense(x, w), indices_or_sections=2, axis=1)
    return Module.from_expr(call_op("maximum", call_op("negative", halves[0]), halves[1]))


def test_reads_like_relay() -> None:
    assert dense_and_split().astext() == (
        "def @main(%data: Tensor[(1, 8), float32], %w: Tensor[(4, 8), float32]) -> Tensor[(1, 2), float32] {\n"
        "  %0 = nn.dense(%data, %w) /* ty=Tensor[(1, 4), float32] */;\n"
        "  %1 = split(%0, indices_or_sections=2, axis=1) /* ty=(Tensor[(1, 2), float32], Tensor[(1, 2), float32]) */;\n"
        "  %2 = negative(%1.0) /* ty=Tensor[(1, 2), float32] */;\n"
        "  maximum(%2, %1.1) /* ty=Tensor[(1, 2), float32] */\n"
        "}\n"
    )
    round_trip(dense_and_split())


def test_only_attributes_that_are_not_at_their_default_are_printed() -> None:
    assert print_attributes(OPS["nn.conv2d"](strides=(2, 2), groups=1)) == ["strides=[2, 2]"]
    assert print_attributes(OPS["nn.conv2d"](data_layout="NHWC")) == ['data_layout="NHWC"']
    assert print_attributes(OPS["sum"](axis=(1,), keepdims=True)) == ["axis=[1]", "keepdims=True"]
    assert print_attributes(OPS["nn.relu"]()) == []
    fn = Function([], const(1.0))
    assert print_attributes(Branch(fn, scale=np.float32(0.5)), lambda _: "fn") == ["then=fn", "scale=0.5"]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (2, "float32", "2f"), (0.1, "float32", "0.1f"), (-0.0, "float32", "-0f"), (1e-5, "float32", "1e-05f"),
        (np.inf, "float32", "inff"), (-np.inf, "float64", "-inff64"), (np.nan, "float16", "nanf16"),
        (2, "float64", "2f64"), (0.1, "float64", "0.1f64"), (1.5, "float16", "1.5f16"), (3, "int32", "3i32"),
        (-3, "int64", "-3"), (255, "uint8", "255u8"), (-128, "int8", "-128i8"),
        (2**64 - 1, "uint64", f"{2**64 - 1}u64"),
        (-(2**63), "int64", f"{-(2**63)}"), (True, "bool", "True"), (False, "bool", "False"), (9, "uint16", "9u16"),
    ],
)  # fmt: skip
def test_scalars_carry_their_dtype(value: float, dtype: str, text: str) -> None:
    scalar = Constant(np.array(value, dtype))
    assert print_expr(scalar) == text == print_loop_expr(Const(value, dtype))  # one rule for graphs and loops
    parsed = parse_expr(text)
    assert isinstance(parsed, Constant)
    assert (parsed.dtype, parsed.shape, parsed.value.tobytes()) == (dtype, (), scalar.value.tobytes())


@given(st.floats(width=32), st.floats(width=16), st.floats())
@settings(max_examples=60, deadline=None)
def test_every_float_comes_back_bit_for_bit(single: float, half: float, double: float) -> None:
    x = Tuple([Constant(np.float32(single)), Constant(np.float16(half)), Constant(np.float64(double))])
    round_trip(Module(function(x)))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([1.5, -2], "float32"), "const([1.5, -2], float32)"),
        (np.array([[1, 2], [3, 4]], "int64"), "const([[1, 2], [3, 4]], int64)"),
        (np.array([[True], [False]]), "const([[True], [False]], bool)"),
        (np.array([np.inf, -np.inf, np.nan], "float16"), "const([inf, -inf, nan], float16)"),
        (np.zeros((0, 3), "int8"), "const([], Tensor[(0, 3), int8])"),
        (np.zeros((2, 0), "float32"), "const([[], []], Tensor[(2, 0), float32])"),
    ],
)
def test_small_constants_are_written_out(array: np.ndarray, text: str) -> None:
    assert print_expr(Constant(array)) == text
    assert structural_equal(parse_expr(text), Constant(array))


def test_constants_of_seventeen_elements_are_kept_beside_the_text(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=n).astype("float32") for n in (16, 17, 17, 17)]
    x = var("x", shape=(1,))
    named = [Constant(arrays[1], "file"), Constant(arrays[2], "file"), Constant(arrays[3])]
    shared = call_op("add", named[0], named[0])
    module = Module.from_expr(Tuple([call_op("add", x, Constant(arrays[0])), shared, *named]))
    text = module.astext()
    assert 'add(meta["file", Tensor[(17,), float32]], meta["file", Tensor[(17,), float32]])' in text
    constants = module_constants(module)
    assert [*constants] == ["file", "file_1", "c2"]
    save_constants(tmp_path / "c.npz", constants)
    assert_structural_equal(parse_module(text, load_constants(tmp_path / "c.npz")), module)
    assert 'const(..., Tensor[(17,), float32], name="file")' in str(module)


def test_nan_with_a_payload_is_kept_beside_the_text() -> None:
    odd = np.array(0x7FC01234, "uint32").view("float32")
    module = Module(function(Constant(odd)))
    assert module.astext().splitlines()[1] == '  meta["c0", Tensor[(), float32]]'
    round_trip(module)


def test_constants_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "c.npz").write_text("no")
    with pytest.raises(IRError, match=r"c\.npz: not a file of constants"):
        load_constants(tmp_path / "c.npz")
    with pytest.raises(IRError, match="not a file of constants"):
        load_constants(tmp_path / "absent.npz")


NAMES = ["input:0", "a/b", "a b", "ünï", 'q"uo"te', "back\\slash", "", "0", "12", "conv.weight", "layer.0.w",
         "new\nline", "*/", "%", "True", "fn", "def", "p0", "p0_1", "a//b", "/a", "a/", "\u2028"]  # fmt: skip


def test_any_name_comes_back() -> None:
    params = [Var(name, TensorType((1,))) for name in NAMES]
    module = round_trip(Module(Function(params, Tuple(params))))
    assert [p.name for p in module.main.params] == NAMES
    assert "%conv.weight: " in module.astext() and '%"layer.0.w": ' in module.astext()


@given(st.text(max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_text_is_a_name(name: str) -> None:
    x = Var(name, TensorType((2,)))
    module = Module({"main": function(nn.relu(x), [x]), f"f{name}": function(x, [x])})
    parsed = round_trip(module)
    assert [*parsed.functions] == [*module.functions]
    assert parsed.main.params[0].name == name


def test_names_that_stand_twice_are_told_apart() -> None:
    a, b = (Var("x", TensorType((1,))) for _ in range(2))
    text = str(Module(Function([a, b], call_op("subtract", a, b))))
    assert text.startswith("def @main(%x: Tensor[(1,), float32], %x_1: Tensor[(1,), float32])")
    assert "subtract(%x, %x_1)" in text


def fused(x: Expr) -> Function:
    p = Var("p0", x.checked_type)
    return Function([p], nn.relu(call_op("exp", p)), {"primitive": True, "name": "fused_exp_nn_relu", "bounds": (1, 2)})


def test_called_functions_are_bound_once() -> None:
    x = var("x", shape=(2,))
    group = fused(x)
    module = Module.from_expr(Call(group, [Call(group, [x])]))
    assert module.astext() == (
        "def @main(%x: Tensor[(2,), float32]) -> Tensor[(2,), float32] {\n"
        '  %0 = fn (%p0: Tensor[(2,), float32], primitive=True, name="fused_exp_nn_relu", bounds=[1, 2])'
        " -> Tensor[(2,), float32] {\n"
        "    %0 = exp(%p0) /* ty=Tensor[(2,), float32] */;\n"
        "    nn.relu(%0) /* ty=Tensor[(2,), float32] */\n"
        "  };\n"
        "  %1 = %0(%x) /* ty=Tensor[(2,), float32] */;\n"
        "  %0(%1) /* ty=Tensor[(2,), float32] */\n"
        "}\n"
    )
    parsed = round_trip(module).main.body
    assert isinstance(parsed, Call) and isinstance(parsed.args[0], Call)
    assert parsed.op is parsed.args[0].op
    assert dict(parsed.op.attrs) == {"primitive": True, "name": "fused_exp_nn_relu", "bounds": (1, 2)}


def test_functions_as_attributes_and_functions_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, Branch.name, Branch)
    x = var("x", shape=(2,))
    one, two = fused(x), function(call_op("log", y := var("y", shape=(2,))), [y])
    body = Call(Branch(one, (two, one), label='a"b'), [Call(two, [x])])
    module = Module({"main": function(body), "helper": two})
    assert 'test.text_branch(%1, then=%0, others=[@helper, %0], label="a\\"b")' in module.astext()
    parsed = round_trip(module)
    assert isinstance(parsed.main.body, Call) and isinstance(parsed.main.body.op, Branch)
    assert parsed.main.body.op.others[0] is parsed["helper"]


def test_tuples_inside_tuples_and_empty_ones() -> None:
    x = var("x", shape=(1,))
    inner = Tuple([x, Tuple([])])
    round_trip(Module.from_expr(Tuple([inner, Tuple([x]), TupleGetItem(TupleGetItem(Tuple([inner]), 0), 1)])))


def test_spans_are_shown_on_request() -> None:
    with span_scope(("conv1", "relu */ 1")):
        module = Module.from_expr(nn.relu(var("x", shape=(1,))))
    assert "conv1" not in module.astext()
    text = print_expr(module.main.body, show_span=True)
    assert text.endswith('nn.relu(%x) /* ty=Tensor[(1,), float32] */ /* from "conv1", "relu * / 1" */')
    assert structural_equal(parse_expr(text), module.main.body, map_free_vars=True)


def test_open_types_and_dimensions_known_only_at_run_time() -> None:
    w = Var("w")
    x = Var("x", TensorType((None, 3)))
    module = round_trip(Module(Function([x, w], Tuple([nn.relu(x), nn.relu(w)]))))
    assert module.main.params[1].checked_type is None
    assert module.astext().startswith("def @main(%x: Tensor[(?, 3), float32], %w) {\n")


def test_expression_declares_its_free_variables() -> None:
    expr = nn.relu(var("x", shape=(2,)))
    assert str(expr) == ("free_var %x: Tensor[(2,), float32];\nnn.relu(%x) /* ty=Tensor[(2,), float32] */")
    assert structural_equal(parse_expr(str(expr)), expr, map_free_vars=True)
    x = var("x", shape=(2,))
    assert structural_equal(parse_expr("nn.relu(%x)", variables=[x]), nn.relu(x))


def test_text_as_one_writes_it_in_a_test() -> None:
    module = parse_module("""
        # a comment
        def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32],) {  // another
          %y = nn.conv2d(%x, weight=%w, padding=(1, 1), strides=[2,2]);  /* and
          another */
          %z = nn.relu(add(%y, const([[[1]], [[2]], [[3]], [[4]]], float32)));
          concatenate((%z, (%z)), axis=1)
        }
    """)
    assert str(module.main.ret_type) == "Tensor[(1, 8, 4, 4), float32]"
    assert "nn.conv2d(%x, %w, strides=[2, 2], padding=[1, 1" in str(module)
    round_trip(module)


def test_functions_may_be_called_before_they_are_defined() -> None:
    module = parse_module("""
        def @main(%x: Tensor[(1,), float32]) { @twice(@twice(%x)) }
        def @twice(%x: Tensor[(1,), float32]) -> Tensor[(1,), float32] { add(%x, %x) }
    """)
    assert [*module.functions] == ["main", "twice"]
    assert isinstance(module.main.body, Call) and module.main.body.op is module["twice"]
    round_trip(module)


X = "%x: Tensor[(2, 3), float32]"


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("", "expected 'def', found the end of the text", 1, 1),
        ("module", "expected 'def', found 'module'", 1, 1),
        (f"def @main({X}) {{\n  nn.rel(%x)\n}}", "unknown operator 'nn.rel'", 2, 3),
        (f"def @main({X}) {{ nn.relu(%y) }}", "%y is not bound", 1, 50),
        ("def @main(%x) {\n  clip(%x, a_mni=0)\n}", "clip: unknown attribute 'a_mni'", 2, 12),
        ("def @main(%x) {\n  %0 = nn.relu(%x)\n  %0\n}", "expected ';', found '%0'", 3, 3),
        ("def @main(%x, %x) { %x }", "%x is bound twice", 1, 15),
        ("def @main(%x) { %0 = %x; %0 = %x; %0 }", "%0 is bound twice", 1, 26),
        ("def @main(%x) { %x } }", "expected 'def' or the end of the text, found '}'", 1, 22),
        ("def @main(%x) { %x", "expected '}', found the end of the text", 1, 19),
        ("def @main(%x) { @f(%x) }", "unknown function @f", 1, 17),
        ("def @main(%x) { @main(%x) }", "@main calls itself", 1, 17),
        ("def @a() { 1 }\ndef @a() { 1 }", "@a is defined twice", 2, 5),
        ("def @main(%x: Tensor[(1, 2), float33]) { %x }", "'float33' is not a dtype", 1, 30),
        ("def @main(%x: Tensor[(1, -2), float32]) { %x }", "-2 is not a dimension", 1, 26),
        ("def @main(%x: int) { %x }", "expected a type, found 'int'", 1, 15),
        ("def @main() { $ }", "unexpected character '$'", 1, 15),
        ('def @main(%"a\\q": Tensor[(), float32]) { 1 }', "unexpected character '%'", 1, 11),
        ('def @main() { meta["a\\u12"] }', "unexpected character '\"'", 1, 20),
        ("def @main() { 300u8 }", "not a constant of uint8", 1, 15),
        ("def @main() { const([1, [2]], int32) }", "not a constant of int32", 1, 15),
        ("def @main() { const([1, 2], Tensor[(3,), int32]) }",
         "2 values for a constant of type Tensor[(3,), int32]", 1, 15),
        ("def @main() { const(..., Tensor[(3,), int32]) }", "the value of this constant was left out", 1, 21),
        ('def @main() { meta["w"] }', "the constant 'w' is kept beside the text", 1, 15),
        ("def @main(%x) { %x(%x) }", "%x is not a function and cannot be called", 1, 19),
        ("def @main(%x) { clip(a_min=0, %x) }", "an argument stands behind an attribute", 1, 31),
        ("def @main(%x) { clip(%x, a_min=NCHW) }", "expected a value, found 'NCHW'", 1, 32),
        (f"def @main({X}) -> Tensor[(3, 2), float32] {{ %x }}",
         "the function is declared as Tensor[(3, 2), float32], its body is Tensor[(2, 3), float32]", 1, 10),
        ("def @main(%x) { " + "abs(" * 200 + "%x" + ")" * 200 + " }", "nested more than 100 deep", 1, 413),
    ],
)  # fmt: skip
def test_parse_errors_say_what_and_where(text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_module(text)
    assert caught.value.message.startswith(message)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert caught.value.where[0] == f"line {line}, column {column}"
    assert caught.value.where[2].endswith("^")


def test_parse_error_word_for_word() -> None:
    with pytest.raises(ParseError) as caught:
        parse_module("def @main(%x) {\n\tnn.convd2d(%x)\n}")
    assert str(caught.value) == (
        "unknown operator 'nn.convd2d'\n"
        "  | line 2, column 2\n"
        "  | \tnn.convd2d(%x)\n"
        "  | \t^\n"
        "  = hint: did you mean nn.conv2d or nn.conv3d or nn.conv1d?"
    )


def test_constants_that_do_not_fit_the_text() -> None:
    text = 'def @main() { meta["w", Tensor[(2,), float32]] }'
    with pytest.raises(ParseError, match="no constant 'w' was given"):
        parse_module(text, {"v": np.zeros(2, "float32")})
    with pytest.raises(ParseError, match=r"the constant 'w' is Tensor\[\(3,\), float32\], the text says"):
        parse_module(text, {"w": np.zeros(3, "float32")})


def test_type_errors_name_the_line() -> None:
    with pytest.raises(TypeInferenceError) as caught:
        parse_module(f"def @main({X}) {{\n\n  nn.dense(%x, %x, units=9)\n}}")
    assert caught.value.where[-1] == "line 3 of the text"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_text_is_a_clean_error(data: st.DataObject) -> None:
    text = dense_and_split().astext()
    start = data.draw(st.integers(0, len(text)))
    added = data.draw(st.text('(){}[]%@.,;:="#/*0x', max_size=3))
    damaged = text[:start] + added + text[start + data.draw(st.integers(0, 4)) :]
    try:
        parsed = parse_module(damaged)
    except (ParseError, TypeInferenceError) as error:
        assert error.where
    else:
        assert "main" in parsed.functions or "@main" not in damaged


def random_graph(seed: int) -> Module:
    """Calls, tuples, projections, constants and fused groups in random order, some results shared."""
    rng = np.random.default_rng(seed)
    x = var("x:0", shape=(2, 3))
    pool: list[Expr] = [x, const(rng.normal(size=(2, 3)).astype("float32"), name="w"), const(1.5)]
    group = fused(x)

    def pick() -> Expr:
        return pool[int(rng.integers(len(pool)))]

    for _ in range(int(rng.integers(1, 30))):
        kind = int(rng.integers(6))
        if kind < 3:
            pool.append(call_op(["add", "multiply", "maximum"][kind], pick(), pick()))
        elif kind == 3 and (big := [e for e in pool if e.shape == (2, 3)]):
            pool.append(Call(group, [big[int(rng.integers(len(big)))]]))
        elif kind == 4:
            pool.append(Tuple([pick(), pick()])[int(rng.integers(2))])
        else:
            shape = [(3,), (7, 2, 3)][int(rng.integers(2))]
            values = Constant(rng.normal(size=shape).astype(["float16", "float64"][int(rng.integers(2))]))
            pool.append(call_op("sum", call_op("cast", values, dtype="float32")))
    return Module.from_expr(Tuple(pool[-4:]))


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_come_back(seed: int) -> None:
    round_trip(random_graph(seed))


def test_five_thousand_calls_in_linear_time() -> None:
    def print_and_parse(count: int) -> Callable[[], None]:
        expr: Expr = var("x", shape=(2,))
        for i in range(count):
            expr = call_op("add", nn.relu(expr), const(float(i)))
        module = Module.from_expr(expr)

        def work() -> None:
            text = module.astext()
            assert text.count("\n") == 2 * count + 2
            assert structural_equal(parse_module(text), module)

        return work

    print_and_parse(2500)()
    assert_linear(print_and_parse, 250)
