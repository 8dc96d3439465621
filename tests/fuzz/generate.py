"""From a seed to a case: a random graph, arrays to run it with, and a configuration."""

import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import onnx

from minitvm.frontend.onnx.functions import has_definition
from minitvm.frontend.onnx.more.sequence import BUILT
from minitvm.frontend.onnx.registry import builder_for, supported_operators
from tests.fuzz import control, layers, movement, quantized, rows, tail  # noqa: F401  (register the generators)
from tests.fuzz.case import Arrays, Case, Config, Value, operator_name
from tests.fuzz.draw import ELEMENTS, GENERATORS, SIZES, Draw, Reject

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
"""Operators in the order in which the compiler's rewrites look for them: random graphs hardly ever hold one.

``A > B`` is a B that reads what A gave out, ``A & B`` one that reads what A read; ``A/B`` is either."""

Step: TypeAlias = tuple[bool, tuple[str, ...]]
"""Whether it reads what the step before read, and the operators to choose from."""
Way: TypeAlias = Callable[[Draw, Sequence[str]], object]
"""How a graph of some operators grows."""


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


_WITHOUT = """
its result is random: Bernoulli
no peer knows it yet: LinearAttention
no peer takes it beside other operators: SimplifiedLayerNormalization
models of it are drawn in tests/frontend/test_onnx_ml.py: ai.onnx.ml.{CastMap CategoryMapper DictVectorizer
 LinearClassifier SVMClassifier TreeEnsemble TreeEnsembleClassifier ZipMap}
a step of training, ONNX's own tests have it: ai.onnx.preview.training.{Adagrad Adam Momentum}
its length is that of its constants: com.microsoft.Range
it quantizes at each step, where roundings add up (tests/frontend/contrib_table.py): com.microsoft.DynamicQuantizeLSTM
ONNX Runtime has no kernel for CPUs, tests/frontend have formulas: com.microsoft.{BiasAdd BiasSoftmax
 FusedMatMulActivation GemmFastGelu GroupNorm NhwcConv NhwcFusedConv QLinearReduceMean SimplifiedLayerNormalization
 SkipGroupNorm}
ONNX Runtime writes it, in whole models only: com.microsoft.nchwc.{AveragePool Conv GlobalAveragePool GlobalMaxPool
 MaxPool ReorderInput ReorderOutput Upsample}
"""


def _without() -> Iterator[tuple[str, str]]:
    for line in _WITHOUT.strip().replace("\n ", " ").splitlines():
        why, _, names = line.partition(": ")
        domain, _, inside = names.rpartition("{")
        yield from ((domain + name, why) for name in inside.strip("}").split())


WITHOUT_GENERATOR = {**dict(_without()), **dict.fromkeys(("SequenceMap", *BUILT), "the values of cases are tensors")}
"""Operators without one, and why."""
FAVOURITES = (
    *("Add", "Concat", "Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Pad", "QLinearConv", "Reshape", "Slice"),
    *("AveragePool", "BatchNormalization", "GRU", "LSTM", "LayerNormalization", "MaxPool", "ReduceMean", "ReduceSum"),
    *("Relu", "Resize", "Softmax", "Transpose", "com.microsoft.FusedMatMul"),
)
"""Operators with templates, layouts and fusion of their own: drawn four times as often."""
OPSETS = (*(2 * (*range(7, 27), 13, 17, 17, 18, 20, 21, 22, 23, 24, 25, 26)), 27, 28)
TARGETS = ("llvm", "llvm", "llvm", "llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64")
THREADS = (1, 1, 1, 2, 2, 3, 16)
LEVELS = (0, 1, 2, 3, 3, 3)


@lru_cache
def importable() -> frozenset[str]:
    """Every operator that the importer takes: those with a builder, and those that ONNX defines by others."""
    newest = onnx.defs.onnx_opset_version()

    def known(node: onnx.NodeProto, opset: int) -> bool:
        return builder_for("", node.op_type, opset) is not None or has_definition(node, opset, known)

    defined = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and s.name != "Function"}
    return frozenset(supported_operators()) | {n for n in defined if known(onnx.NodeProto(op_type=n), newest)}


_LEFT = importable() - GENERATORS.keys() - WITHOUT_GENERATOR.keys()
GENERATORS.update(dict.fromkeys(filter(rows.has_simple_schema, _LEFT), rows.by_schema))


def case(
    seed: int, index: int, levels: Sequence[int] = LEVELS, only: Sequence[str] = (), way: Way | None = None
) -> Case:
    """Case ``index`` of a seed; the same one each time.  ``only`` limits the operators of the graphs, ``way`` how they
    grow."""
    rng = random.Random(f"{seed}:{index}")
    while True:
        draw = Draw(rng, rng.choice(OPSETS))
        grow = way or rng.choices((_of_all, _of_few, _of_a_chain), (6, 6, 8))[0]
        grow(draw, tuple(only) or tuple(sorted(GENERATORS)))
        if draw.inputs and any(_is_produced(draw, v) for v in draw.values.values()):
            return _finish(draw, levels)


def of_one_or_two(draw: Draw, operators: Sequence[str]) -> None:
    """Where what one operator gives is asked."""
    _grow(draw, draw.choice((1, 1, 2)), operators)


