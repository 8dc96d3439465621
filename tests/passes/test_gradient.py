"""Gradients: every operator's beside finite differences, compiled beside interpreted, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from passes.gradient_cases import Drawn, drawn, told, with_gradient

from minitvm import relay
from minitvm.errors import PassError, UserCodeError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.op import OPS
from minitvm.ir.structural import structural_equal
from minitvm.passes.gradient import GRADIENTS, gradient, register_gradient, rules

X = relay.var("x", shape=(2, 3))
SEEDS = 8


def flowing(name: str) -> int:
    """How many calls of an operator give its arguments something; all agree with finite differences."""
    made = [one for one in (drawn(name, seed) for seed in range(SEEDS)) if one is not None]
    found = [told(Drawn.mistake, one) for one in made]
    assert not any(found), [(wrong, str(one.call)) for one, wrong in zip(made, found, strict=True) if wrong]
    return sum(one.flowed for one in made)


def test_every_operators_gradient_agrees_with_finite_differences() -> None:
    counts = {name: flowing(name) for name in with_gradient()}
    assert sum(count >= 2 for count in counts.values()) >= 90, counts


@pytest.mark.parametrize("name", ["nn.conv2d", "nn.max_pool2d", "nn.avg_pool2d", "nn.softmax", "take", "strided_slice"])
def test_a_compiled_gradient_is_the_interpreters(name: str) -> None:
    made = next(one for one in (drawn(name, seed, "float32") for seed in range(SEEDS)) if one is not None)
    assert made.compiled_mistake() is None


def test_text() -> None:
    weight = relay.var("w", shape=(4, 3))
    found = gradient(relay.Function([X, weight], relay.nn.relu(relay.nn.dense(X, weight))))
    assert structural_equal(
        found,
        relay.parse_expr("""fn (%x: Tensor[(2, 3), float32], %w: Tensor[(4, 3), float32]) {
        %0 = nn.dense(%x, %w);
        %1 = nn.relu(%0);
        %2 = where(greater(%0, 0f), ones_like(%1), 0f);
        (%1, (nn.matmul(%2, %w), nn.matmul(%2, %x, transpose_a=True)))
    }"""),
    )


def test_what_is_used_twice_gets_the_sum() -> None:
    found = evaluate(gradient(relay.Function([X], X * X + X)), np.full((2, 3), 2, "float32"))
    np.testing.assert_array_equal(found[1][0], np.full((2, 3), 5, "float32"))


def test_results_in_a_tuple_and_parameters_that_nothing_depends_on() -> None:
    unused, whole = relay.var("u", shape=(2,)), relay.var("i", shape=(2, 3), dtype="int32")
    body = relay.Tuple([relay.exp(X), relay.Tuple([X, whole])])
    value, slopes = evaluate(
        gradient(relay.Function([X, unused, whole], body), mode="first_order"), *_arrays(X, unused, whole)
    )
    assert isinstance(value, tuple)
    np.testing.assert_allclose(slopes[0], np.exp(_arrays(X)[0]) + 1, rtol=1e-6)
    assert not slopes[1].any() and slopes[2].dtype == "int32" and not slopes[2].any()


def test_a_gradient_has_a_gradient() -> None:
    """The second derivative of x ** 3 is 6 x."""
    first = gradient(relay.Function([X], X * X * X))
    slope = relay.Function([X], relay.sum(relay.TupleGetItem(relay.TupleGetItem(first.body, 1), 0)))
    (at,) = _arrays(X)
    np.testing.assert_allclose(evaluate(gradient(slope), at)[1][0], 6 * at, rtol=1e-6)


def test_called_functions_and_modules() -> None:
    square = relay.Function([X], X * X)
    module = relay.parse(
        "def @main(%x: Tensor[(2, 3), float32]) { @f(%x) } def @f(%y: Tensor[(2, 3), float32]) { multiply(%y, %y) }"
    )
    y = relay.var("y", shape=(2, 3))
    called = relay.Function([y], relay.Call(square, [y]))
    for found in (gradient(called), gradient("main", module), relay.transform.gradient(module)):
        np.testing.assert_allclose(evaluate(found, *_arrays(X))[1][0], 2 * _arrays(X)[0])
    each = relay.transform.FirstOrderGradient()(module)
    assert len(evaluate(each["f"], *_arrays(X))) == 2


def test_a_networks_compiled_gradient_is_the_interpreters() -> None:
    """Of a residual block with batch norms, a pool and a loss."""
    data, target = relay.var("data", shape=(2, 3, 9, 9)), relay.var("target", shape=(2, 4))

    def layer(name: str, x: relay.Expr, stride: int = 1) -> relay.Expr:
        weight = relay.var(f"{name}_weight", shape=(4, x.shape[1], 3, 3))
        found = relay.nn.conv2d(x, weight, strides=(stride, stride), padding=(1, 1, 1, 1))
        return relay.nn.batch_norm(found, *(relay.var(f"{name}_{one}", shape=(4,)) for one in ("g", "b", "m", "v")))[0]

    first = relay.nn.relu(layer("first", data, 2))
    pooled = relay.nn.max_pool2d(relay.nn.relu(layer("second", first) + first), (2, 2), (2, 2))
    classes = relay.nn.dense(relay.nn.batch_flatten(pooled), relay.var("dense", shape=(4, 16)))
    loss = -relay.mean(relay.sum(relay.nn.log_softmax(classes) * target, axis=1))
    function = gradient(relay.Function(relay.analysis.free_vars(loss), loss))
    arrays = [np.abs(array) for array in _arrays(*function.params)]
    value, slopes = evaluate(function, *arrays)
    results = relay.build(function, "llvm").run({p.name: a for p, a in zip(function.params, arrays, strict=True)})
    for expected, found in zip((value, *slopes), results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())


def test_what_has_no_gradient_is_named() -> None:
    with pytest.raises(PassError, match=r"linalg\.det has no gradient") as error:
        gradient(relay.Function([y := relay.var("y", shape=(3, 3))], relay.call_op("linalg.det", y)))
    assert 'register one: @register_gradient("linalg.det")' in str(error.value) and "linalg.det(%y)" in str(error.value)
    with pytest.raises(PassError, match="'max' has no gradient"):
        indices = relay.const(np.zeros((2, 3), "int64"))
        gradient(relay.Function([X], relay.scatter_elements(X, indices, X, reduction="max")))
    with pytest.raises(PassError, match="takes a function, not the name 'main' without a module"):
        gradient("main")
    with pytest.raises(PassError, match="mode='backward' is not known"):
        gradient(relay.Function([X], X), mode="backward")  # type: ignore[arg-type]


def test_a_gradient_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "GRADIENTS", GRADIENTS.copy())
    square = relay.var("y", shape=(3, 3))
    function = relay.Function([square], relay.call_op("linalg.det", square))

    @relay.op.register_gradient("linalg.det")
    def of_det(call: relay.Call, adjoint: relay.Expr) -> list[relay.Expr]:
        return [relay.ones_like(call.args[0]) * adjoint]

    assert evaluate(gradient(function), np.eye(3, dtype="float32"))[1][0].sum() == 9
    for wrong, message in (
        (lambda call, adjoint: [], "gives 0 adjoints of 1 arguments"),
        (lambda call, adjoint: [adjoint], r"gives Tensor\[\(\), float32\] for argument 0, Tensor\[\(3, 3\), float32\]"),
    ):
        register_gradient("linalg.det", wrong)
        with pytest.raises(PassError, match=message):
            gradient(function)
    register_gradient("linalg.det", lambda call, adjoint: 1 / 0)
    with pytest.raises(UserCodeError, match=r"gradient of linalg\.det raised ZeroDivisionError"):
        gradient(function)
    with pytest.raises(PassError, match=r"nn\.relu has a gradient in .* already"):
        register_gradient("nn.relu", of_det)


def test_every_rule_is_of_an_operator() -> None:
    assert set(with_gradient()) <= OPS.keys()


def _arrays(*params: relay.Var) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.uniform(-1, 1, p.shape).astype(p.dtype) for p in params]
