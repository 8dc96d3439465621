"""What goes wrong, and which exceptions scripts catch."""

import numpy as np
import onnxruntime as ort
from helper import two_layers
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile


def attempt(name, call, *kinds):
    try:
        call()
    except kinds as e:
        print(name, "->", [k.__name__ for k in kinds].index(kinds[0].__name__), bool(str(e)))
    except Exception as e:
        print(name, "-> other", type(e))
    else:
        print(name, "-> nothing")


def run_bound(binding, name):
    binding.bind_cpu_input("x", x)
    binding.bind_output(name)
    session.run_with_iobinding(binding)


session = ort.InferenceSession(two_layers(), providers=["CPUExecutionProvider"])
x = np.ones((1, 16), np.float32)
attempt("unknown input", lambda: session.run(None, {"x": x, "z": x}), InvalidArgument)
attempt("missing input", lambda: session.run(None, {}), ValueError)
attempt("unknown output", lambda: session.run(["z"], {"x": x}), InvalidArgument)
attempt("dtype", lambda: session.run(None, {"x": x.astype(np.float64)}), InvalidArgument)
attempt("rank", lambda: session.run(None, {"x": x[0]}), InvalidArgument)
attempt("shape", lambda: session.run(None, {"x": x[:, :5]}), InvalidArgument)
attempt("no file", lambda: ort.InferenceSession("nowhere.onnx", providers=["CPUExecutionProvider"]), NoSuchFile)
attempt("no model", lambda: ort.InferenceSession(b"\x00" * 64, providers=["CPUExecutionProvider"]), InvalidProtobuf)
attempt("custom ops", lambda: ort.SessionOptions().register_custom_ops_library("nowhere.so"), Fail)
attempt("option", lambda: setattr(ort.SessionOptions(), "intra_op_num_threads", "two"), TypeError)
attempt("no option", lambda: setattr(ort.SessionOptions(), "threads", 2), AttributeError)
attempt("no entry", lambda: ort.SessionOptions().get_session_config_entry("a.b"), RuntimeError)
attempt("not bound", lambda: session.run_with_iobinding(session.io_binding()), RuntimeError)
attempt("bound", lambda: run_bound(session.io_binding(), "z"), RuntimeError)
run_options = ort.RunOptions()
run_options.terminate = True
attempt("terminate", lambda: session.run(None, {"x": x}, run_options), Fail)
run_options.terminate = False
print(session.run(None, {"x": x}, run_options)[0].shape)
