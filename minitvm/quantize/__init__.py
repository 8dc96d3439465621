"""Relay's automatic quantization: a network in floats becomes one in integers, by scales that data or a number give.

``quantize`` runs the passes: ``partition`` marks where integers of few bits pay, ``annotate`` puts simulated
quantization in front of products and sums, ``calibrate`` finds the scales, and ``realize`` makes integers of it.
"""

from minitvm.ir.ops.simulated import QAnnotateKind
from minitvm.quantize.annotating import annotate, register_annotate_function
from minitvm.quantize.calibrating import calibrate, collect_stats
from minitvm.quantize.config import QConfig, current_qconfig, kind2str, qconfig
from minitvm.quantize.conversions import partition_conversions
from minitvm.quantize.partitioning import partition
from minitvm.quantize.realizing import realize
from minitvm.quantize.steps import prerequisite_optimize, quantize

__all__ = ["QAnnotateKind", "QConfig", "annotate", "calibrate", "collect_stats", "current_qconfig", "kind2str"]
__all__ += ["partition", "partition_conversions", "prerequisite_optimize", "qconfig", "quantize", "realize"]
__all__ += ["register_annotate_function"]
