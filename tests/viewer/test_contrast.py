"""Everybody can read the page: axe-core finds nothing, and every text has contrast (WCAG 2.2, AA), on a projector's
1024 pixels too, light and dark."""

from __future__ import annotations

import importlib.resources
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Any

import browser as browsers
import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.lab import profile
from minitvm.viewer import write_document
from minitvm.viewer.beside import beside
from minitvm.viewer.document import document_of
from minitvm.viewer.weights import facts_of

VIEWS = ("overview", "passes", "graph", "kernels", "roofline", "memory", "threads", "beside")
HAS_AXE = importlib.util.find_spec("axe_playwright_python") is not None
VIOLATIONS = """async () => (await axe.run()).violations
  .flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => [id, html.slice(0, 200), failureSummary]))"""

# axe-core leaves texts open that lie over others, as lines of code do
# relative luminance and contrast: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
FAINT = """() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parsed = (text) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = text;
    paint.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((part, i) => a * part + (1 - a) * under[i]);
  const chain = (node) => (node ? [...chain(node.parentElement), node] : []);
  const ground = (node) => chain(node).reduce((under, one) => over(parsed(getComputedStyle(one).backgroundColor), under), [255, 255, 255]);
  const light = (rgb) => rgb.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, i) => sum + [0.2126, 0.7152, 0.0722][i] * part, 0);
  const found = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest("script, style, svg, option")) continue;
    const under = ground(node);
    const [one, other] = [light(over(parsed(getComputedStyle(node).color), under)), light(under)];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.add(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
  }
  return [...found];
}"""  # noqa: E501
SPILLED = """() => [document.documentElement, ...document.querySelectorAll("#top > *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5 || one === document.documentElement && one.scrollWidth > innerWidth)
  .map((one) => one.id || one.className || one.tagName)"""  # noqa: E501


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    x, weight = relay.var("x", shape=(4, 8)), np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
    body = relay.nn.softmax(relay.nn.dense(relay.nn.relu(relay.nn.dense(x, relay.const(weight))), relay.const(weight)))
    library, other = (minitvm.build(relay.Function([x], body), opt_level=level, trace=True) for level in (3, 1))
    document = document_of(library.report, "a title", profile(library, repeats=2))
    document["beside"] = beside(document, document_of(other.report, "other"), "-O 1")
    return write_document(document, tmp_path_factory.mktemp("page") / "page.html")


def shown(watched: browsers.Watched, view: str) -> Iterator[str]:
    """A view, and what is opened in it."""
    watched.view(view)
    if view == "graph":
        watched.page.click(".box.closed.group >> nth=0")
    if view == "kernels":
        watched.page.wait_for_selector(".pane .line")
    if view == "beside":
        watched.page.wait_for_selector(".pair .gone")
    yield view
    if view == "passes":
        for way in ("drawing", "decisions"):
            watched.page.click(f"[data-value={way}]")
            yield f"{view}: {way}"
    watched.page.keyboard.press("Escape")


@pytest.mark.skipif(not HAS_AXE, reason="axe-core is not installed: pip install axe-playwright-python")
@pytest.mark.parametrize("width", [1024, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_core_finds_nothing(chromium: Any, page_file: pathlib.Path, theme: str, width: int) -> None:
    watched = browsers.Watched(chromium, page_file, color_scheme=theme)
    watched.page.set_viewport_size({"width": width, "height": 800})
    watched.page.evaluate((importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
    for view in VIEWS:
        for place in shown(watched, view):
            assert watched.page.evaluate(VIOLATIONS) == [], place
    watched.page.keyboard.press("?")
    assert watched.page.evaluate(VIOLATIONS) == [] == watched.complaints
    watched.page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(chromium: Any, page_file: pathlib.Path, theme: str) -> None:
    watched = browsers.Watched(chromium, page_file, color_scheme=theme)
    watched.page.set_viewport_size({"width": 1024, "height": 768})
    for view in VIEWS:
        for place in shown(watched, view):
            assert watched.page.evaluate(FAINT) == [], place
            assert watched.page.evaluate(SPILLED) == [], place
    assert not watched.complaints
    watched.page.close()


def test_a_drawing_is_saved_with_its_looks(chromium: Any, page_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """As a picture by itself: no element needs the page's style."""
    watched = browsers.Watched(chromium, page_file, "#graph")
    watched.drawn()
    files = {}
    for kind in ("SVG", "PNG"):
        with watched.page.expect_download() as coming:
            watched.page.click(f".zooms >> text={kind}")
        files[kind] = tmp_path / coming.value.suggested_filename
        coming.value.save_as(files[kind])
    text = files["SVG"].read_text(encoding="utf-8")
    assert files["SVG"].name == "a_title.svg" and "dense 8 → 8 + relu" in text and "class=" not in text
    assert files["PNG"].read_bytes().startswith(b"\x89PNG")
    watched.page.goto(files["SVG"].as_uri())
    colours = "all => [...new Set(all.map(one => getComputedStyle(one).fill))]"
    assert len(watched.page.eval_on_selector_all("rect", colours)) > 1
    assert not watched.complaints
    watched.page.close()


def test_a_weight_is_shown(chromium: Any, page_file: pathlib.Path) -> None:
    watched = browsers.Watched(chromium, page_file, "#graph")
    watched.page.click(".box.closed.group:has-text('dense') >> nth=0")
    told = watched.page.inner_text("#inspector .weight")
    assert " to " in told and "mean" in told and watched.page.locator(".histogram rect").count() == 32
    watched.page.close()


@pytest.mark.parametrize(
    "numbers", [[1.0, 2.0], [np.nan, np.inf], [3e38, -3e38], [0.0], [7.0, 7.0], [np.inf, 1.0, 0.0]]
)
def test_facts_of_weights_are_finite(numbers: list[float]) -> None:
    found = facts_of(np.asarray(numbers, "float32"))
    kept = [n for n in numbers if np.isfinite(n)]
    assert sum(found["counts"]) == len(kept) and found["odd"] == pytest.approx(1 - len(kept) / len(numbers))
    assert all(np.isfinite(found[name]) for name in ("low", "high", "mean"))
    if kept:
        assert (found["low"], found["high"]) == pytest.approx((min(kept), max(kept)))


def test_large_weights_are_sampled_and_texts_are_not_looked_at() -> None:
    found = facts_of(np.arange(200_000, dtype="int64"))
    assert found["size"] == 200_000 and found["looked_at"] == 50_000 == sum(found["counts"])
    assert facts_of(np.asarray(["a"])) == {} == facts_of(np.zeros((0, 3)))
