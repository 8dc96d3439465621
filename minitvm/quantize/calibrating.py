"""Calibrate: the scales of simulated quantization, by a number, or by what values a network has on a set of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from minitvm.driver import build
from minitvm.errors import PassError
from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple
from minitvm.ir.ops.simulated import QAnnotateKind
from minitvm.ir.visitor import as_function, calls, rewrite, substitute
from minitvm.passes.manager import ModulePass, PassContext
from minitvm.passes.redundancy import fold_constant_expr
from minitvm.quantize.config import QConfig, current_qconfig, simulated_kind
from minitvm.quantize.scales import kl_scale, percentile_scale
from minitvm.runtime.devices import cpu
from minitvm.runtime.executor import GraphModule

Dataset = Iterable[Mapping[str, Any]]
"""Inputs by name, a dictionary for each run."""


def simulated_calls(function: Function) -> list[Call]:
    """The calls of simulated quantization, in post-order."""
    return [call for call in calls(function.body) if simulated_kind(call) is not None]


def collect_stats(mod: Module, dataset: Dataset, chunk_by: int = -1) -> Iterator[list[np.ndarray]]:
    """What the inputs and sums that are quantized are on a set of inputs, before they are rounded: flat arrays, a list
    for every ``chunk_by`` of them (-1: one for all)."""
    given = [{name: np.asarray(value) for name, value in batch.items()} for batch in dataset]
    if not given:
        raise PassError("the set of inputs to calibrate on is empty", hint='dataset=[{"data": array}, ...]')
    data = [call.args[0] for call in simulated_calls(mod.main) if simulated_kind(call) != QAnnotateKind.WEIGHT]
    size = len(data) if chunk_by == -1 else chunk_by
    for start in range(0, len(data), size or 1):
        yield _values(mod.main, data[start : start + size], given)


def _values(function: Function, wanted: list[Expr], given: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """The values of some nodes with nothing rounded, of all runs one after another."""

    def exact(_: Expr, new: Expr) -> Expr:
        return new.args[0] if isinstance(new, Call) and simulated_kind(new) is not None else new

    body = rewrite(Tuple(wanted), exact)
    with PassContext(opt_level=3, instruments=[]):
        run = GraphModule(build(Module(Function(function.params, body)), "llvm")["default"](cpu(0)))
    found: list[list[np.ndarray]] = [[] for _ in wanted]
    for batch in given:
        run.run(**batch)
        for values, one in zip(found, run.outputs(), strict=True):
            values.append(np.array(one).reshape(-1))
    return [np.concatenate(values) for values in found]


_BY_DATA: dict[str, Callable[[np.ndarray], float]] = {"kl_divergence": kl_scale, "percentile": percentile_scale}


class Calibrate(ModulePass, name="QuantizeCalibrate", rounds=True):
    """Binds the scales and bounds of simulated quantization."""

    def __init__(self, dataset: Dataset | None = None) -> None:
        self.dataset = dataset

    def transform_module(self, module: Module, context: PassContext) -> Module:
        config, main = current_qconfig(), module.main
        scales = self._scales(module, config)
        bound: dict[Expr, Expr] = {}
        for call in simulated_calls(main):
            kind = simulated_kind(call) or QAnnotateKind.IDENTITY
            scale = _weight_scale(call, config) if kind == QAnnotateKind.WEIGHT else next(scales)
            steps = 2.0 ** (config.get_nbit_by_kind(kind) - 1)
            values = (scale / steps, -(steps - 1), steps - 1)
            decide("QuantizeCalibrate", call, f"{steps * 2:g} steps of {scale / steps:g}")
            named = zip(call.args[1:], values, strict=True)
            bound |= {var: Constant(np.asarray(value, var.tensor_type.dtype)) for var, value in named}
        return module.with_function("main", as_function(substitute(main, bound)))

    def _scales(self, module: Module, config: QConfig) -> Iterator[float]:
        """The largest magnitude of each input and sum, in order."""
        if config.calibrate_mode == "global_scale":
            while True:
                yield config.global_scale
        if self.dataset is None:
            raise PassError(
                f"calibrate_mode={config.calibrate_mode!r} needs inputs to calibrate on",
                hint='relay.quantize.quantize(mod, params, dataset=[{"data": array}, ...])',
            )
        for chunk in collect_stats(module, self.dataset, config.calibrate_chunk_by):
            yield from map(_BY_DATA[config.calibrate_mode], chunk)


def _weight_scale(call: Call, config: QConfig) -> float:
    """The largest magnitude of a weight, or the next power of two."""
    weight = fold_constant_expr(call.args[0])
    if not isinstance(weight, Constant):
        raise PassError("a weight that is no constant has no scale", hint="quantize(mod, params) binds the parameters")
    largest = float(np.abs(weight.value).max(initial=0.0)) or 1.0
    return float(2.0 ** np.ceil(np.log2(largest))) if config.weight_scale == "power2" else largest


def calibrate(dataset: Dataset | None = None) -> Calibrate:
    """The pass that finds the scales of simulated quantization, as the current options say."""
    return Calibrate(dataset)
