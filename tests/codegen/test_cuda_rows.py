"""Sorting, running sums, scattering and selecting on GPUs: in parallel, with numpy's numbers to the last tie.

Sizes lie around warps, blocks and tiles; elements are often equal, some are NaN, infinite, or -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from nvrtc import needs_nvrtc
from onnx import TensorProto, helper, numpy_helper
from operator_cases import Accuracy
from test_cuda_schedules import BACKEND, LARGE, SMALL, check, expected_of, interpreted, lowered

import minitvm
from minitvm import relay
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.schedules.sorting import TILE
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Function
from minitvm.ir.loop import Kernel, seq
from simulated_gpu import ORDERS
from simulated_gpu.device import HostGroups, simulated_target
from tests.compilers import ON_GPU, PARTS, needs_compiler
from tests.gathered import Gathered

EXACT, SUMS = Accuracy(), Accuracy(ulps=64, scale=256)
EDGES = (1, 2, 3, 31, 32, 33, 255, 257, 1023, TILE + 1)


@dataclass(frozen=True)
class Case:
    """A call, what writes it, and how close it comes to numpy."""

    name: str
    arrays: tuple[np.ndarray, ...]
    attributes: dict[str, object]
    near: Accuracy = EXACT

    @cached_property
    def function(self) -> Function:
        params = [var(f"p{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate(self.arrays)]
        return Function(params, call_op(self.name, *params, **self.attributes))


def ties(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Few different numbers, and what else floats can be."""
    values = np.random.default_rng(math.prod(shape)).integers(-5 if dtype[0] != "u" else 0, 6, size=shape)
    found = values.astype(dtype)
    if dtype.startswith("float"):
        for step, special in ((7, np.nan), (11, -0.0), (13, np.inf), (17, -np.inf)):
            found.reshape(-1)[step - 5 :: step] = special
    return found


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).normal(size=shape).astype(dtype)


def case(name: str, *arrays: np.ndarray, near: Accuracy = EXACT, **attributes: object) -> Case:
    return Case(name, arrays, attributes, near)


