"""The short way in: a session over a model or a library, with ONNX Runtime's calls (``ort/``)."""

from minitvm.ort.session import InferenceSession, NodeArg

__all__ = ["InferenceSession", "NodeArg"]
