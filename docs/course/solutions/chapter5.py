"""Solutions of chapter 5."""

from minitvm.ir.expr import Function
from minitvm.ir.types import leaves
from minitvm.ir.visitor import calls

Graph = dict[str, list[str]]


def common(one: str | None, other: str | None, parent: dict[str, str | None], depth: dict[str, int]) -> str | None:
    while one != other:
        if one is None:
            return None
        if depth[one] >= depth[other]:
            one = parent[one]
        else:
            other = parent[other]
    return one


def post_dominators(users: Graph) -> dict[str, str | None]:
    parent: dict[str, str | None] = {}
    depth: dict[str, int] = {}
    for node in reversed(users):
        found = users[node][0] if users[node] else None
        for user in users[node][1:]:
            found = common(found, user, parent, depth)
        parent[node] = found
        depth[node] = 1 if found is None else depth[found] + 1
    return parent


def between(users: Graph, node: str, end: str) -> set[str]:
    """All nodes on ways from a node to its post-dominator, which is one of them."""
    found = {end}
    pending = list(users[node])
    while pending:
        step = pending.pop()
        if step not in found:
            found.add(step)
            pending.extend(users[step])
    return found


def groups(users: Graph, kinds: dict[str, str]) -> list[set[str]]:
    group = {node: {node} for node in users}
    parent = post_dominators(users)

    def try_to_fuse(node: str, ends: tuple[str, ...]) -> None:
        end = parent[node]
        if end is None:
            return
        way = between(users, node, end)
        if kinds[end] not in ends or any(kinds[n] != "elementwise" for n in way - {end}):
            return
        joined = set().union(group[node], *(group[n] for n in way))
        if sum(kinds[n] != "elementwise" for n in joined) <= 1:
            for member in joined:
                group[member] = joined

    for node in users:
        if kinds[node] == "heavy":
            try_to_fuse(node, ("elementwise",))
    for node in users:
        if kinds[node] == "elementwise":
            try_to_fuse(node, ("elementwise", "reduce"))
    return list({id(g): g for g in group.values()}.values())


def bytes_moved(function: Function) -> int:
    types = [t for call in calls(function.body) for t in (*(a.type for a in call.args), call.type)]
    return sum(tensor.nbytes for type_ in types for tensor in leaves(type_))
