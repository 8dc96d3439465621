"""Preconditions of a source file, and the file without one of them; run as a program, its tests without one.

Standing alone: the file under test must not be imported before the mutant is in its place.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

REFUSALS = ("Declined", "NotImplemented")
GIVEN = ("function", "module", "node", "new", "expr", "call", "declined", "refusal")
"""What a pass returns where it leaves things as they were, or passes a refusal on."""


@dataclass(frozen=True)
class Mutant:
    """A file without one precondition: where that is, its text, and what stands in its place."""

    line: int
    removed: str
    node: ast.AST
    stand_in: ast.expr


def mutants(source: str) -> list[Mutant]:
    """One for each condition of a guard (``if c: return Declined(...)``; each part of an ``or``), for each operand of
    an ``and``, and for each ``x if c else Declined(...)``, in the order of lines.  What is asserted is a claim, and no
    guard."""
    tree = ast.parse(source)
    claims = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Assert) for part in ast.walk(node)}
    walked = (node for function in _functions(tree) for node in ast.walk(function) if id(node) not in claims)
    found = [m for node in walked for m in _of(node, source)]
    return sorted({(m.line, id(m.node)): m for m in found}.values(), key=lambda m: m.line)


def without(source: str, index: int) -> ast.Module:
    """The file's tree without the precondition of that number."""
    return replaced(source, mutants(source)[index])


def replaced(source: str, mutant: Mutant) -> ast.Module:
    """The file's tree with a mutant's stand-in."""
    tree = ast.parse(source)
    _Removing(place(mutant.node), mutant.stand_in).visit(tree)
    return ast.fix_missing_locations(tree)


def _functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Those of the file, and of its classes; a lambda at its top is one."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)):
            yield node


def _of(node: ast.AST, source: str) -> Iterator[Mutant]:
    if isinstance(node, ast.If) and not node.orelse and _refuses(node.body):
        test = node.test
        parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
        yield from (_mutant(part, source, ast.Constant(False)) for part in parts)
    elif isinstance(node, ast.IfExp) and (_is_refusal(node.body) or _is_refusal(node.orelse)):
        yield _mutant(node.test, source, ast.Constant(_is_refusal(node.orelse)))
    elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        yield from (_mutant(part, source, ast.Constant(True)) for part in node.values)


def _mutant(part: ast.expr, source: str, stand_in: ast.expr) -> Mutant:
    return Mutant(part.lineno, " ".join((ast.get_source_segment(source, part) or "").split()), part, stand_in)


def _refuses(body: Sequence[ast.stmt]) -> bool:
    """True if a guard's body leaves: ``continue``, or a ``return`` of a refusal."""
    last = body[-1]
    if isinstance(last, ast.Continue):
        return len(body) == 1
    return isinstance(last, ast.Return) and len(body) == 1 and _is_refusal(last.value)


def _is_refusal(value: ast.expr | None) -> bool:
    """``None``, ``False``, an empty list, ``Declined(...)``, a constant such as ``NOT_STATIC``, or what was given."""
    match value:
        case None | ast.Constant(value=None | False | True):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in REFUSALS
        case ast.Name(id=name):
            return name.isupper() or name in GIVEN
        case ast.List(elts=[]) | ast.Tuple(elts=[]):
            return True
    return False


def place(node: ast.AST) -> tuple[Any, ...]:
    """What tells a node from all others of its source: its kind, its lines and columns."""
    return type(node), *(getattr(node, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))


class _Removing(ast.NodeTransformer):
    def __init__(self, where: tuple[Any, ...], stand_in: ast.expr) -> None:
        self.where, self.stand_in = where, stand_in

    def visit(self, node: ast.AST) -> Any:
        return self.stand_in if place(node) == self.where else self.generic_visit(node)


# --- as a program: MUTANTS FILE NUMBER pytest's arguments -------------------------------------------------------------


class Loader(importlib.machinery.SourceFileLoader):
    """Executes a file without one of its preconditions; nothing is written."""

    index = -1

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(without(source, self.index), self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds one file in another way."""

    def __init__(self, path: str, index: int) -> None:
        self.path, self.index = Path(path).resolve(), index

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None or Path(found.origin).resolve() != self.path:
            return None
        loader = Loader(fullname, found.origin)
        loader.index = self.index
        found.loader = loader
        return found


def main(arguments: Sequence[str]) -> int:
    """pytest's exit status, with the file's mutant of that number in its place (-1: the file as it is)."""
    path, index, *rest = arguments
    if int(index) >= 0:
        sys.meta_path.insert(0, Finder(path, int(index)))
    import pytest

    return int(pytest.main([*rest, "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
