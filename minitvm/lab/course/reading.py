"""The chapters' text: beside the graders in an installation, where ``setup.py`` puts it; ``docs/course`` in a clone."""

from __future__ import annotations

import posixpath
import re
import shutil
from html import escape
from pathlib import Path

import minitvm
from minitvm.errors import InputError
from minitvm.lab.course import TITLES, chapter_of

REPOSITORY = "https://github.com/minitvm/minitvm"
CONTENTS = "README.md"
_PLACES = (Path(__file__).parent / "pages", Path(minitvm.__file__).parents[1] / "docs" / "course")
_LINK = re.compile(r'(?P<what>href|src)="(?P<target>[^":#]+)(?P<after>#[^"]*)?"')
_STYLE = """:root { color-scheme: light dark; }
body { max-width: 50em; margin: 2em auto; padding: 0 1em; font: 16px/1.5 sans-serif; }
pre { overflow: auto; padding: 0.7em; border: 1px solid #8886; } img { max-width: 100%; }
table { border-collapse: collapse; } td, th { border: 1px solid #8886; padding: 0.2em 0.6em; text-align: left; }"""


def folder() -> Path:
    """The folder with the pages; :class:`InputError` for a copy of the package without them."""
    found = next((place for place in _PLACES if (place / CONTENTS).is_file()), None)
    if found is None:
        raise InputError("the text of the course is not installed", hint="install minitvm from a wheel or a clone")
    return found


def page_of(name: str) -> Path:
    """A chapter's page; that of the course as a whole for an empty name."""
    if not name:
        return folder() / CONTENTS
    number = chapter_of(name).name.removeprefix("chapter")
    return next(folder().glob(f"{number}-*.md"))


def write_html(place: Path) -> None:
    """Writes the course into a folder: ``index.html``, a page for each chapter, and their pictures."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark").enable("table")
    (place / "pictures").mkdir(parents=True, exist_ok=True)
    for picture in (folder() / "pictures").iterdir():
        shutil.copyfile(picture, place / "pictures" / picture.name)
    pages = {page.name: html_name(page) for page in map(page_of, ("", *TITLES))}
    for source, target in pages.items():
        text = (folder() / source).read_text(encoding="utf-8")
        title = escape(text.partition("\n")[0].removeprefix("# "))
        body = _LINK.sub(lambda found: _led(found, pages), reader.render(text))
        head = f'<!doctype html>\n<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        (place / target).write_text(f"{head}\n{body}", encoding="utf-8")


def html_name(page: Path) -> str:
    return "index.html" if page.name == CONTENTS else f"{page.stem}.html"


def _led(found: re.Match[str], pages: dict[str, str]) -> str:
    """A link to what is written beside the page, or to the repository."""
    target, after = found["target"], found["after"] or ""
    if target.startswith("pictures/"):
        return found[0]
    there = pages.get(target)
    if there is None:
        there = f"{REPOSITORY}/blob/main/{posixpath.normpath(f'docs/course/{target}')}"
    return f'{found["what"]}="{there}{after}"'
