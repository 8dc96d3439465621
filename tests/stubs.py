"""The ``.pyi`` files of the package, for type checkers and editors: what is imported when it is first used, operators
as functions, and TVM's import paths.  ``python -m tests.stubs`` writes them; ``tests/test_typing.py`` says when to.

A stub stands for a module that is a door: its imports, said to be offered, and what little is defined beside them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import keyword
import pathlib
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import minitvm
from minitvm.frontend.other_formats import FRAMEWORKS
from minitvm.ir.attributes import attributes_of
from minitvm.ir.builder import described
from minitvm.ir.op import OPS, Op, signature
from minitvm.tvm.paths import HOMES, OWN

ROOT = pathlib.Path(minitvm.__file__).parent
HEAD = "# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.\n"
DOORS = (
    *("minitvm.capi", "minitvm.capi.onnxruntime_pybind11_state", "minitvm.driver"),
    *("minitvm.ir.loop", "minitvm.testing", "minitvm.tvm.contrib", "minitvm.tvm.error"),
    *("minitvm.tvm.parser", "minitvm.tvm.relay", "minitvm.tvm.relay.build_module", "minitvm.tvm.relay.expr"),
    *("minitvm.tvm.relay.frontend", "minitvm.tvm.relay.op", "minitvm.tvm.transform", "minitvm.tvm.instrument"),
)
"""Modules that offer what they import."""
INSIDE = ("minitvm.tvm.paths", "minitvm.tvm.instead", "minitvm.tvm.lacking", "minitvm.ir.op.OPS")
WIDTH = 120


def all_stubs() -> dict[str, str]:
    """By path inside the package."""
    found = {_file(name, _is_package(name)): HEAD + text for name, text in _modules().items()}
    paths = {path: home for path, home in _paths().items() if home != f"minitvm.{path}"}
    for path, home in paths.items():
        is_package = any(other.startswith(f"{path}.") for other in paths)
        found.setdefault(_file(f"minitvm.{path}", is_package), f"{HEAD}from {home} import *\n")
    return found


def _file(module: str, is_package: bool) -> str:
    path = module.removeprefix("minitvm").replace(".", "/").lstrip("/")
    return f"{path}/__init__.pyi".lstrip("/") if is_package else f"{path}.pyi"


def _is_package(module: str) -> bool:
    return module != OPERATORS and str(importlib.import_module(module).__file__).endswith("__init__.py")


OPERATORS = "minitvm.ir.operators"
"""Has no file of Python: operators are made into functions when they are asked for."""


def _modules() -> dict[str, str]:
    texts = {name: _door(name) for name in DOORS}
    offered = {name: _home("minitvm", *place) for name, place in minitvm._PLACES.items()}
    texts["minitvm"] = _offered(offered) + "__version__: str\n"
    for name in ("minitvm.ir", "minitvm.runtime"):
        texts[name] = _offered(_late(name))
    texts[OPERATORS] = _operators()
    places = importlib.import_module("minitvm.frontend")._PLACES
    read = _offered({n: _home("minitvm.frontend", home, n) for n, home in places.items()})
    texts["minitvm.frontend"] = read + _refused()
    texts["minitvm.tvm"] = _offered({name: offered[name] for name in importlib.import_module("minitvm.tvm").__all__})
    texts["minitvm.tvm.relay.frontend"] += (
        "".join(line for line in read.splitlines(True) if " from_onnx " not in line) + _refused()
    )
    texts["minitvm.tvm.relay.op"] += f"from {OPERATORS} import *\n"
    texts["minitvm.tvm.relay"] += f"from {OPERATORS} import *\n" + _offered(_rooms_of_relay(texts["minitvm.tvm.relay"]))
    texts["minitvm.testing"] += _offered({n: _home("", h, "") for n, h in _inside("relay.testing.").items()})
    return texts


def _inside(path: str) -> dict[str, str]:
    return {name.removeprefix(path): home for name, home in HOMES.items() if name.startswith(path)}


def _rooms_of_relay(said: str) -> dict[str, tuple[str, str]]:
    """Modules below ``relay`` that are imported on first use, or are found at another place."""
    below = {path.removeprefix("relay."): home for path, home in _paths().items() if path.startswith("relay.")}
    return {n: _home("", home, "") for n, home in below.items() if "." not in n and f" {n}\n" not in f"{said}\n"}


def _paths() -> dict[str, str]:
    """TVM's import paths by what is there."""
    own = {}
    for name in OWN:
        module = importlib.import_module(f"minitvm.tvm.{name}")
        folder = pathlib.Path(str(module.__file__)).parent if _is_package(module.__name__) else None
        inside = [path.stem for path in folder.glob("[!_]*.py")] if folder else []
        own |= {name: module.__name__} | {f"{name}.{n}": f"{module.__name__}.{n}" for n in inside}
    return dict(sorted((own | HOMES).items()))


