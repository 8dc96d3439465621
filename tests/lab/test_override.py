"""Templates, ways and schedules for single kernels: taken, refused with the reason, measured, never from the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm.errors import ConfigError
from minitvm.ir.loop import Kernel
from minitvm.ir.parser import parse_module
from minitvm.lab import measure_override, override

MODULE = parse_module("""
def @main(%x: Tensor[(64, 48), float32], %w: Tensor[(32, 48), float32]) {
  nn.softmax(nn.relu(nn.dense(%x, %w)))
}
""")
DENSE = "fused_nn_dense_nn_relu"


def built() -> minitvm.Library:
    rng = np.random.default_rng(0)
    return minitvm.build(MODULE, params={"w": rng.normal(size=(32, 48)).astype("float32")}, opt_level=3)


def dense(library: minitvm.Library) -> Any:
    assert library.report is not None
    [name] = [symbol for symbol in library.report.groups if "relu" in symbol]
    return library.report.kernel(name)


def result(library: minitvm.Library) -> np.ndarray:
    module = minitvm.GraphModule(library["default"](minitvm.cpu()))
    module.run(x=np.random.default_rng(1).normal(size=(64, 48)).astype("float32"))
    return module.get_output(0).numpy()


def test_a_way_of_a_template_is_taken() -> None:
    usual = dense(built())
    way = str(usual.candidates[-1])
    with override("*relu*", config=way):
        library = built()
    assert str(dense(library).candidates[0]) == way != str(usual.candidates[0])
    np.testing.assert_allclose(result(library), result(built()), rtol=1e-4)
    assert str(dense(built()).candidates[0]) == str(usual.candidates[0])


def test_some_of_a_way() -> None:
    rows = dense(built()).candidates[-1].tile.rows
    with override(dense(built()).symbol, config={"rows": rows}):
        assert dense(built()).candidates[0].tile.rows == rows


def test_a_schedule_and_the_default_nests() -> None:
    def as_it_is(kernel: Kernel) -> Kernel:
        return kernel

    with override("*softmax*", schedule=as_it_is):
        library = built()
    report = library.report
    assert report is not None
    assert [report.kernel(s).template for s in report.groups if "softmax" in s] == ["schedule as_it_is"]
    np.testing.assert_allclose(result(library), result(built()), rtol=1e-4)


def refusal(make: Callable[[], object]) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        make()
    return error.value


def test_what_is_refused_says_why() -> None:
    with override("*relu*", template="ConvBlocked"):
        error = refusal(built)
    assert error.message.endswith("cannot be made by template ConvBlocked")
    assert any("an override asks for another one" in line for line in error.where)
    template = dense(built()).template.rpartition(".")[2]
    with override("*relu*", template=template, config="direct, tiles of 999 x 9 vectors"):
        assert f"is no way of template {template}" in refusal(built).message
    with override("*relu*", config="direct, tiles of 999 x 9 vectors"):
        error = refusal(built)
    assert any("it has no way 'direct, tiles of 999 x 9 vectors'" in line for line in error.where)
    assert "says nothing" in refusal(lambda: override("x")).message


def test_an_override_that_no_kernel_matches() -> None:
    with override("fused_nn_soft", config={"rows": 1}):
        error = refusal(built)
    assert error.message == "override: there is no kernel 'fused_nn_soft'"
    assert error.hint == "did you mean 'fused_nn_softmax'?"


def test_a_config_that_is_none() -> None:
    assert "no row" in refusal(lambda: override("x", config={"row": 1})).message
    assert "not both" in refusal(lambda: override("x", "Dense", schedule=lambda kernel: kernel)).message


def test_the_difference_is_measured() -> None:
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(32, 48)).astype("float32")}
    way = str(dense(built()).candidates[-1])
    [changed] = measure_override(MODULE, override("*relu*", config=way), rounds=1, params=params)
    assert changed.results == "equal" and changed.ratio > 0
    assert changed.asked.endswith(way) and not changed.usual.endswith(way)
