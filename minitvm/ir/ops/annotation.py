"""Marks that a person or a pass leaves in the graph; they compute nothing."""

from __future__ import annotations

import numpy as np

from minitvm.ir.op import Fusion, Op
from minitvm.ir.relayout import Placement, Site, elementwise
from minitvm.ir.types import TensorType


class StopFusion(Op, name="annotation.stop_fusion", fusion=Fusion.OPAQUE):
    """``x`` itself, but FuseOps does not fuse across it.  x: any shape and dtype -> the same.  FuseOps removes it."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x

    def relayout(self, site: Site) -> Placement:
        return elementwise(site)
