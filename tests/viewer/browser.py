"""Chromium without a window, for pages of the viewer."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from patience import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing() -> str:
    """Why there is no browser; nothing where there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install playwright"
    return "" if chromium() else f"no browser: none of {', '.join(NAMES)} is on the path"


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def started() -> Iterator[Any]:
    """A browser; one process serves all pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"], timeout=1000 * PATIENCE)
        yield browser
        browser.close()


def opened(browser: Any, **settings: Any) -> Any:
    """A page that waits for as long as it takes."""
    page = browser.new_page(**settings)
    page.set_default_timeout(1000 * PATIENCE)
    return page


class Watched:
    """A page that is open, with what its console complained of and what it asked for."""

    def __init__(self, browser: Any, path: pathlib.Path, route: str = "", **settings: Any) -> None:
        self.page = opened(browser, viewport={"width": 1280, "height": 800}, **settings)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri() + route)
        self.page.wait_for_selector("body[data-ready]")

    def view(self, name: str) -> None:
        self.page.click(f"#tab-{name}")
        self.page.wait_for_selector(f"[data-view={name}]")

    def drawn(self, inside: str = "") -> None:
        """Waits for a graph."""
        self.page.wait_for_selector(f"{inside} .canvas .box", state="attached")
