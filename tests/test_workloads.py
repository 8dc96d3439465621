"""The networks of minitvm.testing: Relay's names, parameters that vanish into weights, numbers, wrong arguments."""

from __future__ import annotations

from typing import Any

import model_zoo
import numpy as np
import pytest
from small_workloads import SMALL, compiled, evaluated, sample, small, with_scores

import minitvm
from minitvm.errors import MiniTVMError
from minitvm.ir.builder import function, nn, var
from minitvm.ir.expr import Call, Expr, Function, Module, Var
from minitvm.ir.op import Op
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import assert_structural_equal, structural_equal
from minitvm.ir.text import module_constants
from minitvm.ir.types import TensorType
from minitvm.ir.verify import verify
from minitvm.ir.visitor import calls
from minitvm.testing import create_workload, densenet, init, mlp, mobilenet, resnet, squeezenet, transformer, vgg

FULL = {  # parameters and multiply-adds of the published networks, in millions
    "resnet18": (resnet, {}, 11.7, 1814),
    "resnet50": (resnet, {"num_layers": 50}, 25.5, 3858),
    "mobilenet_v1": (mobilenet, {}, 4.2, 569),
    "mobilenet_v2": (mobilenet, {"version": 2}, 3.5, 301),
    "squeezenet_1.0": (squeezenet, {"version": "1.0"}, 1.25, 777),
    "squeezenet_1.1": (squeezenet, {}, 1.24, 349),
    "vgg16": (vgg, {"num_layers": 16}, 138.4, 15470),
    "densenet121": (densenet, {}, 8.0, 2834),
    "inception_v3": (minitvm.testing.inception, {}, 23.8, 5713),
}


def names(module: Module) -> list[str]:
    return [p.name for p in module.main.params]


def operators(*roots: Expr) -> list[str]:
    return [call.op.name for call in calls(*roots) if isinstance(call.op, Op)]


def product(shape: tuple[int, ...]) -> float:
    return float(np.prod(shape, dtype=np.float64))


def multiply_adds(call: Call) -> float:
    """Of a convolution (weight OIHW) or a dense layer (weight NK)."""
    weight = call.args[1].tensor_type.static_shape
    return product(call.tensor_type.static_shape) * product(weight[1:])


@pytest.mark.parametrize("name", FULL)
def test_sizes_are_those_of_the_published_network(name: str) -> None:
    net, arguments, parameters, work = FULL[name]
    main = minitvm.relay.transform.InferType()(Module(net.get_net(**arguments))).main
    trained = [p for p in main.params[1:] if not p.name.endswith(("moving_mean", "moving_var"))]
    found = sum(product(p.tensor_type.static_shape) for p in trained)
    assert found / 1e6 == pytest.approx(parameters, rel=0.02)
    layers = [c for c in calls(main.body) if c.op.name in ("nn.conv2d", "nn.dense")]
    assert sum(map(multiply_adds, layers)) / 1e6 == pytest.approx(work, rel=0.02)


def test_resnet18_has_relays_names() -> None:
    module, params = resnet.get_workload(num_layers=18, batch_size=1, image_shape=(3, 224, 224))
    assert names(module) == ["data", *params]
    norm = ["gamma", "beta", "moving_mean", "moving_var"]
    assert list(params)[:10] == [*(f"bn_data_{p}" for p in norm), "conv0_weight", *(f"bn0_{p}" for p in norm)] + [
        "stage1_unit1_bn1_gamma"
    ]
    assert list(params)[-6:] == [*(f"bn1_{p}" for p in norm), "fc1_weight", "fc1_bias"]
    assert {"stage2_unit1_sc_weight", "stage4_unit2_conv2_weight", "stage3_unit1_bn2_moving_var"} <= set(params)
    assert [call.op.scale for call in calls(module.main.body) if call.op.name == "nn.batch_norm"][:2] == [False, True]


def test_batch_norm_of_resnet18_vanishes_into_weights() -> None:
    """Relay's network has a projection more than the pretrained one of 98 parameters."""
    relays, _ = resnet.get_workload()
    module, params = resnet.get_workload(initializer=init.trained, first_projection=False)
    assert (len(relays.main.params) - 1, len(params)) == (99, 98)
    library = minitvm.build(module, "llvm", params, 3, trace=True)
    assert len(library.params) <= 43
    assert library.host_calls == []
    before, after = next((s.before, s.after) for s in library.report.steps if s.name == "SimplifyInference")
    assert operators(before.main.body).count("nn.batch_norm") == 19
    assert "nn.batch_norm" not in operators(after.main.body)
    left = [operators(group.body) for group in library.report.groups.values()]
    assert not {"sqrt", "divide", "rsqrt"} & {name for ops in left for name in ops}
    assert sum(ops.count("multiply") for ops in left) <= 1, "the scales of the units are in the weights around them"


