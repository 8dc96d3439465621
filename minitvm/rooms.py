"""What is behind the doors of lower rooms (``doors.py``): functions of higher ones, which only this file names."""

from minitvm.doors import BEHIND

BEHIND |= {
    "codegen.llvm.backend.gemm_of": "codegen.libraries.gemm_of",
    "codegen.llvm.backend.gemm_text": "codegen.llvm.cblas.gemm_text",
    "codegen.llvm.backend.measure": "codegen.llvm.peak.measure",
    "codegen.llvm.backend.vector_sums": "codegen.llvm.peak.vector_sums",
    "driver.program.is_native": "runtime.control.is_native",
    "driver.report.explained": "lab.explanation.explain",
    "driver.report.page_written": "viewer.write_page",
    "frontend.onnx.elsewhere.bags": "frontend.onnx.more.bags.bags",
    "frontend.onnx.elsewhere.built": "frontend.onnx.more.foreign.built",
    "frontend.onnx.elsewhere.foreign": "frontend.onnx.more.foreign.foreign",
    "frontend.onnx.elsewhere.is_for_python": "frontend.onnx.more.sequence.is_for_python",
    "frontend.onnx.elsewhere.is_foreign": "frontend.onnx.more.foreign.is_foreign",
    "frontend.onnx.elsewhere.known_to_onnx": "frontend.onnx.more.foreign.known_to_onnx",
    "frontend.onnx.elsewhere.trained_norm": "frontend.onnx.more.training.batch_normalization",
    "ir.ops.more.foreign.evaluator_of_onnx": "frontend.onnx.more.foreign.evaluator",
    "ir.ops.more.foreign.imported_late": "frontend.onnx.more.late.evaluator",
    "frontend.onnx.tensor.text": "frontend.onnx.more.sequence.text",
    "models.tuned": "driver.tune.tuned",
    "passes.places.other_ways": "passes.winograd.ways",
    "runtime.code.code_above": "runtime.nvidia.code_of",
    "runtime.library.control_step": "runtime.control.control_step",
    "runtime.native.openblas": "runtime.cblas.functions",
    "runtime.devices.memory_above": "runtime.nvidia.memory_of",
    "runtime.library.poisoned": "runtime.poison.poisoned",
    "shown.html_of": "lab.notebook.html_of",
}
