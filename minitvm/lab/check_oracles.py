"""Who else knows a model's results: ONNX Runtime, or the loop interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.driver.compile import build
from minitvm.errors import ConfigError
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Function, Module
from minitvm.lab.check_models import runner
from minitvm.passes.compare import DRAWS, Draw, Results, flatten, random_inputs, turns

ORACLES = ("reference", "onnxruntime", "interp")


def results_of(oracle: str, model: Any, module: Module) -> dict[Draw, Results]:
    """The results of an oracle by draw; none where the operators' references are asked, or where it has none."""
    if oracle == "reference":
        return {}
    run = _interp(module) if oracle == "interp" else _onnxruntime(model, module.main)
    found: dict[Draw, Results] = {}
    for draw in turns(module.main, DRAWS):
        inputs = random_inputs(module.main, draw=draw)
        if not isinstance(inputs, Declined):
            results = run(inputs)
            if results is not None:
                found[draw] = results
    return found


def _interp(module: Module) -> Callable[[list[Any]], Results | None]:
    instance = build(module, "interp", opt_level=0)["default"]()
    run = runner(instance, module.main)
    return lambda inputs: flatten(run(inputs))


def _onnxruntime(model: Any, function: Function) -> Callable[[list[Any]], Results | None]:
    if isinstance(model, (Module, Function)) or (isinstance(model, str) and "def @" in model):
        raise ConfigError(
            "ONNX Runtime runs ONNX models only", hint="against='reference', or the path of an .onnx file"
        )
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("onnxruntime is not installed", hint="pip install 'minitvm[bench]'") from None
    given = model if isinstance(model, bytes) else os.fspath(model) if _is_path(model) else model.SerializeToString()
    session = onnxruntime.InferenceSession(given, providers=["CPUExecutionProvider"])
    names = [p.name for p in function.params]

    def run(inputs: list[Any]) -> Results | None:
        try:
            return [np.asarray(r) for r in session.run(None, dict(zip(names, inputs, strict=True)))]
        except Exception:  # it may fail in all ways, on indices out of range above all
            return None

    return run


def _is_path(model: Any) -> bool:
    return isinstance(model, (str, os.PathLike))
