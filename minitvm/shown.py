"""How a notebook shows minitvm's objects: each says only that it is shown; a room above says how."""

from __future__ import annotations

from minitvm.doors import door


@door
def html_of(shown: object) -> str:
    """An object as HTML; by itself its text."""
    return f"<pre>{shown}</pre>"


class Shown:
    """Has HTML for notebooks.  ``str`` of it is its text, ``repr`` one line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_of(self)
