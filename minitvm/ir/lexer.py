"""The text form cut into tokens, each with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minitvm.errors import MiniTVMError, ParseError, did_you_mean

MAX_DEPTH = 100
"""How deep expressions may be nested in the text; bind inner ones to names instead."""

_SHOWN = 100
"""How much of a long line an error shows."""

_QUOTED = r'''"(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'''  # as JSON's
_TOKEN = re.compile(
    rf"""
      (?P<skip>\s+|\#[^\n]*|(?:(?<!\S)//|//(?=\s|\Z))[^\n]*|/\*.*?\*/)
    | (?P<name>[%@](?:[A-Za-z_][A-Za-z0-9_]*(?:[./][A-Za-z_][A-Za-z0-9_]*)*|[0-9]+|{_QUOTED}))
    | (?P<number>-?(?:inf|nan|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)
        (?P<suffix>f16|f32|f64|f|[iu](?:8|16|32|64))?(?![A-Za-z0-9_]))
    | (?P<field>\.[0-9]+)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    | (?P<string>{_QUOTED})
    | (?P<punct>->|\.\.\.|//|[(){{}}\[\],:;=?+*-])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """``name`` (with ``%`` or ``@``), ``number``, ``field`` (``.0``), ``word``, ``string``, ``punct`` or ``end``."""
    text: str
    start: int
    suffix: str = ""

    @property
    def shown(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.text)


def tokenize(text: str) -> list[Token]:
    """The tokens of ``text``, closed by one of kind ``end``; :class:`ParseError` at what is none."""
    if not isinstance(text, str):
        raise ParseError(f"a module is text, not {type(text).__name__}")
    tokens = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise error_at(text, position, f"unexpected character {text[position]!r}")
        kind = found.lastgroup if found.lastgroup != "suffix" else "number"
        assert kind is not None
        if kind != "skip":
            tokens.append(Token(kind, found.group(), position, found.group("suffix") or ""))
        position = found.end()
    return [*tokens, Token("end", "", len(text))]


def error_at(text: str, position: int, message: str, hint: str | None = None) -> ParseError:
    """A :class:`ParseError` that shows the line and points at the place."""
    line = text.count("\n", 0, position) + 1
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    column = position - start + 1
    first = max(start, position - _SHOWN // 2)
    source = text[first : min(len(text) if end < 0 else end, first + _SHOWN)]
    caret = "".join("\t" if c == "\t" else " " for c in source[: position - first]) + "^"
    error = ParseError(message, where=[f"line {line}, column {column}", source, caret], hint=hint)
    error.line, error.column = line, column
    return error


def unquote(text: str) -> str:
    """The value of a string token; a plain name is itself."""
    return str(json.loads(text, strict=False)) if text.startswith('"') else text


class Reader:
    """Walks over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.position = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def error(self, message: str, hint: str | None = None, token: Token | None = None) -> ParseError:
        return error_at(self.text, (token or self.token).start, message, hint)

    def take(self) -> Token:
        token = self.token
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def at(self, *texts: str) -> bool:
        return self.token.text in texts and self.token.kind in ("punct", "word")

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.at(text):
            raise self.error(f"expected {text!r}, found {self.token.shown}")
        return self.take()

    def expect_kind(self, kind: str, what: str) -> Token:
        if self.token.kind != kind:
            raise self.error(f"expected {what}, found {self.token.shown}")
        return self.take()

    def name(self, sigil: str, what: str) -> tuple[str, Token]:
        """A name behind ``%`` or ``@``, as the key it is known by: numbers keep their sigil."""
        token = self.token
        if token.kind != "name" or token.text[0] != sigil:
            raise self.error(f"expected {what}, found {token.shown}")
        self.take()
        body = token.text[1:]
        return (token.text if body.isdigit() else unquote(body)), token

    @contextmanager
    def nested(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(
                f"nested more than {MAX_DEPTH} deep", hint="bind inner expressions to names: %0 = ...; then use %0"
            )
        yield
        self.depth -= 1

    @contextmanager
    def located(self, token: Token) -> Iterator[None]:
        """Errors of the graph's own get the line of the text that caused them."""
        try:
            yield
        except ParseError:
            raise
        except MiniTVMError as error:
            line = error_at(self.text, token.start, "").line
            raise type(error)(
                error.message, where=[*error.where, f"line {line} of the text"], hint=error.hint
            ) from error

    def items(self, opening: str, closing: str) -> Iterator[None]:
        """Runs the loop's body once per item of a comma-separated list; a trailing comma is allowed."""
        self.expect(opening)
        while not self.at(closing):
            yield
            if not self.at(closing):
                self.expect(",")
        self.expect(closing)


def closest(word: str, known: Iterable[str], sigil: str = "") -> str:
    names = list(known)
    guess = did_you_mean(word, names, lambda name: sigil + name.removeprefix(sigil), most=3)
    if guess or not names:
        return guess or "none is defined here"
    return f"known: {', '.join(sigil + n.removeprefix(sigil) for n in names[:20])}{', ...' if len(names) > 20 else ''}"
