"""How a notebook shows minitvm's objects: each says only that it is shown; ``lab/notebook.py`` says how."""

from __future__ import annotations

import importlib


class Shown:
    """Has HTML for notebooks.  ``str`` of it is its text, ``repr`` one line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(importlib.import_module("minitvm.lab.notebook").html_of(self))
