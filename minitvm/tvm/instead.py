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

_TYPES = "types are tensors', tuples' and functions' of them, without variables of their own"
_DATA = "there are tensors and tuples, no data types of one's own"
_PURE = "graphs are pure: nothing is overwritten"
_PLANNED = "memory is planned in build: lib.plan"
_EXPORT = "export the model to ONNX: relay.frontend.from_onnx"
_DEVICE = "a library runs on one device"
_SPARSE = "weights are dense: relay.nn.sparse_dense multiplies by one that is not"


def _below(home: str, names: str, hint: str) -> dict[str, str]:
    """One hint for several names of a module."""
    return {f"{home}.{name}": hint for name in names.split()}


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
    **dict.fromkeys(("relay.op.register_compute", "relay.op.register_schedule"), _KERNELS),
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
    **_below("relay", "GlobalTypeVar IncompleteType TypeConstraint TypeRelation TypeVar Kind", _TYPES),
    **_below("relay", "TypeFunctor TypeMutator TypeVisitor type_functor", "types are few: match on their classes"),
    **_below("relay", "Pattern PatternConstructor PatternTuple PatternVar PatternWildcard TypeCall adt Prelude", _DATA),
    "relay.RefType": _PURE,
    "relay.Id": "variables are told apart as objects: variable is variable",
    "relay.base": "nodes are minitvm.relay's own: relay.Expr, relay.Span, relay.SourceName",
    **_below("relay", "debug loops", "a loop is a function that calls itself last, or control.loop"),
    "relay.memory": _PLANNED,
    **_below("relay", "astext pretty_print", "module.astext(), or minitvm.tvm.relay.text.astext(expr), Relay's"),
    "relay.scope_builder": "relay.ScopeBuilder",
    "relay.setrecursionlimit": "nothing here recurses over a graph",
    **_below("relay.analysis", "collect_device_info collect_device_annotation_ops", _DEVICE),
    **_below("relay.analysis", "search_dense_op_weight sparse_conv2d sparse_dense", _SPARSE),
    "relay.analysis.IntermediateExpr": "relay.analysis.extract_intermediate_expr(mod, n)",
    "relay.analysis.annotated_regions": "relay.transform.MergeCompilerRegions says what it joins: minitvm.lab's log",
    "relay.analysis.feature": "relay.analysis.detect_feature",
    "relay.analysis.operations_distribution": "relay.analysis.list_op_freqs",
    "relay.transform.AnnotateMemoryScope": _PLANNED,
    **_below("relay.transform", "AnnotateSpans CapturePostDfsIndexInSpans", "calls keep where they came from: span"),
    **_below("relay.transform", "Conv2dToSparse Conv2dToSparse2 DenseToSparse SimplifyFCTranspose", _SPARSE),
    "relay.transform.Defunctionalization": "functions as values end in a build; relay.transform.LambdaLift",
    "relay.transform.FoldConstantExpr": "relay.transform.fold_constant_expr",
    "relay.transform.FuseMatmulBiasAdd": "FuseOps fuses what is added to a product",
    **_below(
        "relay.transform",
        "InlineCompilerFunctionsBoundTo MarkCompilerFunctionsAsExtern"
        " OutlineCompilerFunctionsWithExistingGlobalSymbols",
        "a build asks relay.ext.NAME for each function with Compiler=NAME: docs/other-compilers.md",
    ),
    "relay.transform.LayoutConfig": "relay.transform.ConvertLayout({'nn.conv2d': ['NHWC', 'default']})",
    **_below("relay.transform", "MetaScheduleLayoutRewrite AutoSchedulerLayoutRewrite", _TUNING),
    "relay.transform.build_config": "relay.build_config",
    "relay.transform.un_cps": _NO_CPS,
    "relay.transform.mixed_precision": "relay.transform.ToMixedPrecision",
    "relay.transform.memory_plan": _PLANNED,
    "relay.transform.infer_layout_utils": "relay.op.register_convert_op_layout",
    **_below(
        "relay.op", "OpStrategy register_broadcast_schedule register_injective_schedule register_pattern", _KERNELS
    ),
    **_below("relay.op", "register_reduce_schedule register_shape_func", _KERNELS),
    "relay.op.debug": "minitvm.debug_executor.GraphModuleDebug keeps what lies between",
    "relay.op.memory": _PLANNED,
    "relay.op.op_attrs": "an operator's attributes are its dataclass's fields: call.op.attributes()",
    "relay.op.register_external_compiler": "register_func('relay.ext.mylib', f)",
    **_below(
        "relay.op",
        "register_fake_quantization_to_integer register_optional_fake_quantization_to_integer",
        "tvm.ir.register_op_attr(name, 'FTVMFakeQuantizationToInteger', rule)",
    ),
    "relay.op.register_mixed_precision_conversion": "an operator says so itself: Op.precision, docs/add-an-operator.md",
    "relay.op.dyn": "attributes may be expressions: relay.reshape(x, shape)",
    "relay.qnn.transform": "relay.transform.Legalize and CanonicalizeOps are for quantized operators, too",
    **_below("relay.testing", "check_grad gradient", "relay.transform.gradient, checked beside finite differences"),
    **_below("relay.testing", "count count_ops make_nat_expr Prelude", _DATA),
    **_below("relay.testing", "run_as_python to_python", 'relay.create_executor("debug", mod)'),
    "relay.testing.rand": "numpy.random.default_rng(0).random(shape)",
    "relay.testing.ref_types": _PURE,
    **_below("relay.quantize", "QuantizeContext quantize_context", "relay.quantize.qconfig; a rule is given its state"),
    "relay.quantize.register_partition_function": "relay.quantize.register_annotate_function",
    "relay.frontend.ChangeDatatype": "relay.transform.ToMixedPrecision",
    **_below("relay.frontend", "from_caffe from_darknet from_oneflow", _EXPORT),
    "relay.frontend.quantize_conv_bias_mode_from_tflite": _EXPORT,
    "relay.sparse_fill_rows": "rows that are empty only data say: fill a dense tensor, relay.sparse_to_dense",
    "relay.vision.proposal": "relay.vision.non_max_suppression of the boxes that anchors make",
}
"""By TVM's path, what there is instead; it stands for all that lies below the path, too."""


def why(path: str) -> str | None:
    """What there is instead of something of TVM's; ``None`` where nothing is said of it."""
    while path and path not in INSTEAD:
        path = path.rpartition(".")[0]
    return INSTEAD.get(path)
