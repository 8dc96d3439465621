"""The core, and the rooms that can be taken out of the package: which files are whose, and how large each may be."""

from __future__ import annotations

import ast
import functools
import io
import pathlib
import tokenize
from dataclasses import dataclass
from fnmatch import fnmatchcase

import minitvm

ROOT = pathlib.Path(minitvm.__file__).parent


@dataclass(frozen=True)
class Room:
    """``files`` are patterns of paths inside the package, folders with all that is in them; ``most`` is code lines."""

    most: int
    files: tuple[str, ...]

    def has(self, file: str) -> bool:
        return any(fnmatchcase(file, one) or file.startswith(f"{one}/") for one in self.files)


def room(most: int, files: str) -> Room:
    return Room(most, tuple(files.split()))


_LOOPS, _PASSES = "codegen/templates", "passes"

ROOMS = {
    "cuda": room(6_045, "codegen/cuda runtime/nvidia ir/loop/warps.py"),
    "lab": room(6_060, "lab"),
    "viewer": room(995, "viewer codegen/llvm/origins.py"),
    "cli": room(1_849, "cli __main__.py"),
    "ort": room(
        3_014,
        "ort capi session.py onnx_backend.py generation.py runtime/kept.py runtime/specialised.py"
        " frontend/onnx/overrides.py",
    ),
    "tvm": room(
        5_150, "tvm relay contrib context.pyi error.pyi instrument.pyi module.pyi nd.pyi parser.pyi transform.pyi"
    ),
    "scopes": room(1_220, "scopes"),
    "torch": room(430, "torch"),
    "primer": room(1_000, "primer.py"),
    "testing": room(730, "testing"),
    "more": room(
        4_870,
        f"frontend/onnx/more ir/ops/more {_PASSES}/by_parts.py {_PASSES}/parallel_blocks.py {_LOOPS}/dense_blocks.py"
        f" {_LOOPS}/recurrent_quantized.py {_LOOPS}/running_sum.py {_LOOPS}/tensor_scatter.py",
    ),
    "tuner": room(
        987,
        "codegen/overrides.py codegen/records.py driver/tune.py */roofline.py runtime/measured.py runtime/debug.py"
        " runtime/profiled.py runtime/rounds.py codegen/llvm/peak.py",
    ),
    "interpreter": room(120, "codegen/interp runtime/interpreter.py"),
    "poison": room(155, "runtime/poison.py"),
    "control flow": room(810, "frontend/onnx/control.py frontend/onnx/lists.py ir/ops/control.py runtime/control.py"),
    "functions": room(230, "frontend/onnx/*functions.py"),
    "stages": room(340, f"{_PASSES}/in_stages.py {_PASSES}/caches.py ir/ops/stage.py runtime/staged.py"),
    "files of libraries": room(
        860,
        "runtime/archive.py runtime/param_dict.py runtime/document.py runtime/container.py runtime/graph_json.py"
        " runtime/host_json.py",
    ),
    "kernel cache": room(142, "runtime/cache.py"),
    "reading graphs": room(610, "ir/parser.py ir/reader.py ir/pickled.py"),
    "signing": room(95, "runtime/signing.py"),
    "verifying": room(
        815,
        f"ir/verify.py driver/verify.py {_PASSES}/verify.py {_PASSES}/bits.py {_PASSES}/compare.py"
        f" {_PASSES}/draws.py {_PASSES}/roundings.py {_PASSES}/values.py",
    ),
    "verifying loops": room(362, "ir/loop/verify.py"),
    "coverage": room(245, "codegen/coverage.py"),
    "stored dtypes": room(205, "codegen/storage.py codegen/quotients.py"),
    "vendors' libraries": room(160, f"codegen/libraries.py */cblas.py {_PASSES}/call_libraries.py"),
    "passes": room(
        686,
        f"{_PASSES}/combine.py {_PASSES}/convert_layout.py {_PASSES}/mixed_precision.py {_PASSES}/quantized.py"
        f" {_PASSES}/share_rows.py",
    ),
    "quantization": room(725, "quantize ir/ops/simulated.py"),
    "gradient": room(788, f"{_PASSES}/gradient"),
    "passes on request": room(153, f"{_PASSES}/on_request.py"),
    "partitioning": room(401, f"{_PASSES}/partition ir/ops/external.py"),
    "attention": room(968, f"{_PASSES}/attention.py ir/ops/nn_attention.py {_LOOPS}/attention*.py"),
    "pixels": room(715, " ".join(f"{_LOOPS}/conv_{one}.py" for one in ("pixels", "rows", "strips", "windows"))),
    "long sums": room(168, "codegen/long_sums.py"),
    "words of bytes": room(80, "codegen/llvm/dots.py"),
    "weights in few bytes": room(380, f"{_PASSES}/sink_cast.py ir/ops/quantize_blocks.py {_LOOPS}/scaled.py"),
    "shared memory": room(155, f"{_PASSES}/share_memory.py"),
    "large files": room(83, "frontend/onnx/mapped.py"),
    "open sizes": room(
        840,
        "runtime/bind.py runtime/bound.py runtime/lasting.py codegen/open_splits.py frontend/onnx/places.py"
        " ir/extremes.py",
    ),
    "open windows": room(380, f"{_PASSES}/tile_windows.py ir/ops/nn_tiles.py {_LOOPS}/window_open.py"),
    "winograd": room(764, f"{_PASSES}/winograd.py ir/ops/nn_winograd.py {_LOOPS}/winograd*.py"),
    "recurrent": room(565, f"frontend/onnx/rnn.py ir/ops/nn_recurrent.py {_LOOPS}/recurrent.py"),
    "resizing": room(565, "frontend/onnx/resize*.py ir/ops/image.py"),
}
"""What can be taken out, by itself with the rooms that need it."""

