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
with relay.build_config(opt_level=3):
    graph, lib, params = relay.build(mod, target, params=params)
print(type(graph), type(lib), type(params))
ctx = tvm.context(target)
rt = tvm.contrib.graph_runtime.create(graph, lib, ctx)
rt.set_input(**params)
rt.run(data=tvm.nd.array(data))
scores = rt.get_output(0).asnumpy()[0]
a = np.argsort(scores)[-1:-5:-1]
graph_fn, mod_fn, params_fn = ["resnet18" + ext for ext in (".json", ".tar", ".params")]
lib.export_library(mod_fn)
with open(graph_fn, "w") as f:
    f.write(graph)
with open(params_fn, "wb") as f:
    f.write(relay.save_param_dict(params))
loaded_graph = open(graph_fn).read()
loaded_mod = tvm.module.load(mod_fn)
loaded_params = open(params_fn, "rb").read()
loaded_rt = tvm.contrib.graph_runtime.create(loaded_graph, loaded_mod, ctx)
loaded_rt.load_params(loaded_params)
loaded_rt.run(data=tvm.nd.array(data))
loaded_scores = loaded_rt.get_output(0).asnumpy()[0]
tvm.testing.assert_allclose(loaded_scores, scores)
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
with relay.build_config(opt_level=3):
    intrp = relay.build_module.create_executor("graph", mod, tvm.cpu(0), target)
func = intrp.evaluate(mod["main"])
output = func(tvm.nd.array(x.astype("float32")), **params).asnumpy()
print(output.argmax())
with tvm.transform.PassContext(opt_level=1):
    executor = relay.build_module.create_executor("graph", mod, tvm.cpu(0), target, params).evaluate()
tvm.testing.assert_allclose(executor(tvm.nd.array(x)).numpy(), output, rtol=1e-4, atol=1e-5)
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

PASS_INFRA = r"""
import numpy as np
import tvm
from tvm import te
import tvm.relay as relay
def example():
    shape = (1, 4, 6, 6)
    c = relay.const(np.ones(shape).astype("float32"))
    weight = relay.var("weight", shape=(4, 4, 3, 3))
    x = relay.var("x", relay.TensorType((1, 4, 8, 8), "float32"))
    conv = relay.nn.conv2d(x, weight)
    y = relay.multiply(relay.add(c, c), relay.const(2, "float32"))
    y = relay.add(conv, y)
    return relay.Function([x, weight], relay.add(relay.add(y, c), relay.add(y, c)))
f = example()
mod = tvm.IRModule.from_expr(f)
fold_const = relay.transform.FoldConstant()
mod = fold_const(mod)
print(mod)
mod = relay.transform.EliminateCommonSubexpr()(mod)
print(mod)
mod = relay.transform.FuseOps(fuse_opt_level=0)(mod)
print(mod)
f = example()
mod = tvm.IRModule.from_expr(f)
seq = tvm.transform.Sequential(
    [
        relay.transform.FoldConstant(),
        relay.transform.EliminateCommonSubexpr(),
        relay.transform.FuseOps(fuse_opt_level=2),
    ]
)
mod1 = seq(mod)
print(mod1)
with tvm.transform.PassContext(opt_level=3):
    mod2 = seq(mod)
print(mod2)
with tvm.transform.PassContext(opt_level=3, disabled_pass=["EliminateCommonSubexpr"]):
    mod3 = seq(mod)
print(mod3)
@relay.transform.function_pass(opt_level=1)
class CustomPipeline:
    def __init__(self, multiplier):
        self.multiplier = multiplier
    def transform_function(self, func, mod, ctx):
        obj = self
        class ReplaceConstant(tvm.relay.ExprMutator):
            def visit_constant(self, c):
                return relay.multiply(obj.multiplier, c)
        return ReplaceConstant().visit(func)
f = example()
mod = tvm.IRModule.from_expr(f)
custom_pass = CustomPipeline(multiplier=relay.const(3, "float32"))
assert custom_pass.info.name == "CustomPipeline"
mod3 = custom_pass(mod)
print(mod3)
@tvm.transform.module_pass(opt_level=2)
def renamed(mod, ctx):
    return tvm.IRModule({tvm.ir.GlobalVar("main"): mod["main"]})
@tvm.transform.module_pass(opt_level=2, name="Same", required=["InferType"])
class Same:
    def transform_module(self, mod, ctx):
        return mod
@relay.transform.function_pass(opt_level=2, name="Softmax")
def softmax_behind(func, mod, ctx):
    return relay.Function(func.params, relay.nn.softmax(func.body))
for one in (renamed, Same(), softmax_behind):
    print(one.info, one.info.name, one.info.opt_level, one.info.required)
    mod = one(mod)
print(mod, tvm.ir.transform.Sequential([renamed, softmax_behind], name="mine", opt_level=1).info.name)
f = example()
mod = tvm.IRModule.from_expr(f)
seq = tvm.transform.Sequential(
    [
        relay.transform.FoldConstant(),
        tvm.transform.PrintIR(),
        relay.transform.EliminateCommonSubexpr(),
        relay.transform.FuseOps(),
    ]
)
@tvm.instrument.pass_instrument
class PrintBefore:
    def run_before_pass(self, mod, info):
        print("Running pass: {}", info)
        print(mod)
with tvm.transform.PassContext(opt_level=3, instruments=[PrintBefore()]):
    with tvm.target.Target("llvm"):
        mod = seq(mod)
print(mod)
with tvm.transform.PassContext(config={"relay.FuseOps.max_depth": 10}):
    print(tvm.transform.PassContext.current().config)
    seq(tvm.IRModule.from_expr(example()))
print(tvm.transform.PassContext.list_configs())
"""

