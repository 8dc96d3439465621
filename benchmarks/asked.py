"""The speeds that are asked for: of each network, and of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

OWN = "minitvm"
NO_REASON_ABOVE = 1.2
"""A model that is slower, or short of what we aim for, says where its time goes;"""
ALWAYS = ("resnet18", "unet_256", "mobilenet_v2", "bert_base_s128")
"""as do these."""

Times = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By runtime: ``steady`` and ``burst``, each with ``median``, ``best``, and medians of ``turns``, in ms."""


class Asked(NamedTuple):
    """At least (or at most, where the aim is less), and what we aim for."""

    least: float
    aim: float | None = None

    def __str__(self) -> str:
        return f"{self.least:g}" if self.aim is None else f"{self.least:g} / {self.aim:g}"

    def met(self, found: float) -> str:
        """``short`` of the least, ``aim`` where the aim is reached, else nothing."""
        sign = -1 if self.aim is not None and self.aim < self.least else 1
        if sign * found < sign * self.least:
            return "short"
        return "aim" if self.aim is not None and sign * found >= sign * self.aim else ""


_PLAIN, _MOBILE, _TOKENS = Asked(1.25, 1.7), Asked(1.15, 1.5), Asked(1.05, 1.2)

OF_A_MODEL = {
    **dict.fromkeys(("resnet18", "vgg16", "unet_256", "espcn_x3"), _PLAIN),
    **dict.fromkeys(("mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0"), _MOBILE),
    **dict.fromkeys(("bert_base_s128", "vit_tiny", "gpt2_4layers_s64"), _TOKENS),
    "efficientnet_lite0_int8_qdq": Asked(1.0, 1.5),
}
"""On one thread, against the faster peer; all others have to be as fast as it."""

OF_ALL = {(1, "steady"): Asked(1.2, 1.5), (2, "steady"): Asked(1.15, 1.5), (2, "burst"): Asked(1.05, 1.4)}
"""Geometric means of the 18 networks, by threads."""

OF_LAYERS = {"least": Asked(0.7, 1.0), "tenth percentile": Asked(0.95, 1.1), "median": Asked(1.2, 1.5)}
"""Of random single layers on one thread, to onnxruntime."""

AGAINST_ONE = {"efficientnet_lite0_int8_qdq": "onnxruntime"}
"""Models that are held against one peer."""


def asked_of(model: str) -> Asked:
    return OF_A_MODEL.get(model, Asked(1.0))


def explained(model: str, found: float) -> bool:
    """Whether to say where the time of a model goes that is so fast."""
    return model in ALWAYS or found < max(NO_REASON_ABOVE, asked_of(model).aim or 0)


def ratio(times: Times, kind: str = "steady", figure: str = "median", peer: str | None = None) -> float:
    """The time of a peer, or of the fastest, over ours; not a number where either is missing."""
    peers = [t[kind] for name, t in times.items() if name != OWN and peer in (None, name)]
    return min(over(found, times[OWN][kind], figure) for found in peers) if peers and OWN in times else math.nan


def over(one: Mapping[str, Any], other: Mapping[str, Any], figure: str = "median") -> float:
    """One's time over the other's.  By medians: that of the rounds' ratios, where both took their turns in each, so
    that what slows the machine for some rounds slows both."""
    turns = [found.get("turns", ()) for found in (one, other)]
    if figure == "median" and turns[0] and len(turns[0]) == len(turns[1]):
        return median(a / b for a, b in zip(*turns, strict=True))
    return float(one[figure] / other[figure])


def mean(ratios: Iterable[float]) -> float:
    """The geometric mean of those that are numbers."""
    logarithms = [math.log(r) for r in ratios if not math.isnan(r)]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan
