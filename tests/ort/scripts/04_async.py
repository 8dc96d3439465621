"""run_async with a callback, and errors that come through it."""

import threading

import numpy as np
import onnxruntime as ort
from helper import two_layers

options = ort.SessionOptions()
options.intra_op_num_threads = 2
session = ort.InferenceSession(two_layers(), options, providers=["CPUExecutionProvider"])


class Request:
    def __init__(self, number):
        self.number, self.event, self.results, self.error = number, threading.Event(), None, None

    def wait(self):
        self.event.wait(300)
        return self.results, self.error


def callback(results, request, error):
    request.results, request.error = results, error
    request.event.set()


requests = [Request(i) for i in range(4)]
for request in requests:
    x = np.full((1, 16), request.number, np.float32)
    session.run_async(["y"], {"x": x}, callback, request)
for request in requests:
    results, error = request.wait()
    print(request.number, repr(error), results[0].round(4).tolist())

wrong = Request(9)
session.run_async(["y"], {"x": np.zeros((1, 5), np.float32)}, callback, wrong)
results, error = wrong.wait()
print(len(results), bool(error))
