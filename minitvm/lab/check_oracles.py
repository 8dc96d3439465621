"""Who else knows a model's results: ONNX Runtime, ONNX's reference evaluator, or the loop interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from minitvm.driver.compile import build
from minitvm.errors import ConfigError, MiniTVMError
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Function, Module
from minitvm.lab.check_models import runner
from minitvm.passes.compare import Run
from minitvm.passes.draws import DRAWS, Draw, random_inputs, turns
from minitvm.passes.roundings import Results, flatten

ORACLES = ("reference", "onnxruntime", "interp")


def interpreted(module: Module) -> dict[Draw, Results]:
    """What the loop interpreter computes, by draw; it has nothing to say where it raises."""
    run = runner(build(module, "interp", opt_level=0)["default"](), module.main)
    found: dict[Draw, Results] = {}
    for draw in turns(module.main, DRAWS):
        inputs = random_inputs(module.main, draw=draw)
        if not isinstance(inputs, Declined):
            try:
                found[draw] = flatten(run(inputs))
            except MiniTVMError:  # an index out of range, as the references have it
                continue
    return found


@dataclass(frozen=True)
class Oracle:
    """Another implementation of ONNX.

    ``start`` makes what runs a model, in its usual way or (``plainly``) without optimizations, from inputs by name to
    results; what either raises is a refusal, which is reported.
    """

    name: str
    start: Callable[[onnx.ModelProto, bool], Callable[[dict[str, Any]], Sequence[Any]]]
    draws: Sequence[Draw]
    """The inputs that it is asked about: finite ones, as every implementation does as it likes with NaN."""
    atol: float = 0.0
    """What it makes nothing of."""
    has_ways: bool = False
    """Whether it is asked ``plainly``, too: elements on which it differs from itself are decided by its rounding."""

    def runs(self, model: onnx.ModelProto, names: Sequence[str], known: Mapping[str, Any]) -> list[Run]:
        """The runs from inputs by position (``names``, beside the ``known`` ones) to results, or why there are none."""
        return [self._run(model, names, known, plainly) for plainly in (False, True)[: 1 + self.has_ways]]

    def _run(self, model: onnx.ModelProto, names: Sequence[str], known: Mapping[str, Any], plainly: bool) -> Run:
        started: list[Callable[[dict[str, Any]], Sequence[Any]]] = []

        def run(inputs: list[Any]) -> tuple[np.ndarray, ...] | Declined:
            try:
                if not started:
                    started.append(self.start(model, plainly))
                found = started[0]({**known, **dict(zip(names, inputs, strict=True))})
                return tuple(np.asarray(value) for value in found)
            except Exception as error:  # another project's, which may raise whatever it likes
                first = (str(error).strip().splitlines() or ["without a word"])[0]
                return Declined(f"{self.name} refuses: {type(error).__name__}: {first}")

        return run


def _onnxruntime(model: onnx.ModelProto, plainly: bool) -> Callable[[dict[str, Any]], Sequence[Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if plainly:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, feeds))


def _reference(model: onnx.ModelProto, plainly: bool) -> Callable[[dict[str, Any]], Sequence[Any]]:
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    def inference(self: Any, x: Any, *parameters: Any, epsilon: float, training_mode: int = 0, **_: Any) -> Any:
        if training_mode:
            raise NotImplementedError("BatchNormalization in training")
        scale, bias, mean, var = (p.reshape(-1, *[1] * (x.ndim - 2)) for p in parameters)
        return (((x - mean) / np.sqrt(var + epsilon) * scale + bias).astype(x.dtype),)

    # the one of onnx trains in all opsets that could
    fixed = type("BatchNormalization", (OpRun,), {"op_domain": "", "_run": inference})
    made = ReferenceEvaluator(model, new_ops=[fixed])

    def run(feeds: dict[str, Any]) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return list(made.run(None, feeds))

    return run


_RUNTIME = Oracle("ONNX Runtime", _onnxruntime, DRAWS[:-1], 2.0**-23, has_ways=True)  # its sigmoid ends at -18
_EVALUATOR = Oracle("ONNX's reference", _reference, DRAWS[:3])


def oracle_of(against: str, model: Any) -> Oracle | None:
    """The oracle that says whether ``model`` is imported right; ``None`` for one that was not.  Raises
    :class:`ConfigError` where ONNX Runtime is asked about what is no ONNX model, or is not installed."""
    is_onnx = not isinstance(model, (Module, Function)) and not (isinstance(model, str) and "def @" in model)
    if against != "onnxruntime":
        return _EVALUATOR if is_onnx and against == "reference" else None
    if not is_onnx:
        hint = "against='reference', or the path of an .onnx file"
        raise ConfigError("ONNX Runtime runs ONNX models only", hint=hint)
    if not _is_installed():
        raise ConfigError("onnxruntime is not installed", hint="pip install onnxruntime")
    return _RUNTIME


def second_opinion(oracle: Oracle) -> Oracle | None:
    """The oracle that decides where ``oracle`` differs: ONNX's own reference, many operators of which are wrong in
    corners, is not believed against ONNX Runtime."""
    return _RUNTIME if oracle is _EVALUATOR and _is_installed() else None


def _is_installed() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None
