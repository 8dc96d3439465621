"""TVM's ``parser``: text to modules, ours and Relay's, which begins with ``#[version = "0.0.5"]``.

In Relay's text a whole number without a suffix is int32; large constants are ``meta[relay.Constant][0]``, and stand
behind the module in JSON, ``#[metadata]``; a text may be an expression.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np

from minitvm.errors import ParseError
from minitvm.ir.expr import Constant, Expr, Module
from minitvm.ir.parser import _Parser
from minitvm.ir.parser import parse_expr as _our_expr
from minitvm.ir.parser import parse_module as _our_module
from minitvm.ir.reader import Constants
from minitvm.runtime.param_dict import _load_array, _Reader

_VERSION = re.compile(r'\A\s*#\[version\s*=\s*"(\d+)\.(\d+)\.(\d+)"\]')
_NEWEST = (0, 0, 5)


class _RelayParser(_Parser):
    """Of Relay's text."""

    def __init__(self, text: str, init_meta_table: Any = None) -> None:
        code, _, meta = text.partition("#[metadata]")
        super().__init__(code, None)
        self.table = {"relay.Constant": _arrays(meta), **(init_meta_table or {})}

    def number(self) -> tuple[int | float, str]:
        suffix = self.token.suffix
        value, dtype = super().number()
        return value, dtype if suffix or dtype != "int64" else "int32"

    def named_constant(self) -> Constant:
        start = self.take()
        self.expect("[")
        if self.token.kind == "string":
            raise self.error("a constant that is kept beside the text", "texts of minitvm have no version line", start)
        kind = self.expect_kind("word", "a kind such as relay.Constant").text
        self.expect("]")
        self.expect("[")
        index = int(self.expect_kind("number", "a constant's number").text)
        self.expect("]")
        held = self.table.get(kind, [])
        if not 0 <= index < len(held):
            hint = "astext(show_meta_data=True) writes the section, and init_meta_table may hold what is not in it"
            raise self.error(f"the text has no metadata of {kind}[{index}]", hint, start)
        found = held[index]
        return found if isinstance(found, Constant) else Constant(found)


def _arrays(text: str) -> list[np.ndarray]:
    """The constants of a metadata section, in order; :class:`ParseError` for anything else."""
    if not text.strip():
        return []
    try:
        graph = json.loads(text)
        nodes, stored = graph["nodes"], [base64.b64decode(one) for one in graph.get("b64ndarrays", [])]
        tables = dict(zip(nodes[graph["root"]].get("keys", []), nodes[graph["root"]].get("data", []), strict=False))
        places = nodes[tables["relay.Constant"]]["data"] if "relay.Constant" in tables else []
        return [_load_array(_Reader(stored[int(nodes[at]["attrs"]["data"])])) for at in places]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ParseError(f"the metadata of the text is damaged: {error!r}") from error


def _require_known(version: tuple[int, ...]) -> None:
    if version > _NEWEST:
        shown, newest = (".".join(map(str, one)) for one in (version, _NEWEST))
        raise ParseError(f"the text is of version {shown}", hint=f"versions up to {newest} are read")


def _version(text: Any) -> tuple[int, ...] | None:
    found = _VERSION.match(text) if isinstance(text, str) else None
    return found and tuple(map(int, found.groups()))


def parse(
    source: str, source_name: Any = "from_string", init_module: Module | None = None, init_meta_table: Any = None
) -> Module:
    """The module that a text describes: Relay's where it has a version line, else ours.

    ``source_name`` may be the arrays that our text refers to; ``init_module`` has functions that stay beside.
    """
    constants: Constants | None = source_name if isinstance(source_name, dict) else None
    version = _version(source)
    if version is None:
        made = _our_module(source, constants)
    else:
        _require_known(version)
        parser = _RelayParser(source, init_meta_table)
        made = Module(parser.module()) if parser.at("def") else Module.from_expr(parser.expression({}))
    return made if init_module is None else Module({**init_module.functions, **made.functions})


def parse_expr(source: str, constants: Constants | None = None, variables: Any = ()) -> Expr:
    """The expression that a text describes: Relay's where it has a version line, else ours."""
    version = _version(source)
    if version is None:
        return _our_expr(source, constants, variables)
    _require_known(version)
    return _RelayParser(source).expression({})


fromtext = parse_module = parse
