"""Two builds side by side, by their documents: kernels that changed, their time and bytes, passes that did something
else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True)
class _Launch:
    """A node that runs.  ``text``: its code, whatever the kernel is called; ``names``: what others are paired by."""

    symbol: str
    role: str
    names: tuple[str, ...]
    seconds: float
    nbytes: float
    is_sure: bool
    text: tuple[str, ...]


def beside(this: Document, other: Document, name: str) -> dict[str, Any]:
    """What the page shows of another build beside its own.

    ``facts`` are ``[name, unit, this, other]``, ``kernels`` rows of launches that compute the same nodes of the model
    and are not alike (those that are: ``alike``), ``passes`` rows of runs that did not do the same; ``code`` holds the
    other's listings by kernel, of what changed.  Times are measured where both builds were.
    """
    is_measured = bool(this["run"] and other["run"])
    rows = list(map(_row, _paired(*(_launches(one, is_measured) for one in (this, other)))))
    changed = [row for row in rows if not row["alike"]]
    alike = [row for row in rows if row["alike"]]
    symbols = dict.fromkeys(symbol for row in changed for symbol, *_ in row["sides"][1])
    return {
        "names": [this["title"], name],
        "measured": is_measured,
        "facts": _facts(this, other, rows, is_measured),
        "kernels": changed,
        "alike": [sum(len(row["sides"][0]) for row in alike), *_sums(alike, "seconds")],
        "passes": list(_passes(this["passes"], other["passes"])),
        "code": {symbol: next(iter(other["code"][symbol].values())) for symbol in symbols if symbol in other["code"]},
    }


# --- kernels ----------------------------------------------------------------------------------------------------------


def _launches(document: Document, is_measured: bool) -> list[_Launch]:
    kernels = {kernel["symbol"]: kernel for kernel in document["kernels"]}
    measured = {row[0]: row for row in document["run"]["kernels"]} if is_measured else {}
    found, launched = [], {node["func"] for node in document["graph"]}
    for number, node in enumerate(document["graph"]):
        kernel, row = kernels.get(node["func"]), measured.get(number)
        runs = kernel is not None or node["kind"] == "python"  # what only has another shape does not
        if not runs or node.get("once"):
            continue
        role = kernel["role"] if kernel else node["name"]
        seconds = row[-1] if row else kernel["predicted"] if kernel else 0.0
        is_sure = row is None or row[1]["verdict"] == "reliable"
        names, text = tuple(node["spans"]) or (f"\n{role}",), _text(document, node["func"])
        found.append(_Launch(node["func"], role, names, seconds, kernel["bytes"] if kernel else 0, is_sure, text))
    return found + [_inside(document, one, not is_measured) for s, one in kernels.items() if s not in launched]


def _inside(document: Document, kernel: Mapping[str, Any], is_sure: bool) -> _Launch:
    """A kernel of a branch or a loop's body, once, as long as predicted: how often it runs the data decide."""
    names = tuple(kernel["nodes"]) or (f"\n{kernel['role']}",)
    text = _text(document, kernel["symbol"])
    return _Launch(kernel["symbol"], kernel["role"], names, kernel["predicted"], kernel["bytes"], is_sure, text)


def _text(document: Document, symbol: str) -> tuple[str, ...]:
    listings = next(iter(document["code"].get(symbol, {"": ""}).values()))
    if isinstance(listings, str):
        return (listings,)
    return tuple(line.replace(symbol, "") for listing in listings for line in listing["lines"])


Pair = tuple[list[_Launch], list[_Launch]]


def _paired(this: Sequence[_Launch], other: Sequence[_Launch]) -> list[Pair]:
    """Launches of both that share nodes of the model, directly or through others."""
    leaders: dict[str, str] = {}

    def leader(name: str) -> str:
        while leaders.setdefault(name, name) != name:
            name = leaders[name]
        return name

    for launch in (*this, *other):
        for name in launch.names:
            leaders[leader(name)] = leader(launch.names[0])
    found: dict[str, Pair] = {}
    for side, launches in enumerate((this, other)):
        for launch in launches:
            found.setdefault(leader(launch.names[0]), ([], []))[side].append(launch)
    return list(found.values())


def _row(pair: Pair) -> dict[str, Any]:
    names = dict.fromkeys(name for side in pair for launch in side for name in launch.names)
    return {
        "spans": [name for name in names if not name.startswith("\n")],
        "sides": [[[launch.symbol, launch.role] for launch in side] for side in pair],
        "seconds": [sum(launch.seconds for launch in side) for side in pair],
        "sure": [all(launch.is_sure for launch in side) for side in pair],
        "bytes": [sum(launch.nbytes for launch in side) for side in pair],
        "alike": Counter(launch.text for launch in pair[0]) == Counter(launch.text for launch in pair[1]),
    }


def _sums(rows: Sequence[Mapping[str, Any]], what: str) -> list[float]:
    return [sum(row[what][side] for row in rows) for side in (0, 1)]


def _facts(this: Document, other: Document, rows: Sequence[Mapping[str, Any]], is_measured: bool) -> list[list[Any]]:
    seconds = [one["run"]["seconds"] for one in (this, other)] if is_measured else _sums(rows, "seconds")
    launches = [sum(len(row["sides"][side]) for row in rows) for side in (0, 1)]

    def of(key: str) -> list[Any]:
        return [one[key] for one in (this, other)]

    return [
        *([name, "text", *of(name)] for name in ("target", "version", "machine")),
        ["threads", "count", *of("threads")],
        ["a run, measured" if is_measured else "a run, predicted", "time", *seconds],
        ["launches", "count", *launches],
        ["kernels", "count", *map(len, of("kernels"))],
        ["kernels read and write", "bytes", *_sums(rows, "bytes")],
        *([name, "bytes", *(memory[key] for memory in of("memory"))] for name, key in _MEMORY.items()),
    ]


_MEMORY = {"memory of values": "nbytes", "weights": "weights"}

# --- passes -----------------------------------------------------------------------------------------------------------


def _passes(this: Sequence[Document], other: Sequence[Document]) -> Iterator[dict[str, Any]]:
    """Runs in order, of one build, of the other, or of both where they did not do the same; ``numbers``: which runs."""
    names = [[str(step["name"]) for step in side] for side in (this, other)]
    for tag, start, end, first, last in SequenceMatcher(a=names[0], b=names[1], autojunk=False).get_opcodes():
        pairs = [*zip(range(start, end), range(first, last), strict=False)] if tag == "equal" else []
        alone = [] if pairs else [*((n, None) for n in range(start, end)), *((None, n) for n in range(first, last))]
        for here, there in (*pairs, *alone):
            done = [_done(this, here), _done(other, there)]
            if _fired(done[0]) != _fired(done[1]):
                step = this[here] if here is not None else other[there or 0]
                yield {"name": step["name"], "numbers": [here, there], "done": done}


def _done(passes: Sequence[Document], number: int | None) -> dict[str, Any] | None:
    """What a run did: whether it changed anything, how many calls more there were, how often which rule fired."""
    if number is None:
        return None
    step = passes[number]
    before, after = step["calls"]
    changed = step["modules"][0] != step["modules"][1]
    fired = Counter(by for by, _, taken, *_ in step["decisions"] if taken)
    declined = sum(not taken for _, _, taken, *_ in step["decisions"])
    return {"changed": changed, "more": after - before, "fired": sorted(map(list, fired.items())), "declined": declined}


def _fired(done: Mapping[str, Any] | None) -> Any:
    """What is compared of it; a run that did nothing is like none."""
    return (done["more"], done["fired"]) if done and (done["changed"] or done["fired"]) else None
