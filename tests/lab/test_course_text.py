"""The course's text where people are: in the terminal, in a browser, in a wheel; and what its pictures show."""

from __future__ import annotations

import itertools
import pathlib
import re
import runpy
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from minitvm.cli import cli
from minitvm.errors import InputError
from minitvm.lab import diagrams
from minitvm.lab.course import TITLES, reading

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments: Any) -> str:
    found = CliRunner().invoke(cli, ["lab", "read", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


@pytest.mark.parametrize("chapter", TITLES)
def test_a_chapter_is_read_in_the_terminal(chapter: str) -> None:
    text = run(chapter)
    assert TITLES[chapter] in text.partition("\n\n")[0].replace("\n", " ") and "<!--" not in text and "```" not in text
    assert "Exercises" in text


def test_without_a_chapter_the_course_is_told() -> None:
    assert "The course" in run() and "minitvm lab grade chapter1 chapter1.py" in run()
    with pytest.raises(InputError, match="there is no chapter 'chapter9'"):
        run("chapter9")


def test_in_a_browser_all_links_and_pictures_are_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    run("5", "--browser", "-o", tmp_path)
    assert opened == [(tmp_path / "5-fusion.html").as_uri()]
    pages = sorted(tmp_path.glob("*.html"))
    assert len(pages) == 1 + len(TITLES)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r'(?:href|src)="([^"#]+)', text)
        here = [target for target in targets if "://" not in target]
        assert here and all((tmp_path / target).is_file() for target in here), page
        ours = [t.removeprefix(f"{reading.REPOSITORY}/blob/main/") for t in targets if t.startswith(reading.REPOSITORY)]
        assert all((ROOT / target).exists() for target in ours), ours
    assert "<img" in (tmp_path / "5-fusion.html").read_text(encoding="utf-8")


def test_the_repository_is_that_of_the_package() -> None:
    assert f'Repository = "{reading.REPOSITORY}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_wheel_has_the_text_and_none_of_the_solutions(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.chdir(ROOT)
    build = runpy.run_path("setup.py")["WithCourse"](setuptools.Distribution({"packages": []}))
    build.build_lib = str(tmp_path)
    build.ensure_finalized()
    build.run()
    pages = tmp_path / "minitvm" / "lab" / "course" / "pages"
    held = {path.relative_to(pages).as_posix() for path in pages.rglob("*") if path.is_file()}
    source = ROOT / "docs" / "course"
    wanted = [*source.glob("*.md"), *source.glob("pictures/*")]
    assert held == {path.relative_to(source).as_posix() for path in wanted} and len(held) > 14
    assert not list(tmp_path.rglob("solutions"))


def test_a_copy_without_text_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(reading, "_PLACES", (tmp_path,))
    with pytest.raises(InputError, match="the text of the course is not installed"):
        reading.page_of("chapter1")


# --- pictures ---------------------------------------------------------------------------------------------------------


def boxes(picture: diagrams.Picture) -> dict[str, tuple[float, float, float, float]]:
    """x, y, width and height by label; those without one left out."""
    root = ET.fromstring(picture.svg)
    parts = [part for part in root if part.tag.endswith(("rect", "text"))]
    found = {}
    for one, other in itertools.pairwise(parts):
        if one.tag.endswith("rect") and other.tag.endswith("text"):
            x, y, width, height = (float(one.get(key, "0")) for key in ("x", "y", "width", "height"))
            found[other.text or ""] = (x, y, width, height)
            assert x >= 0 and x + width <= picture.width and y >= 0 and y + height <= picture.height
    return found


def test_a_tree_has_children_below_their_parent() -> None:
    found = boxes(diagrams.tree({"a": "d", "b": "d", "c": "d", "d": "e", "e": None, "f": None}))
    assert [*sorted("abc", key=lambda n: found[n][0])] == ["a", "b", "c"]
    assert len({found[n][1] for n in "abc"}) == 1 and found["e"][1] == found["f"][1] < found["d"][1] < found["a"][1]
    assert found["d"][0] == found["e"][0] == found["b"][0] and len(set(found.values())) == 6


def test_a_graph_has_users_below_operands() -> None:
    picture = diagrams.graph({"a": ["b", "c"], "b": ["c"], "c": []})
    found = boxes(picture)
    assert found["a"][1] < found["b"][1] < found["c"][1] and picture.svg.count("<line") == 3


def test_cells_and_lives_are_where_the_numbers_say() -> None:
    found = boxes(diagrams.grids({"m": np.array([[0, 1], [-1, 2]])}))
    assert {"0", "1", "2", ""} <= found.keys() and found["2"][:2] == (found["1"][0], found[""][1])
    steps = [("a", ["x"], 8), ("b", ["a"], 4), ("c", ["b"], 8)]
    lived = boxes(diagrams.lives(steps, {"a": 0, "b": 8, "c": 0}))
    assert lived["a: 8"][2] == lived["b: 4"][2] == 2 * lived["c: 8"][2] and lived["a: 8"][1] == lived["c: 8"][1]
    assert "12 bytes in all" in diagrams.lives(steps, {"a": 0, "b": 8, "c": 0}).svg


def test_letters_are_escaped_and_a_notebook_shows_it() -> None:
    picture = diagrams.tree({"a<b": None})
    assert "a&lt;b" in picture._repr_svg_() and repr(picture).startswith("<Picture of ")
