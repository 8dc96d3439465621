"""Two builds side by side: what is said to have changed, in documents, pages and on the command line."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import browser as browsers
import numpy as np
import pytest
from click.testing import CliRunner, Result
from test_explains import with_branches
from test_viewer import two_convolutions

import minitvm
from minitvm import relay
from minitvm.cli import cli
from minitvm.errors import InputError
from minitvm.viewer.beside import beside
from minitvm.viewer.document import document_of
from minitvm.viewer.page import document_in, page_of


def function() -> Any:
    """A product with an epilogue, and a sum by itself."""
    x, weight = relay.var("x", shape=(4, 32)), np.random.default_rng(0).normal(size=(32, 32)).astype("float32")
    product = relay.nn.relu(relay.nn.dense(x, relay.const(weight)))
    return relay.Function([x], relay.sum(relay.nn.softmax(product), axis=1))


def document(level: int) -> dict[str, Any]:
    return document_of(minitvm.build(function(), opt_level=level, trace=True).report, f"level {level}")


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return [document(3), document(0)]


def test_a_build_beside_itself_has_changed_nothing(documents: list[dict[str, Any]]) -> None:
    found = beside(documents[0], document(3), "again")
    assert found["kernels"] == found["passes"] == [] and found["code"] == {}
    assert found["alike"][0] == len(documents[0]["kernels"]) and found["alike"][1] == found["alike"][2] > 0
    assert all(here == there for name, _, here, there in found["facts"])


def test_what_is_fused_stands_beside_its_calls(documents: list[dict[str, Any]]) -> None:
    found = beside(*documents, "-O 0")
    [product] = [row for row in found["kernels"] if "dense_0" in row["spans"]]
    assert product["spans"] == ["dense_0", "relu_1"] and [len(side) for side in product["sides"]] == [1, 2]
    assert product["seconds"][0] < product["seconds"][1] and product["bytes"][0] < product["bytes"][1]
    facts = {name: two for name, _, *two in found["facts"]}
    assert facts["launches"][0] < facts["launches"][1] == 4
    assert {symbol for row in found["kernels"] for symbol, _ in row["sides"][1]} == set(found["code"])
    fired = {row["name"]: row["done"] for row in found["passes"]}
    assert any(here and here["fired"] and not there for here, there in fired.values())


def test_kernels_of_branches_are_compared() -> None:
    this, other = (
        document_of(minitvm.compile(with_branches(), opt_level=level, trace=True).report, "") for level in (3, 1)
    )
    rows = beside(this, other, "")["kernels"]
    assert any("/then/conv" in row["spans"] for row in rows)


def test_times_are_measured_where_both_builds_were(documents: list[dict[str, Any]]) -> None:
    this, other = documents
    measured = {"seconds": 7.0, "kernels": []}
    assert not beside({**this, "run": measured}, other, "")["measured"]
    both = beside({**this, "run": measured}, {**other, "run": {**measured, "seconds": 9.0}}, "")
    assert ["a run, measured", "time", 7.0, 9.0] in both["facts"]


def test_a_page_and_a_document_are_read_back(documents: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    plain = json.loads(json.dumps(documents[0]))
    for name, text in (("page.html", page_of(documents[0])), ("page.json", json.dumps(documents[0]))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert document_in(tmp_path / name) == plain
    for name, text in (("no.html", "<p>"), ("no.json", "{"), ("list.json", "[]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match="is no page of the viewer"):
            document_in(tmp_path / name)
    (tmp_path / "later.json").write_text(json.dumps({**documents[0], "format": 99, "version": "9.0"}))
    with pytest.raises(InputError, match=r"is of minitvm 9.0, whose pages have format 99; this one's have 1"):
        document_in(tmp_path / "later.json")


# --- the command --------------------------------------------------------------------------------------------------


def view(*words: Any) -> Result:
    return CliRunner().invoke(cli, ["view", *map(str, words)])


def test_levels_orders_and_pages_of_other_times(tmp_path: pathlib.Path) -> None:
    model, old, both = (tmp_path / name for name in ("net.onnx", "old.json", "both.html"))
    model.write_bytes(two_convolutions())
    assert view(model, "--no-run", "-o", old, "--without", "AlterOpLayout").exit_code == 0
    for how, differs in (
        ("-O 0 --without=FoldConstant", True),
        ("--order FoldConstant#2,AlterOpLayout", None),
        (str(old), True),
        ("-t 0", False),
    ):
        done = view(model, "--no-run", "-o", both, "--beside", how)
        assert done.exit_code == 0, done.output
        found = document_in(both)["beside"]
        assert found["names"] == ["net", how]
        if differs is not None:
            assert bool(found["kernels"]) is differs, how
    pages = view(both, "--beside", old)
    assert pages.exit_code == 0 and document_in(tmp_path / "both-beside.html")["beside"]["names"][1] == str(old)


def test_what_does_not_say_how_to_build_is_refused(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(two_convolutions())
    page = tmp_path / "page.html"
    assert view(model, "--no-run", "-o", page).exit_code == 0
    for words, complaint in (
        ((model, "--no-run", "--beside", "--serve"), "--serve does not say how to build"),
        ((model, "--no-run", "--beside", "-O 7"), "7 is not in the range"),
        ((page, "--beside", "-O 1", "-o", tmp_path / "x.html"), "a page is beside another one, not beside a build"),
        ((model, "--beside", "gone.html"), "there is no file gone.html"),
        ((model, "--no-run", "--order", "FoldConstant"), "an order is of two or more different passes"),
    ):
        done = view(*words)
        assert done.exit_code != 0 and complaint in done.output + str(done.exception), words


@pytest.mark.skipif(bool(browsers.missing()), reason=browsers.missing() or "a browser")
def test_the_page_shows_both(documents: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "both.html"
    path.write_text(page_of({**documents[0], "beside": beside(*documents, "-O 0 </script>")}), encoding="utf-8")
    with browsers.started() as chromium:
        watched = browsers.Watched(chromium, path)
        page = watched.page
        page.keyboard.press("8")
        page.wait_for_selector(".beside .pair .gone")
        told = page.inner_text(".beside")
        assert "a run, predicted" in told and "-O 0 </script>" in told and "FuseOps" in told
        page.click("tr[data-kernel]:has-text('dense_0')")
        page.wait_for_selector(".under h2:has-text('dense_0, relu_1')")
        here, there = (page.inner_text(f".hunk .{side} >> nth=0") for side in ("come", "gone"))
        assert "dense_pack" in here and "dense_pack" not in there and page.url.endswith("#beside")
        page.click(".under [role=radio]:has-text('llvm')")
        page.wait_for_selector(".under code:has-text('define')")
        page.click("th .link >> nth=0")
        page.wait_for_selector("[data-view=passes]")
        page.go_back()
        page.wait_for_selector("[data-view=beside]")
        page.keyboard.press("k")
        assert not watched.complaints