def _of_all(draw: Draw, operators: Sequence[str]) -> None:
    """One to twelve nodes of any operators."""
    _grow(draw, draw.choice((1, 1, 2, 2, 3, 4, 6, 9, 12)), _weighted(operators))


def _of_few(draw: Draw, operators: Sequence[str]) -> None:
    """Nodes of three to five operators that mostly read one another: what meets only where kinds repeat."""
    draw.follows = 0.6
    few = [draw.choice(_weighted(operators)) for _ in range(draw.between(3, 5))]
    _grow(draw, draw.choice((3, 4, 6, 9, 12)), few)


def _of_a_chain(draw: Draw, operators: Sequence[str]) -> None:
    """What a rewrite looks for, before or behind nodes of a few operators."""
    draw.follows = 0.9
    there = chains(operators)
    if not there:
        return _of_few(draw, operators)
    steps = draw.choice(there)
    few = [*(name for _, names in steps for name in names), draw.choice(_weighted(operators))]
    _grow(draw, draw.choice((0, 0, 0, 1, 2)), few)
    build(draw, steps, _add)
    if draw.chance(0.3):
        build(draw, draw.choice(there), _add)
    _grow(draw, len(draw.nodes) + draw.choice((0, 0, 0, 1, 2, 4)), few)
    return None


def _weighted(operators: Sequence[str]) -> list[str]:
    return [*operators, *(3 * [name for name in FAVOURITES if name in operators])]


def _grow(draw: Draw, count: int, operators: Sequence[str]) -> None:
    """Adds nodes until there are ``count``, or it has been tried often enough."""
    for _ in range(40 * count):
        if len(draw.nodes) >= count:
            return
        _add(draw, draw.choice(operators))


def _add(draw: Draw, op: str) -> bool:
    """Adds a node; what its operator rejects leaves no trace in the graph."""
    before = (list(draw.nodes), dict(draw.inputs), dict(draw.constants), dict(draw.values), dict(draw.literals))
    draw.op = op
    try:
        draw.latest = GENERATORS[op](draw)
    except Reject:
        draw.nodes, draw.inputs, draw.constants, draw.values, draw.literals = before
        return False
    return True


def _is_produced(draw: Draw, value: Value) -> bool:
    return value.name not in draw.inputs and value.name not in draw.literals


def _finish(draw: Draw, levels: Sequence[int]) -> Case:
    rng = draw.rng
    feeds = [draw.inputs, *([_again(rng, draw.inputs)] if rng.random() < 0.4 else [])]
    symbols = _symbols(rng, draw.inputs) if rng.random() < 0.2 else {}
    if symbols and rng.random() < 0.6:
        feeds.append(_resized(rng, draw.inputs, symbols))
    config = Config(
        level=max(rng.choice(levels) for _ in range(1 + (draw.follows > 0))),  # where rewrites act
        threads=rng.choice(THREADS),
        target=rng.choice(TARGETS),
        way="session" if symbols else rng.choice(("session", "session", "module", "saved")),
        poison=rng.random() < 0.3,
        verify=rng.random() < 0.05,
        reference=rng.random() < 0.3,
    )
    return Case(draw.nodes, feeds, draw.constants, _outputs(draw), draw.opset, config, symbols)


def _outputs(draw: Draw) -> list[Value]:
    """Every value that nobody reads, some of the others, and now and then an input or a constant."""
    rng, read = draw.rng, {name for node in draw.nodes for name in node.input}
    produced = [v for v in draw.values.values() if _is_produced(draw, v)]
    chosen = [v for v in produced if v.name not in read or rng.random() < 0.2]
    given = [v for v in draw.values.values() if not _is_produced(draw, v)]
    if rng.random() < 0.06:
        chosen.append(rng.choice(given))
    rng.shuffle(chosen)
    return chosen or produced[-1:]


def _again(rng: random.Random, inputs: Arrays) -> Arrays:
    """Other values for the same inputs: a permutation, so that indices and sizes stay valid."""
    draw = np.random.default_rng(rng.getrandbits(64))
    return {n: draw.permutation(a.reshape(-1)).reshape(a.shape) for n, a in inputs.items()}


def _symbols(rng: random.Random, inputs: Arrays) -> dict[str, tuple[str | None, ...]]:
    """Dimensions of one or two sizes are open, under one name a size."""
    found = sorted({s for a in inputs.values() for s in a.shape})
    if not found:
        return {}
    names = dict(zip(rng.sample(found, min(len(found), rng.randint(1, 2))), ("N", "batch size"), strict=False))
    return {n: tuple(names.get(s) for s in a.shape) for n, a in inputs.items() if set(names) & set(a.shape)}


def _resized(rng: random.Random, inputs: Arrays, symbols: dict[str, tuple[str | None, ...]]) -> Arrays:
    """The inputs with another size for each open dimension."""
    sizes = {"N": rng.choice(SIZES), "batch size": rng.choice(SIZES)}
    resized = {}
    for name, given in inputs.items():
        names = symbols.get(name, (None,) * given.ndim)
        shape = tuple(s if n is None else sizes[n] for n, s in zip(names, given.shape, strict=True))
        small = math.prod(shape) <= 4 * ELEMENTS
        resized[name] = np.resize(given, shape) if small and given.size else given
    return resized if all(resized[n].shape != inputs[n].shape for n in symbols) else dict(inputs)
