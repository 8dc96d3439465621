"""Small decoders of Gemma's kind (Gemma Team 2024, arXiv:2408.00118), as onnxruntime-genai's builder writes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.decoders import Decoder, _lengths
from benchmarks.graph import Graph

_CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class Gemma(Decoder):
    """Layers of odd number look at the last ``window`` tokens, and where there is ``room`` keep so many; scores and
    logits are capped; norms before and after each part."""

    window: int = 6
    room: int = 0
    cap: float = 5.0

    def is_local(self, layer: int) -> bool:
        return layer % 2 == 1

    def empty(self, batch: int = 1, length: int = 0) -> dict[str, np.ndarray]:
        found = super().empty(batch, length)
        for k in filter(self.is_local, range(self.layers if self.room else 0)):
            for kind in ("key", "value"):
                shape = (batch, self.groups, self.room, self.size)
                found[f"past_key_values.{k}.{kind}"] = np.zeros(shape, np.float32)
        return found

    def model(self) -> onnx.ModelProto:
        g = Graph()
        lengths = _lengths(g)
        angles = np.arange(self.longest)[:, None] / 1e4 ** (np.arange(0, self.size, 2) / self.size)
        tables = [g.weight(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
        table = g.normal((self.vocabulary, self.hidden), 0.1)
        x = g.node("Mul", [g.node("Gather", [table, "input_ids"]), g.weight(np.float32(round(self.hidden**0.5, 2)))])
        more, presents = "", list[str]()
        for k in range(self.layers):
            x, y = self._added(g, x, more)
            y = self._attended(g, y, k, [*lengths, *tables])
            presents += [f"present.{k}.key", f"present.{k}.value"]
            _, more = self._added(g, y, "")
            x, y = self._added(g, x, more)
            gate, up = (self._linear(g, y, self.hidden, self.inner) for _ in range(2))
            gated = g.node("Mul", [g.node("FastGelu", [gate], domain=_CONTRIB), up])
            _, more = self._added(g, self._linear(g, gated, self.inner, self.hidden), "")
        _, y = self._added(g, x, more)
        cap = g.weight(np.float32(self.cap))
        logits = g.node("Div", [self._linear(g, y, self.hidden, self.vocabulary), cap])
        return self._named(self._closed(g, g.node("Mul", [g.node("Tanh", [logits]), cap]), presents))

    def _attended(self, g: Graph, y: str, layer: int, inputs: list[str]) -> str:
        widths = [n * self.size for n in (self.heads, self.groups, self.groups)]
        held = [self._linear(g, y, self.hidden, width) for width in widths]
        held += [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        how = {"num_heads": self.heads, "kv_num_heads": self.groups, "do_rotary": 1, "softcap": self.cap, "scale": 0.3}
        if self.is_local(layer):
            how |= {"local_window_size": self.window, "sliding_window_cache": int(self.room > 0)}
        y = g.node("GroupQueryAttention", [*held, *inputs], domain=_CONTRIB, **how)
        g.nodes[-1].output.extend([f"present.{layer}.key", f"present.{layer}.value"])
        return self._linear(g, y, self.heads * self.size, self.hidden)

    def _named(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Results of windows are as long as these."""
        for k in filter(self.is_local, range(self.layers if self.room else 0)):
            for value in model.graph.output[1 + 2 * k : 3 + 2 * k]:
                value.CopyFrom(
                    helper.make_tensor_value_info(
                        value.name, TensorProto.FLOAT, ["batch", self.groups, "past", self.size]
                    )
                )
        return model
