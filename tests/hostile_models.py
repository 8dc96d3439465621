"""Small files that ask for much: each is opened and run in a process of its own, whose time and memory are counted.

``python -m tests.hostile_models`` tries all kinds and prints what took longest and most; it fails where one takes more
than 5 seconds of the processor or 1 GB before there is an answer, or where that is no :class:`MiniTVMError`.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MOST_SECONDS, MOST_BYTES = 5.0, 1 << 30
_ROOM = 12 << 30
"""Of addresses; memory that is touched is what counts."""

node, value = helper.make_node, helper.make_tensor_value_info
Node = onnx.NodeProto
Make = Callable[[], bytes]
ONES = np.ones(3, np.float32)


def model(
    nodes: list[Node],
    last: str,
    weights: Mapping[str, Any] | None = None,
    inputs: Any = None,
    opset: int = 18,
    **more: Any,
) -> bytes:
    given = [value("x", 1, [3])] if inputs is None else inputs
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name=last)], held)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("f", 1)]
    made: bytes = helper.make_model(graph, opset_imports=imports, ir_version=9, **more).SerializeToString()
    return made


def constant(nodes: list[Node], last: str, **weights: Any) -> bytes:
    """Constants, of which the sum is added to the input."""
    ends = [
        node("Cast", [last], ["f"], to=1),
        node("ReduceSum", ["f"], ["s"], keepdims=0),
        node("Add", ["s", "x"], ["y"]),
    ]
    return model([*nodes, *ends], "y", weights)


def chained(make: Callable[[str, str, int], list[Node]], count: int, first: str = "x", **weights: Any) -> bytes:
    """A chain from the input, or from a constant."""
    nodes = [n for i in range(count) for n in make(first if not i else f"c{i}", f"c{i + 1}", i)]
    return model(nodes, f"c{count}", weights) if first == "x" else constant(nodes, f"c{count}", **weights)


def one(kind: str, *inputs: str, **attributes: Any) -> Callable[[str, str, int], list[Node]]:
    """A link of one node; ``@`` is the value before."""
    return lambda a, b, i: [node(kind, [a if n == "@" else n for n in inputs], [b], name=f"n{i}", **attributes)]


def nested(depth: int, kind: str) -> bytes:
    """Control flow in control flow."""

    def inner(level: int) -> onnx.GraphProto:
        name = f"r{level}"
        nodes = [node("Neg", ["x"], [name])] if level == depth else [_control(kind, level, inner(level + 1))]
        given, made = [], [value(name, 1, [3])]
        if kind == "Loop":
            given = [value(f"i{level}", 7, []), value(f"k{level}", 9, []), value(f"v{level}", 1, [3])]
            nodes.append(node("Identity", [f"k{level}"], [f"o{level}"]))
            made = [value(f"o{level}", 9, []), *made]
        return helper.make_graph(nodes, f"b{level}", given, made)

    return model([_control(kind, 0, inner(1))], "r0", {"c": np.array(True), "n": np.array(1)})


def _control(kind: str, level: int, body: onnx.GraphProto) -> Node:
    if kind == "Loop":
        return node("Loop", ["n", "", "x"], [f"r{level}"], body=body)
    other = helper.make_graph([node("Abs", ["x"], [f"a{level}"])], "e", [], [value(f"a{level}", 1, [3])])
    return node("If", ["c"], [f"r{level}"], then_branch=body, else_branch=other)


def looped(trips: int, body: list[Node], shape: Any = (3,), condition: bool = False) -> bytes:
    """A loop over constants that carries ``v`` to ``w``."""
    inside = [value("i", 7, []), value("k", 9, []), value("v", 1, shape)]
    graph = helper.make_graph(
        [node("Identity", ["k"], ["o"]), *body], "b", inside, [value("o", 9, []), value("w", 1, shape)]
    )
    names = ["", "t", "v0"] if condition else ["n", "", "v0"]
    ones = {"n": np.array(trips), "v0": ONES, "h": np.float32(0.5), "t": np.array(True)}
    return constant([node("Loop", names, ["l"], body=graph)], "l", **ones)


def functions(depth: int, times: int) -> bytes:
    """Each calls the next one so many times."""
    made = []
    for level in range(depth):
        call = partial(node, f"f{level + 1}", domain="f") if level < depth - 1 else partial(node, "Neg")
        calls = [call([f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(times)]
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
        made.append(helper.make_function("f", f"f{level}", ["x"], [f"v{times}"], calls, imports))
    return model([node("f0", ["x"], ["y"], domain="f")], "y", functions=made)


def raw(change: Callable[[onnx.ModelProto], None]) -> bytes:
    """A model with something else done to it."""
    made = onnx.load_model_from_string(model([node("Add", ["x", "w"], ["y"])], "y", {"w": ONES}))
    change(made)
    return made.SerializeToString()


def _dims(dims: list[int], dtype: int = 1) -> bytes:
    def change(made: onnx.ModelProto) -> None:
        tensor = made.graph.initializer[0]
        del tensor.dims[:]
        tensor.dims.extend(dims)
        tensor.data_type = dtype

    return raw(change)


def _external(**entries: str) -> bytes:
    def change(made: onnx.ModelProto) -> None:
        tensor = made.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.dims[:] = [int(entries.get("elements", "3"))]
        for key, text in entries.items():
            if key != "elements":
                tensor.external_data.add(key=key, value=text)

    return raw(change)


def _input(shape: Any) -> bytes:
    return model([node("Relu", ["x"], ["y"])], "y", inputs=[value("x", 1, shape)])


def _many(count: int) -> bytes:
    weights = {f"w{i}": np.float32(i) for i in range(count)}
    return model([node("Add", ["x", "w0"], ["y"])], "y", weights)


def _sparse(dims: list[int]) -> bytes:
    made = onnx.load_model_from_string(constant([node("Identity", ["s"], ["m"])], "m"))
    values, indices = numpy_helper.from_array(ONES[:1], "s"), numpy_helper.from_array(np.zeros(1, np.int64))
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
    return made.SerializeToString()


def _message(depth: int, field: int = 7) -> bytes:
    """Protobuf in protobuf: graph, node, attribute, graph, ..."""
    data, fields = b"", (6, 5, 1)  # AttributeProto.g, NodeProto.attribute, GraphProto.node
    for level in range(depth):
        data = bytes([fields[level % 3] << 3 | 2]) + _length(len(data)) + data
    return bytes([field << 3 | 2]) + _length(len(data)) + data


def _length(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def _trees(leaves: int, targets: int) -> bytes:
    ids = list(range(leaves))
    attributes: dict[str, Any] = {"nodes_treeids": ids, "nodes_nodeids": [0] * leaves, "nodes_modes": ["LEAF"] * leaves}
    attributes |= {name: [0] * leaves for name in ("nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids")}
    attributes |= {"nodes_values": [0.0] * leaves, "target_treeids": ids, "target_nodeids": [0] * leaves}
    attributes |= {"target_ids": [0] * leaves, "target_weights": [1.0] * leaves, "n_targets": targets}
    trees = node("TreeEnsembleRegressor", ["r"], ["y"], domain="ai.onnx.ml", **attributes)
    return model([node("Reshape", ["x", "one"], ["r"]), trees], "y", {"one": [1, 3]})


def _grams(width: int, skip: int) -> bytes:
    attributes = {"max_gram_length": 2, "min_gram_length": 2, "max_skip_count": skip, "mode": "TF"}
    attributes |= {"ngram_counts": [0, 0], "ngram_indexes": [0], "pool_int64s": [1, 2]}
    grams = node("TfIdfVectorizer", ["i"], ["y"], **attributes)
    return model(
        [node("Expand", ["x", "w"], ["e"]), node("Cast", ["e"], ["i"], to=7), grams], "y", {"w": [width // 3, 3]}
    )


def _wide(kind: str, count: int, **attributes: Any) -> bytes:
    return model([node(kind, ["x"] * count, ["y"], **attributes)], "y")


def _fan(count: int) -> bytes:
    parts = [node("Neg", ["x"], [f"p{i}"]) for i in range(count)]
    return model([*parts, node("Sum", [f"p{i}" for i in range(count)], ["y"])], "y")


def _pair(first: str, second: str) -> Callable[[str, str, int], list[Node]]:
    def link(a: str, b: str, i: int) -> list[Node]:
        return [node(first, [a], [f"l{i}"]), node(second, [a], [f"r{i}"]), node("Add", [f"l{i}", f"r{i}"], [b])]

    return link


def _turned(a: str, b: str, i: int) -> list[Node]:
    gathers = [node("Gather", [a, "turned"], [f"l{i}"]), node("Gather", [a, "rolled"], [f"r{i}"])]
    return [*gathers, node("Add", [f"l{i}", f"r{i}"], [b])]


def _split(a: str, b: str, i: int) -> list[Node]:
    return [node("Split", [a, "two_one"], [f"l{i}", f"r{i}"]), node("Concat", [f"r{i}", f"l{i}"], [b], axis=0)]


def _outer(a: str, b: str, i: int) -> list[Node]:
    flat = [node("Reshape", [a, "column"], [f"l{i}"]), node("Reshape", [a, "row"], [f"r{i}"])]
    return [*flat, node("Mul", [f"l{i}", f"r{i}"], [f"m{i}"]), node("Reshape", [f"m{i}", "flat"], [b])]


def _ifs(a: str, b: str, i: int) -> list[Node]:
    both = [
        helper.make_graph([node(kind, [a], [f"{kind}{i}"])], "b", [], [value(f"{kind}{i}", 1, [3])])
        for kind in ("Neg", "Abs")
    ]
    return [node("If", ["c"], [b], then_branch=both[0], else_branch=both[1])]


def _folded() -> Iterator[tuple[str, Make]]:
    """Large constants out of small nodes."""
    doubling = {
        "Concat": one("Concat", "@", "@", axis=0),
        "Tile": one("Tile", "@", "two"),
        "Gather": one("Gather", "@", "square"),
        "outer product": _outer,
    }
    weights = {"two": [2], "square": np.zeros((2, 2), np.int64), "column": [-1, 1], "row": [1, -1], "flat": [-1]}
    for name, link in doubling.items():
        for count in (8, 22, 60):
            yield f"constant {name}, {count} times", partial(chained, link, count, "k", k=ONES, **weights)
    for size in (1 << 26, 1 << 62):
        yield from _sized(size)
    yield from _of_constants()


def _sized(size: int) -> Iterator[tuple[str, Make]]:
    """Constants of so many elements."""
    one_, s = ONES[:1], [size]
    number, resized = np.array(size), {"k": ONES[None, None], "s": np.float32([1, 1, size])}
    made: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
        f"Expand to {size:,}": (["Expand", "k", "s"], {}, {"k": one_, "s": s}),
        f"ConstantOfShape of {size:,}": (["ConstantOfShape", "s"], {}, {"s": s}),
        f"Range to {size:,}": (["Range", "a", "b", "c"], {}, {"a": np.array(0), "b": number, "c": np.array(1)}),
        f"Pad by {size:,}": (["Pad", "k", "p"], {}, {"k": ONES, "p": [size, size]}),
        f"OneHot of depth {size:,}": (["OneHot", "i", "d", "v"], {}, {"i": [[1]], "d": number, "v": ONES[:2]}),
        f"Tile by {size:,}": (["Tile", "k", "s"], {}, {"k": ONES, "s": s}),
        f"window of {size:,}": (["HannWindow", "n"], {}, {"n": number}),
        f"DFT of {size:,}": (["DFT", "k", "n"], {"axis": 1}, {"k": np.ones((1, 3, 1), np.float32), "n": number}),
        f"Resize by {size:,}": (["Resize", "k", "", "s"], {}, resized),
    }
    for name, ((kind, *inputs), attributes, weights) in made.items():
        yield name, partial(constant, [node(kind, inputs, ["m"], **attributes)], "m", **weights)


def _of_constants() -> Iterator[tuple[str, Make]]:
    """Large results of other numbers than a size."""
    mel = {"n": np.array(1 << 20), "r": np.array(16000), "l": np.float32(1), "h": np.float32(8000)}
    yield "mel bands", partial(constant, [node("MelWeightMatrix", [*"nnrlh"], ["m"])], "m", **mel)
    square = [node("ConstantOfShape", ["s"], ["k"]), node("EyeLike", ["k"], ["m"])]
    yield "EyeLike", partial(constant, square, "m", s=[1 << 20, 1 << 20])
    for shape in ([1 << 30, 1 << 30], [1 << 62], [1 << 40]):
        for kind in ("RandomNormal", "RandomUniform"):
            yield f"{kind} of {shape}", partial(constant, [node(kind, [], ["m"], shape=shape)], "m")
    outer = [node("Einsum", ["k"] * 5, ["m"], equation="a,b,c,d,e->abcde")]
    yield "Einsum", partial(constant, outer, "m", k=np.ones(2000, np.float32))
    yield "products of constants", partial(chained, one("MatMul", "@", "k"), 40, "k", k=np.eye(700, dtype=np.float32))
    yield (
        "sums along constants",
        partial(chained, one("CumSum", "@", "a"), 2000, "k", k=np.zeros(60000, "f"), a=np.array(0)),
    )


def _control_flow() -> Iterator[tuple[str, Make]]:
    for depth in (4, 11):
        for kind in ("If", "Loop"):
            yield f"{kind} in {kind}, {depth} deep", partial(nested, depth, kind)
    halved = [node("Mul", ["v", "h"], ["w"])]
    for trips in (10**4, 10**6):
        yield f"loop of constants, {trips:,} trips", partial(looped, trips, halved)
    doubled = [node("Concat", ["v", "v"], ["u"], axis=0), node("Identity", ["u"], ["w"])]
    for trips in (10, 20):
        yield f"loop that doubles, {trips} trips", partial(looped, trips, doubled, None)
    yield "Ifs in a row", partial(chained, _ifs, 60, c=np.array(True))
    for depth, times in ((10, 2), (20, 2), (40, 2), (64, 10), (2000, 1), (2, 20000)):
        yield f"functions {depth} deep, called {times} times each", partial(functions, depth, times)


def _shared() -> Iterator[tuple[str, Make]]:
    moved = {"turned": [2, 1, 0], "rolled": [1, 2, 0], "two_one": [2, 1]}
    for name, link in {"Gather and Gather": _turned, "Split and Concat": _split}.items():
        for count in (20, 100):
            yield f"{name}, {count} deep", partial(chained, link, count, **moved)
    for first, second in (("Relu", "Tanh"), ("Softmax", "Neg"), ("Identity", "Identity"), ("Exp", "Exp")):
        yield f"{first} and {second}, 100 deep", partial(chained, _pair(first, second), 100)
    yield "Concat with itself, 20 deep", partial(chained, one("Concat", "@", "@", axis=0), 20)
    yield "Concat with itself, 60 deep", partial(chained, one("Concat", "@", "@", axis=0), 60)


def _large() -> Iterator[tuple[str, Make]]:
    for count in (1000, 4000):
        for kind in ("Relu", "Identity", "Dropout"):
            yield f"{count:,} of {kind} in a chain", partial(chained, one(kind, "@"), count)
    yield "20,000 of Identity in a chain", partial(chained, one("Identity", "@"), 20000)
    yield "20,000 initializers", partial(_many, 20000)
    yield "100,000 initializers", partial(_many, 100000)
    for count in (1000, 3000):
        yield f"Sum of {count:,}", partial(_wide, "Sum", count)
        yield f"Max of {count:,}", partial(_wide, "Max", count)
        yield f"Concat of {count:,}", partial(_wide, "Concat", count, axis=0)
        yield f"{count:,} users of one value", partial(_fan, count)
    long = "n" * (1 << 20)
    yield "a name of a megabyte", lambda: model([node("Relu", ["x"], [long], name=long)], long)
    yield "an operator's name of a megabyte", lambda: model([node(long, ["x"], ["y"])], "y")
    yield "a domain of a megabyte", lambda: model([node("Relu", ["x"], ["y"], domain=long)], "y")
    yield "an attribute of a million numbers", lambda: model([node("Transpose", ["x"], ["y"], perm=[0] * 10**6)], "y")
    yield "axes by the million", lambda: model([node("Unsqueeze", ["x", "a"], ["y"])], "y", {"a": np.arange(10**6)})
    yield (
        "a shape of a thousand ones",
        lambda: model([node("Reshape", ["x", "a"], ["y"])], "y", {"a": [1] * 1000 + [3]}),
    )
    yield "a pattern", lambda: model([node("RegexFullMatch", ["t"], ["y"], pattern="(a?){1000}" * 9)], "y", opset=20)
    yield "text", lambda: raw(lambda m: setattr(m, "doc_string", long))
    yield "a leaf for each of many targets", partial(_trees, 2000, 1 << 30)
    yield "many leaves", partial(_trees, 2000, 2)
    yield "n-grams", partial(_grams, 3000, 1 << 40)


def _damaged() -> Iterator[tuple[str, Make]]:
    for dims in ([1 << 40], [1 << 62, 1 << 62], [-1], [0, 1 << 62], [1] * 100, [3] * 200):
        for dtype in (TensorProto.FLOAT, TensorProto.STRING):
            yield f"a weight of {str(dims)[:30]}, dtype {dtype}", partial(_dims, dims, dtype)
    for shape in ([1 << 40], [1 << 62, 4], [1] * 300, ["n"] * 40, ["n" * 100000]):
        yield f"an input of {str(shape)[:30]}", partial(_input, shape)
    for dims in ([1 << 28], [1 << 40], [1 << 62, 1 << 62]):
        yield f"a sparse tensor of {dims}", partial(_sparse, dims)
    for place in ("/dev/zero", "/dev/stdin", "../" * 1000 + "etc/passwd", ".", "model.onnx", "n" * 100000):
        yield f"external data in {place[:20]}", partial(_external, location=place)
    for offset in ("-1", "9" * 30, str(1 << 62), "0x10", ""):
        yield f"external data at {offset[:20]}", partial(_external, location="model.onnx", offset=offset)
        yield f"external data of length {offset[:20]}", partial(_external, location="model.onnx", length=offset)
    yield "external data, many elements", partial(_external, location="model.onnx", elements=str(1 << 50))
    for depth in (90, 300, 30000):
        yield f"protobuf {depth:,} deep", partial(_message, depth)
    yield "a node that reads itself", lambda: model([node("Relu", ["y"], ["y"])], "y")
    yield "a circle", lambda: model([node("Relu", ["b"], ["a"]), node("Relu", ["a"], ["b"])], "b")
    yield "zeros", lambda: bytes(1 << 20)
    yield "a length beyond the end", lambda: b"\x3a\xff\xff\xff\xff\x7f" + bytes(100)


def kinds() -> dict[str, Make]:
    """All of them, by what they are."""
    return dict(kind for part in (_folded, _control_flow, _shared, _large, _damaged) for kind in part())


@dataclass(frozen=True)
class Outcome:
    """``answer``: "runs", "refused", or what is wrong."""

    answer: str
    seconds: float
    nbytes: int

    @property
    def is_good(self) -> bool:
        return self.answer in ("runs", "refused") and self.seconds <= MOST_SECONDS and self.nbytes <= MOST_BYTES


def tried(data: bytes) -> Outcome:
    """A model opened and run in a child, with room for a little more than what is allowed; what it took itself."""
    with tempfile.TemporaryDirectory() as folder:
        path, answer = Path(folder, "model.onnx"), Path(folder, "answer")
        path.write_bytes(data)
        child = os.fork()
        if not child:
            _in_child(path, answer)
        _, status, usage = os.wait4(child, 0)
        said = answer.read_text() if answer.exists() else f"ended with {status}"
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Outcome(said, usage.ru_utime + usage.ru_stime, max(0, usage.ru_maxrss - own) * 1024)


def _in_child(path: Path, answer: Path) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (4 * int(MOST_SECONDS),) * 2)
        resource.setrlimit(resource.RLIMIT_AS, (_ROOM, _ROOM))
        os.chdir(path.parent)
        answer.write_text(_answer(path))
    finally:
        os._exit(0)


def _answer(path: Path) -> str:
    from minitvm import InferenceSession, MiniTVMError

    warnings.simplefilter("ignore")
    try:
        session = InferenceSession(path, num_threads=1)
        session.run(None, {one.name: np.ones([3], np.float32) for one in session.get_inputs()})
    except MiniTVMError:
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="kinds with this in their names")
    parser.add_argument("--share", default="0/1", help="of the kinds: 1/4 is the second fourth")
    given = parser.parse_args()
    part, parts = map(int, given.share.split("/"))
    _answer(Path("/nonexistent"))  # imports
    found: dict[str, Outcome] = {}
    for number, (name, make) in enumerate(kinds().items()):
        if number % parts == part and given.only in name:
            found[name] = outcome = tried(make())
            if not outcome.is_good:
                print(f"WRONG {name}: {outcome}", flush=True)
    wrong = sum(not outcome.is_good for outcome in found.values())
    for what in ("seconds", "nbytes"):
        most = sorted(found.items(), key=lambda item: -getattr(item[1], what))[:8]
        print(
            f"most {what}:",
            *(f"  {name}: {o.answer}, {o.seconds:.1f} s, {o.nbytes >> 20} MB" for name, o in most),
            sep="\n",
        )
    answers = [outcome.answer for outcome in found.values()]
    print(f"{len(found)} kinds: {answers.count('runs')} run, {answers.count('refused')} refused, {wrong} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
