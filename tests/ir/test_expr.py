"""Nodes: immutable, typed when built, and clear about what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.errors import IRError, TypeInferenceError
from minitvm.ir.builder import call_op, const, function, nn, var
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var, merge_spans, span_scope
from minitvm.ir.types import TensorType, TupleType


def test_nodes_are_immutable() -> None:
    x = var("x", shape=(2,))
    nodes: list[tuple[Expr, str]] = [
        (x, "name"), (const(1.0), "value"), (nn.relu(x), "args"), (Tuple([x]), "fields"), (Tuple([x])[0], "index"),
        (function(x), "body"), (x, "checked_type"), (x, "span"), (x, "anything"),
    ]  # fmt: skip
    for node, name in nodes:
        with pytest.raises(AttributeError, match="is immutable; build a new node instead of setting"):
            setattr(node, name, 1)
    module = Module(function(x))
    with pytest.raises(AttributeError, match="Module is immutable; use with_function"):
        module.functions = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        module.functions["f"] = function(x)  # type: ignore[index]
    with pytest.raises(TypeError):
        function(x).attrs["name"] = "f"  # type: ignore[index]


def test_constants_are_read_only_and_leave_the_given_array_alone() -> None:
    array = np.arange(4.0)
    whole, view = Constant(array), Constant(array[1:])
    array[:] = -1
    assert whole.value.tolist() == [0, 1, 2, 3] and view.value.tolist() == [1, 2, 3]
    assert array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        whole.value[0] = 1


def test_a_view_that_is_read_only_does_not_follow_its_owner() -> None:
    array = np.arange(4.0)
    view = array[:2]
    view.setflags(write=False)
    constant = Constant(view)
    array[:] = -1
    assert constant.value.tolist() == [0, 1]


def test_types_are_known_when_a_node_is_built() -> None:
    x = var("x", shape=(4, 3))
    assert nn.relu(x).type == TensorType((4, 3))
    split = call_op("split", x, indices_or_sections=2)
    assert split.type == TupleType((TensorType((2, 3)), TensorType((2, 3))))
    assert [part.shape for part in split] == [(2, 3), (2, 3)]
    assert str(function(x).type) == "fn (Tensor[(4, 3), float32]) -> Tensor[(4, 3), float32]"
    assert (x.shape, x.dtype) == ((4, 3), "float32")


def test_types_stay_open_below_untyped_variables() -> None:
    call = nn.dense(var("x", shape=(2, 3)), w := Var("w"))
    assert call.checked_type is None and Tuple([call]).checked_type is None and function(call).checked_type is None
    with pytest.raises(IRError) as caught:
        _ = w.type
    assert str(caught.value) == ("this Var has no type yet\n  = hint: run the pass InferType on the module")


def test_spans() -> None:
    with span_scope(("a",)):
        x = var("x", shape=(2,))
        with span_scope(("b",)):
            inner = nn.relu(x)
        own = Call(inner.op, [x], span=("c",))
    assert (x.span, inner.span, own.span, nn.relu(x).span) == (("a",), ("b",), ("c",), ())
    assert merge_spans(("a", "b"), ("b", "c"), ()) == ("a", "b", "c")
    assert TupleGetItem(Tuple([x], span=("t",)), 0).span == ("t",)


def test_span_scope_ends_where_an_error_leaves_it() -> None:
    with pytest.raises(RuntimeError), span_scope(("a",)):
        raise RuntimeError
    assert var("x").span == ()


def test_python_operators() -> None:
    x = var("x", shape=(2,), dtype="float16")
    names = [e.op.name for e in (x + 1, 1 + x, x - 1, 1 - x, x * 2, 2 * x, x / 2, 2 / x, -x)]  # type: ignore[union-attr]
    assert names == ["add"] * 2 + ["subtract"] * 2 + ["multiply"] * 2 + ["divide"] * 2 + ["negative"]
    left = 1 - x
    assert isinstance(left, Call) and isinstance(left.args[0], Constant)
    assert left.args[1] is x and left.args[0].dtype == "float16"


def test_wrong_number_of_arguments() -> None:
    x = var("x", shape=(2,))
    with pytest.raises(TypeInferenceError) as caught:
        nn.relu(x, x)
    assert str(caught.value) == (
        "nn.relu: takes 1 argument, 2 given\n"
        "  | nn.relu(%x, %x)\n"
        "  |   %x: Tensor[(2,), float32]\n"
        "  |   %x: Tensor[(2,), float32]"
    )
    with pytest.raises(TypeInferenceError, match="function: takes 1 argument, 0 given"):
        Call(function(x), [])


def test_conv2d_error_word_for_word() -> None:
    """The format that DESIGN promises."""
    data, w = var("data", shape=(1, 3, 8, 8)), var("w", shape=(8, 4, 3, 3))
    with pytest.raises(TypeInferenceError) as caught, span_scope(("conv1",)):
        nn.conv2d(data, w, padding=(1, 1, 1, 1))
    assert str(caught.value) == (
        "nn.conv2d: the input has 3 channels but the weight expects 4\n"
        '  | nn.conv2d(%data, %w, padding=[1, 1, 1, 1])      from ONNX node "conv1"\n'
        "  |   %data: Tensor[(1, 3, 8, 8), float32]\n"
        "  |   %w: Tensor[(8, 4, 3, 3), float32]\n"
        "  = hint: weights are OIHW; with groups=1 the weight's second dimension must be 3"
    )


def test_operands_that_are_not_variables_go_by_the_name_of_the_argument() -> None:
    data = nn.relu(var("x", shape=(2, 3)))
    with pytest.raises(TypeInferenceError) as caught:
        nn.dense(data, const(np.zeros((4, 5), "float32")))
    assert caught.value.where == (
        "nn.dense(%data, %weight)", "  %data: Tensor[(2, 3), float32]", "  %weight: Tensor[(4, 5), float32]",
    )  # fmt: skip


def test_a_called_function_rejects_other_types() -> None:
    group = Function([p := var("p0", shape=(2,))], nn.relu(p), {"name": "fused_nn_relu"})
    with pytest.raises(TypeInferenceError) as caught:
        Call(group, [var("x", shape=(3,))])
    assert str(caught.value) == (
        "parameter %p0 is Tensor[(2,), float32], the argument is Tensor[(3,), float32]\n"
        "  | fused_nn_relu(%x)\n"
        "  |   %x: Tensor[(3,), float32]"
    )


@pytest.mark.parametrize("index", [2, -1])
def test_projections_out_of_range(index: int) -> None:
    x = var("x", shape=(2,))
    with pytest.raises(TypeInferenceError, match=rf"field {index} of a tuple of 2"):
        Tuple([x, x])[index]
    with pytest.raises(TypeInferenceError, match="field 0 of a value that is not a tuple"):
        x[0]
    with pytest.raises(IRError, match="only a tuple can be unpacked"):
        list(x)


def test_modules() -> None:
    x = var("x", shape=(2,))
    module = Module.from_expr(nn.relu(x))
    assert module.main.params == (x,)
    assert module.with_function("main", module.main) is module
    assert [*module.with_function("f", function(x)).functions] == ["main", "f"]
    with pytest.raises(IRError) as caught:
        module["foo"]
    assert str(caught.value) == "the module has no function 'foo'\n  = hint: it has: main"
    assert Module.from_expr(module.main).main is module.main


def test_repr_does_not_print_the_graph() -> None:
    expr: Expr = var("x", shape=(2,))
    for _ in range(5000):
        expr = -expr
    assert repr(expr) == "<Call of negative: Tensor[(2,), float32]>"
    assert str(expr).count("\n") == 5000


def test_bad_types() -> None:
    with pytest.raises(TypeInferenceError, match="'float33' is not a dtype"):
        TensorType((1,), "float33")
    with pytest.raises(TypeInferenceError, match=r"shape \(-1,\) has a negative dimension"):
        TensorType((-1,))
    with pytest.raises(TypeInferenceError, match="known only when the model runs"):
        _ = TensorType((None, 2)).size
    assert str(TensorType((None,))) == "Tensor[(?,), float32]"
