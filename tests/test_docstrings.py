"""Docstrings of public things are sentences: none begins with what only continues one, and each ends."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

import minitvm

ROOT = pathlib.Path(minitvm.__file__).parent
CONTINUE = re.compile(
    r"(Of|By|From|For|In|On|With|Without|As|To|At|Where|That|Those|These|Else|Behind|Before|After|Beside|Between|Into|Per"
    r"|Than|Less|Under|Whether|How|Why|Which|When|Whose|Who|Likewise)[\s,:;]"
)
"""What a fragment begins with: "Of a thread, as predicted", "Whether it holds"."""
FEWEST_WORDS = 3


def docstrings(body: list[ast.stmt], above: str = "") -> Iterator[tuple[str, str]]:
    """Those of classes and functions that no underscore hides, with their names."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            name = f"{above}{node.name}"
            yield from ((name, found) for found in [ast.get_docstring(node)] if found)
            if isinstance(node, ast.ClassDef):
                yield from docstrings(node.body, f"{name}.")


def is_sentence(docstring: str) -> bool:
    """By its first paragraph, of which a list of lines may follow (``...:``)."""
    words = docstring.partition("\n\n")[0].split()
    return len(words) >= FEWEST_WORDS and not CONTINUE.match(docstring) and words[-1].endswith((".", ":", "?"))


@pytest.mark.parametrize("room", sorted({p.relative_to(ROOT).parts[0] for p in ROOT.rglob("*.py")}))
def test_docstrings_of_public_things_are_sentences(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py")) if (ROOT / room).is_dir() else [ROOT / room]
    wrong = [
        f"{file.relative_to(ROOT)}: {name}: {found.splitlines()[0]}"
        for file in files
        for name, found in docstrings(ast.parse(file.read_text(encoding="utf-8")).body)
        if not is_sentence(found)
    ]
    assert not wrong


@pytest.mark.parametrize(
    "fragment", ["Of a thread, as predicted.", "Whether it holds.", "No gates.", "An index and a value"]
)
def test_fragments_are_seen(fragment: str) -> None:
    assert not is_sentence(fragment)