SORTS = [
    *(case("argsort", ties(2, n), is_ascend=n % 2 == 0) for n in EDGES),
    *(case("sort", ties(4, 40, 3, dtype=d), axis=1) for d in ("float16", "float64", "int64", "uint8", "bool")),
    case("argsort", ties(70, 5), dtype="int64"),
    case("topk", ties(2, 300), k=7),
    case("topk", ties(1, 4 * TILE + 9), k=50, is_ascend=True),
    case("argsort", ties(1, TILE * 2 + 500)),
    case("topk", ties(2, TILE + 40, dtype="int32"), k=TILE // 2 + 30, ret_type="indices"),
    case("topk", ties(5, 64, 3), k=3, axis=1, ret_type="values"),
    case("topk", ties(3, 20), k=0),
]
SCANS = [
    *(case("cumsum", normal(3, n), axis=1, near=SUMS) for n in (*EDGES, 1024, 9001)),
    case("cumsum", ties(5, 60, dtype="int64"), axis=1, exclusive=True),
    case("cumsum", ties(6, 1028, dtype="int8"), axis=1),
    case("cumprod", normal(2, 500, 3), axis=1, near=SUMS),
    case("cumsum", normal(300, 70, dtype="float16"), axis=0, near=SUMS, exclusive=True),
    case("cumsum", ties(9, 50), axis=1),
]
SELECTIONS = [
    *(case("nonzero", ties(n)) for n in (1, 31, 33, 1025)),
    case("nonzero", ties(5, 70, 3, dtype="bool")),
    case("nonzero", np.zeros((7, 9), "float32")),
    case("nonzero", ties(20011, dtype="int32")),
    *(case("unique", ties(n), sorted=s) for n in (1, 2, 33, 300, TILE + 200) for s in (True, False)),
    case("unique", ties(40, 3, dtype="int64"), axis=0),
    case("unique", ties(2, 60, 2), axis=1, sorted=False),
]
REDUCTIONS = ("update", "add", "mul", "min", "max")


def places(count: int, *extents: int, dtype: str = "int64") -> np.ndarray:
    """Positions for each of some dimensions, from the end, too, and a few that are out of range."""
    rng = np.random.default_rng(count)
    return np.stack([rng.integers(-n - 1, n + 1, size=count) for n in extents]).astype(dtype)


SCATTERS = [
    *(
        case("scatter_elements", ties(4, 20, 3), places(6 * n, 20).reshape(3, n, 2), ties(3, n, 2), axis=1, reduction=r)
        for r in REDUCTIONS
        for n in (5, 64, 65)
    ),
    *(
        case("scatter_nd", ties(7, 5, 6), places(n, 7, 5, dtype="int32"), ties(n, 6), mode=r)
        for r in REDUCTIONS
        for n in (1, 64, 65)
    ),
    case("scatter_nd", normal(300, dtype="float16"), places(500, 300), normal(500, dtype="float16"), mode="add"),
    case("scatter_nd", normal(40), places(3000, 40), normal(3000), mode="add"),
    case("scatter_nd", ties(3, 5, dtype="bool"), places(90, 3), ties(90, 5, dtype="bool"), mode="mul"),
    case("scatter_nd", normal(4, 5), np.zeros((1, 0), "int64"), normal(0, 5)),
    case("scatter_nd", normal(4, 5), places(1, 4), normal(1, 5)),
]


def boxes(batch: int, classes: int, count: int, most: int, overlap: float, least: float, **attributes: object) -> Case:
    """Many of the same score, one without, and one that no score is below."""
    rng = np.random.default_rng(count)
    scores = np.round(rng.uniform(size=(batch, classes, count)), 2).astype("float32")
    scores.reshape(-1)[3::50], scores.reshape(-1)[2::31] = np.nan, -np.inf
    given = rng.uniform(size=(batch, count, 4)).astype("float32")
    limits = np.array(most, "int64"), np.array(overlap, "float32"), np.array(least, "float32")
    return case("vision.non_max_suppression", given, scores, *limits, **attributes)


SUPPRESSIONS = [
    boxes(1, 1, 1, 5, 0.5, 0.1),
    boxes(2, 3, 33, 5, 0.3, 0.2),
    boxes(1, 2, 300, 1000, 0.5, 0.0, limit=20),
    boxes(2, 1, 300, 7, 0.1, 0.5, center=True),
    boxes(1, 2, 65, 0, 0.5, 0.0),
    boxes(1, 2, 65, 9, 0.5, 2.0),
    boxes(1, 1, 257, -3, 0.5, -np.inf),
]
GROUPS = [*SORTS, *SCANS, *SELECTIONS, *SCATTERS, *SUPPRESSIONS]
CASES = {f"{i} {c.name} {[a.shape for a in c.arrays]}": c for i, c in enumerate(GROUPS)}


@pytest.mark.parametrize("name", CASES)
def test_rows_give_the_right_numbers(name: str) -> None:
    case, met = CASES[name], set[str]()
    for machine in (SMALL, LARGE):
        found, kernel, bound = lowered(case.function, machine)
        if str(kernel) in met:
            continue
        met.add(str(kernel))
        results = interpreted(kernel, bound, [*case.arrays])
        check(kernel, results, expected_of(case.function, [*case.arrays]), case.near)
        assert found.chosen.rpartition(".")[2].startswith("Gpu"), found.chosen
        assert not any(d.by == "bind" for d in found.decisions)


@needs_compiler
@pytest.mark.parametrize("part", range(PARTS))
def test_the_cuda_c_of_rows_gives_the_right_numbers(part: int) -> None:
    """Of every other case, on the simulated GPU, in every order of blocks and threads."""
    cases = [c for c in CASES.values() if all(a.size for a in c.arrays)][part :: PARTS if ON_GPU else 2]
    kernels = [lowered(c.function, SMALL if i % 2 else LARGE)[1] for i, c in enumerate(cases)]
    launches = [BACKEND.bind(kernel) for kernel in kernels]
    groups = HostGroups([BACKEND.source(found) for found in launches])
    each = Gathered()
    for number, (case, kernel, found) in enumerate(zip(cases, kernels, launches, strict=True)):
        expected = expected_of(case.function, [*case.arrays])
        for order in ORDERS:
            results = [np.full(b.shape, 77).astype(b.dtype) for b in kernel.outputs]
            memory = np.full(int(BACKEND.workspace(found).nbytes), 77, np.uint8)  # type: ignore[arg-type]
            with each.case(f"{number} {case.name} {[a.shape for a in case.arrays]}, {order}"):
                groups.run(number, [*case.arrays, *results], memory, order, seed=number)
                check(kernel, results, expected, case.near)
    each.end()


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_rows_need_few_registers_and_spill_nothing(arch: str) -> None:
    parts: list[Kernel] = []
    for number, case in enumerate([*CASES.values()][1 if arch == "sm_80" else 0 :: 5]):
        bound = [part for part in lowered(case.function, LARGE)[2] if part.body != seq()]
        parts += [replace(part, name=f"k{number}_{i}") for i, part in enumerate(bound)]
    cubin = compile_cubin(emit_cuda(*parts), arch)
    assert cubin.spills == 0 and cubin.registers <= 64 and cubin.shared_bytes <= 48 * 1024


def launches_of(case: Case) -> int:
    return len(lowered(case.function, LARGE)[2])


@pytest.mark.parametrize(
    ("made", "launches"),
    [
        (lambda: case("argsort", ties(3, TILE)), 1),
        (lambda: case("argsort", ties(3, TILE * 8)), 4),
        (lambda: case("topk", ties(1, TILE * 8), k=10), 2),
        (lambda: case("cumsum", normal(2000, 5000), axis=1), 1),
        (lambda: case("cumsum", normal(2, 50000), axis=1), 3),
        (lambda: case("nonzero", ties(1000)), 2),
        (lambda: case("scatter_nd", normal(99, 7), places(64, 99), normal(64, 7), mode="add"), 2),
        (lambda: boxes(2, 40, 1000, 100, 0.5, 0.1), 4),
        (lambda: boxes(1, 1, 40000, 10, 0.5, 0.99), 9),
    ],
)
def test_rows_take_few_launches(made: Callable[[], Case], launches: int) -> None:
    assert launches_of(made()) == launches


def test_results_whose_blocks_differ_go_by_launches_of_their_own() -> None:
    """Threads that meet at a barrier, or shuffle, must all be there."""
    x, y = relay.var("x", shape=(3, 300)), relay.var("y", shape=(3, 40))
    sums = [relay.sum(x, axis=(1,)), relay.sum(y, axis=(1,)), relay.exp(x)]
    function = relay.Function([x, y], relay.Tuple(sums))
    _, kernel, bound = lowered(function, LARGE)
    assert len(bound) == 3 and emit_cuda(*bound)
    arrays = [normal(3, 300), normal(3, 40)]
    check(kernel, interpreted(kernel, bound, arrays), expected_of(function, arrays), SUMS)


@needs_compiler
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_detector_s_last_operators_agree_with_the_processor_s() -> None:
    """As a model, whose results are as long as the values say; threads in random order."""
    inputs = {
        "boxes": np.random.default_rng(0).uniform(size=(1, 200, 4)).astype("float32"),
        "scores": np.random.default_rng(1).uniform(size=(1, 3, 200)).astype("float32"),
        "flat": np.round(normal(2, 70), 1),
    }
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["picked"]),
        helper.make_node("TopK", ["flat", "k"], ["values", "places"], axis=1),
        helper.make_node("NonZero", ["flat"], ["found"]),
        helper.make_node("Unique", ["flat"], ["different", "first", "group", "counts"], sorted=0),
        helper.make_node("ScatterElements", ["flat", "places", "values"], ["scattered"], axis=1, reduction="add"),
    ]
    limits = {"most": np.int64(10), "overlap": np.float32(0.3), "least": np.float32(0.2), "k": np.array([9])}
    results = [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.output]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in inputs.items()],
        results,
        [numpy_helper.from_array(np.asarray(value), name) for name, value in limits.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    expected = minitvm.InferenceSession(model).run(None, inputs)
    with simulated_target():
        found = minitvm.InferenceSession(model, target="simulated -order=random -seed=3").run(None, inputs)
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(have, want)
