"""Makes what the course's pages imply: their outputs, and notebooks.

    python docs/course/make.py outputs      runs each page and writes what its code prints below it
    python docs/course/make.py notebooks    writes notebooks/*.ipynb: the pages' text, code and outputs
    python docs/course/make.py execute      runs all notebooks in a Jupyter kernel and compares what they print

A page is the one source.  Below a block of Python stands ``<!-- output -->`` with what it prints; what differs from
machine to machine stands below ``<!-- not run: reason -->`` or is not printed.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import sys
from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
PAGES = sorted(HERE.glob("[1-8]-*.md"))
NOTEBOOKS = HERE / "notebooks"

_CODE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n<!-- output -->\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


def parts(text: str) -> Iterator[tuple[str, str, str]]:
    """A page in order: ``("text", words, "")`` and ``("code", code, what it prints)``."""
    at = 0
    for found in _CODE.finditer(text):
        yield "text", text[at : found.start()].strip(), ""
        yield "code", found["code"], found["output"] or ""
        at = found.end()
    yield "text", text[at:].strip(), ""


def with_outputs(page: pathlib.Path) -> str:
    """The page with what its code prints today."""
    namespace: dict[str, object] = {"__name__": "__main__"}

    def ran(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(found["code"], str(page), "exec"), namespace)
        said = printed.getvalue().rstrip()
        return f"```python\n{found['code']}```\n" + (f"\n<!-- output -->\n```text\n{said}\n```\n" if said else "")

    return _CODE.sub(ran, page.read_text(encoding="utf-8"))


def notebook_of(page: pathlib.Path) -> str:
    """The page as a notebook; links lead to where the page's do."""
    import nbformat

    made = nbformat.v4.new_notebook()
    for number, (kind, text, output) in enumerate(parts(page.read_text(encoding="utf-8"))):
        if not text:
            continue
        cell = (
            nbformat.v4.new_markdown_cell(_moved(text)) if kind == "text" else nbformat.v4.new_code_cell(text.rstrip())
        )
        cell.id = f"{page.stem}-{number}"
        if output:
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
        made.cells.append(cell)
    return str(nbformat.writes(made)) + "\n"


def _moved(text: str) -> str:
    """Links of a page, from a folder further down."""
    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", r"](../\1)", text)


def execute(path: pathlib.Path) -> list[str]:
    """Where a notebook prints something else than the page says."""
    import nbclient
    import nbformat

    made = nbformat.read(path, as_version=4)
    expected = [_printed(cell) for cell in made.cells]
    nbclient.NotebookClient(made, timeout=300, kernel_name="python3").execute()
    found = [_printed(cell) for cell in made.cells]
    return [f"{path.name}: {a!r} is now {b!r}" for a, b in zip(expected, found, strict=True) if a != b]


def _printed(cell: dict[str, list[dict[str, str]]]) -> str:
    return "".join(o["text"] for o in cell.get("outputs", ()) if o.get("name") == "stdout").rstrip()


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
