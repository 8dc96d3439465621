"""Bring your own code generation: parts of a graph are given to other compilers.

``MergeComposite`` puts what patterns match into functions, ``AnnotateTarget`` says who computes what,
``MergeCompilerRegions`` joins neighbours, and ``PartitionGraph`` makes a function of each region.  A build asks the
code generator that is registered for its compiler (``ir/ops/external.py``).
"""

from minitvm.ir.ops.external import register_generator
from minitvm.passes.partition import composite as register
from minitvm.passes.partition.composite import MergeComposite, get_pattern_table, register_pattern_table
from minitvm.passes.partition.externals import CallExternals, register_func
from minitvm.passes.partition.regions import MergeCompilerRegions, PartitionGraph
from minitvm.passes.partition.supported import AnnotateTarget, register_op_attr

__all__ = ["AnnotateTarget", "CallExternals", "MergeCompilerRegions", "MergeComposite", "PartitionGraph"]
__all__ += [
    "get_pattern_table",
    "register",
    "register_func",
    "register_generator",
    "register_op_attr",
    "register_pattern_table",
]
