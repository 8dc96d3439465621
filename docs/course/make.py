"""Makes what the course's pages imply: their outputs and pictures, and notebooks.

    python docs/course/make.py outputs      runs each page, writes what its code prints below it, and its pictures
    python docs/course/make.py notebooks    writes notebooks/*.ipynb: the pages' text, code and outputs, and exercises
    python docs/course/make.py execute      runs all notebooks in a Jupyter kernel and compares what they print

A page is the one source.  Below a block of Python stands ``<!-- output -->`` with what it prints, or
``<!-- picture -->`` with what its last line draws; what differs from machine to machine stands below
``<!-- not run: reason -->`` or is not printed.  A notebook has a cell to begin with for each exercise (that of
``minitvm lab start``), and one that grades.
"""

from __future__ import annotations

import ast
import contextlib
import io
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from minitvm.lab.course import chapter_of, starting_code

HERE = pathlib.Path(__file__).parent
PAGES = sorted(HERE.glob("[1-8]-*.md"))
NOTEBOOKS = HERE / "notebooks"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}

_CODE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\n<!-- output -->\n```text\n(?P<output>.*?)^```\n)?"
    r"(?P<shown>\n<!-- picture -->\n!\[[^\]]*\]\((?P<picture>[^)]+)\)\n)?",
    re.MULTILINE | re.DOTALL,
)
_EXERCISES = "## Exercises\n"


class Part(NamedTuple):
    """A piece of a page: words, or code with what it prints and the file of what it draws."""

    text: str
    is_code: bool = False
    output: str = ""
    picture: str = ""


def parts(text: str) -> Iterator[Part]:
    """A page in order."""
    at = 0
    for found in _CODE.finditer(text):
        yield Part(text[at : found.start()].strip())
        yield Part(found["code"].rstrip(), True, found["output"] or "", found["picture"] or "")
        at = found.end()
    yield Part(text[at:].strip())


def with_outputs(page: pathlib.Path) -> str:
    """The page with what its code prints today; its pictures are written."""
    namespace: dict[str, object] = {"__name__": "__main__"}

    def ran(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            drawn = value_of(found["code"], str(page), namespace)
        if found["picture"]:
            (HERE / found["picture"]).write_text(drawn.svg, encoding="utf-8")
        said = printed.getvalue().rstrip()
        shown = f"\n<!-- output -->\n```text\n{said}\n```\n" if said else ""
        return f"```python\n{found['code']}```\n{shown}{found['shown'] or ''}"

    return _CODE.sub(ran, page.read_text(encoding="utf-8"))


def value_of(code: str, place: str, namespace: dict[str, object]) -> Any:
    """Runs code; the value of its last line, where that is an expression."""
    tree = ast.parse(code, place)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), place, "eval"), namespace)


# --- notebooks --------------------------------------------------------------------------------------------------------


def notebook_of(page: pathlib.Path) -> str:
    """The page as a notebook, with cells for the answers; links lead to where the page's do, chapters to notebooks."""
    import nbformat

    chapter = chapter_of(page.name[0])
    made = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for part in _with_exercises(page, chapter.name):
        if part.text:
            cell = _code_cell(part) if part.is_code else nbformat.v4.new_markdown_cell(_moved(part.text))
            cell.id = f"{page.stem}-{len(made.cells)}"
            made.cells.append(cell)
    return str(nbformat.writes(made)) + "\n"


def _code_cell(part: Part) -> Any:
    import nbformat

    cell = nbformat.v4.new_code_cell(part.text)
    if part.output:
        cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=part.output))
    if part.picture:
        svg = (HERE / part.picture).read_text(encoding="utf-8")
        cell.outputs.append(nbformat.v4.new_output("display_data", data={"image/svg+xml": svg}))
    return cell


def _with_exercises(page: pathlib.Path, chapter: str) -> Iterator[Part]:
    """The page's parts; behind the words about an exercise its cell, behind the last one's a cell that grades."""
    *before, last = parts(page.read_text(encoding="utf-8"))
    yield from before
    words, _, exercises = last.text.partition(_EXERCISES)
    yield Part(words.strip())
    told, _, sources = exercises.partition("\n## ")
    yield Part(_EXERCISES.strip())
    first, cells = starters(chapter)
    yield Part(first, True)
    for paragraph in told.strip().split("\n\n"):
        yield Part(paragraph)
        for number in re.findall(r"\*\*(\d\.\d) `", paragraph):
            yield Part(cells[number], True)
    yield Part(f'from minitvm.lab.grade import grade\n\ngrade("{chapter}", globals())', True)
    yield Part("## " + sources)


def starters(chapter: str) -> tuple[str, dict[str, str]]:
    """The imports of a chapter's starter code, and what it has for each exercise, by number."""
    text = starting_code(chapter)
    lines, tree = text.splitlines(), ast.parse(text)
    numbers = {exercise.name: exercise.number for exercise in chapter_of(chapter).exercises}
    cells: dict[str, list[str]] = {}
    first, at = "", tree.body[0].end_lineno  # the docstring is about a file
    for node in tree.body[1:]:
        if isinstance(node, ast.FunctionDef) and node.name in numbers:
            start = min(part.lineno for part in (node, *node.decorator_list)) - 1
            first, at = (first, at) if cells else ("\n".join(lines[at:start]).strip(), start)
            cells.setdefault(numbers[node.name], []).append("\n".join(lines[at : node.end_lineno]).strip())
            at = node.end_lineno
    return first, {number: "\n\n\n".join(pieces) for number, pieces in cells.items()}


def _moved(text: str) -> str:
    """Links of a page, from a folder further down; to a chapter they lead to its notebook."""
    chapters = {page.name: f"{page.stem}.ipynb" for page in PAGES}

    def led(found: re.Match[str]) -> str:
        return f"]({chapters.get(found[1], '../' + found[1])})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", led, text)


def execute(path: pathlib.Path) -> list[str]:
    """Where a notebook prints or draws something else than the page says."""
    import nbclient
    import nbformat

    made = nbformat.read(path, as_version=4)
    expected = [_shown(cell) for cell in made.cells]
    nbclient.NotebookClient(made, timeout=300, kernel_name=KERNEL["name"]).execute()
    found = [_shown(cell) for cell in made.cells]
    return [f"{path.name}: {a!r} is now {b!r}" for a, b in zip(expected, found, strict=True) if a != b]


def _shown(cell: Any) -> str:
    outputs = cell.get("outputs", ())
    printed = "".join(o["text"] for o in outputs if o.get("name") == "stdout").rstrip()
    return printed + "".join(o["data"].get("image/svg+xml", "") for o in outputs if "data" in o)


def main(what: str) -> None:
    NOTEBOOKS.mkdir(exist_ok=True)
    for page in PAGES:
        target = NOTEBOOKS / f"{page.stem}.ipynb"
        if what == "outputs":
            page.write_text(with_outputs(page), encoding="utf-8")
        elif what == "notebooks":
            target.write_text(notebook_of(page), encoding="utf-8")
        else:
            different = execute(target)
            print(f"{target.name}: {different or 'as on the page'}")


if __name__ == "__main__":
    main(sys.argv[1])
