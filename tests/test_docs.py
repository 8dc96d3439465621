"""The README and the pages of ``docs`` are right: their code runs, their links resolve, their tables are the code's."""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import os
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from minitvm import config, errors
from minitvm.cli import COMMANDS, imported
from minitvm.codegen.backend import BACKENDS, stages
from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.codegen.problem import TEMPLATES
from minitvm.frontend.onnx.registry import BUILDERS
from minitvm.ir.decision import Exactness
from minitvm.ir.op import OPS
from minitvm.lab.rule_check import known_rules
from minitvm.passes import default_pipeline
from minitvm.passes.manager import CONFIG_KEYS, KNOWN_PASSES, PASSES
from minitvm.passes.places import PLACED
from minitvm.runtime.code import CODES
from minitvm.target import OPTIONS

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]*) -->\n|<!-- needs: (?P<needs>[^>]*) -->\n)?```python\n(?P<code>.*?)^```$"
    r"(?:\n\n^<!-- output -->\n```text\n(?P<output>.*?)^```$)?"
    r"(?:\n\n^<!-- picture -->\n!\[[^\]]*\]\((?P<picture>[^)]+)\)$)?",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|mnt|opt|Users)/[\w.]")


@dataclass(frozen=True)
class Block:
    """One piece of Python on a page; ``line`` is where its code starts."""

    code: str
    line: int
    reason: str | None = None
    """Why it is not run."""
    needs: str | None = None
    """A module without which it is not run."""
    output: str | None = None
    """What it prints, where the page shows it below ``<!-- output -->``."""
    picture: str | None = None
    """The file of what its last line draws, where the page shows it below ``<!-- picture -->``."""


def blocks(text: str) -> Iterator[Block]:
    """The Python blocks of a page, in order."""
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        yield Block(found["code"], line, found["reason"], found["needs"], found["output"], found["picture"])


