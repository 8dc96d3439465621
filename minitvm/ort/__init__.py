"""ONNX Runtime's names: sessions, their options, values, bindings, errors.  ``import minitvm as ort`` has them all."""
