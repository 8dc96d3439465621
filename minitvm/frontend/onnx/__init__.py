"""ONNX models: what becomes of every operator, in every opset."""

from minitvm.frontend.onnx import (  # noqa: F401  (register the builders)
    activation,
    attention,
    contrib,
    contrib_quantized,
    control,
    index,
    math,
    matmul,
    ml,
    nn,
    quantize,
    reduce,
    resize,
    rnn,
    sampling,
    sequence,
    spectral,
    tensor,
    training,
)
