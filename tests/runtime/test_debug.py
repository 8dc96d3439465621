"""The debug executor: the same numbers node by node, a table, a trace."""

from __future__ import annotations

import json
import pathlib
import zlib

import numpy as np
import pytest
from small_model import Model, expected, sample

import minitvm
from minitvm.errors import ConfigError, InputError, LibraryError
from minitvm.runtime.debug import ROUNDS, GraphModuleDebug
from minitvm.runtime.measured import SPREAD, Measured
from minitvm.runtime.profiled import Profile, ProfiledCall


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


def test_a_profile_has_every_step_and_the_whole(model: Model) -> None:
    module = debug(model)
    found = module.profile(x=sample(6))
    np.testing.assert_allclose(module.get_output(0).numpy(), expected(model[1], sample(6))[0], rtol=1e-5)
    steps = [node for node in module.instance.artifact.graph.nodes if not node.is_null]
    assert [one.name for one in found.calls] == [node.func for node in steps]
    assert all(one.seconds.runs == ROUNDS and one.seconds.seconds > 0 for one in found.calls)
    assert found.calls[0].shapes.startswith("float32[2, 6], float32[")
    lines = str(found).splitlines()
    assert lines[0].split("  ")[0] == "Name" and "Duration (us)" in lines[0] and "Argument Shapes" in lines[0]
    assert sorted(line.split()[0] for line in lines[1 : 1 + len(steps)]) == sorted(node.func for node in steps)
    assert [line.split()[0] for line in found.table(sort=False).splitlines()[1 : 1 + len(steps)]] == [
        node.func for node in steps
    ]
    assert [line.split(",")[0] for line in found.csv().splitlines()] == ["Name", *(node.func for node in steps)]
    form = json.loads(found.json())
    assert [one["Name"]["string"] for one in form["calls"]] == [one.name for one in found.calls]
    assert form["device_metrics"]["cpu(0)"]["Duration (us)"]["microseconds"] == pytest.approx(found.total.seconds * 1e6)
    with pytest.raises(ConfigError, match="there are no collectors"):
        module.profile(["PAPI"], x=sample(6))


def test_what_cannot_be_believed_is_marked_and_calls_that_are_alike_are_one() -> None:
    call = ProfiledCall("k", Measured(2e-6, runs=9), "cpu(0)", "float32[4]", 1e-6)
    doubtful = ProfiledCall("k", Measured(9e-6, 3.0, 9, SPREAD), "cpu(0)", "float32[4]", 1e-6)
    other = ProfiledCall("k", Measured(4e-6, runs=9), "cpu(0)", "float32[5]")
    found = Profile((call, doubtful, other), Measured(10e-6, runs=9))
    rows = [line.split()[:5] for line in found.table().splitlines()]
    assert rows[1:3] == [["k", "4.00", "40.00", "cpu(0)", "1"], ["k", "~2.00", "20.00", "cpu(0)", "2"]]
    assert rows[4:6] == [["Sum", "6.00", "60.00", "cpu(0)", "3"], ["Total", "10.00", "100.00", "cpu(0)", "1"]]
    assert found.table().splitlines()[-1].startswith("unreliable: times of 1 of 4 steps (1 spread too widely)")
    assert len(found.table(aggregate=False, col_sums=False).splitlines()) == 1 + 3 + 1


def test_nodes_one_by_one(model: Model) -> None:
    module = debug(model)
    module.set_input("x", sample(7))
    found = module.run_individual(number=2, repeat=3)
    nodes = module.instance.artifact.graph.nodes
    assert [len(times) for times in found] == [3] * len(nodes)
    assert [all(time > 0 for time in times) for times in found] == [not node.is_null for node in nodes]
    np.testing.assert_allclose(module.get_output(0).numpy(), expected(model[1], sample(7))[0], rtol=1e-5)
    assert module.run_individual_node("x", repeat=2).results == [0.0, 0.0]
    assert len(module.run_individual_node(len(nodes) - 1, number=1, repeat=4).results) == 4
    with pytest.raises(InputError, match="the graph has no node"):
        module.run_individual_node(len(nodes))
    with pytest.raises(InputError, match="input not set: x"):
        debug(model).run_individual()


def test_the_result_of_debugging_has_the_longest_first(model: Model) -> None:
    module = debug(model)
    module.run_quietly(x=sample(8))
    times = [float(line.split()[2]) for line in module.debug_datum.get_debug_result().splitlines()[2:-1]]
    assert times == sorted(times, reverse=True)
    assert module.get_debug_result(sort_by_time=False) == module.table()
