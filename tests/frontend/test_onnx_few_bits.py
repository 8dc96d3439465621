"""``MatMulNBits`` at accuracy level 4 as ONNX Runtime computes it: forms that are drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import minitvm
from minitvm.passes.redundancy import EliminateCommonSubexpr

FORMS = 16
"""Of the suite; ``python tests/frontend/test_onnx_few_bits.py 2000`` draws more."""
ZEROS = ("none", "packed", "floats")


@dataclass(frozen=True)
class Form:
    """Of a node: sizes, the dtype of A and scales, zero points, whether the rows are open, a bias, groups of rows."""

    bits: int
    block: int
    depth: int
    units: int
    rows: tuple[int, ...]
    dtype: str
    zeros: str
    is_open: bool
    has_bias: bool
    level: int = 4

    @staticmethod
    def drawn(seed: int) -> Form:
        rng = np.random.default_rng(seed)
        bits = int(rng.choice([2, 4, 4, 4, 8]))
        shapes = [(1,), (1, 1), (3,), (1, 5), (2, 3), (9,), (1, 17)]
        return Form(
            bits,
            int(rng.choice([16, 32, 64, 128, 256])),
            int(rng.integers(1, 300)),
            int(rng.integers(1, 90)),
            shapes[rng.integers(len(shapes))],
            str(rng.choice(["float32", "float32", "float16"])),
            ZEROS[rng.integers(2 if bits == 8 else 3)],
            bool(rng.integers(2)),
            bool(rng.integers(2)),
        )

    def model(self, seed: int) -> tuple[onnx.ModelProto, np.ndarray]:
        """The node by itself, and numbers for A."""
        rng, blocks = np.random.default_rng(seed), -(-self.depth // self.block)
        scales = rng.uniform(0.5, 1.5, (self.units, blocks)) / 2**self.bits
        weights = {
            "B": rng.integers(0, 256, (self.units, blocks, self.block * self.bits // 8), "uint8"),
            "scales": scales.astype(self.dtype),
        }
        if self.zeros == "packed":
            weights["zeros"] = rng.integers(0, 256, (self.units, -(-blocks * self.bits // 8)), "uint8")
        elif self.zeros == "floats":
            weights["zeros"] = rng.uniform(0, 2**self.bits, (self.units, blocks)).astype(self.dtype)
        if self.has_bias:
            weights["bias"] = rng.normal(size=self.units).astype(self.dtype)
        names = ["A", *(name if name in weights else "" for name in ("B", "scales", "zeros", "", "bias"))]
        sizes = {"K": self.depth, "N": self.units, "bits": self.bits, "block_size": self.block}
        node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", accuracy_level=self.level, **sizes)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        shape = [f"d{i}" if self.is_open else n for i, n in enumerate(self.rows)]
        graph = helper.make_graph(
            [node],
            "few_bits",
            [helper.make_tensor_value_info("A", kind, [*shape, self.depth])],
            [helper.make_tensor_value_info("y", kind, [*shape, self.units])],
            [numpy_helper.from_array(a, name) for name, a in weights.items()],
        )
        domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        a = rng.normal(size=(*self.rows, self.depth)) * 10.0 ** rng.integers(-2, 3, (*self.rows, 1))
        a[..., : self.block] *= rng.integers(0, 2)
        return helper.make_model(graph, opset_imports=domains, ir_version=10), a.astype(self.dtype)


def check(seed: int) -> Form:
    """What was drawn; raises where both runtimes differ by more than roundings of float sums."""
    form = Form.drawn(seed)
    model, a = form.model(seed)
    content = model.SerializeToString()
    theirs = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    ours = minitvm.InferenceSession(content)
    for rows in (a, np.concatenate([a, a[::-1] * 3]))[: 1 + form.is_open]:
        _compare(form, ours.run(None, {"A": rows})[0], theirs.run(None, {"A": rows})[0])
    assert len(ours.libraries) == 1, form
    return form


def _compare(form: Form, found: np.ndarray, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), form
    size = np.abs(expected.astype("float64")).max(axis=-1, keepdims=True)
    roundings = (
        4 * np.finfo("float16").eps if form.dtype == "float16" else 2e-6
    )  # of halves before a bias is added, too
    allowed = np.broadcast_to(size * roundings + 1e-30, found.shape)
    gap = np.abs(found.astype("float64") - expected.astype("float64"))
    assert (gap <= allowed).all(), f"{form}: {(gap / allowed).max()}"


@pytest.mark.parametrize("seed", range(FORMS))
def test_as_onnx_runtime_rounds(seed: int) -> None:
    check(seed)


def test_layers_of_one_input_share_its_numbers() -> None:
    """Quantized once, for two layers."""
    form = replace(Form.drawn(0), bits=4, block=32, zeros="none", dtype="float32")
    model, _ = form.model(0)
    second = helper.make_node("MatMulNBits", [], ["z"])
    second.CopyFrom(model.graph.node[0])
    second.input[1], second.output[0] = "others", "z"
    others = numpy_helper.from_array(255 - numpy_helper.to_array(model.graph.initializer[0]), "others")
    model.graph.initializer.append(others)
    result = helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)
    model.graph.node.append(second)
    model.graph.output.append(result)
    module, _ = minitvm.from_onnx(model)
    text = str(EliminateCommonSubexpr()(module))
    assert [text.count(f"qnn.{name}_blocks(") for name in ("quantize", "dense")] == [1, 2]


def test_weights_that_are_given_at_a_run_are_multiplied_as_floats() -> None:
    """As ONNX Runtime does."""
    form = replace(Form.drawn(1), bits=4, block=32, zeros="none", dtype="float32", has_bias=False)
    model, a = form.model(1)
    weight = model.graph.initializer[0]
    given = numpy_helper.to_array(weight)
    model.graph.initializer.remove(weight)
    model.graph.input.append(helper.make_tensor_value_info("B", onnx.TensorProto.UINT8, given.shape))
    content = model.SerializeToString()
    feeds = {"A": a, "B": given}
    expected = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    _compare(form, minitvm.InferenceSession(content).run(None, feeds)[0], expected)


if __name__ == "__main__":
    import sys

    wrong = 0
    for number in range(int(sys.argv[1])):
        try:
            check(number)
        except Exception as error:
            wrong += 1
            print(number, Form.drawn(number), type(error).__name__, str(error)[:200], flush=True)
    print(wrong, "wrong")