PASS_INSTRUMENT = r"""
import tvm
import tvm.relay as relay
from tvm.relay.testing import resnet
from tvm.contrib.download import download_testdata
from tvm.relay.build_module import bind_params_by_name
from tvm.ir.instrument import (
    PassTimingInstrument,
    pass_instrument,
)
relay_mod, relay_params = resnet.get_workload(num_layers=18, batch_size=1, image_shape=(3, 32, 32))
print(relay_mod.astext(show_meta_data=False))
timing_inst = PassTimingInstrument()
with tvm.transform.PassContext(instruments=[timing_inst]):
    relay_mod = relay.transform.InferType()(relay_mod)
    relay_mod = relay.transform.FoldScaleAxis()(relay_mod)
    profiles = timing_inst.render()
assert "InferType" in profiles and "FoldScaleAxis" in profiles
cur_pass_ctx = tvm.transform.PassContext.current()
cur_pass_ctx.override_instruments([timing_inst])
relay_mod = relay.transform.InferType()(relay_mod)
relay_mod = relay.transform.FoldScaleAxis()(relay_mod)
profiles = timing_inst.render()
assert "FoldScaleAxis" in profiles
cur_pass_ctx.override_instruments([])
@pass_instrument
class CallCounter:
    def __init__(self):
        self.differences = []
        self.stack = []
    def enter_pass_ctx(self):
        self.differences, self.stack = [], []
    def exit_pass_ctx(self):
        assert not self.stack
    def run_before_pass(self, mod, info):
        self.stack.append((info.name, self.count(mod)))
    def run_after_pass(self, mod, info):
        name, before = self.stack.pop()
        assert name == info.name
        after = self.count(mod)
        changed = {op: after.get(op, 0) - before.get(op, 0) for op in {*before, *after}}
        if any(changed.values()):
            self.differences.append((len(self.stack), name, {op: n for op, n in changed.items() if n}))
    @staticmethod
    def count(mod):
        found = {}
        def visit(node):
            if isinstance(node, relay.expr.Call) and hasattr(node.op, "name"):
                found[node.op.name] = found.get(node.op.name, 0) + 1
        relay.analysis.post_order_visit(mod["main"], visit)
        return found
call_node_inst = CallCounter()
desired_layouts = {"nn.conv2d": ["NHWC", "HWIO"]}
pass_seq = tvm.transform.Sequential(
    [
        relay.transform.FoldConstant(),
        relay.transform.ConvertLayout(desired_layouts),
        relay.transform.FoldConstant(),
    ]
)
relay_mod["main"] = bind_params_by_name(relay_mod["main"], relay_params)
with tvm.transform.PassContext(opt_level=3, instruments=[call_node_inst, timing_inst]):
    relay_mod = pass_seq(relay_mod)
    profiles = timing_inst.render()
assert any(name == "ConvertLayout" for _, name, _ in call_node_inst.differences)
heard = []
class Named:
    def __init__(self, name):
        self._name = name
    def enter_pass_ctx(self):
        heard.append((self._name, "enter"))
    def exit_pass_ctx(self):
        heard.append((self._name, "exit"))
    def should_run(self, mod, info):
        heard.append((self._name, "should_run"))
        return True
    def run_before_pass(self, mod, pass_info):
        heard.append((self._name, "before"))
    def run_after_pass(self, mod, pass_info):
        heard.append((self._name, "after"))
@pass_instrument
class Fine(Named):
    pass
@pass_instrument
class BadEnter(Named):
    def enter_pass_ctx(self):
        raise ValueError("bad enter_pass_ctx")
@pass_instrument
class BadExit(Named):
    def exit_pass_ctx(self):
        raise ValueError("bad exit_pass_ctx")
@pass_instrument
class BadBefore(Named):
    def run_before_pass(self, mod, pass_info):
        raise ValueError("bad run_before_pass")
demo_ctx = tvm.transform.PassContext(instruments=[Fine("0"), BadEnter("bad"), Fine("1")])
try:
    with demo_ctx:
        relay_mod = relay.transform.InferType()(relay_mod)
except ValueError as ex:
    heard.append(str(ex.__cause__))
assert heard == [("0", "enter"), ("0", "exit"), "bad enter_pass_ctx"], heard
demo_ctx.override_instruments([])
demo_ctx = tvm.transform.PassContext(instruments=[Fine("0"), BadExit("bad"), Fine("1")])
heard.clear()
try:
    with demo_ctx:
        relay_mod = relay.transform.InferType()(relay_mod)
except ValueError as ex:
    heard.append(str(ex.__cause__))
assert heard[-2:] == [("0", "exit"), "bad exit_pass_ctx"], heard
demo_ctx = tvm.transform.PassContext(instruments=[Fine("0"), BadBefore("bad"), Fine("1")])
heard.clear()
try:
    with demo_ctx:
        relay_mod = relay.transform.InferType()(relay_mod)
except ValueError as ex:
    heard.append(str(ex.__cause__))
assert heard[-4:] == [("0", "exit"), ("bad", "exit"), ("1", "exit"), "bad run_before_pass"], heard
demo_ctx.override_instruments([])
cur_pass_ctx = tvm.transform.PassContext.current()
cur_pass_ctx.override_instruments([Fine("0"), BadBefore("bad"), Fine("1")])
heard.clear()
try:
    relay_mod = relay.transform.InferType()(relay_mod)
except ValueError as ex:
    heard.append(str(ex.__cause__))
assert heard[-1] == "bad run_before_pass" and not any(what == "exit" for _, what in heard[:-1]), heard
cur_pass_ctx.override_instruments([])
"""

_ON_GPU = """
net = tvm.IRModule.from_expr(relay.nn.relu(relay.var("x", shape=(4,))))
graph_executor.GraphModule(relay.build(net, "cuda -arch=sm_90")["default"](tvm.cuda()))
"""
GPU = (_ON_GPU, "tvm.nd.array(np.ones(3), tvm.gpu(0))", "tvm.nd.empty((3,), device=tvm.cuda(0))")


def _calls(text: str) -> list[str]:
    """Statements: a line, with the indented or closing lines below it, and what is expected of it."""
    found: list[str] = []
    for line in filter(None, text.splitlines()):
        decorated = found and found[-1].splitlines()[-1].startswith("@")
        if found and (decorated or line[0] in " )" or line.startswith(("except", "assert", "heard"))):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


TUTORIALS = {
    "T0": _calls(QUICK_START),
    "T1": _calls(EXTERNAL_LIBRARIES),
    "T2": _calls(RELAY_INFERENCE),
    "T3": _calls(MOBILENET),
    "T4": _calls(PASS_INFRA),
    "T5": _calls(PASS_INSTRUMENT),
}
