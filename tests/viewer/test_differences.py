"""What a pass changed, as the page says it: no hunk has equal sides."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm.ir.expr import Constant
from minitvm.testing import mlp, resnet, transformer
from minitvm.viewer.document import passes_of
from minitvm.viewer.modules import Modules
from minitvm.viewer.page import _as_function, _asset

SCRIPT = """
const silent = { setAttribute() {}, append() {}, addEventListener() {} };
globalThis.document = { createElement: () => silent };
MODULES
Object.assign($data.doc, JSON.parse(require("fs").readFileSync(process.argv[2], "utf8")));
const unnumbered = ({ operands }) => operands.map((one) => one.replace(/^%.*/, "%"));
const text = (node) => $data.nodeText({ ...node, operands: unnumbered(node) }) + node.type;
const sides = ({ before, after }) => [before, after].map((nodes) => nodes.map(text).sort());
const found = $data.doc.passes.filter((pass) => pass.modules[0] !== pass.modules[1]).map((pass) =>
  [pass.name, $differ.changesOf(pass).filter((hunk) => !hunk.group).map(sides)]);
console.log(JSON.stringify(found));
"""


def hunks(report: Any, folder: pathlib.Path) -> list[Any]:
    """By pass, both sides of each hunk as text."""
    modules = "\n".join(_as_function(name, _asset(f"{name}.js")) for name in ("base", "data", "differ"))
    (folder / "script.cjs").write_text(SCRIPT.replace("MODULES", modules))
    (folder / "document.json").write_text(json.dumps(passes_of(report)))
    done = subprocess.run(
        ["node", folder / "script.cjs", folder / "document.json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_a_constant_is_its_content_and_its_label_says_which() -> None:
    array = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    modules = Modules({})
    given = [(array, "w"), (array.copy(), "v"), (array + 1, "w"), (array.copy(), "w")]
    found = [modules.constants.items[modules.constant(Constant(a, name=name))] for a, name in given]
    assert [label for label, *_ in found] == ["w", "v", "w (2)", "w"]
    contents = [content for *_, content in found]
    assert contents[0] == contents[1] == contents[3] != contents[2]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
@pytest.mark.parametrize("network", [mlp, resnet, transformer])
def test_no_hunk_has_equal_sides(network: Any, tmp_path: pathlib.Path) -> None:
    module, params = network.get_workload(**({"image_shape": (3, 32, 32)} if network is resnet else {}))
    library = minitvm.build(module, "llvm", params=params, opt_level=3, trace=True)
    found = hunks(library.report, tmp_path)
    assert sum(len(sides) for _, sides in found) > 0
    assert [(name, before) for name, sides in found for before, after in sides if before == after] == []
