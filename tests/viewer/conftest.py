"""A browser, and a page of the document that a file's ``document`` makes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import browser as browsers
import pytest

from minitvm.viewer.page import page_of


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if browsers.missing():
        pytest.skip(browsers.missing())
    with browsers.started() as found:
        yield found


@pytest.fixture(scope="module")
def page_file(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("viewer") / "page.html"
    path.write_text(page_of(document), encoding="utf-8")
    return path


@pytest.fixture
def opened(chromium: Any, page_file: pathlib.Path) -> Iterator[browsers.Watched]:
    """The page, which complains of nothing, asks for nothing, and does nothing that its names say."""
    watched = browsers.Watched(chromium, page_file)
    yield watched
    assert not watched.complaints
    assert [url for url in watched.requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert watched.page.evaluate("window.hacked") is None
    watched.page.close()
