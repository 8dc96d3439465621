"""Profiling: the file's name, its events, what the kernels took together."""

import json
import os
import tempfile

import numpy as np
import onnxruntime as rt
from helper import two_layers

with tempfile.TemporaryDirectory() as folder:
    options = rt.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = os.path.join(folder, "my_profile")
    session = rt.InferenceSession(two_layers(), options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, {"x": np.ones((4, 16), np.float32)})
    print(session.get_profiling_start_time_ns() > 0)
    prof_file = session.end_profiling()
    print(os.path.basename(prof_file).startswith("my_profile"), prof_file.endswith(".json"))
    with open(prof_file) as f:
        events = json.load(f)
    print(sum(e["name"] == "model_run" for e in events), {e["ph"] for e in events if e["cat"] == "Node"})
    nodes = [e for e in events if e["cat"] == "Node" and e["name"].endswith("kernel_time")]
    per_run = len(nodes) / 3
    print(per_run == int(per_run) and per_run > 0, all(e["dur"] >= 0 and "op_name" in e["args"] for e in nodes))
    print({e["args"]["provider"] for e in nodes}, all("output_type_shape" in e["args"] for e in nodes))

plain = rt.InferenceSession(two_layers(), providers=["CPUExecutionProvider"])
print(plain.get_session_options().enable_profiling)
