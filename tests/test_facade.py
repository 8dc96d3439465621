"""The names that people know from TVM and ONNX Runtime are there, and mean what they mean there."""

from __future__ import annotations

import pytest

import minitvm
from minitvm import relay
from minitvm.errors import FrontendError
from minitvm.frontend.other_formats import FRAMEWORKS
from minitvm.tvm.error import NotOfferedError

SPELLINGS = {
    "IRModule": "ir.expr.Module",
    "PassContext": "transform.PassContext",
    "context": "device",
    "contrib.debugger.debug_executor.GraphModuleDebug": "debug_executor.GraphModuleDebug",
    "contrib.graph_executor.GraphModule": "GraphModule",
    "contrib.graph_executor.create": "contrib.graph_runtime.create",
    "load_module": "runtime.load_module",
    "nd.array": "runtime.ndarray.array",
    "relay.IRModule": "Module",
    "relay.analysis.free_vars": "relay.ir_pass.free_vars",
    "TVMError": "error.TVMError",
    "contrib.debugger.debug_executor": "debug_executor",
    "contrib.graph_executor": "graph_executor",
    "gpu": "cuda",
    "instrument.PassTimingInstrument": "transform.PassTiming",
    "ir.IRModule": "IRModule",
    "ir.structural_equal": "tvm.relay.equality.structural_equal",
    "parser.parse": "relay.parse",
    "relay": "tvm.relay",
    "relay.build": "relay.build_module.build",
    "relay.optimize": "relay.build_module.optimize",
    "relay.ty.TensorType": "relay.TensorType",
    "runtime.NDArray": "nd.NDArray",
    "relay.build_config": "PassContext",
    "relay.build_module.create_executor": "create_executor",
    "relay.create_executor": "create_executor",
    "relay.testing.create_workload": "testing.init.create_workload",
    "relay.testing.resnet.get_workload": "testing.resnet.get_workload",
    "relay.transform.FuseOps": "transform.FuseOps",
    "testing.assert_allclose": "testing.checks.assert_allclose",
}


def at(path: str) -> object:
    found: object = minitvm
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(("path", "same_as"), SPELLINGS.items(), ids=list(SPELLINGS))
def test_a_spelling_of_tvm_is_the_thing_itself(path: str, same_as: str) -> None:
    assert at(path) is at(same_as)


@pytest.mark.parametrize("name", minitvm.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert name in dir(minitvm)
    assert getattr(minitvm, name) is not None


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="minitvm has no attribute 'tune'"):
        _ = minitvm.tune
    with pytest.raises(AttributeError, match=r"minitvm\.frontend has no attribute 'from_nothing'"):
        _ = relay.frontend.from_nothing
    with pytest.raises(NotOfferedError, match=r"minitvm has no tvm\.relay\.frontend\.from_darknet"):
        relay.frontend.from_darknet("net.cfg")


def test_target_functions() -> None:
    assert minitvm.target.llvm() == minitvm.Target.parse("llvm")
    assert minitvm.target.cuda("-libs=cudnn,cublas").libs == ("cudnn", "cublas")


def test_devices() -> None:
    assert minitvm.device("llvm", 0) == minitvm.context("cpu", 0) == minitvm.cpu(0)
    assert minitvm.device("cuda", 1) == minitvm.cuda(1) and str(minitvm.cuda(1)) == "cuda(1)"


def test_other_importers_say_how_to_get_to_onnx() -> None:
    with pytest.raises(FrontendError) as caught:
        relay.frontend.from_mxnet(object(), {"data": (1, 3, 224, 224)})
    assert str(caught.value) == (
        "minitvm imports ONNX models only, MXNet models are not read\n"
        "  = hint: export to ONNX (with mxnet.onnx.export_model), then use from_onnx"
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_other_importer_refuses(name: str) -> None:
    with pytest.raises(FrontendError, match="export to ONNX"):
        getattr(minitvm.frontend, name)("model")
