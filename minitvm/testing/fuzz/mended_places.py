"""Operators of ONNX's reference evaluator that take elements from wrong places, written anew.

Its Resize weighs infinity with 0 and knows no opset before 11; its Upsample takes nearest pixels by whole scales only;
its GatherElements wants indices as large as the data; its OneHot multiplies, so that infinity makes NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_resize import Resize as _Resize

from minitvm.testing.fuzz.resampling import nearest

Array = np.ndarray


_OLD = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "exclude_outside": 0}
"""What Resize before opset 11 and Upsample do."""


class Resize(_Resize):
    """Sizes are found in float32; the nearest pixel is taken, not weighted."""

    op_domain = ""

    def _run(self, x: Array, *operands: Array | None, **given: Any) -> tuple[Array]:  # type: ignore[override]
        opset = int(self.run_params["opsets"][""])
        roi, scales, sizes = (None, *operands, None) if opset < 11 else (*operands, None, None)[:3]
        given = {"mode": given["mode"], **_OLD} if opset < 11 else given
        if given.get("axes") is not None:
            return tuple(super()._run(x, roi, scales, sizes, **given))
        if sizes is None or sizes.size == 0:
            sizes = np.floor(np.array(x.shape, np.float32) * np.asarray(scales, np.float32)).astype(np.int64)
        if given.get("mode") != "nearest":
            given_scales = scales is not None and scales.size
            whole = given_scales and (np.array(x.shape) * scales).astype(np.int64).tolist() == sizes.tolist()
            return tuple(super()._run(x, roi, *((scales, None) if whole else (None, sizes)), **given))
        return (nearest(x, sizes, None if scales is None or scales.size == 0 else scales, self._bytes(given), opset),)

    def _bytes(self, given: dict[str, Any]) -> dict[str, bytes]:
        return {name: value.encode() for name, value in given.items() if isinstance(value, str)}


class Upsample(Resize):
    op_domain = ""
    scales: list[float]

    def _run(self, x: Array, *operands: Array | None, **given: Any) -> tuple[Array]:  # type: ignore[override]
        return super()._run(x, operands[0] if operands else np.array(self.scales, "float32"), **given)


class GatherElements(OpRun):
    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        axis %= data.ndim
        places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
        places[axis] = indices
        return (np.asarray(data[tuple(places)]),)


class OneHot(OpRun):
    op_domain = ""

    def _run(self, indices: Array, depth: Array, values: Array, axis: int = -1) -> tuple[Array]:
        count = int(np.asarray(depth).reshape(-1)[0])
        places = np.expand_dims(indices.astype(np.int64), axis)
        steps = [1] * places.ndim
        steps[axis] = count
        hot = np.where(places < 0, places + count, places) == np.arange(count).reshape(steps)
        return (np.where(hot, values[1], values[0]),)


PLACES: list[type[Any]] = [GatherElements, OneHot, Resize, Upsample]
