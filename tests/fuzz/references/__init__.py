"""ONNX's reference evaluator, with operators written anew where its own are wrong, lacking or slow.

Each is a function of operands and attributes, from ONNX's (or ONNX Runtime's) documentation.  Tests hold them against
ONNX Runtime.
"""

from tests.fuzz.references import contrib, images, places, recurrent, rows  # noqa: F401  (register)
from tests.fuzz.references.registry import REFERENCES, evaluator

__all__ = ["REFERENCES", "evaluator"]
