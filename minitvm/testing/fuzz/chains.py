"""Operators in the order in which the compiler's rewrites look for them: random graphs hardly ever hold one.

``A > B`` is a B that reads what A gave out, ``A & B`` one that reads what A read; ``A/B`` is either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from minitvm.testing.fuzz.case import Value, operator_name
from minitvm.testing.fuzz.draw import Draw

_CONV = "Conv/Conv/Conv/ConvTranspose"
_DENSE = "MatMul/Gemm/com.microsoft.FusedMatMul"
_SCALE = "Mul/Mul/Div/Add/Sub/BatchNormalization"
_RECTIFIER = "Relu/LeakyRelu/PRelu/Clip"
_VIEW = "Reshape/Flatten/Squeeze/Unsqueeze"
_POINTWISE = "Add/Mul/Relu/Sigmoid/Tanh/Sub/Where/Cast"
_NORM = "Softmax/LogSoftmax/LayerNormalization/ReduceMean/ReduceSum/ReduceMax/InstanceNormalization"

CHAINS = (
    "Add > Mul",
    "Add/Sub > Mul/Div",
    "Add > Add > Add",
    "Mul > Mul > Mul",
    "Mul & Mul > Add > Add",
    "Sqrt > Div",
    "ConstantOfShape > Add/Mul/Sub/Div",
    "Cast > Cast > Cast",
    "Clip > Cast > Cast",
    "Identity/Dropout > Clip > Cast",
    "DequantizeLinear > ArgMax/ArgMin/TopK",
    "DequantizeLinear > Conv/MatMul/Add/Relu/MaxPool > QuantizeLinear",
    "QLinearConv/QLinearMatMul > DequantizeLinear/QLinearConv",
    "Transpose > MatMul",
    f"Transpose > {_DENSE}",
    f"Transpose & Transpose > {_DENSE}",
    "Transpose > Transpose",
    "Transpose > Reshape > Transpose",
    f"{_VIEW} > {_VIEW} > {_VIEW}",
    f"{_DENSE} > {_VIEW} > {_POINTWISE} > {_POINTWISE}",
    f"Transpose/Concat/Slice/Pad > {_POINTWISE} > Transpose/Split/Slice",
    f"{_CONV} > {_SCALE}",
    f"{_CONV} > {_RECTIFIER} > {_SCALE}",
    f"{_CONV} > {_SCALE} > {_RECTIFIER} > {_CONV}",
    f"MaxPool/AveragePool/Pad > {_SCALE} > {_CONV}",
    f"MaxPool/AveragePool/Pad > {_SCALE} > {_RECTIFIER} > {_CONV}",
    f"{_DENSE} > {_SCALE} > {_RECTIFIER} > {_DENSE}",
    "Conv & Conv & Conv > Concat/Relu/Mul/Add",
    "MatMul & MatMul & MatMul > Add/Relu/Concat",
    f"{_CONV} > MaxPool/AveragePool/GlobalAveragePool/Resize/Pad > {_CONV}/Flatten",
    "Pad > Conv/AveragePool/MaxPool",
    f"{_POINTWISE} > {_NORM} > {_POINTWISE}",
    f"{_NORM} > {_NORM}",
    f"{_POINTWISE} > {_DENSE} > {_NORM}",
    "MatMul > Mul/Div > Add > Softmax > MatMul",
    "Expand/Tile/Concat/Split > Concat > Slice/Split",
    "Gather/Slice/Shape > Gather/Cast > Concat/Unsqueeze",
)

Step: TypeAlias = tuple[bool, tuple[str, ...]]
"""Whether it reads what the step before read, and the operators to choose from."""


def chains(known: Collection[str]) -> list[list[Step]]:
    """Those that can be built of the operators in ``known``."""
    found = []
    for text in CHAINS:
        steps: list[Step] = []
        for part in text.replace("&", "> &").split(">"):
            names = tuple(name for name in part.strip("& ").split("/") if name in known)
            steps.append((part.strip().startswith("&"), names))
        if all(names for _, names in steps):
            found.append(steps)
    return found


def build(draw: Draw, steps: list[Step], add: Callable[[Draw, str], bool]) -> None:
    """Adds a chain's nodes, as far as they fit; ``add`` is asked some times for each."""
    read, given = draw.latest, list[Value]()
    for beside, names in steps:
        read, given = (read, given) if beside else (draw.latest, [])
        if beside and operator_name(draw.nodes[-1]) in names and draw.chance(0.6):
            found = draw.again(draw.nodes[-1])
        else:
            draw.latest = read
            if not any(add(draw, draw.choice(names)) for _ in range(30)):
                return
            found = draw.latest
        given = draw.latest = [*given, *found]
