"""The calls of six Relay tutorials, in order, with ``tvm`` replaced by ``minitvm`` in the imports.

Each statement is one call or import as TVM's documents (0.8 to 0.14, and for T2 and T3 texts of 0.5 and 0.6) spell it;
pictures are small, so that they run in seconds.  What is asserted of it is ours.
"""

from __future__ import annotations

import contextlib
import io
import logging
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from nvrtc import needs_nvrtc
from onnx import helper, numpy_helper
from tvm_calls import GPU, TUTORIALS

import minitvm
from minitvm.errors import MiniTVMError
from minitvm.tvm.instead import INSTEAD


def with_import(code: str, package: str) -> str:
    """``code`` where its imports name ``package`` instead of ``tvm``."""
    code = re.sub(r"^import tvm$", f"import {package} as tvm", code, flags=re.MULTILINE)
    code = re.sub(r"^import tvm\.testing$", f"import {package}.testing", code, flags=re.MULTILINE)
    code = re.sub(r"^import tvm\.(\S+) as", rf"import {package}.\1 as", code, flags=re.MULTILINE)
    return re.sub(r"^from tvm(\.\S+)? import", rf"from {package}\1 import", code, flags=re.MULTILINE)


@contextlib.contextmanager
def quiet_logging() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def write_mobilenet(path: pathlib.Path) -> None:
    """Layers of MobileNetV2's kinds, as PyTorch exports them: input ``0``, Conv, BatchNormalization, Clip, Gemm."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{op}_{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def weight(*shape: int) -> str:
        value = rng.uniform(0.1, 0.5, shape).astype("float32")
        weights.append(numpy_helper.from_array(value, f"w{len(weights)}"))
        return str(weights[-1].name)

    def block(x: str, before: int, after: int, size: int, group: int = 1) -> str:
        x = node("Conv", x, weight(after, before // group, size, size), pads=[size // 2] * 4, group=group)
        x = node("BatchNormalization", x, *(weight(after) for _ in range(4)))
        return node("Clip", x, zero, six)

    zero, six = (node("Constant", value=numpy_helper.from_array(np.float32(v))) for v in (0, 6))
    x = block(block("0", 3, 8, 3), 8, 8, 3, group=8)
    x = node("Add", x, block(x, 8, 8, 1))
    x = node("Gemm", node("ReduceMean", x, axes=[2, 3], keepdims=0), weight(10, 8), weight(10), transB=1)
    values = [helper.make_tensor_value_info(n, 1, s) for n, s in (("0", ["N", 3, 32, 32]), (x, ["N", 10]))]
    graph = helper.make_graph(nodes, "mobilenet", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def run(name: str) -> tuple[int, list[str]]:
    """The calls of a tutorial that ran, and what the others said."""
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    ran, failed = 0, []
    for call in TUTORIALS[name]:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(with_import(call, "minitvm"), f"<{name}>", "exec"), namespace)
            ran += 1
        except Exception as error:
            failed.append(f"{call.splitlines()[0]}: {type(error).__name__}: {error}")
    return ran, failed


@pytest.mark.parametrize("name", [pytest.param(n, marks=[needs_nvrtc] if n == "T1" else []) for n in TUTORIALS])
def test_every_call_runs(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_mobilenet(tmp_path / "mobilenet.onnx")
    with quiet_logging():
        ran, failed = run(name)
    print(f"{name}: {ran} of {len(TUTORIALS[name])} calls ran")
    assert not failed, "\n".join(failed)


def test_imports_from_the_room_itself() -> None:
    """``minitvm.tvm`` for ``tvm``: the form that editors and type checkers see through."""
    imports = {call for calls in TUTORIALS.values() for call in calls if call.startswith(("import tvm", "from tvm"))}
    for call in imports:
        exec(with_import(call, "minitvm.tvm"), {})


PAGE = pathlib.Path(minitvm.__file__).parents[1] / "docs" / "from-tvm.md"


def test_the_page_has_the_number_of_calls_and_every_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"All {sum(len(calls) for calls in TUTORIALS.values())} calls" in page
    text = "\n".join(call for calls in TUTORIALS.values() for call in calls)
    names = set(re.findall(r"(?<![\w.\"])((?:tvm|relay|lib|mod)\.[\w.]+\w)", text))
    rooms = {"tvm.contrib", "tvm.relay", "tvm.runtime", "tvm.testing"}
    assert {name for name in names if f"`{name}`" not in page} <= rooms
    beyond = re.findall(r"`((?:relay|tvm)\.[\w.]+)`", page.partition("## Not offered")[0])
    known = {"tvm": minitvm, "relay": minitvm.relay}
    assert all(exists(known[name.partition(".")[0]], name.partition(".")[2]) for name in beyond)
    rows = page.partition("## Not offered")[2]
    assert set(INSTEAD) == set(re.findall(r"`([\w.]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", rows, re.M))))


def exists(found: Any, path: str) -> bool:
    """Whether there is such a name, or one that says what is lacking."""
    for name in path.split("."):
        found = getattr(found, name)
    return found is not None


@pytest.mark.parametrize("call", GPU)
def test_what_needs_a_gpu_says_so(call: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if minitvm.cuda(0).exist:
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    imports = "import tvm\nimport numpy as np\nfrom tvm import relay\nfrom tvm.contrib import graph_executor"
    exec(with_import(imports, "minitvm"), namespace)
    with pytest.raises(MiniTVMError) as caught:
        exec(call, namespace)
    assert "cuda" in str(caught.value).lower() and caught.value.hint


@needs_nvrtc
def test_tutorial_results_are_right(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second tutorial computes, beside the graph run by numpy."""
    from minitvm.ir.evaluate import evaluate

    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    with quiet_logging(), contextlib.redirect_stdout(io.StringIO()):
        for call in TUTORIALS["T1"]:
            exec(with_import(call, "minitvm"), namespace)
    net, params = namespace["net"], namespace["params"]
    values = [namespace["data"] if p.name == "data" else np.asarray(params[p.name]) for p in net["main"].params]
    minitvm.testing.assert_allclose(namespace["out_cuda"], evaluate(net, *values), rtol=1e-4, atol=1e-5)
