"""``minitvm view --serve``: pages again after changes, complaints in the page."""

from __future__ import annotations

import pathlib
import sys
import threading
import urllib.error
import urllib.request

import browser as browsers
import pytest
from patience import PATIENCE

from minitvm.errors import ConfigError, InputError
from minitvm.lab.user_files import passes_of
from minitvm.viewer.serve import Builder, Server


def fetched(address: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def test_a_changed_file_makes_a_new_page_and_browsers_hear_of_it(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "pass.py"
    source.write_text("first")
    with Server(lambda: (f"<p>{source.read_text()}", ""), [source], 0) as server:
        watcher = threading.Thread(target=server.run)
        watcher.start()
        version, event = server.news(0)
        while "event: page" not in event:
            version, event = server.news(version)
        assert "<p>first" in fetched(server.address) and "EventSource" in fetched(server.address)
        source.write_text("second, longer")
        event = ""
        while "event: page" not in event:
            version, event = server.news(version)
        assert "<p>second, longer" in fetched(server.address)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            fetched(server.address, Host="elsewhere.example")
        server.ended.set()
        watcher.join()


def test_what_goes_wrong_stands_beside_the_last_page() -> None:
    answers = iter([("<p>good", ""), ("", "error: pass Mine raised")])
    with Server(lambda: next(answers), [], 0) as server:
        server.rebuild()
        server.rebuild()
        assert "<p>good" in fetched(server.address)
        assert server.news(0)[1] == 'event: failed\ndata: "error: pass Mine raised"\n\n'


@pytest.mark.skipif(bool(browsers.missing()), reason=browsers.missing() or "a browser")
def test_the_browser_loads_a_new_page_and_shows_what_went_wrong() -> None:
    pages = {"first": "", "": "error: pass Mine raised", "second": ""}
    answers = ((page and f"<!doctype html><body><p>{page}", complaint) for page, complaint in pages.items())
    with Server(lambda: next(answers), [], 0) as server, browsers.started() as chromium:
        server.rebuild()
        page = browsers.opened(chromium)
        page.goto(server.address)
        assert page.inner_text("p") == "first"
        server.rebuild()
        assert page.wait_for_selector("#failed").inner_text() == "error: pass Mine raised"
        assert page.inner_text("p") == "first"
        server.rebuild()
        page.wait_for_selector("p >> text=second")
        assert page.locator("#failed").count() == 0


def test_builds_are_processes_of_their_own() -> None:
    write = "import sys, pathlib; pathlib.Path(sys.argv[-1]).write_text('<p>page')"
    assert Builder([sys.executable, "-c", write])() == ("<p>page", "")
    assert Builder([sys.executable, "-c", "raise SystemExit('no')"])() == ("", "no")


def test_a_port_that_is_taken_is_said() -> None:
    with (
        Server(lambda: ("", ""), [], 0) as server,
        pytest.raises(ConfigError, match=r"port \d+ cannot be used") as error,
    ):
        Server(lambda: ("", ""), [], int(server.address.rsplit(":", 1)[1].strip("/")))
    assert error.value.hint == "--port 0 takes a free one"


OWN = """
from minitvm.ir.op import Op
from minitvm.passes import function_pass

@function_pass(name="Looks")
def looks(function, module, context):
    return function
"""


def test_passes_of_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    assert [step.info.name for step in passes_of(path)] == ["Looks"]
    path.write_text(OWN + "\nother = looks\npasses = [other]\n")
    assert len(passes_of(path)) == 1
    path.write_text("x = 1\n\nx / 0\n")
    with pytest.raises(InputError, match="ZeroDivisionError") as error:
        passes_of(path)
    assert error.value.where == (f"{path}:3",)
    path.write_text("")
    with pytest.raises(InputError, match="has no passes"):
        passes_of(path)