def name_of(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_page(page: pathlib.Path, times: int = 1) -> list[str]:
    """Run a page's blocks in one namespace, each so many times; the reasons why some were left out."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    left_out: list[str] = []
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason is not None:
            left_out.append(block.reason)
        elif block.needs is not None and not _installed(block.needs):
            left_out.append(f"{block.needs} is not installed")
        else:
            for _ in range(times):
                run_block(block, page, namespace)
    return left_out


def run_block(block: Block, page: pathlib.Path, namespace: dict[str, object]) -> None:
    """Line numbers in a traceback are the page's."""
    printed = io.StringIO()
    tree = ast.parse("\n" * (block.line - 1) + block.code, str(page))
    last = tree.body.pop() if block.picture is not None else None
    with contextlib.nullcontext() if block.output is None else contextlib.redirect_stdout(printed):
        exec(compile(tree, str(page), "exec"), namespace)
    if block.output is not None:
        assert printed.getvalue().rstrip() == block.output.rstrip(), f"{name_of(page)}, line {block.line}"
    if isinstance(last, ast.Expr):
        drawn: Any = eval(compile(ast.Expression(last.value), str(page), "eval"), namespace)
        assert drawn.svg == (page.parent / str(block.picture)).read_text(encoding="utf-8"), block.picture


def _installed(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def with_code(pages: list[pathlib.Path]) -> list[pathlib.Path]:
    return [page for page in pages if any(blocks(page.read_text(encoding="utf-8")))]


@pytest.fixture
def registries() -> Iterator[None]:
    """What a page registers (operators, passes, back ends) is gone after it."""
    stages()  # back ends that ship are there before and after, whichever page asks for one first
    tables: list[Any] = [OPS, BUILDERS, KNOWN_PASSES, PASSES, BACKENDS, CODES, OPTIONS, TEMPLATES.table]
    before = [copy.deepcopy(table) if table is BUILDERS else copy.copy(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("error::minitvm.HostCallWarning")
@pytest.mark.parametrize("page", with_code(PAGES), ids=name_of)
def test_the_code_of_a_page_runs(page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    left_out = run_page(page, times=2 if page.stem.startswith(("write-", "add-")) else 1)  # as cells that are run again
    if left_out:
        print(f"{name_of(page)}: not run: {'; '.join(left_out)}")
        everything = len(left_out) == len(list(blocks(page.read_text(encoding="utf-8"))))
        if everything:
            pytest.skip("; ".join(left_out))


def test_blocks_are_found_with_their_lines_and_marks() -> None:
    text = (
        "a\n```python\nx = 1\n```\n"
        "<!-- not run: slow -->\n```python\ny\n```\n"
        "<!-- needs: nothing -->\n```python\nz\n```\n\n<!-- output -->\n```text\n3\n```\n"
    )
    assert list(blocks(text)) == [
        Block("x = 1\n", 3),
        Block("y\n", 7, reason="slow"),
        Block("z\n", 11, needs="nothing", output="3\n"),
    ]


def test_an_error_on_a_page_names_the_page_and_the_line(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\nx.missing\n```\n")
    with pytest.raises(AttributeError) as caught:
        run_page(page)
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno) == (page, 4)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_resolve(page: pathlib.Path) -> None:
    targets = [m["target"] for m in _LINK.finditer(_CODE.sub("", page.read_text(encoding="utf-8")))]
    local = [t.partition("#")[0] for t in targets if not t.startswith(("http://", "https://", "#"))]
    assert [t for t in local if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_path_of_one_machine_is_named(page: pathlib.Path) -> None:
    assert _MACHINE_PATH.findall(page.read_text(encoding="utf-8")) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop().resolve()
        if page in reached:
            continue
        reached.add(page)
        links = (m["target"].partition("#")[0] for m in _LINK.finditer(page.read_text(encoding="utf-8")))
        queue += [page.parent / link for link in links if link.endswith(".md") and (page.parent / link).exists()]
    assert [name_of(page) for page in PAGES if page.resolve() not in reached] == []


def test_the_environment_page_lists_the_variables_with_their_defaults_and_meanings() -> None:
    text = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(MINITVM_\w+)` \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    known = [(v.name, f"`{v.default}`" if v.default else "(empty)", v.meaning) for v in config.VARIABLES.values()]
    assert rows == known


def test_the_page_of_passes_lists_the_pipeline_with_its_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    for made in [name for name in PLACED if name.startswith("minitvm.tvm.")]:  # what scripts have registered
        monkeypatch.delitem(PLACED, made)
    text = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")
    rows = [(name, int(level)) for name, level in re.findall(r"^\| (\w+) \| (\d) \|", text, re.MULTILINE)]
    steps = default_pipeline(machine_model(host(), 1)).passes
    assert rows == list(dict.fromkeys((step.info.name, step.info.opt_level) for step in steps))


def test_the_page_of_passes_lists_what_rounds_otherwise() -> None:
    text = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8").replace("\\|", "¦")
    rows = re.findall(r"^\| `(\w+)` \| (reassociating|unbounded) \| (.*?) ?\| (.*?) \|$", text, re.MULTILINE)
    rules = [(r.name, r.exactness.value, r.bound) for r in known_rules().values() if r.exactness is not Exactness.EXACT]
    moved = [(name, "reassociating", kind.info.bound) for name, kind in PASSES.items() if kind.info.bound]
    assert sorted(rows) == sorted(
        (n, e, str(b or ""), b.where.replace("|", "¦") if b else "fast math is allowed") for n, e, b in [*rules, *moved]
    )


def test_the_page_of_errors_lists_every_class() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    known = [name for name, thing in vars(errors).items() if isinstance(thing, type) and name.endswith("Error")]
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [name for name in known if name != "MiniTVMError"]


def test_the_page_of_passes_lists_the_options() -> None:
    text = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:minitvm|cuda)\.\w+(?:\.\w+)?)` \| `(.*?)` \| (.*?) \|$", text, re.MULTILINE)
    assert sorted(rows) == sorted((key.name, str(key.default), key.meaning) for key in CONFIG_KEYS.values())


def test_the_page_of_the_command_line_names_every_command_and_option() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert re.findall(r"^## minitvm (\w+)$", text, re.MULTILINE) == list(COMMANDS)
    parameters = [p for place, _ in COMMANDS.values() for p in imported(place).params]
    options = {name for p in parameters for name in p.opts if name.startswith("--")}
    assert {name for name in options if f"`{name}" not in text} == set()


def test_no_other_variable_is_named_anywhere() -> None:
    sources = [*PAGES, *ROOT.glob("minitvm/**/*.py")]
    named = {name for p in sources for name in re.findall(r"\bMINITVM_[A-Z_]+\b", p.read_text(encoding="utf-8"))}
    assert named - set(config.VARIABLES) == {"MINITVM_SHARED"}  # the tests' own


def test_the_readme_has_one_test_command_that_ci_finds() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^<!-- test command -->\n```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    assert "pytest" in found[0] and "pip install" in found[0]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
