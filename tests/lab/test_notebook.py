"""What notebooks show: HTML that is whole and escaped, and one line of ``repr``, of every object that a user holds."""

from __future__ import annotations

import html.parser
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.driver import BuildReport
from minitvm.lab import notebook, progress

EVIL = '<img src=x onerror="alert(1)">&'


@pytest.fixture(scope="module")
def library() -> minitvm.Library:
    x = relay.var(EVIL, shape=(4, 8))
    body = relay.nn.relu(relay.nn.dense(x, relay.const(np.ones((3, 8), "float32"))))
    return minitvm.build(relay.Module(relay.Function([x], body)), num_threads=1, trace=True)


def shown(library: minitvm.Library) -> dict[str, Any]:
    report = library.report
    assert isinstance(report, BuildReport) and report.module is not None
    [kernel, *_] = map(report.kernel, report.groups)
    return {
        "module": report.module,
        "function": report.module.main,
        "call": report.module.main.body,
        "kernel": kernel,
        "loops": kernel.loops,
        "report": report,
        "step": report.steps[0],
        "library": library,
        "decisions": report.decisions,
        "decision": report.decisions[0],
        "explanation": report.explain(kernel="*"),
    }


class Balanced(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_everything_has_whole_html_with_its_names_escaped(library: minitvm.Library) -> None:
    for name, one in shown(library).items():
        page = Balanced()
        page.feed(one._repr_html_())
        assert not page.open and "img" not in page.tags, name
    assert "&lt;img" in shown(library)["module"]._repr_html_() and "&lt;img" in library._repr_html_()


def test_repr_is_one_short_line(library: minitvm.Library) -> None:
    for name, one in shown(library).items():
        assert len(repr(one)) < 240 and "\n" not in repr(one), name
    report = library.report
    assert repr(report.module) == "<Module of @main: 3 calls>" or repr(report.module).startswith("<Module of @main")
    many = relay.Function([relay.var(f"x{i}", shape=(2,)) for i in range(50)], relay.const(1.0))
    assert repr(many) == "<Function of %x0, %x1, %x2, %x3, ... (50 in all): Tensor[(), float32]>"
    module = minitvm.GraphModule(library["default"](minitvm.cpu()))
    assert repr(module).startswith("<GraphModule of <Graph of ") and repr(module).endswith(" on cpu(0)>")
    assert repr(report.kernel(next(iter(report.groups))).listings()[0]).endswith(" lines of loops>")
    assert repr(library.plan).startswith("<memory planned ") and repr(report.module.main.params[0]).startswith("<Var %")
    assert len(repr(library.artifact)) < 240 and len(repr(library.graph)) < 240


def test_long_texts_and_tables_are_cut_and_say_so() -> None:
    assert "... and 5 more lines" in notebook._pre("\n".join("x" for _ in range(notebook.MOST_LINES + 5)))
    rows = [("a",)] * (notebook.MOST_ROWS + 4)
    assert "... and 3 more rows" in notebook._table(rows)
    assert notebook.html_of(3).count("<b>3</b>") == 1


def test_colours_are_the_notebooks_own() -> None:
    assert "color: inherit" in notebook._STYLE and "#" not in notebook._STYLE


def test_progress_in_a_cell_is_one_line_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []

    class Handle:
        def update(self, page: str) -> None:
            pages.append(page)

    def display(page: str, display_id: bool) -> Handle:
        pages.append(page)
        return Handle()

    cells = SimpleNamespace(HTML=str, display=display)
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", cells)
    with progress("compiling <b>") as on_progress:
        on_progress(1, 3, "fused<i>")
    assert pages[0] == "compiling &lt;b&gt;" and 'value="1"' in pages[1] and "fused&lt;i&gt;" in pages[1]
    assert pages[-1] == ""


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("compiling") as on_progress:
        on_progress(1, 3, "fused")
    assert capsys.readouterr() == ("", "")
