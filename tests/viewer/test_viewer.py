"""The page of ``minitvm view`` in a browser: from disk, without a network, with names that are not to be trusted."""

from __future__ import annotations

import base64
import copy
import gzip
import pathlib
import re
from typing import Any
from urllib.parse import quote

import browser as browsers
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import minitvm
from minitvm import relay
from minitvm.cli import cli
from minitvm.errors import ConfigError, InputError
from minitvm.lab import profile
from minitvm.viewer.document import document_of
from minitvm.viewer.modules import _renamed
from minitvm.viewer.page import page_of

HOSTILE = "/net/layer1/</script><img src=x onerror=window.hacked=1><!--<script>{{data}}%0%n\u2028"
VIEWS = ("overview", "passes", "graph", "kernels", "roofline", "memory", "threads")


def two_convolutions() -> bytes:
    """conv, batch normalization, relu, conv; the nodes are in scopes, and one has a name of evil."""
    rng = np.random.default_rng(3)
    shapes = {"w": (8, 3, 3, 3), "v": (8, 8, 1, 1), **dict.fromkeys(("gamma", "beta", "mean"), (8,))}
    arrays = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    arrays["var"] = rng.uniform(0.5, 2, 8).astype("float32")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "/net/layer1/conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "gamma", "beta", "mean", "var"], ["b"], "/net/layer1/norm"),
        helper.make_node("Relu", ["b"], ["c"], HOSTILE),
        helper.make_node("Conv", ["c", "v"], ["y"], "/net/layer2/conv"),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, c, 16, 16]) for name, c in (("x", 3), ("y", 8))
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, HOSTILE, values[:1], values[1:], weights)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    library = minitvm.compile(onnx.load_from_string(two_convolutions()), num_threads=2, trace=True)
    return document_of(library.report, HOSTILE, profile(library, repeats=2))


# --- the document -------------------------------------------------------------------------------------------------


def test_rows_that_a_pass_left_alone_are_the_same(document: dict[str, Any]) -> None:
    [inference] = [p for p in document["passes"] if p["name"] == "SimplifyInference"]
    before, after = ({row for row, *_ in document["modules"][n][0]["nodes"]} for n in inference["modules"])
    assert {document["rows"][row][1] for row in before - after} == {"nn.batch_norm"}
    assert "nn.conv2d" in {document["rows"][row][1] for row in before & after}


def test_groups_are_kernels_and_their_calls_are_in_the_table(document: dict[str, Any]) -> None:
    [main] = document["modules"][document["last"]]
    symbols = {kernel["symbol"] for kernel in document["kernels"]}
    assert {group["kernel"] for group in main["groups"]} <= symbols | {""}
    inside = [document["rows"][row][1] for row, _, group in main["nodes"] if group >= 0]
    assert "nn.relu" in inside and sum("conv2d" in name for name in inside) == 2


def by_hand() -> minitvm.Library:
    """Two layers that are one kernel, of a module without names."""
    x, weights = relay.var("x", shape=(2, 8)), np.random.default_rng(4).normal(size=(2, 8, 8)).astype("float32")
    hidden = relay.nn.relu(relay.nn.dense(x, relay.const(weights[0])))
    function = relay.Function([x], relay.nn.relu(relay.nn.dense(hidden, relay.const(weights[1]))))
    return minitvm.build(function, opt_level=3, trace=True)


def test_calls_of_equal_groups_come_from_their_own_nodes() -> None:
    document = document_of(by_hand().report, "by hand")
    [main] = document["modules"][document["last"]]
    inside = [document["spans"][document["rows"][row][4]] for row, _, group in main["nodes"] if group >= 0]
    assert inside == [["dense_0"], ["relu_1"], ["dense_2"], ["relu_3"]] and len(document["kernels"]) == 1


def test_groups_of_more_or_fewer_nodes_than_their_equal_come_from_all_of_them() -> None:
    assert _renamed(("a", "b"), ("a", "b")) == {}
    assert _renamed(("a", "b"), ("c", "d")) == {"a": ("c",), "b": ("d",)}
    assert _renamed(("a", "b"), ("c",)) == {"a": ("c",), "b": ("c",)}


