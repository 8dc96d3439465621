"""The page of all operators, from their classes: ``python -m minitvm.lab.operators > docs/operators.md``."""

from __future__ import annotations

import sys
from pathlib import Path

import minitvm.ir.ops  # noqa: F401  (registers them)
from minitvm.ir.attributes import attributes_of, format_attribute
from minitvm.ir.builder import default_of
from minitvm.ir.op import OPS, Fusion, Op, signature

HEAD = """# Operators

Every operator of the graph IR, generated from its class by `python -m minitvm.lab.operators`; a test compares.
In Python `help(relay.nn.conv2d)` says the same, with what each attribute may be. [Add an
operator](add-an-operator.md) says what the columns mean to passes.

* **fusion**: what FuseOps may do with it (`ir/op.py`).
* **kernel**: how it becomes loops: `rule` (element by element), `loops` (statements of its own), `template` (it has
  nothing else), `host` (Python computes it in a run, or native code for control flow over known shapes).
* **traits**: what passes may rely on. The meaning in numpy is there unless `no reference` stands here.
* **attributes**: with their defaults; those without one have to be given.
"""

COLUMNS = "| operator | arguments | attributes | fusion | kernel | traits |"
TRAITS = ("stateful", "commutative", "view", "reads_in_place", "affine", "cuts", "homogeneous", "additive")


def page() -> str:
    """The page as it has to be."""
    families: dict[str, list[type[Op]]] = {}
    for op in OPS.values():
        if op.__module__.startswith("minitvm.ir.ops."):
            families.setdefault(op.__module__.rpartition(".")[2], []).append(op)
    count = sum(map(len, families.values()))
    text = [HEAD, f"{count} operators in {len(families)} families.", ""]
    for family, ops in sorted(families.items()):
        head = "| operator | arguments | attributes | fusion | kernel | traits |"
        text += [f"## {family}", "", head, f"|{'---|' * 6}"]
        text += [_row(op) for op in sorted(ops, key=lambda op: op.name)] + [""]
    return "\n".join(text)


def _row(op: type[Op]) -> str:
    attributes, traits = (", ".join(listed(op)) for listed in (_attributes, _traits))
    cells = [f"`{op.name}`", _arguments(op), attributes, _fusion(op), _kernel(op), traits]
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def _fusion(op: type[Op]) -> str:
    return Fusion(op.fusion).name.lower()


def _arguments(op: type[Op]) -> str:
    found = signature(op)
    names = [name if n < found.required else f"[{name}]" for n, name in enumerate(found.names)]
    return ", ".join([*names, *(["..."] if found.variadic else [])])


def _attributes(op: type[Op]) -> list[str]:
    known = attributes_of(op).values()
    return [f"`{a.name}`" if a.required else f"`{a.name}={format_attribute(default_of(op, a.name))}`" for a in known]


def _kernel(op: type[Op]) -> str:
    if op.has_compute():
        return "rule"
    if op.has_statements():
        return "loops"
    return "template" if op.lowered_by_template else "host"


def _traits(op: type[Op]) -> list[str]:
    found = [name.replace("_", " ") for name in TRAITS if getattr(op, name)]
    return found if op.has_reference() else [*found, "no reference"]


if __name__ == "__main__":
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
