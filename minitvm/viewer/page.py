"""One HTML file of a document and the page that draws it: no other file, no network; and the way back."""

from __future__ import annotations

import base64
import functools
import gzip
import html
import json
import re
import zlib
from pathlib import Path
from typing import Any

from minitvm.errors import InputError, no_file
from minitvm.target import text_of
from minitvm.viewer.document import FORMAT

MODULES = (
    "base", "data", "theme", "layout", "picture", "labels", "zoomed", "drawing", "shapes", "differ", "gains", "blocks",
    "passes", "graph", "code", "kernels", "charts", "threads", "inspector", "overview", "beside", "keys", "main",
)  # fmt: skip
"""The page's own scripts, each after those that it imports."""

_CHUNK = re.compile(r'<script type="text/plain" class="data" id="data-([^"]*)">([^<]*)</script>')
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


def page_of(document: dict[str, Any]) -> str:
    """The page as one file.  Data is compressed, each kernel's code by itself, and unpacked when it is asked for."""
    chunks = {f"code-{number}": code for number, code in enumerate(document["code"].values())}
    main = {**document, "code": list(document["code"])}
    if compared := document.get("beside"):
        main, chunks["beside"] = {**main, "beside": {**compared, "code": []}}, compared["code"]
    data = "\n".join(_chunk(name, content) for name, content in {"main": main, **chunks}.items())
    parts = {
        "title": html.escape(str(document["title"])),
        "style": _asset("style.css"),
        "vendor": _in_script(_asset("vendor/vendor.js")),
        "script": _in_script(script()),
        "data": data,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def document_in(path: Path) -> dict[str, Any]:
    """The document of a page, or the one that a file of JSON is; :class:`InputError` where it is none."""
    if not path.is_file():
        raise InputError(no_file(path))
    text = path.read_bytes().decode("utf-8", "replace")
    try:
        found: dict[str, Any] = json.loads(text) if path.suffix == ".json" else _unpacked(text)
        version, form = found["version"], found["format"]
    except (ValueError, KeyError, TypeError, OSError, EOFError, zlib.error):
        hint = "minitvm view MODEL -o FILE.html (or FILE.json) writes one"
        raise InputError(f"{path} is no page of the viewer", hint=hint) from None
    if form != FORMAT:
        raise InputError(f"{path} is of minitvm {version}, whose pages have format {form}; this one's have {FORMAT}")
    return found


def _unpacked(page: str) -> dict[str, Any]:
    chunks = {name: json.loads(gzip.decompress(base64.b64decode(packed))) for name, packed in _CHUNK.findall(page)}
    main: dict[str, Any] = chunks["main"]
    return {**main, "code": {symbol: chunks[f"code-{number}"] for number, symbol in enumerate(main["code"])}}


def script() -> str:
    """The page's modules as one script: each a function that returns what it exports."""
    return "\n".join(_as_function(name, _asset(f"{name}.js")) for name in MODULES)


def _as_function(name: str, text: str) -> str:
    exports = ", ".join(found[2] for found in _EXPORT.finditer(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = $\2;", text))
    return f"const ${name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def _chunk(name: str, content: Any) -> str:
    packed = base64.b64encode(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0)).decode()
    return f'<script type="text/plain" class="data" id="data-{name}">{packed}</script>'


def _in_script(text: str) -> str:
    """Text that cannot end the element it stands in."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", text, flags=re.IGNORECASE)


@functools.cache
def _asset(name: str) -> str:
    return text_of(f"viewer/assets/{name}")
