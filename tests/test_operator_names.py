"""Facts about operators stand in their classes: how often other places name one by a string, or mistrust types."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import minitvm
import minitvm.ir.ops
from minitvm.ir.op import OPS

PACKAGE = Path(minitvm.__file__).parent
ABOUT_NAMES = (
    *("ir/ops/", "frontend/", "testing/", "tvm/", "lab/course/", "primer.py"),
    *("passes/gradient/", "quantize/", "viewer/"),
)
"""The classes themselves, the importer, networks and random cases for tests, TVM's names, what students write about,
the compiler in one file, whose operators are its own; gradients and quantization, a rule for each operator by its
name, as users register theirs; and the viewer, which says in words what became of them."""
DIMENSIONS = ("ir/dims.py", "ir/extremes.py", "ir/polynomials.py", "ir/assumed.py")
LOOPS = (*DIMENSIONS, "ir/loop/", "ir/op.py", "codegen/", "runtime/", "cli/")
"""Where ``"exp"`` is a function of the loop IR, ``"max"`` of dimensions, ``"mean"`` of times: only names like
``"nn.conv2d"`` count."""


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")


def names_of_operators() -> Counter[str]:
    """Per file, the strings that name an operator; what names an attribute is none."""
    found: Counter[str] = Counter()
    for name, text in sources():
        if not name.startswith(ABOUT_NAMES):
            nodes = list(ast.walk(ast.parse(text)))
            keys = {n.slice for n in nodes if isinstance(n, ast.Subscript) and ast.unparse(n.value) == "attributes"}
            strings = [n.value for n in nodes if isinstance(n, ast.Constant) and n.value in OPS and n not in keys]
            found[name] = sum("." in s or not name.startswith(LOOPS) for s in strings)
    return +found


def mistrusted_types() -> Counter[str]:
    """Per file, ``type: ignore`` and ``typing.cast``."""
    found: Counter[str] = Counter()
    for name, text in sources():
        casts = re.findall(r"(?<![\w.`])cast\(", text) if re.search(r"from typing import .*\bcast\b", text) else []
        found[name] = text.count("type: ignore") + len(casts)
    return +found


def test_few_places_name_operators_by_string() -> None:
    found = names_of_operators()
    assert sum(found.values()) <= 42, found.most_common()


def test_few_places_mistrust_types() -> None:
    found = mistrusted_types()
    assert sum(found.values()) <= 35, found.most_common()
