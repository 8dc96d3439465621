"""The passes by TVM's names for their homes, ``transform`` and ``relay.transform``: those of ``minitvm.passes``."""

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minitvm.ir.expr import Module
from minitvm.passes import *
from minitvm.passes import ModulePass, PassContext
from minitvm.passes import PrintIR as Printer
from minitvm.passes import __all__ as __all__
from minitvm.tvm import lacking, pass_makers

if TYPE_CHECKING:
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

_FORMS = dict.fromkeys(
    ("AlterOpLayout", "CallLibraries", "ConvertLayout", "Legalize", "ShareRows"), "tvm.relay.registered"
)
_FORMS["ToMixedPrecision"] = "tvm.relay.mixed_precision"
_SCOPES = (
    "ToGraphNormalForm",
    "ToANormalForm",
    "ToBasicBlockNormalForm",
    "Inline",
    "LambdaLift",
    "EtaExpand",
    "ToANormalFormExpr",
    "InferTypeLocal",
)
_FORMS |= dict.fromkeys((*_SCOPES, "InferType", "DeadCodeElimination", "RemoveUnusedFunctions"), "scopes.passes")
_FORMS["FakeQuantizationToInteger"] = "tvm.relay.fake_quantization_pass"
_COMBINED = ("CombineParallelConv2D", "CombineParallelDense", "CombineParallelBatchMatmul")
_FORMS |= dict.fromkeys(_COMBINED, "tvm.relay.spelled")
_FORMS |= dict.fromkeys(("BackwardFoldScaleAxis", "ForwardFoldScaleAxis"), "tvm.relay.scale_axis")
_FORMS["FlattenAtrousConv"] = "tvm.relay.atrous"
"""Passes that are made of Relay's arguments."""
for _name in _FORMS:
    globals().pop(_name, None)


globals().update(module_pass=pass_makers.module_pass, function_pass=pass_makers.function_pass)


class PrintIR(Printer, ModulePass):  # type: ignore[no-redef]  # the one of minitvm.passes is half of it
    """A pass that prints the module where it stands in a ``Sequential``, as TVM's; and the instrument of that name."""

    def __init__(
        self,
        header: str = "",
        show_meta_data: bool = False,
        *,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        write: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(before, after, write)
        self.header, self.show_meta_data = header, show_meta_data

    def transform_module(self, module: Module, context: PassContext) -> Module:
        (self.write or print)(f"{self.header}\n{module.astext(self.show_meta_data)}".lstrip())
        return module


def __getattr__(name: str) -> Any:
    if name in _FORMS:  # which know operators, and so the importer's numpy and more
        return getattr(importlib.import_module(f"minitvm.{_FORMS[name]}"), name)
    if name == "fake_quantization_to_integer":
        return importlib.import_module("minitvm.tvm.relay.fake_quantization")
    return lacking.attribute("relay.transform", name, "minitvm.transform")