# --- what a module offers -----------------------------------------------------------------------------------------


def _home(package: str, module: str, name: str) -> tuple[str, str]:
    """Where from, and what, an import statement takes."""
    full = f"{package}.{module}".strip(".")
    if name:
        return full, name
    outer, _, last = full.rpartition(".")
    return outer, last


def _late(module: str) -> dict[str, tuple[str, str]]:
    """The names in a module's table of what is imported on first use."""
    found = importlib.import_module(module)
    table: Mapping[str, str] = found._TVM
    split = {name: place.partition(".") for name, place in table.items()}
    given = {name: (f"{module}.{home}", there or name) for name, (home, _, there) in split.items()}
    return given | {name: (f"{module}.{home}", name) for name in getattr(found, "__all__", ()) for home in ["library"]}


def _offered(names: Mapping[str, tuple[str, str]]) -> str:
    return "".join(sorted(_import(home, there, name) for name, (home, there) in names.items()))


def _import(home: str, there: str, name: str) -> str:
    """A name is offered where it is imported ``as`` itself; another name is given in a line of its own."""
    if there == name:
        return f"from {home} import {name} as {name}\n"
    return f"from {home} import {there} as _{name}\n{name} = _{name}\n"


def _refused() -> str:
    refused = "".join(f"def {name}(*args: Any, **options: Any) -> NoReturn: ...\n" for name in FRAMEWORKS)
    return "from typing import Any, NoReturn\n" + refused


def _door(module: str) -> str:
    tree = ast.parse(pathlib.Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8"))
    text = "".join(f"{ast.unparse(one)}\n" for node in tree.body for one in _shown(node))
    return text.replace("(Printer, ModulePass):", "(Printer, ModulePass):  # type: ignore[no-redef]")


def _shown(node: ast.stmt) -> Iterable[ast.stmt]:
    """What a statement of a module's top is in its stub."""
    match node:
        case ast.ImportFrom(module="__future__"):
            return []
        case ast.Import() | ast.ImportFrom():
            return _reexported(node)
        case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
            return [one for inner in node.body for one in _shown(inner)]
        case ast.Assign(targets=targets, value=ast.Name() | ast.Attribute()) if not _is_private(targets[0]):
            return [ast.Assign([one], node.value, lineno=0) for one in targets]
        case ast.AnnAssign(target=target) if not _is_private(target):
            return [ast.AnnAssign(target, node.annotation, None, 1)]
        case ast.ClassDef() if not node.name.startswith("_"):
            return _as_type_checkers_see(node)
        case ast.FunctionDef() if not node.name.startswith("_"):
            return [_without_body(node)]
        case _:
            return []


def _is_private(target: ast.expr) -> bool:
    return not isinstance(target, ast.Name) or target.id.startswith("_")


def _reexported(node: ast.Import | ast.ImportFrom) -> Iterable[ast.stmt]:
    """One statement a name, since what is imported is offered where it is said ``as`` itself; others' names are not."""
    if isinstance(node, ast.Import) and not any(alias.name.startswith("minitvm.") for alias in node.names):
        return [node]
    if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("minitvm"):
        return [node]
    return [one for alias in node.names if _is_offered(node, alias) for one in _renamed(node, alias)]


def _is_offered(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    home = f"{getattr(node, 'module', '')}.{alias.name}"
    return not alias.name.startswith("__") and not home.startswith(INSIDE)


def _renamed(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> list[ast.stmt]:
    if alias.name == "*":
        return [node]
    outer, _, last = alias.name.rpartition(".")
    home = str(node.module) if isinstance(node, ast.ImportFrom) else outer
    return ast.parse(_import(home, last, alias.asname or last)).body


def _without_body(node: ast.FunctionDef) -> ast.FunctionDef:
    told = node.body[:1] if ast.get_docstring(node) else []
    return ast.FunctionDef(
        node.name, node.args, [*told, ast.Expr(ast.Constant(...))], node.decorator_list, node.returns, lineno=0
    )


def _as_type_checkers_see(node: ast.ClassDef) -> list[ast.stmt]:
    """A class whose ``__new__`` makes a node of the graph is shown as what comes out."""
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    if node.name == "Function" and "__new__" in methods:
        return list(ast.parse("from minitvm.ir.expr import Function as Function").body)
    kept = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AnnAssign, ast.Expr))]
    body: list[ast.stmt] = [_without_body(one) if isinstance(one, ast.FunctionDef) else one for one in kept]
    bases = node.bases
    if node.name in ("If", "Let"):
        made = _without_body(methods["__new__"])
        made.name, made.returns, made.args.args[0].arg = "__init__", ast.Constant(None), "self"
        bases, body = [ast.Name("Expr")], [*body[:1], made]
    return [ast.ClassDef(node.name, bases, [], body or [ast.Expr(ast.Constant(...))], node.decorator_list)]