def test_values_that_are_alive_together_do_not_overlap_in_the_picture(document: dict[str, Any]) -> None:
    values = document["memory"]["values"]
    assert values
    for i, (_, first, last, offset, size, _) in enumerate(values):
        for _, other_first, other_last, other, other_size, _ in values[:i]:
            if first <= other_last and other_first <= last:
                assert offset + size <= other or other + other_size <= offset


def test_a_build_without_modules_says_how_to_keep_them(tmp_path: pathlib.Path) -> None:
    library = minitvm.compile(onnx.load_from_string(two_convolutions()))
    with pytest.raises(ConfigError, match="kept no modules to look at") as error:
        library.report.view(tmp_path / "page.html")
    assert "trace=True" in error.value.hint


# --- in a browser -------------------------------------------------------------------------------------------------


def test_opens_from_disk_and_every_view_is_drawn(opened: browsers.Watched) -> None:
    page = opened.page
    assert HOSTILE.replace("\u2028", "") in page.inner_text(".model h1").replace("\u2028", "")
    for name in VIEWS:
        opened.view(name)
        assert page.inner_text(f"[data-view={name}]").strip()
    opened.view("graph")
    opened.drawn()
    assert page.locator("svg image, img").count() == 0


def test_a_pass_shows_what_it_changed_and_nothing_else(opened: browsers.Watched) -> None:
    page = opened.page
    opened.view("passes")
    page.click("[data-pass] >> text=SimplifyInference")
    assert page.locator(".hunk").count() == 1
    assert page.inner_text(".hunk .origin") == "/net/layer1/norm"
    gone, come = page.inner_text(".hunk .gone >> nth=0"), page.inner_text(".hunk .come >> nth=0")
    assert "nn.batch_norm(" in gone and "rsqrt(" in come and "conv2d" not in gone + come
    page.keyboard.press("d")
    opened.drawn("figure >> nth=1 >>")
    assert page.locator("figure .box.gone").count() == 1
    assert page.locator("figure .box.come").count() > 3


def test_the_overview_says_what_the_model_is_and_what_was_done(opened: browsers.Watched) -> None:
    page = opened.page
    told = page.inner_text("[data-view=overview]")
    assert "x: Tensor[(1, 3, 16, 16), float32]" in told and "2 nn.conv2d" in told
    assert "4 calls were imported; 3 launches of 3 kernels" in told
    assert "1 of 1 batch normalizations became part of weights" in told
    assert page.locator(".step-row").count() == 3 and "conv 3x3, 3 → 8 + add + relu" in told
    page.click(".step-row >> nth=0")
    assert "/net/layer1/conv" in page.inner_text("#inspector")


def test_addresses_can_be_shared_and_back_goes_back(
    opened: browsers.Watched, chromium: Any, page_file: pathlib.Path
) -> None:
    page = opened.page
    opened.view("graph")
    page.click(".box.closed.group:has-text('conv 1x1, 8 → 8')")
    shared = page.url
    assert shared.endswith("#node=/net/layer2/conv")
    opened.view("memory")
    page.go_back()
    page.wait_for_selector(".box.selected:has-text('conv 1x1, 8 → 8')")
    page.go_back()
    page.wait_for_selector("#inspector", state="hidden")
    assert page.url.endswith("#graph")
    page.go_back()
    page.wait_for_selector("[data-view=overview]")
    for route, selected in (
        (shared.partition("#")[2], "conv 1x1, 8 → 8"),
        ("node=/net/layer1/norm&module=0&as=calls", "batch_norm"),
        ("node=x", "x"),
        ("scope=net/layer1", "layer1 /"),
        (f"node={quote(HOSTILE)}&as=calls", "relu"),
    ):
        other = browsers.Watched(chromium, page_file, f"#{route}")
        other.page.wait_for_selector(".selected", state="attached")
        assert selected in other.page.text_content(".selected"), route
        assert other.page.is_visible("#inspector") and not other.complaints
        other.page.close()
    for broken in ("%", "nothing", "kernels/none", "passes/999", "node=none"):
        page.goto(f"{page_file.as_uri()}?again#{broken}")
        page.wait_for_selector("body[data-ready]")


def test_search_selects_and_tells_all_about_a_node(opened: browsers.Watched) -> None:
    page = opened.page
    opened.view("graph")
    page.click("[data-value=calls]")
    page.wait_for_selector(".box.fusion-ELEMWISE")
    page.keyboard.press("/")
    page.keyboard.type("onerror")
    assert page.inner_text("#found") == "1 node"
    page.keyboard.press("Enter")
    told = page.inner_text("#inspector")
    assert "</script><img src=x" in told and "nn.relu" in told and "FuseOps" in told and "measured" in told
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert page.is_hidden("#inspector")


def test_nodes_of_a_module_made_by_hand_and_of_passes_are_explained(chromium: Any, tmp_path: pathlib.Path) -> None:
    """By the names that they get; what a pass made says which."""
    watched = browsers.Watched(chromium, by_hand().report.view(tmp_path / "page.html"))
    page = watched.page
    watched.view("graph")
    page.click("[data-value=calls]")
    page.wait_for_selector(".box.fusion-ELEMWISE")
    page.fill("#search", "dense_2")
    page.keyboard.press("Enter")
    told = page.inner_text("#inspector")
    assert "dense_2" in told and "dense_0" not in told and "AlterOpLayout" in told and "made by\nAlterOpLayout" in told
    [about] = [line for line in told.splitlines() if "an elementwise epilogue" in line]
    assert told.count(about) == 1
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert "relu_3" in page.inner_text("#inspector .origin-list")
    assert not watched.complaints
    page.close()


def test_scopes_open_and_close(opened: browsers.Watched) -> None:
    page = opened.page
    opened.view("graph")
    page.click("[data-value=scopes]")
    page.wait_for_selector(".closed.scope")
    closed = page.locator(".box").count()
    page.dblclick(".closed.scope")
    page.wait_for_selector(".cluster.scope", state="attached")
    assert page.locator(".box").count() >= closed


def test_lines_of_code_are_linked(opened: browsers.Watched) -> None:
    page = opened.page
    opened.view("kernels")
    page.wait_for_selector(".pane .line")
    assert page.locator(".pane").count() == 3
    page.click("[data-language=loops] .line.has-link >> nth=-1")
    for language in ("llvm", "asm"):
        page.wait_for_selector(f"[data-language={language}] .line.linked")
    page.click("[data-value=cuda]")
    page.wait_for_selector("[data-language=cuda] .line")
    assert page.locator(".pane").count() == 2


def test_waiting_of_threads_is_marked(chromium: Any, document: dict[str, Any], tmp_path: pathlib.Path) -> None:
    """Between two kernels, before the first, behind the last, and of a thread that has none."""
    nodes = [node for node, *_ in document["run"]["kernels"]]
    slices = [[0, nodes[0], 0.0, 4e-6], [0, nodes[1], 6e-6, 1e-5], [1, nodes[0], 1e-6, 2e-6]]
    path = tmp_path / "threads.html"
    run = {**document["run"], "slices": slices, "threads": 3, "seconds": 1e-5}
    path.write_text(page_of({**document, "run": run}), encoding="utf-8")
    watched = browsers.Watched(chromium, path)
    watched.view("threads")
    assert watched.page.locator(".slice").count() == 3
    places = "bars => bars.map(bar => [bar.y.baseVal.value, bar.width.baseVal.value])"
    found = watched.page.eval_on_selector_all(".wait", places)
    whole = max(width for _, width in found)  # ten microseconds
    lanes = sorted({y for y, _ in found})
    of_lane = [sorted(round(10 * width / whole) for at, width in found if at == y) for y in lanes]
    assert of_lane == [[2], [1, 8], [10]] and not watched.complaints
    watched.page.close()


def test_roofline_and_memory_are_drawn_and_tell_about_what_is_clicked(
    opened: browsers.Watched, document: dict[str, Any]
) -> None:
    page = opened.page
    opened.view("roofline")
    assert 1 <= page.locator("circle.point").count() <= len(document["run"]["kernels"])  # some do no arithmetic
    page.locator("circle.point").first.press("Enter")
    told = page.inner_text("#inspector")
    assert all(word in told for word in ("measured", "predicted", "floor", "bound"))
    page.keyboard.press("Escape")
    opened.view("memory")
    assert page.locator("rect.value").count() == len(document["memory"]["values"])
    page.locator("rect.value").first.click()
    assert "/net/layer1/conv" in page.inner_text("#inspector")


def test_passes_that_changed_nothing_are_folded(opened: browsers.Watched) -> None:
    opened.view("passes")
    page, seen = opened.page, "rows => rows.filter(row => row.checkVisibility()).length"
    shown = page.eval_on_selector_all("[data-pass]", seen)
    assert 0 < shown < page.locator("[data-pass]").count() and "unchanged" in page.inner_text("summary.fold >> nth=0")
    page.click("summary.fold >> nth=0")
    assert page.eval_on_selector_all("[data-pass]", seen) > shown


def test_the_keyboard_goes_everywhere(opened: browsers.Watched) -> None:
    page = opened.page
    for number, name in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        assert page.get_attribute(f"#tab-{name}", "aria-selected") == "true"
    page.keyboard.press("2")
    before = page.inner_text(".change h2")
    page.keyboard.press("j")
    assert page.inner_text(".change h2") != before
    page.keyboard.press("4")
    page.keyboard.press("j")
    assert page.get_attribute("tr[data-kernel] >> nth=1", "aria-selected") == "true"
    theme = page.get_attribute("html", "data-theme")
    page.keyboard.press("t")
    assert page.get_attribute("html", "data-theme") != theme
    page.keyboard.press("?")
    assert page.is_visible("#help") and page.is_visible("#inspector")
    page.keyboard.press("1")
    page.keyboard.press("Escape")
    assert page.is_hidden("#help") and page.is_visible("#inspector") and page.is_visible("[data-view=kernels]")


def test_500_nodes_do_not_freeze_the_page(chromium: Any, document: dict[str, Any], tmp_path: pathlib.Path) -> None:
    """The layout is found beside the page, which draws frames meanwhile; boxes are put in within a few frames."""
    large = copy.deepcopy(document)
    [main] = large["modules"][large["last"]]
    relu = next(n for n, row in enumerate(large["rows"]) if row[1] == "nn.relu")
    main["groups"] = []
    main["nodes"] = [[0, [], -1], *([relu, [max(0, n - 1 - n % 7), n], -1] for n in range(500))]
    path = tmp_path / "large.html"
    path.write_text(page_of(large), encoding="utf-8")
    watched = browsers.Watched(chromium, path)
    watched.page.evaluate(
        """() => {
          const count = () => { window.frames_seen = (window.frames_seen ?? 0) + 1; requestAnimationFrame(count); };
          requestAnimationFrame(count);
          new MutationObserver(() => { window.put_in ??= window.frames_seen; })
            .observe(document.querySelector("main"), { subtree: true, attributeFilter: ["data-drawn"] });
        }"""
    )
    watched.view("graph")
    watched.page.wait_for_selector(".canvas[data-drawn]")
    assert watched.page.locator(".box").count() >= 500
    watched.page.wait_for_function("window.frames_seen - window.put_in >= 2")
    assert not watched.complaints
    watched.page.close()


def unpacked(page: str) -> str:
    """The document of a file, without kernels' code."""
    found = re.search(r'id="data-main">([^<]*)<', page)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(two_convolutions())
    mine = "import minitvm.passes as p\n@p.function_pass(name='Looks')\ndef looks(f, m, c): return f\n"
    (tmp_path / "mine.py").write_text(mine)
    answer = CliRunner().invoke(cli, ["view", str(path), "--no-run", "--pass", str(tmp_path / "mine.py")])
    assert answer.exit_code == 0, answer.output
    page = path.with_suffix(".html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "Looks" in unpacked(page)


def test_what_cannot_be_viewed_is_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "net.onnx").touch()
    there, gone = str(tmp_path / "net.onnx"), str(tmp_path / "gone.onnx")
    for arguments, complaint in (
        (["net.mtvm"], "not the way to it"),
        ([gone, "--serve"], f"there is no file {gone}"),
        ([there, "--serve", "--watch", gone], f"there is no file {gone}"),
        ([there, "--serve", "--watch", str(tmp_path)], f"{tmp_path} is a folder, not a file"),
    ):
        found = CliRunner().invoke(cli, ["view", *arguments]).exception
        assert isinstance(found, (ConfigError, InputError)) and complaint in str(found)
