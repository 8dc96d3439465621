"""Writes ``docs/known-bugs-of-others.md`` anew."""

from tests.known_bugs.page import PAGE, page

PAGE.write_text(page(), encoding="utf-8")
