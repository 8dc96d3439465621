"""RegexFullMatch by RE2, whose syntax ONNX asks for: its time is linear in the text, whatever the pattern is.

Python's own ``re`` is no stand-in: it takes other patterns, and of some of them time without end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from minitvm.errors import FrontendError, MiniTVMError


def full_match(node: onnx.NodeProto) -> Callable[..., Sequence[Any]]:
    """Texts, of any shape, to whether each is matched from its first to its last character.

    Raises :class:`FrontendError` for a pattern that RE2 refuses, ``MiniTVMError`` where the package is missing.
    """
    try:
        import re2  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        message = "RegexFullMatch needs the package google-re2, which is not installed"
        raise MiniTVMError(message, hint="pip install google-re2") from error
    pattern = next((a.s for a in node.attribute if a.name == "pattern"), b"")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else error
        why = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        shown = pattern.decode("utf-8", "replace")
        hint = "neither has RE2 references to groups, nor does it look ahead or behind"
        raise FrontendError(f"RE2 refuses the pattern {shown!r}: {why}", hint=hint) from error

    def evaluate(texts: np.ndarray) -> list[np.ndarray]:
        found = [compiled.fullmatch(_encoded(text)) is not None for text in texts.flat]
        return [np.array(found, bool).reshape(texts.shape)]

    return evaluate


def _encoded(text: Any) -> bytes:
    return bytes(text) if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
