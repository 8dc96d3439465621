"""What is behind the doors of lower rooms (``doors.py``): functions of higher ones, which only this file names."""

from minitvm.doors import BEHIND

BEHIND |= {
    "driver.report.explained": "lab.explanation.explain",
    "driver.report.page_written": "viewer.write_page",
    "ir.ops.foreign.evaluator_of_onnx": "frontend.onnx.foreign.evaluator",
    "ir.ops.foreign.imported_late": "frontend.onnx.late.evaluator",
    "runtime.code.code_above": "runtime.nvidia.code_of",
    "runtime.devices.memory_above": "runtime.nvidia.memory_of",
    "shown.html_of": "lab.notebook.html_of",
}
