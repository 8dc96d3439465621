"""The viewer's drawing in the cell of a notebook, small: a module's graph, or what a pass changed."""

from __future__ import annotations

import base64
import gzip
import html
from typing import Any

from minitvm.driver.report import PassStep
from minitvm.ir.expr import Function, Module
from minitvm.passes.instrument import count_calls
from minitvm.viewer.document import FORMAT, SITE, pass_form
from minitvm.viewer.modules import Modules
from minitvm.viewer.page import page_of

MOST_CALLS = 300
"""Of a module that is drawn in a cell; larger ones are for ``minitvm view``."""
_PIXELS = 360
_LOADER = """<script>(async () => {
  const packed = Uint8Array.from(atob("PAGE"), (c) => c.charCodeAt(0));
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.open(); document.write(text); document.close();
})();</script>"""


def drawing_of(shown: Module | Function | PassStep) -> str:
    """A frame with the drawing, apart from the notebook's scripts.

    Nothing of what is large or has no calls, nor of a run of a pass that changed nothing or whose modules were not
    kept."""
    modules = Modules({})
    if isinstance(shown, PassStep):
        if shown.modules is None or shown.before is shown.after:
            return ""
        passes, last = [pass_form(shown, modules)], shown.after
    else:
        passes, last = [], Module(shown) if isinstance(shown, Function) else shown
    if not 0 < count_calls(last) <= MOST_CALLS:
        return ""
    parts = {"passes": passes, "last": modules.add(last), **modules.form}
    return _frame({**_NOTHING, **parts, "embedded": "passes" if passes else "graph"})


_NOTHING: dict[str, Any] = {
    "format": FORMAT,
    "title": "minitvm",
    "pages": SITE,
    "placement": [],
    "kernels": [],
    "graph": [],
    "run": None,
    "seconds": {},
    "code": {},
}
"""A document of no build."""


def _frame(document: dict[str, Any]) -> str:
    packed = base64.b64encode(gzip.compress(page_of(document).encode(), 9, mtime=0)).decode()
    look = f"width: 100%; height: {_PIXELS}px; border: 1px solid rgba(128, 128, 128, 0.4)"
    page = html.escape(_LOADER.replace("PAGE", packed))
    return f'<iframe title="drawing" sandbox="allow-scripts" style="{look}" srcdoc="{page}"></iframe>'
