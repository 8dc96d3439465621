"""Memory between guard pages: what a kernel reads or writes outside of its buffers ends the process.

Within :func:`guarded` every value of an instance, every workspace and every result has pages of its own, with pages
that nobody may touch before and behind; inputs and weights may not be written to.  Values begin on 64-byte boundaries,
as kernels expect, so of one that does not end there some bytes behind it are not watched; every other one begins
where its pages do, and is watched before instead.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from minitvm.ir.arrays import ALIGNMENT
from minitvm.runtime import bound, control, devices, direct, library, native, places
from minitvm.runtime.devices import Memory
from minitvm.runtime.graph import Artifact, Plan, round_up
from minitvm.runtime.instance import Instance
from tests.fuzz import subject
from tests.fuzz.case import Arrays

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOBODY, _READ = 0, 1
_turn = itertools.count()


def _protect(address: int, nbytes: int, how: int) -> None:
    if nbytes and _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), how):
        raise OSError(ctypes.get_errno(), "mprotect")


def _pages(nbytes: int) -> int:
    """Bytes of the pages of so many bytes, one at least."""
    return max(1, -(-nbytes // PAGE)) * PAGE


def fenced(nbytes: int) -> np.ndarray:
    """Bytes between two pages that nobody may touch; they hold no zeros."""
    inner = _pages(nbytes)
    memory = np.frombuffer(mmap.mmap(-1, inner + 2 * PAGE), np.uint8)
    memory[...] = 0xA5
    start = PAGE + (inner - round_up(nbytes) if next(_turn) % 2 else 0)
    _protect(memory.ctypes.data, PAGE, _NOBODY)
    _protect(memory.ctypes.data + PAGE + inner, PAGE, _NOBODY)
    return memory[start : start + nbytes]


def fenced_empty(shape: Sequence[int], dtype: Any, lasts: bool = False) -> np.ndarray:
    """In place of ``arrays.aligned_empty``: every array has pages of its own."""
    kind = np.dtype(dtype)
    found: np.ndarray = fenced(math.prod(shape) * kind.itemsize).view(kind).reshape(tuple(shape))
    return found


def read_only(value: np.ndarray) -> np.ndarray:
    """A copy that nobody may write to."""
    found = fenced_empty(value.shape, value.dtype.newbyteorder("="))
    found[...] = value
    if found.nbytes:
        _protect(found.ctypes.data // PAGE * PAGE, _pages(found.ctypes.data % PAGE + found.nbytes), _READ)
    found.setflags(write=False)
    return found


class FencedMemory(Memory):
    """The host's memory, every value in pages of its own."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return fenced_empty(shape, dtype)

    def hold(self, array: np.ndarray) -> Any:
        return read_only(array)


class FencedInstance(Instance):
    """An instance whose values lie apart in the arena, with closed pages between them."""

    def __init__(self, artifact: Artifact, *how: Any) -> None:
        plan, gaps = spread(artifact)
        super().__init__(replace(artifact, plan=plan), *how)
        start = self.arena.ctypes.data
        assert start % PAGE == 0
        for at in gaps:
            _protect(start + at, PAGE, _NOBODY)


def spread(artifact: Artifact) -> tuple[Plan, list[int]]:
    """A plan that uses no memory twice, and where the closed pages are."""
    plan, types = artifact.plan, artifact.graph.entry_types
    owners = places.owners(artifact.graph)
    needs: dict[tuple[str, int], int] = {}
    for entry, at in enumerate(plan.offsets):
        if at >= 0:
            needs["value", owners[entry]] = types[owners[entry]].nbytes
    facts = {node: artifact.metadata[artifact.graph.nodes[node].func] for node in plan.workspaces}
    for node, each in facts.items():
        needs["workspace", node] = each["workspace"] + each["workspace_per_thread"] * artifact.threads
    where, gaps, end = dict[tuple[str, int], int](), [0], PAGE
    for what, nbytes in needs.items():
        inner = _pages(nbytes)
        where[what] = end + (inner - round_up(nbytes) if next(_turn) % 2 else 0)
        end += inner
        gaps.append(end)
        end += PAGE
    base = {owner: plan.offsets[owner] for owner in set(owners)}
    offsets = tuple(
        where["value", owners[e]] + at - base[owners[e]] if at >= 0 else at for e, at in enumerate(plan.offsets)
    )
    workspaces = {node: where["workspace", node] for node in plan.workspaces}
    return replace(plan, offsets=offsets, workspaces=workspaces, nbytes=end - ALIGNMENT), gaps


@contextmanager
def guarded() -> Iterator[None]:
    """Within it instances and results are made between guard pages."""
    with (
        mock.patch.object(library, "Instance", FencedInstance),
        mock.patch.object(native.NativeArtifact, "memory", FencedMemory()),
        mock.patch.object(devices, "aligned_empty", fenced_empty),
        mock.patch.object(direct, "aligned_empty", fenced_empty),
        mock.patch.object(control, "aligned_empty", fenced_empty),
        mock.patch.object(bound, "rounded_up", lambda size: size),
    ):
        yield


def perform(task: subject.Task) -> list[Any]:
    """The fuzzer's subject between guard pages."""
    feeds: list[Arrays] = [{n: a if a.dtype.hasobject else read_only(a) for n, a in f.items()} for f in task.feeds]
    with guarded():
        return subject.perform(replace(task, feeds=feeds))