def test_fewer_parameters_vanish_at_lower_levels() -> None:
    module, params = small("resnet18")
    left = [len(minitvm.build(module, "interp", params, level).params) for level in (0, 1, 2, 3)]
    unused = 1  # bn_data_gamma: that layer does not scale
    assert left[0] == left[1] == len(params) - unused > left[2] > left[3]


@pytest.mark.parametrize("name", ["resnet18_stem", "resnet50", "vgg11_bn"])
def test_machine_code_gives_what_numpy_gives(name: str) -> None:
    """The other networks: test_opt_levels.py."""
    plain, params = small(name)
    module, data = with_scores(plain), sample(plain)
    found, expected = compiled(module, params, data, 3), evaluated(module, params, data)
    for have, want in zip(found, expected, strict=True):
        assert want.std() > 1e-3 * np.abs(want).max()
        assert model_zoo.error(have, want) <= 1e-5


@pytest.mark.parametrize("name", SMALL)
def test_text_comes_back(name: str) -> None:
    module, _ = small(name)
    verify(module)
    text = module.astext()
    assert_structural_equal(parse_module(text, module_constants(module)), module)


@pytest.mark.parametrize(
    ("net", "arguments", "text"),
    [
        (resnet, {"num_layers": 20}, "no ResNet-20\n  = hint: num_layers is one of 18, 34, 50, 101, 152"),
        (vgg, {"num_layers": 12}, "no VGG-12\n  = hint: num_layers is one of 11, 13, 16, 19"),
        (densenet, {"num_layers": 1}, "no DenseNet-1\n  = hint: num_layers is one of 121, 161, 169, 201"),
        (mobilenet, {"version": 3}, "no MobileNet v3\n  = hint: version is 1 or 2"),
        (squeezenet, {"version": "2"}, "no SqueezeNet 2\n  = hint: version is '1.0' or '1.1'"),
        (transformer, {"hidden_size": 30, "num_heads": 4}, "30 hidden units cannot be divided among 4 heads"),
    ],
)
def test_wrong_arguments(net: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(MiniTVMError) as caught:
        net.get_workload(**arguments)
    assert str(caught.value) == text


def test_workload_is_drawn_from_its_seed() -> None:
    (_, first), (_, again), (_, other) = (mlp.get_workload(seed=seed, initializer=init.trained) for seed in (1, 1, 2))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])


def test_the_batch_may_be_given_by_position() -> None:
    module, params = mlp.get_workload(64)
    assert module.main.params[0].type == TensorType((64, 1, 28, 28), "float32") and len(params) == 6


def test_create_workload_infers_what_the_net_leaves_open() -> None:
    net = nn.bias_add(nn.dense(var("data", shape=(2, 6)), var("fc_weight"), units=3), var("fc_bias"))
    module, params = create_workload(net)
    assert names(module) == ["data", "fc_weight", "fc_bias"]
    assert {n: (a.shape, a.dtype.name) for n, a in params.items()} == {
        "fc_weight": ((3, 6), "float32"),
        "fc_bias": ((3,), "float32"),
    }
    as_function, _ = create_workload(function(net))
    assert structural_equal(as_function, module)


def test_xavier_draws_by_the_parameters_role() -> None:
    _, params = resnet.get_workload(image_shape=(3, 32, 32))
    weight = params["stage1_unit1_conv1_weight"]
    bound = np.sqrt(3 / (64 * 9))
    assert 0.99 * bound < np.abs(weight).max() <= bound and abs(weight.mean()) < 0.01 * bound
    for suffix, value in {"gamma": 1, "beta": 0, "moving_mean": 0, "moving_var": 1}.items():
        assert (params[f"bn1_{suffix}"] == value).all()


def test_networks_of_other_dtypes() -> None:
    module, params = mlp.get_workload(dtype="float64", initializer=init.trained)
    assert {a.dtype.name for a in params.values()} == {"float64"}
    data = sample(module)
    (found,), (expected,) = compiled(module, params, data, 3), evaluated(module, params, data)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_data_is_the_only_input() -> None:
    for name in SMALL:
        module, params = small(name)
        assert isinstance(module.main, Function) and isinstance(module.main.params[0], Var)
        assert names(module) == ["data", *params]
