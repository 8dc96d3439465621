"""What TVM offers and minitvm does not, and what there is instead (``minitvm.tvm.lacking`` is how it is said)."""

from __future__ import annotations

_KERNELS = "kernels are compute rules, templates and schedules: docs/add-an-operator.md, docs/write-a-template.md"
_TUNING = "`minitvm tune MODEL` measures templates; PassContext(config={'minitvm.records': [path]}) uses what it found"
_NO_CPS = "relay.transform.ToANormalForm names what is computed; continuations are not"
_NO_COLLAGE = "relay.transform.AnnotateTarget asks compilers in the order that you give"
_DYNAMIC = "minitvm.InferenceSession(model) compiles for the shapes that it meets"
_OTHER_GPU = "GPUs are NVIDIA's: minitvm.cuda(0)"
_PACKED = "functions are Python's: docs/add-an-operator.md adds an operator"
_TENSORS = "the loop IR is minitvm.ir.loop: docs/loop-ir.md"

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("te", "topi", "hybrid", "lower"), _KERNELS),
    **dict.fromkeys(("tir", "script", "arith"), _TENSORS),
    **dict.fromkeys(("autotvm", "auto_scheduler", "meta_schedule", "contrib.popen_pool"), _TUNING),
    **dict.fromkeys(("rocm", "opencl", "metal", "vulkan", "hexagon", "ext_dev", "webgpu"), _OTHER_GPU),
    **dict.fromkeys(("target.rocm", "target.arm_cpu", "target.mali", "target.intel_graphics"), _OTHER_GPU),
    "register_func": "register_func('relay.ext.mylib', f) registers a code generator; other functions are Python's",
    **dict.fromkeys(("get_global_func", "register_object", "_ffi", "runtime.packed_func"), _PACKED),
    **dict.fromkeys(("register_extension", "register_op_attr", "register_intrin_lowering"), _PACKED),
    **dict.fromkeys(("contrib.cc", "contrib.nvcc", "contrib.ndk", "contrib.xcode"), "no compiler is called"),
    **dict.fromkeys(("contrib.cudnn", "contrib.cublas", "contrib.cblas"), "Target('cuda -libs=cudnn,cublas')"),
    "micro": "there is no code for microcontrollers; minitvm compiles for CPUs with LLVM and for NVIDIA's GPUs",
    "rpc": "copy the saved library to the other machine, and minitvm.load it there",
    "relax": "graphs are Relay's: docs/graph-ir.md",
    "driver.tvmc": "the command line is `minitvm compile`, `run`, `bench` and `show`: docs/cli.md",
    "contrib.download": "nothing is downloaded: fetch the file yourself, and give its path",
    "contrib.relay_viz": "lib.report, str(module) and `minitvm show` show graphs",
    "contrib.pipeline_executor": "several libraries run in threads of your own, each with its GraphModule",
    "contrib.cuda_graph": "GraphModule captures its kernels in a CUDA graph by itself",
    "runtime.vm": _DYNAMIC,
    "runtime.profiling": "GraphModuleDebug.profile() of minitvm.debug_executor is a table, CSV and JSON of times",
    "runtime.enabled": 'minitvm.device("cuda").exist says whether there is a GPU',
    "testing.utils": "minitvm.testing.assert_allclose and check_rewrite are what there is",
    "relay.vm": _DYNAMIC,
    "relay.backend.vm": _DYNAMIC,
    "relay.collage": _NO_COLLAGE,
    "relay.aot": _DYNAMIC,
    "relay.data_dep_optimization": "weights of few bytes stay so by themselves: docs/decisions/packed-weights.md",
    "relay.prelude": "there are tensors and tuples, no data types of one's own",
    **dict.fromkeys(("relay.Match", "relay.Clause", "relay.Constructor", "relay.TypeData"), "tensors and tuples only"),
    **dict.fromkeys(("relay.RefCreate", "relay.RefRead", "relay.RefWrite"), "graphs are pure: nothing is overwritten"),
    **dict.fromkeys(("relay.op.strategy", "relay.op.register_strategy"), _KERNELS),
    **dict.fromkeys(("relay.op.register_compute", "relay.op.register_schedule", "relay.op.op"), _KERNELS),
    **{
        f"relay.testing.{name}": "the networks are those of minitvm.testing: resnet, vgg, mobilenet, dcgan, lstm, ..."
        for name in ("darknet", "yolo_detection", "synthetic", "resnet_3d", "nat", "tf", "py_converter")
    },
    **dict.fromkeys(("relay.transform.ToCPS", "relay.transform.to_cps"), _NO_CPS),
    "relay.transform.CollagePartition": _NO_COLLAGE,
    **{
        f"relay.transform.{name}": "relay.transform.gradient gives gradients, without closures and references"
        for name in ("LazyGradientInit", "PartialEvaluate")
    },
    "relay.analysis.check_kind": "a type that is none is an error where it is made",
    "relay.analysis.unmatched_cases": "there is no Match: tensors and tuples only",
    "relay.analysis.extract_fake_quantized_ops": "relay.analysis.list_fake_quantized_op_freqs counts them",
    "relay.analysis.search_fc_transpose": "transposed weights are folded: weights that are constants cost nothing",
    "relay.analysis.get_calibration_data": "minitvm.debug_executor.GraphModuleDebug keeps what lies between",
    "relay.transform.SplitArgs": "kernels take any number of arguments",
    "relay.transform.PlanDevices": "a library runs on one device",
    "relay.transform.ManifestAlloc": "memory is planned in build: lib.plan",
    "relay.transform.ManifestLifetimes": "memory is planned in build: lib.plan",
    "relay.transform.recast": "relay.transform.ToMixedPrecision",
}
"""By TVM's path, what there is instead; it stands for all that lies below the path, too."""


def why(path: str) -> str | None:
    """What there is instead of something of TVM's; ``None`` where nothing is said of it."""
    while path and path not in INSTEAD:
        path = path.rpartition(".")[0]
    return INSTEAD.get(path)
