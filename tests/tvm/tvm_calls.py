"""TVM's tutorials as lists of calls; see ``test_tutorial_calls.py``.  ``GPU`` is what needs one."""

QUICK_START = r"""
import numpy as np
from tvm import relay
from tvm.relay import testing
import tvm
from tvm import te
from tvm.contrib import graph_executor
import tvm.testing
batch_size, num_class, image_shape = 1, 1000, (3, 32, 32)
data_shape, out_shape = (batch_size,) + image_shape, (batch_size, num_class)
mod, params = relay.testing.resnet.get_workload(num_layers=18, batch_size=batch_size, image_shape=image_shape)
print(mod.astext(show_meta_data=False))
gpu_target = tvm.target.cuda()
target = tvm.target.Target("llvm")
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target, params=params)
gpu = tvm.cuda()
dev = tvm.cpu()
data = np.random.uniform(-1, 1, size=data_shape).astype("float32")
module = graph_executor.GraphModule(lib["default"](dev))
module.set_input("data", data)
module.run()
out = module.get_output(0, tvm.nd.empty(out_shape)).numpy()
print(out.flatten()[0:10])
from tvm.contrib import utils
temp = utils.tempdir()
path_lib = temp.relpath("deploy_lib.tar")
lib.export_library(path_lib)
print(temp.listdir())
loaded_lib = tvm.runtime.load_module(path_lib)
input_data = tvm.nd.array(data)
module = graph_executor.GraphModule(loaded_lib["default"](dev))
module.run(data=input_data)
out_deploy = module.get_output(0).numpy()
print(out_deploy.flatten()[0:10])
tvm.testing.assert_allclose(out_deploy, out, atol=1e-5)
"""

EXTERNAL_LIBRARIES = r"""
import tvm
from tvm import te
import numpy as np
from tvm.contrib import graph_executor as runtime
from tvm import relay
from tvm.relay import testing
import tvm.testing
out_channels, batch_size = 16, 1
data = relay.var("data", relay.TensorType((batch_size, 3, 32, 32), "float32"))
weight = relay.var("weight")
bn_gamma = relay.var("bn_gamma")
bn_beta = relay.var("bn_beta")
bn_mmean = relay.var("bn_mean")
bn_mvar = relay.var("bn_var")
simple_net = relay.nn.conv2d(
    data=data, weight=weight, kernel_size=(3, 3), channels=out_channels, padding=(1, 1)
)
simple_net = relay.nn.batch_norm(simple_net, bn_gamma, bn_beta, bn_mmean, bn_mvar)[0]
simple_net = relay.nn.relu(simple_net)
simple_net = relay.Function(relay.analysis.free_vars(simple_net), simple_net)
old_spelling = relay.ir_pass.free_vars(simple_net.body)
data_shape = (batch_size, 3, 32, 32)
net, params = testing.create_workload(simple_net)
import logging
logging.basicConfig(level=logging.DEBUG)
target = "llvm"
lib = relay.build_module.build(net, target, params=params)
dev = tvm.device(target, 0)
data = np.random.uniform(-1, 1, size=data_shape).astype("float32")
module = runtime.GraphModule(lib["default"](dev))
module.set_input("data", data)
module.run()
out_shape = (batch_size, out_channels, 32, 32)
out = module.get_output(0, tvm.nd.empty(out_shape))
out_cuda = out.numpy()
net, params = testing.create_workload(simple_net)
target = "llvm -libs=cblas"
lib = relay.build_module.build(net, target, params=params)
dev = tvm.device(target, 0)
module = runtime.GraphModule(lib["default"](dev))
module.set_input("data", data)
module.run()
out = module.get_output(0, tvm.nd.empty(out_shape))
out_cudnn = out.numpy()
tvm.testing.assert_allclose(out_cuda, out_cudnn, rtol=1e-5)
gpu_lib = relay.build_module.build(net, "cuda -arch=sm_90 -libs=cudnn", params=params)
gpu_lib = relay.build_module.build(net, "cuda -arch=sm_90 -libs=cudnn,cublas", params=params)
print(gpu_lib.get_lib().imported_modules[0].get_source())
"""

