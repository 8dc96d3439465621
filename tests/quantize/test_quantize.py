"""Quantization as Relay's: what is annotated, which scales are found, and that the integers are those of numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import ConfigError, PassError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Function, Module
from minitvm.ir.ops.simulated import QAnnotateKind
from minitvm.quantize import annotating, scales
from minitvm.quantize.calibrating import simulated_calls
from minitvm.quantize.config import simulated_kind
from minitvm.quantize.realizing import as_fixed_point, scaled_by
from tests.quantize.photographs import WAYS, kept, network, results
from tests.quantize.photographs import quantized as quantized_network

RNG = np.random.default_rng(5)
IMAGE = RNG.normal(size=(1, 4, 6, 6)).astype("float32")
FILTERS, OTHERS = (RNG.normal(size=(4, 4, 3, 3)).astype("float32") * 0.2 for _ in range(2))


def conv(data: Any, weight: np.ndarray) -> Any:
    return relay.nn.conv2d(data, relay.const(weight), kernel_size=(3, 3), channels=4, padding=(1, 1))


def module_of(network: Callable[[Any], Any]) -> Module:
    return Module.from_expr(network(relay.var("data", shape=IMAGE.shape)))


def quantized(network: Callable[[Any], Any], dataset: Any = None, **options: Any) -> Module:
    with relay.quantize.qconfig(**{"skip_conv_layers": [], **options}):
        return relay.quantize.quantize(module_of(network), dataset=dataset)


def names(module: Module) -> list[str]:
    return list(relay.analysis.list_op_freqs(module))


def dtypes_of(module: Module, name: str) -> list[str]:
    calls = relay.analysis.post_order_visit(module["main"])
    return [c.args[0].tensor_type.dtype for c in calls if isinstance(c, Call) and getattr(c.op, "name", "") == name]


def rounded(values: np.ndarray, scale: float) -> np.ndarray:
    return np.clip(np.rint(values / scale), -127, 127)


def power2(values: np.ndarray) -> float:
    return float(2 ** np.ceil(np.log2(np.abs(values).max()))) / 128


def test_one_convolution_is_the_integers_that_numpy_computes() -> None:
    module = quantized(lambda x: relay.nn.relu(conv(x, FILTERS)), global_scale=4.0)
    assert dtypes_of(module, "nn.conv2d") == ["int8"]
    steps, weights = rounded(IMAGE, 4 / 128), rounded(FILTERS, power2(FILTERS))
    sums = evaluate(module_of(lambda x: conv(x, weights.astype("float32"))), steps.astype("float32"))
    results = np.maximum(np.round(sums), 0) * (4 / 128) * power2(FILTERS)
    expected = rounded_up(results, 4 / 128)  # the result is rounded where it leaves its part
    found = minitvm.build(module, "llvm").run({"data": IMAGE})[0]
    np.testing.assert_array_equal(found, expected.astype("float32"))
    np.testing.assert_array_equal(evaluate(module, IMAGE), expected.astype("float32"))


def rounded_up(values: np.ndarray, scale: float) -> np.ndarray:
    """To multiples of a scale, halves upwards, within eight bits."""
    return np.clip(np.floor(values / scale + 0.5), -127, 127) * scale


@pytest.mark.parametrize("options", [{}, {"weight_scale": "max"}, {"weight_scale": "max", "rounding": "TONEAREST"}])
def test_integers_are_a_step_at_most_from_the_simulation(options: dict[str, Any]) -> None:
    """Scales that are powers of two, and others, which are products in fixed point."""

    def network(x: Any) -> Any:
        return relay.add(relay.nn.relu(conv(x, FILTERS)), x)

    simulated = quantized(network, do_simulation=True, global_scale=4.0, **options)
    real = quantized(network, global_scale=4.0, **options)
    assert "annotation.simulated_quantize" in names(simulated) and "annotation.simulated_quantize" not in names(real)
    expected = minitvm.build(simulated, "llvm").run({"data": IMAGE})[0]
    found = minitvm.build(real, "llvm").run({"data": IMAGE})[0]
    assert np.abs(found - expected).max() <= 4 / 128 + 1e-6
    assert (np.abs(found - expected) > 1e-6).mean() < 0.05
    floats = evaluate(module_of(network), IMAGE)
    assert np.abs(found - floats).max() < 0.2 and np.abs(floats).max() > 3


def test_annotated_kinds_and_variables() -> None:
    with relay.quantize.qconfig(skip_conv_layers=[]):
        module = relay.quantize.annotate()(module_of(lambda x: conv(relay.nn.relu(conv(x, FILTERS)), OTHERS)))
    kinds = [simulated_kind(call) for call in simulated_calls(module.main)]
    assert kinds == [QAnnotateKind.INPUT, QAnnotateKind.WEIGHT] * 2
    assert {v.name for v in relay.analysis.free_vars(module.main)} == {"dom_scale", "clip_min", "clip_max"}
    with pytest.raises(PassError, match="simulated quantization without a scale"):
        relay.quantize.realize()(module)


def test_partition_marks_what_parts_exchange() -> None:
    module = relay.quantize.partition()(module_of(lambda x: conv(relay.nn.relu(conv(x, FILTERS)), OTHERS)))
    freqs = relay.analysis.list_op_freqs(module)
    assert freqs["annotation.cast_hint"] == freqs["annotation.stop_fusion"] == 2
    plain = module_of(lambda x: relay.exp(x) + x)
    assert relay.quantize.partition()(plain) is plain
    np.testing.assert_array_equal(evaluate(module, IMAGE), evaluate(relay.transform.FuseOps()(module), IMAGE))


def test_what_is_skipped_stays_in_floats() -> None:
    def network(x: Any) -> Any:
        return conv(relay.nn.relu(conv(x, FILTERS)), OTHERS)

    assert sorted(dtypes_of(quantized(network, skip_conv_layers=[0]), "nn.conv2d")) == ["float32", "int8"]
    with relay.quantize.qconfig():  # the first one is skipped
        assert relay.quantize.current_qconfig().skip_conv_layers == (0,)
        assert dtypes_of(relay.quantize.quantize(module_of(network)), "nn.conv2d") == ["float32", "int8"]
    none = quantized(network, debug_enabled_ops=["nn.dense"])
    assert set(dtypes_of(none, "nn.conv2d")) == {"float32"}

    def dense(x: Any) -> Any:
        return relay.nn.dense(relay.nn.batch_flatten(x), relay.const(RNG.normal(size=(3, 144)).astype("float32")))

    assert dtypes_of(quantized(dense), "nn.dense") == ["float32"]
    assert dtypes_of(quantized(dense, skip_dense_layer=False), "nn.dense") == ["int8"]


def test_quantization_ends_at_the_mean_of_images() -> None:
    def network(x: Any) -> Any:
        return conv(relay.nn.global_avg_pool2d(conv(x, FILTERS)), OTHERS)

    assert dtypes_of(quantized(network), "nn.conv2d") == ["int8", "float32"]


def by_rows(x: Any, weight: np.ndarray) -> Any:
    return relay.reshape(conv(x, weight), (4, 6, 6))


NETWORKS: dict[str, Callable[[Any], Any]] = {
    "multiply by what is computed": lambda x: relay.nn.relu(conv(x, FILTERS)) * relay.sigmoid(x),
    "multiply by a mean of itself": lambda x: (lambda y: y * relay.nn.global_avg_pool2d(y))(conv(x, FILTERS)),
    "joined": lambda x: relay.concatenate([conv(x, FILTERS), x, conv(x, OTHERS)], axis=1),
    "joined alike": lambda x: relay.concatenate([relay.nn.max_pool2d(conv(x, FILTERS), (2, 2))] * 2, axis=1),
    "bounded": lambda x: relay.clip(conv(x, FILTERS), 0.0, 0.75),
    "pooled": lambda x: conv(relay.nn.avg_pool2d(conv(x, FILTERS), (2, 2)), OTHERS),
    "moved": lambda x: relay.transpose(relay.reshape(conv(x, FILTERS), (4, 6, 6)), (2, 0, 1)),
    "cut": lambda x: relay.strided_slice(conv(x, FILTERS), [0, 1], [1, 3], axes=[0, 1]),
    "added from both sides": lambda x: relay.add(x, conv(x, FILTERS)) + relay.add(conv(x, OTHERS), x),
    "used twice": lambda x: (lambda y: conv(y, OTHERS) + y)(conv(x, FILTERS)),
    "a product of two": lambda x: relay.nn.batch_matmul(by_rows(x, FILTERS), by_rows(x, OTHERS)),
    "a tuple": lambda x: relay.Tuple([conv(x, FILTERS), relay.exp(conv(x, OTHERS))]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_rules_of_operators(name: str) -> None:
    """Near the floats, nearly always equal to the simulation, and the compiled code does what its operators mean."""
    options = {"global_scale": 4.0, "skip_dense_layer": False}
    plain, real = module_of(NETWORKS[name]), quantized(NETWORKS[name], **options)
    simulated = quantized(NETWORKS[name], do_simulation=True, **options)
    assert "int8" in dtypes_of(real, "nn.conv2d")
    floats, ints, alike = (np.concatenate([np.ravel(a) for a in _all(m)]) for m in (plain, real, simulated))
    compiled = np.concatenate([np.ravel(a) for a in minitvm.build(real, "llvm").run({"data": IMAGE})])
    np.testing.assert_allclose(compiled, ints, rtol=2e-6, atol=2e-6)
    reach = np.abs(floats).max()
    assert np.abs(ints - floats).mean() < 0.03 * reach
    assert np.median(np.abs(ints - alike)) < 0.01 * reach and np.abs(ints - alike).max() < 0.2 * reach


def _all(module: Module) -> list[np.ndarray]:
    found = evaluate(module, IMAGE)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("mode", ["kl_divergence", "percentile"])
def test_scales_by_data(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scales, "BINS", 1001)
    batches = [{"data": IMAGE}, {"data": IMAGE * 0.5}]
    network = NETWORKS["used twice"]
    module = quantized(network, batches, calibrate_mode=mode, weight_scale="max", calibrate_chunk_by=2)
    floats, found = evaluate(module_of(network), IMAGE), evaluate(module, IMAGE)
    assert np.abs(found - floats).mean() < 0.02 * np.abs(floats).max()
    whole = quantized(network, batches, calibrate_mode=mode, weight_scale="max")
    assert (
        np.abs(evaluate(whole, IMAGE) - found).mean() < 1e-3 * np.abs(floats).max()
    )  # kernels of chunks round otherwise
    with pytest.raises(PassError, match="needs inputs to calibrate on"):
        quantized(network, calibrate_mode=mode)
    with pytest.raises(PassError, match="to calibrate on is empty"):
        quantized(network, [], calibrate_mode=mode)


def test_scales_of_values() -> None:
    """A few values far outside cost less than the steps that holding them would take."""
    values = np.concatenate([RNG.normal(size=200_000), [40.0, -41.0]]).astype("float32")
    assert 2.5 < scales.kl_scale(values) < 10
    assert 3.5 < scales.percentile_scale(values) < 6
    even = RNG.uniform(-1, 1, 100_000).astype("float32")
    assert 0.9 < scales.kl_scale(even) <= 1.001 and 0.99 < scales.percentile_scale(even) <= 1
    nothing = np.zeros(5, "float32")
    assert scales.kl_scale(nothing) == scales.percentile_scale(nothing) == 1.0


@pytest.mark.parametrize("factor", [0.3, 1.7, 3e-5, 0.99999999, 123.4, 0.5])
def test_products_in_fixed_point(factor: float) -> None:
    multiplier, shift = as_fixed_point(factor)
    assert 1 << 30 <= multiplier < 1 << 31 and abs(multiplier / 2.0**shift - factor) <= factor * 2**-30
    data = np.array([0, 1, -1, 7, -7, 99_999, -99_999, 1_000_000], "int64")
    for rounding in ("UPWARD", "TONEAREST"):
        found = evaluate(Module.from_expr(scaled_by(relay.const(data, "int64"), factor, rounding)))
        assert np.abs(found - data * factor).max() <= 0.5 + 1e-3
    halves = np.array([1, -1, 3, -3], "int64")
    up, away = (
        evaluate(Module.from_expr(scaled_by(relay.const(halves, "int64"), 0.5, r))) for r in ("UPWARD", "TONEAREST")
    )
    assert up.tolist() == [1, 0, 2, -1] and away.tolist() == [1, -1, 2, -2]


def test_conversions_are_functions_of_their_own() -> None:
    def network(x: Any) -> Any:
        return conv(relay.nn.relu(conv(x, FILTERS)), OTHERS)

    whole = quantized(network)
    parts = quantized(network, partition_conversions="fully_integral")
    assert [*parts.functions] == ["quantize_inputs", "quantized_main", "dequantize_outputs", "main"]
    assert str(parts["quantize_inputs"].ret_type) == "(Tensor[(1, 4, 6, 6), int8],)"
    assert {p.tensor_type.dtype for p in parts["quantized_main"].params} == {"int8"}
    np.testing.assert_array_equal(evaluate(parts, IMAGE), evaluate(whole, IMAGE))
    np.testing.assert_array_equal(minitvm.build(parts, "llvm").run({"data": IMAGE})[0], evaluate(whole, IMAGE))

    def broken(x: Any) -> Any:
        return conv(relay.exp(conv(x, FILTERS)), OTHERS)

    assert "main" in quantized(broken, partition_conversions="enabled").functions
    with pytest.raises(PassError, match="calls between quantization and dequantization are not of int32, int8"):
        quantized(broken, partition_conversions="fully_integral")


def test_options_that_are_wrong_say_so() -> None:
    qconfig = relay.quantize.qconfig
    for options, message in (
        ({"global_scal": 3.0}, "qconfig has no option 'global_scal'"),
        ({"calibrate_mode": "min_max"}, "calibrate_mode is 'min_max'"),
        ({"nbit_input": 9}, "9 bits of inputs in int8"),
        ({"dtype_weight": "uint8"}, "8 bits of weights in uint8"),
        ({"global_scale": 0.0}, "global_scale is 0.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            qconfig(**options)
    with qconfig(nbit_weight=4) as outer, qconfig(global_scale=2.0):
        assert relay.quantize.current_qconfig().nbit_weight == 8 and outer.get_nbit_by_kind(QAnnotateKind.WEIGHT) == 4
    assert relay.quantize.current_qconfig() == qconfig()
    with pytest.raises(PassError, match=r"there is no operator 'nn\.nothing'"):
        relay.quantize.register_annotate_function("nn.nothing", lambda *_: None)


def test_a_rule_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotating, "RULES", dict(annotating.RULES))
    module = module_of(lambda x: relay.nn.leaky_relu(conv(x, FILTERS), 0.1))
    assert len(simulated_calls(relay.quantize.annotate()(module).main)) == 0

    def rounds(call: Call, operands: Any, state: Any) -> Any:
        return Call(call.op, [state.rounded(operands[0])]), None

    relay.quantize.register_annotate_function("nn.leaky_relu")(rounds)

    with relay.quantize.qconfig(skip_conv_layers=None):
        assert len(simulated_calls(relay.quantize.annotate()(module).main)) == 3


def test_what_is_left_of_a_photographs_classes() -> None:
    """EfficientNet-Lite0, each tensor with one scale: what ``python -m tests.quantize.photographs`` counts."""
    module, params = network()
    plain = results(module, params)
    first, shared, cosines = kept(plain, results(quantized_network(module, params, **WAYS["percentile, max"]), {}))
    assert first >= 3 and shared >= 17 and min(cosines) > 0.8


def test_workloads_of_relays_tests() -> None:
    """A product with a value that is computed, with its parameters as variables: quantized, and built."""
    data, scale = relay.var("data", shape=(1, 16, 12, 12)), relay.sigmoid(relay.var("scale", shape=(1, 16, 1, 1)))
    act = relay.nn.relu(relay.nn.conv2d(data, relay.var("weight"), kernel_size=(3, 3), padding=(1, 1), channels=16))
    for out in (act * scale, act * relay.nn.global_avg_pool2d(act)):
        module, params = relay.testing.create_workload(Function(relay.analysis.free_vars(out), out))
        with relay.quantize.qconfig(skip_conv_layers=[]):
            made = relay.quantize.quantize(module, params)
        assert dtypes_of(made, "nn.conv2d") == ["int8"]
        with pytest.warns(UserWarning, match="@main has none of the parameters"):
            relay.build(made, "llvm", params=params)
