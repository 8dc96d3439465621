"""The page of operators is what their classes say; so is ``help``."""

from __future__ import annotations

import inspect
import pathlib
import pydoc

import pytest

from minitvm import relay
from minitvm.lab.operators import page

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "operators.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m minitvm.lab.operators docs/operators.md"


def test_help_has_arguments_and_attributes() -> None:
    text = pydoc.render_doc(relay.nn.conv2d, renderer=pydoc.plaintext)
    assert "conv2d(data, weight, strides=(1, 1), padding=(0, 0), dilation=(1, 1)" in text
    assert "groups: a whole number (default 1)" in text
    found = inspect.signature(relay.nn.batch_norm)
    assert list(found.parameters)[:5] == ["data", "gamma", "beta", "moving_mean", "moving_var"]


def test_a_wrong_name_suggests_the_right_one() -> None:
    with pytest.raises(AttributeError, match=r"there is no relay\.nn\.rleu\n.*did you mean nn\.relu\?"):
        _ = relay.nn.rleu