# --- operators as functions -----------------------------------------------------------------------------------------

_OPERATORS = '''"""Operators as functions: ``add(x, y)``.  Numbers and arrays become constants."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from minitvm.ir.dims import SymbolicDim
from minitvm.ir.expr import Call, Expr, Function

_Operand: TypeAlias = Expr | npt.ArrayLike | Sequence[Expr]
_Int: TypeAlias = int | np.integer[Any]
_Float: TypeAlias = float | np.floating[Any] | np.integer[Any]
_Array: TypeAlias = npt.NDArray[Any]
'''
_NAMES = {int: "_Int", float: "_Float", bool: "bool | np.bool_", str: "str", type(None): "None"}


def _operators() -> str:
    alone = {name: op for name, op in OPS.items() if "." not in name and _is_ours(op)}
    rooms: dict[str, dict[str, type[Op]]] = {}
    for name, op in OPS.items():
        outer, _, last = name.rpartition(".")
        if outer and _is_ours(op) and not keyword.iskeyword(last):
            rooms.setdefault(outer, {})[last] = op
    parts = [_operator(name, op) for name, op in sorted(alone.items())]
    for outer, ops in sorted(rooms.items()):
        inner = "".join(_operator(name, op, "    ") for name, op in sorted(ops.items()))
        parts.append(f'\nclass {outer}:\n    """Operators {outer}.*"""\n\n{inner}')
    return _OPERATORS + "\n" + "".join(parts)


def _is_ours(op: type[Op]) -> bool:
    """A test or a user may have defined others."""
    return op.__module__.startswith("minitvm.")


def _operator(name: str, op: type[Op], indent: str = "") -> str:
    found = signature(op)
    names = found.names
    optional = found.required < len(names)
    given = [f"{n}: _Operand" if i < found.required else f"{n}: _Operand | None = ..." for i, n in enumerate(names)]
    given += ["*more: _Operand"] if found.variadic else []
    for attribute in attributes_of(op).values():
        needed = attribute.required and not optional
        given.append(f"{attribute.name}: {_annotated(attribute.annotation)}{'' if needed else ' = ...'}")
    decorator = f"{indent}@staticmethod\n" * bool(indent)
    line = f"{indent}def {name}({', '.join(given)}) -> Call:\n"
    if len(line) > WIDTH:
        each = "".join(f"{indent}    {one},\n" for one in given)
        line = f"{indent}def {name}(\n{each}{indent}) -> Call:\n"
    words = described(op).partition("\n")[0].replace("\\", "\\\\")
    return f'{decorator}{line}{indent}    """{words}"""\n' if words else f"{decorator}{line.rstrip()} ...\n"


def _annotated(annotation: Any) -> str:
    """What a caller may give for an attribute; ``minitvm.ir.attributes`` makes the one form of it that is kept."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(parts[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_annotated(part) for part in parts))
    if origin is tuple:
        return _sequence(parts)
    if annotation in _NAMES:
        return _NAMES[annotation]
    return annotation.__name__ if inspect.isclass(annotation) else "object"


def _sequence(parts: tuple[Any, ...]) -> str:
    each = list(dict.fromkeys(_annotated(part) for part in parts if part is not Ellipsis))
    alone = [each[0]] if parts[-1] is Ellipsis and parts[0] in (int, str, float) else []
    return " | ".join([*alone, f"Sequence[{' | '.join(each)}]", "_Array"])


def write() -> None:
    """Writes all of them, and takes away those that are none any more."""
    wanted = all_stubs()
    for path in ROOT.rglob("*.pyi"):
        if path.relative_to(ROOT).as_posix() not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
