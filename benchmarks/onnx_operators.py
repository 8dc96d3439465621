"""The page of ONNX's operators, version by version, and how each runs: ``python -m benchmarks.onnx_operators`` writes
it, from the importer's table, ONNX's schemas and what came of ONNX's tests (``docs/coverage.md``)."""

from __future__ import annotations

import itertools
import pathlib
import re
from collections import defaultdict

import onnx

from minitvm.errors import is_own
from minitvm.frontend.onnx.elsewhere import OLDEST_OPSET
from minitvm.frontend.onnx.functions import has_definition
from minitvm.frontend.onnx.more.foreign import is_foreign
from minitvm.frontend.onnx.node import normal_domain
from minitvm.frontend.onnx.registry import BUILDERS, builder_for

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGE = DOCS / "onnx-operators.md"

HEAD = f"""# ONNX's operators

How minitvm imports every operator of onnx {onnx.__version__} (opset {onnx.defs.onnx_opset_version()}), and what became
of ONNX's own tests of it. `python -m benchmarks.onnx_operators` makes this page from the importer's table; a test
compares.

* **built**: a builder of minitvm's writes it in [operators of the graph](operators.md). They become kernels: loops, or
  for a product or a convolution a call of OpenBLAS, cuBLAS or cuDNN where the target's `-libs` names them.
* **defined**: ONNX defines it by other operators, which are imported in its place.
* **Python**: no kernel; onnx's reference evaluator computes it with numpy in a run. Such a *host call* is warned of
  once; `minitvm compile --strict` refuses it.
* **none**: not offered; a model with it is refused by name.

Versions are those of the operator sets that changed the operator. Nodes of opsets 1 to 6 are imported as what opset
{OLDEST_OPSET} makes of them: operands are broadcast from an axis on, shapes, tiles, types and paddings had other
places, some attributes other defaults. Of Dropout and batch normalization `is_test` is not read: nothing is dropped,
and statistics are the running ones unless the batch's own are among the outputs that somebody asks for. Nodes that only
move text, sequences, optionals or maps are built, but run in Python; what follows from constants is folded while
compiling. The last columns tell: how many of ONNX's tests of a single node ran in kernels, were folded, or ran in
Python, and how many of all pass.
"""

COLUMNS = "| operator | versions | here | kernels | folded | Python | pass |"


def page() -> str:
    """The page as it has to be."""
    versions: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    deprecated = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        domain = normal_domain(schema.domain)
        versions[domain][schema.name].append(int(schema.since_version))
        if schema.deprecated:
            deprecated.add((domain, schema.name, int(schema.since_version)))
    for (domain, name), builders in BUILDERS.items():
        if all(map(is_own, builders.values())) and not versions[domain][name]:
            versions[domain][name] = sorted(builders)
    tested = outcomes()
    ways = {
        (domain, name): [
            (since, "deprecated" if (domain, name, since) in deprecated else way(name, domain, since))
            for since in sorted(found)
        ]
        for domain, operators in versions.items()
        for name, found in operators.items()
    }
    last = [entries[-1][1] for entries in ways.values()]
    count = ", ".join(f"{last.count(kind)} {kind}" for kind in ("built", "defined", "Python", "deprecated", "none"))
    lines = [HEAD, f"{len(ways)} operators: {count}."]
    for domain, operators in sorted(versions.items()):
        lines += ["", f"## {domain or 'ai.onnx'}", ""]
        if domain.startswith("com.microsoft"):
            lines += ["ONNX Runtime's own; beside ONNX Runtime: [contrib](contrib.md).", ""]
        lines += [COLUMNS, "|---|---|---|---|---|---|---|"]
        lines += [row(domain, name, ways[domain, name], tested) for name in sorted(operators)]
    return "\n".join(lines) + "\n"


def way(name: str, domain: str, since: int) -> str:
    """How the importer takes a node of an operator in the operator set that defined it so."""
    node = onnx.helper.make_node(name, [], [], domain=domain)
    opset = since if domain else max(since, OLDEST_OPSET)
    if builder_for(domain, name, opset) is not None:
        return "built"
    if has_definition(node, opset, lambda inner, version: way(inner.op_type, inner.domain, version) != "none"):
        return "defined"
    return "Python" if is_foreign(node, domain, opset) else "none"


def row(domain: str, name: str, ways: list[tuple[int, str]], tested: dict[str, list[str]]) -> str:
    runs = [(kind, [since for since, _ in run]) for kind, run in itertools.groupby(ways, key=lambda entry: entry[1])]
    here = ", ".join(kind if len(runs) == 1 else f"{kind} from {found[0]}" for kind, found in runs)
    counts = tested.get(f"{domain}.{name}" if domain else name, [""] * 4)
    return f"| `{name}` | {', '.join(str(since) for since, _ in ways)} | {here} | {' | '.join(counts)} |"


def outcomes() -> dict[str, list[str]]:
    """Of each operator, ONNX's tests that ran in kernels, were folded, ran in Python, and passed of all."""
    found = {}
    for name, cells in re.findall(r"^\| `([\w.]+)` \|(.*)\|$", (DOCS / "coverage.md").read_text("utf-8"), re.MULTILINE):
        tests, passed, compiled, folded, python, *_ = map(str.strip, cells.split("|"))
        found[name] = [compiled, folded, python, f"{passed or 0} of {tests}"]
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
