"""Every name of v0.14, recorded in ``names_of_relay.txt`` and ``signatures.txt``, is here or says what to use."""

from __future__ import annotations

import functools
import importlib
import pathlib
import re
from collections import Counter

import pytest

from minitvm import relay
from minitvm.tvm.error import NotOfferedError
from minitvm.tvm.instead import why
from minitvm.tvm.lacking import Lacking
from minitvm.tvm.relay.operators import signatures

HERE = pathlib.Path(__file__).parent
OPERATORS = [f"relay.{name}" for name in signatures()]


def recorded() -> list[str]:
    """Names of v0.14 by their paths, and its operators."""
    lines = [line.partition(": ") for line in (HERE / "names_of_relay.txt").read_text("utf-8").splitlines()]
    return [*(f"{home}.{name}" for home, _, names in lines for name in names.split()), *OPERATORS]


def test_every_name_of_v0_14_is_here_or_says_what_to_use() -> None:
    counts = Counter(_answer(path) for path in recorded())
    assert counts["here"] >= 452 and counts["instead"] <= 152 and set(counts) == {"here", "instead"}, counts


def _answer(path: str) -> str:
    """``here``, or ``instead`` where it is importable and says by name what to use; else the error."""
    home, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(f"minitvm.{home}")
    except ModuleNotFoundError:
        module = functools.reduce(getattr, home.split(".")[1:], relay)
    try:
        found = getattr(module, name)
    except AttributeError:
        found = importlib.import_module(f"minitvm.{path}")
    absent = isinstance(found, Lacking) or why(path) is not None
    if not absent:
        return "here"
    with pytest.raises(NotOfferedError, match=re.escape(path.rpartition(".")[2])) as error:
        found() if callable(found) else found.anything()
    return "instead" if error.value.hint == why(path) else str(error.value)