CORE_LINES, CORE_TOKENS, TOKENS_A_LINE = 25_775, 302_300, 11.75


def python_files() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def room_of(file: str) -> str:
    """The room of a file of the package; ``core`` where it belongs to none."""
    found = [name for name, room in ROOMS.items() if room.has(file)]
    assert len(found) <= 1, (file, found)
    return found[0] if found else "core"


_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@functools.cache
def size(file: str) -> tuple[int, int]:
    """Code lines and tokens of a file, without blanks, comments and docstrings."""
    text = (ROOT / file).read_text(encoding="utf-8")
    told = _docstring_lines(ast.parse(text))
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in _LAYOUT]
    tokens = [t for t in tokens if t.start[0] not in told]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)}), len(tokens)


def _docstring_lines(tree: ast.Module) -> set[int]:
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    told = [s for body in bodies for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)]
    texts = [s for s in told if isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)]
    return {line for s in texts for line in range(s.lineno, (s.end_lineno or s.lineno) + 1)}


def nested_deep(file: str) -> int:
    """Functions and lambdas of a file that stand inside two others or more."""

    def count(node: ast.AST, around: int) -> int:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        inside = around + is_function
        return (is_function and around >= 2) + sum(count(one, inside) for one in ast.iter_child_nodes(node))

    return count(ast.parse((ROOT / file).read_text(encoding="utf-8")), 0)


def sizes() -> dict[str, tuple[int, int]]:
    """Code lines and tokens by room."""
    found: dict[str, list[tuple[int, int]]] = {}
    for file in python_files():
        found.setdefault(room_of(file), []).append(size(file))
    return {room: (sum(a for a, _ in each), sum(b for _, b in each)) for room, each in found.items()}


@functools.cache
def names_that_are_run(file: str) -> set[str]:
    """Modules of the package that a file imports, at its top or late, or names in a string; not those for types."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minitvm"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("minitvm."):
            found.add(node.value)
    return found


def file_of(module: str) -> str | None:
    """The file of a module that is named with ``minitvm.`` in front; ``None`` where it is none."""
    path = module.removeprefix("minitvm.").replace(".", "/")
    return next((f for f in (f"{path}.py", f"{path}/__init__.py") if (ROOT / f).is_file()), None)


@functools.cache
def crossings() -> list[tuple[str, str]]:
    """Files that name a file of another room; that at the top may, and so does a room that needs another."""
    found = []
    for file in python_files():
        if file not in ("__init__.py", "rooms.py"):
            named = {other for other in map(file_of, names_that_are_run(file)) if other}
            found += [(file, other) for other in sorted(named) if room_of(other) not in ("core", room_of(file))]
    return found


def taken_with(name: str) -> set[str]:
    """A room and those that need it."""
    found, needs = {name}, {(room_of(file), room_of(other)) for file, other in crossings()}
    while more := {one for one, other in needs if other in found} - found:
        found |= more
    assert "core" not in found, [pair for pair in crossings() if room_of(pair[0]) == "core"]
    return found


if __name__ == "__main__":
    for name, (lines, tokens) in sorted(sizes().items(), key=lambda item: -item[1][0]):
        print(f"{name:12} {lines:7,} lines {tokens:8,} tokens {tokens / lines:5.1f} a line")
    for one in ROOMS:
        print(f"{one} is taken out with", *sorted(taken_with(one) - {one}))
