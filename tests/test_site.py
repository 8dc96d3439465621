"""The site: built without a warning, every link leads somewhere, the reference has what is offered."""

from __future__ import annotations

import html
import os
import pathlib
import re
import subprocess
import sys
from urllib.parse import unquote

import pytest

import minitvm

ROOT = pathlib.Path(minitvm.__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site is not built: pip install '.[site]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    how = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=how, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def words(page: pathlib.Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8").partition("<article")[2]))


def test_every_page_of_docs_is_on_it_and_in_its_search(site: pathlib.Path) -> None:
    pages = [p.relative_to(ROOT / "docs").with_suffix("") for p in ROOT.glob("docs/**/*.md")]
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    for page in pages:
        place = page.parent if page.name == "README" else page
        assert (site / place / "index.html").is_file() and f'"location":"{place.as_posix()}/' in index, page


def test_links_inside_lead_somewhere(site: pathlib.Path) -> None:
    lost = []
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', text) if page.name != "404.html" else ():
            there = page.parent / unquote(html.unescape(target)).partition("?")[0]
            if not (there.is_file() or (there / "index.html").is_file()):
                lost.append(f"{page.relative_to(site)}: {target}")
    assert not lost


def test_no_fence_is_broken(site: pathlib.Path) -> None:
    """A block of code that is none shows its backquotes."""
    assert [page for page in site.rglob("index.html") if "```" in words(page)] == []


def test_the_reference_has_what_is_offered(site: pathlib.Path) -> None:
    text = (site / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("models.compile", "driver.compile.build", "ort.session.InferenceSession", "ir.expr.Module"):
        assert f'id="minitvm.{name}"' in text
    assert text.count('class="doc doc-object') > 150
