# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from minitvm.ir.expr import Module as Module
from minitvm.passes import *
from minitvm.passes import ModulePass as ModulePass
from minitvm.passes import PassContext as PassContext
from minitvm.passes import PrintIR as _Printer
Printer = _Printer
from minitvm.tvm import pass_makers as pass_makers
from minitvm.passes.gradient import FirstOrderGradient as FirstOrderGradient
from minitvm.passes.gradient import gradient as gradient
from minitvm.passes.on_request import DefuseOps as DefuseOps
from minitvm.passes.on_request import DynamicToStatic as DynamicToStatic
from minitvm.passes.on_request import FastMath as FastMath
from minitvm.passes.on_request import FoldExplicitPadding as FoldExplicitPadding
from minitvm.passes.partition import AnnotateTarget as AnnotateTarget
from minitvm.passes.partition import MergeCompilerRegions as MergeCompilerRegions
from minitvm.passes.partition import MergeComposite as MergeComposite
from minitvm.passes.partition import PartitionGraph as PartitionGraph
from minitvm.scopes.passes import EtaExpand as EtaExpand
from minitvm.scopes.passes import InferTypeLocal as InferTypeLocal
from minitvm.scopes.passes import Inline as Inline
from minitvm.scopes.passes import LambdaLift as LambdaLift
from minitvm.scopes.passes import RemoveUnusedFunctions as RemoveUnusedFunctions
from minitvm.scopes.passes import ToANormalForm as ToANormalForm
from minitvm.scopes.passes import ToANormalFormExpr as ToANormalFormExpr
from minitvm.scopes.passes import ToBasicBlockNormalForm as ToBasicBlockNormalForm
from minitvm.scopes.passes import ToGraphNormalForm as ToGraphNormalForm
class PrintIR(Printer, ModulePass):  # type: ignore[no-redef]
    """A pass that prints the module where it stands in a ``Sequential``, as TVM's; and the instrument of that name."""

    def __init__(self, header: str='', show_meta_data: bool=False, *, before: Sequence[str]=(), after: Sequence[str]=(), write: Callable[[str], object] | None=None) -> None:
        ...

    def transform_module(self, module: Module, context: PassContext) -> Module:
        ...
