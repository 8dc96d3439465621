"""InferType and bind_params.

Left out of Relay's cases: let, recursion, higher-order functions, references, ADTs and type variables, which the
graph IR does not have.  Types of single operators are tested with the operators.
"""

import numpy as np
import pytest

from minitvm.errors import InputError, TypeInferenceError
from minitvm.ir import builder as ir
from minitvm.ir.expr import Module
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import structural_hash
from minitvm.ir.types import TensorType
from minitvm.passes import InferType, bind_module, bind_params
from minitvm.testing.checks import run_infer_type


def simple_net() -> Module:
    data = ir.var("data", TensorType((1, 3, 12, 12)))
    weight = ir.var("weight")
    norm = [ir.var(f"bn_{name}") for name in ("gamma", "beta", "mean", "var")]
    conv = ir.nn.conv2d(data, weight, kernel_size=(3, 3), channels=16, padding=(1, 1))
    return Module.from_expr(ir.nn.relu(ir.nn.batch_norm(conv, *norm)[0]))


def test_weights_and_statistics_are_solved_from_their_uses() -> None:
    module = simple_net()
    before = structural_hash(module)
    types = {p.name: str(p.type) for p in InferType()(module).main.params}
    assert structural_hash(module) == before
    assert types["weight"] == "Tensor[(16, 3, 3, 3), float32]"
    assert {types[f"bn_{n}"] for n in ("gamma", "beta", "mean", "var")} == {"Tensor[(16,), float32]"}


def test_typed_module_comes_back_as_it_is() -> None:
    module = parse_module("def @main(%x: Tensor[(2,), float32]) { nn.relu(%x) }")
    assert InferType()(module) is module


def test_solved_variables_solve_others() -> None:
    text = """
    def @main(%x: Tensor[(2, 8), float32], %w, %b, %v) {
      %0 = nn.bias_add(nn.dense(%x, %w, units=4), %b);
      nn.dense(%0, %v, units=5)
    }"""
    module = parse_module(text)
    params = run_infer_type(module).main.params
    assert params[0] is module.main.params[0], "it has a type"
    assert [str(p.type) for p in params[1:]] == [
        "Tensor[(4, 8), float32]",
        "Tensor[(4,), float32]",
        "Tensor[(5, 4), float32]",
    ]


def test_use_before_the_defining_one() -> None:
    """The bias is first used where its shape stays open, then where it is determined."""
    text = """
    def @main(%x: Tensor[(2, 8), float32], %b) {
      %0 = nn.relu(%b);
      (%0, nn.bias_add(%x, %b))
    }"""
    result = run_infer_type(parse_module(text)).main
    assert str(result.ret_type) == "(Tensor[(8,), float32], Tensor[(2, 8), float32])"


def test_a_variable_that_no_use_determines_is_named() -> None:
    with pytest.raises(TypeInferenceError) as error:
        run_infer_type(parse_module("def @main(%x: Tensor[(2, 8), float32], %w) { nn.dense(%x, %w) }"))
    assert str(error.value) == (
        "the type of %w cannot be inferred from its uses\n"
        "  | %w is used by nn.dense\n"
        "  | in pass InferType\n"
        '  = hint: give the variable a type: var("w", TensorType(shape, dtype))'
    )


@pytest.mark.parametrize(
    ("body", "user"),
    [
        ("nn.bias_add(%x, nn.relu(%w))", "nn.relu"),
        ("(nn.relu(nn.dense(%x, %w)), nn.dense(%x, %v))", "nn.dense"),
        ("add(nn.relu(%x), @f(%w))", "a call of a function"),
    ],
)
def test_only_its_own_uses_are_named(body: str, user: str) -> None:
    text = f"""
    def @main(%x: Tensor[(2, 8), float32], %w{", %v" * ("%v" in body)}) {{ {body} }}
    def @f(%a) {{ nn.relu(%a) }}"""
    with pytest.raises(TypeInferenceError) as error:
        run_infer_type(parse_module(text))
    assert [line for line in str(error.value).splitlines() if "used by" in line] == [f"  | %w is used by {user}"]


def test_uses_that_disagree_are_an_error_of_the_second() -> None:
    text = """
    def @main(%x: Tensor[(2, 8), float32], %y: Tensor[(2, 9), float32], %b) {
      (nn.bias_add(%x, %b), nn.bias_add(%y, %b))
    }"""
    with pytest.raises(TypeInferenceError, match=r"nn.bias_add"):
        run_infer_type(parse_module(text))


def test_bound_parameters_become_constants_of_their_name() -> None:
    module = InferType()(simple_net())
    weight = np.random.default_rng(1).standard_normal((16, 3, 3, 3)).astype("float32")
    bound = bind_module(module, {"weight": weight})
    assert "weight" not in [p.name for p in bound.main.params]
    assert 'name="weight"' in bound.astext(show_meta_data=False)
    assert bind_params(module.main, {}) is module.main


def test_binding_types_an_untyped_parameter() -> None:
    module = parse_module("def @main(%x: Tensor[(2, 8), float32], %w) { nn.dense(%x, %w) }")
    bound = bind_params(module.main, {"w": np.ones((4, 8), "float32")})
    assert str(bound.ret_type) == "Tensor[(2, 4), float32]"


def test_binding_an_unknown_name() -> None:
    module = parse_module("def @main(%x: Tensor[(2,), float32]) { %x }")
    with pytest.raises(InputError) as error:
        bind_params(module.main, {"w": np.ones(2, "float32")})
    assert str(error.value) == "there is no parameter 'w' to bind\n  = hint: parameters: x"


@pytest.mark.parametrize("array", [np.ones(3, "float32"), np.ones(2, "float64"), np.ones((2, 1), "float32")])
def test_binding_an_array_that_does_not_fit(array: np.ndarray) -> None:
    module = parse_module("def @main(%x: Tensor[(2,), float32]) { %x }")
    with pytest.raises(InputError, match=r"parameter 'x' is Tensor\[\(2,\), float32\], the array is Tensor"):
        bind_params(module.main, {"x": array})
