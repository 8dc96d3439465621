"""Thread counts, execution mode, optimization levels: same results."""

import numpy as np
import onnxruntime as ort
from helper import small_classifier

x = np.random.default_rng(1).normal(size=(1, 3, 32, 32)).astype(np.float32)
results = []
for level in (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
):
    so = ort.SessionOptions()
    so.graph_optimization_level = level
    so.intra_op_num_threads = 1 + int(level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    so.inter_op_num_threads = 1
    so.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    so.enable_mem_pattern = False
    so.enable_cpu_mem_arena = False
    so.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(small_classifier(), sess_options=so, providers=["CPUExecutionProvider"])
    results.append(session.run(None, {"image": x})[0])
    print(level, session.get_session_options().intra_op_num_threads)
print(all(np.allclose(r, results[0], rtol=1e-3, atol=1e-4) for r in results), results[0].shape)
print(so.get_session_config_entry("session.intra_op.allow_spinning"), so.execution_mode)