RELAY_INFERENCE = r"""
import json
import numpy as np
import tvm
from tvm import relay
import tvm.relay as relay
import tvm.relay.testing as testing
from tvm.contrib import graph_executor
from tvm.contrib.graph_executor import GraphModule
from tvm.contrib import utils
from tvm.relay.testing import resnet
from tvm.runtime import load_module
mod, params = relay.testing.resnet.get_workload(1, 1000, 18, (3, 32, 32))
print(type(mod), type(params), len(params))
x = params["bn0_gamma"].numpy() if "bn0_gamma" in params else params["bn1_gamma"].numpy()
print(params["bn1_gamma"].asnumpy().shape, params["bn1_gamma"].shape, params["bn1_gamma"].dtype)
on_device = {name: tvm.nd.array(value, device=tvm.cpu(0)) for name, value in params.items()}
func = mod["main"]
func = relay.Function(func.params, relay.nn.softmax(func.body), None, func.type_params, func.attrs)
print([p.name_hint for p in func.params][:3])
print([g.name_hint for g in mod.get_global_vars()])
main = mod.get_global_var("main")
print(mod[main].astext()[:100])
mod.show()
target = "llvm"
dev = tvm.device(target, 0)
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target=target, params=on_device)
with relay.build_config(opt_level=3):
    graph, old_lib, old_params = relay.build_module.build(mod, target, params=params)
print(lib.executor, lib.libmod_name, lib.function_metadata, lib.ir_mod)
print(len(lib.params), len(lib.get_params()), type(lib.lib), lib.get_lib())
print(json.loads(lib.graph_json)["heads"], lib.get_graph_json()[:10], lib.get_executor_config()[:10])
print(lib[lib.libmod_name])
print(lib.get_lib().get_source()[:200])
data = tvm.nd.array(np.random.uniform(size=(1, 3, 32, 32)).astype("float32"))
module = graph_executor.GraphModule(lib["default"](dev))
module.set_input("data", data)
module.set_input(**lib.get_params())
module.run()
tvm_output = module.get_output(0).numpy()
print(tvm_output.argmax(), module.get_num_outputs(), module.get_num_inputs(), module.get_input_index("data"))
print(module.get_input("data").numpy().shape)
temp = utils.tempdir()
lib.export_library(temp.relpath("deploy_lib.tar"))
with open(temp.relpath("deploy_graph.json"), "w") as fo:
    fo.write(lib.graph_json)
with open(temp.relpath("deploy_param.params"), "wb") as fo:
    fo.write(relay.save_param_dict(lib.params))
print(temp.listdir())
loaded_json = open(temp.relpath("deploy_graph.json")).read()
loaded_lib = tvm.runtime.load_module(temp.relpath("deploy_lib.tar"))
loaded_params = bytearray(open(temp.relpath("deploy_param.params"), "rb").read())
module = graph_executor.create(loaded_json, loaded_lib, dev)
module.load_params(loaded_params)
module.run(data=data)
tvm.testing.assert_allclose(module.get_output(0).numpy(), tvm_output, rtol=1e-7)
params_again = tvm.runtime.load_param_dict(loaded_params)
ctx = tvm.context("llvm", 0)
from tvm.contrib import graph_runtime
module = graph_runtime.create(graph, old_lib, ctx)
module.set_input(**old_params)
module.run(data=data)
print(module.get_output(0, tvm.nd.empty((1, 1000))).asnumpy().shape)
timer = module.module.time_evaluator("run", dev, number=1, repeat=2)
print(np.mean(timer().results))
print(module.benchmark(dev, number=1, repeat=1))
"""

MOBILENET = r"""
import numpy as np
import onnx
import tvm
from tvm import te
import tvm.relay as relay
from tvm.relay import frontend
from tvm.contrib import graph_executor
from tvm.contrib.download import download_testdata
from tvm.relay.build_module import OPT_PASS_LEVEL
onnx_model = onnx.load("mobilenet.onnx")
shape_dict = {"0": (1, 3, 32, 32)}
mod, params = relay.frontend.from_onnx(onnx_model, shape_dict)
mod, params = relay.frontend.from_onnx(onnx_model, shape=shape_dict)
print(mod.astext(show_meta_data=False))
print(sorted(OPT_PASS_LEVEL.items()))
target = "llvm"
x = np.random.uniform(size=(1, 3, 32, 32)).astype("float32")
with tvm.transform.PassContext(opt_level=3):
    executor = relay.build_module.create_executor("graph", mod, tvm.cpu(0), target, params).evaluate()
tvm_output = executor(tvm.nd.array(x.astype("float32"))).numpy()
intrp = relay.build_module.create_executor("graph", mod, tvm.cpu(0), target)
tvm_output = intrp.evaluate(mod["main"])(tvm.nd.array(x), **params).asnumpy()
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target=target, params=params)
with tvm.target.Target("llvm"):
    same = relay.build(mod, params=params)
dev = tvm.device(str(target), 0)
module = graph_executor.GraphModule(lib["default"](dev))
module.set_input("0", x)
module.run()
tvm.testing.assert_allclose(module.get_output(0).numpy(), tvm_output, rtol=1e-4, atol=1e-5)
optimized, rest = relay.optimize(mod, target, params)
lib.export_library("mobilenet.tar")
tvm.runtime.load_module("mobilenet.tar")
passes = [relay.transform.SimplifyInference(), relay.transform.FoldConstant(), relay.transform.FoldScaleAxis()]
seq = tvm.transform.Sequential(passes + [relay.transform.FuseOps(fuse_opt_level=2)])
fused = seq(mod)
fold = relay.transform.FoldConstant()(mod)
bound = relay.build_module.bind_params_by_name(mod["main"], params)
seen = []
relay.analysis.post_order_visit(mod["main"], lambda node: seen.append(type(node)))
print(relay.analysis.all_vars(mod["main"]), relay.analysis.free_vars(mod["main"].body))
print(relay.analysis.get_total_mac_number(mod["main"]), relay.analysis.list_op_freqs(mod))
tvm.parser.parse(mod.astext(), params)
try:
    relay.frontend.from_mxnet(object(), {})
except tvm.error.TVMError as error:
    print(error)
"""

_ON_GPU = """
net = tvm.IRModule.from_expr(relay.nn.relu(relay.var("x", shape=(4,))))
graph_executor.GraphModule(relay.build(net, "cuda -arch=sm_90")["default"](tvm.cuda()))
"""
GPU = (_ON_GPU, "tvm.nd.array(np.ones(3), tvm.gpu(0))", "tvm.nd.empty((3,), device=tvm.cuda(0))")


def _calls(text: str) -> list[str]:
    """Statements: a line, with the indented or closing lines below it."""
    found: list[str] = []
    for line in filter(None, text.splitlines()):
        if found and (line[0] in " )" or line.startswith("except")):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


TUTORIALS = {
    "T0": _calls(QUICK_START),
    "T1": _calls(EXTERNAL_LIBRARIES),
    "T2": _calls(RELAY_INFERENCE),
    "T3": _calls(MOBILENET),
}
