"""Small drawings as SVG, for pages and notebooks: trees, graphs, grids of cells, and memory over time.

tree({"conv": "add", "add": "relu", "relu": None})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TypeAlias

import numpy as np

COLOURS = ("#3f6f9f", "#b0641a", "#3f7f50", "#a8484c", "#6f629c", "#7a6653", "#96508d", "#5f6b6c", "#7f7018", "#2c7884")
"""Fills that follow each other, dark enough for white letters."""
CELL, NODE_WIDTH, NODE_HEIGHT, GAP = 26, 92, 26, 22
Point: TypeAlias = tuple[float, float]


class Picture:
    """A drawing.  A notebook shows it where it is a cell's last line; ``svg`` is its text."""

    def __init__(self, width: float, height: float, parts: Iterable[str]) -> None:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}"'
        style = 'font-family="sans-serif" font-size="12" text-anchor="middle" dominant-baseline="central"'
        ground = f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
        self.width, self.height = width, height
        self.svg = "\n".join([f'{head} viewBox="0 0 {width:g} {height:g}" {style}>', ground, *parts, "</svg>", ""])

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Picture of {self.width:g} x {self.height:g}>"


def tree(parents: Mapping[str, str | None]) -> Picture:
    """Each node below its parent; those without one are roots."""
    children: dict[str | None, list[str]] = {}
    for node, parent in parents.items():
        children.setdefault(parent, []).append(node)
    order, places = _below(children), dict[str, Point]()
    leaves = 0
    for node, depth in reversed(order):  # children before parents, the last ones first
        own = [places[child][0] for child in children.get(node, ())]
        places[node] = (sum(own) / len(own) if own else -leaves, depth)
        leaves += not own
    return _nodes(places, [(node, parent) for node, parent in parents.items() if parent is not None])


def _below(children: Mapping[str | None, Sequence[str]]) -> list[tuple[str, int]]:
    """All nodes with their depths, parents before children."""
    order: list[tuple[str, int]] = []
    pending = [(root, 0) for root in reversed(children.get(None, ()))]
    while pending:
        node, depth = pending.pop()
        order.append((node, depth))
        pending += [(child, depth + 1) for child in reversed(children.get(node, ()))]
    return order


def graph(users: Mapping[str, Sequence[str]]) -> Picture:
    """Nodes, operands before users, with a line to each user; each is a row below the last of its operands."""
    rows = dict.fromkeys(users, 0)
    for node in users:
        for user in users[node]:
            rows[user] = max(rows[user], rows[node] + 1)
    by_row = {row: [node for node in users if rows[node] == row] for row in rows.values()}
    widest = max(map(len, by_row.values()), default=0)
    places: dict[str, Point] = {}
    for row, nodes in by_row.items():
        places.update({node: (n + (widest - len(nodes)) / 2, row) for n, node in enumerate(nodes)})
    return _nodes(places, [(node, user) for node in users for user in users[node]])


def _nodes(places: Mapping[str, Point], lines: Iterable[tuple[str, str]]) -> Picture:
    """Boxes in columns and rows."""
    least = min((x for x, _ in places.values()), default=0)
    centres = {
        node: (GAP + NODE_WIDTH / 2 + (x - least) * (NODE_WIDTH + GAP), GAP + (y + 0.5) * NODE_HEIGHT + y * GAP)
        for node, (x, y) in places.items()
    }
    parts = [
        f'<line x1="{a:g}" y1="{b:g}" x2="{c:g}" y2="{d:g}" stroke="#555"/>'
        for (a, b), (c, d) in ((centres[one], centres[other]) for one, other in lines)
    ]
    for node, (x, y) in centres.items():
        parts.append(_box(x - NODE_WIDTH / 2, y - NODE_HEIGHT / 2, NODE_WIDTH, NODE_HEIGHT, COLOURS[0], node))
    right, bottom = (max((c[axis] for c in centres.values()), default=0) for axis in (0, 1))
    return Picture(right + NODE_WIDTH / 2 + GAP, bottom + NODE_HEIGHT / 2 + GAP, parts)


def grids(given: Mapping[str, np.ndarray]) -> Picture:
    """Arrays of small numbers below each other: a row or a matrix of cells each, coloured by number; -1 is empty."""
    parts, top, widest = list[str](), float(GAP), 0
    for name, array in given.items():
        rows = np.atleast_2d(array)
        parts.append(_text(GAP, top, name, "start"))
        for i, row in enumerate(rows.tolist()):
            for j, number in enumerate(row):
                colour = "#eee" if number < 0 else COLOURS[number % len(COLOURS)]
                label = "" if number < 0 else str(number)
                parts.append(_box(GAP + j * CELL, top + 14 + i * CELL, CELL, CELL, colour, label))
        top += 14 + len(rows) * CELL + GAP
        widest = max(widest, rows.shape[1])
    return Picture(2 * GAP + max(widest * CELL, 160), top, parts)


def lives(steps: Sequence[tuple[str, Sequence[str], int]], offsets: Mapping[str, int], scale: float = 1.0) -> Picture:
    """A plan of memory: steps to the right, bytes upwards (``scale`` of them a pixel); a box for each result, as wide
    as it lives, as high as it is large.  A step is (name, names of what it reads, bytes of its result)."""
    last = {name: at for at, (name, _, _) in enumerate(steps)}
    for at, (_, reads, _) in enumerate(steps):
        last.update({name: at for name in reads if name in last})
    top = max((offsets[name] + nbytes for name, _, nbytes in steps), default=0)
    floor, wide = GAP + top / scale, NODE_WIDTH * 0.75
    parts = [_text(GAP + wide * (at + 0.5), floor + 14, f"step {at}") for at in range(len(steps))]
    for at, (name, _, nbytes) in enumerate(steps):
        x, y = GAP + wide * at, floor - (offsets[name] + nbytes) / scale
        size = (wide * (last[name] + 1 - at), nbytes / scale)
        parts.append(_box(x, y, *size, COLOURS[at % len(COLOURS)], f"{name}: {nbytes}"))
    parts.append(_text(GAP, floor + 34, f"{top} bytes in all", "start"))
    return Picture(2 * GAP + wide * len(steps), floor + 34 + GAP, parts)


def _box(x: float, y: float, width: float, height: float, colour: str, label: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}" stroke="white" rx="2"/>'
        + _text(x + width / 2, y + height / 2, label, colour="white")
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", colour: str = "#222") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
