"""Image classification: preprocess, run, softmax, the five likeliest."""

import numpy as np
import onnxruntime as ort
from helper import image, small_classifier

session = ort.InferenceSession(small_classifier(), providers=["CPUExecutionProvider"])
input_name = session.get_inputs()[0].name
label_name = session.get_outputs()[0].name
print(input_name, session.get_inputs()[0].shape, session.get_inputs()[0].type, label_name)


def preprocess(pixels):
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    scaled = (pixels / 255 - mean) / std
    return scaled.transpose(2, 0, 1)[None].astype("float32")


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


logits = session.run([label_name], {input_name: preprocess(image(32, 32))})[0]
scores = softmax(logits[0])
for i in np.argsort(scores)[::-1][:5]:
    print(f"class {i}: {scores[i]:.4f}")
