"""What the page explains: passes and what they gained, layouts, branches, charts; and the drawing of a cell."""

from __future__ import annotations

import html
import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import browser as browsers
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import minitvm
from minitvm.lab import profile
from minitvm.testing import mlp
from minitvm.viewer.cell import MOST_CALLS
from minitvm.viewer.document import SITE, document_of
from minitvm.viewer.page import _as_function, _asset

ROOT = pathlib.Path(minitvm.__file__).parents[1]


def with_branches() -> onnx.ModelProto:
    """A convolution with an epilogue, then another one or none, as the data decide."""
    rng = np.random.default_rng(3)
    weights = [numpy_helper.from_array(rng.normal(size=(16, 16, 3, 3)).astype("float32"), name) for name in ("w", "v")]
    image = [1, 16, 12, 12]
    value = helper.make_tensor_value_info
    conv = helper.make_node("Conv", ["a", "v"], ["t"], "/then/conv", pads=[1, 1, 1, 1])
    then = helper.make_graph([conv], "then", [], [value("t", TensorProto.FLOAT, image)])
    other = helper.make_node("Relu", ["a"], ["e"], "/else/relu")
    orelse = helper.make_graph([other], "else", [], [value("e", TensorProto.FLOAT, image)])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["a"], "/relu"),
        helper.make_node("If", ["flag"], ["y"], "/if", then_branch=then, else_branch=orelse),
    ]
    inputs = [value("x", TensorProto.FLOAT, image), value("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", TensorProto.FLOAT, image)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    library = minitvm.compile(with_branches(), num_threads=2, trace=True)
    return document_of(library.report, "branches", profile(library, repeats=2))


def test_every_pass_says_what_it_is(document: dict[str, Any]) -> None:
    assert [step["name"] for step in document["passes"] if not step["about"]] == []
    assert f'Documentation = "{SITE.rstrip("/")}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_pass_shows_what_it_is_and_gained(opened: browsers.Watched) -> None:
    page = opened.page
    opened.view("passes")
    page.click("[data-pass] >> text=FuseOps")
    told = page.inner_text(".about")
    assert "Each group of operators that fuse becomes a function" in told and "FuseOps \u00d7" in told
    launches = re.search(r"is one\s+(\d+) → (\d+)", told)
    moved = re.search(r"read and write\s+([\d.]+) KB → ([\d.]+) KB", told)
    assert launches and int(launches[1]) > int(launches[2])
    assert moved and float(moved[1]) > float(moved[2])
    assert "2 kernels → 1" in page.inner_text(".hunk:has-text('/relu')")
    assert page.get_attribute(".about a", "href") == f"{SITE}passes/#:~:text=FuseOps"


def test_blocks_of_a_layout_are_drawn(opened: browsers.Watched) -> None:
    page = opened.page
    opened.view("passes")
    page.click("[data-pass] >> text=AlterOpLayout")
    cells = page.locator(".layout >> nth=0 >> .cell text").all_text_contents()
    told = page.inner_text(".layout >> nth=0")
    block = re.search(r"blocks of (\d+) of C", told)
    assert block and "NCHW" in told
    plain, blocked = cells[: len(cells) // 2], cells[len(cells) // 2 :]
    assert set(plain) == {"0"} and blocked == [str(n % int(block[1])) for n in range(32)]


def test_branches_are_counted_and_entered(opened: browsers.Watched, document: dict[str, Any]) -> None:
    page = opened.page
    told = page.inner_text("[data-view=overview]")
    assert "4 calls were imported" in told or "5 calls were imported" in told
    assert "2 functions of branches and loops, of 2 calls" in told and "2 nn.conv2d" in told
    page.click(".step-row:has-text('2 branches of')")
    page.wait_for_selector(".box.selected:has-text('control.if')")
    page.click("#inspector .link:has-text('then_branch')")
    page.wait_for_selector(".box:has-text('conv')")
    assert "conv" in page.inner_text(".canvas") and page.url.endswith("#function=1")
    page.click(".bar .link:has-text('control.if')")
    page.wait_for_selector(".box.selected:has-text('control.if')")
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash === '#function=1'")
    page.go_back()
    page.wait_for_selector(".box.selected:has-text('control.if')")


SPREAD = (
    "bars => { const all = bars.map(bar => bar.getBoundingClientRect()); return Math.max(...all.map(r => r.width)); }"
)


@pytest.mark.parametrize(("view", "marks"), [("threads", ".slice"), ("memory", ".value")])
def test_charts_over_time_zoom_by_wheel_and_by_keys(opened: browsers.Watched, view: str, marks: str) -> None:
    page = opened.page
    opened.view(view)

    def widest() -> float:
        return float(page.eval_on_selector_all(marks, SPREAD))

    def places() -> list[float]:
        return list(page.eval_on_selector_all(marks, "all => all.map(one => one.x.baseVal.value)"))

    whole = widest()
    page.keyboard.press("w")
    assert widest() > 1.2 * whole
    page.keyboard.press("s")
    assert widest() == pytest.approx(whole, rel=1e-3)
    host = page.locator(".chart svg").bounding_box()
    page.mouse.move(host["x"] + host["width"] / 2, host["y"] + host["height"] / 2)
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"({SPREAD})([...document.querySelectorAll('{marks}')]) > {1.2 * whole}")
    page.keyboard.press("a")
    before = places()
    page.keyboard.press("d")
    assert places() != before
    page.keyboard.press("f")
    assert widest() == pytest.approx(whole, rel=1e-3)
    page.keyboard.press("j")
    assert page.is_visible("#inspector") and page.evaluate("document.activeElement.tagName") == "rect"


def test_charts_say_what_their_marks_mean(opened: browsers.Watched) -> None:
    page = opened.page
    opened.view("roofline")
    assert "the machine's peak" in page.inner_text(".legend") and "bound" in page.inner_text(".legend")
    opened.view("memory")
    assert "a value, from the step that makes it" in page.inner_text(".legend")


def test_lines_of_code_and_of_changes_are_reached_by_keys(opened: browsers.Watched) -> None:
    page = opened.page
    opened.view("kernels")
    page.wait_for_selector(".pane .line")
    page.focus("[data-language=loops] .scroller")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("[data-language=loops] [data-line='1'].linked")
    assert page.locator("[data-language=loops] .linked").count() == 1
    page.keyboard.press("Escape")
    opened.view("passes")
    page.focus(".hunk code[tabindex] >> nth=0")
    page.keyboard.press("Enter")
    assert page.is_visible("#inspector")


# --- labels -------------------------------------------------------------------------------------------------------


def cut(items: list[list[Any]]) -> list[str]:
    modules = "\n".join(_as_function(name, _asset(f"{name}.js")) for name in ("base", "labels"))
    silent = (
        "globalThis.document = { createElement: () => ({ setAttribute() {}, append() {}, addEventListener() {} }) };"
    )
    script = f"{silent}\n{modules}\nconsole.log(JSON.stringify($labels.cutApart({json.dumps(items)})))"
    done = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_labels_are_cut_so_that_they_differ() -> None:
    roles = [f"conv 3x3, 64 → 64 + multiply + add + relu, 1x{n}x56x56x16" for n in (4, 8, 16)]
    assert cut([[role, 30] for role in roles]) == [
        "conv 3x3, … relu, 1x4x56x56x16",
        "conv 3x3, … relu, 1x8x56x56x16",
        "conv 3x3, …relu, 1x16x56x56x16",
    ]
    assert cut([["short", 30], ["short", 30]]) == ["short", "short"]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
@settings(max_examples=8)
@given(st.lists(st.lists(st.text("ab/", min_size=1, max_size=40), min_size=2, max_size=8), min_size=12, max_size=12))
def test_labels_that_are_not_alike_never_look_alike(several: list[list[str]]) -> None:
    for texts in several[:1] + [[text + "x" * 30 + text for text in texts] for texts in several[1:2]]:
        found = cut([[text, 12] for text in texts])
        assert len(set(zip(texts, found, strict=True))) == len(set(texts)) == len(set(found))
        assert all(len(short) <= 12 for short in found)


# --- cells of notebooks -------------------------------------------------------------------------------------------


def test_a_cell_draws_a_module_and_what_a_pass_changed(chromium: Any, tmp_path: pathlib.Path) -> None:
    module, params = mlp.get_workload(1)
    steps = minitvm.build(module, params=params, opt_level=3, trace=True).report.steps
    [fused] = [step for step in steps if step.name == "FuseOps"]
    cells = {"module": module, "function": module["main"], "step": fused}
    path = tmp_path / "cells.html"
    path.write_text("<meta charset=utf-8>" + "".join(one._repr_html_() for one in cells.values()), encoding="utf-8")
    assert path.stat().st_size < 600_000
    page = browsers.opened(chromium)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(path.as_uri())
    frames = [page.frame_locator(f"iframe >> nth={n}") for n in range(len(cells))]
    for frame in frames[:2]:
        frame.locator(".box:has-text('softmax')").wait_for(state="attached")
        assert frame.locator("nav, .timeline").count() == 0
    frames[0].locator(".box:has-text('relu') >> nth=0").click()
    assert "nn.relu" in frames[0].locator("#inspector").inner_text()
    frames[2].locator(".hunk >> nth=0").wait_for()
    assert "kernels → 1" in frames[2].locator(".diff").inner_text() and not complaints
    page.close()


def test_what_is_not_drawn_in_a_cell() -> None:
    x = minitvm.relay.var("x", shape=(2,))
    long = x
    for _ in range(MOST_CALLS + 1):
        long = minitvm.relay.nn.relu(long)
    [same, *_] = minitvm.build(minitvm.relay.Function([x], -x), opt_level=0, trace=True).report.steps
    for shown in (minitvm.relay.Function([x], long), minitvm.relay.Function([x], x), same, long):
        assert "<iframe" not in shown._repr_html_()
    small = minitvm.relay.Function([x], -x)._repr_html_()
    assert html.unescape(small).count("</script>") == 1  # the page is packed
