"""The debug executor: the same numbers node by node, a table, a trace."""

from __future__ import annotations

import json
import pathlib
import zlib

import numpy as np
import pytest
from small_model import Model, expected, sample

import minitvm
from minitvm.errors import InputError, LibraryError
from minitvm.runtime.debug import GraphModuleDebug


def debug(model: Model, dump_root: pathlib.Path | None = None) -> GraphModuleDebug:
    library, device = model[2], minitvm.cpu(0)
    return minitvm.contrib.debugger.debug_executor.GraphModuleDebug(
        library["debug_create"]("default", device), [device], library.graph_json, dump_root
    )


def test_node_by_node_gives_the_same_and_keeps_every_result(model: Model) -> None:
    module = debug(model)
    records = module.run_quietly(x=sample(3))
    whole = minitvm.GraphModule(model[2]["default"]())
    whole.run(x=sample(3))
    for i in range(2):
        np.testing.assert_array_equal(module.get_output(i).numpy(), whole.get_output(i).numpy())
    np.testing.assert_array_equal(module.debug_get_output("x").numpy(), sample(3))
    kept = module.debug_get_output(records[-1].node.name).numpy()
    assert records[-1].checksum == zlib.crc32(kept.tobytes())
    hidden = expected(model[1], sample(3))[1]
    assert any(
        record.node.types[0].size == 10
        and np.allclose(module.debug_get_output(record.index).numpy().ravel(), hidden, rtol=1e-5, atol=1e-6)
        for record in records
    )


def test_the_table_names_every_node_and_its_kernel(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    module = debug(model)
    module.run(number=3, x=sample(4))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["Node", "Kernel", "Time(us)", "Time(%)"]
    assert [line.split()[0] for line in lines[2:-1]] == [record.node.name for record in module.records]
    assert lines[-1].split()[0] == "total"
    assert all(len(record.seconds) == 3 for record in module.records)
    assert sum(float(line.split()[3]) for line in lines[2:-1]) == pytest.approx(100, abs=0.5)


def test_the_trace_has_a_pair_of_events_per_node(model: Model, tmp_path: pathlib.Path) -> None:
    module = debug(model, tmp_path / "dump")
    module.run(x=sample(5))
    events = json.loads((tmp_path / "dump" / "trace.json").read_text())["traceEvents"]
    assert [e["ph"] for e in events] == ["B", "E"] * len(module.records)
    times = [e["ts"] for e in events]
    assert times == sorted(times)
    assert json.loads((tmp_path / "dump" / "graph.json").read_text()) == json.loads(model[2].graph_json)


def test_errors(model: Model) -> None:
    module = debug(model)
    with pytest.raises(InputError, match=r"^input not set: x\n"):
        module.run_quietly()
    with pytest.raises(InputError, match=r"^the graph has no node 'conv'\n  = hint: its nodes are: x, "):
        module.debug_get_output("conv")
    with pytest.raises(InputError, match=r"^node \d has not run yet\n  = hint: call run\(\) first$"):
        module.debug_get_output(len(json.loads(model[2].graph_json)["nodes"]) - 1)


def test_made_of_its_parts(model: Model, tmp_path: pathlib.Path) -> None:
    library, create = model[2], minitvm.contrib.debugger.debug_executor.create
    made = create(library.graph_json, library, minitvm.cpu(), tmp_path)
    assert isinstance(made, GraphModuleDebug) and made.dump_root == tmp_path
    with pytest.raises(LibraryError, match="the graph JSON is not the one"):
        create("{}", library, minitvm.cpu())
