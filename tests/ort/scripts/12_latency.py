"""Warm-up, then latency: percentiles are figures, throughput is positive."""

import time

import numpy as np
import onnxruntime
from helper import small_classifier

sess_options = onnxruntime.SessionOptions()
sess_options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(small_classifier(), sess_options, providers=["CPUExecutionProvider"])
inputs = {
    i.name: np.random.rand(*[d if isinstance(d, int) else 1 for d in i.shape]).astype(np.float32)
    for i in session.get_inputs()
}
for _ in range(5):
    session.run(None, inputs)
latencies = []
for _ in range(20):
    start = time.perf_counter()
    outputs = session.run(None, inputs)
    latencies.append((time.perf_counter() - start) * 1000)
p50, p99 = np.percentile(latencies, [50, 99])
print(0 < p50 <= p99, len(latencies), [o.shape for o in outputs])
