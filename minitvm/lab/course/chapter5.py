"""Grades chapter 5: post-dominators, groups, and the bytes that fusion saves."""

from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from minitvm.ir import builder as relay
from minitvm.ir.expr import Module
from minitvm.lab.course.check import Chapter, Wrong, same
from minitvm.passes import FuseOps, InferType

CHAPTER = Chapter("chapter5", "Fusion as post-dominance")
_ANSWER = ("passes/fuse_ops.py",)

Graph: TypeAlias = dict[str, list[str]]

# --- 5.1 ------------------------------------------------------------------------------------------------------

dominators = CHAPTER.exercise("post_dominators", "5.1", forbids=_ANSWER)


def _reaches_a_result(users: Graph, start: str, without: str) -> bool:
    seen, pending = {start}, [start]
    while pending:
        node = pending.pop()
        if not users[node]:
            return True
        new = [u for u in users[node] if u != without and u not in seen]
        seen.update(new)
        pending.extend(new)
    return False


def expected_dominators(users: Graph) -> dict[str, str | None]:
    """The dominators by definition: a node without which no result is reached; of several the first in order."""
    order = list(users)
    found: dict[str, str | None] = {}
    for at, node in enumerate(order):
        after = (other for other in order[at + 1 :] if not _reaches_a_result(users, node, other))
        found[node] = next(after, None)
    return found


def drawn(seed: int, nodes: int, results: int = 1) -> Graph:
    """A random graph in which every node has users but the last ones."""
    rng = np.random.default_rng(seed)
    users: Graph = {}
    for n in range(nodes):
        later = min(4, nodes - n - 1)
        count = 0 if n >= nodes - results else int(rng.integers(1, 1 + min(2, later)))
        steps = sorted({int(s) for s in rng.integers(1, later + 1, count)}) if count else []
        users[f"n{n}"] = [f"n{n + s}" for s in steps]
    return users


def _agree(post_dominators: Any, users: Graph, hint: str) -> None:
    found, expected = post_dominators({n: list(u) for n, u in users.items()}), expected_dominators(users)
    if not isinstance(found, dict):
        raise Wrong(f"it returned {found!r}", "return a dictionary with every node in it")
    for node, wanted in expected.items():
        if node not in found:
            raise Wrong(f"{node} of {users} is missing in the answer", "every node has an entry, results have None")
        same(found[node], wanted, f"the post-dominator of {node} in {users}", hint)


@dominators.check("a chain: the next node; a result: none")
def _(post_dominators: Any) -> None:
    _agree(post_dominators, {"x": ["conv"], "conv": ["relu"], "relu": []}, "with one user, it is that user")


@dominators.check("a diamond: where both ways meet")
def _(post_dominators: Any) -> None:
    hint = "of several users: where their own ways up the tree meet first, so go through the nodes in reverse"
    _agree(post_dominators, {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["e"], "e": []}, hint)
    _agree(post_dominators, {"a": ["b", "c"], "b": ["c"], "c": []}, hint)


@dominators.check("two results: no node that all ways run through")
def _(post_dominators: Any) -> None:
    hint = "the ways end in different results: None"
    _agree(post_dominators, {"a": ["b", "c"], "b": [], "c": []}, hint)
    _agree(post_dominators, {"z": ["a"], "a": ["b", "c"], "b": [], "c": []}, hint)


