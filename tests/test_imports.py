"""The import order of docs/architecture.md, and which room may import which package."""

from __future__ import annotations

import ast
import contextlib
import functools
import graphlib
import importlib
import inspect
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import minitvm
from minitvm.doors import BEHIND, Door

ROOT = pathlib.Path(minitvm.__file__).parent

LAYERS = (
    ("errors", "config", "cpu_costs", "target", "doors", "shown"),
    ("ir",),
    ("frontend", "passes", "runtime"),
    ("codegen", "scopes"),
    ("driver",),
    ("models",),
    ("ort",),
    ("session", "generation"),
    (
        "testing",
        "tvm",
        "lab",
        "viewer",
        "torch",
        "quantize",
        "capi",
        "cli",
        "demo",
        "onnx_backend",
        "primer",
        "rooms",
        "__init__",
        "__main__",
    ),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "onnx": ("frontend", "onnx_backend.py", "lab/check_import.py", "lab/check_oracles.py", "primer.py"),  # an oracle
    "google": ("frontend",),
    "llvmlite": ("codegen/llvm", "runtime/native.py", "primer.py"),
    "cuda": ("codegen/cuda", "runtime/nvidia"),
    "cryptography": ("runtime/signing.py",),
}


DOCS = ROOT.parent / "docs"
ARCHITECTURE = DOCS / "architecture.md"
PAGES_WITH_FILES = [ARCHITECTURE, DOCS / "reading.md", *sorted(DOCS.glob("decisions/*.md"))]


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: pathlib.Path) -> tuple[tuple[str, bool], ...]:
    """Imported module names, and whether the import is inside a function or under ``TYPE_CHECKING``."""
    return tuple(_imports(tree_of(path)))


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    late = {
        child
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.If))
        for child in ast.walk(node)
        if child is not node
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "minitvm":
            yield from ((f"minitvm.{alias.name}", node in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node in late


def room(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_room_has_a_place_in_the_order() -> None:
    assert {room(path) for path in ROOT.rglob("*.py")} <= set(RANK)


def test_what_runs_imports_nothing_that_compiles() -> None:
    wrong = [
        f"{path.name} imports {name}"
        for path in (ROOT / "runtime").rglob("*.py")
        for name, _ in imports(path)
        if name.startswith(("minitvm.frontend", "minitvm.passes", "minitvm.codegen", "minitvm.driver"))
    ]
    assert not wrong


def test_back_ends_are_named_in_their_own_folders_only() -> None:
    names = ("minitvm.codegen.llvm", "minitvm.codegen.cuda", "minitvm.codegen.interp")
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOT.rglob("*.py")
        for name, _ in imports(path)
        if name.startswith(names) and not str(path.parent.relative_to(ROOT.parent)).replace("/", ".").startswith(names)
    ]
    assert not wrong


def test_rooms_import_only_from_rooms_before_them() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        for name, late in imports(path):
            head, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if head != "minitvm" or late or other not in RANK or (path.name == "__init__.py" and path.parent == ROOT):
                continue
            ok = RANK[other] < RANK[room(path)] or other == room(path) or {other, room(path)} <= set(LAYERS[-1])
            if not ok and not {other, room(path)} <= set(LAYERS[0]):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def names_in_text(path: pathlib.Path) -> set[str]:
    """Modules that a file's strings name, as ``import_module`` is given them; docstrings are for readers."""
    tree = tree_of(path)
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    told = {id(stmt.value) for body in bodies for stmt in body if isinstance(stmt, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told]
    found = (re.findall(r"\bminitvm(?:\.\w+)+", node.value) for node in texts if isinstance(node.value, str))
    return {name for names in found for name in names}


def test_no_room_knows_a_higher_one_by_name() -> None:
    """Neither late nor for types nor in a string; what a lower room asks of a higher one goes through a door."""
    wrong = []
    for path in ROOT.rglob("*.py"):
        for name in {name for name, _ in imports(path)} | names_in_text(path):
            other = name.removeprefix("minitvm.").partition(".")[0]
            if room(path) != "__init__" and RANK.get(other, 0) > RANK[room(path)]:
                wrong.append(f"{path.relative_to(ROOT)} names {name}")
    assert not wrong


def test_a_name_in_a_string_is_seen(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "one.py"
    file.write_text('"""As minitvm.lab does."""\nlate = import_module("minitvm.viewer")\nf"minitvm.cli.{late}"\n')
    assert names_in_text(file) == {"minitvm.viewer", "minitvm.cli"}


def test_behind_every_door_is_a_function_that_takes_what_is_given_at_the_door() -> None:
    doors = {thing.name: thing for name in modules() for thing in doors_of(name)}
    assert doors.keys() == BEHIND.keys()
    for name, there in BEHIND.items():
        module, _, function = there.rpartition(".")
        taken, given = (
            inspect.signature(one).parameters.values()
            for one in (getattr(importlib.import_module(f"minitvm.{module}"), function), doors[name])
        )
        assert [p.kind for p in taken][: len(given)] == [p.kind for p in given], name
        assert all(p.default is not p.empty for p in list(taken)[len(given) :]), name


def doors_of(module: str) -> list[Door[..., object]]:
    """The doors that a module has; most have none and are not imported."""
    if "@door" not in modules()[module].read_text(encoding="utf-8"):
        return []
    return [thing for thing in vars(importlib.import_module(module)).values() if isinstance(thing, Door)]


def modules() -> dict[str, pathlib.Path]:
    paths = {path.relative_to(ROOT.parent).with_suffix("").as_posix(): path for path in ROOT.rglob("*.py")}
    return {name.replace("/", ".").removesuffix(".__init__"): path for name, path in paths.items()}


def all_imports(path: pathlib.Path) -> Iterator[str]:
    """Module names that a file imports: late ones and those for types only too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = {f if f in known else f.rpartition(".")[0] for f in all_imports(path)} & set(known) - {name}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


@pytest.mark.parametrize("page", PAGES_WITH_FILES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: pathlib.Path) -> None:
    """In a list such as ``ir/text.py``, ``parser.py`` the later names are in the room of the one before."""
    missing, folder = [], ROOT
    for name in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
        places = (ROOT / name, ROOT.parent / name, folder / name)
        found = next((path for path in places if path.is_file()), None)
        if found is None:
            missing.append(name)
        else:
            folder = found.parent
    assert not missing


def test_heavy_packages_stay_in_their_rooms() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        where = path.relative_to(ROOT).as_posix()
        for name, _ in imports(path):
            allowed = ONLY_IN.get(name.partition(".")[0])
            if allowed is not None and not where.startswith(allowed):
                wrong.append(f"{where} imports {name}")
    assert not wrong


def test_ir_imports_numpy_only() -> None:
    known = set(sys.stdlib_module_names) | {"minitvm", "numpy", "ml_dtypes", "__future__"}
    for path in (ROOT / "ir").rglob("*.py"):
        found = {(name.partition(".")[0], late) for name, late in imports(path)}
        assert {name for name, _ in found - {("typing_extensions", True)}} <= known, path  # read by type checkers only


def test_importing_minitvm_loads_nothing_heavy() -> None:
    code = "import sys, minitvm; print([m for m in ('numpy', 'onnx', 'llvmlite', 'rich') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_building_a_graph_does_not_load_the_importer() -> None:
    code = "import sys; from minitvm import relay; relay.var('x', shape=(2,)) + 1; print('onnx' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_opening_a_model_does_not_load_what_few_need() -> None:
    """The hundreds of modules of onnx's evaluator, numpy's generators: megabytes beside every model."""
    code = """
import sys
from onnx import helper
from minitvm import InferenceSession
x, y = (helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
InferenceSession(helper.make_model(graph), num_threads=1)
print([m for m in ("onnx.reference", "numpy.random", "rich") if m in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_what_runs_stands_without_what_compiles() -> None:
    """``runtime/`` imports errors and types; what host calls mean, operators, comes with a library that has some."""
    code = "import sys, minitvm.runtime.library, minitvm.runtime.archive; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in found if name.startswith("minitvm.") and not name.startswith("minitvm.runtime")}
    dims = ("polynomials", "assumed", "dims")
    types = {"minitvm.ir", *(f"minitvm.ir.{name}" for name in ("arrays", *dims, "dtypes", "types", "written"))}
    paths = {"minitvm.tvm", "minitvm.tvm.paths", "minitvm.tvm.instead"}  # TVM's import paths, strings alone
    base = {f"minitvm.{name}" for name in (*LAYERS[0], "rooms")}
    assert ours == {*base, *types, *paths}
    assert not {"onnx", "google", "cryptography", "ml_dtypes"} & set(found)


def test_every_public_name_is_there() -> None:
    for name in (*minitvm.__all__, "__version__", "transform"):
        assert getattr(minitvm, name) is not None
    assert minitvm.contrib.graph_executor.GraphModule is minitvm.GraphModule
    assert minitvm.relay.nn.conv2d and minitvm.relay.add and minitvm.relay.analysis.free_vars
    assert minitvm.nd.array([1.0]).numpy().tolist() == [1.0]


def rooms() -> dict[str, set[str]]:
    """What each room needs directly: imports at the top of its files, without what another room that it needs needs."""
    found: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        used = {name.split(".")[1] for name, late in imports(path) if name.startswith("minitvm.") and not late}
        if not room(path).startswith("__"):
            found.setdefault(shown(room(path)), set()).update(map(shown, used & set(RANK)))
    needs = {name: used & set(found) - {name} for name, used in found.items()}
    return {name: used - {far for near in used for far in behind(near, needs)} for name, used in needs.items()}


def shown(name: str) -> str:
    """The files that everything needs are one room of the picture."""
    return "base" if name in LAYERS[0] else name


def behind(name: str, needs: dict[str, set[str]]) -> set[str]:
    return needs[name].union(*(behind(other, needs) for other in needs[name]))


def test_the_picture_of_the_rooms_is_drawn_from_the_imports() -> None:
    lines = [f"    {name} --> {other}" for name, used in sorted(rooms().items()) for other in sorted(used)]
    picture = "\n".join(["```mermaid", "graph TD", *lines, "```"])
    assert picture in ARCHITECTURE.read_text(encoding="utf-8"), picture


@pytest.mark.parametrize("init", sorted(ROOT.rglob("__init__.py")), ids=lambda p: p.parent.relative_to(ROOT).as_posix())
def test_no_package_gives_a_name_that_a_module_of_it_takes_over(init: pathlib.Path) -> None:
    """An import of ``package.name``, anywhere, makes that module the package's ``name``."""
    modules = {file.stem for file in init.parent.glob("*.py")} | {
        file.parent.name for file in init.parent.glob("*/*.py")
    }
    tree = ast.parse(init.read_text(encoding="utf-8"))
    assert not modules & {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    package = importlib.import_module(".".join(("minitvm", *init.parent.relative_to(ROOT).parts)))
    for name in sorted(modules - {"__init__"}) if hasattr(package, "__getattr__") else ():
        with contextlib.suppress(AttributeError):
            assert inspect.ismodule(package.__getattr__(name)), name
