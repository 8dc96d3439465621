"""English by rule: ``python -m tests.prose`` reads pages, docstrings and helps with codespell and proselint.

Code is taken out first; what is left is written down with its lines where they were, so that a finding names the place.
Of proselint's checks all hold but those of :data:`NO_RULE`.
"""

from __future__ import annotations

import ast
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
TOOLS = ("codespell_lib", "proselint")
WORDS = "nd,te,olt,fro,toom"
"""Names that codespell takes for mistakes: TVM's modules, LLVM's comparison, what a benchmark prints, a person."""
NOT_PROSE = ("benchmark.md", "coverage.md", "known-bugs-of-others.md")
"""Pages that quote what others say, or that commands write."""
NO_RULE = ("typography", "dates_times", "annotations", "misc.phrasal_adjectives")
"""Typography that ASCII has not, ranges of numbers, and words such as "only-read", which it takes for adverbs."""
NO_FINDING = re.compile(r"\n|'[\dx ]+' - a phrase|'in a word'")
"""A title that the first sentence repeats, a row of numbers, and words of four bytes."""
_CODE = re.compile(
    r"^( *)```.*?^\1```|^    .*?$|`[^`]*`|<!--.*?-->|\]\([^)]*\)|^\|[^|\n]*\|$", re.MULTILINE | re.DOTALL
)
_LITERAL = re.compile(r"``[^`]*``|`[^`]*`|:\w+:`[^`]*`|^ {4,}.*$|\S*[_(){}\[\]=<>%/]\S*", re.MULTILINE)


def texts() -> dict[str, str]:
    """Prose by file: pages without code, and what modules, classes, functions and attributes are said to be."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")]
    found = {page: _blank(_CODE, page.read_text(encoding="utf-8")) for page in pages if page.name not in NOT_PROSE}
    for file in [*ROOT.glob("*.py"), *ROOT.glob("minitvm/**/*.py"), *ROOT.glob("examples/*.py")]:
        found[file] = _docstrings(file.read_text(encoding="utf-8"))
    return {path.relative_to(ROOT).as_posix(): text for path, text in found.items()}


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Text without what matches; lines stay where they are."""
    return pattern.sub(lambda found: " . " + "\n" * found[0].count("\n"), text)


def _docstrings(code: str) -> str:
    lines = [""] * (code.count("\n") + 2)
    for said, line in _strings(ast.parse(code)):
        for number, text in enumerate(_blank(_LITERAL, said).split("\n"), line - 1):
            lines[number] = text
    return "\n".join(lines)


def _strings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Texts that stand alone (docstrings), and the helps of options, with their lines."""
    for node in ast.walk(tree):
        value: ast.AST | None = None
        if isinstance(node, ast.Expr) or (isinstance(node, ast.keyword) and node.arg == "help"):
            value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value, value.lineno


def findings() -> list[str]:
    """A line for each thing that is wrong: the place, and what."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for place, text in texts().items():
            (folder / place).with_suffix(".md").parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{place}.md").write_text(text, encoding="utf-8")
        return [*_misspelt(folder), *_clumsy(folder)]


def _run(folder: pathlib.Path, *command: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False
    ).stdout


def _misspelt(folder: pathlib.Path) -> list[str]:
    found = _run(folder, "codespell_lib", "--ignore-words-list", WORDS, "--quiet-level", "3", ".")
    return [line.removeprefix("./").replace(".md:", ":", 1) for line in found.splitlines()]


def _clumsy(folder: pathlib.Path) -> list[str]:
    found = json.loads(_run(folder, "proselint", "check", "--output-format", "json", "."))
    said = []
    for place, report in found["result"].items():
        name = place.rpartition(folder.name + "/")[2].removesuffix(".md")
        for one in report["diagnostics"]:
            if not one["check_path"].startswith(NO_RULE) and not NO_FINDING.search(one["message"]):
                said.append(f"{name}:{one['pos'][0]}: {one['message']}")
    return said


def main() -> int:
    found = findings()
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