@dominators.check("60 random graphs", points=2)
def _(post_dominators: Any) -> None:
    for seed in range(60):
        hint = "walk up from the deeper of two nodes until both are the same; depth is the post-dominator's and one"
        _agree(post_dominators, drawn(seed, 3 + seed % 12, 1 + seed % 3 // 2), hint)


# --- 5.2 ------------------------------------------------------------------------------------------------------

fusion = CHAPTER.exercise("groups", "5.2", forbids=_ANSWER)


def _checked(groups: Any, users: Graph, kinds: dict[str, str]) -> list[set[str]]:
    """The student's groups, which every rule of the chapter allows."""
    found = groups({n: list(u) for n, u in users.items()}, dict(kinds))
    if not isinstance(found, list) or not all(isinstance(g, (set, frozenset)) for g in found):
        raise Wrong(f"it returned {found!r}", "return a list of sets of names")
    shown = f"{_shown(found)} of {users} with {kinds}"
    members = sorted(name for group in found for name in group)
    if members != sorted(users):
        raise Wrong(f"not every node is in one group: {shown}", "a node that fuses with nothing is a group of one")
    for group in found:
        _check_group(set(group), users, kinds, shown)
    return [set(g) for g in found]


def _shown(found: list[set[str]]) -> str:
    return " | ".join(sorted(" ".join(sorted(g)) for g in found))


def _check_group(group: set[str], users: Graph, kinds: dict[str, str], shown: str) -> None:
    special = sorted(n for n in group if kinds[n] != "elementwise")
    if len(special) > 1:
        raise Wrong(f"{' and '.join(special)} in one group: {shown}", "one heavy, reducing or opaque node in a group")
    seen = [n for n in group if not users[n] or any(u not in group for u in users[n])]
    if len(seen) > 1:
        hint = "a kernel has one result: what somebody outside reads may only be the group's last node"
        raise Wrong(f"{' and '.join(sorted(seen))} are both read outside of their group: {shown}", hint)
    for name in special:
        _check_special(name, group, users, kinds, shown)


def _check_special(name: str, group: set[str], users: Graph, kinds: dict[str, str], shown: str) -> None:
    if kinds[name] == "opaque" and len(group) > 1:
        raise Wrong(
            f"{name} is opaque, and not alone: {shown}", "nothing is known of opaque nodes: they fuse with nothing"
        )
    if kinds[name] == "reduce" and any(u in group for u in users[name]):
        raise Wrong(f"{name} reduces, and its user is in its group: {shown}", "a reduction ends its group")
    if kinds[name] == "heavy" and any(name in users[other] for other in group):
        hint = "elementwise nodes go behind a convolution, not before it: it reads each element many times"
        raise Wrong(f"an operand of {name} is in its group: {shown}", hint)


def _count(groups: Any, users: Graph, kinds: dict[str, str], most: int, hint: str) -> None:
    found = _checked(groups, users, kinds)
    if len(found) > most:
        raise Wrong(f"{len(found)} groups where {most} will do: {_shown(found)} of {users} with {kinds}", hint)


def chain(text: str) -> tuple[Graph, dict[str, str]]:
    """``conv:heavy relu`` as a chain; what has no kind is elementwise."""
    pairs = [part.partition(":") for part in text.split()]
    names = [name for name, _, _ in pairs]
    users = {name: names[n + 1 : n + 2] for n, name in enumerate(names)}
    return users, {name: kind or "elementwise" for name, _, kind in pairs}


@fusion.check("a convolution takes the bias and the rectifier behind it")
def _(groups: Any) -> None:
    hint = "fuse a heavy node with its post-dominator, and again with that one's: the chain becomes one group"
    _count(groups, *chain("conv:heavy bias relu"), 1, hint)
    _count(groups, *chain("conv:heavy bias relu conv2:heavy relu2"), 2, hint)


@fusion.check("a residual block is two kernels")
def _(groups: Any) -> None:
    users = {"in": ["conv1", "add"], "conv1": ["relu"], "relu": ["conv2"], "conv2": ["add"], "add": ["out"], "out": []}
    kinds = {n: "heavy" if "conv" in n else "opaque" if n == "in" else "elementwise" for n in users}
    _count(groups, users, kinds, 3, "in is opaque and alone; conv1 takes relu, conv2 takes add and out")


@fusion.check("a diamond of elementwise nodes goes in whole, or not at all")
def _(groups: Any) -> None:
    users = {"conv": ["exp", "tanh"], "exp": ["mul"], "tanh": ["mul"], "mul": []}
    kinds = {n: "heavy" if n == "conv" else "elementwise" for n in users}
    _count(groups, users, kinds, 1, "fuse with the post-dominator and everything on the ways there")
    kinds["tanh"] = "opaque"
    _count(groups, users, kinds, 3, "one way is blocked: conv stays alone, exp and mul may fuse")


@fusion.check("two convolutions that meet in a sum: one of them takes it")
def _(groups: Any) -> None:
    users = {"conv1": ["add"], "conv2": ["add"], "add": ["relu"], "relu": []}
    kinds = {n: "heavy" if "conv" in n else "elementwise" for n in users}
    _count(groups, users, kinds, 2, "merge only where the joined group has one heavy node")


@fusion.check("a softmax: what is before a reduction goes into it, what is behind does not")
def _(groups: Any) -> None:
    users = {"x": ["max", "sub"], "max": ["sub"], "sub": ["exp"], "exp": ["sum", "div"], "sum": ["div"], "div": []}
    kinds = {n: "reduce" if n in ("max", "sum") else "elementwise" for n in users}
    found = _checked(groups, users, kinds)
    hint = "sub's only user is exp: they fuse; exp is read by sum and div, and a reduction is on the way to div"
    if len(found) > 5:
        raise Wrong(f"{len(found)} groups where 5 will do: {_shown(found)}", hint)
    _count(groups, *chain("a b total:reduce c d"), 2, "elementwise nodes fuse into the reduction behind them")


def _as_few_as_allowed(found: list[set[str]], users: Graph, kinds: dict[str, str]) -> None:
    for one, other in combinations(found, 2):
        try:
            _check_group(one | other, users, kinds, "")
        except Wrong:
            continue
        names = [" ".join(sorted(group)) for group in (one, other)]
        shown = f"{_shown(found)} of {users} with {kinds}"
        raise Wrong(f"{names[0]} and {names[1]} could be one group: {shown}", "as few groups as the rules allow")


@fusion.check("100 random graphs: all rules hold, and no two groups could be one", points=2)
def _(groups: Any) -> None:
    rng = np.random.default_rng(5)
    for seed in range(100):
        users = drawn(seed, 4 + seed % 10, 1 + seed % 2)
        some = [*["elementwise"] * 3, "heavy", "reduce", "opaque"]
        kinds = {n: str(rng.choice(some)) for n in users}
        _as_few_as_allowed(_checked(groups, users, kinds), users, kinds)


# --- 5.3 ------------------------------------------------------------------------------------------------------

traffic = CHAPTER.exercise("bytes_moved", "5.3")


def _block() -> Module:
    x = relay.var("x", shape=(1, 8, 16, 16))
    weight = relay.const(np.ones((8, 8, 3, 3), "float32"))
    made = relay.nn.relu(relay.nn.conv2d(x, weight, padding=(1, 1)) + relay.const(np.ones((8, 1, 1), "float32")))
    return InferType()(Module.from_expr(made))


_IMAGE, _WEIGHT, _BIAS = 4 * 8 * 16 * 16, 4 * 8 * 8 * 9, 4 * 8


@traffic.check("operands and result of every call")
def _(bytes_moved: Any) -> None:
    hint = "conv reads x and the weight and writes an image, + reads that and the bias, relu reads and writes an image"
    same(bytes_moved(_block().main), 6 * _IMAGE + _WEIGHT + _BIAS, "a convolution, + and relu", hint)


@traffic.check("a group counts as one call")
def _(bytes_moved: Any) -> None:
    fused = FuseOps()(_block()).main
    hint = "calls(function.body) does not enter groups: each call's own args and type are all there is to count"
    same(bytes_moved(fused), 2 * _IMAGE + _WEIGHT + _BIAS, "the same, fused", hint)


@traffic.check("tuples count as what is in them, dtypes by their width")
def _(bytes_moved: Any) -> None:
    x = relay.var("x", shape=(4, 6), dtype="float16")
    both = relay.concatenate([x, relay.negative(x)], axis=0)
    hint = "leaves(type) gives the tensors of a type; TensorType.nbytes, or size times the width of the dtype"
    same(bytes_moved(relay.function(both)), 2 * (24 + 24 + 24 + 24 + 48), "concatenate((x, -x)) of float16[4, 6]", hint)
