"""Roles of kernels, and steps with what repeats put together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitvm
from minitvm import relay
from minitvm.testing import transformer
from minitvm.viewer.overview import _Step, blocks_of, overview_of
from minitvm.viewer.roles import role_of, roles_of

image, rows = relay.var("x", shape=(1, 8, 6, 6)), relay.var("y", shape=(4, 8))


def filters(*shape: int) -> Any:
    return relay.var("w", shape=shape)


CASES = {
    "conv 3x3, 8 → 4 + relu": relay.nn.relu(relay.nn.conv2d(image, filters(4, 8, 3, 3), padding=1)),
    "conv 1x1, 8 → 4 in 2 groups": relay.nn.conv2d(image, filters(4, 4, 1, 1), groups=2),
    "depthwise conv 3x3, 8": relay.nn.conv2d(image, filters(8, 1, 3, 3), groups=8),
    "transposed conv 2x2, 8 → 5": relay.nn.conv2d_transpose(image, filters(8, 5, 2, 2)),
    "max pool 2x2": relay.nn.max_pool2d(image, pool_size=(2, 2)),
    "dense 8 → 3": relay.nn.dense(rows, filters(3, 8)),
    "exp + negative": relay.negative(relay.exp(rows)),
    "transpose": relay.transpose(rows),
    "copy": rows,
}


@pytest.mark.parametrize("role", CASES)
def test_a_role_is_what_most_of_the_work_is_for(role: str) -> None:
    body = CASES[role]
    module = relay.transform.InferType()(relay.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body)))
    assert role_of(module["main"]) == role


def test_roles_that_are_alike_are_told_apart() -> None:
    small, large = (relay.nn.relu(relay.var("x", shape=shape)) for shape in ((2, 3), (4, 5)))
    groups = {}
    for symbol, body in (("a", small), ("b", large), ("c", large)):
        module = relay.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
        groups[symbol] = relay.transform.InferType()(module)["main"]
    assert roles_of(groups) == {"a": "relu, 2x3", "b": "relu, 4x5 (1)", "c": "relu, 4x5 (2)"}


def steps(names: str, scopes: list[str] | None = None) -> list[_Step]:
    return [_Step(n, name, (f"{scopes[n]}/op",) if scopes else ()) for n, name in enumerate(names)]


def test_what_repeats_is_put_together_and_so_is_what_repeats_in_it() -> None:
    [first, block, last] = blocks_of(steps("s" + "abbbc" * 3 + "e"))
    assert (first, last) == (0, 16)
    times, name, [a, inner, c], numbers = block
    assert (times, name, a, c, numbers) == (3, "a, b, c", 1, 5, [*range(1, 16)])
    assert inner == [3, "b", [2], [2, 3, 4]]


def test_a_block_begins_where_its_scope_does() -> None:
    """The same sequence is three times "ba" too."""
    scopes = ["stem", "stem", "net/1", "net/1", "net/2", "net/2", "net/3", "net/3"]
    *_, block = blocks_of(steps("xbabab" + "ab", scopes))
    assert block[0] == 3 and block[3] == [2, 3, 4, 5, 6, 7] and block[1] == "net"


@given(st.text("abc", max_size=24))
def test_every_step_is_in_one_block(names: str) -> None:
    def numbers(items: list[Any]) -> list[int]:
        return [n for item in items for n in (item[3] if isinstance(item, list) else [item])]

    def check(items: list[Any]) -> None:
        for times, _, once, whole in (item for item in items if isinstance(item, list)):
            parts = [whole[i : i + len(whole) // times] for i in range(0, len(whole), len(whole) // times)]
            assert len(parts) == times > 1 and numbers(once) == parts[0]
            assert len({"".join(names[n] for n in part) for part in parts}) == 1
            check(once)

    found = blocks_of(steps(names))
    assert numbers(found) == [*range(len(names))]
    check(found)


def test_layers_of_a_transformer_are_one_block() -> None:
    module, params = transformer.get_workload(1, 8, num_layers=3, hidden_size=48, num_heads=4)
    report = minitvm.build(module, params=params, opt_level=3, trace=True).report
    overview = overview_of(report, roles_of(report.groups))
    [[times, name, once, _]] = overview["blocks"]
    assert (times, name, len(once)) == (3, "transformer layer", 7)
    assert any(told.startswith("3 attentions in one kernel each") for told, _ in overview["told"])
