"""docs/glossary.md: files and names that it gives are there, and whoever searches a file for a term finds it."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

import minitvm

ROOT = pathlib.Path(minitvm.__file__).parent
PAGE = ROOT.parent / "docs" / "glossary.md"
ROWS = re.findall(
    r"^\| (?!term|---)([^|]+) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)


def squeezed(text: str) -> str:
    """Letters and digits alone: ``FoldConstant``, ``fold_constant`` and "fold constant" are one."""
    return re.sub(r"[\W_]+", "", text).lower()


def names_and_docstrings(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """What a file defines, with the docstrings; of other files the comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from (("", line.partition(";")[2]) for line in text.splitlines())
        return
    tree = ast.parse(text)
    yield "", ast.get_docstring(tree) or ""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield "", node.value.value  # behind an attribute
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, "") for alias in node.names)


def test_the_glossary_has_rows() -> None:
    assert len(ROWS) > 60
    terms = [term for term, _ in ROWS]
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize(("term", "where"), ROWS, ids=[term for term, _ in ROWS])
def test_a_term_is_found_where_the_glossary_says(term: str, where: str) -> None:
    for place, entry in enumerate(where.split(", ")):
        file, *names = re.findall(r"`([^`]+)`", entry)
        known = list(names_and_docstrings(ROOT / file))
        assert {*names} <= {name for name, _ in known}, file
        if place == 0:
            text = squeezed(" ".join(f"{name} {docstring}" for name, docstring in known))
            assert [word for word in term.split(", ") if squeezed(word) not in text] == [], file
