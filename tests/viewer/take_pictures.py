"""Takes the pictures of docs/viewer.md: ``python tests/viewer/take_pictures.py MODEL.html [VIEW ...]``."""

from __future__ import annotations

import io
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import browser as browsers

PICTURES = pathlib.Path(__file__).parents[2] / "docs" / "pictures"
MOST_BYTES = 150_000
PATIENCE = 30_000
"""Milliseconds until what a model does not have is missed."""


def passes(page: Any) -> None:
    page.click("[data-pass] >> text=SimplifyInference")


def layout(page: Any) -> None:
    page.click("[data-pass] >> text=AlterOpLayout")


def fusion(page: Any) -> None:
    page.click("[data-pass] >> text=FuseOps")


def closer(page: Any) -> None:
    for _ in range(4):
        page.keyboard.press("w")


def drawing(page: Any) -> None:
    passes(page)
    page.click("[data-value=drawing]")
    page.wait_for_selector(".box.come")


def graph(page: Any) -> None:
    page.wait_for_selector(".canvas[data-drawn]")
    page.click(".box.closed.group >> nth=3")


def scopes(page: Any) -> None:
    page.wait_for_selector(".canvas[data-drawn]")
    if not page.locator("[data-value=scopes]").count():
        raise SystemExit("the names of the model's nodes have no scopes: take a model as PyTorch writes it")
    page.click("[data-value=scopes]")
    page.dblclick(".box.scope >> nth=3")
    page.keyboard.press("Escape")


def calls(page: Any) -> None:
    page.wait_for_selector(".canvas[data-drawn]")
    page.click("[data-value=calls]")
    page.wait_for_selector(".cluster.group", state="attached")


def code(page: Any) -> None:
    page.wait_for_selector(".pane .line")
    page.click("[data-language=loops] .line:has-text('fma') >> nth=0")


def cuda(page: Any) -> None:
    page.wait_for_selector(".pane .line")
    page.click("[data-value=cuda]")
    page.click("[data-language=loops] .line.has-link >> nth=-2")


def nothing(page: Any) -> None: ...


VIEWS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "overview": ("overview", nothing),
    "passes": ("passes", passes),
    "layout": ("passes", layout),
    "fusion": ("passes", fusion),
    "drawing": ("passes", drawing),
    "graph": ("graph", graph),
    "calls": ("graph", calls),
    "scopes": ("graph", scopes),
    "kernels": ("kernels", code),
    "cuda": ("kernels", cuda),
    "roofline": ("roofline", nothing),
    "memory": ("memory", nothing),
    "threads": ("threads", closer),
    "beside": ("beside", nothing),
}
"""By name of the picture: the view, and what is done in it."""


def take(browser: Any, path: pathlib.Path, name: str, theme: str) -> pathlib.Path:
    """One picture, of fewer colours where it would be large."""
    view, act = VIEWS[name]
    watched = browsers.Watched(browser, path, color_scheme=theme)
    watched.page.set_default_timeout(PATIENCE)
    watched.view(view)
    act(watched.page)
    watched.page.mouse.move(2, 2)
    watched.page.evaluate("for (const one of document.querySelectorAll('.scroller')) one.scrollLeft = 0")
    watched.page.wait_for_timeout(1500)
    picture = Image.open(io.BytesIO(watched.page.screenshot()))
    watched.page.close()
    target = PICTURES / f"view-{name}{'-dark' if theme == 'dark' else ''}.png"
    picture.convert("RGB").save(target, optimize=True)
    if target.stat().st_size > MOST_BYTES:
        picture.convert("RGB").quantize(256, kmeans=2).save(target, optimize=True)
    return target


def main(path: str, *names: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    with browsers.started() as browser:
        for name in names or VIEWS:
            for theme in ("light", "dark"):
                taken = take(browser, pathlib.Path(path).resolve(), name, theme)
                print(f"{taken.name}: {taken.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(*sys.argv[1:])
