"""``quantize``: all passes of quantization, one after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitvm.ir.expr import Function, Module
from minitvm.passes import (
    CanonicalizeOps,
    FoldConstant,
    FoldScaleAxis,
    InferType,
    Pass,
    PassContext,
    Sequential,
    SimplifyInference,
    bind_params,
)
from minitvm.quantize.annotating import Annotate
from minitvm.quantize.calibrating import Calibrate, Dataset
from minitvm.quantize.config import current_qconfig
from minitvm.quantize.conversions import partition_conversions
from minitvm.quantize.partitioning import Partition
from minitvm.quantize.realizing import Realize

_REQUIRED = ("QuantizeAnnotate", "QuantizeCalibrate", "QuantizeRealize")


def prerequisite_optimize(mod: Module | Function, params: Mapping[str, Any] | None = None) -> Module:
    """The module with its parameters bound and norms folded into weights, which is what is worth quantizing."""
    module = mod if isinstance(mod, Module) else Module(mod)
    if params:
        names = {p.name for p in module.main.params}
        known = {name: value for name, value in params.items() if name in names}
        module = module.with_function("main", bind_params(module.main, known))
    passes: list[Pass] = [InferType(), SimplifyInference(), FoldConstant(), FoldScaleAxis(), CanonicalizeOps()]
    with PassContext(opt_level=3, instruments=PassContext.current().instruments):
        return Sequential([*passes, FoldConstant()])(module)


def quantize(mod: Module | Function, params: Mapping[str, Any] | None = None, dataset: Dataset | None = None) -> Module:
    """The module in integers, as :func:`current_qconfig` says; ``dataset`` are inputs by name, a dictionary a run, for
    ways to calibrate that look at data.  With ``do_simulation`` it stays in floats that are rounded alike."""
    module, config = prerequisite_optimize(mod, params), current_qconfig()
    passes: list[Pass] = [Partition(), Annotate(), Calibrate(dataset)]
    if not config.do_simulation:
        passes.append(Realize())
    with PassContext(opt_level=3, required_pass=_REQUIRED, instruments=PassContext.current().instruments):
        module = Sequential([*passes, FoldConstant()])(module)
    if config.partition_conversions == "disabled":
        return module
    dtypes = {config.dtype_input, config.dtype_weight, config.dtype_activation}
    return partition_conversions(module, dtypes, config.partition_conversions == "fully_integral")
