"""A scikit-learn classifier as converted to ONNX: labels, and probabilities as a list of dictionaries."""

import numpy as np
import onnxruntime as rt
from helper import classifier_with_zipmap

sess = rt.InferenceSession(classifier_with_zipmap(), providers=["CPUExecutionProvider"])
input_name = sess.get_inputs()[0].name
print([o.name for o in sess.get_outputs()], [o.type for o in sess.get_outputs()])
x = np.array([[0.5, -1.0, 2.0], [-2.0, 0.25, 0.0]], dtype=np.float32)
labels, probabilities = sess.run(None, {input_name: x})
print(labels.tolist(), labels.dtype)
for row in probabilities:
    print({k: round(float(v), 4) for k, v in row.items()})
