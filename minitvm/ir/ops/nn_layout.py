"""Changing a tensor's layout."""

from __future__ import annotations

import numpy as np

from minitvm.ir.compute import compute
from minitvm.ir.decision import Declined
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Stage
from minitvm.ir.op import Fusion, Op
from minitvm.ir.relayout import Move, Placement, Site, same_tensor
from minitvm.ir.types import TensorType


class LayoutTransform(Op, name="layout_transform", fusion=Fusion.INJECTIVE):
    """The same tensor with its axes in another order, split into blocks or merged: ``NCHW`` to ``NCHW8c``.

    data: in ``src_layout`` -> in ``dst_layout``.  Blocks must divide their axes.
    """

    src_layout: str = ""
    dst_layout: str = ""

    def infer(self, data: TensorType) -> TensorType:
        source, target = Layout(self.src_layout), Layout(self.dst_layout)
        if data.rank != source.rank:
            raise self.reject(f"src_layout {source} has {source.rank} dimensions, the input is {data}")
        return data.with_shape(target.shape_from(source, data.shape))

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(Layout(self.dst_layout).convert(data, self.src_layout))

    def compute(self, data: Buffer) -> Stage:
        source, target = Layout(self.src_layout), Layout(self.dst_layout)
        shape = TensorType(target.shape_from(source, data.shape)).static_shape
        return compute(shape, lambda *index: data[source.index_from(target, index)])

    def relayout(self, site: Site) -> Placement | Declined:
        """Disappears as ``transpose`` does."""
        if self.src_layout != str(site.data.old):
            return Declined("it reads another layout")
        return Placement((site.data,), Move(Layout(self.dst_layout), site.data.new), same_tensor)
