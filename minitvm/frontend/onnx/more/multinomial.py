"""Multinomial, which onnx's reference evaluator lacks: classes drawn by their probabilities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from minitvm.errors import MiniTVMError


def multinomial(node: onnx.NodeProto) -> Callable[..., list[np.ndarray]]:
    """The node's function of unnormalized logarithms of probabilities, (batch, classes), to classes,
    (batch, ``sample_size``).

    A node with a seed draws the same numbers in every run.
    """
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    count, dtype = int(given.get("sample_size", 1)), onnx.helper.tensor_dtype_to_np_dtype(int(given.get("dtype", 6)))
    if count < 1 or dtype not in ("int32", "int64"):
        message = f"Multinomial: sample_size={count}, dtype {dtype}"
        raise MiniTVMError(message, hint="at least one sample, in int32 or int64")

    def draw(logs: np.ndarray) -> list[np.ndarray]:
        seed = np.float32(given["seed"]).view(np.uint32) if "seed" in given else None
        rng = np.random.default_rng(seed)
        if logs.shape[1] == 0:
            raise MiniTVMError("Multinomial: there are no classes to draw", hint="its input is (batch, classes)")
        wide = logs.astype(np.float64)
        ends = np.cumsum(np.exp(wide - wide.max(axis=1, keepdims=True)), axis=1)
        places = rng.random((len(ends), count)) * ends[:, -1:]
        rows = zip(ends, places, strict=True)
        found = [np.searchsorted(row[:-1], at, side="right") for row, at in rows]
        return [np.array(found, dtype).reshape(len(ends), count)]

    return draw
